"""The values of Terraform's expressions, and the functions that need only their arguments."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, TypeAlias

Value: TypeAlias = object
"""A JSON value, or ``Unknown``."""


@dataclass(frozen=True, slots=True)
class Unknown:
    """A value that depends on what is not in the files: the expression, as it is written."""

    text: str

    def __str__(self) -> str:
        return f"${{{self.text}}}"


def plain(value: Value) -> Value:
    """Return a value as JSON: what is unknown becomes a placeholder, ``${...}``."""
    if isinstance(value, Unknown):
        return str(value)
    if isinstance(value, Mapping):
        return {str(k): plain(v) for k, v in value.items()}
    if isinstance(value, list):
        return [plain(v) for v in value]
    return value


def _merge(*values: Value) -> Value:
    merged: dict[str, Value] = {}
    for value in values:
        assert isinstance(value, Mapping), "merge takes maps"
        merged |= {str(k): v for k, v in value.items()}
    return merged


def _concat(*values: Value) -> Value:
    return [item for value in values if isinstance(value, list) for item in value]


def _join(separator: Value, items: Value) -> Value:
    assert isinstance(items, list), "join takes a list"
    return str(separator).join(map(to_text, items))


def _replace(value: Value, old: Value, new: Value) -> Value:
    pattern = str(old)
    if len(pattern) > 1 and pattern.startswith("/") and pattern.endswith("/"):
        raise ValueError("a regular expression of a repository is not run")
    return str(value).replace(pattern, str(new))


def _indent(width: Value, value: Value) -> Value:
    assert isinstance(width, int), "indent takes a number"
    return str(value).replace("\n", "\n" + " " * min(width, 80))


def _size(value: Value) -> Value:
    return len(value) if isinstance(value, list | Mapping | str) else 0


def _lookup(values: Value, key: Value, default: Value = None) -> Value:
    assert isinstance(values, Mapping), "lookup takes a map"
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


FUNCTIONS: Final[Mapping[str, Callable[..., Value]]] = {
    "toset": lambda value: value,
    "tolist": lambda value: value,
    "tomap": lambda value: value,
    "tostring": to_text,
    "tonumber": int,
    "merge": _merge,
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
    "split": lambda separator, value: str(value).split(separator),
}
