"""The values of Terraform's expressions, and the functions that need only their arguments."""

from __future__ import annotations

import base64
import itertools
import json
import math
import operator
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Final, TypeAlias, TypeVar

from reconciler.source.document import parse_documents

_NUMBER_MAX: Final = 10**18
_SHOWN_MAX: Final = 160
_ITEMS_MAX: Final = 1_024
"""The most items of a list that a function makes: Terraform's own limit of ``range``."""

_TEXT_MAX: Final = 4 * 2**20
_COMPARISONS_MAX: Final = 10_000_000
_CHARACTERS: Final = 64
"""The characters of a text that count as much as a value."""

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


def weigh(value: Value, most: int) -> int:
    """Return the number of values in a value, or some number above ``most``.

    A part that is there several times counts as often: it is written as often.
    """
    weight, rest = 0, [value]
    while rest and weight <= most:
        match one := rest.pop():
            case str():
                weight += len(one) // _CHARACTERS
            case PartialMap():
                rest += (*one.known.values(), *one.rest)
            case Mapping():
                weight += len(one)
                rest += one.values()
            case list():
                rest += one
        weight += 1
    return weight


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
        match value:
            case PartialMap():
                merged |= {str(k): v for k, v in value.known.items()}
                rest += value.rest
            case Unknown():
                rest.append(value)
            case Mapping():
                merged |= {str(k): v for k, v in value.items()}
            case None:
                pass
            case _:
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


def _expect_text_of(size: int) -> None:
    """Check the size of a text before it is made.

    Raises:
        ValueError: it is too large.
    """
    if size > _TEXT_MAX:
        raise ValueError("a function makes too much text")


def _expect_few_comparisons(left: list[Value], right: Value) -> list[Value]:
    """Return a list with whose items all of another are compared.

    Raises:
        ValueError: they are too many.
    """
    right = _expect(right, list, "a function of sets")
    if len(left) * len(right) > _COMPARISONS_MAX:
        raise ValueError("too many items are compared")
    return right


def _intersection(first: Value, *others: Value) -> Value:
    left = _expect(first, list, "setintersection")
    for other in others:
        right = _expect_few_comparisons(left, other)
        left = [item for item in left if item in right]
    return _set(left)


def _difference(first: Value, second: Value) -> Value:
    left = _expect(first, list, "setsubtract")
    right = _expect_few_comparisons(left, second)
    return _set([item for item in left if item not in right])


def _format_each(pattern: Value, items: Value) -> Value:
    items = _expect(items, list, "formatlist")
    _expect_text_of(len(str(pattern)) * len(items))
    return [_format(pattern, item) for item in items]


def _concat(*values: Value) -> Value:
    return [item for value in values if isinstance(value, list) for item in value]


def _join(separator: Value, items: Value) -> Value:
    items = _expect(items, list, "join")
    _expect_text_of(len(str(separator)) * len(items))
    return str(separator).join(map(to_text, items))


def _replace(value: Value, old: Value, new: Value) -> Value:
    pattern = str(old)
    if len(pattern) > 1 and pattern.startswith("/") and pattern.endswith("/"):
        raise ValueError("a regular expression of a repository is not run")
    text, replacement = str(value), str(new)
    _expect_text_of(text.count(pattern) * len(replacement))
    return text.replace(pattern, replacement)


def _indent(width: Value, value: Value) -> Value:
    width = _expect(width, int, "indent")
    return _replace(value, "\n", "\n" + " " * min(width, 80))


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
    return lambda left, right: _plain_number(calculate(_number(left), _number(right)))


def _plain_number(number: Decimal) -> int | float:
    return int(number) if number == number.to_integral_value() else float(number)


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


def _power(base: Value, exponent: Value) -> Value:
    if abs(_number(exponent)) > 64:
        raise ValueError("an exponent is out of range")
    return _plain_number(_number(_number(base) ** _number(exponent)))


