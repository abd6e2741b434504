"""The daemon with an unreadable git repository.

Each test fails if the guard that it covers is removed.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from datetime import datetime, timedelta
from itertools import pairwise
from typing import Any

import pytest

from reconciler.adapters.simulated.conditions import SimulatedClock
from reconciler.engine.loop import REREAD_INTERVAL, PassIntervals, run
from reconciler.engine.reconcile import Mandate
from reconciler.model.duration import Duration
from reconciler.model.errors import (
    ClockSetBackError,
    LeaseLostError,
    StateError,
    TransientCloudError,
    UnreadableError,
)
from reconciler.placement import work
from reconciler.ports.progress import CommitName
from reconciler.ports.state import RevisionProblem
from tests.engine.faults import commit_drift, three_nodes
from tests.engine.test_crash import LARGE
from tests.engine.world import TAGS, World, a_deployment, a_pool, a_world


def test_the_daemon_continues_with_the_last_valid_revision() -> None:
    world = three_nodes()
    engine = world.engine()
    victim = next(iter(world.instances()))
    passes = iter(range(40))

    def stop() -> bool:
        number = next(passes, None)
        if number == 4:
            world.git.unreadable = UnreadableError("the checkout is empty")
            world.git.commit()
        if number == 8:
            world.cloud.reclaim_instance(victim)
        return number is None

    run(
        engine.ports,
        engine.source,
        Mandate(TAGS),
        intervals=PassIntervals(busy=5.0),
        stop=stop,
        next_change=lambda _: None,
    )
    first, again = world.recorder.messages("InvalidRevision")
    assert first.endswith("stays in effect")
    assert again == f"{first} (for 5m10s)"
    assert victim not in world.instances()
    assert len(world.instances()) == 3


def test_a_long_placement_gives_signs_of_life(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pods of a tenant can make one placement take long, which is not a daemon that hangs."""
    monkeypatch.setattr(work, "PULSE_CHECKS", 1)
    signs: list[int] = []

    def signs_of_a_pass(replicas: int) -> int:
        world = a_world(a_pool("web"), a_deployment("web", "web", replicas))
        engine, first = world.engine(), len(signs)
        passes = iter(range(1))
        run(
            engine.ports,
            engine.source,
            Mandate(TAGS),
            intervals=PassIntervals(busy=5.0),
            stop=lambda: next(passes, None) is None,
            next_change=lambda _: None,
            alive=lambda: signs.append(1),
        )
        return len(signs) - first

    assert signs_of_a_pass(40) > signs_of_a_pass(2)


def test_pending_pods_wake_the_daemon_and_one_pass_handles_them_all() -> None:
    world = three_nodes()
    engine = world.engine()
    news = ["a pod"]
    looks: list[datetime] = []

    class Arrivals:
        def has_events(self) -> bool:
            return bool(news)

        def acknowledge(self) -> None:
            looks.append(world.clock.now())
            news[:] = ["another"] if len(looks) < 3 else []

    run(
        replace(engine.ports, arrivals=Arrivals()),
        engine.source,
        Mandate(TAGS),
        intervals=PassIntervals(busy=5.0, quiet=600.0),
        stop=lambda: len(looks) >= 5,
        next_change=lambda _: None,
    )
    pauses = [(later - before).total_seconds() for before, later in pairwise(looks)]
    assert pauses == [0, 0, 600, 600]


def pruned(world: World, keep: str, hours: int, **broken: Any) -> list[tuple[timedelta, frozenset]]:
    """Run a quiet daemon for that time, and return the retention and exceptions of each pruning."""
    world.settings = replace(
        world.settings, history_keep=None if keep == "Never" else Duration(keep)
    )
    engine = world.engine()
    asked: list[tuple[timedelta, frozenset]] = []
    end = world.clock.now() + timedelta(hours=hours)

    def prune(now: datetime, span: timedelta, needed: frozenset) -> int:
        assert now == world.clock.now()
        asked.append((span, needed))
        if broken:
            raise StateError("the disk is full", where="state.db")
        return 7

    run(
        replace(engine.ports, prune=prune),
        engine.source,
        Mandate(TAGS),
        intervals=PassIntervals(busy=5.0, quiet=6 * 3600.0),
        stop=lambda: world.clock.now() >= end,
        next_change=lambda _: None,
    )
    return asked


def test_a_daemon_prunes_once_a_day_and_keeps_records_of_existing_instances() -> None:
    world = three_nodes()
    intents = {tags["reconciler/intent"] for tags in world.cloud.running_instances().values()}
    assert pruned(world, "30d", 60) == [(timedelta(days=30), frozenset(intents))] * 3
    assert (
        world.recorder.messages("Pruned")
        == ["removed 7 settled records older than 30d (history.keep)"] * 3
    )
    assert pruned(world, "Never", 60) == []


