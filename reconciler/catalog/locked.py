"""Convert between a catalog and the catalog section of a lock file.

To stay readable, a lock contains only what differs from the release's bundled data: a type whose
machine and zones are as bundled has one line with its prices.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from hashlib import sha256

import msgspec

from reconciler.catalog.aws.bundle import Bundle, Header, Region, Zone, regions_with_prices
from reconciler.catalog.aws.machine import MachineType
from reconciler.catalog.aws.prices import OnDemandQuotes, Pricing, SpotQuotes
from reconciler.catalog.catalog import BundledCatalog
from reconciler.catalog.table import indices, table_of
from reconciler.desired.lock import FactSource, Lock, LockedCatalog, LockedType
from reconciler.model.billing import PriceBook
from reconciler.model.decode import describe_mismatch
from reconciler.model.errors import UnreadableError
from reconciler.model.karpenter.instancetype import InstanceType, PriceOrigin
from reconciler.model.karpenter.labels import ON_DEMAND, SPOT
from reconciler.model.karpenter.nodepool import NodePool, requirements_of
from reconciler.model.karpenter.requirements import Requirements

_ESTIMATE = "estimate"


def locked_data(lock: Lock, bundled: tuple[Header, Bundle]) -> tuple[Header, Bundle]:
    """Return the bundled data with the changes in the lock.

    Raises:
        UnreadableError: the facts of a machine in the lock are invalid.
    """
    header, bundle = bundled
    locked_machines = {n: t for n, t in lock.types.items() if t.machine is not None}
    locked_zones = {n: frozenset(t.zones) for n, t in lock.types.items() if t.zones is not None}
    changed = locked_machines.keys() | locked_zones.keys()
    if not changed:
        return bundled
    machines = {machine.name: machine for machine in bundle.machines}
    machines |= {name: _decode_machine(name, t) for name, t in locked_machines.items()}
    zones = zones_of(bundle, lock.region) | locked_zones
    all_machines = [machine for _, machine in sorted(machines.items())]
    home = bundle.regions.get(lock.region, Region((), b""))
    places, offered = _offered_zones(all_machines, zones, home)
    result = msgspec.structs.replace(
        bundle,
        machines=tuple(all_machines),
        withdrawn=tuple(sorted(set(bundle.withdrawn) - changed)),
        regions=regions_with_prices(bundle, lock.region, all_machines, places, offered),
    )
    digest = sha256(f"{header.digest} {lock.digest}".encode()).hexdigest()
    return msgspec.structs.replace(header, digest=digest), result


def _offered_zones(
    machines: Sequence[MachineType], zones: Mapping[str, Collection[str]], home: Region
) -> tuple[tuple[Zone, ...], tuple[int, ...]]:
    """Return the zones of a region, and for each machine the bits of those that offer it."""
    ids = {zone.name: zone.id for zone in home.zones}
    names = sorted({name for places in zones.values() for name in places} | ids.keys())
    places = tuple(Zone(name, ids.get(name)) for name in names)
    offered = tuple(
        sum(1 << bit for bit, zone in enumerate(places) if zone.name in zones.get(m.name, ()))
        for m in machines
    )
    return places, offered


def _decode_machine(name: str, locked: LockedType) -> MachineType:
    try:
        return msgspec.convert(locked.machine, MachineType)
    except msgspec.ValidationError as error:
        raise UnreadableError(
            f"types.{name}.machine: {describe_mismatch(error)}",
            where="reconciler.lock",
            remedy="it was written by another release: run `reconciler lock --update`",
        ) from error


def zones_of(bundle: Bundle, region: str) -> dict[str, frozenset[str]]:
    """Return the zones in which each type of a region is offered."""
    home = bundle.regions.get(region)
    if home is None:
        return {}
    names = [zone.name for zone in home.zones]
    return {
        machine.name: frozenset(n for bit, n in enumerate(names) if mask >> bit & 1)
        for machine, mask in zip(bundle.machines, home.offered, strict=True)
        if mask
    }


def locked_pricing(lock: Lock, book: PriceBook | None) -> Pricing:
    """Return the prices of a lock, overridden by the user's price book."""
    listed = {n: t.on_demand for n, t in lock.types.items() if t.on_demand is not None}
    on_demand = OnDemandQuotes(listed, _origin(lock.catalog.on_demand))
    spot = None
    if lock.catalog.spot.source != _ESTIMATE:
        quoted = {name: dict(t.spot or {}) for name, t in lock.types.items()}
        spot = SpotQuotes(quoted, _origin(lock.catalog.spot), covers_all=False)
    return Pricing(on_demand, spot, book)


