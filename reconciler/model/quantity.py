"""Kubernetes quantities as exact integers: thousandths of a unit, never floats.

One unit for every resource (milli-cores, thousandths of a byte, thousandths of a pod) keeps
sums exact and comparisons integer. What is finer rounds up, away from zero, as Kubernetes does:
a request may be over-served, never under-served.

This is the only grammar of quantities: what a schema's pattern lets through beyond it is a finding.
"""

from __future__ import annotations

import re
from decimal import ROUND_UP, Context, Decimal
from functools import lru_cache
from typing import Final

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
"""A quantity has at most so many digits and signs before its suffix."""

AMOUNT_MAX: Final = 2**63 - 1
"""The largest quantity, in units: Kubernetes keeps amounts in 64 bits."""

_EXPONENT_MAX: Final = DIGITS_MAX + 20


@lru_cache(maxsize=65536)
def parse_quantity(text: str) -> int:
    """Return a quantity in thousandths: ``"2"`` is 2000, ``"250m"`` 250, ``"1Ki"`` 1024000.

    Raises:
        ValueError: ``text`` is not a quantity, or is one beyond 64 bits; the message names what
            was read.
    """
    match = _QUANTITY.fullmatch(text)
    if match is None or len(match["number"]) > DIGITS_MAX:
        raise ValueError(f"not a quantity: {text[:60]!r} (examples: 2, 500m, 1.5Gi)")
    number = _EXACT.create_decimal(match["number"])
    if match["exponent"]:
        # Beyond this every number but zero is too large, or less than a thousandth.
        exponent = max(-_EXPONENT_MAX, min(int(match["exponent"]), _EXPONENT_MAX))
        scale = Decimal((0, (1,), exponent))
    else:
        scale = _SCALE[match["suffix"] or ""]
    value = _EXACT.multiply(_EXACT.multiply(number, scale), Decimal(MILLI))
    if abs(value) > AMOUNT_MAX * MILLI:
        raise ValueError(f"quantity out of range: {text[:60]!r} (at most {AMOUNT_MAX})")
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
