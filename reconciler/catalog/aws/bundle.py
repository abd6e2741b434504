"""The file format of the bundled EC2 data: a header line of text and a compressed body.

The first line reads ``reconciler-catalogue <format> <version> <digest>`` and can be viewed with
``head -1``; the rest is MessagePack under zlib. It contains machines as EC2 describes them and
where each is offered. It contains no computed values, so every node class can be resolved from it.
``build.py`` writes it; equal data gives equal bytes.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Sequence
from hashlib import sha256
from typing import Final

import msgspec

from reconciler.catalog.aws.machine import MachineType
from reconciler.model.decode import describe_mismatch
from reconciler.model.errors import UnreadableError

FORMAT: Final = "1"
_NAME_OF_FILE: Final = "aws.catalog"
PATH: Final = os.path.join(os.path.dirname(__file__), "data", _NAME_OF_FILE)
_NAME: Final = "reconciler-catalogue"

_REINSTALL: Final = (
    "reinstall the package, or rebuild it with `python -m reconciler.catalog.aws.build`"
)


class Zone(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """A zone by name, with its id if the offerings identify it."""

    name: str
    id: str | None


class Region(msgspec.Struct, array_like=True, frozen=True):
    """The zones, offerings and prices of a region.

    ``offered`` has a number for each machine of the bundle, in its order: bit *i* is set if
    ``zones[i]`` offers it (bytes, unless an account has opted into more than eight zones).
    ``prices`` are on-demand USD an hour in the same order, or empty if the data has none for the
    region. Those at the positions in ``estimated`` follow from another region's, and the others are
    of the list of ``priced_at``, empty for that of the bundle. With ``assumes_zones`` it is not
    known which zones offer a type: every zone of the region counts. If the data has no list of the
    region, its types and prices are those of the region ``like``.
    """

    zones: tuple[Zone, ...]
    offered: bytes | tuple[int, ...]
    prices: tuple[float | None, ...] = ()
    estimated: tuple[int, ...] = ()
    priced_at: str = ""
    assumes_zones: bool = False
    like: str = ""


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


def regions_with_prices(
    bundle: Bundle,
    region: str,
    machines: Sequence[MachineType],
    zones: tuple[Zone, ...],
    offered: bytes | tuple[int, ...],
) -> dict[str, Region]:
    """Return a region of other machines, and the one whose prices substitute for missing ones.

    Both have the prices of the bundle; the latter has no zones.
    """
    found = {region: _with_prices(bundle, region, machines, zones, offered)}
    home = bundle.price_region
    if home != region:
        found[home] = _with_prices(bundle, home, machines, (), bytes(len(machines)))
    return found


def _with_prices(
    bundle: Bundle,
    region: str,
    machines: Sequence[MachineType],
    zones: tuple[Zone, ...],
    offered: bytes | tuple[int, ...],
) -> Region:
    known = bundle.regions.get(region)
    if known is None or not known.prices:
        return Region(zones, offered)
    at = {machine.name: position for position, machine in enumerate(bundle.machines)}
    before = [at.get(machine.name) for machine in machines]
    estimated = frozenset(known.estimated)
    return Region(
        zones,
        offered,
        tuple(None if position is None else known.prices[position] for position in before),
        tuple(new for new, position in enumerate(before) if position in estimated),
        known.priced_at,
    )


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
        raise UnreadableError("not a bundled catalog", where=source, remedy=_REINSTALL)
    if words[1] != FORMAT:
        raise UnreadableError(
            f"catalog format {words[1]}, this release reads {FORMAT}",
            where=source,
            remedy=_REINSTALL,
        )
    try:
        bundle = _DECODER.decode(zlib.decompress(packed))
    except (zlib.error, msgspec.MsgspecError) as error:
        raise UnreadableError(
            f"damaged catalog: {describe_mismatch(error)}", where=source, remedy=_REINSTALL
        ) from error
    return Header(version=words[2], digest=words[3]), bundle


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
            f"no bundled catalog: {error.strerror}", where=_NAME_OF_FILE, remedy=_REINSTALL
        ) from error
    return decode(content)
