"""Capacity that is paid for already: which new nodes may count on it.

A node that could use a reservation holds a place in every one that it could use, until its
requirements rule one out; so places run out early in a pass, never late (Karpenter
``reservationmanager.go``). In strict mode a pod waits for the next pass rather than take
capacity that costs more.
"""

from __future__ import annotations

from collections.abc import Iterable

from reconciler.catalog.table import TypeTable
from reconciler.model.labels import RESERVED
from reconciler.placement.space import Space

Held = frozenset[str]
NONE_HELD: Held = frozenset()


class Reservations:
    """The places left in each reservation, over all pools that share it."""

    def __init__(self, tables: Iterable[TypeTable], *, enabled: bool, strict: bool) -> None:
        self._left: dict[str, int] = {}
        self._strict = strict
        for table in tables if enabled else ():
            for name, capacity in table.reservations.items():
                self._left[name] = min(self._left.get(name, capacity), capacity)
        self.exist = bool(self._left)

    def reservable(self, held: Held, space: Space, mask: int) -> Held | None:
        """Return the reservations that a node of ``space`` and ``mask`` would hold.

        None means that the pod should wait: there are reservations it could use, all taken, or
        the node would lose the last one that it holds.
        """
        compatible = False
        names = set()
        for offering in space.offers:
            name = offering.reservation_id
            if name is None or offering.capacity_type != RESERVED or not offering.mask & mask:
                continue
            compatible = True
            if name in held or self._left.get(name, 0) > 0:
                names.add(name)
        if self._strict and not names and (compatible or held):
            return None
        return frozenset(names)

    def hold(self, held: Held, now: Held) -> None:
        """Take the places that are new in ``now`` and give back those that are no longer."""
        for name in now - held:
            self._left[name] -= 1
            assert self._left[name] >= 0, f"reservation {name} is held too often"
        for name in held - now:
            self._left[name] += 1
