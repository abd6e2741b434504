"""The values of Terraform's expressions, and the functions that need only their arguments."""

from __future__ import annotations

import json
import operator
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Final, TypeAlias, TypeVar

_NUMBER_MAX: Final = 10**18
_SHOWN_MAX: Final = 160

T = TypeVar("T")

Value: TypeAlias = object
"""A JSON value, or ``Unknown``."""


@dataclass(frozen=True, slots=True)
class Unknown:
    """A value that depends on what is not in the files: the expression, as it is written."""

    text: str

    def __str__(self) -> str:
        shown = " ".join(self.text.split())
        begin, end = shown.find("{"), shown.rfind("}")
        if 0 <= begin < end:
            shown = f"{shown[:begin]}{{…}}{shown[end + 1 :]}"
        if not shown[:1].isalpha():
            shown = f"expression {shown}"
        return f"${{{shown if len(shown) <= _SHOWN_MAX else shown[:_SHOWN_MAX] + '…'}}}"


@dataclass(frozen=True, slots=True)
class PartialMap(Unknown):
    """A map of which only the ``known`` entries are in the files; ``rest`` has the others."""

    known: Mapping[str, Value]
    rest: Sequence[Unknown]


def plain(value: Value) -> Value:
    """Return a value as JSON: what is unknown becomes a placeholder, ``${...}``.

    The unknown entries of a map become one entry, whose key and value are the placeholder.
    """
    if isinstance(value, PartialMap):
        return {str(k): plain(v) for k, v in value.known.items()} | {
            str(one): str(one) for one in value.rest
        }
    if isinstance(value, Unknown):
        return str(value)
    if isinstance(value, Mapping):
        return {str(k): plain(v) for k, v in value.items()}
    if isinstance(value, list):
        return [plain(v) for v in value]
    return value


def merge(values: Sequence[Value], text: str) -> Value:
    """Return the entries of several maps, with those of unknown ones as ``rest``.

    ``text`` is the expression. Entries that are known are taken to hold: an unknown map that
    replaces one mostly adds to the defaults.
    """
    merged: dict[str, Value] = {}
    rest: list[Unknown] = []
    for value in values:
        known = value.known if isinstance(value, PartialMap) else value
        if isinstance(known, Mapping):
            merged |= {str(k): v for k, v in known.items()}
        if isinstance(value, PartialMap):
            rest += value.rest
        elif isinstance(value, Unknown):
            rest.append(value)
        elif value is not None and not isinstance(value, Mapping):
            raise TypeError("merge takes maps")
    if not rest:
        return merged
    return PartialMap(text, merged, tuple(rest)) if merged else Unknown(text)


def _expect(value: Value, kind: type[T], name: str) -> T:
    """Return an argument of a function, which has to be of a kind.

    Raises:
        TypeError: it is of another one, such as a variable that is null.
    """
    if not isinstance(value, kind):
        raise TypeError(f"{name} takes a {kind.__name__}, not {type(value).__name__}")
    return value


def _concat(*values: Value) -> Value:
    return [item for value in values if isinstance(value, list) for item in value]


def _join(separator: Value, items: Value) -> Value:
    items = _expect(items, list, "join")
    return str(separator).join(map(to_text, items))


def _replace(value: Value, old: Value, new: Value) -> Value:
    pattern = str(old)
    if len(pattern) > 1 and pattern.startswith("/") and pattern.endswith("/"):
        raise ValueError("a regular expression of a repository is not run")
    return str(value).replace(pattern, str(new))


def _indent(width: Value, value: Value) -> Value:
    width = _expect(width, int, "indent")
    return str(value).replace("\n", "\n" + " " * min(width, 80))


def _size(value: Value) -> Value:
    return len(value) if isinstance(value, list | Mapping | str) else 0


def _lookup(values: Value, key: Value, default: Value = None) -> Value:
    if not isinstance(values, Mapping):
        raise TypeError("lookup takes a map")
    return values.get(str(key), default)


def _format(pattern: Value, *values: Value) -> Value:
    rest = list(values)
    return re.sub(r"%[sdvq]", lambda _: to_text(rest.pop(0)), str(pattern))


