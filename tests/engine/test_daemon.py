"""The daemon before a git that cannot be read.

Each test fails when the guard that it is about is taken out.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta
from itertools import pairwise
from typing import Any

from reconciler.engine.loop import READ_AGAIN, Pulse, run
from reconciler.engine.reconcile import Mandate
from reconciler.model.duration import Duration
from reconciler.model.errors import StateError, TransientCloudError, UnreadableError
from tests.engine.trouble import moved, three_nodes
from tests.engine.world import TAGS, World


def test_the_daemon_keeps_the_last_good_revision_and_goes_on_with_it() -> None:
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
            world.cloud.vanish(victim)
        return number is None

    run(
        engine.ports,
        engine.source,
        Mandate(TAGS),
        pulse=Pulse(busy=5.0),
        stop=stop,
        next_change=lambda _: None,
    )
    assert len(world.ears.said("InvalidRevision")) == 1
    assert "stays in effect" in world.ears.said("InvalidRevision")[0]
    assert victim not in world.instances()
    assert len(world.instances()) == 3


def test_pods_that_wait_wake_it_and_a_look_hears_them_all() -> None:
    world = three_nodes()
    engine = world.engine()
    heard = ["a pod"]
    looks: list[datetime] = []

    class Arrivals:
        def has_news(self) -> bool:
            return bool(heard)

        def acknowledge(self) -> None:
            looks.append(world.clock.now())
            heard[:] = ["another"] if len(looks) < 3 else []

    run(
        replace(engine.ports, arrivals=Arrivals()),
        engine.source,
        Mandate(TAGS),
        pulse=Pulse(busy=5.0, quiet=600.0),
        stop=lambda: len(looks) >= 5,
        next_change=lambda _: None,
    )
    pauses = [(later - before).total_seconds() for before, later in pairwise(looks)]
    assert pauses == [0, 0, 600, 600]


def pruned(world: World, keep: str, hours: int, **broken: Any) -> list[tuple[timedelta, frozenset]]:
    """Let a quiet daemon run for so long, and return which spans it pruned to, and sparing what."""
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
        pulse=Pulse(busy=5.0, quiet=6 * 3600.0),
        stop=lambda: world.clock.now() >= end,
        next_change=lambda _: None,
    )
    return asked


def test_a_daemon_prunes_its_records_once_a_day_and_spares_what_has_instances() -> None:
    world = three_nodes()
    intents = {tags["reconciler/intent"] for tags in world.cloud.living().values()}
    assert pruned(world, "30d", 60) == [(timedelta(days=30), frozenset(intents))] * 3
    assert (
        world.ears.said("Pruned") == ["removed 7 settled records older than 30d (history.keep)"] * 3
    )
    assert pruned(world, "Never", 60) == []


def test_records_that_cannot_be_pruned_stop_no_daemon() -> None:
    world = three_nodes()
    assert len(pruned(world, "36h", 30, broken=True)) == 2
    assert any("the disk is full" in said for said in world.ears.said("Retrying"))
    assert len(world.instances()) == 3


def test_the_daemon_survives_a_git_that_cannot_be_asked() -> None:
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

    passes = iter(range(20))
    run(
        engine.ports,
        Source(),
        Mandate(TAGS),
        pulse=Pulse(),
        stop=lambda: next(passes, None) is None,
        next_change=lambda _: None,
    )
    assert len(world.instances()) == 3


def test_a_revision_that_could_not_be_read_for_a_moment_is_carried_out_later() -> None:
    world = three_nodes()
    engine = world.engine()
    passes = iter(range(60))

    def stop() -> bool:
        number = next(passes, None)
        if number == 3:
            moved(world)
            world.git.unreadable = TransientCloudError("busy")
        if number == 6:
            world.git.unreadable = None
        return number is None

    before, started = set(world.instances()), world.clock.now()
    run(
        engine.ports,
        engine.source,
        Mandate(TAGS),
        pulse=Pulse(busy=5.0),
        stop=stop,
        next_change=lambda _: None,
    )
    assert not before & set(world.instances())
    told = [p.at for p in world.ears.heard if p.kind == "Revision"]
    assert told[-1] - started < READ_AGAIN
