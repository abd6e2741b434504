"""Convert EC2's responses about instance types to the format of the bundle.

The same code reduces live and bundled responses, so both give the same labels and amounts for the
same facts. Trunk interfaces and network bandwidth are in no EC2 response and come from the bundle.
A type that the bundle does not contain has neither.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from hashlib import sha256

import msgspec

from reconciler.catalog.aws.bundle import Bundle, Header, Region, Zone
from reconciler.catalog.aws.machine import MachineType, is_usable, reduce_body
from reconciler.model.json import JsonObject

Zones = Mapping[str, frozenset[str]]
"""The instance types that each zone offers."""


def live_machines(bodies: Iterable[JsonObject], bundle: Bundle) -> tuple[MachineType, ...]:
    """Return the machines in responses of ``DescribeInstanceTypes``, by name.

    A body that lacks a mandatory field is replaced by the bundled one, or left out.
    """
    known = {machine.name: machine for machine in bundle.machines}
    found: dict[str, MachineType] = {}
    for body in bodies:
        name = body.get("InstanceType", "")
        before = known.get(name)
        if not name or not is_usable(body):
            continue
        try:
            found[name] = _reduced(body, before)
        except (KeyError, TypeError, AttributeError):
            if before is not None:
                found[name] = before
    return tuple(found[name] for name in sorted(found))


def _reduced(body: JsonObject, before: MachineType | None) -> MachineType:
    if before is None:
        return reduce_body(body)
    machine = reduce_body(body, network_mbps=before.network_mbps)
    return msgspec.structs.replace(
        machine, branch_interfaces=before.branch_interfaces, windows_ipv4=before.windows_ipv4
    )


def live_bundle(
    region: str,
    machines: Iterable[MachineType],
    zones: Zones,
    at: datetime,
    bundled: tuple[Header, Bundle],
) -> tuple[Header, Bundle]:
    """Return a region as EC2 describes it at ``at``, with the prices of the bundle.

    A type that is bundled for the region and no longer listed by EC2 counts as withdrawn: a node
    may still run on it.
    """
    header, bundle = bundled
    named = {machine.name: machine for machine in machines}
    offered = {zone: names & named.keys() for zone, names in zones.items()}
    gone = _gone(bundle, region, named)
    every = [machine for _, machine in sorted({**named, **gone}.items())]
    places = tuple(Zone(zone, None) for zone in sorted(offered))
    for zone in bundle.regions[region].zones if gone else ():
        before = _offered(bundle, region, zone.name) & gone.keys()
        offered[zone.name] = offered.get(zone.name, frozenset()) | before
    masks = tuple(
        sum(1 << bit for bit, zone in enumerate(places) if machine.name in offered[zone.name])
        for machine in every
    )
    made = Bundle(
        sources=(f"EC2 in {region}, {at:%FT%TZ}", *bundle.sources),
        price_region=bundle.price_region,
        machines=tuple(every),
        withdrawn=tuple(sorted(gone)),
        regions=_regions(bundle, region, every, places, masks),
    )
    # The time is not included: the same response tomorrow is the same catalog.
    digest = sha256(msgspec.msgpack.encode((made.machines, made.regions))).hexdigest()
    return Header(f"{at:%FT%TZ}", digest, header.priced_at or header.version), made


def _offered(bundle: Bundle, region: str, zone: str) -> frozenset[str]:
    """Return the types that a zone offers according to the bundle."""
    known = bundle.regions[region]
    bit = next(i for i, place in enumerate(known.zones) if place.name == zone)
    pairs = zip(bundle.machines, known.offered, strict=True)
    return frozenset(machine.name for machine, mask in pairs if mask >> bit & 1)


def _gone(bundle: Bundle, region: str, named: Mapping[str, MachineType]) -> dict[str, MachineType]:
    known = bundle.regions.get(region)
    if known is None:
        return {}
    return {
        machine.name: machine
        for machine, mask in zip(bundle.machines, known.offered, strict=True)
        if mask and machine.name not in named
    }


def _regions(
    bundle: Bundle,
    region: str,
    machines: list[MachineType],
    zones: tuple[Zone, ...],
    offered: tuple[int, ...],
) -> dict[str, Region]:
    """Return the region and, if it has no prices, the region whose prices are used instead."""
    found = {region: Region(zones, offered, _prices(bundle, region, machines))}
    if bundle.price_region != region:
        stand_ins = _prices(bundle, bundle.price_region, machines)
        found[bundle.price_region] = Region((), bytes(len(machines)), stand_ins)
    return found


def _prices(bundle: Bundle, region: str, machines: list[MachineType]) -> tuple[float | None, ...]:
    known = bundle.regions.get(region)
    if known is None or not known.prices:
        return ()
    prices = dict(zip((m.name for m in bundle.machines), known.prices, strict=True))
    return tuple(prices.get(machine.name) for machine in machines)
