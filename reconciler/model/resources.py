"""Amounts of resources: a map from resource name to thousandths of its unit.

Plain dicts of integers, because they are summed and compared by the hundred thousand; the
functions here are the only arithmetic on them (Karpenter ``pkg/utils/resources``).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from reconciler.model.quantity import MILLI, format_quantity, parse_quantity

Resources = dict[str, int]

CPU: Final = "cpu"
MEMORY: Final = "memory"
PODS: Final = "pods"
EPHEMERAL_STORAGE: Final = "ephemeral-storage"
NODES: Final = "nodes"
_BINARY: Final = (MEMORY, EPHEMERAL_STORAGE, "storage")
HUGEPAGES: Final = "hugepages-"


def parse_resources(texts: Mapping[str, str | int | float] | None) -> Resources:
    """Return the amounts that Kubernetes quantities mean.

    Raises:
        ValueError: a value is not a quantity; the message names the resource.
    """
    amounts: Resources = {}
    for name, text in (texts or {}).items():
        try:
            amounts[name] = parse_quantity(text if isinstance(text, str) else str(text))
        except ValueError as error:
            raise ValueError(f"{name}: {error}") from None
    return amounts


def format_resources(amounts: Mapping[str, int]) -> dict[str, str]:
    """Return Kubernetes quantities, sorted by name."""
    return {
        name: format_quantity(amounts[name], binary=_is_binary(name)) for name in sorted(amounts)
    }


def _is_binary(name: str) -> bool:
    return name in _BINARY or name.startswith(HUGEPAGES)


def add(*lists: Mapping[str, int]) -> Resources:
    """Return the sum, over the union of names."""
    total: Resources = {}
    for amounts in lists:
        for name, amount in amounts.items():
            total[name] = total.get(name, 0) + amount
    return total


def largest(lists: Iterable[Mapping[str, int]]) -> Resources:
    """Return the maximum of each name that stands in any list."""
    top: Resources = {}
    for amounts in lists:
        for name, amount in amounts.items():
            if name not in top or amount > top[name]:
                top[name] = amount
    return top


def smallest(lists: Iterable[Mapping[str, int]]) -> Resources:
    """Return the minimum of each name that stands in every list."""
    every = list(lists)
    if not every:
        return {}
    names = set(every[0]).intersection(*every[1:])
    return {name: min(amounts[name] for amounts in every) for name in every[0] if name in names}


def subtract(left: Mapping[str, int], right: Mapping[str, int]) -> Resources:
    """Return ``left - right`` for the names of ``left``; the result may be negative."""
    return {name: amount - right.get(name, 0) for name, amount in left.items()}


def fits(wanted: Mapping[str, int], available: Mapping[str, int]) -> bool:
    """Return whether ``wanted`` is available; zero of an unknown resource is.

    Nothing fits, not even nothing, where any available amount is negative: that node is
    over-committed.
    """
    if any(amount < 0 for amount in available.values()):
        return False
    return all(amount <= available.get(name, 0) for name, amount in wanted.items())


def pods(count: int) -> int:
    """Return the amount of the pseudo-resource ``pods`` that ``count`` pods take."""
    return count * MILLI
