"""Read a catalog file: JSON as described in the project's ``contract/catalog.md``.

The whole file is decoded and validated when it is read, so an invalid one is rejected before
planning. Quantities and requirements are converted to model values when a type is accessed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from hashlib import sha256
from typing import Annotated, Final

import msgspec

from reconciler.catalog.catalog import Catalog
from reconciler.catalog.columns import Columns, OfferingColumns, append_offerings
from reconciler.model.decode import describe_mismatch
from reconciler.model.errors import UnreadableError
from reconciler.model.karpenter.instancetype import InstanceType, Offering
from reconciler.model.karpenter.labels import (
    CAPACITY_TYPE,
    RESERVATION_ID,
    WELL_KNOWN,
    ZONE,
    ZONE_ID,
)
from reconciler.model.karpenter.requirements import Operator, Requirement, Requirements, requirement
from reconciler.model.kubernetes.devices import DeviceTemplate
from reconciler.model.resources import HUGEPAGES, MEMORY, Resources, parse_quantity
from reconciler.model.text.quoting import quote_value

Quantities = dict[str, str | int | float]
Price = Annotated[float, msgspec.Meta(ge=0)]
Name = Annotated[str, msgspec.Meta(min_length=1, max_length=253)]

_REMEDY: Final = "the documentation of --catalog describes the format"


class _Requirement(msgspec.Struct, frozen=True, gc=False, forbid_unknown_fields=True):
    key: Name
    operator: Operator
    values: tuple[str, ...] = ()


class _Offering(msgspec.Struct, frozen=True, gc=False, rename="camel", forbid_unknown_fields=True):
    zone: str
    capacity_type: Name
    price: Price
    available: bool = True
    zone_id: str | None = None
    reservation_id: str | None = None
    reservation_capacity: int | None = None
    requirements: tuple[_Requirement, ...] = ()


class _Type(msgspec.Struct, frozen=True, gc=False, forbid_unknown_fields=True):
    name: Name
    capacity: Quantities = {}
    overhead: Quantities = {}
    requirements: tuple[_Requirement, ...] = ()
    offerings: tuple[_Offering, ...] = ()
    devices: tuple[DeviceTemplate, ...] = ()


_DECODER: Final = msgspec.json.Decoder(tuple[_Type, ...])


def read_catalog(content: bytes, source: str) -> Catalog:
    """Return the catalog in a file; ``source`` names the file.

    Raises:
        UnreadableError: the content is not a catalog; the message has the position and the reason.
    """
    types = _decode(content, source)
    try:
        _check_types(types)
    except ValueError as error:
        raise UnreadableError(str(error), where=source, remedy=_REMEDY) from None
    digest = sha256(content).hexdigest()
    return Catalog(
        FileRows(types),
        version=digest[:12],
        digest=digest,
        source=source,
        well_known=WELL_KNOWN | _label_keys(types),
        notes=tuple(_duplicate_notes(types)),
    )


def _decode(content: bytes, source: str) -> tuple[_Type, ...]:
    try:
        return _DECODER.decode(content)
    except msgspec.ValidationError as error:
        raise UnreadableError(
            f"not a catalog: {describe_mismatch(error)}", where=source, remedy=_REMEDY
        ) from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        place = f"{source}:{_position(content, str(error))}"
        raise UnreadableError(f"not JSON: {error}", where=place, remedy=_REMEDY) from None
    except RecursionError:
        raise UnreadableError("not a catalog: nested too deeply", where=source) from None


def _position(content: bytes, message: str) -> str:
    """Return line:column of the byte offset in a decoding error, or the end if it has none."""
    digits = message.rpartition("(byte ")[2].rstrip(")")
    offset = min(int(digits), len(content)) if digits.isdigit() else len(content)
    before = content[:offset]
    line, column = before.count(b"\n") + 1, offset - before.rfind(b"\n")
    return f"{line}:{column}"


def _check_types(types: Iterable[_Type]) -> None:
    """Check what the field types cannot express.

    Raises:
        ValueError: the message begins with the path of the value.
    """
    for index, kind in enumerate(types):
        path = f"$[{index}]"
        _check_quantities(kind.capacity, f"{path}.capacity")
        _check_quantities(kind.overhead, f"{path}.overhead")
        _check_requirements(kind.requirements, f"{path}.requirements")
        for number, offering in enumerate(kind.offerings):
            if offering.requirements:
                place = f"{path}.offerings[{number}].requirements"
                _check_requirements(offering.requirements, place)


def _duplicate_notes(types: Iterable[_Type]) -> list[str]:
    """Return a note for each duplicate name, which Karpenter's providers allow."""
    counts = Counter(kind.name for kind in types)
    return [
        f"the instance type {quote_value(name)} is listed {count} times; the first entry is used"
        for name, count in counts.items()
        if count > 1
    ]


