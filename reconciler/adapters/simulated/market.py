"""Which offering a simulated EC2 launches: what has capacity, and what its strategy prefers.

moto always uses the first override; AWS chooses by the allocation strategy, skips
pools without capacity, and names them in the answer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final

Prices = Callable[[str, str, str], float | None]
"""USD an hour of (instance type, zone, capacity type); None if it is not sold."""

ANY: Final = "*"
NO_CAPACITY: Final = "InsufficientInstanceCapacity"
_PRIORITIZED: Final = ("prioritized", "capacity-optimized-prioritized")


@dataclass(frozen=True, slots=True)
class Override:
    """One way to fulfil a fleet, and its position in the request."""

    config: int
    position: int
    instance_type: str
    zone: str
    subnet: str = ""
    image: str = ""
    priority: float | None = None
    reservation: str = ""


@dataclass(frozen=True, slots=True)
class Shortage:
    """The reason why EC2 rejected an override."""

    override: Override
    code: str
    message: str


class CapacityMarket:
    """The pools that have capacity, and their prices."""

    def __init__(self, prices: Prices | None = None) -> None:
        self._prices = prices
        self._refused: dict[tuple[str, str, str], str] = {}
        self._stock: dict[tuple[str, str, str], int] = {}

    def limit(self, instance_type: str, zone: str, capacity_type: str, left: int) -> None:
        """Limit a pool to this number of instances; 0 means none."""
        self._stock[instance_type, zone, capacity_type] = left

    def stock(self, override: Override, capacity_type: str) -> int | None:
        """Return how many instances the pool of an override has, None without a limit."""
        return self._stock.get((override.instance_type, override.zone, capacity_type))

    def take(self, override: Override, capacity_type: str, count: int) -> None:
        """Record that instances of a pool were launched."""
        pool = (override.instance_type, override.zone, capacity_type)
        if pool in self._stock:
            self._stock[pool] -= count

    def refuse(
        self,
        instance_type: str = ANY,
        zone: str = ANY,
        capacity_type: str = ANY,
        code: str = NO_CAPACITY,
    ) -> None:
        """Remove the capacity of the pools from now on; ``*`` means all pools."""
        self._refused[instance_type, zone, capacity_type] = code

    def clear(self) -> None:
        """Revoke all refusals and limits."""
        self._refused.clear()
        self._stock.clear()

    def choose(
        self, overrides: Iterable[Override], capacity_type: str, strategy: str
    ) -> tuple[Override | None, list[Shortage]]:
        """Return the override to launch, or None, and those that were tried before it."""
        shortages: list[Shortage] = []
        for override in self._sort_by_preference(overrides, capacity_type, strategy):
            shortage = self._shortage(override, capacity_type)
            if shortage is None:
                return override, shortages
            shortages.append(shortage)
        return None, shortages

    def _sort_by_preference(
        self, overrides: Iterable[Override], capacity_type: str, strategy: str
    ) -> Sequence[Override]:
        """Return the overrides in the order of the strategy, ties in the order of the request.

        Without prices the priority replaces them, because the engine sends the price there.
        """

        def key(o: Override) -> tuple[float, int, int]:
            price = self.price(o.instance_type, o.zone, capacity_type)
            last = float("inf")
            priority = last if o.priority is None else o.priority
            rank = priority if strategy in _PRIORITIZED or price is None else price
            return (rank, o.config, o.position)

        return sorted(overrides, key=key)

    def price(self, instance_type: str, zone: str, capacity_type: str) -> float | None:
        """Return the price in USD an hour, None without an offering or a known price."""
        return None if self._prices is None else self._prices(instance_type, zone, capacity_type)

    def _shortage(self, o: Override, capacity_type: str) -> Shortage | None:
        price = self.price(o.instance_type, o.zone, capacity_type)
        if self._prices is not None and price is None:
            return Shortage(
                o,
                "InvalidFleetConfiguration",
                f"Your requested instance type ({o.instance_type}) is not supported in your "
                f"requested Availability Zone ({o.zone}).",
            )
        if self.stock(o, capacity_type) == 0:
            return Shortage(o, NO_CAPACITY, _shortage_message(NO_CAPACITY, o))
        for kind in (o.instance_type, ANY):
            for zone in (o.zone, ANY):
                for lifecycle in (capacity_type, ANY):
                    code = self._refused.get((kind, zone, lifecycle))
                    if code is not None:
                        return Shortage(o, code, _shortage_message(code, o))
        return None


def _shortage_message(code: str, o: Override) -> str:
    if code == NO_CAPACITY:
        return (
            f"We currently do not have sufficient {o.instance_type} capacity in the Availability "
            f"Zone you requested ({o.zone})."
        )
    return f"{code} for {o.instance_type} in {o.zone}"
