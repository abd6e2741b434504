"""Compute the offerings of a type: zone, capacity type and price.

The rules are Karpenter's (provider ``pkg/providers/instancetype/offering``). There is one offering
for each zone and capacity type. It is available if the class has a subnet in the zone, its settings
suit the type and a price is known. Each capacity reservation adds an offering at a price close to
zero.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Final

import msgspec

from reconciler.catalog.aws.bundle import Bundle, Region, Zone
from reconciler.catalog.aws.machine import MachineType
from reconciler.catalog.aws.prices import Pricer, QuotedPrice, spot_prices
from reconciler.catalog.aws.types import AWS
from reconciler.catalog.classfacts import ClassFacts, Reservation
from reconciler.catalog.columns import OfferingColumns, append_offerings
from reconciler.model.grouping import group_by
from reconciler.model.karpenter.instancetype import Offering, PriceOrigin
from reconciler.model.karpenter.labels import ON_DEMAND, RESERVED, SPOT
from reconciler.model.karpenter.requirements import Operator, Requirement, equals, requirement
from reconciler.model.settings import PlacementStrategy

NO_PRICE: Final = "no price is known"
"""The rejection of a type that lacks only a price; a NodeOverlay can set one."""

RESERVED_DISCOUNT: Final = 10_000_000
"""A reservation is already paid for: its on-demand price is divided by this to keep the order."""

_RESERVATION_KEYS: Final = tuple(
    AWS + "capacity-reservation-" + name for name in ("id", "type", "interruptible")
)
_NO_RESERVATION: Final = tuple(requirement(k, Operator.DOES_NOT_EXIST) for k in _RESERVATION_KEYS)

_ESTIMATE: Final = PriceOrigin("estimate")


def refusal(machine: MachineType, facts: ClassFacts) -> str | None:
    """Return why the class cannot run on the type, or None if it can."""
    if facts.problem is not None:
        return facts.problem
    needs = (
        (facts.family == "AL2023", machine.family != "a1", "AL2023 has no image for a1"),
        (
            facts.nested_virtualization,
            machine.nested_virtualization,
            "it does not support nested virtualization",
        ),
        (facts.nitro_enclaves, machine.nitro_enclaves, "it does not support Nitro Enclaves"),
        (
            facts.connection_tracking,
            machine.hypervisor == "nitro",
            "connection tracking requires the nitro hypervisor",
        ),
        (
            facts.strategy == PlacementStrategy.CLUSTER,
            machine.cluster_placement,
            "it cannot join a cluster placement group",
        ),
    )
    for is_needed, is_met, reason in needs:
        if is_needed and not is_met:
            return reason
    return _interface_refusal(machine, facts) if facts.interfaces else None


def _interface_refusal(machine: MachineType, facts: ClassFacts) -> str | None:
    if not machine.ena:
        return "network interfaces require ENA, which it does not support"
    for interface in facts.interfaces:
        if interface.card >= len(machine.cards):
            return f"the class uses network card {interface.card}, it has {len(machine.cards)}"
        if interface.device >= machine.cards[interface.card]:
            return f"network card {interface.card} has no device {interface.device}"
    if (facts.efa_only or 0) > machine.efa_interfaces:
        return f"it has {machine.efa_interfaces} EFA interfaces, the class uses {facts.efa_only}"
    return None


def _bundled_prices(
    bundle: Bundle, home: Region, origin: PriceOrigin
) -> Callable[[int], QuotedPrice]:
    """Return the on-demand price by position: without a list of the region, another region's."""
    prices = home.prices or bundle.regions[bundle.price_region].prices
    estimated = frozenset(home.estimated) if home.prices else range(len(prices))

    def price(position: int) -> QuotedPrice:
        return QuotedPrice(prices[position], _ESTIMATE if position in estimated else origin)

    return price


class _Row(msgspec.Struct, frozen=True):
    """The inputs for the offerings of one type; ``bundled`` is the bundled on-demand price."""

    machine: MachineType
    mask: int
    bundled: QuotedPrice
    refused: str | None

    @property
    def price(self) -> float | None:
        return self.bundled.amount


class _Shape(msgspec.Struct, frozen=True):
    """Zones, ids, capacity types and subnet flags of a type's offerings, in their order."""

    zone: list[str]
    zone_id: list[str | None]
    capacity_type: list[str]
    open: list[bool]


