"""Classes of bugs that fleets have suffered from and that no other test covers.

``docs/bug-classes.md`` names for each class the guard and the test.
"""

from __future__ import annotations

from collections import Counter
from datetime import timedelta
from typing import Any

import pytest

from reconciler.adapters.simulated.compute import CLAIM_TAG
from reconciler.adapters.simulated.conditions import Fault, Offer, Period, Refused
from reconciler.engine.effects import intent_id
from reconciler.model.karpenter.labels import NODEPOOL
from reconciler.ports.journal import Verb
from tests.engine.test_crash import LARGE
from tests.engine.world import a_deployment, a_pool
from tests.simulated.smallworld import START, SmallWorld


def full(name: str, pods: int, version: str = "1", **spec: Any) -> list[dict[str, Any]]:
    """Return a pool whose nodes each hold one pod."""
    template = {"requirements": LARGE}
    labels = {"version": version}
    return [a_pool(name, labels=labels, template=template, **spec), a_deployment(name, name, pods)]


def versions(world: SmallWorld) -> Counter[tuple[str, str]]:
    """Return the claims by pool and version of the pool."""
    return Counter((c.node_pool, c.metadata.labels["version"]) for c in world.store.node_claims())


def test_a_different_launch_never_reuses_a_client_token() -> None:
    facts = ("revision", 7, Verb.LAUNCH, "web-1")
    assert intent_id(*facts, {"type": "m7i.large"}) == intent_id(*facts, {"type": "m7i.large"})
    assert intent_id(*facts, {"type": "m7i.large"}) != intent_id(*facts, {"type": "c7i.large"})


@pytest.mark.parametrize("fault", [Fault.RESET_AFTER, Fault.TIMEOUT_AFTER])
def test_a_launch_without_an_answer_is_searched_before_it_is_repeated(fault: Fault) -> None:
    """Nothing but the look keeps this EC2 from a second instance: it forgets tokens."""
    world = SmallWorld(0, honours_tokens=False)
    world.compute.faults.add("CreateFleet", fault)
    world.commit(full("web", 1))
    assert world.play().converged
    assert len(world.compute.machines) == 1


def test_a_blocked_pool_does_not_block_disruption_of_others() -> None:
    closed: dict[str, Any] = {"budgets": [{"nodes": "0"}]}
    world = SmallWorld(0)
    world.commit([*full("a", 2, **closed), *full("b", 2)])
    world.play()
    world.commit([*full("a", 2, "2", **closed), *full("b", 2, "2")])
    world.play()
    assert versions(world) == {("a", "1"): 2, ("b", "2"): 2}


def test_a_pool_without_capacity_does_not_block_launches_of_others() -> None:
    world = SmallWorld(0)
    spot: dict[str, Any] = {"capacity_types": ["spot"]}
    world.commit([*full("a", 0, **spot), *full("b", 0)])
    world.refuse(Refused(Offer(capacity_type="spot"), Period(START)))
    world.commit([*full("a", 3, **spot), *full("b", 1)])
    world.play(timedelta(minutes=1))
    world.commit([*full("a", 3, **spot), *full("b", 3)])
    world.play(timedelta(minutes=1))
    assert Counter(m.facts.tags[NODEPOOL] for m in world.running_instances()) == {"b": 3}


def test_an_outage_does_not_make_offerings_unavailable() -> None:
    """EC2 fails for ten minutes: all offerings stay available, and no pod is unschedulable."""
    world = SmallWorld(0)
    world.compute.faults.add("CreateFleet", Fault.SERVER_ERROR, times=None)
    world.commit(full("web", 2))
    played = world.play(timedelta(minutes=10))
    assert played.last is not None
    assert played.last.plan.unschedulable == ()
    assert world.store.unavailable(world.clock.now()) == []
    assert not played.converged
    world.compute.faults.clear()
    assert world.play().converged
    assert len(world.running_instances()) == 2


@pytest.mark.parametrize("most", [12, 40], ids=["limit", "budget"])
def test_a_restarted_process_continues_the_rate_limits(most: int) -> None:
    """Budgets and limits are counted again in each pass: no counter is carried over."""
    world = SmallWorld(0)
    spec: dict[str, Any] = {"budgets": [{"nodes": "2"}], "limits": {"cpu": str(most)}}
    world.commit(full("web", 4, **spec))
    world.play()
    world.commit(full("web", 4, "2", **spec))
    for _ in range(6):
        world.forget()
        world.run_pass()
        assert len(world.tainted()) <= 2
        assert world.cpus()["web"] <= most
        taken = {name for c in world.store.commands() for name in c.node_claims}
        living = {machine.facts.tags[CLAIM_TAG] for machine in world.running_instances()}
        assert taken & living <= world.tainted(), "what a command takes stays taken"
        world.pause(6)
    world.play()
    assert versions(world) == {("web", "2"): 4}


