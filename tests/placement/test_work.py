"""The limit of work: partial results, in turns by namespace, equal on every machine."""

from __future__ import annotations

import pytest

from reconciler.placement import scheduler as scheduling
from reconciler.placement import work as working
from reconciler.placement.pods.pending import pods_to_place
from reconciler.placement.question import Placement, Question
from reconciler.placement.topology.census import Census
from reconciler.placement.topology.rules import Selector
from reconciler.placement.work import PULSE_CHECKS, WORK_MAX, PlacementWork, with_pulse
from tests.placement.builders import (
    HOST,
    NOW,
    REQUIRED,
    ZONE,
    Object,
    a_node,
    a_pod,
    a_pool,
    a_scheduler,
    placed,
    pods,
)


def repelling(count: int, namespace: str = "crowd") -> list[Object]:
    """Return pods that each repel all others by a rule of their own."""
    found = []
    for number in range(count):
        chosen = {"key": "app", "operator": "NotIn", "values": [f"z{number}"]}
        term = {"labelSelector": {"matchExpressions": [chosen]}, "topologyKey": HOST}
        pod = a_pod(f"p-{number:04}", affinity={"podAntiAffinity": {REQUIRED: [term]}})
        pod["metadata"] |= {"namespace": namespace, "labels": {"app": f"a{number}"}}
        found.append(pod)
    return found


def stranded(count: int) -> list[Object]:
    """Return pods of the namespace crowd that repel each other by labels that no node has."""
    found = repelling(count)
    for number, pod in enumerate(found):
        (term,) = pod["spec"]["affinity"]["podAntiAffinity"][REQUIRED]
        term["topologyKey"] = f"example.com/k{number}"
    return found


def in_namespace(name: str, objects: list[Object]) -> list[Object]:
    for item in objects:
        item["metadata"]["namespace"] = name
    return objects


def placed_keys(placement: Placement) -> set[str]:
    return {pod for claim in placement.claims for pod in claim.pods}


SIZES = (
    (1300, 12),
    (1300, 3),
    (1700, 1),
    (1300, 9),
    (1300, 9),
    (2500, 3),
    (2500, 1),
    (2500, 3),
    (1700, 6),
    (900, 6),
    (900, 1),
    (2500, 3),
    (500, 12),
)
"""CPU in millicores and memory in GiB of pods for which another order than the first is better."""


def test_pods_that_no_node_can_take_change_nothing_for_the_others() -> None:
    """With more than 500 pods to serve, fewer orders would be tried."""
    shop = [a_pod(f"s-{i}", f"{cpu}m", f"{memory}Gi") for i, (cpu, memory) in enumerate(SIZES)]
    alone = placed([a_pool("default"), *shop])
    found = placed([a_pool("default"), *stranded(600), *shop])
    assert found.unschedulable.keys() == {f"crowd/p-{number:04}" for number in range(600)}
    assert [claim.pods for claim in found.claims] == [claim.pods for claim in alone.claims]


@pytest.fixture
def limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scheduling, "WORK_MAX", 60_000)


def test_up_to_the_limit_nothing_is_reported() -> None:
    found = placed([a_pool("default"), *repelling(30)])
    assert found.work_limit is None
    assert len(found.claims) == 30


@pytest.mark.usefixtures("limit")
@pytest.mark.parametrize("count", [150, 600])
def test_a_namespace_that_uses_the_work_is_named_and_others_are_placed(count: int) -> None:
    shop = in_namespace("shop", pods(40, cpu="1"))
    small = in_namespace("tools", pods(3, name="tool"))
    objects = [a_pool("default"), *repelling(count), *shop, *small]
    found = placed(objects)
    keys = placed_keys(found)
    assert {f"shop/app-{i:02d}" for i in range(40)} <= keys
    assert {f"tools/tool-{i:02d}" for i in range(3)} <= keys
    assert found.work_limit is not None
    assert next(iter(found.work_limit.namespaces)) == "crowd"
    assert found.work_limit.pods == len(found.unschedulable) > 0
    assert 0 < sum(key.startswith("crowd/") for key in keys) < count
    for pod, (reason,) in found.unschedulable.items():
        assert pod.startswith("crowd/")
        assert reason.code == "WorkLimit"
        assert "namespace crowd (" in reason.message
    assert placed(list(reversed(objects))) == found


