"""A catalog as bit tables, for finding matching types many thousand times.

Type *i* of a catalog is bit *i* of an integer, so a set of types is one integer and an intersection
is one ``&``. For each label the types are indexed by value. For each resource the allocatable
amounts are sorted, each with the types that have at least that much. Offerings with the same
requirements form one class with the types that have it. Tables are built when a key is first used:
most labels never are.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property, lru_cache
from itertools import compress
from typing import Final, Protocol

from reconciler.catalog.columns import ChosenTypes, Columns, columns_of
from reconciler.model.karpenter.instancetype import InstanceType, Offering
from reconciler.model.karpenter.labels import CAPACITY_TYPE, RESERVATION_ID, RESERVED, SPOT, ZONE
from reconciler.model.karpenter.requirements import Requirement, Requirements, requirement
from reconciler.model.resources import Resources, maximum_resources

_INFINITY = float("inf")
_ANSWERS_MAX = 4096
"""The maximum number of answers of one kind that a table keeps."""
_DENSE: Final = 5
"""If more than one of this number of positions is set, visiting each is faster than searching."""
_FLAGS: Final = bytes.maketrans(b"01", b"\0\1")

_LAST_PRICE: Final = 1e9
"""The price of a full reservation in USD an hour: any other offering is chosen before it."""


class TypeSource(Protocol):
    """The parts of a catalog that tables need; one that also has ``columns`` is read faster."""

    @property
    def types(self) -> Sequence[InstanceType]: ...

    @property
    def well_known(self) -> frozenset[str]: ...


def bits(indices: Iterable[int]) -> int:
    """Return the set of ``indices`` as an integer."""
    mask = 0
    for index in indices:
        mask |= 1 << index
    return mask


def mask_of_flags(flags: Iterable[bool]) -> int:
    """Return the set of the positions at which ``flags`` is true."""
    return int("".join(["1" if flag else "0" for flag in flags])[::-1] or "0", 2)


def union_of(masks: Iterable[int]) -> int:
    """Return the members of any of these sets."""
    found = 0
    for mask in masks:
        found |= mask
    return found


def indices(mask: int) -> list[int]:
    """Return the members of a set of bits, in order."""
    if mask.bit_count() * _DENSE <= mask.bit_length():
        return list(iterate_members(mask))
    digits = f"{mask:b}"[::-1].encode()
    return list(compress(range(len(digits)), digits.translate(_FLAGS)))


def iterate_members(mask: int) -> Iterator[int]:
    """Yield the members of a set of bits in order, for callers that may need only the first."""
    digits = f"{mask:b}"[::-1]
    at = digits.find("1")
    while at >= 0:
        yield at
        at = digits.find("1", at + 1)


class OfferingClass:
    """Offerings with the same requirements, and the types that have one available.

    ``prices`` is the lowest price of each type that has one, by its index.
    """

    __slots__ = ("capacity_type", "mask", "prices", "requirements", "reservation_id")

    def __init__(self, model: Offering, prices: dict[int, float]) -> None:
        self.requirements = model.requirements
        self.capacity_type = model.capacity_type
        self.reservation_id = model.reservation_id
        self.prices = prices
        self.mask = bits(prices)


class _Label:
    """The types by value of one label; ``undefined`` types do not define it."""

    __slots__ = ("complements", "never", "undefined", "values")

    def __init__(self, cells: Sequence[Requirement | None]) -> None:
        groups: dict[Requirement | None, list[int]] = {}
        by_id: dict[int, list[int]] = {}
        for index, cell in enumerate(cells):
            members = by_id.get(id(cell))
            if members is None:
                members = by_id[id(cell)] = groups.setdefault(cell, [])
            members.append(index)
        self.undefined = bits(groups.pop(None, ()))
        self.never = 0
        self.values: dict[str, int] = {}
        self.complements: list[tuple[Requirement, int]] = []
        for cell, members in groups.items():
            assert cell is not None
            mask = bits(members)
            if cell.complement:
                self.complements.append((cell, mask))
            elif cell.values:
                for value in cell.values:
                    self.values[value] = self.values.get(value, 0) | mask
            else:
                self.never |= mask

    def types_matching(self, wanted: Requirement) -> int:
        mask = self.undefined
        if wanted.complement:
            for value, types in self.values.items():
                if wanted.has(value):
                    mask |= types
        else:
            for value in wanted.values:
                mask |= self.values.get(value, 0)
        if wanted.is_negative:
            mask |= self.never
        for cell, types in self.complements:
            if cell.has_intersection(wanted) or (cell.is_negative and wanted.is_negative):
                mask |= types
        return mask


class _Amounts:
    """For one resource, the types that have at least a given amount of it."""

    __slots__ = ("masks", "thresholds")

    def __init__(self, amounts: Sequence[int]) -> None:
        by_amount: dict[int, list[int]] = {}
        for index, amount in enumerate(amounts):
            by_amount.setdefault(amount, []).append(index)
        self.thresholds = sorted(by_amount)
        masks = [0]
        for amount in reversed(self.thresholds):
            masks.append(masks[-1] | bits(by_amount[amount]))
        self.masks = masks[::-1]

    def at_least(self, amount: int) -> int:
        return self.masks[bisect_left(self.thresholds, amount)]

    def at_most(self, amount: int) -> int:
        return self.masks[0] ^ self.at_least(amount + 1)

    def largest(self, mask: int) -> int:
        """Return the largest amount of any type in ``mask``; ``mask`` is not empty."""
        low, high = 0, len(self.thresholds) - 1
        while low < high:
            middle = (low + high + 1) // 2
            if self.masks[middle] & mask:
                low = middle
            else:
                high = middle - 1
        return self.thresholds[low]


class TypeTable:
    """The types of one catalog as bits; a value that is built once and used often.

    ``usable`` are the types on which anything can fit: none of their amounts is negative.
    """

    def __init__(self, source: TypeSource) -> None:
        columns: Columns | None = getattr(source, "columns", None)
        self.types = source.types
        self._columns = columns if columns is not None else columns_of(list(source.types))
        self.names = self._columns.names
        self.well_known = source.well_known
        self.all = (1 << len(self.names)) - 1
        self._labels: dict[str, _Label | None] = {}
        self._matching: dict[Requirement, int] = {}
        self._allocatable: dict[str, _Amounts | None] = {}
        self._capacity: dict[str, _Amounts] = {}
        self._attaching: dict[int, int] = {}
        self._offers: dict[tuple[Requirement | None, ...], tuple[OfferingClass, ...]] = {}
        self._orders: dict[tuple[OfferingClass, ...], list[int]] = {}
        self._prices: dict[tuple[OfferingClass, ...], dict[int, float]] = {}
        self._ascending: dict[
            tuple[tuple[OfferingClass, ...], bool], tuple[list[float], list[int]]
        ] = {}
        self._cheapest: dict[tuple[tuple[OfferingClass, ...], int], float] = {}
        self._first: dict[tuple[tuple[OfferingClass, ...], int, int], tuple[int, ...]] = {}

    def __len__(self) -> int:
        return len(self.names)

    def select_types(self, order: Sequence[int]) -> ChosenTypes:
        """Return the types of these bits, in this order."""
        return ChosenTypes(self.types, order)

    @cached_property
    def usable(self) -> int:
        broken = 0
        for amounts in self._columns.allocatable.values():
            if min(amounts, default=0) < 0:
                broken |= bits(i for i, amount in enumerate(amounts) if amount < 0)
        return self.all & ~broken

    # labels

    @property
    def keys(self) -> Iterable[str]:
        """The label keys that types define; zone and capacity type always."""
        return {**self._columns.requirements, ZONE: None, CAPACITY_TYPE: None}

    def _label(self, key: str) -> _Label | None:
        if key not in self._labels:
            cells = self._columns.requirements.get(key)
            if cells is None and key in (ZONE, CAPACITY_TYPE):
                cells = self._offering_values(key)
            self._labels[key] = None if cells is None else _Label(cells)
        return self._labels[key]

    def _offering_values(self, key: str) -> list[Requirement | None]:
        """Return the requirement that a type's available offerings imply."""
        offerings = self._columns.offerings
        column = offerings.zone if key == ZONE else offerings.capacity_type
        values: list[set[str]] = [set() for _ in self.names]
        for index, value, available in zip(
            offerings.type, column, offerings.available, strict=True
        ):
            if available:
                values[index].add(value)
        return [requirement(key, "In", tuple(sorted(v))) for v in values]

    def types_matching(self, wanted: Requirement) -> int:
        """Return the types whose own requirement on the key meets ``wanted``, or is missing."""
        mask = self._matching.get(wanted)
        if mask is None:
            label = self._label(wanted.key)
            mask = self.all if label is None else label.types_matching(wanted)
            self._matching[wanted] = mask
        return mask

    def types_meeting(self, requirements: Mapping[str, Requirement]) -> int:
        """Return the types that no requirement excludes."""
        mask = self.all
        for wanted in requirements.values():
            mask &= self.types_matching(wanted)
        return mask

    def values(self, key: str) -> Mapping[str, int]:
        """Return the types by value of a label; types with a complement are not included."""
        label = self._label(key)
        return {} if label is None else label.values

    # resources

    def types_with_at_least(self, resource: str, amount: int) -> int:
        """Return the types whose allocatable ``resource`` is at least ``amount``."""
        if resource not in self._allocatable:
            column = self._columns.allocatable.get(resource)
            self._allocatable[resource] = None if column is None else _Amounts(column)
        amounts = self._allocatable[resource]
        if amounts is None:
            return self.all if amount <= 0 else 0
        return amounts.masks[bisect_left(amounts.thresholds, amount)]

    def types_attaching(self, volumes: int) -> int:
        """Return the types to which this many EBS volumes of pods can be attached."""
        known = self._attaching.get(volumes)
        if known is None:
            limits = self._columns.volume_limits
            short = (i for i, most in enumerate(limits) if most is not None and most < volumes)
            known = self._attaching[volumes] = self.all & ~bits(short)
        return known

    def volume_limit(self, mask: int) -> int | None:
        """Return how many volumes can be attached to every type of ``mask``, None if unknown."""
        limits = self._columns.volume_limits
        known = (limits[i] for i in indices(mask)) if limits else ()
        return min((most for most in known if most is not None), default=None)

    def fitting_types(self, requests: Mapping[str, int]) -> int:
        """Return the usable types that offer ``requests``."""
        mask = self.usable
        for resource, amount in requests.items():
            mask &= self.types_with_at_least(resource, amount)
        return mask

    def most_allocatable(self, resource: str, mask: int) -> int:
        """Return the most allocatable ``resource`` of any type in ``mask``, 0 if there is none."""
        self.types_with_at_least(resource, 0)
        amounts = self._allocatable[resource]
        return amounts.largest(mask) if amounts is not None and mask else 0

    def allocatable(self, resource: str) -> Sequence[int]:
        """Return the allocatable ``resource`` of each type, 0 if it does not define it."""
        column = self._columns.allocatable.get(resource)
        return column if column is not None else [0] * len(self.names)

    def _capacities(self, resource: str) -> _Amounts:
        amounts = self._capacity.get(resource)
        if amounts is None:
            column = self._columns.capacity.get(resource)
            amounts = _Amounts(column if column is not None else [0] * len(self.types))
            self._capacity[resource] = amounts
        return amounts

    def capacity_at_most(self, resource: str, amount: int) -> int:
        """Return the types whose ``resource`` capacity is at most ``amount``."""
        return self._capacities(resource).at_most(amount)

    def most_capacity(self, resource: str, mask: int) -> int:
        """Return the largest ``resource`` capacity of any type in ``mask``."""
        return self._capacities(resource).largest(mask) if mask else 0

    def largest_capacity(self, mask: int) -> Resources:
        """Return the largest capacity of each resource among the types in ``mask``."""
        return maximum_resources(self.types[i].capacity for i in indices(mask))

    def least_allocatable(self, mask: int) -> Resources:
        """Return the smallest allocatable amount of each resource among the types in ``mask``."""
        rows = indices(mask)
        return {
            name: min(column[i] for i in rows) for name, column in self._columns.allocatable.items()
        }

    # offerings

    @cached_property
    def offering_classes(self) -> tuple[OfferingClass, ...]:
        """The classes of available offerings, in the order in which they first occur."""
        found: dict[object, tuple[Offering, dict[int, float]]] = {}
        columns = self._columns.offerings
        special = columns.special
        rows = zip(
            columns.type,
            columns.zone,
            columns.zone_id,
            columns.capacity_type,
            columns.price,
            columns.available,
            strict=True,
        )
        for position, (index, zone, zone_id, capacity_type, price, available) in enumerate(rows):
            if not available:
                continue
            key: object = (zone, zone_id, capacity_type)
            if position in special:
                key = special[position].requirements
            known = found.get(key)
            if known is None:
                model = special.get(position)
                model = model or Offering(zone, capacity_type, price, zone_id=zone_id)
                known = found[key] = (model, {})
            prices = known[1]
            if position in special and not special[position].is_launchable:
                price = _LAST_PRICE
            if index not in prices or price < prices[index]:
                prices[index] = price
        return tuple(OfferingClass(model, prices) for model, prices in found.values())

    @cached_property
    def _offered_unavailably(self) -> int:
        columns = self._columns.offerings
        return bits(i for i, good in zip(columns.type, columns.available, strict=True) if not good)

    def types_offered_unavailably(self, mask: int) -> int:
        """Return the types of ``mask`` with an offering that is not available at the moment."""
        return mask & self._offered_unavailably

    @cached_property
    def offering_keys(self) -> tuple[str, ...]:
        """The label keys that offerings define."""
        return tuple(sorted({key for c in self.offering_classes for key in c.requirements}))

    @cached_property
    def reservations(self) -> dict[str, int]:
        """The remaining instances of each reservation: the lowest number that an offering has."""
        left: dict[str, int] = {}
        for offering in self._columns.offerings.special.values():
            name = offering.reservation_id
            if name is not None and offering.capacity_type == RESERVED:
                capacity = offering.reservation_capacity or 0
                left[name] = min(left.get(name, capacity), capacity)
        return left

    @cached_property
    def reservation_key(self) -> str:
        """The label that identifies a node's reservation."""
        for c in self.offering_classes:
            for key, item in c.requirements.items():
                if key != RESERVATION_ID and item.values == frozenset({c.reservation_id}):
                    return key
        return RESERVATION_ID

    def offers(self, requirements: Requirements) -> tuple[OfferingClass, ...]:
        """Return the classes of offerings that a claim with these requirements may use."""
        key = tuple(requirements.get(k) for k in self.offering_keys)
        known = self._offers.get(key)
        if known is None:
            known = tuple(
                c for c in self.offering_classes if requirements.intersects(c.requirements)
            )
            self._offers[key] = known
        return known

    def cheapest_price(self, offers: tuple[OfferingClass, ...], mask: int) -> float:
        """Return the lowest price of any type in ``mask`` among ``offers``, or infinity."""
        known = self._cheapest.get((offers, mask))
        if known is None:
            if len(self._cheapest) >= _ANSWERS_MAX:
                self._cheapest.clear()
            first = next((i for i in self.order_by_price(offers) if mask >> i & 1), None)
            known = self.prices(offers).get(first, _INFINITY) if first is not None else _INFINITY
            self._cheapest[offers, mask] = known
        return known

    def cheapest_types(
        self, offers: tuple[OfferingClass, ...], mask: int, limit: int
    ) -> tuple[int, ...]:
        """Return at most ``limit`` types of ``mask``, the cheapest among ``offers`` first."""
        known = self._first.get((offers, mask, limit))
        if known is None:
            if len(self._first) >= _ANSWERS_MAX:
                self._first.clear()
            digits = f"{mask:b}"[::-1]
            count = len(digits)
            order = [i for i in self.order_by_price(offers) if i < count and digits[i] == "1"]
            known = self._first[offers, mask, limit] = tuple(order[:limit])
        return known

    def prices(self, offers: tuple[OfferingClass, ...]) -> Mapping[int, float]:
        """Return the lowest price among ``offers`` of each type that has one, by its index."""
        known = self._prices.get(offers)
        if known is None:
            known = {}
            for offering in offers:
                for index, price in offering.prices.items():
                    if price < known.get(index, _INFINITY):
                        known[index] = price
            self._prices[offers] = known
        return known

    def types_cheaper_than(
        self, offers: tuple[OfferingClass, ...], price: float, *, spot: bool = True
    ) -> int:
        """Return the types with one of these offerings at less than ``price``.

        Spot counts only if asked.
        """
        known = self._ascending.get((offers, spot))
        if known is None:
            known = [], [0]
            counted = tuple(o for o in offers if spot or o.capacity_type != SPOT)
            for index, amount in sorted(self.prices(counted).items(), key=lambda row: row[1]):
                known[0].append(amount)
                known[1].append(known[1][-1] | 1 << index)
            self._ascending[offers, spot] = known
        prices, masks = known
        return masks[bisect_left(prices, price)]

    def order_by_price(self, offers: tuple[OfferingClass, ...]) -> list[int]:
        """Return all types by their cheapest offering among ``offers``, ties by name.

        Types without an offering come last.
        """
        order = self._orders.get(offers)
        if order is None:
            prices = self.prices(offers)
            order = sorted(
                range(len(self.names)), key=lambda i: (prices.get(i, _INFINITY), self.names[i], i)
            )
            self._orders[offers] = order
        return order


@lru_cache(maxsize=16)
def table_of(source: TypeSource) -> TypeTable:
    """Return the table of a catalog; the same object is reused."""
    return TypeTable(source)
