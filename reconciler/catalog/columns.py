"""A catalog by column, for operations on all types at once.

Placement converts types into arrays. Creating a thousand ``InstanceType`` objects for that would
cost more than the placement itself. Every source of types can therefore return its columns
directly, and an object is created only for a type that is accessed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Protocol, overload

import msgspec

from reconciler.model.karpenter.instancetype import InstanceType, Offering
from reconciler.model.karpenter.requirements import Requirement

Cells = list[Requirement | None]


class LazyColumns(Mapping[str, Cells]):
    """Columns that are built on access and cached."""

    __slots__ = ("_made", "_makers")

    def __init__(self, makers: Mapping[str, Callable[[], Cells]]) -> None:
        self._makers = makers
        self._made: dict[str, Cells] = {}

    def __getitem__(self, key: str) -> Cells:
        made = self._made.get(key)
        if made is None:
            made = self._made[key] = self._makers[key]()
        return made

    def __contains__(self, key: object) -> bool:
        return key in self._makers

    def __iter__(self) -> Iterator[str]:
        return iter(self._makers)

    def __len__(self) -> int:
        return len(self._makers)


class OfferingColumns(msgspec.Struct, frozen=True):
    """All offerings of all types, by type and then in the type's own order.

    ``type`` is the index of the type. ``special`` holds, by position, the offerings that have more
    requirements than zone, zone id and capacity type (reservations, placement groups, others); the
    columns include them as well.
    """

    type: list[int]
    zone: list[str]
    zone_id: list[str | None]
    capacity_type: list[str]
    price: list[float]
    available: list[bool]
    special: dict[int, Offering]


class Columns(msgspec.Struct, frozen=True):
    """The types by column; position *i* of every list is the type ``names[i]``.

    ``requirements[key][i]`` is None if the type does not define the key. Equal cells are mostly the
    same object, so they can be grouped by ``id``. A column may be built on access, so iterate over
    keys, not items. ``allocatable[resource][i]`` and ``capacity[resource][i]`` are in thousandths,
    0 if the type lacks the resource. ``volume_limits[i]`` is how many EBS volumes of pods can be
    attached, None if that is unknown; it is empty if none is known.
    """

    names: tuple[str, ...]
    requirements: Mapping[str, Cells]
    allocatable: dict[str, list[int]]
    capacity: dict[str, list[int]]
    offerings: OfferingColumns
    volume_limits: tuple[int | None, ...] = ()


class Rows(Protocol):
    """A source of instance types: bundled, read from a file, or derived from another."""

    @property
    def names(self) -> tuple[str, ...]: ...

    def instance_type(self, index: int) -> InstanceType:
        """Return a new object for the type at ``index``; the catalog caches it."""
        ...

    def columns(self) -> Columns:
        """Return the same types by column."""
        ...


def columns_of(types: list[InstanceType]) -> Columns:
    """Return the columns of existing type objects."""
    count = len(types)
    requirements: dict[str, Cells] = {}
    allocatable: dict[str, list[int]] = {}
    capacity: dict[str, list[int]] = {}
    offerings = OfferingColumns([], [], [], [], [], [], {})
    for index, kind in enumerate(types):
        for key, requirement in kind.requirements.items():
            requirements.setdefault(key, [None] * count)[index] = requirement
        for name, amount in kind.allocatable.items():
            allocatable.setdefault(name, [0] * count)[index] = amount
        for name, amount in kind.capacity.items():
            capacity.setdefault(name, [0] * count)[index] = amount
        append_offerings(offerings, index, kind.offerings)
    names, limits = tuple(t.name for t in types), tuple(t.volume_limit for t in types)
    known = limits if any(limit is not None for limit in limits) else ()
    return Columns(names, requirements, allocatable, capacity, offerings, known)


def append_offerings(
    columns: OfferingColumns, index: int, offerings: tuple[Offering, ...] | list[Offering]
) -> None:
    """Add the offerings of the type at ``index``."""
    for offering in offerings:
        if offering.extra or offering.reservation_id:
            columns.special[len(columns.type)] = offering
        columns.type.append(index)
        columns.zone.append(offering.zone)
        columns.zone_id.append(offering.zone_id)
        columns.capacity_type.append(offering.capacity_type)
        columns.price.append(offering.price)
        columns.available.append(offering.available)


class ChosenTypes(Sequence[InstanceType]):
    """Some types of a catalog in a chosen order, each created on access."""

    __slots__ = ("_chosen", "_types")

    def __init__(self, types: Sequence[InstanceType], chosen: Sequence[int]) -> None:
        self._types = types
        self._chosen = tuple(chosen)

    def __len__(self) -> int:
        return len(self._chosen)

    @overload
    def __getitem__(self, index: int) -> InstanceType: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[InstanceType, ...]: ...
    def __getitem__(self, index: int | slice) -> InstanceType | tuple[InstanceType, ...]:
        if isinstance(index, slice):
            return tuple(self._types[i] for i in self._chosen[index])
        return self._types[self._chosen[index]]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and tuple(self) == tuple(other)

    def __hash__(self) -> int:
        return hash(self._chosen)

    def __repr__(self) -> str:
        return f"<{len(self)} instance types>"