def _parse_integer(text: Value, base: Value) -> Value:
    return _plain_number(_number(int(str(text), _expect(base, int, "parseint"))))


def _range(*bounds: Value) -> Value:
    """Return the numbers of ``range(end)`` or ``range(start, end, step)``, without the end.

    Without a step, a range whose end is below its start counts down.
    """
    first, last = map(_number, bounds[:2] if len(bounds) > 1 else (0, *bounds))
    step = _number(bounds[2]) if len(bounds) > 2 else Decimal(-1 if last < first else 1)
    count = max(math.ceil((last - first) / step), 0)
    if count > _ITEMS_MAX:
        raise ValueError("a range is too long")
    return [_plain_number(first + step * number) for number in range(count)]


def _product(*lists: Value) -> Value:
    values = [_expect(one, list, "setproduct") for one in lists]
    if math.prod(map(len, values)) > _ITEMS_MAX:
        raise ValueError("a product is too long")
    return [list(combination) for combination in itertools.product(*values)]


def _union(*lists: Value) -> Value:
    return _set([item for one in lists for item in _expect(one, list, "setunion")])


def _chunks(items: Value, size: Value) -> Value:
    items, size = _expect(items, list, "chunklist"), _expect(size, int, "chunklist")
    return [items[start : start + size] for start in range(0, len(items), size)]


def _to_boolean(value: Value) -> bool:
    return {"true": True, "false": False}[to_text(value)]


def _set(items: Value) -> Value:
    """Return a set: Terraform goes through the strings of one in their order."""
    items = _expect(items, list, "toset")
    return sorted(set(items)) if all(isinstance(i, str) for i in items) else items


FUNCTIONS: Final[Mapping[str, Callable[..., Value]]] = {
    "toset": _set,
    "tolist": lambda value: value,
    "tomap": lambda value: value,
    "tostring": to_text,
    "tonumber": lambda value: _plain_number(_number(value)),
    "tobool": _to_boolean,
    "abs": lambda value: _plain_number(abs(_number(value))),
    "ceil": lambda value: math.ceil(_number(value)),
    "floor": lambda value: math.floor(_number(value)),
    "parseint": _parse_integer,
    "pow": _power,
    "range": _range,
    "signum": lambda value: (_number(value) > 0) - (_number(value) < 0),
    "sum": lambda items: _plain_number(sum(map(_number, items), Decimal(0))),
    "alltrue": lambda items: all(map(_to_boolean, items)),
    "anytrue": lambda items: any(map(_to_boolean, items)),
    "base64decode": lambda value: base64.b64decode(str(value), validate=True).decode(),
    "base64encode": lambda value: base64.b64encode(str(value).encode()).decode(),
    "chunklist": _chunks,
    "index": lambda items, item: _expect(items, list, "index").index(item),
    "jsondecode": lambda value: json.loads(str(value)),
    "setintersection": _intersection,
    "setproduct": _product,
    "setsubtract": _difference,
    "setunion": _union,
    "strcontains": lambda value, part: str(part) in str(value),
    "strrev": lambda value: str(value)[::-1],
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
    "formatlist": _format_each,
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


def encode(name: str, value: Value, text: str) -> Value:
    """Return a value as text, as ``jsonencode`` and ``yamlencode`` write it.

    ``text`` is the expression.
    """
    if isinstance(value, Unknown) and not isinstance(value, PartialMap):
        return Unknown(text)
    value = plain(value)
    if name == "jsonencode":
        return to_text(value) if isinstance(value, Mapping | list) else json.dumps(value)
    from reconciler.source.plainyaml import dump

    return dump(value, sort_keys=False)


def decode(value: Value, text: str) -> Value:
    """Return the value in a YAML text, unknown if it is no text with one document."""
    if not isinstance(value, str):
        return Unknown(text)
    documents, findings = parse_documents("", value.encode())
    return Unknown(text) if findings or len(documents) != 1 else documents[0].data
