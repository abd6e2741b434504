"""What spot capacity probably costs, where nobody has measured it.

No public file holds spot prices, and a plan without them would never choose spot. So they are
estimated, the same each time, and marked as estimates wherever they appear:

    spot = on-demand × share(category) × (1 + spread(type, zone)),  in steps of 0.0001 USD

``share`` is what the market has paid in the long run: less for burstable and old general types,
more for accelerators, which are scarce. ``spread``, between −10 % and +9.4 %, stands for the
zones differing, as they do; it is drawn from the checksum of the type's name and the letter of
the zone. An estimate is always below the on-demand price.
"""

from __future__ import annotations

from functools import cache
from typing import Final
from zlib import crc32

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
_LEAST: Final = 0.0001


def spot_prices(
    name: str, category: str | None, on_demand: float, zones: tuple[str, ...]
) -> list[float]:
    """Return the estimate for each zone, in USD an hour."""
    share = on_demand * _SHARES.get(category or "", _SHARE)
    seed = crc32(name.encode())
    prices = [round(share * _FACTORS[(seed >> bits) % _STEPS], 4) for bits in _shifts(zones)]
    return prices if share > 2 * _LEAST else [max(price, _LEAST) for price in prices]


@cache
def _shifts(zones: tuple[str, ...]) -> tuple[int, ...]:
    """Return for each zone how far to shift the checksum: by the last letter of its name."""
    return tuple((ord(zone[-1]) - ord("a")) % 28 for zone in zones)
