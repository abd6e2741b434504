"""Write the bundled catalog: ``python -m reconciler.catalog.aws.build DATA``.

DATA is a folder with ``ondemand_prices.json``, ``vpc_limits.json`` and ``network_bandwidth.json``.
Machines and offerings come from the installed moto, which contains recorded responses of EC2.
``--older`` is the unpacked folder ``moto/ec2/resources`` of an earlier release, from about the date
of the data files. Its machines take precedence, since they match the limits and bandwidths in DATA.
A type that EC2 has withdrawn since then is retained: a node that still runs on it has a size and a
price, but the type is never launched.

``--regional`` is the file ``instances.json`` of ec2instances.info, with ``--regional-date``: its
prices are those of the regions that are not in DATA (see ``regional.py``).

Nothing is fetched. Run this when the data has been updated, review its output, and commit the file
that it wrote.
"""

from __future__ import annotations

import argparse
import gzip
import json
import re
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from importlib.metadata import version as installed_version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from reconciler.catalog.aws.bundle import PATH, Bundle, Region, Zone, encode
from reconciler.catalog.aws.machine import MachineType, is_usable, reduce_body
from reconciler.catalog.aws.regional import read_listed, with_regional_prices
from reconciler.model.json import JsonObject

PRICE_REGION = "us-east-1"


@dataclass(frozen=True, slots=True)
class Answers:
    """EC2's responses as bundled with a release of moto: bodies, and locations by region."""

    release: str
    bodies: JsonObject
    zones: Mapping[str, Mapping[str, frozenset[str]]]
    zone_ids: Mapping[str, Mapping[str, frozenset[str]]]


def read_answers(resources: Path, release: str) -> Answers:
    """Return the responses in moto's folder ``ec2/resources``."""
    offerings = resources / "instance_type_offerings"
    return Answers(
        release,
        _read_json(resources / "instance_types.json.gz"),
        _read_offerings(offerings / "availability-zone"),
        _read_offerings(offerings / "availability-zone-id"),
    )


def _bodies(current: Answers, older: Answers | None) -> dict[str, JsonObject]:
    """Return the description of each type; an older one has its attachments from the current."""
    bodies = {**current.bodies, **(older.bodies if older else {})}
    for name in bodies.keys() & current.bodies.keys():
        bodies[name] = _with_attachments(bodies[name], current.bodies[name])
    return bodies


def build(data: Path, current: Answers, older: Answers | None = None) -> tuple[Bundle, str]:
    """Return the bundle and its version, which is the date of the prices.

    Machines in ``older`` take precedence; those no longer in ``current`` count as withdrawn.
    """
    prices, limits, bandwidths = (
        _read_json(data / name)
        for name in ("ondemand_prices.json", "vpc_limits.json", "network_bandwidth.json")
    )
    bodies = _bodies(current, older)
    machines = tuple(
        reduce_body(bodies[name], limits["limits"].get(name), bandwidths["bandwidthMbps"].get(name))
        for name in sorted(bodies)
        if is_usable(bodies[name])
    )
    withdrawn = frozenset(m.name for m in machines if m.name not in current.bodies)
    regions = {
        name: build_region(
            machines,
            _with_withdrawn(by_zone, older.zones.get(name, {}) if older else {}, withdrawn),
            match_zone_ids(by_zone, current.zone_ids[name]),
            prices["prices"].get(name, {}),
        )
        for name, by_zone in sorted(current.zones.items())
    }
    releases = [current.release, *([older.release] if older else [])]
    sources = (*releases, *(str(d["about"]) for d in (prices, limits, bandwidths)))
    bundle = Bundle(sources, PRICE_REGION, machines, tuple(sorted(withdrawn)), regions)
    return bundle, _find_date(prices["about"])


def _with_attachments(body: JsonObject, current: JsonObject) -> JsonObject:
    """Return a body with the limit of EBS volumes, which EC2 did not report earlier."""
    known = current.get("EbsInfo", {}).get("MaximumEbsAttachments")
    ebs = body.get("EbsInfo", {})
    if known is None or "MaximumEbsAttachments" in ebs:
        return body
    return {**body, "EbsInfo": {**ebs, "MaximumEbsAttachments": known}}