def test_a_failed_pruning_does_not_stop_the_daemon() -> None:
    world = three_nodes()
    assert len(pruned(world, "36h", 30, broken=True)) == 2
    assert any("the disk is full" in message for message in world.recorder.messages("Retrying"))
    assert len(world.instances()) == 3


def test_the_daemon_survives_an_unreachable_git_repository() -> None:
    world = three_nodes()
    engine = world.engine()
    asked = iter(range(30))

    class Source:
        def read(self) -> Any:
            return engine.source.read()

        def fingerprint(self) -> str:
            if next(asked, 0) % 3 == 2:
                raise UnreadableError("the remote does not answer")
            return engine.source.fingerprint()

        def last_read(self) -> CommitName:
            return engine.source.last_read()

    passes = iter(range(20))
    run(
        engine.ports,
        Source(),
        Mandate(TAGS),
        intervals=PassIntervals(),
        stop=lambda: next(passes, None) is None,
        next_change=lambda _: None,
    )
    assert len(world.instances()) == 3


def test_a_temporarily_unreadable_revision_is_applied_later() -> None:
    world = three_nodes()
    engine = world.engine()
    passes = iter(range(60))

    def stop() -> bool:
        number = next(passes, None)
        if number == 3:
            commit_drift(world)
            world.git.unreadable = TransientCloudError("busy")
        if number == 6:
            world.git.unreadable = None
        return number is None

    before, started = set(world.instances()), world.clock.now()
    run(
        engine.ports,
        engine.source,
        Mandate(TAGS),
        intervals=PassIntervals(busy=5.0),
        stop=stop,
        next_change=lambda _: None,
    )
    assert not before & set(world.instances())
    reported = [p.at for p in world.recorder.events if p.kind == "Revision"]
    assert reported[-1] - started < REREAD_INTERVAL


def test_a_permanently_invalid_revision_is_reported_again_with_its_age() -> None:
    world = three_nodes()
    engine = world.engine()
    world.git.commit()
    world.git.unreadable = UnreadableError("the checkout is empty")
    until = world.clock.now() + timedelta(minutes=16)
    run(
        engine.ports,
        engine.source,
        Mandate(TAGS),
        intervals=PassIntervals(quiet=30.0),
        stop=lambda: world.clock.now() >= until,
        next_change=lambda _: None,
    )
    message = world.recorder.messages("InvalidRevision")
    assert [text.rpartition(" (for ")[2] for text in message] == [
        "the checkout is empty",
        "5m)",
        "10m)",
        "15m)",
    ]


def test_an_invalid_commit_is_named_unless_git_itself_does_not_answer() -> None:
    world = three_nodes()
    engine = world.engine()
    answers = iter([True, True, False, True])

    class Source:
        def read(self) -> Any:
            return engine.source.read()

        def fingerprint(self) -> str:
            if not next(answers, True):
                raise UnreadableError("the remote does not answer")
            return engine.source.fingerprint()

        def last_read(self) -> CommitName:
            return engine.source.last_read()

    passes = iter(range(8))
    world.git.unreadable = UnreadableError("the checkout is empty")
    run(
        engine.ports,
        Source(),
        Mandate(TAGS),
        intervals=PassIntervals(busy=5.0, quiet=5.0),
        stop=lambda: next(passes, None) is None,
        next_change=lambda _: None,
    )
    named = {
        event.message.partition(";")[0].partition(" (for")[0]: event.facts["commit"]
        for event in world.recorder.events
        if event.kind == "InvalidRevision"
    }
    assert named == {"the checkout is empty": world.git.head, "the remote does not answer": ""}


def test_the_problem_of_a_revision_is_kept_until_a_later_one_is_valid() -> None:
    world = three_nodes()
    engine = world.engine()
    kept: list[RevisionProblem | None] = []
    passes = iter(range(40))
    since = None

    def stop() -> bool:
        nonlocal since
        number = next(passes, None)
        if number == 4:
            world.git.unreadable = UnreadableError("`helm template nodes .` failed")
            world.git.commit()
            since = world.clock.now()
        if number == 20:
            world.git.unreadable = None
            commit_drift(world)
        return number is None

    run(
        replace(engine.ports, keep_problem=kept.append),
        engine.source,
        Mandate(TAGS),
        intervals=PassIntervals(busy=5.0, quiet=5.0),
        stop=stop,
        next_change=lambda _: None,
    )
    cleared_at_start, problem, cleared = kept
    assert cleared_at_start is None
    assert problem is not None
    assert (problem.message, problem.since) == ("`helm template nodes .` failed", since)
    assert cleared is None


class TurnedBack(SimulatedClock):
    """A clock that is set back."""

    def turn_back(self, hours: float) -> None:
        self._now -= timedelta(hours=hours)


