"""A present that notes every time it is compared with: it tells until when an answer holds.

A rule that asks ``now >= moment`` answers otherwise from ``moment`` on, one that asks whether an
age is below a span from the end of that span on. Whatever else is made of the present (its hour,
its text, a share of an age) may change at any moment, and is noted as that.
"""

from __future__ import annotations

import sys
from datetime import datetime, timedelta, tzinfo
from typing import Any, Self

OWN_CALENDAR = ("reconciler.model.schedule", "reconciler.model.windows")
"""Modules that take the present apart and say themselves until when their answers hold."""


class Notes:
    """The moments after ``now`` at which a comparison that was made turns out otherwise."""

    def __init__(self, now: datetime) -> None:
        self.now = now
        self.flips: set[datetime] = set()

    def at(self, moment: datetime, operator: str) -> None:
        just_after = moment + datetime.resolution
        for flip, operators in ((moment, ("<", ">=", "==")), (just_after, (">", "<=", "=="))):
            if operator in operators and flip > self.now:
                self.flips.add(flip)

    def always(self) -> None:
        if sys._getframe(2).f_globals["__name__"] not in OWN_CALENDAR:
            self.flips.add(self.now + datetime.resolution)


class Present(datetime):
    """The present, or a fixed span away from it."""

    notes: Notes
    shift: timedelta

    def __new__(cls, moment: datetime, notes: Notes, shift: timedelta = timedelta(0)) -> Self:
        own = super().__new__(
            cls, moment.year, moment.month, moment.day, moment.hour, moment.minute,
            moment.second, moment.microsecond, moment.tzinfo,
        )  # fmt: skip
        own.notes, own.shift = notes, shift
        return own

    @property
    def plain(self) -> datetime:
        return datetime.combine(datetime.date(self), datetime.timetz(self))

    def _compared(self, other: Any, operator: str) -> None:
        if isinstance(other, datetime) and not isinstance(other, Present):
            self.notes.at(other - self.shift, operator)

    def __lt__(self, other: datetime) -> bool:
        self._compared(other, "<")
        return super().__lt__(other)

    def __le__(self, other: datetime) -> bool:
        self._compared(other, "<=")
        return super().__le__(other)

    def __gt__(self, other: datetime) -> bool:
        self._compared(other, ">")
        return super().__gt__(other)

    def __ge__(self, other: datetime) -> bool:
        self._compared(other, ">=")
        return super().__ge__(other)

    def __eq__(self, other: object) -> bool:
        self._compared(other, "==")
        return super().__eq__(other)

    __hash__ = datetime.__hash__

    def __add__(self, span: timedelta) -> Present:
        return Present(self.plain + span, self.notes, self.shift + span)

    __radd__ = __add__

    def __sub__(self, other: Any) -> Any:
        if isinstance(other, timedelta):
            return self + -other
        return Age(self.plain - _plain(other), self.notes, _plain(other) - self.shift)

    def __rsub__(self, other: datetime) -> Any:
        self.notes.always()
        return other - self.plain

    def replace(self, *args: Any, **fields: Any) -> datetime:
        self.notes.always()
        return self.plain.replace(*args, **fields)

    def astimezone(self, tz: tzinfo | None = None) -> datetime:
        self.notes.always()
        return self.plain.astimezone(tz)

    def isoformat(self, *args: Any) -> str:
        self.notes.always()
        return self.plain.isoformat(*args)

    def __format__(self, spec: str) -> str:
        self.notes.always()
        return format(self.plain, spec)

    def __str__(self) -> str:
        self.notes.always()
        return str(self.plain)


def _plain(moment: datetime) -> datetime:
    return moment.plain if isinstance(moment, Present) else moment


class Age(timedelta):
    """How long ago ``since`` was."""

    notes: Notes
    since: datetime

    def __new__(cls, span: timedelta, notes: Notes, since: datetime) -> Self:
        own = super().__new__(cls, span.days, span.seconds, span.microseconds)
        own.notes, own.since = notes, since
        return own

    @property
    def plain(self) -> timedelta:
        return timedelta(self.days, self.seconds, self.microseconds)

    def _compared(self, other: Any, operator: str) -> None:
        if isinstance(other, timedelta):
            self.notes.at(self.since + other, operator)

    def __lt__(self, other: timedelta) -> bool:
        self._compared(other, "<")
        return super().__lt__(other)

    def __le__(self, other: timedelta) -> bool:
        self._compared(other, "<=")
        return super().__le__(other)

    def __gt__(self, other: timedelta) -> bool:
        self._compared(other, ">")
        return super().__gt__(other)

    def __ge__(self, other: timedelta) -> bool:
        self._compared(other, ">=")
        return super().__ge__(other)

    def __eq__(self, other: object) -> bool:
        self._compared(other, "==")
        return super().__eq__(other)

    __hash__ = timedelta.__hash__

    def _used(self) -> timedelta:
        self.notes.flips.add(self.notes.now + datetime.resolution)
        return self.plain

    def __add__(self, other: Any) -> Any:
        return self._used() + other

    def __sub__(self, other: Any) -> Any:
        return self._used() - other

    def __rsub__(self, other: Any) -> Any:
        return other - self._used()

    def __truediv__(self, other: Any) -> Any:
        return self._used() / other

    def __floordiv__(self, other: Any) -> Any:
        return self._used() // other

    def total_seconds(self) -> float:
        return self._used().total_seconds()