def build_region(
    machines: Iterable[MachineType],
    by_zone: Mapping[str, frozenset[str]],
    ids: Mapping[str, str],
    prices: Mapping[str, float],
) -> Region:
    """Return a region's zones, offerings and prices, in the order of the machines."""
    zones = tuple(Zone(name, ids.get(name)) for name in sorted(by_zone))
    offered = [
        sum(1 << bit for bit, zone in enumerate(zones) if m.name in by_zone[zone.name])
        for m in machines
    ]
    return Region(zones, bytes(offered), tuple(prices.get(m.name) for m in machines if prices))


def match_zone_ids(
    by_zone: Mapping[str, frozenset[str]], by_id: Mapping[str, frozenset[str]]
) -> dict[str, str]:
    """Return the ids of zones.

    The id of a named zone differs between accounts. The responses are from one account, so a zone
    and an id are matched if they offer the same types and no other zone does.
    """
    ids: dict[str, str] = {}
    for name, types in by_zone.items():
        matching = [identifier for identifier, offered in by_id.items() if offered == types]
        same_types = sum(offered == types for offered in by_zone.values())
        if len(matching) == 1 and same_types == 1:
            ids[name] = matching[0]
    return ids


def _with_withdrawn(
    by_zone: Mapping[str, frozenset[str]],
    before: Mapping[str, frozenset[str]],
    withdrawn: frozenset[str],
) -> dict[str, frozenset[str]]:
    """Return where types are offered, or were offered before they were withdrawn."""
    none: frozenset[str] = frozenset()
    return {z: types | (before.get(z, none) & withdrawn) for z, types in by_zone.items()}


def _read_offerings(folder: Path) -> dict[str, dict[str, frozenset[str]]]:
    paths = sorted(folder.glob("*.json.gz"))
    return {path.name.removesuffix(".json.gz"): _types_by_location(path) for path in paths}


def _types_by_location(path: Path) -> dict[str, frozenset[str]]:
    """Return the instance types that are offered in each location of a file of offerings."""
    types: dict[str, set[str]] = {}
    for offering in _read_json(path):
        types.setdefault(offering["Location"], set()).add(offering["InstanceType"])
    return {location: frozenset(names) for location, names in types.items()}


def _read_json(path: Path) -> Any:
    content = path.read_bytes()
    return json.loads(gzip.decompress(content) if path.suffix == ".gz" else content)


def _find_date(about: str) -> str:
    match = re.search(r"\d{4}-\d{2}-\d{2}", about)
    assert match, f"no date in {about!r}"
    return match[0]


def moto_resources() -> Path:
    """Return the folder of the installed moto that contains EC2's responses.

    Raises:
        ModuleNotFoundError: moto is not installed.
    """
    spec = find_spec("moto")
    if spec is None or not spec.submodule_search_locations:
        raise ModuleNotFoundError("moto is not installed; the extra `embedded` brings it")
    return Path(spec.submodule_search_locations[0]) / "ec2" / "resources"


def main(arguments: list[str] | None = None) -> int:
    """Write the file and print a summary of its content."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", type=Path, help="folder of prices, limits and bandwidths")
    parser.add_argument("--out", type=Path, default=Path(PATH), help="file to write")
    parser.add_argument("--older", type=Path, help="folder ec2/resources of an earlier moto")
    parser.add_argument("--older-release", default="an earlier moto", help="what to call it")
    parser.add_argument("--regional", type=Path, help="instances.json of ec2instances.info")
    parser.add_argument("--regional-date", default="", help="its date, as 2025-05-28")
    options = parser.parse_args(arguments)
    current = read_answers(moto_resources(), f"moto {installed_version('moto')}")
    older = read_answers(options.older, options.older_release) if options.older else None
    bundle, version = build(options.data, current, older)
    if options.regional:
        listed = read_listed(options.regional, options.regional_date)
        lists = _read_json(options.data / "ondemand_prices.json")["prices"]
        bundle = with_regional_prices(bundle, listed, lists)
    content = encode(bundle, version)
    options.out.write_bytes(content)
    priced = sum(p is not None for p in bundle.regions[PRICE_REGION].prices)
    sys.stdout.write(
        f"{options.out.name}: {len(bundle.machines)} types ({priced} priced, "
        f"{len(bundle.withdrawn)} withdrawn), "
        f"{len(bundle.regions)} regions, version {version}, {len(content)} bytes\n"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