def test_setting_the_clock_back_postpones_nothing() -> None:
    clock = TurnedBack()
    world = a_world(
        a_pool("web", template={"requirements": LARGE}), a_deployment("web", "web", 3), clock=clock
    )
    world.cloud.market.refuse()
    engine = world.engine()
    passes = iter(range(8))

    def stop() -> bool:
        number = next(passes, None)
        if number == 5:
            assert engine.ports.store.unavailable(clock.now())
            clock.turn_back(hours=3)
            world.cloud.market.clear()
        return number is None

    def keep(stop: Callable[[], bool]) -> None:
        run(
            engine.ports,
            engine.source,
            Mandate(TAGS),
            intervals=PassIntervals(quiet=30.0),
            stop=stop,
            next_change=lambda _: None,
        )

    with pytest.raises(ClockSetBackError, match=r"set back by 10\d\d\d s; postponed work is"):
        keep(stop)
    assert not world.instances()
    until = clock.now() + timedelta(minutes=2)
    keep(lambda: clock.now() >= until)
    assert len(world.instances()) == 3


def test_a_launch_in_doubt_does_not_wait_for_a_time_before_the_clock_was_set_back() -> None:
    clock = TurnedBack()
    world = a_world(
        a_pool("web", template={"requirements": LARGE}), a_deployment("web", "web", 3), clock=clock
    )
    world.around = lambda port, of: Unanswered(port) if of == "compute" else port
    with pytest.raises(TransientCloudError):
        world.engine().run_once()
    clock.turn_back(hours=3)
    world.around = lambda port, _: port
    before = clock.now()
    world.converge()
    assert len(world.instances()) == 3
    assert clock.now() - before < timedelta(minutes=10)


class Unanswered:
    """An EC2 that receives a launch and never answers."""

    def __init__(self, port: Any) -> None:
        self._port = port

    def __getattr__(self, name: str) -> Any:
        return getattr(self._port, name)

    def launch(self, launch_requests: Any) -> Any:
        raise TransientCloudError("no answer", where="CreateFleet")


def test_a_clock_correction_of_seconds_changes_nothing() -> None:
    clock = TurnedBack()
    world = three_nodes(clock=clock)
    engine = world.engine()
    passes = iter(range(6))

    def stop() -> bool:
        number = next(passes, None)
        if number == 3:
            clock.turn_back(hours=31 / 3600)
        return number is None

    run(
        engine.ports,
        engine.source,
        Mandate(TAGS),
        intervals=PassIntervals(quiet=30.0),
        stop=stop,
        next_change=lambda _: None,
    )


def test_a_process_that_loses_the_lease_stops_within_the_pass() -> None:
    """An internal error is retried; the loss of the lease is not."""
    world = three_nodes()
    commit_drift(world)
    engine = world.engine()
    asked = iter(range(100))
    passes: list[str] = []

    def confirm() -> None:
        if next(asked) == 3:  # within a pass: it begins with the first, then come its effects
            raise LeaseLostError("this process no longer holds the lease", why="a test")

    ports = replace(engine.ports, confirm=confirm)
    with pytest.raises(LeaseLostError):
        run(
            ports,
            engine.source,
            Mandate(TAGS),
            intervals=PassIntervals(),
            stop=lambda: passes.append("begun") is not None,
            next_change=lambda _: None,
        )
    assert passes == ["begun"], "its effects ask, and not only the next pass"
    assert not ports.journal.in_doubt()


def test_commands_started_before_the_clock_was_set_back_do_not_block_consolidation() -> None:
    clock = TurnedBack()
    world = three_nodes(clock=clock, starting_s=60)
    commit_drift(world)
    engine = world.engine()
    engine.run_once()
    assert engine.ports.store.commands()
    clock.turn_back(hours=3)
    engine.run_once()
    assert any(
        "was not ready within" in message
        for message in world.recorder.messages("CommandRolledBack")
    )
    clock.advance(3 * 3600)  # nodes of the imitated cluster join by the same clock
    world.converge()
    clock.advance(60)  # the nodes that the command left behind are empty, and go first
    world.converge()
    assert len(world.instances()) == 3


def test_a_pass_reports_at_each_step_and_placement_that_it_is_alive() -> None:
    world = three_nodes()
    engine = world.engine()
    left = iter(range(1))
    signs: list[int] = []
    within = []
    steps: list[str] = []

    def span(name: str) -> AbstractContextManager[object]:
        steps.append(name)
        return nullcontext()

    def stop() -> bool:
        within.append(len(signs))
        return next(left, None) is None

    run(
        replace(engine.ports, span=span),
        engine.source,
        Mandate(TAGS),
        intervals=PassIntervals(busy=5.0),
        stop=stop,
        next_change=lambda _: None,
        alive=lambda: signs.append(1),
    )
    assert within[0] == 0
    assert within[1] > len(steps) > 1