@pytest.mark.usefixtures("limit")
def test_two_namespaces_have_equal_parts_of_the_work() -> None:
    found = placed([a_pool("default"), *repelling(300, "one"), *repelling(120, "two")])
    shares = [sum(key.startswith(f"{name}/") for key in placed_keys(found)) for name in
              ("one", "two")]  # fmt: skip
    assert abs(shares[0] - shares[1]) <= 1
    assert all(shares)
    for pod, (reason,) in found.unschedulable.items():
        own, other = ("one", "two") if pod.startswith("one/") else ("two", "one")
        assert f"namespace {own} (" in reason.message
        assert f"namespace {other}" not in reason.message, (
            "the author of a pod reads the names of others"
        )


def test_pending_pods_are_placed_whatever_disruption_has_used(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(working, "NAMESPACE_WORK_MAX", 1_000)
    scheduler, cluster = a_scheduler([a_pool("default"), *repelling(60)])
    pending = pods_to_place(cluster, NOW)
    simulated = Question(pods=pending, strict_reservations=False)
    first, *_, last = [scheduler.place(simulated) for _ in range(5)]
    assert first.work_limit is not None
    assert last.claims == ()
    reasons = [reason for (reason,) in last.unschedulable.values()]
    assert {reason.code for reason in reasons} == {"WorkLimit"}
    assert all("namespace crowd" in reason.message for reason in reasons)
    found = scheduler.place(Question(pods=pending))
    assert found.work_limit is None
    assert len(found.claims) == 60


def test_a_long_placement_gives_signs_of_life_that_change_nothing() -> None:
    objects = [a_pool("default"), *repelling(150)]
    signs: list[int] = []
    with with_pulse(lambda: signs.append(1)):
        found = placed(objects)
    assert len(signs) > 10
    before = len(signs)
    assert placed(objects) == found
    assert len(signs) == before, "a sign of life was given outside of the context"


def test_signs_of_life_come_with_the_work_of_a_placement() -> None:
    signs: list[int] = []
    with with_pulse(lambda: signs.append(1)):
        work = PlacementWork(WORK_MAX)
    for _ in range(10):
        work.charge("crowd", PULSE_CHECKS)
    assert len(signs) == 10


def test_rules_of_running_pods_are_work_of_their_namespace(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A namespace whose running pods have many rules has less left for its waiting pods."""
    monkeypatch.setattr(scheduling, "WORK_MAX", 3_000)
    running = in_namespace("one", pods(4, name="running", node="n0"))
    for number, pod in enumerate(running):
        terms = [
            {"labelSelector": {"matchLabels": {"app": f"none-{number}-{i}"}}, "topologyKey": HOST}
            for i in range(25)
        ]
        pod["spec"]["affinity"] = {"podAntiAffinity": {REQUIRED: terms}}
    waiting = [
        pod
        for namespace in ("one", "two")
        for i in range(150)
        for pod in in_namespace(namespace, [a_pod(f"p-{i:03}", f"{900 + i}m")])
    ]
    found = placed([a_pool("default"), *a_node("n0"), *running, *waiting])
    shares = [sum(key.startswith(f"{name}/") for key in placed_keys(found)) for name in
              ("one", "two")]  # fmt: skip
    assert 0 < shares[0] < shares[1] - 10


def test_rules_of_running_pods_delay_the_turns_of_their_namespace(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """They are compared with every waiting pod, and so are work before anything is placed."""
    monkeypatch.setattr(scheduling, "WORK_MAX", 40_000)
    running = in_namespace("one", pods(2, name="running", node="n0"))
    rules = [pod["spec"]["affinity"]["podAntiAffinity"][REQUIRED][0] for pod in repelling(60)]
    for pod, terms in zip(running, (rules[:30], rules[30:]), strict=True):
        pod["spec"]["affinity"] = {"podAntiAffinity": {REQUIRED: terms}}
    waiting = [pod for namespace in ("one", "two") for pod in repelling(200, namespace)]
    without = placed([a_pool("default"), *waiting])
    shares = [
        [sum(key.startswith(f"{name}/") for key in placed_keys(found)) for name in ("one", "two")]
        for found in (without, placed([a_pool("default"), *a_node("n0"), *running, *waiting]))
    ]
    assert abs(shares[0][0] - shares[0][1]) <= 1
    assert shares[1][1] > shares[1][0] + 10
    assert shares[1][1] >= shares[0][1] - 3, "the rules of another namespace delay this one"


def test_a_pod_that_cannot_be_placed_costs_nothing_in_the_bound() -> None:
    """Whoever may create one would otherwise end every command that states a bound."""
    odd = a_pod("odd", nodeSelector={"not a label": "x"})
    bounds, values = [], []
    for more in ([], [odd]):
        scheduler, cluster = a_scheduler([a_pool("default"), a_pod("plain"), *more])
        bounds.append(scheduler.lower_bound(cluster.pods))
        values.append(scheduler.pod_values(cluster.pods))
    assert bounds[0].cost == bounds[1].cost > 0
    assert values[1] == {**values[0], "default/odd": 0.0}


@pytest.mark.usefixtures("limit")
def test_the_namespace_whose_rules_are_refused_is_named_and_not_those_served_instead() -> None:
    found = placed([a_pool("default"), *repelling(5_000), *in_namespace("shop", pods(40))])
    assert found.work_limit is not None
    assert list(found.work_limit.namespaces) == ["crowd"]


def at_host(count: int, namespace: str, node: str, **fields: object) -> list[Object]:
    """Return running pods of a namespace that repel pods on their node by rules of their own."""
    found = in_namespace(namespace, repelling(count))
    for pod in found:
        pod["spec"]["nodeName"] = node
        pod["status"] = {"phase": "Running"}
        for term in pod["spec"]["affinity"]["podAntiAffinity"][REQUIRED]:
            term |= fields
    return found


@pytest.mark.parametrize("field", ["NAMESPACE_WORK_MAX", "WORK_TOTAL_MAX"])
def test_a_namespace_that_used_its_work_leaves_the_removals_of_others_as_they_were(
    field: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is simplified: what its rules may repel, they do, and other nodes take pods as before."""
    shop = in_namespace("shop", pods(6, cpu="100m"))
    tools = in_namespace("tools", pods(4, name="tool", cpu="100m"))
    everywhere = at_host(30, "crowd", "n0", namespaceSelector={})
    nodes = [item for name in ("n0", "n1") for item in a_node(name)]
    scheduler, cluster = a_scheduler([a_pool("default"), *nodes, *everywhere, *shop, *tools])
    mine = [pod for pod in cluster.pending if pod.namespace != "crowd"]
    question = Question(pods=mine, strict_reservations=False)
    exact = scheduler.place(question)
    assert set(exact.on_nodes.values()) == {"n1"}
    used = scheduler.simulated.used
    known = {"NAMESPACE_WORK_MAX": used["crowd"], "WORK_TOTAL_MAX": used.total()}
    monkeypatch.setattr(working, field, known[field])
    assert scheduler.simulated.closed == {"crowd"}
    before = used["crowd"]
    assert scheduler.place(question) == exact
    assert used["crowd"] - before < before / 10
    bound = [pod for pod in cluster.pods if pod.namespace == "crowd"]
    moved = scheduler.place(Question(pods=bound, strict_reservations=False))
    assert len(moved.unschedulable) == 30
    assert scheduler.place(Question(pods=mine)) == exact


def test_simplified_rules_repel_what_any_of_them_may() -> None:
    """A removal is rather refused than decided by rules that were not compared."""
    rules = at_host(4, "crowd", "n0")
    for number, pod in enumerate(rules):
        (term,) = pod["spec"]["affinity"]["podAntiAffinity"][REQUIRED]
        term["topologyKey"] = (HOST, ZONE, "example.com/none", "example.com/other")[number]
    nodes = [item for name in ("n0", "n1") for item in a_node(name)]
    scheduler, cluster = a_scheduler([a_pool("default"), *nodes, *rules])
    may_define = scheduler._universe.may_define
    found = Census(cluster, may_define, frozenset({"crowd"})).repellers.counts
    assert {rule.key: counts for rule, counts in found.items()} == {
        HOST: {"n0": 1},
        ZONE: {"zone-a": 1},
        "": {},
    }
    assert all(rule.namespaces == {"crowd"} and rule.selector == Selector() for rule in found)
