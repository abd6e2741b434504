"""The types of one region resolved for one node class, each created on access.

Values are computed for one type (``instance_type``) or for all types (``columns``) from the same
tables of cells, so both have the same labels; a test verifies this.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache, partial
from typing import Final

from reconciler.catalog.aws import types
from reconciler.catalog.aws.bundle import Bundle
from reconciler.catalog.aws.offerings import OfferingMaker
from reconciler.catalog.aws.prices import Pricer
from reconciler.catalog.aws.types import Label
from reconciler.catalog.classfacts import ClassFacts, Reservation
from reconciler.catalog.columns import Cells, Columns, LazyColumns
from reconciler.model.karpenter.instancetype import InstanceType, PriceOrigin
from reconciler.model.karpenter.labels import (
    CAPACITY_TYPE,
    ON_DEMAND,
    REGION,
    RESERVED,
    SPOT,
    ZONE,
    ZONE_ID,
)
from reconciler.model.karpenter.requirements import Operator, Requirement, Requirements, requirement

AWS: Final = types.AWS
_BUNDLED: Final = PriceOrigin("bundled")


class _Cells(dict[str | None, Requirement]):
    """The requirements of a label's values, each created once; None means that it is never set."""

    __slots__ = ("_key",)

    def __init__(self, key: str) -> None:
        super().__init__()
        self._key = key

    def __missing__(self, value: str | None) -> Requirement:
        cell = _one_of(self._key, () if value is None else (value,))
        self[value] = cell
        return cell


def _one_of(key: str, values: tuple[str, ...]) -> Requirement:
    """Return a requirement for one of ``values``, or «does not exist» if there are none."""
    return requirement(key, Operator.IN if values else Operator.DOES_NOT_EXIST, values)


