"""The reboot of a node with a transient GPU error in the daemon, as Karpenter 1.15 does it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from dataclasses import replace as with_fields
from datetime import datetime, timedelta
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from reconciler.adapters.simulated.conditions import Fault
from reconciler.disruption.methods.reboot import recent_reboots
from reconciler.model.karpenter.nodeclaim import REBOOTING, NodeClaim
from reconciler.model.kubernetes.metadata import Condition
from reconciler.model.kubernetes.node import Node
from reconciler.model.settings import DEFAULT_FEATURE_GATES, FeatureGate, KarpenterVersion
from reconciler.ports.progress import EventKind
from tests.engine.crashes import CutError, Points, cut, in_a_fork
from tests.engine.test_crash import LARGE
from tests.engine.unhealthy import UnhealthyNodes
from tests.engine.world import (
    SETTINGS,
    World,
    a_deployment,
    a_node_class,
    a_pdb,
    a_pool,
    a_world,
)
from tests.examples import examples

BOOT = {"joining_s": 60.0, "ready_s": 30.0}
ON = {FeatureGate.NODE_REPAIR: True, FeatureGate.REBOOT_FOR_REPAIR: True}


@dataclass
class _Faults(UnhealthyNodes):
    """GPU errors of nodes. Another boot clears those in ``broken``, and no boot the ``fatal``."""

    broken: dict[str, tuple[str, datetime]] = field(default_factory=dict)
    reason: str = "NvidiaXID48Error"

    def condition_of(self, node: Node) -> Condition | None:
        boot, since = self.broken.get(node.spec.provider_id, ("", None))
        if since is None or boot not in ("*", node.boot_id):
            return None
        return Condition(
            "AcceleratedHardwareReady", "False", self.reason, last_transition_time=since
        )


def _fleet(
    *objects: Any, gates: Any = ON, budget: str = "1", replicas: int = 5
) -> tuple[World, _Faults]:
    known = with_fields(
        SETTINGS,
        karpenter=KarpenterVersion.V1_15,
        feature_gates={**DEFAULT_FEATURE_GATES, **gates},
    )
    faults = _Faults()
    world = a_world(settings=known, around=faults.around, latencies=BOOT)
    pool = a_pool("web", budgets=[{"nodes": budget}], template={"requirements": LARGE})
    world.git.commit(a_node_class(), pool, a_deployment("web", "web", replicas), *objects)
    world.converge()
    return world, faults


def _break(world: World, faults: _Faults, *, boot: str = "") -> NodeClaim:
    """Break the GPU of one node, eleven minutes ago; ``*`` means that no boot clears it."""
    claim = world.claims[min(world.claims)]
    node = next(n for n in _nodes(world) if n.spec.provider_id == claim.status.provider_id)
    faults.broken[claim.status.provider_id] = (boot or node.boot_id, world.clock.now())
    world.clock.advance(11 * 60)
    return claim


def _nodes(world: World) -> list[Node]:
    engine = world.engine()
    claims = world.store.node_claims()
    return list(engine.ports.cluster.observe(claims, engine.ports.compute.instances()).nodes)


def _reboots(world: World) -> int:
    return sum(call.operation == "RebootInstances" for call in world.cloud.calls)


def _run(world: World, until: Callable[[], bool], passes: int = 400) -> None:
    """Start a process for each pass, ten seconds after the last one."""
    for _ in range(passes):
        if until():
            return
        world.engine().run_once()
        world.clock.advance(10)
    raise AssertionError("it did not happen")


def _has_ended(world: World, name: str) -> Callable[[], bool]:
    def ended() -> bool:
        claim = world.claims.get(name)
        known = claim.condition(REBOOTING) if claim is not None else None
        return claim is None or (known is not None and known.status == "False")

    return ended


def test_a_transient_error_is_cleared_by_a_reboot_and_the_instance_stays() -> None:
    world, faults = _fleet()
    sick = _break(world, faults)
    before = world.instances()

    plan = world.engine().run_once().plan

    (command,) = plan.commands
    assert (command.reason, command.decision) == ("Unhealthy", "reboot")
    assert command.termination_grace_period == "5m"
    assert command.message == "AcceleratedHardwareReady is False (NvidiaXID48Error)"
    (action,) = plan.actions
    assert (action.kind, action.node_claim, action.cost_delta) == ("reboot", sick.name, 0.0)
    assert plan.cost.before == plan.cost.after
    world.converge()
    assert world.instances() == before
    assert world.claims[sick.name].status.provider_id == sick.status.provider_id
    assert _reboots(world) == 1
    assert world.store.commands() == []
    assert not any(node.has_taint("karpenter.sh/rebooting") for node in _nodes(world))
    assert world.claims[sick.name].is_true("Initialized")
    assert world.recorder.kinds()[EventKind.REBOOT_OBSERVED] == 1
    assert world.engine().run_once().plan.commands == ()


def test_pods_leave_before_the_reboot_and_their_room_comes_back() -> None:
    """No node is launched for the evicted pod: it waits for the node that reboots."""
    world, faults = _fleet()
    sick = _break(world, faults)

    _run(world, lambda: _reboots(world) == 1)

    node = next(n for n in _nodes(world) if n.spec.provider_id == sick.status.provider_id)
    snapshot = world.engine().run_once().seen.snapshot
    assert all(pod.spec.node_name != node.name for pod in snapshot.pods)
    assert len(world.instances()) == 5
    world.converge()
    assert len(world.instances()) == 5
    pods = world.engine().run_once().seen.snapshot.pods
    assert sum(pod.spec.node_name == node.name for pod in pods) == 1


def test_pods_that_a_budget_keeps_stay_on_the_node_that_reboots() -> None:
    world, faults = _fleet(a_pdb("web", "web", maxUnavailable=0))
    sick = _break(world, faults)
    bound = {p.key: p.metadata.uid for p in world.engine().run_once().seen.snapshot.pods}
    started = world.clock.now()

    _run(world, lambda: _reboots(world) == 1)

    assert timedelta(minutes=5) <= world.clock.now() - started < timedelta(minutes=6)
    world.converge()
    after = {p.key: p.metadata.uid for p in world.engine().run_once().seen.snapshot.pods}
    assert after == bound
    assert sick.name in world.claims


def test_a_fatal_error_replaces_the_node() -> None:
    world, faults = _fleet()
    faults.reason = "NvidiaXID79Error"
    sick = _break(world, faults)

    assert [c.decision for c in world.engine().run_once().plan.commands] == ["replace"]
    world.converge()
    assert sick.name not in world.claims
    assert _reboots(world) == 0


def test_without_the_gate_the_node_is_replaced() -> None:
    world, faults = _fleet(gates={FeatureGate.NODE_REPAIR: True})
    _break(world, faults)

    assert [c.decision for c in world.engine().run_once().plan.commands] == ["replace"]


def test_the_third_time_within_a_day_the_node_is_replaced() -> None:
    world, faults = _fleet()
    sick = _break(world, faults, boot="*")
    decisions: list[tuple[str, str]] = []
    for _ in range(400):
        if sick.name not in world.claims:
            break
        plan = world.engine().run_once().plan
        decisions += [(c.decision, c.message) for c in plan.commands]
        world.clock.advance(15)

    assert [decision for decision, _ in decisions] == ["reboot", "reboot", "replace"]
    assert decisions[-1][1].endswith("after 2 reboots in 24 hours")
    assert _reboots(world) == 2


def test_a_node_is_given_time_after_its_reboot_until_its_condition_counts_again() -> None:
    world, faults = _fleet()
    sick = _break(world, faults, boot="*")
    _run(world, _has_ended(world, sick.name))
    known = world.claims[sick.name].condition(REBOOTING)
    assert known is not None
    assert known.last_transition_time is not None

    plan = world.engine().run_once().plan

    (waiting,) = [d for d in plan.deferred if d.node_claim == sick.name]
    assert waiting.not_before == known.last_transition_time + timedelta(minutes=10)
    assert recent_reboots(world.claims[sick.name], world.clock.now() + timedelta(hours=23)) != ()
    assert recent_reboots(world.claims[sick.name], world.clock.now() + timedelta(hours=25)) == ()


def test_a_budget_limits_reboots() -> None:
    world, faults = _fleet(budget="0")
    sick = _break(world, faults)

    plan = world.engine().run_once().plan

    assert plan.commands == ()
    (waiting,) = [d for d in plan.deferred if d.node_claim == sick.name]
    assert (waiting.reason, waiting.waits_for) == ("Unhealthy", "budget")


def test_a_node_that_reboots_uses_the_budgets_of_all_reasons() -> None:
    world, faults = _fleet()
    _break(world, faults)
    world.engine().run_once()
    _run(world, lambda: _reboots(world) == 1)

    plan = world.engine().run_once().plan

    assert {(b.reason, b.total, b.allowed) for b in plan.budgets} == {
        (reason, 5, 0) for reason in ("Drifted", "Empty", "Underutilized", "Unhealthy")
    }
    assert all(block.reason != "Unhealthy" for block in plan.blocked)


def test_more_than_a_fifth_of_the_nodes_are_not_rebooted() -> None:
    world, faults = _fleet(budget="5")
    _break(world, faults)
    for claim in sorted(world.claims.values(), key=lambda c: c.name)[:2]:
        faults.broken[claim.status.provider_id] = ("*", world.clock.now() - timedelta(minutes=20))

    plan = world.engine().run_once().plan

    assert plan.commands == ()
    assert {b.code for b in plan.blocked if b.reason == "Unhealthy"} == {"UnhealthyShare"}


def test_no_node_is_launched_for_pods_whose_node_boots_and_is_ready_at_once() -> None:
    """Its taint counts for as long as it is observed, so the reboot ends in a later pass."""
    world, faults = _fleet()
    _break(world, faults)
    _run(world, lambda: _reboots(world) == 1)
    world.clock.advance(300)

    world.converge()

    assert world.recorder.kinds()[EventKind.REBOOTED] == 1
    assert len(world.instances()) == 5
    assert world.recorder.kinds()[EventKind.LAUNCHED] == 5


def test_a_node_that_does_not_come_back_is_replaced() -> None:
    world, faults = _fleet()
    sick = _break(world, faults)
    _run(world, lambda: _reboots(world) == 1)
    world.latencies = {"joining_s": 3600.0, "ready_s": 30.0}  # every process reads it again

    _run(world, _has_ended(world, sick.name), passes=150)

    (why,) = world.recorder.messages(EventKind.REBOOT_FAILED)
    assert "was not ready within 20m" in why
    assert world.claims[sick.name].is_deleting
    world.latencies = BOOT
    world.converge()
    assert sick.name not in world.claims
    assert len(world.claims) == 5
    (ended,) = world.recorder.messages(EventKind.COMMAND_ROLLED_BACK)
    assert "was not ready within 20m" in ended


def test_a_reboot_that_ec2_refuses_replaces_the_node_at_once() -> None:
    world, faults = _fleet()
    sick = _break(world, faults)
    world.cloud.faults.add("RebootInstances", Fault.DENIED, times=None)

    world.converge()

    (why,) = world.recorder.messages(EventKind.REBOOT_FAILED)
    assert "EC2 refused the reboot" in why
    assert sick.name not in world.claims
    assert world.journal.in_doubt() == []


def test_a_reboot_that_ec2_never_accepts_replaces_the_node_after_five_minutes() -> None:
    world, faults = _fleet()
    sick = _break(world, faults)
    world.cloud.faults.add("RebootInstances", Fault.SERVER_ERROR, times=None)

    world.converge()

    (why,) = world.recorder.messages(EventKind.REBOOT_FAILED)
    assert "did not accept the reboot within 5m" in why
    assert sick.name not in world.claims


@pytest.mark.parametrize(
    "fault", [Fault.RESET_AFTER, Fault.TIMEOUT_AFTER, Fault.SERVER_ERROR_AFTER]
)
def test_a_call_whose_answer_is_lost_is_not_repeated_if_the_node_boots(fault: Fault) -> None:
    world, faults = _fleet()
    sick = _break(world, faults)
    world.cloud.faults.add("RebootInstances", fault)

    world.converge()

    assert _reboots(world) == 1
    assert sick.name in world.claims
    assert world.journal.in_doubt() == []


def test_a_call_that_never_arrived_is_repeated() -> None:
    world, faults = _fleet()
    sick = _break(world, faults)
    world.cloud.faults.add("RebootInstances", Fault.RESET_BEFORE)

    world.converge()

    assert _reboots(world) == 2
    assert sick.name in world.claims
    assert world.recorder.kinds()[EventKind.REBOOTED] == 1


def _annotate(world: World, name: str, key: str, value: str) -> None:
    claim = world.claims[name]
    metadata = replace(claim.metadata, annotations={**claim.metadata.annotations, key: value})
    world.store.put_node_claims([replace(claim, metadata=metadata)])


LIMIT = "karpenter.sh/reboot-termination-grace-period"


@pytest.mark.parametrize("limit", ["soon", "-5m"])
def test_a_limit_that_is_not_a_duration_ends_the_reboot_and_keeps_the_node(limit: str) -> None:
    world, faults = _fleet()
    sick = _break(world, faults)
    _run(world, lambda: world.claims[sick.name].is_rebooting)
    _annotate(world, sick.name, LIMIT, limit)
    faults.broken.clear()

    world.converge()

    assert _reboots(world) == 0
    assert not world.claims[sick.name].is_deleting
    assert len(world.recorder.messages(EventKind.REBOOT_FAILED)) == 1
    assert not any(node.has_taint("karpenter.sh/rebooting") for node in _nodes(world))
    assert world.store.commands() == []


def test_a_limit_of_zero_reboots_at_once_with_all_pods() -> None:
    world, faults = _fleet()
    sick = _break(world, faults)
    bound = {p.key for p in world.engine().run_once().seen.snapshot.pods}
    _run(world, lambda: world.claims[sick.name].is_rebooting)
    _annotate(world, sick.name, LIMIT, "0s")

    _run(world, lambda: _reboots(world) == 1, passes=3)

    after = world.engine().run_once().seen.snapshot.pods
    assert {p.key for p in after} == bound
    assert EventKind.POD_EVICTED not in world.recorder.kinds()


def test_a_node_that_disappears_before_its_reboot_is_replaced() -> None:
    world, faults = _fleet()
    sick = _break(world, faults)
    _run(world, lambda: world.claims[sick.name].is_rebooting)
    node = world.claims[sick.name].status.node_name
    world.engine().ports.cluster.delete_node(node)

    world.converge()

    assert sick.name not in world.claims
    assert _reboots(world) == 0
    assert len(world.claims) == 5


def test_a_node_that_reboots_is_terminated_if_its_pool_is_removed() -> None:
    world, faults = _fleet()
    sick = _break(world, faults)
    world.engine().run_once()
    claim = world.claims[sick.name]
    deleted = replace(claim.metadata, deletion_timestamp=world.clock.now())
    world.store.put_node_claims([replace(claim, metadata=deleted)])

    world.converge()

    assert sick.name not in world.claims
    assert _reboots(world) == 0
    assert world.store.commands() == []
    assert len(world.claims) == 5


def _complaints(world: World, sick: NodeClaim, instances: dict[str, str]) -> list[str]:
    """Return the defects of a world whose reboot is over."""
    found = [f"{e.intent.verb} {e.intent.target} in doubt" for e in world.journal.in_doubt()]
    found += [f"command {c.id} under way" for c in world.store.commands()]
    found += [
        f"{n.name} is tainted" for n in _nodes(world) if n.has_taint("karpenter.sh/rebooting")
    ]
    found += [
        f"{c.name} is not initialized"
        for c in world.claims.values()
        if not c.is_true("Initialized")
    ]
    if world.instances() != instances:
        found.append("the instances are others")
    if sick.name not in world.claims:
        found.append("the node was replaced")
    return found


def _crashed_wherever(is_chosen: Callable[[str], bool]) -> tuple[set[str], dict[str, list[str]]]:
    """Reboot a node; kill a copy at each selected point, and collect the defects after it."""
    world, faults = _fleet(replicas=2)
    sick = _break(world, faults)
    instances, points = world.instances(), Points()
    _watch(world, points)
    tried, failed = set[str](), dict[str, list[str]]()

    def killed(number: int) -> None:
        name = points.names[-1]
        if points.is_like_the_last or not is_chosen(name):
            return
        tried.add(name)

        def rest() -> list[str]:
            points.at = lambda _: None
            world.converge()
            found = _complaints(world, sick, instances)
            return found + ([] if _reboots(world) == 1 else [f"{_reboots(world)} reboots"])

        found = in_a_fork(rest)
        if found:
            failed[f"{number} {name}"] = found

    points.at = killed
    world.converge()
    assert _complaints(world, sick, instances) == []
    return tried, failed


def _watch(world: World, points: Points) -> None:
    """Make every interaction of a process with the world a point."""
    inner = world.around
    outer = points.wrap(world).around

    def both(port: Any, name: str) -> Any:
        return outer(inner(port, name), name)

    world.around = both


def test_a_reboot_survives_a_crash_at_the_first_point_of_each_kind() -> None:
    """No crash makes a second call: the node shows whether the first one had an effect."""
    seen: set[str] = set()

    def is_new(name: str) -> bool:
        is_known = name in seen
        seen.add(name)
        return not is_known

    tried, failed = _crashed_wherever(is_new)

    assert failed == {}
    assert {"after journal.begin", "after ec2.RebootInstances", "after store.put_command"} <= tried


@pytest.mark.exhaustive
def test_a_reboot_survives_a_crash_at_every_point() -> None:
    tried, failed = _crashed_wherever(lambda _: True)

    assert failed == {}
    assert len(tried) > 5


@settings(
    max_examples=examples(15),
    derandomize=True,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    database=None,
)
@given(first=st.integers(1, 60), second=st.integers(1, 60))
def test_a_reboot_survives_two_crashes(first: int, second: int) -> None:
    world, faults = _fleet(replicas=2)
    sick = _break(world, faults)
    instances, points = world.instances(), Points()
    _watch(world, points)
    for point in (first, second):
        cut(points, point)
        try:
            world.converge()
        except CutError:
            continue
    points.at = lambda _: None
    world.converge()
    assert _complaints(world, sick, instances) == []