def of_two_zones(version: str) -> list[dict[str, Any]]:
    """Return a pool whose one node in each zone is of no use to the pod of the other."""
    pool = a_pool("web", labels={"version": version}, template={"requirements": LARGE})
    bound = [a_deployment(zone, "web", 1) for zone in ("us-east-1a", "us-east-1b")]
    for deployment in bound:
        selector = deployment["spec"]["template"]["spec"]["nodeSelector"]
        selector["topology.kubernetes.io/zone"] = deployment["metadata"]["name"]
    return [pool, *bound]


def test_nodes_of_a_running_command_count_towards_the_budget_of_the_next_pass() -> None:
    """Its node is neither deleted nor unready yet, and what replaces it helps no other node."""
    world = SmallWorld(0)
    world.commit(of_two_zones("1"))
    world.play()
    world.commit(of_two_zones("2"))
    for _ in range(12):
        world.forget()
        world.run_pass()
        assert len(world.tainted()) <= 1
        world.pause(3)
    assert versions(world) == {("web", "2"): 2}


def test_a_replacement_is_reused_after_its_command_was_rolled_back() -> None:
    """One of two is refused: the other stays, and is not launched once more for the next try."""
    world = SmallWorld(0)
    spread = {"topologyKey": "topology.kubernetes.io/zone", "maxSkew": 1}
    rule = {**spread, "whenUnsatisfiable": "DoNotSchedule"}
    selector = {"labelSelector": {"matchLabels": {"app": "web"}}}
    objects = [full("web", 2), full("web", 2, "2")]
    for pool, deployment in objects:
        pool["spec"]["disruption"]["budgets"] = [{"nodes": "2"}]
        deployment["spec"]["template"]["spec"]["topologySpreadConstraints"] = [{**rule, **selector}]
    world.commit(objects[0])
    world.play()
    before = len(world.compute.machines)
    end = world.clock.now() + timedelta(minutes=20)
    zone = Offer(zone="us-east-1b")
    world.refuse(Refused(zone, Period(world.clock.now(), end)))
    world.commit(objects[1])
    world.play(timedelta(minutes=19))
    world.play(timedelta(minutes=60))
    assert versions(world) == {("web", "2"): 2}
    assert len(world.compute.machines) - before == 2, "each was launched once"


def small_pods(version: str) -> list[dict[str, Any]]:
    """Return a pool whose nodes each hold several pods, as many as the types of launches give."""
    moves: dict[str, Any] = {
        "policy": "WhenEmptyOrUnderutilized",
        "after": "5m",
        "budgets": [{"nodes": "2"}],
    }
    return [
        a_pool("web", labels={"version": version}, **moves),
        a_deployment("api", "web", 5, cpu="900m"),
        a_deployment("front", "web", 8, cpu="400m"),
    ]


def rolled_out(fault: Fault | None, kills: tuple[int, ...]) -> SmallWorld:
    """Return a world whose pool was replaced under trouble.

    The daemon looks until nothing is under way, as ``apply`` does.
    """
    world = SmallWorld(0)
    if fault is not None:
        world.compute.faults.add("CreateFleet", fault)
    world.commit(small_pods("1"))
    world.apply()
    world.commit(small_pods("2"))
    for step in kills:
        world.steps.kills = {world.steps.counted + step: timedelta(seconds=1)}
        world.apply()
    world.apply()
    return world


def idle(world: SmallWorld) -> list[str]:
    """Return the instances that run for no pod."""
    load, nodes = world.cluster.pods_per_node(), world.cluster._record.nodes.items()
    busy = {record.instance for name, record in nodes if load.get(name)}
    return sorted(m.facts.id for m in world.running_instances() if m.facts.id not in busy)


@pytest.fixture(scope="module")
def undisturbed() -> float:
    """Return USD an hour after a roll-out without any trouble, once nothing is left to save."""
    world = rolled_out(None, ())
    world.play()
    return world.stage.per_hour()


@pytest.mark.parametrize("fault", [None, Fault.RESET_BEFORE])
@pytest.mark.parametrize("kills", [(), (20, 5), (27, 31)])
def test_an_interrupted_rollout_does_not_raise_the_final_cost(
    fault: Fault | None, kills: tuple[int, ...], undisturbed: float
) -> None:
    """How many nodes ``apply`` ends with follows from where the pods were, killed or not.

    A node that comes late lets pods go elsewhere, and what replaces a node is made for the pods
    that it has then: more and smaller nodes, or fewer and larger ones. Where pods went elsewhere
    while a command was under way its replacement may even stay idle, until ``consolidateAfter``.
    """
    world = rolled_out(fault, kills)
    assert not world.cluster.unbound_pod_count()
    assert set(versions(world)) == {("web", "2")}
    world.play()
    assert not idle(world)
    assert world.stage.per_hour() <= undisturbed
