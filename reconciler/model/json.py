"""Parsed documents: mappings whose values the type checker does not know, and their conversion."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

import msgspec

JsonObject = Mapping[str, Any]
"""An object of JSON or YAML that nobody changes.

Its form is stated by a schema in ``schemas/`` or by another program's API, which the type checker
cannot read. Whoever only passes a value on or compares it takes ``object``.
"""

JsonDict = dict[str, Any]
"""An object of JSON or YAML that is being made or changed."""


T = TypeVar("T")


def decode(data: object, kind: type[T]) -> T:
    """Return ``data`` as a ``kind``; a null field counts as one that is not there.

    Kubernetes reads it so, and Go programs write their empty lists as null.

    Raises:
        msgspec.ValidationError: the data does not have that shape.
    """
    try:
        return msgspec.convert(data, kind, strict=False)
    except msgspec.ValidationError:
        return msgspec.convert(_without_nulls(data), kind, strict=False)


def _without_nulls(data: object) -> object:
    if isinstance(data, dict):
        return {key: _without_nulls(value) for key, value in data.items() if value is not None}
    if isinstance(data, list):
        return [_without_nulls(value) for value in data]
    return data
