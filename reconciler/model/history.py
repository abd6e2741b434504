"""What was done of late, as far as a guard of disruption has to remember it.

No rule of Karpenter's needs a past: what it decides follows from what is seen. A share of the fleet
in one day, waves with a pause between, and since when something stands in the way can only be told
by who keeps a record; an engine that is started anew must go on as the one before it.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import Final

import msgspec

DAY: Final = timedelta(hours=24)
"""The span over which a daily maximum is counted: always the last one, not a calendar's."""


class Taken(msgspec.Struct, frozen=True, rename="camel"):
    """Nodes of one NodePool that a voluntary command took at a moment."""

    at: datetime
    node_pool: str
    nodes: int = 1


class Move(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """One command of a wave, and what became of it.

    ``nodes`` are those of the wave's NodePool. ``workloads`` are the owners of the pods that have
    to move (``namespace/Kind/name``), each with how many of its pods were available before. The
    command has ended at ``ended_at``; since ``healthy_at`` all that it moved is well. ``failure``
    says why it came to nothing; ``waits_for`` what is not well yet.
    """

    command: str
    started_at: datetime
    nodes: int = 1
    replacements: tuple[str, ...] = ()
    workloads: dict[str, int] = {}
    ended_at: datetime | None = None
    healthy_at: datetime | None = None
    failure: str = ""
    waits_for: str = ""

    def is_settled(self, soak: timedelta, now: datetime) -> bool:
        """Return whether it failed, or has been healthy for as long as ``soak``."""
        return bool(self.failure) or (self.healthy_at is not None and now - self.healthy_at >= soak)


class Rollout(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """The waves in which the nodes of a NodePool are replaced.

    ``moves`` are the commands of the present wave, none between waves; it may take ``size`` nodes.
    ``failures`` counts those of the waves before it, back to the last one without any. A rollout
    that is stopped stays so until somebody resumes it.
    """

    node_pool: str
    wave: int = 0
    size: int = 0
    moves: tuple[Move, ...] = ()
    failures: int = 0
    stopped_at: datetime | None = None
    stopped_why: str = ""

    @property
    def taken(self) -> int:
        """How many nodes the present wave has taken."""
        return sum(move.nodes for move in self.moves)

    @property
    def failed(self) -> int:
        """How many commands came to nothing since the last wave without a failure."""
        return self.failures + sum(bool(move.failure) for move in self.moves)


class Obstacle(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """Something that keeps nodes from going, and since when it was seen to.

    ``forgone`` is what consolidation of the nodes that it holds would save, in USD an hour; None
    where that is not known.
    """

    kind: str
    name: str
    since: datetime
    forgone: float | None = None


class History(msgspec.Struct, frozen=True, rename="camel"):
    """What is remembered; ``is_kept`` is False where nobody keeps a record, as in a preview."""

    taken: tuple[Taken, ...] = ()
    rollouts: tuple[Rollout, ...] = ()
    obstacles: tuple[Obstacle, ...] = ()
    is_kept: bool = False

    def rollout(self, node_pool: str) -> Rollout | None:
        """Return the rollout of a NodePool, None where it never had one."""
        return next((r for r in self.rollouts if r.node_pool == node_pool), None)

    def obstacle(self, kind: str, name: str) -> Obstacle | None:
        """Return what is recorded of an obstacle, None where it is new."""
        return next((o for o in self.obstacles if (o.kind, o.name) == (kind, name)), None)

    def of_last_day(self, now: datetime, node_pool: str | None = None) -> list[Taken]:
        """Return what was taken within the last day, oldest first; of all pools without a name."""
        recent = (t for t in self.taken if now - t.at < DAY)
        return sorted(
            (t for t in recent if node_pool is None or t.node_pool == node_pool),
            key=lambda t: (t.at, t.node_pool),
        )


NO_HISTORY: Final = History()
"""What is remembered where nobody keeps a record."""


def free_again(taken: Iterable[Taken], most: int) -> datetime | None:
    """Return when fewer than ``most`` of ``taken`` (oldest first) are younger than a day.

    None where that is so already, or never will be because nothing may be taken at all.
    """
    rows = list(taken)
    left = sum(row.nodes for row in rows)
    if left < most or most <= 0:
        return None
    for row in rows:
        left -= row.nodes
        if left < most:
            return row.at + DAY
    return None
