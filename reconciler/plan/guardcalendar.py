"""What the guards that count over time add to a pool's calendar: their holes, and their slowness.

What has gone of late is known; what will go is not. So each moment is judged as if nothing went
until then, and as if a wave that is under way came to a good end when its nodes have been well for
long enough.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime

from msgspec.structs import replace

from reconciler.disruption.guards import Cap, caps_for, rollout_moments, staying
from reconciler.disruption.memory import in_memory
from reconciler.disruption.policy import old_enough_at
from reconciler.model.budget import DisruptionReason
from reconciler.model.duration import parse_duration
from reconciler.model.history import DAY, History, Rollout
from reconciler.model.settings import Settings
from reconciler.observed.state import StateNode
from reconciler.plan.wording import counted, moment


@dataclass(frozen=True)
class Guards:
    """The guards of one NodePool, over the nodes that are to stay."""

    pool: str
    settings: Settings
    history: History
    staying: Counter[str]

    @classmethod
    def of(
        cls, pool: str, settings: Settings, history: History, nodes: Sequence[StateNode]
    ) -> Guards:
        """Return the guards of a pool, with the nodes counted once."""
        return cls(pool, settings, history, staying(nodes))

    def changes(self) -> Iterator[datetime]:
        """Yield when a guard may let more go."""
        yield from (row.at + DAY for row in self.history.taken)
        rollouts = [r for r in self.history.rollouts if r.node_pool == self.pool]
        yield from rollout_moments(rollouts, self.settings)

    def cap(self, reason: DisruptionReason, at: datetime) -> Cap | None:
        """Return the strictest guard for the reason at a moment, None where there is none."""
        found = [c for c in self.caps(at) if c.covers(self.pool, reason)]
        return min(found, key=lambda cap: cap.left, default=None)

    def caps(self, at: datetime) -> list[Cap]:
        """Return all guards that count at a moment."""
        if not self._any:
            return []
        rollouts = tuple(self._ended(rollout, at) for rollout in self.history.rollouts)
        history = replace(self.history, rollouts=rollouts)
        return caps_for([self.pool], self.staying, history, self.settings, at)

    @property
    def _any(self) -> bool:
        names = ("maximum_per_day", "wave_size", "stop_after_failures")
        own = any(self.settings.option(self.pool, name) for name in names)
        return own or bool(self.settings.fleet_maximum_per_day)

    def _ended(self, rollout: Rollout, at: datetime) -> Rollout:
        soak = parse_duration(self.settings.option(rollout.node_pool, "wave_soak"))
        over = all(move.is_settled(soak, at) for move in rollout.moves)
        return replace(rollout, moves=()) if over else rollout


def slowness(guards: Guards, now: datetime) -> Iterator[tuple[str, str]]:
    """Yield how long it takes until all nodes of the pool have gone, where a day lets few go."""
    total = guards.staying[guards.pool]
    fresh = Guards(guards.pool, guards.settings, History(), guards.staying)
    for cap in fresh.caps(now):
        a_day = cap.covers(guards.pool, DisruptionReason.EMPTY)  # waves do not count empty nodes
        if a_day and 0 < cap.left < total:
            days = -(-total // cap.left)
            whose = "this NodePool" if cap.node_pool else "the fleet"
            text = f"{counted(cap.left, 'node')} of {whose} may be disrupted within 24 hours"
            yield (
                "DailyMaximum",
                f"{text}: replacing all {total} takes {counted(days, 'day')} or more",
            )


def memories(
    pool: str, settings: Settings, nodes: Sequence[StateNode], now: datetime
) -> Iterator[tuple[str, str]]:
    """Yield which nodes consolidation leaves alone for a time, and until when at the latest."""
    claims = [n.claim for n in nodes if n.claim is not None and n.node_pool == pool]
    young = [at for c in claims if (at := old_enough_at(c, pool, settings)) and at > now]
    if young:
        key = settings.option_key(pool, "minimum_age", "minimumAge")
        last = moment(max(young))
        text = f"{counted(len(young), 'node')} younger than {key}: consolidation ignores"
        yield "TooYoung", f"{text} them until they are old enough, the last until {last}"
    ends = [[until for _, until in in_memory(c, settings) if until > now] for c in claims]
    kept = [max(row) for row in ends if row]
    if kept:
        key = settings.option_key(pool, "undo_period", "undoPeriod")
        text = f"consolidation of {counted(len(kept), 'node')} must not be undone"
        yield "Remembered", f"{text} ({key}), the last until {moment(max(kept))}"
