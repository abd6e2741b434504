"""Documents as they are parsed: mappings whose values the type checker does not know."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

JsonObject = Mapping[str, Any]
"""An object of JSON or YAML that is only read.

Its form is defined by a schema in ``schemas/`` or by another program's API, which the type checker
cannot read. Code that only passes a value on or compares it uses ``object``.
"""

JsonDict = dict[str, Any]
"""An object of JSON or YAML that is being made or changed."""


def nest(values: Mapping[str, object]) -> JsonDict:
    """Return values by dotted name as nested mappings; a value has no others below it."""
    nested: JsonDict = {}
    for name, value in values.items():
        *above, last = name.split(".")
        place = nested
        for step in above:
            place = as_mapping(place.setdefault(step, {}))
        place[last] = value
    return nested


def as_mapping(value: object) -> JsonDict:
    """Return a mapping, an empty one for anything else."""
    return value if isinstance(value, dict) else {}


def as_list(value: object) -> list[Any]:
    """Return a list, an empty one for anything else."""
    return value if isinstance(value, list) else []


def as_mappings(value: object) -> list[JsonDict]:
    """Return the mappings of a list, none for anything else."""
    return [item for item in as_list(value) if isinstance(item, dict)]


def as_text(value: object) -> str:
    """Return a text, an empty one for anything else."""
    return value if isinstance(value, str) else ""
