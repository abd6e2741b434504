"""The meaning of a plain YAML scalar in Kubernetes.

Kubernetes reads YAML 1.1 and converts it to JSON (``sigs.k8s.io/yaml``): ``on`` is true, ``0o17``
and ``017`` are 15, ``1_000`` is 1000, ``1.0`` becomes the integer 1, and dates remain text. With
other rules, files would be accepted here that the API server rejects.
"""

from __future__ import annotations

import re
from math import isinf
from typing import Final

Scalar = str | int | float | bool | None

_WORDS: Final[dict[str, Scalar]] = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL"), None),
    **dict.fromkeys(
        ("y", "Y", "yes", "Yes", "YES", "true", "True", "TRUE", "on", "On", "ON"), True
    ),
    **dict.fromkeys(("n", "N", "no", "No", "NO", "false", "False", "FALSE"), False),
    **dict.fromkeys(("off", "Off", "OFF"), False),
    **dict.fromkeys((".nan", ".NaN", ".NAN"), float("nan")),
    **dict.fromkeys((".inf", ".Inf", ".INF", "+.inf", "+.Inf", "+.INF"), float("inf")),
    **dict.fromkeys(("-.inf", "-.Inf", "-.INF"), float("-inf")),
}
_NUMBER_START: Final = frozenset("+-.0123456789")
_INTEGER: Final = re.compile(
    r"([-+]?)(?:0[bB]([01]+)|0[oO]?([0-7]+)|0[xX]([0-9a-fA-F]+)|(0|[1-9][0-9]*))", re.ASCII
)
_FLOAT: Final = re.compile(r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?", re.ASCII)
_BASES: Final = (2, 8, 16, 10)
_DIGITS_MAX: Final = 70
_EXACT_MAX: Final = 10**21


def resolve_scalar(text: str) -> Scalar:
    """Return the value of an unquoted, untagged scalar."""
    if text in _WORDS:
        return _WORDS[text]
    if text[0] not in _NUMBER_START:
        return text
    plain = text.replace("_", "")
    whole = parse_integer(plain)
    number = parse_decimal(plain) if whole is None else whole
    return text if number is None else number


def parse_integer(text: str) -> int | None:
    """Return a 64-bit integer in any of YAML's bases, or None."""
    match = _INTEGER.fullmatch(text)
    if match is None or len(text) > _DIGITS_MAX:
        return None
    sign, *digits = match.groups()
    for part, base in zip(digits, _BASES, strict=True):
        if part is not None:
            value = int(part, base)
            if sign == "-":
                return -value if value <= 2**63 else None
            return value if value < 2**64 else None
    return None


def parse_decimal(text: str) -> float | int | None:
    """Return a decimal number, as an integer if it has no fraction, or None.

    JSON, to which Kubernetes converts every document, writes 8.0 as 8.
    """
    if _FLOAT.fullmatch(text) is None:
        return None
    value = float(text)
    if isinf(value):
        return None
    return int(value) if value.is_integer() and abs(value) < _EXACT_MAX else value


def format_key(value: Scalar) -> str | None:
    """Return the text of a scalar that is used as a mapping key; None for null."""
    if value is None:
        return None
    if isinstance(value, bool):
        return "true" if value else "false"
    return (
        value if isinstance(value, str) else f"{value:.15g}" if value != value // 1 else str(value)
    )
