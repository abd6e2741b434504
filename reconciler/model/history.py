"""The recent disruptions that the rate limits need.

Karpenter's rules need no history: its decisions follow from what it observes. A daily share of the
fleet, waves with a pause in between, and the age of a blocker require records. A restarted engine
must continue from them.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import Final

import msgspec

DAY: Final = timedelta(hours=24)
"""The period of a daily maximum: always the last 24 hours, not a calendar day."""


class RecordedNode(msgspec.Struct, frozen=True, rename="camel"):
    """A node of a recording: its NodePool, and the offering that it was launched as."""

    node: str
    node_pool: str
    instance_type: str
    zone: str
    capacity_type: str


class DisruptionRecord(msgspec.Struct, frozen=True, rename="camel"):
    """Nodes of one NodePool that a voluntary command disrupted at one time."""

    at: datetime
    node_pool: str
    nodes: int = 1


class Move(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """One command of a wave, and its result.

    ``nodes`` are those of the wave's NodePool. ``workloads`` are the owners of the pods that have
    to move (``namespace/Kind/name``), each with how many of its pods were available before. The
    command has ended at ``ended_at``; since ``healthy_at`` everything that it moved is healthy.
    ``failure`` is why it failed, and ``waits_for`` is what is not healthy yet.
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
    def disrupted_nodes(self) -> int:
        """The number of nodes that the current wave has disrupted."""
        return sum(move.nodes for move in self.moves)

    @property
    def failure_count(self) -> int:
        """The number of commands that failed since the last wave without a failure."""
        return self.failures + sum(bool(move.failure) for move in self.moves)


class Obstacle(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """Something that blocks the disruption of nodes, and when it was first seen.

    ``forgone`` is what consolidation of the blocked nodes would save, in USD an hour; None if
    unknown.
    """

    kind: str
    name: str
    since: datetime
    forgone: float | None = None


class History(msgspec.Struct, frozen=True, rename="camel"):
    """The recorded history; empty without records, as in a preview."""

    taken: tuple[DisruptionRecord, ...] = ()
    rollouts: tuple[Rollout, ...] = ()
    obstacles: tuple[Obstacle, ...] = ()

    def rollout(self, node_pool: str) -> Rollout | None:
        """Return the rollout of a NodePool, None where it never had one."""
        return next((r for r in self.rollouts if r.node_pool == node_pool), None)

    def obstacle(self, kind: str, name: str) -> Obstacle | None:
        """Return the record of an obstacle, None if it is new."""
        return next((o for o in self.obstacles if (o.kind, o.name) == (kind, name)), None)

    def disruptions_within_day(
        self, now: datetime, node_pool: str | None = None
    ) -> list[DisruptionRecord]:
        """Return the disruptions within the last day, oldest first; of all pools without a name."""
        recent = (t for t in self.taken if now - t.at < DAY)
        return sorted(
            (t for t in recent if node_pool is None or t.node_pool == node_pool),
            key=lambda t: (t.at, t.node_pool),
        )


NO_HISTORY: Final = History()
"""The history without records."""


def next_free_at(disruptions: Iterable[DisruptionRecord], most: int) -> datetime | None:
    """Return when fewer than ``most`` of ``disruptions`` (oldest first) are younger than a day.

    None if that is already the case, or never will be because no disruption is allowed at all.
    """
    rows = list(disruptions)
    left = sum(row.nodes for row in rows)
    if left < most or most <= 0:
        return None
    for row in rows:
        left -= row.nodes
        if left < most:
            return row.at + DAY
    return None
