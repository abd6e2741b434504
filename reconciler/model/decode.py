"""From plain data, as a YAML or JSON reader gives it, to the Structs of the model."""

from __future__ import annotations

import re
from typing import Final, NamedTuple, TypeVar, overload

import msgspec

from reconciler.model.errors import UnreadableError
from reconciler.model.text.quoting import shorten_middle

T = TypeVar("T")

_PLACE: Final = re.compile(r"(?<! ) *- at (?:`key` in )?`\$?\.?([^`]*)`$")
_MISMATCH: Final = re.compile(r"Expected `([^`]{1,200})`, got `([^`]{1,200})`")
_WRONG: Final = re.compile(r"Expected `([^`]{1,200})` ?(.{0,200})")
_MISSING: Final = re.compile(r"Object missing required field `([^`]{1,200})`")
_UNKNOWN: Final = re.compile(r"Object contains unknown field `([^`]{1,200})`")
_CHOICE: Final = re.compile(r"Invalid (?:enum )?value (.{1,200})")
_FIELD_MAX: Final = 200
_WORDS: Final = {
    "object": "an object",
    "array": "a list",
    "str": "text",
    "int": "a whole number",
    "float": "a number",
    "bool": "true or false",
    "null": "nothing",
    "datetime": "a time",
    "date": "a date",
    "timedelta": "a duration",
    "decimal": "a number",
    "bytes": "text in base64",
}
_PROBLEMS: Final = {
    "Invalid RFC3339 encoded datetime": "is not a time",
    "Invalid RFC3339 encoded date": "is not a date",
    "Invalid ISO8601 duration": "is not a duration",
    "Invalid base64 encoded string": "is not base64",
    "Invalid decimal string": "is not a number",
    "Timestamp is out of range": "is not a time in the calendar",
    "Integer value out of range": "is a number that is too large",
    "Number out of range": "is a number that is too large",
}

VALUES_MAX: Final = 50_000_000
"""The maximum number of values in a document that is decoded as one, by its commas.

An empty object has three characters and takes a hundred bytes of memory.
"""


def expect_values(content: bytes, where: str, *, remedy: str, values_max: int = VALUES_MAX) -> None:
    """Refuse a document that takes many times the memory of its text.

    Raises:
        UnreadableError: it has more than ``values_max`` values.
    """
    if content.count(b",") > values_max:
        raise UnreadableError(f"has more than {values_max:,} values", where=where, remedy=remedy)


@overload
def decode_json(content: bytes | str | msgspec.Raw) -> object: ...
@overload
def decode_json(content: bytes | str | msgspec.Raw, kind: type[T], *, strict: bool = ...) -> T: ...


def decode_json(
    content: bytes | str | msgspec.Raw, kind: type[object] = object, *, strict: bool = True
) -> object:
    """Return JSON as a ``kind``.

    The decoder itself has other errors for text that is not UTF-8 and for deep nesting, which a
    reader of untrusted bytes would have to know.

    Raises:
        msgspec.MsgspecError: it is not JSON of that shape.
    """
    try:
        return msgspec.json.decode(content, type=kind, strict=strict)
    except UnicodeDecodeError as error:
        what = f"JSON is malformed: it is not UTF-8 (byte {error.start + 1} of a text)"
        raise msgspec.DecodeError(what) from None
    except RecursionError:
        raise msgspec.DecodeError("JSON is malformed: it is nested too deeply") from None


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


class Mismatch(NamedTuple):
    """The field of data that has another shape, empty for all of it, and what is wrong with it."""

    field: str
    problem: str

    def __str__(self) -> str:
        return f"{self.field or 'it'} {self.problem}"


def describe_mismatch(error: Exception) -> str:
    """Return what is wrong with data, in the terms of its author: ``spec.x is text, not a list``.

    An error of another kind is described in the words of its own message.
    """
    found = mismatch_of(error)
    return str(found) if found is not None else str(error)


def mismatch_of(error: Exception) -> Mismatch | None:
    """Return what a decoder found, None if the error is of another kind."""
    message = str(error)
    place = _PLACE.search(message)
    field = place[1][:_FIELD_MAX] if place is not None else ""
    if place is not None:
        message = message[: place.start()]
    message = message.strip()
    if found := _MISMATCH.fullmatch(message):
        return Mismatch(field, f"is {_words(found[2])}, not {_words(found[1])}")
    if found := _MISSING.fullmatch(message):
        return Mismatch(".".join(filter(None, (field, found[1])))[:_FIELD_MAX], "is missing")
    if found := _UNKNOWN.fullmatch(message):
        return Mismatch(".".join(filter(None, (field, found[1])))[:_FIELD_MAX], "is not known")
    if found := _CHOICE.fullmatch(message):
        return Mismatch(field, f"cannot be {found[1]}")
    if found := _WRONG.fullmatch(message):
        return Mismatch(field, f"must be {_words(found[1])} {found[2]}".rstrip())
    if message in _PROBLEMS:
        return Mismatch(field, _PROBLEMS[message])
    problem = f"is invalid: {shorten_middle(message, _FIELD_MAX)}"
    return Mismatch(field, problem) if place is not None else None


def _words(kinds: str) -> str:
    return " or ".join(_WORDS.get(part, part) for part in kinds.split(" | "))