class OfferingMaker:
    """Creates the offerings of a region's types; an index counts within the region.

    ``origin`` is the source of the bundled prices. ``pricer`` provides better ones; without it,
    spot prices are estimated from the bundled list.
    """

    def __init__(
        self,
        bundle: Bundle,
        region: str,
        indices: list[int],
        facts: ClassFacts,
        origin: PriceOrigin,
        pricer: Pricer | None = None,
    ) -> None:
        home = bundle.regions[region]
        self._pricer = pricer
        withdrawn = frozenset(bundle.withdrawn)
        self._facts = facts
        self._subnets = None if facts.zones is None else dict(facts.zones)
        self._zones = tuple(self._with_id(zone) for zone in home.zones)
        self._by_mask: dict[int, tuple[Zone, ...]] = {}
        self._names: dict[int, tuple[str, ...]] = {}
        self._shapes: dict[tuple[int, bool, bool], _Shape] = {}
        bundled = _bundled_prices(bundle, home, origin)
        self._rows = [
            self._row(bundle.machines[i], home.offered[i], bundled(i), withdrawn) for i in indices
        ]
        self._reservations: dict[str, list[Reservation]] = group_by(
            facts.reservations, lambda reservation: reservation.instance_type
        )

    def _row(
        self, machine: MachineType, mask: int, bundled: QuotedPrice, withdrawn: frozenset[str]
    ) -> _Row:
        refused = refusal(machine, self._facts)
        if machine.name in withdrawn:
            refused = "EC2 no longer offers it"
        elif refused is None and not self._is_priced(machine, mask, bundled):
            refused = NO_PRICE
        return _Row(machine, mask, bundled, refused)

    def _is_priced(self, machine: MachineType, mask: int, bundled: QuotedPrice) -> bool:
        """Return whether any offering of the type has a price."""
        if self._pricer is None:
            return bundled.amount is not None
        if self._pricer.on_demand(machine.name, bundled).amount is not None:
            return True
        row = _Row(machine, mask, bundled, None)
        return any(spot.amount is not None for spot in self._quoted_spot(row, self._pricer))

    def _with_id(self, zone: Zone) -> Zone:
        """Return the zone with the id from the class's subnets, if they have one."""
        if self._subnets is None:
            return zone
        return Zone(zone.name, self._subnets.get(zone.name) or None)

    @property
    def refusals(self) -> dict[str, str]:
        return {row.machine.name: row.refused for row in self._rows if row.refused}

    @property
    def unpriced(self) -> int:
        if self._pricer is None:
            return sum(row.price is None for row in self._rows)
        return sum(not self._is_priced(r.machine, r.mask, r.bundled) for r in self._rows)

    @property
    def estimated(self) -> int:
        """The number of types whose bundled on-demand price is derived from another region's."""
        return sum(row.price is not None and row.bundled.is_estimate for row in self._rows)

    def zones(self, mask: int) -> tuple[Zone, ...]:
        """Return the zones of a bit mask of the bundle."""
        known = self._by_mask.get(mask)
        if known is None:
            known = tuple(zone for bit, zone in enumerate(self._zones) if mask >> bit & 1)
            self._by_mask[mask] = known
        return known

    def is_open(self, zone: Zone) -> bool:
        """Return whether the class has, or might have, a subnet in the zone."""
        return self._subnets is None or zone.name in self._subnets

    def reservations(self, index: int) -> tuple[Reservation, ...]:
        """Return the capacity reservations of a type, in the order of the class."""
        return tuple(self._reservations.get(self._rows[index].machine.name, ()))

    def reserved_indices(self) -> list[int]:
        """Return the types that have capacity reservations."""
        if not self._reservations:
            return []
        return [i for i, row in enumerate(self._rows) if row.machine.name in self._reservations]

    def offerings(self, index: int) -> tuple[Offering, ...]:
        """Return the offerings: by zone, on-demand before spot; then the reserved ones."""
        row = self._rows[index]
        reservations = self.reservations(index)
        plain = _NO_RESERVATION if reservations else ()
        offerings = [
            *self._market_offerings(row, plain),
            *self._reserved_offerings(row, reservations),
        ]
        if self._facts.strategy == "partition" and self._facts.partitions:
            offerings = [o for offering in offerings for o in self._split_by_partition(offering)]
        return tuple(offerings)

    def _market_offerings(self, row: _Row, extra: tuple[Requirement, ...]) -> Iterator[Offering]:
        if self._pricer is not None:
            yield from self._quoted_offerings(row, extra, self._pricer)
            return
        zones = self.zones(row.mask)
        spot = self._spot_prices(row)
        for zone, spot_price in zip(zones, spot, strict=True):
            available = row.refused is None and self.is_open(zone)
            if row.machine.on_demand:
                yield Offering(
                    zone.name,
                    ON_DEMAND,
                    row.price or 0.0,
                    available,
                    zone.id,
                    extra=extra,
                    estimated=row.bundled.is_estimate,
                    origin=row.bundled.origin,
                )
            if row.machine.spot:
                yield Offering(
                    zone.name,
                    SPOT,
                    spot_price,
                    available,
                    zone.id,
                    extra=extra,
                    estimated=True,
                    origin=_ESTIMATE,
                )

    def _quoted_offerings(
        self, row: _Row, extra: tuple[Requirement, ...], pricer: Pricer
    ) -> Iterator[Offering]:
        """Yield the offerings at quoted prices; one without a quote is not available.

        A node may run on such an offering, so it has the estimate as its price.
        """
        machine = row.machine
        on_demand = pricer.on_demand(machine.name, row.bundled)
        spot = self._quoted_spot(row, pricer)
        estimates = pricer.estimates(
            machine.name, machine.category, row.price, self._zone_names(row)
        )
        for zone, quoted, estimate in zip(self.zones(row.mask), spot, estimates, strict=True):
            for kind, offered, price, fallback in (
                (ON_DEMAND, machine.on_demand, on_demand, row.price or 0.0),
                (SPOT, machine.spot, quoted, estimate),
            ):
                if offered:
                    is_known = price.amount is not None
                    yield Offering(
                        zone.name,
                        kind,
                        fallback if price.amount is None else price.amount,
                        row.refused is None and is_known and self.is_open(zone),
                        zone.id,
                        extra=extra,
                        estimated=not is_known or price.is_estimate,
                        origin=price.origin if is_known else _ESTIMATE,
                    )

    def _zone_names(self, row: _Row) -> tuple[str, ...]:
        names = self._names.get(row.mask)
        if names is None:
            names = self._names[row.mask] = tuple(zone.name for zone in self.zones(row.mask))
        return names

    def _quoted_spot(self, row: _Row, pricer: Pricer) -> Sequence[QuotedPrice]:
        machine = row.machine
        return pricer.spot(machine.name, machine.category, row.price, self._zone_names(row))

    def _spot_prices(self, row: _Row) -> list[float]:
        names = self._zone_names(row)
        if row.price is None:
            return [0.0] * len(names)
        return spot_prices(row.machine.name, row.machine.category, row.price, names)

    def _reserved_offerings(
        self, row: _Row, reservations: Iterable[Reservation]
    ) -> Iterator[Offering]:
        zone_ids = {zone.name: zone.id for zone in self._zones}
        for r in reservations:
            is_open = self._subnets is None or r.zone in self._subnets
            suits = refusal(row.machine, self._facts) is None
            yield Offering(
                r.zone,
                RESERVED,
                self._public_price(row) / RESERVED_DISCOUNT,
                suits and is_open and not r.expiring,
                zone_ids.get(r.zone),
                reservation_id=r.id,
                reservation_capacity=r.remaining,
                extra=(
                    equals(_RESERVATION_KEYS[1], r.kind),
                    equals(_RESERVATION_KEYS[2], "true" if r.interruptible else "false"),
                ),
                estimated=row.bundled.is_estimate,
                origin=PriceOrigin("reservation"),
            )

    def _public_price(self, row: _Row) -> float:
        """Return the on-demand price without the price book, or 0.0 if it is unknown."""
        pricer = self._pricer
        public = (
            row.price if pricer is None else pricer.public_on_demand(row.machine.name, row.price)
        )
        return public or 0.0

    def _split_by_partition(self, offering: Offering) -> Iterator[Offering]:
        """Yield the offering once for each partition of the class's placement group."""
        for partition in range(1, self._facts.partitions + 1):
            label = equals(AWS + "placement-group-partition", str(partition))
            yield replace(offering, extra=(*offering.extra, label))

    def offering_columns(self) -> OfferingColumns:
        """Return the offerings of all types by column."""
        columns = OfferingColumns([], [], [], [], [], [], {})
        partitioned = self._facts.strategy == "partition" and self._facts.partitions > 0
        for index, row in enumerate(self._rows):
            machine = row.machine
            if partitioned or self._pricer is not None or machine.name in self._reservations:
                append_offerings(columns, index, self.offerings(index))
            else:
                self._append_market(columns, index, row)
        return columns

    def _append_market(self, columns: OfferingColumns, index: int, row: _Row) -> None:
        """Add the rows of ``_market_offerings``, without creating objects."""
        shape = self._shape(row)
        count = len(shape.zone)
        columns.type.extend([index] * count)
        columns.zone.extend(shape.zone)
        columns.zone_id.extend(shape.zone_id)
        columns.capacity_type.extend(shape.capacity_type)
        columns.available.extend(shape.open if row.refused is None else [False] * count)
        on_demand, prices = row.price or 0.0, self._spot_prices(row)
        if row.machine.on_demand and row.machine.spot:
            prices = [price for spot in prices for price in (on_demand, spot)]
        elif row.machine.on_demand:
            prices = [on_demand] * count
        columns.price.extend(prices if row.machine.on_demand or row.machine.spot else ())

    def _shape(self, row: _Row) -> _Shape:
        """Return everything but the prices of a type's offerings, which many types share."""
        machine = row.machine
        key = (row.mask, machine.on_demand, machine.spot)
        shape = self._shapes.get(key)
        if shape is None:
            kinds = [(ON_DEMAND, machine.on_demand), (SPOT, machine.spot)]
            pairs = [(z, kind) for z in self.zones(row.mask) for kind, has in kinds if has]
            shape = self._shapes[key] = _Shape(
                [zone.name for zone, _ in pairs],
                [zone.id for zone, _ in pairs],
                [kind for _, kind in pairs],
                [self.is_open(zone) for zone, _ in pairs],
            )
        return shape
