"""Prices that override the bundled ones: quotes from AWS, lock files, and the price book.

Each list is either complete or absent. If a complete list does not contain a price, on-demand falls
back to the bundled one, and a spot offering is not available until it is quoted (Karpenter,
provider ``pkg/providers/pricing``).

No public file contains spot prices, and a plan without them would never choose spot. Prices that
have not been measured are therefore estimated deterministically, and marked as estimates wherever
they appear:

spot = on-demand × share(category) × (1 + spread(type, zone)),  in steps of 0.0001 USD

``share`` is the long-term market average: lower for burstable and older general-purpose types,
higher for accelerators, which are scarce. ``spread``, between −10 % and +9.4 %, models the
differences between zones; it is derived from the checksum of the type's name and the letter of the
zone. An estimate is always below the on-demand price.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from hashlib import sha256
from typing import Final
from zlib import crc32

import msgspec

from reconciler.model.billing import PriceBook
from reconciler.model.karpenter.instancetype import PriceOrigin
from reconciler.model.karpenter.labels import ON_DEMAND, SPOT

_SHARES: Final = {
    "t": 0.34,
    "m": 0.38,
    "c": 0.40,
    "r": 0.36,
    "a": 0.40,
    "i": 0.38,
    "d": 0.40,
    "h": 0.40,
    "x": 0.36,
    "u": 0.50,
    "z": 0.40,
    "hpc": 0.60,
    "g": 0.48,
    "gr": 0.48,
    "p": 0.55,
    "f": 0.50,
    "inf": 0.45,
    "trn": 0.50,
    "dl": 0.50,
    "vt": 0.45,
}
_SHARE: Final = 0.42
_STEPS: Final = 32
_FACTORS: Final = tuple(1 + 0.1 * (step * 2 - _STEPS) / _STEPS for step in range(_STEPS))
_PRICE_MIN: Final = 0.0001

ESTIMATE: Final = PriceOrigin("estimate")


def spot_prices(
    name: str, category: str | None, on_demand: float, zones: tuple[str, ...]
) -> list[float]:
    """Return the estimate for each zone, in USD an hour."""
    share = on_demand * _SHARES.get(category or "", _SHARE)
    seed = crc32(name.encode())
    prices = [round(share * _FACTORS[(seed >> bits) % _STEPS], 4) for bits in _shifts(zones)]
    return prices if share > 2 * _PRICE_MIN else [max(price, _PRICE_MIN) for price in prices]


@cache
def _shifts(zones: tuple[str, ...]) -> tuple[int, ...]:
    """Return the bit shift of the checksum for each zone, by the last letter of its name."""
    return tuple((ord(zone[-1]) - ord("a")) % 28 for zone in zones)


class OnDemandQuotes(msgspec.Struct, frozen=True):
    """On-demand prices by instance type, USD an hour."""

    prices: Mapping[str, float]
    origin: PriceOrigin


class SpotQuotes(msgspec.Struct, frozen=True):
    """Spot prices by instance type and zone, USD an hour.

    With ``covers_all``, a type that is missing has no price; otherwise it is estimated.
    """

    prices: Mapping[str, Mapping[str, float]]
    origin: PriceOrigin
    covers_all: bool = True


class Pricing(msgspec.Struct, frozen=True):
    """How the offerings of a region are priced; by default from the bundle."""

    on_demand: OnDemandQuotes | None = None
    spot: SpotQuotes | None = None
    book: PriceBook | None = None

    def __bool__(self) -> bool:
        return self.on_demand is not None or self.spot is not None or bool(self.book)

    @property
    def digest(self) -> str:
        """A digest that distinguishes prices, but not when they were read."""
        parts: list[object] = [self.book]
        if self.on_demand is not None:
            parts += [self.on_demand.origin.source, sorted(self.on_demand.prices.items())]
        if self.spot is not None:
            rows = sorted((n, sorted(z.items())) for n, z in self.spot.prices.items())
            parts += [self.spot.origin.source, rows]
        return sha256(repr(parts).encode()).hexdigest()


class QuotedPrice(msgspec.Struct, frozen=True):
    """A price in USD an hour, or None if it is unknown, and its source."""

    amount: float | None
    origin: PriceOrigin

    @property
    def is_estimate(self) -> bool:
        """Whether it was neither quoted nor contractually agreed."""
        return "estimate" in (self.origin.source, self.origin.basis)


class Pricer:
    """Prices the offerings of one region."""

    def __init__(self, region: str, pricing: Pricing) -> None:
        self._region = region
        self._pricing = pricing

    def public_on_demand(self, name: str, bundled: float | None) -> float | None:
        """Return the on-demand price without the price book: the quoted or else the bundled one."""
        quotes = self._pricing.on_demand
        return bundled if quotes is None else quotes.prices.get(name, bundled)

    def on_demand(self, name: str, bundled: QuotedPrice) -> QuotedPrice:
        """Return the on-demand price of a type."""
        quotes = self._pricing.on_demand
        quoted = quotes is not None and name in quotes.prices
        origin = quotes.origin if quotes is not None and quoted else bundled.origin
        return self._apply_price_book(
            name, ON_DEMAND, QuotedPrice(self.public_on_demand(name, bundled.amount), origin)
        )

    def spot(
        self, name: str, category: str | None, bundled: float | None, zones: tuple[str, ...]
    ) -> Sequence[QuotedPrice]:
        """Return the spot price of a type in each of the zones."""
        quotes = self._pricing.spot
        if quotes is not None and (quotes.covers_all or name in quotes.prices):
            quoted = quotes.prices.get(name, {})
            found = [QuotedPrice(quoted.get(zone), quotes.origin) for zone in zones]
        else:
            public = self.public_on_demand(name, bundled)
            amounts: Sequence[float | None] = [None] * len(zones)
            if public is not None:
                amounts = spot_prices(name, category, public, zones)
            found = [QuotedPrice(amount, ESTIMATE) for amount in amounts]
        return [self._apply_price_book(name, SPOT, price) for price in found]

    def estimates(
        self, name: str, category: str | None, bundled: float | None, zones: tuple[str, ...]
    ) -> Sequence[float]:
        """Return estimates for running spot nodes whose price is not quoted."""
        public = self.public_on_demand(name, bundled)
        if public is None:
            return [0.0] * len(zones)
        return spot_prices(name, category, public, zones)

    def _apply_price_book(self, name: str, capacity_type: str, price: QuotedPrice) -> QuotedPrice:
        book = self._pricing.book
        if book is None:
            return price
        amount = book.price(name, self._region, capacity_type, price.amount)
        if amount == price.amount:
            return price
        if price.amount is None or book.is_fixed(name, self._region, capacity_type):
            return QuotedPrice(amount, PriceOrigin("book"))
        return QuotedPrice(amount, PriceOrigin("book", price.origin.at, price.origin.source))
