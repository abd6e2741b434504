"""What is wrong with a NodeOverlay that the API's schema lets through.

Karpenter checks this once more when it evaluates overlays (``RuntimeValidate``): lengths of
label keys and values, capacity types that exist, resources that are not the provider's own.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from typing import Final

from reconciler.model.labels import (
    CAPACITY_TYPE,
    NODEPOOL,
    ON_DEMAND,
    RESERVED,
    SPOT,
    is_restricted,
)
from reconciler.model.nodeoverlay import NodeOverlay
from reconciler.model.nodepool import NodeSelectorRequirement
from reconciler.model.requirement import Operator
from reconciler.model.resources import CPU, EPHEMERAL_STORAGE, MEMORY, PODS

CORE_RESOURCES: Final = frozenset({CPU, MEMORY, EPHEMERAL_STORAGE, PODS})
AWS_RESOURCES: Final = CORE_RESOURCES | {
    "vpc.amazonaws.com/pod-eni",
    "aws.amazon.com/neuron",
    "aws.amazon.com/neuroncore",
    "habana.ai/gaudi",
    "vpc.amazonaws.com/efa",
}
"""Resources whose amount a provider knows itself; an overlay may not set them."""

_CAPACITY_TYPES: Final = frozenset({ON_DEMAND, SPOT, RESERVED})
_NAME: Final = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?", re.ASCII)
_PREFIX: Final = re.compile(
    r"[a-z0-9](?:[a-z0-9-]*[a-z0-9])?(?:\.[a-z0-9](?:[a-z0-9-]*[a-z0-9])?)*", re.ASCII
)
_PREFIX_LENGTH_MAX: Final = 253
_BOUNDS: Final = frozenset({Operator.GT, Operator.LT, Operator.GTE, Operator.LTE})


def problems(
    overlay: NodeOverlay, provider_resources: Collection[str] = AWS_RESOURCES
) -> list[tuple[str, str]]:
    """Return what is wrong: the path of each field and what to know of it; none if all is well."""
    found: list[tuple[str, str]] = []
    for index, entry in enumerate(overlay.spec.requirements):
        path = f"spec.requirements[{index}]"
        found += [(f"{path}.{field}", text) for field, text in _of_requirement(entry)]
    found += [
        ("spec.capacity", f"{name} comes from the provider and cannot be set")
        for name in sorted(overlay.spec.capacity)
        if name in provider_resources
    ]
    return found


def _of_requirement(entry: NodeSelectorRequirement) -> Iterator[tuple[str, str]]:
    if reason := _bad_key(entry.key):
        yield "key", reason
    values = entry.values
    if entry.operator in (Operator.IN, Operator.NOT_IN) and not values:
        yield "values", f"{entry.operator} needs at least one value"
    if entry.operator in _BOUNDS and not (
        len(values) == 1 and values[0].isascii() and values[0].isdigit()
    ):
        yield "values", f"{entry.operator} needs one integer of at least 0"
    for value in values:
        if value and not _NAME.fullmatch(value):
            yield "values", f"{value!r} is not a label value"
    if (
        entry.key == CAPACITY_TYPE
        and entry.operator is Operator.IN
        and values
        and not _CAPACITY_TYPES.intersection(values)
    ):
        yield "values", f"none of {', '.join(values)} is a capacity type"


def _bad_key(key: str) -> str | None:
    prefix, slash, name = key.rpartition("/")
    if slash and not (len(prefix) <= _PREFIX_LENGTH_MAX and _PREFIX.fullmatch(prefix)):
        return f"{prefix!r} is not the prefix of a label key"
    if not _NAME.fullmatch(name):
        return f"{name!r} is not the name of a label key (63 characters at most)"
    if key != NODEPOOL and is_restricted(key):
        return f"{key} is reserved"
    return None
