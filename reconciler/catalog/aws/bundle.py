"""The file format of the bundled EC2 data, and EC2's responses converted to it.

A file is a header line of text and a compressed body.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Iterable, Mapping
from datetime import datetime
from hashlib import sha256
from typing import Final

import msgspec

from reconciler.catalog.aws.machine import MachineType, is_usable, reduce_body
from reconciler.model.errors import UnreadableError
from reconciler.model.json import JsonObject

FORMAT: Final = "1"
_NAME_OF_FILE: Final = "aws.catalog"
PATH: Final = os.path.join(os.path.dirname(__file__), "data", _NAME_OF_FILE)
_NAME: Final = "reconciler-catalogue"


class Zone(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """A zone by name, with its id if the offerings identify it."""

    name: str
    id: str | None


class Region(msgspec.Struct, array_like=True, frozen=True):
    """The zones, offerings and prices of a region.

    ``offered`` has a number for each machine of the bundle, in its order: bit *i* is set if
    ``zones[i]`` offers it (bytes, unless an account has opted into more than eight zones).
    ``prices`` are on-demand USD an hour in the same order, or empty if the data has none for the
    region.
    """

    zones: tuple[Zone, ...]
    offered: bytes | tuple[int, ...]
    prices: tuple[float | None, ...] = ()


class Bundle(msgspec.Struct, array_like=True, frozen=True):
    """The complete content of the file.

    ``price_region`` is the region whose prices substitute for missing ones. ``withdrawn`` are types
    that EC2 no longer sells; nodes may still run on them.
    """

    sources: tuple[str, ...]
    price_region: str
    machines: tuple[MachineType, ...]
    withdrawn: tuple[str, ...]
    regions: dict[str, Region]


def encode(bundle: Bundle, version: str) -> bytes:
    """Return the file content; equal bundles and versions give equal bytes."""
    body = msgspec.msgpack.encode(bundle)
    digest = sha256(body).hexdigest()
    header = f"{_NAME} {FORMAT} {version} {digest}\n".encode("ascii")
    return header + zlib.compress(body, 9)


class Header(msgspec.Struct, frozen=True):
    """The first line of the file.

    The version is the date of the prices. For live data the version is the time of the request, and
    ``priced_at`` is the date of the prices.
    """

    version: str
    digest: str
    priced_at: str = ""


def decode(content: bytes, source: str = _NAME_OF_FILE) -> tuple[Header, Bundle]:
    """Decode what ``encode`` wrote.

    Raises:
        UnreadableError: the file is damaged, or from another release.
    """
    line, _, packed = content.partition(b"\n")
    words = line.decode("ascii", "replace").split(" ")
    if len(words) != 4 or words[0] != _NAME:
        raise UnreadableError("not a bundled catalogue", where=source, remedy=_REINSTALL)
    if words[1] != FORMAT:
        raise UnreadableError(
            f"catalogue format {words[1]}, this release reads {FORMAT}",
            where=source,
            remedy=_REINSTALL,
        )
    try:
        bundle = _DECODER.decode(zlib.decompress(packed))
    except (zlib.error, msgspec.MsgspecError) as error:
        raise UnreadableError(
            f"damaged catalogue: {error}", where=source, remedy=_REINSTALL
        ) from error
    return Header(version=words[2], digest=words[3]), bundle


_REINSTALL: Final = (
    "reinstall the package, or rebuild it with `python -m reconciler.catalog.aws.build`"
)
_DECODER: Final = msgspec.msgpack.Decoder(Bundle)


def load() -> tuple[Header, Bundle]:
    """Return the bundle of this package.

    Raises:
        UnreadableError: the file is missing or damaged.
    """
    try:
        with open(PATH, "rb") as file:
            content = file.read()
    except OSError as error:
        raise UnreadableError(
            f"no bundled catalogue: {error.strerror}", where=_NAME_OF_FILE, remedy=_REINSTALL
        ) from error
    return decode(content)


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
