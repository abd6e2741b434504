"""When passes ran: the cost of a fleet is known then, and at no other time.

A state keeps the periods in which passes followed each other. One that is longer than ``GAP_MIN``
without a pass, as while no daemon runs, divides two periods.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Final

import msgspec

from reconciler.model.decode import decode_json
from reconciler.ports.state import Shelf

PASSES_RECORD: Final = "passes"
"""The name under which they are kept on the shelf of a fleet."""
GAP_MIN: Final = timedelta(hours=1)
"""A daemon runs a pass at least every minute, and after failures too."""
RECORDED_EVERY: Final = timedelta(minutes=5)
"""How often the end of a period is written while passes follow each other."""
_PERIODS_MAX: Final = 1_000


class PassPeriod(msgspec.Struct, frozen=True, rename="camel"):
    """A period from ``since`` to ``until``."""

    since: datetime
    until: datetime

    @property
    def length(self) -> timedelta:
        """How long it is."""
        return self.until - self.since


class PassTimes(msgspec.Struct, frozen=True, rename="camel"):
    """The periods with passes, oldest first; of the time before the first nothing is known.

    Releases that did not keep them have recorded plans before.
    """

    periods: tuple[PassPeriod, ...] = ()

    def with_pass(self, at: datetime) -> PassTimes:
        """Return these with a pass; one before the last pass changes nothing."""
        if not self.periods:
            return PassTimes((PassPeriod(at, at),))
        *earlier, last = self.periods
        if at <= last.until:
            return self
        if at - last.until <= GAP_MIN:
            return PassTimes((*earlier, PassPeriod(last.since, at)))
        return PassTimes((*self.periods, PassPeriod(at, at))[-_PERIODS_MAX:])

    def gaps(self, since: datetime, until: datetime) -> Iterator[PassPeriod]:
        """Yield the parts of a period in which no pass ran for longer than ``GAP_MIN``."""
        for number, period in enumerate(self.periods, 1):
            end = period.until
            begin = self.periods[number].since if number < len(self.periods) else until
            first, last = max(end, since), min(begin, until)
            if begin - end > GAP_MIN and first < last:
                yield PassPeriod(first, last)


class RecordedPasses:
    """The passes of a fleet on its shelf, which other processes write as well."""

    def __init__(self, shelf: Shelf) -> None:
        self._shelf = shelf
        self._written: datetime | None = None

    def record(self, at: datetime) -> None:
        """Record a pass, unless one was recorded shortly before.

        Raises:
            StateError: the state cannot be used.
        """
        last = self._written
        if last is not None and last <= at < last + RECORDED_EVERY:
            return
        times = read_passes(self._shelf).with_pass(at)
        self._shelf.write(PASSES_RECORD, msgspec.json.encode(times))
        self._written = at


def read_passes(shelf: Shelf) -> PassTimes:
    """Return when passes ran, none if that was not recorded.

    Raises:
        StateError: the state cannot be used.
    """
    content = shelf.read(PASSES_RECORD)
    if content is None:
        return PassTimes()
    try:
        return decode_json(content, PassTimes)
    except msgspec.MsgspecError:
        return PassTimes()  # of another release
