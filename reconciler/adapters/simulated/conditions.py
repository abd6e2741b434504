"""The conditions of a simulation: its clock, how long things take, and what fails when.

Time passes only when something waits for it. A script of faults is followed to the letter.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from statistics import median
from typing import Final, Generic, TypeVar

from reconciler.adapters.simulated.market import ANY, NO_CAPACITY
from reconciler.model.chance import Chance
from reconciler.model.karpenter.nodeclaim import NodeClaim

REBOOTED_TAG: Final = "reconciler/simulated-reboot"
"""The tag of a simulated instance with the time of its last reboot, from which its node follows."""

START: Final = datetime(2026, 1, 1, tzinfo=UTC)

EVERY_CALL: Final = "*"

_RECORDED_MIN: Final = 3
"""How many nodes must have been recorded, so that they stand for others."""
_REGISTRATION_MAX_S: Final = 900.0
"""Karpenter removes a NodeClaim that has not registered by then."""

NOTICE: Final = timedelta(minutes=2)
"""How long before a spot interruption EC2 gives notice."""


class SimulatedClock:
    """A clock that only advances when somebody waits."""

    def __init__(self, start: datetime = START) -> None:
        assert start.tzinfo is not None, "a time needs a time zone"
        self._now = start.astimezone(UTC)

    def now(self) -> datetime:
        """Return the current time of the simulation."""
        return self._now

    def wait(self, seconds: float, until: Callable[[], bool]) -> None:
        """Advance by ``seconds``, unless ``until`` already returns True."""
        if not until():
            self.advance(seconds)

    def advance(self, seconds: float) -> None:
        """Advance the time."""
        assert seconds >= 0, "time does not go backwards"
        self._now += timedelta(seconds=seconds)


# Selects which of the next calls are affected: a number of calls, after skipping others.


Effect = TypeVar("Effect")


@dataclass
class CallRule(Generic[Effect]):
    """The ``effect`` on the next calls of a name.

    ``call`` is an operation, or ``*`` for all; ``times`` None means forever; the first ``skip``
    calls are not affected.
    """

    call: str
    effect: Effect
    times: int | None
    skip: int = 0


def take_turn(rules: Iterable[CallRule[Effect]], call: str) -> Effect | None:
    """Return the effect on a call, from the first rule that applies to it; None without one."""
    for rule in rules:
        if rule.call not in (call, EVERY_CALL) or rule.times == 0:
            continue
        if rule.skip:
            rule.skip -= 1
            continue
        if rule.times is not None:
            rule.times -= 1
        return rule.effect
    return None


class Fault(StrEnum):
    """How a call fails. ``BEFORE``: it has no effect. ``AFTER``: it has, but the answer is lost."""

    THROTTLE = "throttle"
    SERVER_ERROR = "server-error"
    SERVER_ERROR_AFTER = "server-error-after"
    RESET_BEFORE = "reset-before"
    RESET_AFTER = "reset-after"
    TIMEOUT_BEFORE = "timeout-before"
    TIMEOUT_AFTER = "timeout-after"
    DENIED = "denied"

    @property
    def takes_effect(self) -> bool:
        """Whether the call takes effect although it fails."""
        return self in (Fault.SERVER_ERROR_AFTER, Fault.RESET_AFTER, Fault.TIMEOUT_AFTER)

    @property
    def answer(self) -> tuple[int, str, str] | None:
        """The HTTP status, code and message of the response; None if there is no response."""
        return _ANSWERS.get(self)


_ANSWERS = {
    Fault.THROTTLE: (503, "RequestLimitExceeded", "Request limit exceeded."),
    Fault.SERVER_ERROR: (500, "InternalError", "An internal error has occurred"),
    Fault.SERVER_ERROR_AFTER: (500, "InternalError", "An internal error has occurred"),
    Fault.DENIED: (
        403,
        "UnauthorizedOperation",
        "You are not authorized to perform this operation.",
    ),
}


class Faults:
    """Rules in the order in which they were added; the first one that matches applies to a call."""

    def __init__(self) -> None:
        self._rules: list[CallRule[Fault]] = []

    def add(self, call: str, fault: Fault, *, times: int | None = 1, skip: int = 0) -> None:
        """Make the next calls fail.

        ``call`` is an operation such as ``CreateFleet``, or ``*``; ``times`` None means forever;
        the first ``skip`` calls still succeed.
        """
        self._rules.append(CallRule(call, fault, times, skip))

    def clear(self) -> None:
        """Remove all rules."""
        self._rules.clear()

    def take(self, call: str) -> Fault | None:
        """Return the fault of a call, None without one, and count the call."""
        return take_turn(self._rules, call)


Pool = tuple[str, str, str]
"""Instance type, zone and capacity type."""


@dataclass(frozen=True, slots=True)
class Period:
    """A period of time; without an end it lasts forever."""

    start: datetime
    end: datetime | None = None

    def contains(self, moment: datetime) -> bool:
        """Return whether the period contains a moment; its end is excluded."""
        return self.start <= moment and (self.end is None or moment < self.end)

    def edges(self) -> tuple[datetime, ...]:
        """Return the moments at which it starts and ends."""
        return (self.start,) if self.end is None else (self.start, self.end)


@dataclass(frozen=True, slots=True)
class Offer:
    """Some offerings: each part is a name, or ``*`` for all."""

    instance_type: str = ANY
    zone: str = ANY
    capacity_type: str = ANY

    def covers(self, instance_type: str, zone: str, capacity_type: str) -> bool:
        """Return whether an offering is among them."""
        return (
            self.instance_type in (ANY, instance_type)
            and self.zone in (ANY, zone)
            and self.capacity_type in (ANY, capacity_type)
        )


@dataclass(frozen=True, slots=True)
class Refused:
    """Offerings that are unavailable for a period."""

    offer: Offer
    window: Period
    code: str = NO_CAPACITY


@dataclass(frozen=True, slots=True)
class PriceChange:
    """From a time on, some offerings cost ``factor`` times their price in the catalog."""

    offer: Offer
    at: datetime
    factor: float


class RecordedMarket:
    """Spot prices and refusals of another period, each from the moment at which it applies here.

    ``prices`` are changes in their order, None if a price is no longer known.
    """

    def __init__(
        self,
        prices: Sequence[tuple[datetime, Mapping[Pool, float | None]]] = (),
        refused: Sequence[Refused] = (),
    ) -> None:
        self._changes = tuple(prices)
        self._moments = [at for at, _ in self._changes]
        self._refused: dict[Pool, list[Refused]] = {}
        for row in refused:
            offer = row.offer
            pool = (offer.instance_type, offer.zone, offer.capacity_type)
            self._refused.setdefault(pool, []).append(row)
        edges = {edge for row in refused for edge in row.window.edges()}
        self._edges = sorted(edges.union(self._moments))
        self._known: dict[Pool, float] = {}
        self._applied = 0

    @property
    def moments(self) -> Sequence[datetime]:
        """The moments at which prices change."""
        return self._moments

    def count(self, moment: datetime) -> int:
        """Return how many changes of prices there were up to a moment."""
        return bisect_right(self._moments, moment)

    def prices(self, moment: datetime) -> Mapping[Pool, float]:
        """Return the prices that are known at a moment; the caller must not keep them."""
        count = self.count(moment)
        if count < self._applied:
            self._known, self._applied = {}, 0
        for _, changes in self._changes[self._applied : count]:
            for pool, price in changes.items():
                if price is None:
                    self._known.pop(pool, None)
                else:
                    self._known[pool] = price
        self._applied = count
        return self._known

    def changes(
        self, since: datetime, now: datetime
    ) -> Iterator[tuple[datetime, dict[Pool, float]]]:
        """Yield the prices that changed after ``since`` and up to ``now``, with their moment."""
        for at, changes in self._changes[self.count(since) : self.count(now)]:
            yield at, {pool: price for pool, price in changes.items() if price is not None}

    def refusal(self, pool: Pool, now: datetime) -> Refused | None:
        """Return the refusal of an offering at a moment, None if it was available."""
        return next((r for r in self._refused.get(pool, ()) if r.window.contains(now)), None)

    def next_edge(self, now: datetime) -> datetime | None:
        """Return the time of the next change, None if there is none."""
        at = bisect_right(self._edges, now)
        return self._edges[at] if at < len(self._edges) else None


@dataclass(frozen=True, slots=True)
class Stale:
    """For a period EC2's lists show the state of ``lag`` ago."""

    window: Period
    lag: timedelta


