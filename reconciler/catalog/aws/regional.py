"""On-demand prices of the regions for which the newest price list is not at hand.

An older list has the prices of nearly every region, and the newest one those of a single region. A
price of another region is that of the older list if the price of the type has not changed since
then where both are known. Otherwise it is an estimate:

- a type whose price has changed, mostly by a cut by AWS in all regions: the older price, changed
  by the same factor;
- a type that is newer than the older list: its price in the region of the newest list, times the
  usual factor between both regions, of its family if it has one, else of all types.

A few regions are in no list: another region's types and prices are assumed.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any, Final, NamedTuple

import msgspec

from reconciler.catalog.aws.bundle import Bundle, Region, Zone
from reconciler.catalog.aws.machine import MachineType
from reconciler.catalog.regions import has_yuan_prices, in_dollars

_ZONES_ASSUMED: Final = {
    "ap-east-2": ("ap-east-2a", "ap-east-2b", "ap-east-2c"),
    "ap-southeast-6": ("ap-southeast-6a", "ap-southeast-6b", "ap-southeast-6c"),
    "ap-southeast-7": ("ap-southeast-7a", "ap-southeast-7b", "ap-southeast-7c"),
    "cn-north-1": ("cn-north-1a", "cn-north-1b", "cn-north-1d"),
    "cn-northwest-1": ("cn-northwest-1a", "cn-northwest-1b", "cn-northwest-1c"),
    "mx-central-1": ("mx-central-1a", "mx-central-1b", "mx-central-1c"),
    "us-gov-east-1": ("us-gov-east-1a", "us-gov-east-1b", "us-gov-east-1c"),
    "us-gov-west-1": ("us-gov-west-1a", "us-gov-west-1b", "us-gov-west-1c"),
}
"""Regions without recorded offerings. AWS states that each has three zones."""
_STAND_INS: Final = {
    "ap-east-2": "ap-southeast-7",
    "ap-southeast-6": "ap-southeast-7",
    "cn-northwest-1": "cn-north-1",
}
"""Regions without a list, and the one whose types and prices are assumed for them."""
_DATES: Final = {"cn-north-1": "2024-11-06"}
"""Lists that are older than the bundle."""
_DIGITS: Final = 6


class Listed(NamedTuple):
    """A list of on-demand prices: its date, and USD an hour by region and type."""

    date: str
    prices: Mapping[str, Mapping[str, float]]


def read_listed(path: Path, date: str) -> Listed:
    """Return the on-demand prices of Linux in a file of ec2instances.info."""
    prices: dict[str, dict[str, float]] = defaultdict(dict)
    for item in json.loads(path.read_bytes()):
        for region, price in _on_demand_of(item["pricing"]):
            prices[region][item["instance_type"]] = price
    return Listed(date, prices)


def _on_demand_of(pricing: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    for region, systems in pricing.items():
        text = systems.get("linux", {}).get("ondemand") if isinstance(systems, dict) else None
        if text and float(text) > 0:
            yield region, float(text)


def with_regional_prices(
    bundle: Bundle, listed: Listed, lists: Mapping[str, Mapping[str, float]]
) -> Bundle:
    """Return the bundle with prices for each region that has none, and regions of lists alone.

    ``lists`` are those of the bundle's date, by region. A region that no list has stays without
    prices.
    """
    newest = _newest(bundle)
    regions = _regions_of_lists(bundle, listed, lists) | bundle.regions
    for name, region in regions.items():
        if not region.prices and name in listed.prices:
            regions[name] = _priced(
                region, bundle.machines, newest, listed, bundle.price_region, name
            )
    about = f"Linux on-demand prices by region of ec2instances.info, {listed.date}"
    sources = (*bundle.sources, about)
    return msgspec.structs.replace(bundle, sources=sources, regions=dict(sorted(regions.items())))


def _regions_of_lists(
    bundle: Bundle, listed: Listed, lists: Mapping[str, Mapping[str, float]]
) -> dict[str, Region]:
    """Return the regions whose zones are assumed, with the types that have a price there."""
    regions = {}
    for name, zones in _ZONES_ASSUMED.items():
        source = _STAND_INS.get(name, name)
        prices = _in_dollars(source, lists.get(source) or listed.prices.get(source) or {})
        if prices:
            regions[name] = _assumed(bundle, zones, prices)
            if source in lists or source != name:
                regions[name] = _stated(regions[name], bundle, prices, name)
    return regions


def _newest(bundle: Bundle) -> dict[str, float]:
    prices = bundle.regions[bundle.price_region].prices
    pairs = zip(bundle.machines, prices, strict=True)
    return {machine.name: price for machine, price in pairs if price is not None}


def _in_dollars(region: str, prices: Mapping[str, float]) -> Mapping[str, float]:
    if not has_yuan_prices(region):
        return prices
    return {name: round(in_dollars(price, region), _DIGITS) for name, price in prices.items()}


def _stated(region: Region, bundle: Bundle, prices: Mapping[str, float], name: str) -> Region:
    """Return a region with prices of a list: its own, or that of the region that stands in."""
    own = tuple(prices.get(machine.name) for machine in bundle.machines)
    source = _STAND_INS.get(name, "")
    known = [position for position, price in enumerate(own) if price is not None]
    return msgspec.structs.replace(
        region,
        prices=own,
        estimated=tuple(known) if source else (),
        priced_at=_DATES.get(source or name, ""),
        like=source,
    )


def _assumed(bundle: Bundle, zones: Sequence[str], prices: Mapping[str, float]) -> Region:
    """Return a region in which every zone offers each type that has a price."""
    every = (1 << len(zones)) - 1
    withdrawn = frozenset(bundle.withdrawn)
    offered = [
        every if machine.name in prices and machine.name not in withdrawn else 0
        for machine in bundle.machines
    ]
    places = tuple(Zone(zone, None) for zone in zones)
    return Region(places, bytes(offered), assumes_zones=True)


def _priced(
    region: Region,
    machines: Sequence[MachineType],
    newest: Mapping[str, float],
    listed: Listed,
    home: str,
    name: str,
) -> Region:
    before, there = listed.prices[home], listed.prices[name]
    factors = _factors(machines, before, there)
    prices: list[float | None] = []
    estimated: list[int] = []
    for position, (machine, mask) in enumerate(zip(machines, region.offered, strict=True)):
        kind = machine.name
        new, old, found = newest.get(kind), before.get(kind), there.get(kind)
        if not mask:
            found = None
        elif found is None and new is not None:
            found = new * (factors.get(machine.family) or factors[""])
            estimated.append(position)
        elif found is not None and new is not None and old is not None and new != old:
            found *= new / old
            estimated.append(position)
        prices.append(None if found is None else round(found, _DIGITS))
    return msgspec.structs.replace(
        region, prices=tuple(prices), estimated=tuple(estimated), priced_at=listed.date
    )


def _factors(
    machines: Sequence[MachineType], home: Mapping[str, float], there: Mapping[str, float]
) -> dict[str, float]:
    """Return the usual factor of the prices by family, and of all types under an empty name."""
    found: dict[str, list[float]] = defaultdict(list)
    for machine in machines:
        if machine.name in home and machine.name in there:
            factor = there[machine.name] / home[machine.name]
            found[machine.family].append(factor)
            found[""].append(factor)
    return {family: median(factors) for family, factors in found.items()}