def _check_quantities(texts: Quantities, path: str) -> None:
    for name, text in texts.items():
        try:
            amount = _parse_amount(text)
        except ValueError as error:
            raise ValueError(f"{path}.{name}: {error}") from None
        if amount < 0:
            raise ValueError(f"{path}.{name}: a quantity cannot be negative: {quote_value(text)}")


def _check_requirements(items: tuple[_Requirement, ...], path: str) -> None:
    for index, item in enumerate(items):
        if item.operator is Operator.IN or item.operator is Operator.DOES_NOT_EXIST:
            continue
        try:
            requirement(item.key, item.operator, item.values)
        except ValueError as error:
            raise ValueError(f"{path}[{index}].values: {error}") from None


def _parse_amount(text: str | float) -> int:
    return parse_quantity(text if isinstance(text, str) else repr(text))


def _label_keys(types: Iterable[_Type]) -> set[str]:
    """Return every label key of a type or an offering."""
    keys = {r.key for kind in types for r in kind.requirements}
    for kind in types:
        for offering in kind.offerings:
            keys.update(r.key for r in offering.requirements)
            if offering.zone_id:
                keys.add(ZONE_ID)
            if offering.reservation_id:
                keys.add(RESERVATION_ID)
    return keys


class FileRows:
    """The types of a file, in its order."""

    def __init__(self, types: tuple[_Type, ...]) -> None:
        self._types = types
        self.names: tuple[str, ...] = tuple(kind.name for kind in types)

    def instance_type(self, index: int) -> InstanceType:
        kind = self._types[index]
        return InstanceType(
            name=kind.name,
            capacity=_resources(kind.capacity),
            overhead=_resources(kind.overhead),
            requirements=Requirements(_requirements(kind)),
            offerings=tuple(map(_offering, kind.offerings)),
            devices=kind.devices,
        )

    def columns(self) -> Columns:
        """Return the types by column."""
        count = len(self._types)
        requirements: dict[str, list[Requirement | None]] = {}
        allocatable: dict[str, list[int]] = {}
        capacity: dict[str, list[int]] = {}
        offerings = OfferingColumns([], [], [], [], [], [], {})
        for index, kind in enumerate(self._types):
            for item in _requirements(kind):
                column = requirements.get(item.key)
                if column is None:
                    column = requirements[item.key] = [None] * count
                known = column[index]
                column[index] = item if known is None else item.intersection(known)
            for name, amount in _allocatable(kind).items():
                _set_cell(allocatable, name, index, amount, count)
            for name, amount in _resources(kind.capacity).items():
                _set_cell(capacity, name, index, amount, count)
            for offering in kind.offerings:
                _append_offering(offerings, index, offering)
        return Columns(self.names, requirements, allocatable, capacity, offerings)


def _set_cell(
    columns: dict[str, list[int]], name: str, index: int, amount: int, count: int
) -> None:
    column = columns.get(name)
    if column is None:
        column = columns[name] = [0] * count
    column[index] = amount


def _append_offering(columns: OfferingColumns, index: int, offering: _Offering) -> None:
    if offering.requirements or offering.reservation_id:
        append_offerings(columns, index, (_offering(offering),))
        return
    columns.type.append(index)
    columns.zone.append(offering.zone)
    columns.zone_id.append(offering.zone_id)
    columns.capacity_type.append(offering.capacity_type)
    columns.price.append(offering.price)
    columns.available.append(offering.available)


def _resources(texts: Quantities) -> Resources:
    return {name: _parse_amount(text) for name, text in texts.items()}


def _allocatable(kind: _Type) -> Resources:
    overhead = kind.overhead
    amounts = {
        name: _parse_amount(text) - (_parse_amount(overhead[name]) if name in overhead else 0)
        for name, text in kind.capacity.items()
    }
    pages = sum(_parse_amount(v) for name, v in kind.capacity.items() if name.startswith(HUGEPAGES))
    if pages and MEMORY in amounts:
        amounts[MEMORY] = max(amounts[MEMORY] - pages, 0)
    return amounts


def _requirements(kind: _Type) -> Iterator[Requirement]:
    """Yield the type's requirements; zone and capacity type default to its offerings'."""
    keys = set()
    for item in kind.requirements:
        keys.add(item.key)
        yield requirement(item.key, item.operator, item.values)
    if ZONE not in keys:
        zones = sorted({offering.zone for offering in kind.offerings})
        yield requirement(ZONE, Operator.IN, zones)
    if CAPACITY_TYPE not in keys:
        names = sorted({offering.capacity_type for offering in kind.offerings})
        yield requirement(CAPACITY_TYPE, Operator.IN, names)


def _offering(item: _Offering) -> Offering:
    return Offering(
        zone=item.zone,
        capacity_type=item.capacity_type,
        price=item.price,
        available=item.available,
        zone_id=item.zone_id,
        reservation_id=item.reservation_id,
        reservation_capacity=item.reservation_capacity,
        extra=tuple(requirement(r.key, r.operator, r.values) for r in item.requirements),
    )