def to_text(value: Value) -> str:
    """Return a value as Terraform puts it into a string."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, Mapping | list):
        return json.dumps(plain(value))
    return "" if value is None else str(value)


def _equal(left: Value, right: Value) -> bool:
    return left == right


def _calculation(calculate: Callable[[Decimal, Decimal], Decimal]) -> Callable[..., Value]:
    """Return a calculation with two numbers, whole where its result is."""

    def result(left: Value, right: Value) -> Value:
        made = calculate(_number(left), _number(right))
        return int(made) if made == made.to_integral_value() else float(made)

    return result


def _comparison(compare: Callable[[Decimal, Decimal], bool]) -> Callable[..., Value]:
    return lambda left, right: compare(_number(left), _number(right))


def _number(value: Value) -> Decimal:
    if isinstance(value, bool):
        raise TypeError("a boolean is not a number")
    number = Decimal(str(value))
    if not number.is_finite() or abs(number) > _NUMBER_MAX:
        raise ValueError("a number is out of range")
    return number


OPERATORS: Final[Mapping[str, Callable[..., Value]]] = {
    "||": lambda left, right: left is True or right is True,
    "&&": lambda left, right: left is True and right is True,
    "==": _equal,
    "!=": lambda left, right: not _equal(left, right),
    "<": _comparison(operator.lt),
    ">": _comparison(operator.gt),
    "<=": _comparison(operator.le),
    ">=": _comparison(operator.ge),
    "+": _calculation(operator.add),
    "-": _calculation(operator.sub),
    "*": _calculation(operator.mul),
    "/": _calculation(operator.truediv),
    "%": _calculation(operator.mod),
}


def _element(items: Value, index: Value) -> Value:
    items = _expect(items, list, "element")
    index = _expect(index, int, "element")
    return items[index % len(items)]


def _slice(items: Value, start: Value, end: Value) -> Value:
    items = _expect(items, list, "slice")
    start = _expect(start, int, "slice")
    end = _expect(end, int, "slice")
    return items[start:end]


def _substring(text: Value, start: Value, length: Value) -> Value:
    start = _expect(start, int, "substr")
    length = _expect(length, int, "substr")
    return str(text)[start:] if length < 0 else str(text)[start : start + length]


def _contains(items: Value, item: Value) -> bool:
    items = _expect(items, list, "contains")
    return item in items


def _pairs(keys: Value, values: Value) -> Value:
    keys = _expect(keys, list, "zipmap")
    values = _expect(values, list, "zipmap")
    return dict(zip(map(str, keys), values, strict=True))


def _set(items: Value) -> Value:
    """Return a set: Terraform goes through the strings of one in their order."""
    items = _expect(items, list, "toset")
    return sorted(set(items)) if all(isinstance(i, str) for i in items) else items


FUNCTIONS: Final[Mapping[str, Callable[..., Value]]] = {
    "toset": _set,
    "tolist": lambda value: value,
    "tomap": lambda value: value,
    "tostring": to_text,
    "tonumber": int,
    "concat": _concat,
    "join": _join,
    "format": _format,
    "lower": lambda value: str(value).lower(),
    "upper": lambda value: str(value).upper(),
    "trimspace": lambda value: str(value).strip(),
    "chomp": lambda value: str(value).rstrip("\n"),
    "replace": _replace,
    "indent": _indent,
    "length": _size,
    "keys": sorted,
    "values": lambda value: [value[key] for key in sorted(value)],
    "lookup": _lookup,
    "distinct": lambda value: list(dict.fromkeys(value)),
    "flatten": lambda value: _concat(*value),
    "compact": lambda value: [item for item in value if item not in (None, "")],
    "contains": _contains,
    "element": _element,
    "endswith": lambda value, end: str(value).endswith(str(end)),
    "formatlist": lambda pattern, items: [_format(pattern, item) for item in items],
    "max": lambda *values: max(values, key=_number),
    "min": lambda *values: min(values, key=_number),
    "nonsensitive": lambda value: value,
    "one": lambda value: value[0] if value else None,
    "reverse": lambda value: value[::-1],
    "sensitive": lambda value: value,
    "slice": _slice,
    "sort": lambda value: sorted(map(str, value)),
    "startswith": lambda value, start: str(value).startswith(str(start)),
    "substr": _substring,
    "title": lambda value: str(value).title(),
    "trim": lambda value, characters: str(value).strip(str(characters)),
    "trimprefix": lambda value, start: str(value).removeprefix(str(start)),
    "trimsuffix": lambda value, end: str(value).removesuffix(str(end)),
    "zipmap": _pairs,
    "split": lambda separator, value: str(value).split(separator),
}
