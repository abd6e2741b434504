"""Carries the engine through virtual time, pass after pass, leaping to the next moment that counts.

Nothing here decides anything about the fleet: passes are the engine's own, and what happens
between them is the simulated world's.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Final

import msgspec

from reconciler.adapters.simulated.clock import SimulatedClock
from reconciler.adapters.simulated.compute import CLAIM_TAG, SimulatedCompute
from reconciler.adapters.simulated.watched import WatchedCluster
from reconciler.cli.simulation.chronicle import Chronicle
from reconciler.cli.simulation.killing import KilledError
from reconciler.cli.simulation.outlook import Outlook, outlook
from reconciler.engine.planning import PlannedFleet
from reconciler.engine.reconcile import Mandate, Pass, reconcile
from reconciler.engine.world import World
from reconciler.model.errors import (
    CloudError,
    ClusterError,
    ReconcilerError,
    TransientCloudError,
)
from reconciler.plan.recall import Recall
from reconciler.ports import Progress

LOOK: Final = timedelta(seconds=10)
LOOK_MAX: Final = timedelta(seconds=30)

PASSES_MAX: Final = 20_000
"""The maximum number of passes of a simulation."""
"""The time between two passes while something is in progress.

A tenth of a second for each NodeClaim, within these bounds: a large fleet's pass takes longer, in a
daemon as here, and nobody reads the day of three hundred nodes by the second.
"""

PATIENCE: Final = timedelta(days=30)
"""How far a simulation without an end goes on hoping."""

_PAUSE_MAX_S: Final = 60.0


class Sample(msgspec.Struct, frozen=True, rename="camel"):
    """The fleet at a moment: USD an hour, nodes that run, pods without a node."""

    at: datetime
    per_hour: float
    nodes: int
    pending: int


@dataclass
class Stage:
    """A simulated world, and the engine's view of it."""

    clock: SimulatedClock
    compute: SimulatedCompute
    cluster: WatchedCluster
    world: World
    chronicle: Chronicle
    samples: list[Sample] = field(default_factory=list)
    passes: int = 0

    def per_hour(self) -> float:
        """Return what the instances cost now, in USD an hour; what goes costs nothing more."""
        now = self.clock.now()
        living = (m for m in self.compute.machines.values() if m.going_at is None)
        return round(sum(m.price(now) or 0.0 for m in living), 9)


class EndlessError(ReconcilerError):
    """The simulation made more passes than one may; it had come to ``at``."""

    def __init__(self, at: datetime) -> None:
        super().__init__(
            f"the simulation stopped after {PASSES_MAX:,} passes, at {at:%Y-%m-%d %H:%M} UTC",
            remedy="end it earlier with --until",
        )


@dataclass(frozen=True, slots=True)
class Played:
    """How it went: the last pass that was made, and whether the fleet came to rest."""

    last: Pass | None
    ahead: Outlook | None
    converged: bool
    at: datetime


def play(
    stage: Stage,
    desired: Callable[[datetime], PlannedFleet],
    mandate: Mandate,
    until: datetime | None = None,
    watch: Callable[[Pass], None] = lambda _: None,
) -> Played:
    """Run passes until ``until``, without it until nothing is left to hope for.

    ``desired`` is asked at the beginning of each pass what the fleet shall be.
    ``watch`` sees every pass that came to its end.

    Raises:
        EndlessError: the maximum number of passes is reached.
    """
    end = until or stage.clock.now() + PATIENCE
    last, ahead, failures = None, None, 0
    recall = Recall()
    while True:
        if stage.passes >= PASSES_MAX:
            raise EndlessError(stage.clock.now())
        before = _mark(stage)
        fleet = desired(stage.clock.now())
        done, pause = _pass(stage, fleet, mandate, recall)
        if done is None:
            recall = Recall()  # what a process knew dies with it
        now = stage.clock.now()
        if done is None or done.in_vain:
            failures += 1
            pause = pause or timedelta(seconds=min(2.0 ** (failures - 1), _PAUSE_MAX_S))
        else:
            failures = 0
        if done is not None:
            last = done
            pools = {p.name: p for p in fleet.node_pools}
            ahead = outlook(
                done, stage.world.store, stage.world.journal, pools, fleet.settings, now
            )
            watch(done)
        moved = done is None or _mark(stage) != before
        at_rest = done is not None and done.is_quiet and not moved
        settled = at_rest and ahead is not None and ahead.is_settled(now)
        if until is None and settled and stage.cluster.next_moment() is None:
            return Played(last, ahead, converged=True, at=now)
        following = _following(stage, ahead, pause, moved=moved)
        if following is None or following >= end:
            stage.clock.advance((end - now).total_seconds())
            _tell_notices(stage)
            _sample(stage)
            settled = at_rest and ahead is not None and ahead.is_settled(end)
            return Played(last, ahead, converged=settled, at=end)
        stage.clock.advance((following - now).total_seconds())


def _pass(
    stage: Stage, desired: PlannedFleet, mandate: Mandate, recall: Recall
) -> tuple[Pass | None, timedelta | None]:
    """Make one pass; return it, or None where it broke off, and how long to pause then."""
    _tell_notices(stage)
    stage.passes += 1
    done, pause = None, None
    try:
        done = reconcile(stage.world, desired, mandate, recall)
    except (TransientCloudError, CloudError, ClusterError) as error:
        stage.world.tell("Retrying", str(error))
    except KilledError as error:
        stage.world.tell("Killed", str(error))
        pause = error.restart
    _sample(stage)
    return done, pause


def _mark(stage: Stage) -> tuple[object, ...]:
    """Return what differs whenever a pass changed something."""
    journal = stage.world.journal
    newest = journal.entries(limit=1)
    return (
        stage.world.store.serial(),
        newest[0].sequence if newest else 0,
        len(journal.in_doubt()),
        len(stage.chronicle.events),
    )


def _following(
    stage: Stage, ahead: Outlook | None, pause: timedelta | None, *, moved: bool
) -> datetime | None:
    """Return when the next pass is due, None if nothing will ever happen."""
    now = stage.clock.now()
    if pause is not None:
        return now + pause
    look = min(max(len(stage.world.store.node_claims()) * timedelta(seconds=0.1), LOOK), LOOK_MAX)
    if moved:
        return now + look
    moments = [stage.compute.next_moment(), stage.cluster.next_moment()]
    moments.append(ahead.next(now) if ahead is not None else None)
    known = [m for m in moments if m is not None]
    return max(min(known), now + look) if known else None


def _tell_notices(stage: Stage) -> None:
    for notice in stage.compute.advance():
        claim = notice.instance.tags.get(CLAIM_TAG, "")
        text = f"EC2 reclaims {notice.instance.id} in two minutes"
        stage.chronicle.tell(
            Progress(notice.at, "Interrupted", text, node_claim=claim, reason="SpotInterruption")
        )


def _sample(stage: Stage) -> None:
    """Note what the fleet is like where it changed."""
    living = [m for m in stage.compute.machines.values() if m.going_at is None]
    sample = Sample(stage.clock.now(), stage.per_hour(), len(living), stage.cluster.homeless())
    known = stage.samples[-1] if stage.samples else None
    if known is None or (known.per_hour, known.nodes, known.pending) != (
        sample.per_hour,
        sample.nodes,
        sample.pending,
    ):
        stage.samples.append(sample)