def _origin(source: FactSource) -> PriceOrigin:
    return PriceOrigin(source.source, source.at)


def allowed_types(node_pools: Iterable[NodePool], catalog: BundledCatalog) -> tuple[str, ...]:
    """Return the names of the types that any of the NodePools allows, sorted."""
    table = table_of(catalog)
    mask = 0
    for pool in node_pools:
        template = pool.spec.template
        wanted = requirements_of(template.spec.requirements)
        labels = Requirements.from_labels(template.metadata.labels)
        mask |= table.types_meeting(wanted.with_requirements(labels.values()))
    return tuple(sorted({catalog.names[index] for index in indices(mask)}))


def locked_types(
    catalog: BundledCatalog, names: Iterable[str], bundled: Bundle
) -> dict[str, LockedType]:
    """Return the lock entries of the types; ``catalog`` is one without a price book."""
    _, data = catalog.data
    region = catalog.region
    here, before = zones_of(data, region), zones_of(bundled, region)
    machines = {m.name: m for m in data.machines}
    known = {m.name: m for m in bundled.machines}
    pricing = catalog.pricing
    quotes = pricing.on_demand if pricing is not None else None
    listed = quotes.origin.source if quotes is not None else catalog.price_origin.source
    entries = {}
    for name in names:
        kind = catalog.get(name)
        if kind is None:
            continue
        zones, machine = here.get(name, frozenset()), machines[name]
        entries[name] = LockedType(
            on_demand=_on_demand_price(kind, listed),
            spot=_spot_prices(kind),
            zones=tuple(sorted(zones)) if zones != before.get(name, frozenset()) else None,
            machine=msgspec.to_builtins(machine) if machine != known.get(name) else None,
        )
    return entries


def _on_demand_price(kind: InstanceType, listed: str) -> float | None:
    """Return the price from the locked list; missing prices stay as bundled."""
    prices = (
        o.price
        for o in kind.offerings
        if o.capacity_type == ON_DEMAND
        and o.price > 0
        and o.origin is not None
        and o.origin.source == listed
    )
    return next(prices, None)


def _spot_prices(kind: InstanceType) -> dict[str, float] | None:
    quoted = {
        o.zone: o.price
        for o in kind.offerings
        if o.capacity_type == SPOT and o.origin is not None and o.origin.source != _ESTIMATE
    }
    return dict(sorted(quoted.items())) or None


def locked_catalog(catalog: BundledCatalog, types: FactSource, bundled: Header) -> LockedCatalog:
    """Return the lock entry of the complete catalog."""
    pricing = catalog.pricing
    published = catalog.price_origin
    on_demand = FactSource(source=published.source, at=published.at)
    spot = FactSource(source=_ESTIMATE)
    if pricing is not None and pricing.on_demand is not None:
        on_demand = _source(pricing.on_demand.origin)
    if pricing is not None and pricing.spot is not None:
        spot = _source(pricing.spot.origin)
    return LockedCatalog(
        instance_types=types,
        bundle=bundled.version,
        bundle_digest=bundled.digest[:16],
        on_demand=on_demand,
        spot=spot,
    )


def _source(origin: PriceOrigin) -> FactSource:
    return FactSource(source=origin.source, at=origin.at)


def describe_differences(before: Mapping[str, LockedType], after: Mapping[str, LockedType]) -> str:
    """Return a phrase that summarizes the changes of the types, empty if there are none."""
    new, gone = after.keys() - before.keys(), before.keys() - after.keys()
    both = before.keys() & after.keys()
    priced = sum(
        (before[n].on_demand, before[n].spot) != (after[n].on_demand, after[n].spot) for n in both
    )
    parts = ((len(new), "new"), (len(gone), "gone"), (priced, "at other prices"))
    changes = [f"{number:,} {word}" for number, word in parts if number]
    return f"instance types: {', '.join(changes)}" if changes else ""