class AwsRows:
    """A region of the bundle, resolved with the facts of a node class.

    ``refusals`` has the reason for each type that can never be launched.
    """

    def __init__(
        self,
        bundle: Bundle,
        region: str,
        facts: ClassFacts,
        origin: PriceOrigin = _BUNDLED,
        pricer: Pricer | None = None,
    ) -> None:
        self._facts = facts
        self._rules = types.NodeRules(facts)
        self._region = region
        offered = bundle.regions[region].offered
        kept = [index for index, mask in enumerate(offered) if mask]
        self._machines = [bundle.machines[index] for index in kept]
        self._masks = [offered[index] for index in kept]
        self.names: tuple[str, ...] = tuple(machine.name for machine in self._machines)
        self._maker = OfferingMaker(bundle, region, kept, facts, origin, pricer)
        labels = {**types.LABELS, **types.class_labels(facts)}
        self._labels: list[tuple[Label, _Cells]] = [
            (label, _Cells(key)) for key, label in labels.items()
        ]
        self._keys = tuple(labels)
        self._constants = tuple(self._constant_requirements())
        self._zone_cells: dict[int, tuple[Requirement, Requirement | None]] = {}

    @property
    def refusals(self) -> dict[str, str]:
        return self._maker.refusals

    @property
    def unpriced(self) -> int:
        """The number of types that cannot be launched because they have no price."""
        return self._maker.unpriced

    @property
    def estimated(self) -> int:
        """The number of types whose bundled on-demand price is derived from another region's."""
        return self._maker.estimated

    def instance_type(self, index: int) -> InstanceType:
        machine = self._machines[index]
        capacity = self._rules.capacity(machine)
        return InstanceType(
            name=machine.name,
            capacity=capacity,
            overhead=self._rules.overhead(machine, capacity),
            requirements=Requirements(self._row(index)),
            offerings=self._maker.offerings(index),
            volume_limit=self._rules.volume_limit(machine),
            devices=self._rules.devices(machine),
        )

    def _row(self, index: int) -> Iterator[Requirement]:
        machine = self._machines[index]
        for label, cells in self._labels:
            yield cells[label(machine)]
        yield from self._constants
        zone, zone_id = self._zones(self._masks[index])
        yield zone
        if zone_id is not None:
            yield zone_id
        reservations = self._maker.reservations(index)
        yield _capacity_types(machine.on_demand, machine.spot, bool(reservations))
        yield from _reservation_requirements(reservations)

    def columns(self) -> Columns:
        """Return the types by column; a label's column is built on access."""
        count = len(self._machines)
        makers: dict[str, Callable[[], Cells]] = {
            key: partial(self._label_column, label, cells)
            for key, (label, cells) in zip(self._keys, self._labels, strict=True)
        }
        for constant in self._constants:
            makers[constant.key] = partial(_constant_column, constant, count)
        zones = [self._zones(mask) for mask in self._masks]
        makers[ZONE] = lambda: [zone for zone, _ in zones]
        if any(zone_id is not None for _, zone_id in zones):
            makers[ZONE_ID] = lambda: [zone_id for _, zone_id in zones]
        makers[CAPACITY_TYPE] = self._capacity_type_column
        for cell in _reservation_requirements(()):
            makers[cell.key] = partial(self._reservation_column, cell)
        allocatable, capacity = self._amounts()
        offerings = self._maker.offering_columns()
        limits = tuple(map(self._rules.volume_limit, self._machines))
        return Columns(self.names, LazyColumns(makers), allocatable, capacity, offerings, limits)

    def _label_column(self, label: Label, cells: _Cells) -> Cells:
        return [cells[value] for value in map(label, self._machines)]

    def _capacity_type_column(self) -> Cells:
        column: Cells = [_capacity_types(m.on_demand, m.spot, False) for m in self._machines]
        for index in self._maker.reserved_indices():
            machine = self._machines[index]
            column[index] = _capacity_types(machine.on_demand, machine.spot, True)
        return column

    def _reservation_column(self, without: Requirement) -> Cells:
        column = _constant_column(without, len(self._machines))
        for index in self._maker.reserved_indices():
            cells = _reservation_requirements(self._maker.reservations(index))
            column[index] = next(cell for cell in cells if cell.key == without.key)
        return column

    def _amounts(self) -> tuple[dict[str, list[int]], dict[str, list[int]]]:
        """Return the allocatable amounts and the capacity, by resource."""
        count, rules = len(self._machines), self._rules
        usable: dict[str, list[int]] = {}
        whole: dict[str, list[int]] = {}
        for index, machine in enumerate(self._machines):
            capacity = rules.capacity(machine)
            overhead = rules.overhead(machine, capacity)
            for name, amount in capacity.items():
                if name not in whole:
                    whole[name], usable[name] = [0] * count, [0] * count
                whole[name][index] = amount
                usable[name][index] = amount - overhead.get(name, 0)
        return usable, whole

    def _zones(self, mask: int) -> tuple[Requirement, Requirement | None]:
        """Return the requirements on zone and zone id for the zones of ``mask``."""
        known = self._zone_cells.get(mask)
        if known is None:
            open_zones = [zone for zone in self._maker.zones(mask) if self._maker.is_open(zone)]
            ids = tuple(zone.id for zone in open_zones if zone.id)
            known = (
                _one_of(ZONE, tuple(zone.name for zone in open_zones)),
                _one_of(ZONE_ID, ids) if ids else None,
            )
            self._zone_cells[mask] = known
        return known

    def _constant_requirements(self) -> Iterator[Requirement]:
        facts = self._facts
        yield _one_of(REGION, (self._region,))
        yield _one_of(AWS + "instance-tenancy", types.TENANCIES)
        group = facts.placement_group
        yield _one_of(AWS + "placement-group-id", (group,) if group else ())
        partitions = range(1, facts.partitions + 1) if facts.strategy == "partition" else ()
        yield _one_of(AWS + "placement-group-partition", tuple(map(str, partitions)))


def _constant_column(cell: Requirement, count: int) -> Cells:
    return [cell] * count


@cache
def _capacity_types(on_demand: bool, spot: bool, reserved: bool) -> Requirement:
    values = ((ON_DEMAND, on_demand), (SPOT, spot), (RESERVED, reserved))
    return _one_of(CAPACITY_TYPE, tuple(name for name, has in values if has))


def _reservation_requirements(reservations: tuple[Reservation, ...]) -> Iterator[Requirement]:
    """Yield the three labels that describe a type's capacity reservations."""
    for key, values in (
        ("capacity-reservation-id", {r.id for r in reservations}),
        ("capacity-reservation-type", {r.kind for r in reservations}),
        (
            "capacity-reservation-interruptible",
            {"true" if r.interruptible else "false" for r in reservations},
        ),
    ):
        yield _one_of(AWS + key, tuple(sorted(values)))
