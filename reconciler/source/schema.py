"""The faults of an object according to a schema of ``schemas/``, in terms of the file's author.

One finding for one fault, at the key or value that is wrong: what was read, what is allowed, and
the nearest name where one was mistyped. A JSON Schema library would judge as well, but importing
the fastest of them costs a fifth of the time that a whole validation may take, and its answers
have to be translated anyway. So the few keywords that our schemas use are read here, and a test
holds this module against such a library, keyword by keyword and on generated objects.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache
from typing import Any, Final

from reconciler._resources import resource
from reconciler.model.duration import NEVER, parse_nillable, parse_span
from reconciler.model.resources import parse_quantity
from reconciler.model.text.nearest import LIKE, did_you_mean, nearest
from reconciler.source.document import Pointer
from reconciler.source.finding import Finding, field_path, shown

Schema = dict[str, Any]

KEYWORDS: Final = frozenset(
    {
        "$ref",
        "additionalProperties",
        "const",
        "enum",
        "items",
        "maxItems",
        "maxLength",
        "maxProperties",
        "maximum",
        "minItems",
        "minLength",
        "minimum",
        "pattern",
        "properties",
        "required",
        "type",
        "uniqueItems",
    }
)
"""The keywords that constrain a value and are read here; a schema uses no others."""

_TYPES: Final[dict[str, tuple[type, ...]]] = {
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "array": (list,),
    "object": (dict,),
}
_TYPE_WORDS: Final = {
    "string": "a string",
    "integer": "an integer",
    "number": "a number",
    "boolean": "true or false",
    "array": "a list",
    "object": "a mapping",
}
_BOOLEANS: Final = ("true", "false", "yes", "no", "on", "off")
_FINDINGS_MAX: Final = 200
_SLIP: Final = 0.8


@lru_cache(maxsize=16)
def load(name: str) -> Schema:
    """Return the schema ``nodepool.v1`` and its like."""
    import json

    with open(resource("schemas", f"{name}.json"), encoding="utf-8") as file:  # noqa: PTH123
        schema: Schema = json.load(file)
    return schema


def check(name: str, data: Any, definition: str = "") -> list[Finding]:
    """Return what the schema ``name`` has against ``data``; at most 200 findings.

    ``definition`` names the part of the schema that judges, where it is not the whole.
    """
    schema = load(name)
    node = schema["$defs"][definition] if definition else schema
    found: list[Finding] = []
    for finding in faults(schema, node, data, ()):
        found.append(finding)
        if len(found) == _FINDINGS_MAX:
            break
    return found


def misread(name: str, data: Any, definition: str = "") -> list[Finding]:
    """Return the texts that the model cannot read though they match their pattern.

    ``x-format`` in a schema names the grammar of a text, which is that of the model. So a value
    without a finding is one that every later stage can use.
    """
    root = load(name)
    return list(_misread(root, root["$defs"][definition] if definition else root, data, ()))


def _misread(root: Schema, node: Schema, value: Any, pointer: Pointer) -> Iterator[Finding]:
    node = resolved(root, node)
    if isinstance(value, dict):
        fields, extra = node.get("properties", {}), node.get("additionalProperties")
        for key, below in value.items():
            of_key = fields.get(key, extra)
            if isinstance(of_key, dict):
                yield from _misread(root, of_key, below, (*pointer, key))
    elif isinstance(value, list):
        for index, item in enumerate(value if "items" in node else ()):
            yield from _misread(root, node["items"], item, (*pointer, index))
    elif "x-format" in node and isinstance(value, (str, int, float)):
        code, parse = _FORMATS[node["x-format"]]
        try:
            parse(str(value))
        except ValueError as error:
            yield Finding(code, pointer, str(error))


PRICE_MAX: Final = 1_000_000
"""A NodeOverlay names at most so many USD an hour, or so many percent."""


def _price(text: str) -> None:
    if abs(float(text.removesuffix("%"))) > PRICE_MAX:
        raise ValueError(f"price {shown(text)} is out of range: at most {PRICE_MAX:,}")


_FORMATS: Final[dict[str, tuple[str, Callable[[str], object]]]] = {
    "quantity": ("bad-quantity", parse_quantity),
    "duration": ("bad-duration", parse_nillable),
    "price": ("bad-price", _price),
    "span": ("bad-duration", lambda text: text == NEVER or parse_span(text)),
}


def faults(root: Schema, node: Schema, value: Any, pointer: Pointer) -> Iterator[Finding]:
    """Yield the faults of ``value`` and what is in it, judged by the part ``node`` of ``root``."""
    node = resolved(root, node)
    if "type" in node and not _has_type(value, node["type"]):
        yield _wrong_type(pointer, value, node["type"])
        return
    allowed = node["enum"] if "enum" in node else [node["const"]] if "const" in node else None
    if allowed is not None and value not in allowed:
        message = f"{shown(value)} is not allowed; must be {_choice(allowed)}"
        yield Finding("not-allowed", pointer, message, did_you_mean(value, allowed))
    elif isinstance(value, dict):
        yield from _mapping(root, node, value, pointer)
    elif isinstance(value, list):
        yield from _list(root, node, value, pointer)
    elif isinstance(value, str):
        yield from _text(node, value, pointer)
    elif not isinstance(value, bool):
        yield from _number(node, value, pointer)


def _has_type(value: Any, wanted: str | list[str]) -> bool:
    types = (wanted,) if isinstance(wanted, str) else wanted
    if isinstance(value, bool):
        return "boolean" in types
    return any(isinstance(value, _TYPES[t]) for t in types)


def _wrong_type(pointer: Pointer, value: Any, wanted: str | list[str]) -> Finding:
    types = [wanted] if isinstance(wanted, str) else wanted
    words = " or ".join(_TYPE_WORDS[t] for t in types)
    hint = ""
    is_scalar = not isinstance(value, (dict, list)) and value is not None
    if "string" in types and is_scalar:
        hint = f'quote it: "{shown(value, 40)}"'
    elif isinstance(value, str) and _reads_as(value, types):
        hint = "write it without quotes"
    elif "array" in types and is_scalar:
        hint = f"write it as a list: [{shown(value, 40)}]"
    message = f"must be {words}, not {_kind(value)}"
    if value is None:
        message = f"is empty; must be {words}"
    return Finding("wrong-type", pointer, message, hint)


def _reads_as(text: str, types: list[str]) -> bool:
    """Return whether YAML would read ``text`` as one of ``types`` if it were not quoted."""
    if "boolean" in types and text.lower() in _BOOLEANS:
        return True
    try:
        number = float(text)
    except ValueError:
        return False
    return "number" in types or ("integer" in types and number.is_integer())


def _kind(value: Any) -> str:
    if isinstance(value, bool):
        return f"the boolean {shown(value)}"
    if isinstance(value, str):
        return f"the string {shown(value)}"
    if isinstance(value, (int, float)):
        return f"the number {shown(value)}"
    return shown(value)


def _mapping(
    root: Schema, node: Schema, value: dict[str, Any], pointer: Pointer
) -> Iterator[Finding]:
    fields = node.get("properties", {})
    extra = node.get("additionalProperties", True)
    meant = {} if isinstance(extra, dict) else _meant(value, fields, is_open=extra is True)
    for key in node.get("required", ()):
        if key not in value and key not in meant.values():
            message = f"required field `{key}` is missing"
            hint = "" if key == "spec" else _what(fields.get(key, {}))
            yield Finding("missing-field", (*pointer, key), message, hint)
    most = node.get("maxProperties")
    if most is not None and len(value) > most:
        yield Finding("too-many", pointer, f"has {len(value)} entries; at most {most} are allowed")
    for key, below in value.items():
        if key in fields:
            yield from faults(root, fields[key], below, (*pointer, key))
        elif isinstance(extra, dict):
            yield from faults(root, extra, below, (*pointer, key))
        elif extra is False or key in meant:
            yield _unknown_field((*pointer, key), meant.get(key))


def _meant(value: dict[str, Any], fields: Schema, *, is_open: bool) -> dict[str, str]:
    """Return the keys that are slips of the pen, each with the field that it stands for.

    A mapping that its schema leaves open may have fields that came later: only a key that is all
    but one of the known ones is a slip there.
    """
    unknown = [key for key in value if key not in fields] if fields else []
    absent = [field for field in fields if field not in value] if unknown else []
    cutoff = _SLIP if is_open else LIKE
    near = {key: nearest(key, absent, cutoff) for key in unknown}
    return {key: field for key, field in near.items() if field is not None}


def _what(node: Schema) -> str:
    """Return what a missing field is: the first sentence of its description, in lower case."""
    text: str = node.get("description", "").split(". ", maxsplit=1)[0].rstrip(".")
    return text[:1].lower() + text[1:] if text[1:2].islower() or text[1:2] == " " else text


def _unknown_field(pointer: Pointer, meant: str | None) -> Finding:
    parent = field_path(pointer[:-1])
    message = f"unknown field in {parent}" if parent else "unknown field"
    hint = f"did you mean {meant}?" if meant else ""
    replaces = ((*pointer[:-1], meant),) if meant else ()
    return Finding("unknown-field", pointer, message, hint, of_key=True, replaces=replaces)


def _list(root: Schema, node: Schema, value: list[Any], pointer: Pointer) -> Iterator[Finding]:
    least, most = node.get("minItems", 0), node.get("maxItems")
    if len(value) < least:
        yield Finding("too-few", pointer, f"has {len(value)} entries; needs at least {least}")
    if most is not None and len(value) > most:
        yield Finding("too-many", pointer, f"has {len(value)} entries; at most {most} are allowed")
    if node.get("uniqueItems"):
        for index, item in enumerate(value):
            if item in value[:index]:
                message = f"duplicate entry {shown(item)}"
                yield Finding("duplicate-entry", (*pointer, index), message, "remove one")
    if "items" in node:
        for index, item in enumerate(value):
            yield from faults(root, node["items"], item, (*pointer, index))


def _text(node: Schema, value: str, pointer: Pointer) -> Iterator[Finding]:
    length, most = len(value), node.get("maxLength")
    if length < node.get("minLength", 0):
        yield Finding("empty", pointer, "is empty")
    elif most is not None and length > most:
        yield Finding("too-long", pointer, f"has {length} characters; at most {most} are allowed")
    elif "pattern" in node and _pattern(node["pattern"]).search(value) is None:
        examples = ", ".join(str(e) for e in node.get("examples", ()))
        hint = f"examples: {examples}" if examples else ""
        noun = _NOUNS.get(node.get("x-format", ""), "value")
        message = f"invalid {noun} {shown(value)}"
        suffix = _SUFFIX.fullmatch(value) if noun == "quantity" else None
        if suffix is not None:
            message += f": unknown suffix {shown(suffix[2])}"
            hint = _quantities(*suffix.groups()) or hint
        yield Finding("bad-format", pointer, message, hint)


_NOUNS: Final = {"quantity": "quantity", "duration": "duration", "price": "price", "span": "period"}
_SUFFIX: Final = re.compile(r"([0-9.]+) ?([A-Za-z]{1,20})", re.ASCII)


def _quantities(number: str, suffix: str) -> str:
    """Return a hint with the quantities that ``4Gb`` or ``4gib`` may have been meant for."""
    letter = "k" if suffix[0] in "kK" else suffix[0].upper()
    if (
        suffix.lower().removesuffix("b").removesuffix("i") != letter.lower()
        or letter not in "kMGTPE"
    ):
        return ""
    binary, decimal = f"{number}{letter.upper()}i", f"{number}{letter}"
    return f"did you mean {binary}?" if "i" in suffix else f"did you mean {binary} or {decimal}?"


@lru_cache(maxsize=128)
def _pattern(text: str) -> re.Pattern[str]:
    """Compile a pattern as the API server reads it: ``$`` is the end, not before a last newline."""
    return re.compile(text.replace("$", r"\Z"), re.ASCII)


def _number(node: Schema, value: float, pointer: Pointer) -> Iterator[Finding]:
    least, most = node.get("minimum"), node.get("maximum")
    if least is not None and value < least:
        yield Finding("out-of-range", pointer, f"is {value}; must be at least {least}")
    elif most is not None and value > most:
        yield Finding("out-of-range", pointer, f"is {value}; must be at most {most}")


def _choice(allowed: Iterable[Any]) -> str:
    words = [str(a) for a in allowed]
    return words[0] if len(words) == 1 else f"one of {', '.join(words)}"


def resolved(root: Schema, node: Schema) -> Schema:
    """Return ``node``, or the definition in ``root`` that its ``$ref`` names."""
    ref = node.get("$ref")
    if ref is None:
        return node
    found: Schema = root["$defs"][ref.rpartition("/")[2]]
    return found


def value_at(data: Any, pointer: Pointer) -> Any:
    """Return the value at ``pointer``, None where there is none."""
    for step in pointer:
        try:
            data = data[step]
        except (KeyError, IndexError, TypeError):
            return None
    return data
