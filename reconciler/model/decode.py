"""From plain data, as a YAML or JSON reader gives it, to the Structs of the model."""

from __future__ import annotations

from typing import TypeVar

import msgspec

T = TypeVar("T")


def decode(data: object, kind: type[T]) -> T:
    """Return ``data`` as a ``kind``; a null field counts as absent.

    Kubernetes treats null the same way, and Go programs write their empty lists as null.

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
