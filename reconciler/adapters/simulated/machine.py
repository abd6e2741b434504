"""An instance of the simulated EC2, and what of it can be seen at which moment."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

from reconciler.adapters.simulated.conditions import Pool
from reconciler.ports.cloud import Instance

SHOWN_FOR = timedelta(hours=1)
"""How long EC2 still shows an instance after it is terminated."""


@dataclass(slots=True)
class SimulatedInstance:
    """An instance with the moments of its life.

    ``facts`` is the instance as launched. ``going_at`` is when it began to shut down, from when on
    it costs nothing; ``notice_at`` when EC2 says that it will take it back. ``prices`` are USD an
    hour, each from a moment on; without one its price is not known.
    """

    facts: Instance
    intent: str
    running_at: datetime
    notice_at: datetime | None = None
    reclaimed_at: datetime | None = None
    going_at: datetime | None = None
    gone_at: datetime | None = None
    prices: list[tuple[datetime, float]] = field(default_factory=list)
    _shown: tuple[Instance, Instance] | None = field(default=None, init=False, repr=False)

    @property
    def pool(self) -> Pool:
        """Return the offering that it is of."""
        return (self.facts.instance_type, self.facts.zone, self.facts.capacity_type)

    def state(self, at: datetime) -> str:
        """Return EC2's word for how it is at a moment after its launch."""
        if self.gone_at is not None and at >= self.gone_at:
            return "terminated"
        if self.going_at is not None and at >= self.going_at:
            return "shutting-down"
        return "running" if at >= self.running_at else "pending"

    def seen(self, at: datetime) -> Instance | None:
        """Return it as EC2 shows it at a moment, None before its launch and long after its end.

        It is the same object for as long as nothing changes.
        """
        if at < self.facts.launched_at:
            return None
        if self.gone_at is not None and at - self.gone_at > SHOWN_FOR:
            return None
        state = self.state(at)
        if state == self.facts.state:
            return self.facts
        known = self._shown
        if known is None or known[0] is not self.facts or known[1].state != state:
            self._shown = known = (self.facts, replace(self.facts, state=state))
        return known[1]

    def moments(self) -> Iterator[datetime]:
        """Yield the times at which its state changes."""
        for moment in (self.running_at, self.notice_at, self.reclaimed_at, self.gone_at):
            if moment is not None:
                yield moment

    def price(self, at: datetime) -> float | None:
        """Return USD an hour at a moment, None where it is not known."""
        known = [price for since, price in self.prices if since <= at]
        return known[-1] if known else None

    def cost(self, since: datetime, until: datetime) -> float:
        """Return what it cost from one moment to another, in USD."""
        end = until if self.going_at is None else min(until, self.going_at)
        total = 0.0
        for number, (start, price) in enumerate(self.prices):
            last = number + 1 == len(self.prices)
            stop = end if last else min(end, self.prices[number + 1][0])
            span = stop - max(start, since)
            total += price * max(span.total_seconds(), 0.0) / 3600
        return total
