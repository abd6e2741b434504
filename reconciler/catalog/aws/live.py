"""Convert EC2's responses about instance types to the format of the bundle.

The same code reduces live and bundled responses, so both give the same labels and amounts for the
same facts. Trunk interfaces and network bandwidth are in no EC2 response and come from the bundle.
A type that the bundle does not contain has neither.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from collections.abc import Set as AbstractSet
from datetime import datetime
from hashlib import sha256

import msgspec

from reconciler.catalog.aws.bundle import Bundle, Header, Zone, regions_with_prices
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
            found[name] = _reduce_with_bundled(body, before)
        except (KeyError, TypeError, AttributeError):
            if before is not None:
                found[name] = before
    return tuple(found[name] for name in sorted(found))


def _reduce_with_bundled(body: JsonObject, before: MachineType | None) -> MachineType:
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
    by_name = {machine.name: machine for machine in machines}
    withdrawn = _withdrawn_machines(bundle, region, by_name)
    offered = {zone: names & by_name.keys() for zone, names in zones.items()}
    if withdrawn:
        _add_withdrawn(offered, bundle, region, withdrawn.keys())
    all_machines = [machine for _, machine in sorted({**by_name, **withdrawn}.items())]
    live_zones = tuple(Zone(zone, None) for zone in sorted(zones))
    masks = tuple(
        sum(1 << bit for bit, zone in enumerate(live_zones) if machine.name in offered[zone.name])
        for machine in all_machines
    )
    result = Bundle(
        sources=(f"EC2 in {region}, {at:%FT%TZ}", *bundle.sources),
        price_region=bundle.price_region,
        machines=tuple(all_machines),
        withdrawn=tuple(sorted(withdrawn)),
        regions=regions_with_prices(bundle, region, all_machines, live_zones, masks),
    )
    # The time is not included: the same response tomorrow is the same catalog.
    digest = sha256(msgspec.msgpack.encode((result.machines, result.regions))).hexdigest()
    return Header(f"{at:%FT%TZ}", digest, header.priced_at or header.version), result


def _add_withdrawn(
    offered: dict[str, frozenset[str]], bundle: Bundle, region: str, withdrawn: AbstractSet[str]
) -> None:
    """Add the withdrawn types to the zones that offer them according to the bundle."""
    for zone in bundle.regions[region].zones:
        before = _offered_types(bundle, region, zone.name) & withdrawn
        offered[zone.name] = offered.get(zone.name, frozenset()) | before


def _offered_types(bundle: Bundle, region: str, zone: str) -> frozenset[str]:
    """Return the types that a zone offers according to the bundle."""
    known = bundle.regions[region]
    bit = next(i for i, place in enumerate(known.zones) if place.name == zone)
    pairs = zip(bundle.machines, known.offered, strict=True)
    return frozenset(machine.name for machine, mask in pairs if mask >> bit & 1)


def _withdrawn_machines(
    bundle: Bundle, region: str, by_name: Mapping[str, MachineType]
) -> dict[str, MachineType]:
    known = bundle.regions.get(region)
    if known is None:
        return {}
    return {
        machine.name: machine
        for machine, mask in zip(bundle.machines, known.offered, strict=True)
        if mask and machine.name not in by_name
    }
