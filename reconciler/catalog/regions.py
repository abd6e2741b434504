"""The regions of AWS by name, and the settings that name unknown ones.

The bundled catalog takes longer to load than everything else that ``validate`` does with most
fleets, and has only regions with known instance types. So the names are listed here; a test
compares them with those of botocore.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Final

from reconciler.model.diagnostics import Severity
from reconciler.model.json import JsonObject, as_list
from reconciler.model.karpenter.labels import ZONE
from reconciler.model.text.nearest import did_you_mean
from reconciler.model.text.quoting import quote_value
from reconciler.source.document import Pointer
from reconciler.source.finding import Finding
from reconciler.source.schema import value_at

REGIONS: Final = frozenset({
    "af-south-1",
    "ap-east-1", "ap-east-2",
    "ap-northeast-1", "ap-northeast-2", "ap-northeast-3",
    "ap-south-1", "ap-south-2",
    "ap-southeast-1", "ap-southeast-2", "ap-southeast-3", "ap-southeast-4",
    "ap-southeast-5", "ap-southeast-6", "ap-southeast-7",
    "ca-central-1", "ca-west-1",
    "cn-north-1", "cn-northwest-1",
    "eu-central-1", "eu-central-2", "eu-north-1", "eu-south-1", "eu-south-2",
    "eu-west-1", "eu-west-2", "eu-west-3",
    "eu-isoe-west-1", "eusc-de-east-1",
    "il-central-1",
    "me-central-1", "me-south-1",
    "mx-central-1",
    "sa-east-1",
    "us-east-1", "us-east-2", "us-west-1", "us-west-2",
    "us-gov-east-1", "us-gov-west-1",
    "us-iso-east-1", "us-iso-west-1", "us-isob-east-1", "us-isob-west-1",
    "us-isof-east-1", "us-isof-south-1",
})  # fmt: skip
"""The regions of all partitions."""

YUAN_FOR_A_DOLLAR: Final = 7.1
"""AWS's prices in China are in yuan. All amounts here are in dollars, so they are converted."""

_ZONE: Final = re.compile(r"[a-z]{2,}(?:-[a-z]+)+-[0-9][a-z]", re.ASCII)
_SIMILARITY_MIN: Final = 0.7
_SETTINGS: Final[tuple[Pointer, ...]] = (
    ("aws", "region"),
    ("priceBook", "rules", "*", "regions", "*"),
    ("commitments", "savingsPlans", "*", "region"),
    ("commitments", "reservedInstances", "*", "region"),
)
"""Where the configuration names a region; ``*`` is each element of a list."""


def region_of_zone(zone: str) -> str:
    """Return the region of an availability zone by its name, empty if it is none of AWS'."""
    return zone[:-1] if _ZONE.fullmatch(zone) and zone[:-1] in REGIONS else ""


def region_of_pools(node_pools: Iterable[JsonObject]) -> str:
    """Return the region of the zones that NodePools require, empty if it is none or several."""
    found = {region_of_zone(zone) for pool in node_pools for zone in _required_zones(pool)}
    return found.pop() if len(found) == 1 else ""


def _required_zones(node_pool: JsonObject) -> Iterator[str]:
    requirements = value_at(node_pool, ("spec", "template", "spec", "requirements"))
    for one in as_list(requirements):
        if isinstance(one, dict) and (one.get("key"), one.get("operator")) == (ZONE, "In"):
            values = one.get("values")
            yield from map(str, as_list(values))


def has_yuan_prices(region: str) -> bool:
    """Return whether AWS states the prices of a region, or of a zone, in yuan."""
    return region.startswith("cn-")


def in_dollars(amount: float, region: str) -> float:
    """Return an amount that AWS states for a region, or for a zone, in dollars."""
    return amount / YUAN_FOR_A_DOLLAR if has_yuan_prices(region) else amount


def unknown_regions(config: object) -> Iterator[Finding]:
    """Yield a warning for each region in the data of ``reconciler.yaml`` that AWS does not have."""
    for setting in _SETTINGS:
        for pointer, region in _strings_at(config, setting, ()):
            if region not in REGIONS:
                message = f"region {quote_value(region)} is not known"
                hint = did_you_mean(
                    region,
                    sorted(REGIONS),
                    "ignore this if AWS has added it since",
                    _SIMILARITY_MIN,
                )
                yield Finding("unknown-region", pointer, message, hint, Severity.WARNING)


def _strings_at(data: object, steps: Pointer, above: Pointer) -> Iterator[tuple[Pointer, str]]:
    """Yield the strings at a path, each with its place."""
    if not steps:
        if isinstance(data, str):
            yield above, data
        return
    step, *rest = steps
    if step == "*":
        for index, item in enumerate(as_list(data)):
            yield from _strings_at(item, tuple(rest), (*above, index))
    elif isinstance(data, dict) and step in data:
        yield from _strings_at(data[step], tuple(rest), (*above, step))
