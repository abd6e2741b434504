"""Why a NodePool can launch no node at all, whatever the pods.

Three layers exclude instance types: the requirements that somebody wrote, the offerings that EC2
has at the moment, and what was not looked up. The reason names the layer, because each has another
remedy.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

from reconciler.catalog.regions import region_of_zone
from reconciler.model.karpenter.labels import (
    CAPACITY_TYPE,
    RESERVATION_ID,
    RESERVATION_TYPE,
    RESERVED,
    ZONE,
)
from reconciler.model.karpenter.requirements import Requirement
from reconciler.model.text.nearest import nearest
from reconciler.placement.nodes.template import PoolTemplate
from reconciler.placement.question import Rejection

NOT_AVAILABLE: Final = (
    "EC2 has refused all suitable offerings recently, for lack of capacity or of free addresses, "
    "or for a quota of the account; they are tried again in some minutes"
)
_KIBI: Final = 1024
_LOCAL_ZONE: Final = re.compile(
    r"[a-z]{2}(-[a-z]+)+-[0-9](-[a-z]+-[0-9][a-z]|-wl[0-9](-[a-z]+)+-[0-9])", re.ASCII
)
"""A local zone or a Wavelength zone: us-east-1-bos-1a, us-east-1-wl1-bos-wlz-1."""


def is_local_zone(name: str) -> bool:
    """Return whether a zone is a local zone or a Wavelength zone, by its name."""
    return _LOCAL_ZONE.fullmatch(name) is not None


def no_types_rejection(template: PoolTemplate) -> Rejection:
    """Return why a NodePool without instance types can launch no node at all."""
    short = template.space.has_min_values and template.space.mask
    if short:
        return Rejection(
            "MinValuesUnmet",
            f"NodePool {template.name} cannot launch nodes: its instance types do not satisfy its "
            "minValues: lower minValues, or allow more types",
            template.name,
            {"types": template.space.mask.bit_count()},
        )
    return Rejection(
        "NoInstanceTypes",
        f"NodePool {template.name} cannot launch nodes: {_describe_exclusion(template)}",
        template.name,
        {"types": len(template.table)},
    )


def _describe_exclusion(template: PoolTemplate) -> str:
    """Return the requirement that alone excludes all types, or the first at which none are left."""
    table = template.table
    requirements = template.space.requirements.values()
    for wanted in requirements:
        if not table.types_matching(wanted):
            stated = _stated_values(template, wanted.key)
            if not wanted.complement and not wanted.values and len(stated) > 1:
                return f"its requirements on {wanted.key} exclude each other: {', '.join(stated)}"
            is_bound = wanted.complement and len(stated) == 1
            text = f"{wanted.key} {stated[0]}" if is_bound else _describe(wanted)
            hint = unknown_value_hint(template, wanted)
            return f"no instance type satisfies its requirement {text}{hint}"
    left = table.all
    earlier: list[str] = []
    for wanted in requirements:
        if not left & table.types_matching(wanted):
            after = " and ".join(earlier)
            return (
                "no instance type satisfies all its requirements: "
                f"none that has {after} has {_describe(wanted)}"
            )
        if left & ~table.types_matching(wanted):
            earlier.append(_describe(wanted))
        left &= table.types_matching(wanted)
    if table.types_offered_unavailably(left):
        return f"{NOT_AVAILABLE}: allow more types and zones, or raise the quota"
    return (
        "none of its instance types is offered in its zones and capacity types: allow more of them"
    )


def _describe(wanted: Requirement) -> str:
    """Return a requirement as text; bounds as an author writes them, not as Karpenter does."""
    bounds = [
        *([f">= {wanted.gte}"] if wanted.gte is not None else []),
        *([f"<= {wanted.lte}"] if wanted.lte is not None else []),
    ]
    is_bound = wanted.complement and not wanted.values and wanted.min_values is None
    return f"{wanted.key} {' and '.join(bounds)}" if bounds and is_bound else str(wanted)


def unknown_value_hint(template: PoolTemplate, wanted: Requirement) -> str:
    """Return what to do about a requirement that excludes all types, with its separator.

    It is empty if nothing is known about the requirement.
    """
    is_plain = not wanted.complement
    if wanted.key in (RESERVATION_ID, RESERVATION_TYPE) or (
        is_plain and wanted.key == CAPACITY_TYPE and wanted.values == {RESERVED}
    ):
        return (
            ": no capacity reservation is known; they are looked up only with access to AWS, by "
            "the capacityReservationSelectorTerms of the EC2NodeClass"
        )
    if is_plain and wanted.key == ZONE and all(map(is_local_zone, wanted.values)):
        kind = "Wavelength" if any("-wl" in zone for zone in wanted.values) else "local"
        return (
            f": {kind} zones are not in the bundled data; plan with access to AWS and "
            "--set aws.instanceTypes=live"
        )
    known = template.table.values(wanted.key)
    if is_plain and wanted.key == ZONE and (elsewhere := _other_region(wanted.values, known)):
        here = region_of_zone(min(known))
        return f": its zones are those of {elsewhere}, and the plan is for {here}"
    near = _nearest_value(wanted, known)
    return f"; did you mean {near}?" if near else ""


def _other_region(zones: Iterable[str], known: Iterable[str]) -> str:
    """Return the region of all these zones if it is none of the known ones, empty otherwise."""
    regions, known_regions = set(map(region_of_zone, zones)), set(map(region_of_zone, known))
    is_known = len(regions) == len(known_regions) == 1 and "" not in regions | known_regions
    return min(regions) if is_known and regions != known_regions else ""


def _stated_values(template: PoolTemplate, key: str) -> list[str]:
    """Return the constraints of a NodePool on a label: its own label, then each requirement."""
    stated = template.node_pool.spec.template
    label = stated.metadata.labels.get(key)
    return [
        *([f"the label {label}"] if label is not None else []),
        *(
            f"{spec.operator} [{', '.join(spec.values)}]" if spec.values else str(spec.operator)
            for spec in stated.spec.requirements
            if spec.key == key
        ),
    ]


def _nearest_value(requirement: Requirement, known: Iterable[str]) -> str | None:
    """Return the known value closest to one of the requested ones.

    Numbers are compared as numbers. One that is 1,024 times too small is probably in the next
    larger unit: types count memory in MiB.
    """
    if requirement.complement:
        return None
    words = sorted(known)
    numbers = {int(word): word for word in words if word.isascii() and word.isdigit()}
    for value in sorted(requirement.values):
        if numbers and value.isascii() and value.isdigit():
            larger = numbers.get(int(value) * _KIBI)
            if larger is not None:
                return f"{larger} (in MiB)" if "memory" in requirement.key else larger
            return numbers[min(numbers, key=lambda n: (abs(n - int(value)), n))]
        near = nearest(value, words)
        if near is not None:
            return near
    return None