@dataclass(frozen=True, slots=True)
class Latencies:
    """Latencies in seconds; a pair is a minimum and a maximum.

    ``recorded_joins`` are those of other nodes of the fleet, in ascending order; without any,
    ``joining`` counts. ``leaving`` is how long an evicted pod takes to terminate, None for its
    grace period.
    """

    launching: tuple[float, float] = (8.0, 16.0)
    joining: tuple[float, float] = (20.0, 35.0)
    ready: float = 10.0
    starting: float = 5.0
    leaving: float | None = None
    stopping: tuple[float, float] = (20.0, 40.0)
    recorded_joins: tuple[float, ...] = ()

    def join_seconds(self, chance: Chance, instance: str) -> float:
        """Return how long after its launch the node of an instance joins.

        A recorded time is a whole number of seconds, so it stands for half a second around it.
        """
        recorded = self.recorded_joins
        if not recorded:
            return chance.seconds_between(*self.joining, "joining", instance)
        nth = int(chance.share("joining", instance) * len(recorded))
        return max(recorded[nth] + chance.seconds_between(-0.5, 0.5, "joining second", instance), 0)


KWOK_LATENCIES: Final = Latencies(
    launching=(0.0, 0.0), joining=(1.0, 2.0), ready=0.0, starting=1.0, stopping=(0.0, 1.0)
)
"""Those of Karpenter's kwok provider, whose nodes are API objects without an instance."""


