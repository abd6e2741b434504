"""The cause of a wrong prediction is named from Karpenter's Events and from taints."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

from reconciler.adapters.kubernetes.access import access_of
from reconciler.adapters.kubernetes.api import Api
from reconciler.adapters.kubernetes.kinds import watch_role
from reconciler.model.errors import ClusterError
from reconciler.model.karpenter.prediction import (
    KarpenterAction,
    KarpenterActionKind,
    NodeFacts,
    Prediction,
    Score,
)
from reconciler.model.settings import ClusterKind, Settings
from reconciler.watch.causes import Evidence, KarpenterEvent, explain_miss, read_events
from reconciler.watch.scoring import score_action
from tests.adapters.kubernetes.apiserver import Kube, serving, write_kubeconfig
from tests.states import open_state
from tests.watch.claims import START, after, claim, command, node
from tests.watch.test_session import World, launching

TAINT = [{"key": "karpenter.sh/disrupted", "effect": "NoSchedule"}]


def missed(*names: str, reason: str = "Underutilized") -> tuple[Score, Prediction]:
    """Return the score of a command for other nodes than the predicted ones."""
    done = command("Empty", "node-other")
    made = Prediction(START, (), (command(reason, *names),), 3)
    action = KarpenterAction(after(20), KarpenterActionKind.COMMAND, command=done)
    return score_action(action, made), made


def launched(made: int, *nodes: NodeFacts) -> tuple[Score, Prediction]:
    prediction = Prediction(START, (node("c5.large"),) * made, (), 3)
    action = KarpenterAction(after(20), KarpenterActionKind.LAUNCH, nodes)
    return score_action(action, prediction), prediction


def event(reason: str, kind: str, name: str, text: str, at: float = 10) -> KarpenterEvent:
    return KarpenterEvent(reason, kind, name, text, after(at))


def cause(
    found: tuple[Score, Prediction], *events: KarpenterEvent, objects: Any = (), claims: Any = ()
) -> str:
    return explain_miss(*found, Evidence(events, claims, objects))


def test_an_event_on_the_predicted_node_names_what_blocked_it() -> None:
    text = "Pdb prevents pod evictions (PodDisruptionBudget=[shop/api])"
    found = cause(
        missed("node-a"),
        event("DisruptionBlocked", "Node", "node-a", "an earlier reason", at=-60),
        event("DisruptionBlocked", "Node", "node-a", text),
        event("DisruptionBlocked", "Node", "node-other", "of the disrupted node"),
    )
    assert found == (f"Underutilized predicted, not Empty; Node node-a: DisruptionBlocked, {text}")


def test_an_event_on_the_nodeclaim_or_the_nodepool_counts_for_its_node() -> None:
    of_claim = event("Unconsolidatable", "NodeClaim", "a", "can't remove without creating 2 nodes")
    of_pool = event("DisruptionBlocked", "NodePool", "web", "No allowed disruptions")
    found = cause(missed("node-a"), of_pool, of_claim, claims=[claim("a")])
    assert "NodeClaim a: Unconsolidatable, can't remove without creating 2 nodes" in found
    assert "NodePool web: DisruptionBlocked, No allowed disruptions" in found
    assert "Unconsolidatable" not in cause(missed("node-b"), of_claim, claims=[claim("a")])


def test_an_event_of_an_hour_ago_is_not_the_cause() -> None:
    found = cause(missed("node-a"), event("DisruptionBlocked", "Node", "node-a", "old", at=-3_600))
    assert found == "Underutilized predicted, not Empty"


def test_a_taint_names_a_node_that_was_disrupted_already() -> None:
    nodes = [{"kind": "Node", "metadata": {"name": "node-a"}, "spec": {"taints": TAINT}}]
    found = cause(missed("node-a"), objects=nodes)
    assert found.endswith("; node node-a had the taint karpenter.sh/disrupted already")


def test_missing_capacity_names_why_another_type_was_launched() -> None:
    text = "no capacity for c5.large in us-east-1a"
    failed = event("InsufficientCapacityError", "NodeClaim", "web-x1", text)
    found = cause(launched(1, node("m5.xlarge")), failed)
    assert found.endswith(f"; NodeClaim web-x1: InsufficientCapacityError, {text}")


def test_nodes_that_go_without_a_command_explain_a_launch_that_was_not_predicted() -> None:
    nodes = [
        {"kind": "Node", "metadata": {"name": name}, "spec": {"taints": TAINT}}
        for name in ("node-a", "node-b")
    ]
    claims = [claim("a"), claim("b", disrupted=("Drifted", 1))]
    found = cause(launched(0, node()), objects=nodes, claims=claims)
    assert found == (
        "no launch was predicted; pods of node-a need a node, "
        "which has the taint karpenter.sh/disrupted"
    )


def test_pods_that_karpenter_could_not_place_explain_a_missing_launch() -> None:
    failed = event("FailedScheduling", "Pod", "shop/api-1", "incompatible with NodePool web")
    found = cause(launched(2, node("c5.large")), failed)
    assert found.endswith("; Pod shop/api-1: FailedScheduling, incompatible with NodePool web")


def test_only_a_few_causes_are_listed() -> None:
    events = [
        event("FailedScheduling", "Pod", f"shop/api-{number}", "no room") for number in range(99)
    ]
    assert cause(launched(2, node("c5.large")), *events).count("; ") == 3


def an_event(name: str, **fields: Any) -> dict[str, Any]:
    return {
        "apiVersion": "events.k8s.io/v1",
        "kind": "Event",
        "metadata": {"name": name, "namespace": "default"},
        "reason": "Unconsolidatable",
        "note": "one\nline" + "x" * 1_000,
        "regarding": {"kind": "Node", "name": "node-a"},
        "reportingController": "karpenter",
        "deprecatedLastTimestamp": "2026-03-02T09:00:10Z",
        **fields,
    }


def test_only_events_of_karpenter_are_read_and_their_text_is_one_short_line(
    tmp_path: Path,
) -> None:
    kube = Kube(rules=watch_role("any")["rules"])
    kube.add(an_event("a"))
    legacy = {"reportingController": "", "deprecatedSource": {"component": "karpenter"}}
    series = {"series": {"lastObservedTime": "2026-03-02T09:01:00.000000Z"}}
    kube.add(an_event("b", **legacy, **series))
    kube.add(an_event("c", reportingController="default-scheduler"))
    kube.add(an_event("d", reason="Nominated"))
    kube.add(an_event("e", note=7))
    kube.add(an_event("f", deprecatedLastTimestamp=None))
    with serving(kube) as url:
        path = write_kubeconfig(tmp_path / "kubeconfig", url)
        settings = Settings(cluster=ClusterKind.KUBECONFIG, kubeconfig=str(path))
        found = read_events(Api(lambda: access_of(settings), lambda _: None))
    assert [e.at - START for e in found] == [timedelta(seconds=10), timedelta(seconds=60)]
    assert all("\n" not in e.text and len(e.text) <= 300 for e in found)
    assert {c.method for c in kube.calls} == {"GET"}


def test_a_watch_lists_events_only_when_a_prediction_was_wrong(tmp_path: Path) -> None:
    with open_state(str(tmp_path), "web") as state:
        world = World(state)
        world.events = [
            event("InsufficientCapacityError", "NodeClaim", "x", "no capacity for m5.large")
        ]
        world.steps(0)
        world.claims = (claim("a", at=2),)
        world.plan = launching()
        world.steps(2, 8)
        assert world.events_read == 0
        world.claims = (*world.claims, claim("b", "c5.large", at=20))
        world.steps(20, 26)
        assert world.events_read == 1
        cause = "no launch was predicted; NodeClaim x: InsufficientCapacityError, no capacity for"
        assert world.scores[-1].cause == f"{cause} m5.large"


def test_events_that_cannot_be_listed_are_reported_and_the_score_counts(tmp_path: Path) -> None:
    with open_state(str(tmp_path), "web") as state:
        world = World(state)
        world.steps(0)
        world.claims = (claim("a", "c5.large", at=2), claim("b", at=2))
        world.events = ClusterError("forbidden", where="GET /events", remedy="allow it")
        world.steps(2, 8)
        assert [score.cause for score in world.scores] == ["1 node predicted, 2 launched"]
        assert [problem.message for problem in world.problems] == ["forbidden"]
