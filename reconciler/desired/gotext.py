"""Texts exactly as Go programs write them: a Kubernetes Quantity, and JSON.

Karpenter's drift hash is taken over such texts, so every byte counts, also where Go's conventions
are unusual: ``1024Gi`` becomes ``1Ti``, but ``1.500G`` stays as its author wrote it.
"""

from __future__ import annotations

import json
import re
from typing import Final

_QUANTITY: Final = (
    r"(?P<sign>[+-]?)0*(?P<whole>[0-9]*)(?:\.(?P<fraction>[0-9]*))?"
    r"(?P<suffix>[numkMGTPE]?|[KMGTPE]i|[eE][+-]?[0-9]{1,3})"
)
_DECIMAL: Final = {"n": -9, "u": -6, "m": -3, "": 0, "k": 3, "M": 6, "G": 9, "T": 12} | {
    "P": 15,
    "E": 18,
}
_DECIMAL_SUFFIX: Final = {exponent: suffix for suffix, exponent in _DECIMAL.items()}
_BINARY: Final = ("", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei")
_INT64_DIGITS: Final = 18
_NANO: Final = -9
_LENGTH_MAX: Final = 60


def quantity_text(value: str | float) -> str:
    """Return the text that Go's ``resource.Quantity`` prints after parsing ``value``.

    Raises:
        ValueError: ``value`` is not a quantity.
    """
    text = str(value).strip()
    match = re.fullmatch(_QUANTITY, text, re.ASCII)
    if match is None or not text or len(text) > _LENGTH_MAX:
        raise ValueError(f"not a quantity: {text[:60]!r} (examples: 2, 500m, 1.5Gi)")
    whole, fraction, suffix = match["whole"] or "0", match["fraction"] or "", match["suffix"]
    if suffix.endswith("i"):
        exponent = 10 * _BINARY.index(suffix)
        if _keeps_binary_text(whole, fraction, exponent):
            return text
        amount, scale = int(whole + fraction) << exponent, -len(fraction)
    else:
        exponent = _DECIMAL[suffix] if suffix in _DECIMAL else int(suffix[1:])
        if _keeps_decimal_text(whole, fraction, exponent):
            return text
        amount, scale = int(whole + fraction), exponent - len(fraction)
    if scale < _NANO:
        amount, scale = -(-amount // 10 ** (_NANO - scale)), _NANO
    sign = "-" if match["sign"] == "-" and amount else ""
    return sign + _canonical(amount, scale, suffix)


def _keeps_binary_text(whole: str, fraction: str, exponent: int) -> bool:
    """Return whether Go sees at a glance that the author's text is canonical already."""
    if fraction or 15 - len(whole) - exponent * 3 // 10 - 1 < 0:
        return False
    return int(whole) % 8 != 0


def _keeps_decimal_text(whole: str, fraction: str, exponent: int) -> bool:
    digits, scale = whole + fraction, exponent - len(fraction)
    if len(digits) > _INT64_DIGITS or scale < _NANO or scale % 3:
        return False
    return not digits.endswith("000") and digits[0] != "0"


def _canonical(amount: int, scale: int, suffix: str) -> str:
    """Return ``amount × 10^scale`` with the largest suffix that leaves a whole number."""
    if not amount:
        return "0"
    if suffix.endswith("i"):
        bytes_, rest = divmod(amount * 10 ** max(scale, 0), 10 ** max(-scale, 0))
        if bytes_ >= 1024 and not rest:
            power = 0
            while bytes_ % 1024 == 0 and power + 1 < len(_BINARY):
                bytes_, power = bytes_ // 1024, power + 1
            return f"{bytes_}{_BINARY[power]}"
    while amount % 10 == 0:
        amount, scale = amount // 10, scale + 1
    amount, scale = amount * 10 ** (scale % 3), scale - scale % 3
    exponential = suffix[:1] in ("e", "E") and suffix not in _DECIMAL and not suffix.endswith("i")
    if exponential or scale not in _DECIMAL_SUFFIX:
        return f"{amount}e{scale}" if scale else str(amount)
    return f"{amount}{_DECIMAL_SUFFIX[scale]}"


_ESCAPED: Final = str.maketrans(
    {character: f"\\u{ord(character):04x}" for character in "<>&\u2028\u2029"}
)


def json_text(value: object) -> str:
    """Return compact JSON with sorted keys, escaped for HTML as Go's ``json.Marshal`` does."""
    if isinstance(value, dict):
        entries = [f"{json_text(str(key))}:{json_text(value[key])}" for key in sorted(value)]
        return "{" + ",".join(entries) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(json_text, value)) + "]"
    if isinstance(value, float):
        return _number_text(value)
    return json.dumps(value, ensure_ascii=False).translate(_ESCAPED)


def _number_text(value: float) -> str:
    """Return the shortest text that reads back as ``value``; exponents begin at 1e21 and 1e-7."""
    mantissa, _, exponent = repr(value).partition("e")
    if not exponent:
        return mantissa.removesuffix(".0")
    if 1e-6 <= abs(value) < 1e21:
        places = len(mantissa.partition(".")[2]) - int(exponent)
        return f"{value:.{max(0, places)}f}"
    return f"{mantissa.removesuffix('.0')}e{int(exponent):+d}"