def with_recorded_joins(latencies: Latencies, claims: Iterable[NodeClaim]) -> Latencies:
    """Return the latencies with the times that the nodes of these NodeClaims took to join.

    The conditions ``Registered`` and ``Initialized`` of a NodeClaim have the moments. A claim that
    registered in the second in which it was created was not measured.
    """
    joins, starts = [], []
    for claim in claims:
        created, registered = claim.metadata.creation_timestamp, _since(claim, "Registered")
        initialized = _since(claim, "Initialized")
        if created is None or registered is None or initialized is None:
            continue
        join = (registered - created).total_seconds()
        if 0 < join <= _REGISTRATION_MAX_S and registered <= initialized:
            joins.append(join)
            starts.append((initialized - registered).total_seconds())
    if len(joins) < _RECORDED_MIN:
        return latencies
    shortest = min(joins)
    launching = (min(latencies.launching[0], shortest), min(latencies.launching[1], shortest))
    return replace(
        latencies,
        launching=launching,
        ready=median(starts),
        recorded_joins=tuple(sorted(joins)),
    )


def _since(claim: NodeClaim, kind: str) -> datetime | None:
    """Return when a condition became true, None if it is not."""
    condition = claim.condition(kind)
    is_true = condition is not None and condition.status == "True"
    return condition.last_transition_time if condition is not None and is_true else None


@dataclass(frozen=True, slots=True)
class Conditions:
    """All conditions of a simulated EC2.

    ``interruptions`` is the rate of spot interruptions, per instance and hour;
    ``never_joins`` the share of launches whose node never registers. If tokens are not honoured, a
    repeated call launches again. The ``market`` comes from a trace.
    """

    latencies: Latencies = Latencies()
    refused: tuple[Refused, ...] = ()
    prices: tuple[PriceChange, ...] = ()
    stale: tuple[Stale, ...] = ()
    interruptions: float = 0.0
    never_joins: float = 0.0
    honours_tokens: bool = True
    market: RecordedMarket = field(default_factory=RecordedMarket, compare=False)

    def refusal(self, pool: Pool, now: datetime) -> Refused | None:
        """Return why an offering is unavailable now, None if it is available."""
        matching = (r for r in self.refused if r.window.contains(now) and r.offer.covers(*pool))
        return next(matching, None) or self.market.refusal(pool, now)

    def factor(self, pool: Pool, now: datetime) -> float:
        """Return an offering's price as a factor of the catalog's; the last change wins."""
        factor = 1.0
        for change in self.prices:
            if change.at <= now and change.offer.covers(*pool):
                factor = change.factor
        return factor

    def lag(self, now: datetime) -> timedelta:
        """Return how stale the answers of EC2's lists are now."""
        return max((s.lag for s in self.stale if s.window.contains(now)), default=timedelta(0))

    @property
    def longest_lag(self) -> timedelta:
        """The greatest lag of EC2's lists."""
        return max((s.lag for s in self.stale), default=timedelta(0))

    def edges(self) -> tuple[datetime, ...]:
        """Return every time at which a condition changes, without those of the market."""
        windows = [r.window for r in self.refused] + [s.window for s in self.stale]
        return (*(e for w in windows for e in w.edges()), *(p.at for p in self.prices))
