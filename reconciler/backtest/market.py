"""Spot prices and refused offerings of a trace, and how EC2 is replayed with them.

Prices apply from the time at which they were recorded. A refusal lasts until the recording daemon
requested the offering again, because it is unknown when EC2 had it again.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from math import isfinite
from typing import Final

import msgspec

from reconciler.adapters.simulated.conditions import Offer, Period, Pool, RecordedMarket, Refused
from reconciler.adapters.simulated.market import NO_CAPACITY
from reconciler.model.karpenter.labels import SPOT
from reconciler.ports.state import OfferingRefusal, SpotChanges, spot_changes

PRICE_MAX: Final = 10_000.0
"""USD an hour."""


class TracedPrices(
    msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True, kw_only=True
):
    """Spot prices that changed ``at`` seconds from the beginning (``ports.trace.SpotChanges``)."""

    at: float
    spot_prices: SpotChanges

    def problem(self, seconds_max: float) -> str:
        """Return the problem with the values, empty if there is none."""
        if not 0 <= self.at <= seconds_max:
            return f"at: {self.at} is not between 0 and {seconds_max} seconds"
        for kind, zones in self.spot_prices.items():
            for zone, price in zones.items():
                if price is not None and not (isfinite(price) and 0 <= price <= PRICE_MAX):
                    where = f"spotPrices: {kind[:80]} in {zone[:80]}"
                    return f"{where}: {price} is not between 0 and {PRICE_MAX:,}"
        return ""


class TracedRefusal(
    msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True, omit_defaults=True
):
    """An offering that EC2 refused; times are seconds from the beginning of the trace."""

    instance_type: str
    zone: str
    capacity_type: str
    refused_from: float
    until: float
    code: str = ""

    def problem(self, seconds_max: float) -> str:
        """Return the problem with the values, empty if there is none."""
        if not 0 <= self.refused_from <= self.until <= seconds_max:
            return "refusedFrom and until are not in their order, or not in the time of a trace"
        return ""


@dataclass(frozen=True, slots=True)
class MarketTrace:
    """The prices in order, and the refusals in the order in which they began."""

    prices: tuple[TracedPrices, ...] = ()
    refusals: tuple[TracedRefusal, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.prices or self.refusals)

    def replay_from(self, start: datetime) -> RecordedMarket:
        """Return the market of a replay that begins at ``start``."""

        def at(seconds: float) -> datetime:
            return start + timedelta(seconds=seconds)

        return RecordedMarket(
            tuple((at(change.at), _prices_by_pool(change.spot_prices)) for change in self.prices),
            tuple(
                Refused(
                    Offer(r.instance_type, r.zone, r.capacity_type),
                    Period(at(r.refused_from), at(r.until)),
                    r.code or NO_CAPACITY,
                )
                for r in self.refusals
            ),
        )


NO_MARKET: Final = MarketTrace()


def _prices_by_pool(changes: SpotChanges) -> dict[Pool, float | None]:
    rows = ((kind, zone, price) for kind, zones in changes.items() for zone, price in zones.items())
    return {(kind, zone, SPOT): price for kind, zone, price in rows}


def market_of(found: Iterable[TracedPrices | TracedRefusal]) -> MarketTrace:
    """Return prices and refusals in their order."""
    items = list(found)
    prices = [one for one in items if isinstance(one, TracedPrices)]
    refusals = [one for one in items if isinstance(one, TracedRefusal)]
    return MarketTrace(
        tuple(sorted(prices, key=lambda change: change.at)),
        tuple(sorted(refusals, key=_refusal_order)),
    )


def _refusal_order(refusal: TracedRefusal) -> tuple[float, str, str, str]:
    return (refusal.refused_from, refusal.instance_type, refusal.zone, refusal.capacity_type)


@dataclass(slots=True)
class MarketTimeline:
    """Prices and refusals from the successive batches of a daemon."""

    prices: dict[str, dict[str, float]] = field(default_factory=dict)
    changes: list[tuple[datetime, SpotChanges]] = field(default_factory=list)
    refusals: dict[tuple[str, str, str], list[tuple[datetime, OfferingRefusal]]] = field(
        default_factory=dict
    )

    def add(
        self,
        at: datetime,
        spot: SpotChanges | None,
        refused: Iterable[OfferingRefusal],
        *,
        is_whole: bool,
    ) -> None:
        """Add the contents of the next batch; a complete batch has all known prices."""
        for refusal in refused:
            offering = (refusal.instance_type, refusal.zone, refusal.capacity_type)
            self.refusals.setdefault(offering, []).append((at, refusal))
        if spot is None:
            return
        if is_whole:
            spot = spot_changes(self.prices, spot)
        if spot:
            self.changes.append((at, spot))
            apply_changes(self.prices, spot)

    def trace_between(self, begin: datetime, end: datetime) -> MarketTrace:
        """Return the trace from ``begin`` to ``end``; earlier prices apply at its beginning."""

        def seconds(at: datetime) -> float:
            return round(max((min(at, end) - begin).total_seconds(), 0.0), 6)

        first: dict[str, dict[str, float]] = {}
        later = []
        for at, changes in self.changes:
            if at <= begin:
                apply_changes(first, changes)
            elif at < end:
                later.append(TracedPrices(at=seconds(at), spot_prices=changes))
        known: SpotChanges = {kind: dict(zones) for kind, zones in sorted(first.items())}
        prices = [TracedPrices(at=0.0, spot_prices=known)] if known else []
        refusals = [
            TracedRefusal(*offering, seconds(since), seconds(until), code)
            for offering, found in self.refusals.items()
            for since, until, code in _merge_refusals(found)
            if since < end and until > begin
        ]
        return market_of([*prices, *later, *refusals])


def apply_changes(prices: dict[str, dict[str, float]], changes: SpotChanges) -> None:
    """Make the changes in ``prices``."""
    for kind, zones in changes.items():
        known = prices.setdefault(kind, {})
        for zone, price in zones.items():
            if price is None:
                known.pop(zone, None)
            else:
                known[zone] = price
        if not known:
            del prices[kind]


def _merge_refusals(
    found: Iterable[tuple[datetime, OfferingRefusal]],
) -> Iterator[tuple[datetime, datetime, str]]:
    """Yield periods that do not overlap; a complete batch repeats ongoing refusals."""
    merged: list[tuple[datetime, datetime, str]] = []
    for at, refusal in sorted(found, key=lambda pair: pair[0]):
        if merged and at <= merged[-1][1]:
            since, until, code = merged[-1]
            merged[-1] = (since, max(until, refusal.until), code)
        else:
            merged.append((at, refusal.until, refusal.code))
    yield from merged


class MarketSummary(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """What a trace has of the market.

    ``priced`` are the spot offerings with a price, ``price_changes`` how often one changed, and
    ``largest_rise_percent`` and ``largest_fall_percent`` by how much at most, compared with its
    first price. ``refused`` are the offerings that EC2 refused, for ``refused_hours`` together.
    """

    priced: int
    price_changes: int
    largest_rise_percent: float
    largest_fall_percent: float
    refused: int
    refusals: int
    refused_hours: float


def market_summary(market: MarketTrace) -> MarketSummary:
    """Return the summary of prices and refusals."""
    first: dict[tuple[str, str], float] = {}
    moves, rise, fall = 0, 0.0, 0.0
    for change in market.prices:
        for kind, zones in change.spot_prices.items():
            for zone, price in zones.items():
                known = first.get((kind, zone))
                if price is not None and known is None:
                    first[kind, zone] = price
                    continue
                moves += 1
                if price is not None and known:
                    percent = 100 * (price / known - 1)
                    rise, fall = max(rise, percent), min(fall, percent)
    hours = sum(r.until - r.refused_from for r in market.refusals) / 3600
    return MarketSummary(
        priced=len(first),
        price_changes=moves,
        largest_rise_percent=round(rise, 1),
        largest_fall_percent=round(fall, 1),
        refused=len({(r.instance_type, r.zone, r.capacity_type) for r in market.refusals}),
        refusals=len(market.refusals),
        refused_hours=round(hours, 3),
    )
