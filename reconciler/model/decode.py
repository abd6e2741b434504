"""From plain data, as a YAML or JSON reader gives it, to the Structs of the model."""

from __future__ import annotations

import re
from typing import Final, TypeVar

import msgspec

T = TypeVar("T")

_AT: Final = r"(?: - at `\$\.?([^`]*)`)?"
_MISMATCH: Final = re.compile(rf"Expected `([^`]{{1,200}})`, got `([^`]{{1,200}})`{_AT}")
_MISSING: Final = re.compile(rf"Object missing required field `([^`]{{1,200}})`{_AT}")
_FIELD_MAX: Final = 200
_WORDS: Final = {
    "object": "an object",
    "array": "a list",
    "str": "text",
    "int": "a whole number",
    "float": "a number",
    "bool": "true or false",
    "null": "nothing",
}


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


def describe_mismatch(error: msgspec.MsgspecError) -> str:
    """Return what is wrong with data, in the terms of its author: ``spec.x is text, not a list``.

    An error of another kind is described in the words of its own message.
    """
    message = str(error)
    found = _MISMATCH.fullmatch(message)
    if found is not None:
        wanted = " or ".join(_WORDS.get(part, part) for part in found[1].split(" | "))
        field = (found[3] or "it")[:_FIELD_MAX]
        return f"{field} is {_WORDS.get(found[2], found[2])}, not {wanted}"
    found = _MISSING.fullmatch(message)
    if found is not None:
        return f"{'.'.join(filter(None, (found[2], found[1])))[:_FIELD_MAX]} is missing"
    return message
