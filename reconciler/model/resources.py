"""Amounts of resources: a map from resource name to thousandths of its unit.

Plain dicts of integers, because they are summed and compared by the hundred thousand; the functions
here are the only arithmetic on them (Karpenter ``pkg/utils/resources``).

Quantities are exact integers, never floats. One unit for every resource (milli-cores, thousandths
of a byte, thousandths of a pod) keeps sums exact and comparisons integer. Finer amounts are rounded
up, away from zero, as Kubernetes does: a request may be over-served, never under-served.

``parse_quantity`` is the only grammar of quantities: text that matches a schema's pattern but not
this grammar is a finding.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from decimal import ROUND_UP, Context, Decimal
from functools import lru_cache
from typing import Final

from reconciler.model.text.quoting import quote_value

MILLI: Final = 1000

_QUANTITY: Final = re.compile(
    r"(?P<number>[+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+))"
    r"(?:(?P<suffix>[numkMGTPE]|[KMGTPE]i)|[eE](?P<exponent>[+-]?[0-9]{1,10}))?",
    re.ASCII,
)
_DECIMAL: Final = ("", "k", "M", "G", "T", "P", "E")
_BINARY: Final = ("", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei")
_EXACT: Final = Context(prec=150)
_SCALE: Final = {
    "n": Decimal("1e-9"),
    "u": Decimal("1e-6"),
    "m": Decimal("1e-3"),
    **{suffix: Decimal(1000) ** power for power, suffix in enumerate(_DECIMAL)},
    **{suffix: Decimal(1024) ** power for power, suffix in enumerate(_BINARY)},
}
DIGITS_MAX: Final = 40
"""The maximum number of digits and signs of a quantity before its suffix."""

AMOUNT_MAX: Final = 2**63 - 1
"""The largest quantity, in units: Kubernetes keeps amounts in 64 bits."""

_EXPONENT_MAX: Final = DIGITS_MAX + 20

CPU: Final = "cpu"
MEMORY: Final = "memory"
PODS: Final = "pods"
EPHEMERAL_STORAGE: Final = "ephemeral-storage"
NODES: Final = "nodes"
_BINARY_RESOURCES: Final = (MEMORY, EPHEMERAL_STORAGE, "storage")
HUGEPAGES: Final = "hugepages-"


def is_quantity(text: str) -> bool:
    """Return whether ``text`` is a Kubernetes quantity."""
    try:
        parse_quantity(text)
    except ValueError:
        return False
    return True


@lru_cache(maxsize=65536)
def parse_quantity(text: str) -> int:
    """Return a quantity in thousandths: ``"2"`` is 2000, ``"250m"`` 250, ``"1Ki"`` 1024000.

    Raises:
        ValueError: ``text`` is not a quantity, or is one beyond 64 bits; the message names what
            was read.
    """
    match = _QUANTITY.fullmatch(text)
    if match is None or len(match["number"]) > DIGITS_MAX:
        raise ValueError(f"not a quantity: {quote_value(text)} (examples: 2, 500m, 1.5Gi)")
    number = _EXACT.create_decimal(match["number"])
    if match["exponent"]:
        # Beyond this every number but zero is too large, or less than a thousandth.
        exponent = max(-_EXPONENT_MAX, min(int(match["exponent"]), _EXPONENT_MAX))
        scale = Decimal((0, (1,), exponent))
    else:
        scale = _SCALE[match["suffix"] or ""]
    value = _EXACT.multiply(_EXACT.multiply(number, scale), Decimal(MILLI))
    if abs(value) > AMOUNT_MAX * MILLI:
        raise ValueError(f"quantity out of range: {quote_value(text)} (at most {AMOUNT_MAX})")
    return int(value.to_integral_value(ROUND_UP, _EXACT))


def format_quantity(milli: int, *, binary: bool = False) -> str:
    """Return the shortest exact text of ``milli`` thousandths.

    ``binary`` prefers Ki, Mi, … as Kubernetes writes bytes; a value that no suffix divides is
    written plainly, and one with a fraction in thousandths.
    """
    whole, rest = divmod(milli, MILLI)
    if rest:
        return f"{milli}m"
    base, suffixes = (1024, _BINARY) if binary else (1000, _DECIMAL)
    power = 0
    while whole and whole % base == 0 and power + 1 < len(suffixes):
        whole //= base
        power += 1
    return f"{whole}{suffixes[power]}"


Resources = dict[str, int]


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
    return name in _BINARY_RESOURCES or name.startswith(HUGEPAGES)


def add_resources(*lists: Mapping[str, int]) -> Resources:
    """Return the sum, over the union of names."""
    total: Resources = {}
    for amounts in lists:
        for name, amount in amounts.items():
            total[name] = total.get(name, 0) + amount
    return total


def maximum_resources(lists: Iterable[Mapping[str, int]]) -> Resources:
    """Return the maximum of each name that is in any list."""
    maximum: Resources = {}
    for amounts in lists:
        for name, amount in amounts.items():
            if name not in maximum or amount > maximum[name]:
                maximum[name] = amount
    return maximum


def minimum_resources(lists: Iterable[Mapping[str, int]]) -> Resources:
    """Return the minimum of each name that is in every list."""
    all_lists = list(lists)
    if not all_lists:
        return {}
    names = set(all_lists[0]).intersection(*all_lists[1:])
    return {
        name: min(amounts[name] for amounts in all_lists) for name in all_lists[0] if name in names
    }


def subtract_resources(left: Mapping[str, int], right: Mapping[str, int]) -> Resources:
    """Return ``left - right`` for the names of ``left``; the result may be negative."""
    return {name: amount - right.get(name, 0) for name, amount in left.items()}


def fits(requested: Mapping[str, int], available: Mapping[str, int]) -> bool:
    """Return whether ``requested`` is available; zero of an unknown resource is.

    Nothing fits, not even an empty request, if any available amount is negative: the node is
    over-committed.
    """
    for amount in available.values():  # a loop: each pod that waits is compared with each node
        if amount < 0:
            return False
    return all(amount <= available.get(name, 0) for name, amount in requested.items())


def pod_amount(count: int) -> int:
    """Return the amount of the pseudo-resource ``pods`` that ``count`` pods take."""
    return count * MILLI
