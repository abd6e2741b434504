"""Attacks on the daemon: bad objects, bad answers and internal errors must not end it."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from reconciler.cli.main import main
from reconciler.engine.loop import PassIntervals, run
from reconciler.engine.reconcile import Mandate
from reconciler.model.karpenter.labels import DO_NOT_DISRUPT
from reconciler.observed.reader import SnapshotReader
from reconciler.observed.snapshot import Snapshot, read_snapshot
from reconciler.observed.state import cluster_state
from tests.cli.test_plan import CATALOG, CLASS, NOW, POOL
from tests.completeobjects import KINDS, complete_object, paths, replaced
from tests.engine.faults import commit_drift, ever_launched, three_nodes
from tests.engine.world import TAGS, World
from tests.hostile.threats import Threat, attack


def keep(world: World, passes: int, at: dict[int, Callable[[], None]] | None = None) -> None:
    """Run the daemon for a number of passes; ``at`` has the actions before each of them."""
    engine = world.engine()
    numbers = iter(range(passes))

    def stop() -> bool:
        number = next(numbers, None)
        if at is not None and number in at:
            at[number]()
        return number is None

    run(
        engine.ports,
        engine.source,
        Mandate(TAGS),
        intervals=PassIntervals(busy=5.0),
        stop=stop,
        next_change=lambda _: None,
    )


@attack(Threat.EXHAUSTION, "a revision that makes the reader of the repository fail")
def test_an_internal_error_while_reading_keeps_the_last_valid_revision() -> None:
    world = three_nodes()
    victim = next(iter(world.instances()))

    def broken() -> None:
        world.git.unreadable = ArithmeticError("1e400")
        world.git.commit()

    keep(world, 40, {4: broken, 8: lambda: world.cloud.reclaim_instance(victim)})
    messages, again = world.recorder.messages("InvalidRevision")
    assert again == f"{messages} (for 5m10s)"
    assert "internal error" in messages
    assert "1e400" in messages
    assert "stays in effect" in messages
    assert victim not in world.instances()
    assert len(world.instances()) == 3


class Failing:
    """A port of which one verb fails a number of times with an unexpected error."""

    def __init__(self, port: Any, verb: str, times: int, *, after: bool) -> None:
        self._port = port
        self._verb = verb
        self._after = after
        self.left = times

    def __getattr__(self, name: str) -> Any:
        real = getattr(self._port, name)
        if name != self._verb:
            return real

        def call(*words: Any, **more: Any) -> Any:
            answer = real(*words, **more) if self._after else None
            if self.left:
                self.left -= 1
                raise ZeroDivisionError("an answer that nobody has thought of")
            return answer if self._after else real(*words, **more)

        return call


@attack(Threat.EXHAUSTION, "a response that makes a pass fail")
@pytest.mark.parametrize(
    ("name", "verb"),
    [("compute", "instances"), ("cluster", "observe"), ("cluster", "taint"), ("store", "commands")],
)
def test_an_internal_error_in_a_pass_does_not_end_the_daemon(name: str, verb: str) -> None:
    world = three_nodes()
    commit_drift(world)
    world.around = lambda port, of: Failing(port, verb, 3, after=False) if of == name else port
    keep(world, 60)
    messages = world.recorder.messages("Failed")
    assert any("internal error" in text and "ZeroDivisionError" in text for text in messages)
    assert len({text.split()[2] for text in messages}) == 1, "the same mistake has one reference"
    claims = world.claims.values()
    assert len(claims) == len(world.instances()) == 3
    assert {claim.metadata.labels.get("version") for claim in claims} == {"2"}


@attack(Threat.EXHAUSTION, "a launch whose response makes a pass fail")
def test_an_operation_in_doubt_is_resolved_before_anything_else() -> None:
    world = three_nodes()
    commit_drift(world)
    world.around = lambda port, of: (
        Failing(port, "launch", 1, after=True) if of == "compute" else port
    )
    before = ever_launched(world)
    keep(world, 60)
    assert ever_launched(world) == before + 3, "nothing was launched twice"
    assert len(world.instances()) == 3


def test_apply_fails_on_an_internal_error() -> None:
    world = three_nodes()
    commit_drift(world)
    world.around = lambda port, of: (
        Failing(port, "instances", 1, after=False) if of == "compute" else port
    )
    with pytest.raises(ZeroDivisionError):
        world.converge()


def a_pod(name: str, *, node: str = "", cpu: Any = "1", **more: Any) -> dict[str, Any]:
    pending = [{"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}]
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": "shop"},
        "spec": {
            **({"nodeName": node} if node else {}),
            "containers": [{"name": "c", "resources": {"requests": {"cpu": cpu}}}],
            **more,
        },
        "status": {"phase": "Running"} if node else {"conditions": pending},
    }


def a_node(name: str, cpu: Any = "4", **metadata: Any) -> dict[str, Any]:
    amounts = {"cpu": cpu, "memory": "8Gi", "pods": "30"}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, **metadata},
        "spec": {"providerID": f"aws:///z-a/i-{name}"},
        "status": {"capacity": amounts, "allocatable": amounts},
    }


def a_budget(selector: dict[str, Any]) -> dict[str, Any]:
    return {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": {"name": "all", "namespace": "shop"},
        "spec": {"selector": selector, "maxUnavailable": 5},
        "status": {"disruptionsAllowed": 5},
    }


def snapshot_of(*objects: dict[str, Any]) -> Snapshot:
    """Return the snapshot of the lists of a cluster."""
    lists: dict[str, list[bytes]] = {}
    for item in objects:
        lists.setdefault(item["kind"], []).append(json.dumps(item).encode())
    return SnapshotReader().read_lists(
        (f"GET /{kind}", kind, items) for kind, items in lists.items()
    )


UNREADABLE_PODS: dict[str, dict[str, Any]] = {
    "a number beyond every amount": {"cpu": "1e400"},
    "text for an amount": {"cpu": "lots"},
    "a list for an amount": {"cpu": ["1"]},
    "text for the containers": {"containers": "none"},
    "text for its priority": {"priority": "high"},
    "an operator that does not exist": {
        "affinity": {
            "nodeAffinity": {
                "requiredDuringSchedulingIgnoredDuringExecution": {
                    "nodeSelectorTerms": [{"matchExpressions": [{"key": "a", "operator": "Is"}]}]
                }
            }
        }
    },
    "a selector with an operator that does not exist": {
        "topologySpreadConstraints": [
            {
                "topologyKey": "zone",
                "labelSelector": {"matchExpressions": [{"key": "a", "operator": "Is"}]},
            }
        ]
    },
}
pods = pytest.mark.parametrize("broken", UNREADABLE_PODS.values(), ids=UNREADABLE_PODS.keys())


@attack(Threat.EXHAUSTION, "a pending pod that cannot be read")
@pods
def test_an_unreadable_pending_pod_is_not_scheduled(broken: dict[str, Any]) -> None:
    seen = snapshot_of(a_node("n1"), a_pod("bad", **broken), a_pod("good"))
    assert [pod.metadata.name for pod in seen.pods] == ["good"]
    [finding] = seen.findings
    assert "shop/bad" in finding.message
    assert finding.hint == "until it is fixed, it is not scheduled"


@attack(Threat.EXHAUSTION, "a running pod that cannot be read")
@pods
def test_the_node_of_an_unreadable_pod_is_not_disrupted(broken: dict[str, Any]) -> None:
    seen = snapshot_of(a_node("n1"), a_pod("bad", node="n1", **broken))
    [node] = cluster_state(seen).nodes
    [pod] = node.pods
    assert pod.metadata.annotations[DO_NOT_DISRUPT] == "true"
    [finding] = seen.findings
    assert finding.hint == "until it is fixed, its node is not disrupted"


@attack(Threat.EXHAUSTION, "a node that cannot be read")
@pytest.mark.parametrize(
    "node",
    [
        a_node("n1", cpu="1e400"),
        a_node("n1", cpu="-"),
        a_node("n1", cpu=[1]),
        a_node("n1", creationTimestamp="0001-01-01T00:00:00Z"),
        a_node("n1", creationTimestamp="9999-12-31T23:59:59Z"),
        a_node("n1", creationTimestamp="2026-01-01T00:00:00"),
    ],
    ids=["too much", "no number", "a list", "the year 1", "the year 9999", "no time zone"],
)
def test_an_unreadable_node_takes_no_pods_and_stays(node: dict[str, Any]) -> None:
    seen = snapshot_of(node, a_node("n2"))
    bad, good = cluster_state(seen).nodes
    assert not bad.available
    assert bad.annotations[DO_NOT_DISRUPT] == "true"
    assert good.available["cpu"] == 4000
    assert len(seen.findings) == 1


@attack(Threat.EXHAUSTION, "a PodDisruptionBudget that cannot be read")
@pytest.mark.parametrize(
    "selector",
    [{"matchExpressions": [{"key": "a", "operator": "Is"}]}, {"matchLabels": ["a"]}],
    ids=["operator", "shape"],
)
def test_an_unreadable_pod_disruption_budget_protects_its_namespace(
    selector: dict[str, Any],
) -> None:
    seen = snapshot_of(a_node("n1"), a_pod("web-0", node="n1"), a_budget(selector))
    [budget] = seen.pod_disruption_budgets
    assert budget.selects(seen.pods[0])
    assert budget.status.disruptions_allowed == 0
    assert len(seen.findings) == 1


@attack(Threat.EXHAUSTION, "a PodDisruptionBudget with a number that no API server accepts")
@pytest.mark.parametrize("amount", ["two", "", "%", "-1", -1, "1_0", "٢%", "1.5", "9" * 5000])
@pytest.mark.parametrize("name", ["minAvailable", "maxUnavailable"])
def test_a_budget_with_an_unreadable_number_protects_its_namespace(
    name: str, amount: int | str
) -> None:
    """Guard: ``check_amount``."""
    budget = a_budget({"matchLabels": {"app": "other"}})
    budget["spec"] |= {"minAvailable": None, "maxUnavailable": None, name: amount}
    seen = snapshot_of(a_node("n1"), a_pod("web-0", node="n1"), budget)
    [protecting] = seen.pod_disruption_budgets
    assert protecting.selects(seen.pods[0])
    assert protecting.is_fully_blocking
    [finding] = seen.findings
    assert "is not a number of pods" in finding.message


def test_a_corrected_object_is_read_again() -> None:
    reader = SnapshotReader()

    def read(cpu: str) -> Snapshot:
        return reader.read_lists([("GET /pods", "Pod", [json.dumps(a_pod("p", cpu=cpu)).encode()])])

    assert read("lots").findings
    assert read("lots").findings
    assert not read("1").findings
    assert read("1").pods


@attack(Threat.EXHAUSTION, "unreadable objects of a cluster in the daemon")
def test_the_daemon_continues_despite_unreadable_objects() -> None:
    world = three_nodes()
    bad = snapshot_of(a_pod("bad"), a_pod("worse", cpu="1e400"))

    @dataclass
    class Cluster:
        port: Any

        def observe(self, claims: Sequence[Any], instances: Sequence[Any]) -> Snapshot:
            seen = self.port.observe(claims, instances)
            return replace(seen, findings=bad.findings)

        def __getattr__(self, name: str) -> Any:
            return getattr(self.port, name)

    world.around = lambda port, of: Cluster(port) if of == "cluster" else port
    commit_drift(world)
    keep(world, 60)
    [messages] = world.recorder.messages("Unreadable")
    assert "shop/worse" in messages
    assert {claim.metadata.labels.get("version") for claim in world.claims.values()} == {"2"}
    assert not world.recorder.messages("Failed")


@attack(Threat.EXHAUSTION, "hundreds of objects that cannot be read, for a log of each of them")
def test_few_unreadable_objects_are_reported_one_by_one() -> None:
    """Guard: ``_FINDINGS_MAX`` of the loop. The others are counted."""
    world = three_nodes()
    bad = snapshot_of(*(a_pod(f"worse-{number}", cpu="1e400") for number in range(300)))

    @dataclass
    class Cluster:
        port: Any

        def observe(self, claims: Sequence[Any], instances: Sequence[Any]) -> Snapshot:
            return replace(self.port.observe(claims, instances), findings=bad.findings)

        def __getattr__(self, name: str) -> Any:
            return getattr(self.port, name)

    world.around = lambda port, of: Cluster(port) if of == "cluster" else port
    keep(world, 20)
    messages = world.recorder.messages("Unreadable")
    assert len(messages) == 11
    assert messages[-1].startswith("290 more objects")


@attack(Threat.EXHAUSTION, "unreadable objects in a snapshot")
def test_a_plan_of_a_snapshot_ignores_unreadable_objects(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fleet = tmp_path / "fleet"
    fleet.mkdir()
    (fleet / "pool.yaml").write_text(POOL)
    (fleet / "class.yaml").write_text(CLASS)
    (tmp_path / "catalog.json").write_text(json.dumps(CATALOG))
    items = [a_pod("bad", cpu="1e400"), a_node("n1", cpu="1e400"), a_pod("good")]
    snapshot = tmp_path / "snapshot.json"
    snapshot.write_text(json.dumps({"kind": "List", "items": items}, indent=1))
    words = ["plan", str(fleet), "--snapshot", str(snapshot), "--now", NOW, "-o", "json"]
    assert main([*words, "--catalog", str(tmp_path / "catalog.json")]) == 0
    plan = json.loads(capsys.readouterr().out)
    assert [launch["pods"] for launch in plan["nodeClaims"]] == [["shop/good"]]
    found = [d["message"] for d in plan["diagnostics"] if d["code"] == "unreadable-object"]
    assert len(found) == 2
    assert all(message.startswith(f"{snapshot}:") for message in found)


OF_OTHERS: dict[str, dict[str, Any]] = {
    "HorizontalPodAutoscaler": {
        "apiVersion": "autoscaling/v2",
        "spec": {
            "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "web"},
            "minReplicas": 1,
            "maxReplicas": 3,
        },
    },
    "ScaledObject": {
        "apiVersion": "keda.sh/v1alpha1",
        "spec": {
            "scaleTargetRef": {"kind": "Deployment", "name": "web"},
            "minReplicaCount": 1,
            "maxReplicaCount": 3,
        },
    },
    "NodePool": {"apiVersion": "karpenter.sh/v1", "spec": {"limits": {"cpu": "4"}, "weight": 1}},
    "NodeOverlay": {
        "apiVersion": "karpenter.sh/v1alpha1",
        "spec": {"requirements": [], "price": "1"},
    },
    "EC2NodeClass": {
        "apiVersion": "karpenter.k8s.aws/v1",
        "spec": {"role": "nodes"},
        "status": {"amis": [{"id": "ami-1"}], "conditions": [{"type": "Ready", "status": "True"}]},
    },
    "GCENodeClass": {
        "apiVersion": "karpenter.k8s.gcp/v1",
        "status": {"conditions": [{"type": "Ready", "status": "True"}]},
    },
    "VerticalPodAutoscaler": {"apiVersion": "autoscaling.k8s.io/v1", "spec": {}},
    "Event": {"apiVersion": "events.k8s.io/v1", "reason": "Scheduled"},
}
"""Kinds that are read as plain data, or not at all."""


def an_object_of(kind: str) -> dict[str, Any]:
    """Return an object with a value in every field that is read of its kind."""
    if kind in KINDS:
        return complete_object(kind)
    metadata = {
        "name": "the-object",
        "namespace": "shop",
        "annotations": {"a": "b"},
        "labels": {"a": "b"},
        "ownerReferences": [{"kind": "Deployment", "name": "web"}],
    }
    return {"kind": kind, "metadata": metadata, **OF_OTHERS[kind]}


ODD = [7, "x", True, [], {}, [None], {"a": 1}, 10**30, "9" * 400, [[7]], "1e400", -1, "\u202e"]


@attack(Threat.EXHAUSTION, "an object of any kind in a snapshot that cannot be read")
@pytest.mark.parametrize("kind", [*KINDS, *OF_OTHERS])
def test_an_unreadable_object_of_any_kind_is_left_out(
    kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Every field of the kind has an odd value in one of the objects, and one has no name."""
    fleet = tmp_path / "fleet"
    fleet.mkdir()
    (fleet / "pool.yaml").write_text(POOL)
    (fleet / "class.yaml").write_text(CLASS)
    (tmp_path / "catalog.json").write_text(json.dumps(CATALOG))
    whole = an_object_of(kind)
    odd = [
        replaced(whole, path, ODD[(number + shift) % len(ODD)])
        for shift in (0, 5)
        for number, path in enumerate(paths(whole))
        if path != ("kind",)
    ]
    snapshot = tmp_path / "snapshot.json"
    items = [*odd, {"kind": kind, "metadata": {}}, a_pod("good")]
    snapshot.write_text(json.dumps({"kind": "List", "items": items}, indent=1))
    words = ["--snapshot", str(snapshot), "--now", NOW, "--replicas", "max"]
    words += ["--catalog", str(tmp_path / "catalog.json"), "-o", "json"]
    assert main(["plan", str(fleet), *words]) == 0
    plan = json.loads(capsys.readouterr().out)
    launched = {pod for launch in plan["nodeClaims"] for pod in launch["pods"]}
    assert "shop/good" in launched | {row["pod"] for row in plan["placements"]}
    found = [d for d in plan["diagnostics"] if d["code"] == "unreadable-object"]
    assert bool(found) is (kind not in ("VerticalPodAutoscaler", "Event"))
    assert all(f"{kind}" in d["message"] and d["hint"] for d in found)
    assert not any(word in d["message"] for d in found for word in ("Expected `", "`int`", "`str`"))
    assert any("it has no name" in d["message"] for d in found) is bool(found)


@attack(Threat.EXHAUSTION, "a time of capture that cannot be read")
@pytest.mark.parametrize("at", ["soon", None, {}, "2026-01-01T00:00:00", 1e308])
def test_an_unreadable_time_of_capture_stops_no_plan(at: object) -> None:
    capture = {"apiVersion": "reconciler/v1", "kind": "SnapshotCapture", "at": at}
    items = [a_pod("good"), capture]
    seen = read_snapshot(json.dumps({"kind": "List", "items": items}).encode(), "s")
    assert [pod.metadata.name for pod in seen.pods] == ["good"]
    assert seen.captured_at is None
    (found,) = seen.findings
    assert "SnapshotCapture: at " in found.message
    assert "datetime" not in found.message


@attack(Threat.EXHAUSTION, "the limit of volumes of a node that cannot be read")
def test_a_node_whose_limits_cannot_be_read_gets_no_volumes() -> None:
    bad = {"kind": "CSINode", "metadata": {"name": "n1"}, "spec": {"drivers": [{"name": 7}]}}
    (limits,) = [node.limits() for node in snapshot_of(bad).csi_nodes]
    assert limits == {"ebs.csi.aws.com": 0}
