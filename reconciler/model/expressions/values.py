"""The values that Kubernetes adds to CEL, and the functions and methods of all values."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache, total_ordering
from typing import Final

from reconciler.model.expressions.patterns import Pattern, PatternError
from reconciler.model.expressions.syntax import CELError
from reconciler.model.resources import MILLI, parse_quantity

_TEXT_MAX: Final = 10_000
_CHARACTERS_A_STEP: Final = 100
_SEMVER: Final = re.compile(
    r"(0|[1-9][0-9]{0,18})\.(0|[1-9][0-9]{0,18})\.(0|[1-9][0-9]{0,18})"
    r"(?:-([0-9A-Za-z.-]{1,64}))?(?:\+[0-9A-Za-z.-]{1,64})?",
    re.ASCII,
)


@dataclass(frozen=True, slots=True, order=True)
class Quantity:
    """A Kubernetes quantity in thousandths of its unit."""

    milli: int


@total_ordering
@dataclass(frozen=True, slots=True)
class Version:
    """A semantic version; ``pre`` is the part after the hyphen, without which it is newer."""

    major: int
    minor: int
    patch: int
    pre: str = ""

    def _key(self) -> tuple[object, ...]:
        parts = [(0, int(p), "") if p.isdecimal() else (1, 0, p) for p in self.pre.split(".")]
        return (self.major, self.minor, self.patch, not self.pre, parts if self.pre else [])

    def __lt__(self, other: Version) -> bool:
        return self._key() < other._key()


@dataclass(frozen=True, slots=True)
class Optional:
    """A value that may be absent."""

    value: object = None
    is_present: bool = False


class DefaultingMap(dict[str, object]):
    """A map that has an empty map for every key it does not hold."""

    __slots__ = ()

    def __missing__(self, key: str) -> object:
        return {}


def parse_version(text: str) -> Version:
    """Return a semantic version.

    Raises:
        CELError: it is none.
    """
    match = _SEMVER.fullmatch(text)
    if match is None:
        raise CELError(f'not a semantic version: "{text[:60]}"')
    return Version(int(match[1]), int(match[2]), int(match[3]), match[4] or "")


Operation = Callable[..., object]
"""A function of an expression."""


def type_name(value: object) -> str:
    """Return what a value is called in a message."""
    names = {
        bool: "a boolean",
        int: "a number",
        float: "a number",
        str: "a string",
        list: "a list",
        Quantity: "a quantity",
        Version: "a version",
    }
    return "null" if value is None else names.get(type(value), "an object")


def bounded(value: object) -> object:
    """Return a value unless it is too large.

    Raises:
        CELError: it is.
    """
    if isinstance(value, int) and not -(2**63) <= value < 2**64:
        raise CELError("a number beyond 64 bits")
    if isinstance(value, (str, list)):
        _check_length(len(value))
    return value


def _check_length(length: int) -> None:
    """Check the length of a text or a list before it is made."""
    if length > _TEXT_MAX:
        raise CELError("a value that is too long")


def steps_to_visit(value: object, most: int) -> int:
    """Return the steps that it takes to visit a value with all that it contains, at most ``most``.

    A list in a list counts as often as it is in it, since it is compared and copied as often.
    """
    steps, waiting = 0, [value]
    while waiting and steps <= most:
        found = waiting.pop()
        if isinstance(found, str):
            steps += len(found) // _CHARACTERS_A_STEP
        elif isinstance(found, (list, dict)):
            steps += len(found)
            waiting += found if isinstance(found, list) else found.values()
        elif isinstance(found, Optional):
            waiting.append(found.value)
    return min(steps, most)


# Functions and methods.


@lru_cache(maxsize=256)
def _pattern(text: str) -> Pattern:
    try:
        return Pattern(text)
    except PatternError as error:
        raise CELError(f"invalid pattern: {error}") from error


def _matches(text: str, pattern: str) -> bool:
    return _pattern(pattern).search(text)


def matching_steps(text: object, pattern: object) -> int:
    """Return the steps of an evaluation that ``matches`` takes at most.

    Raises:
        CELError: the pattern is invalid.
    """
    if not isinstance(text, str) or not isinstance(pattern, str):
        return 0
    return _pattern(pattern).cost(text)


def _quantity(text: object) -> Quantity:
    return text if isinstance(text, Quantity) else Quantity(parse_quantity(str(text)))


def _is_valid(read: Callable[[str], object]) -> Callable[[object], bool]:
    def check(text: object) -> bool:
        try:
            read(str(text))
        except ValueError:
            return False
        return True

    return check


def _integer(value: object) -> int:
    if isinstance(value, (int, float, str)) and not isinstance(value, bool):
        found = int(value[:30]) if isinstance(value, str) else int(value)
        bounded(found)
        return found
    raise CELError(f"int() needs a number or a string, not {type_name(value)}")


def _compare(left: object, right: object) -> int:
    if type(left) is not type(right):
        raise CELError(f"{type_name(left)} is compared with {type_name(right)}")
    return int(left > right) - int(left < right)  # type: ignore[operator]


def _as_text(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (str, int, float)):
        return str(value)
    raise CELError(f"string() needs a simple value, not {type_name(value)}")


FUNCTIONS: Final[dict[str, Operation]] = {
    "quantity": _quantity,
    "isQuantity": _is_valid(parse_quantity),
    "semver": parse_version,
    "isSemver": _is_valid(parse_version),
    "size": len,
    "int": _integer,
    "double": float,
    "string": _as_text,
    "bool": lambda v: v if isinstance(v, bool) else {"true": True, "false": False}[v],
}


def _present(optional: Optional) -> object:
    if not optional.is_present:
        raise CELError("an optional value is absent")
    return optional.value


def _whole(quantity: Quantity) -> int:
    if quantity.milli % MILLI:
        raise CELError("the quantity is not a whole number")
    return quantity.milli // MILLI


def _join(items: list[object], separator: str = "") -> str:
    texts = [item for item in items if isinstance(item, str)]
    if len(texts) < len(items):
        raise CELError("join() needs a list of strings")
    _check_length(sum(map(len, texts)) + len(separator) * max(len(texts) - 1, 0))
    return separator.join(texts)


def _replace(text: str, old: str, new: str) -> str:
    _check_length(len(text) + text.count(old) * (len(new) - len(old)))
    return text.replace(old, new)


_COMPARISONS: Final[dict[str, Operation]] = {
    "compareTo": _compare,
    "isGreaterThan": lambda a, b: _compare(a, b) > 0,
    "isLessThan": lambda a, b: _compare(a, b) < 0,
}
METHODS: Final[tuple[tuple[type, dict[str, Operation]], ...]] = (
    (
        str,
        {
            "startsWith": str.startswith,
            "endsWith": str.endswith,
            "contains": str.__contains__,
            "matches": _matches,
            "size": len,
            "lowerAscii": str.lower,
            "upperAscii": str.upper,
            "trim": str.strip,
            "split": lambda s, sep: s.split(sep) if sep else list(s),
            "replace": _replace,
            "indexOf": str.find,
            "substring": lambda s, start, end=None: s[start:end],
        },
    ),
    (
        Quantity,
        {
            **_COMPARISONS,
            "add": lambda a, b: Quantity(a.milli + _quantity(b).milli),
            "sub": lambda a, b: Quantity(a.milli - _quantity(b).milli),
            "sign": lambda q: (q.milli > 0) - (q.milli < 0),
            "isInteger": lambda q: q.milli % MILLI == 0,
            "asInteger": _whole,
            "asApproximateFloat": lambda q: q.milli / MILLI,
        },
    ),
    (
        Version,
        {
            **_COMPARISONS,
            "major": lambda v: v.major,
            "minor": lambda v: v.minor,
            "patch": lambda v: v.patch,
        },
    ),
    (
        Optional,
        {
            "hasValue": lambda o: o.is_present,
            "value": _present,
            "orValue": lambda o, other: o.value if o.is_present else other,
            "or": lambda o, other: o if o.is_present else other,
        },
    ),
    (list, {"size": len, "join": _join, "includes": lambda items, v: v in items}),
    (dict, {"size": len}),
)
METHOD_NAMES: Final = frozenset(name for _, methods in METHODS for name in methods)
