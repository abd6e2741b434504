"""Records that are pruned all the time decide as records that are never pruned."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from reconciler.adapters.database.state import DatabaseState
from reconciler.adapters.simulated.conditions import Fault, Offer, Period, Refused
from reconciler.desired.settings.layers import resolve
from reconciler.plan.value.plan import to_json
from tests.engine.test_crash import LARGE
from tests.engine.world import a_deployment, a_pool
from tests.examples import examples
from tests.simulated.smallworld import SmallWorld
from tests.states import open_state

GUARDS: dict[str, Any] = {
    "fleet": "test",
    "clusterName": "test",
    "undoPeriod": "48h",
    "maximumPerDay": "2",
    "waveSize": "1",
    "waveSoak": "10m",
    "stopAfterFailures": 3,
    "progressDeadline": "36h",
}


@dataclass(frozen=True)
class Step:
    """An event, the number of passes after it, and the hours without a pass after those."""

    version: int
    pods: int
    trouble: str
    passes: int
    hours: int


steps = st.lists(
    st.builds(
        Step,
        st.integers(1, 3),
        st.integers(0, 4),
        st.sampled_from(["", "", "refused", "lost", "vanish", "interrupt", "killed"]),
        st.sampled_from([1, 1, 2, 4, 8]),
        st.sampled_from([0, 1, 25, 50]),
    ),
    min_size=2,
    max_size=6,
)


@contextmanager
def recorded() -> Iterator[tuple[SmallWorld, DatabaseState]]:
    with TemporaryDirectory() as folder, open_state(str(Path(folder)), "test") as state:
        yield SmallWorld(7, records=(state.store, state.journal)), state


def begin(world: SmallWorld, step: Step) -> None:
    """Let the step happen to a world."""
    moves = {"policy": "WhenEmptyOrUnderutilized", "budgets": [{"nodes": "2"}]}
    template = {"requirements": LARGE}  # so that each pod has a node
    pool = a_pool("web", labels={"version": str(step.version)}, template=template, **moves)
    world.commit([pool, a_deployment("web", "web", step.pods)])
    assert world.fleet is not None
    world.fleet = replace(world.fleet, settings=resolve(GUARDS, {}).settings)
    world.compute.faults.clear()
    now = world.clock.now()
    zone = Refused(Offer(zone="us-east-1a"), Period(now, now + timedelta(hours=2)))
    world.refuse(*([zone] if step.trouble == "refused" else []))
    living = sorted(world.running_instances(), key=lambda machine: machine.facts.id)
    if step.trouble == "lost":
        world.compute.faults.add("CreateFleet", Fault.RESET_AFTER)
    elif step.trouble == "killed":
        world.steps.kills = {world.steps.counted + 12: timedelta(seconds=1)}
    elif living and step.trouble == "interrupt":
        world.interrupt(living[0])
    elif living and step.trouble == "vanish":
        world.compute.terminate([living[0].facts.id])


def pass_result(world: SmallWorld) -> tuple[bytes | None, ...]:
    """Make a pass, and return what it decided and what is believed after it."""
    done = world.run_pass()
    claims = [repr(claim).encode() for claim in world.store.node_claims()]
    commands = [repr(command).encode() for command in world.store.commands()]
    waves = [repr(rollout).encode() for rollout in world.store.rollouts()]
    serial = str(world.store.serial()).encode()
    return to_json(done.plan) if done is not None else None, serial, *claims, *commands, *waves


def prune(world: SmallWorld, state: DatabaseState) -> int:
    """Prune as the command does: without observing EC2."""
    tallies = state.history.prune(world.clock.now(), timedelta(days=1))
    return sum(tally.gone for tally in tallies)


@pytest.mark.exhaustive
@example([Step(1, 3, "lost", 1, 50), Step(1, 3, "", 4, 0)])
@settings(max_examples=examples(25), deadline=None)
@given(steps)
def test_pruning_around_every_pass_changes_no_decision(history: list[Step]) -> None:
    with recorded() as (whole, kept), recorded() as (short, state):
        for step in history:
            for world in (whole, short):
                begin(world, step)
            for _ in range(step.passes):
                prune(short, state)
                assert pass_result(short) == pass_result(whole)
                prune(short, state)
                for world in (whole, short):
                    world.pause(45)
            for world in (whole, short):
                world.pause(step.hours * 3600)
        doubts = [e.intent for e in kept.journal.in_doubt()]
        assert [e.intent for e in state.journal.in_doubt()] == doubts
        ours = {e.intent.id: e.outcome for e in kept.journal.entries(limit=10_000)}
        left = {e.intent.id: e.outcome for e in state.journal.entries(limit=10_000)}
        assert left.items() <= ours.items()


@pytest.mark.exhaustive
@pytest.mark.parametrize("days", [6, pytest.param(12, marks=pytest.mark.exhaustive)])
def test_the_records_of_a_changing_fleet_do_not_grow_with_its_age(days: int) -> None:
    with recorded() as (world, state):
        sizes = []
        for day in range(days):
            begin(world, Step(1 + day % 2, 3, "", 1, 0))
            for _ in range(25):
                world.run_pass()
                world.pause(45)
            prune(world, state)
            entries = len(state.journal.entries(limit=10_000))
            sizes.append((entries, len(state.store.plans(limit=1000))))
            world.pause(86_400)
        young, old = sizes[3], sizes[-1]
        assert old[0] <= young[0] * 1.5
        assert old[1] <= young[1] * 1.5
        assert max(entries for entries, _ in sizes) < 120, sizes
