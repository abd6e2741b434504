"""Law 3: wherever a process is killed, the next one converges to the same fleet."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import cache
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from reconciler.adapters.simulated.conditions import Fault
from tests.engine.crashes import CutError, Points, cut, in_a_fork
from tests.engine.world import (
    World,
    a_deployment,
    a_node_class,
    a_pool,
    a_world,
)
from tests.examples import examples

LARGE = [{"key": "node.kubernetes.io/instance-type", "operator": "In", "values": ["m7i.large"]}]
EITHER = [
    {
        "key": "node.kubernetes.io/instance-type",
        "operator": "In",
        "values": ["m7i.large", "c7i.large"],
    },
    {"key": "topology.kubernetes.io/zone", "operator": "In", "values": ["us-east-1a"]},
]


def web(version: str) -> dict[str, Any]:
    return a_pool(
        "web",
        labels={"version": version},
        budgets=[{"nodes": "2"}],
        template={"requirements": EITHER},
    )


def story(world: World) -> list[Callable[[], None]]:
    """Launch six nodes, one type refused; then a commit replaces five and removes one."""

    def first() -> None:
        world.cloud.market.refuse("m7i.large", "us-east-1a")
        world.git.commit(
            a_node_class(),
            web("1"),
            a_pool("batch", template={"requirements": LARGE}),
            a_deployment("web", "web", 5),
            a_deployment("job", "batch", 1),
        )

    def second() -> None:
        world.git.commit(
            a_node_class(),
            web("2"),
            a_pool("batch", template={"requirements": LARGE}),
            a_deployment("web", "web", 5),
        )

    return [first, second]


def plain() -> World:
    return a_world()


def forgetful() -> World:
    """EC2 ignores client tokens."""
    world = a_world()
    world.cloud.honours_tokens = False
    return world


def hostile() -> World:
    """EC2 ignores client tokens, loses answers, returns errors and throttles."""
    world = forgetful()
    faults = world.cloud.faults
    faults.add("CreateFleet", Fault.RESET_AFTER)
    faults.add("CreateFleet", Fault.THROTTLE, skip=2)
    faults.add("CreateFleet", Fault.SERVER_ERROR_AFTER, skip=3)
    faults.add("CreateFleet", Fault.SERVER_ERROR, skip=2)
    faults.add("TerminateInstances", Fault.TIMEOUT_AFTER, times=6)
    faults.add("DescribeInstances", Fault.THROTTLE, skip=5, times=6)
    faults.add("CreateLaunchTemplate", Fault.RESET_AFTER)
    return world


def complaints(world: World, expected: Counter[tuple[str, str, str]]) -> list[str]:
    """Return the defects of a world that reports to have converged."""
    found = []
    if world.fleet() != expected:
        found.append(f"fleet {dict(world.fleet())} is not {dict(expected)}")
    backend = world.cloud._account.backend
    intents = Counter(
        tag["value"]
        for instance in backend.all_instances()
        for tag in instance.get_tags()
        if tag["key"] == "reconciler/intent"
    )
    found += [f"{n} instances of intent {i}" for i, n in intents.items() if n > 1]
    claims = {c.status.provider_id.rpartition("/")[2]: c for c in world.claims.values()}
    found += [f"{i} lives and no claim has it" for i in world.instances() if i not in claims]
    found += [f"{c.name} has no instance" for i, c in claims.items() if i not in world.instances()]
    found += [f"{e.intent.verb} {e.intent.target} in doubt" for e in world.journal.in_doubt()]
    found += [f"command {c.id} under way" for c in world.store.commands()]
    nodes = world.engine().ports.cluster._record.nodes.values()  # type: ignore[attr-defined]
    tainted = [r.node.name for r in nodes if any("disrupted" in t.key for t in r.node.spec.taints)]
    found += [f"{name} is still tainted" for name in tainted]
    if len(nodes) != len(claims):
        found.append(f"{len(nodes)} nodes for {len(claims)} claims")
    return found


@cache
def expected_of(make: Callable[[], World]) -> list[Counter[tuple[str, str, str]]]:
    world, fleets = make(), []
    for step in story(world):
        step()
        assert world.converge().is_quiet
        fleets.append(world.fleet())
        assert complaints(world, fleets[-1]) == []
    return fleets


def end_of(world: World, expected: Counter[tuple[str, str, str]]) -> list[str]:
    """Start a process after a crash, and return the defects after it has converged."""
    world.converge()
    return complaints(world, expected)


@pytest.mark.exhaustive
def test_a_pass_survives_a_crash_at_the_first_point_of_each_kind() -> None:
    tried: set[str] = set()

    def is_new(name: str) -> bool:
        return name not in tried and tried.add(name) is None

    points, failed = killed_wherever(is_new)
    assert failed == {}
    assert len(points.names) > 200
    assert len(tried) > 10, sorted(tried)


@pytest.mark.exhaustive
def test_a_pass_survives_a_crash_at_every_point() -> None:
    points, failed = killed_wherever(lambda _: True)
    assert failed == {}
    assert len(points.names) > 200


def killed_wherever(
    is_chosen: Callable[[str], bool],
) -> tuple[Points, dict[tuple[int, str], list[str]]]:
    """Run the scenario; kill a copy at each selected point and collect its defects."""
    fleets = expected_of(hostile)
    assert sum(fleets[0].values()) >= 5
    points, failed = Points(), {}
    world = points.wrap(hostile())
    for step, expected in zip(story(world), fleets, strict=True):
        step()

        def killed(number: int, expected: Counter[tuple[str, str, str]] = expected) -> None:
            if points.is_like_the_last or not is_chosen(points.names[-1]):
                return

            def rest() -> list[str]:
                points.at = lambda _: None
                return end_of(world, expected)

            found = in_a_fork(rest)
            if found:
                failed[number, points.names[-1]] = found

        points.at = killed
        world.converge()
        points.at = lambda _: None
    return points, failed


@pytest.mark.exhaustive
@settings(
    max_examples=examples(40),
    derandomize=True,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    database=None,
)
@given(first=st.integers(1, 150), second=st.integers(1, 60), phase=st.integers(0, 1))
def test_recovery_survives_a_crash(first: int, second: int, phase: int) -> None:
    fleets = expected_of(hostile)
    points = Points()
    world = points.wrap(hostile())
    for number, (step, expected) in enumerate(zip(story(world), fleets, strict=True)):
        step()
        for point in (first, second) if number == phase else ():
            cut(points, point)
            try:
                world.converge()
            except CutError:
                continue
        points.at = lambda _: None
        assert end_of(world, expected) == []
