"""JSON Schema findings, told in the words of the file's author.

``jsonschema_rs`` judges; this module tells: one finding for one fault, at the key or value that
is wrong, with what was read, what is allowed, and the nearest name where one was mistyped.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import Any, Final

from reconciler._resources import resource
from reconciler.desired.document import Pointer
from reconciler.desired.finding import Finding, field_path, shown

_TYPE_WORDS: Final = {
    "string": "text",
    "integer": "a whole number",
    "number": "a number",
    "boolean": "true or false",
    "array": "a list",
    "object": "a mapping",
    "null": "null",
}
_RANK: Final = ("type", "const", "enum", "minLength", "maxLength", "pattern")
_FINDINGS_MAX: Final = 200


@lru_cache(maxsize=16)
def load(name: str) -> dict[str, Any]:
    """Return the schema ``nodepool.v1`` and its like."""
    import json

    with open(resource("schemas", f"{name}.json"), encoding="utf-8") as file:  # noqa: PTH123
        schema: dict[str, Any] = json.load(file)
    return schema


@lru_cache(maxsize=16)
def _validator(name: str) -> Any:
    """Compile a schema; 1 to 2 ms each, so only the kinds that are present pay."""
    import jsonschema_rs

    return jsonschema_rs.Draft202012Validator(load(name))


def check(name: str, data: Any) -> list[Finding]:
    """Return what the schema ``name`` has against ``data``, one finding for one fault."""
    schema = load(name)
    validator = _validator(name)
    if validator.is_valid(data):
        return []
    best: dict[tuple[Pointer, str], tuple[int, Finding]] = {}
    for number, error in enumerate(validator.iter_errors(data)):
        if number >= _FINDINGS_MAX:
            break
        pointer: Pointer = tuple(error.instance_path)
        keyword = error.kind.name
        rank = _RANK.index(keyword) if keyword in _RANK else len(_RANK)
        for finding in _tell(keyword, error, pointer, schema, data):
            key = (finding.pointer, "field" if keyword in _OF_OBJECT else "value")
            if key not in best or rank < best[key][0]:
                best[key] = (rank, finding)
    return [finding for _, finding in best.values()]


_OF_OBJECT: Final = frozenset({"required", "additionalProperties"})


def _tell(
    keyword: str, error: Any, pointer: Pointer, schema: dict[str, Any], data: Any
) -> Iterator[Finding]:
    kind = error.kind
    here = at(schema, pointer)
    value = value_at(data, pointer)
    match keyword:
        case "required":
            yield Finding(
                "missing-field", (*pointer, kind.property), "is missing", _what(here, kind.property)
            )
        case "additionalProperties":
            for key in kind.unexpected:
                yield unknown_field((*pointer, key), here.get("properties", {}))
        case "type":
            yield _wrong_type(pointer, value, here)
        case "enum" | "const":
            allowed = here.get("enum") or [here.get("const")]
            message = f"is {shown(value)}; must be {_choice(allowed)}"
            yield Finding("not-allowed", pointer, message, did_you_mean(value, allowed))
        case "pattern":
            examples = ", ".join(str(e) for e in here.get("examples", ()))
            hint = f"examples: {examples}" if examples else ""
            yield Finding(
                "bad-format", pointer, f"is {shown(value)}, which has not the right form", hint
            )
        case _:
            yield Finding(*_limit(keyword, pointer, value, here))


def _wrong_type(pointer: Pointer, value: Any, here: dict[str, Any]) -> Finding:
    wanted = here.get("type", "object")
    types = wanted if isinstance(wanted, list) else [wanted]
    words = " or ".join(_TYPE_WORDS[t] for t in types)
    hint = ""
    scalar = not isinstance(value, (dict, list)) and value is not None
    if "string" in types and scalar:
        hint = f'quote it: "{shown(value, 40)}"'
    elif isinstance(value, str) and {"integer", "number", "boolean"} & set(types):
        hint = "write it without quotes" if value.strip() else ""
    elif "array" in types and scalar:
        hint = f"write it as a list: [{shown(value, 40)}]"
    kind = "empty" if value is None else _kind(value)
    return Finding("wrong-type", pointer, f"is {kind}; must be {words}", hint)


def _kind(value: Any) -> str:
    if isinstance(value, bool):
        return f"{shown(value)} (a boolean)"
    if isinstance(value, str):
        return f"the text {shown(value)}"
    if isinstance(value, (int, float)):
        return f"the number {shown(value)}"
    return shown(value)


def _limit(
    keyword: str, pointer: Pointer, value: Any, here: dict[str, Any]
) -> tuple[str, Pointer, str]:
    most = here.get(keyword)
    match keyword:
        case "minimum":
            return "out-of-range", pointer, f"is {shown(value)}; must be at least {most}"
        case "maximum":
            return "out-of-range", pointer, f"is {shown(value)}; must be at most {most}"
        case "minItems":
            return "too-few", pointer, f"has {len(value)} entries; needs at least {most}"
        case "maxItems" | "maxProperties":
            return "too-many", pointer, f"has {len(value)} entries; at most {most} are allowed"
        case "minLength":
            return "empty", pointer, "is empty"
        case "maxLength":
            return "too-long", pointer, f"has {len(value)} characters; at most {most} are allowed"
        case "uniqueItems":
            return "duplicate-entry", pointer, "has an entry twice"
    return "invalid", pointer, f"is {shown(value)}, which the schema does not allow ({keyword})"


def _what(here: dict[str, Any], key: str) -> str:
    """Return what the missing field is, in the first sentence of its description."""
    text = here.get("properties", {}).get(key, {}).get("description", "")
    return str(text).split(". ")[0].rstrip(".")


def _choice(allowed: Iterable[Any]) -> str:
    words = [str(a) for a in allowed]
    return words[0] if len(words) == 1 else f"one of {', '.join(words)}"


def unknown_field(pointer: Pointer, known: Iterable[str]) -> Finding:
    """Return the finding on a key that the schema does not know, with the nearest one it does."""
    key = pointer[-1]
    parent = field_path(pointer[:-1]) or "the object"
    message = f"no such field in {parent}"
    return Finding("unknown-field", pointer, message, did_you_mean(key, known), of_key=True)


def did_you_mean(word: Any, known: Iterable[Any]) -> str:
    """Return ``did you mean …?`` where a known word is near, else nothing."""
    if not isinstance(word, str) or len(word) > 200:
        return ""
    from difflib import get_close_matches

    lowered = {str(k).lower(): str(k) for k in known}
    near = get_close_matches(word.lower(), lowered, n=1, cutoff=0.6)
    return f"did you mean {lowered[near[0]]}?" if near else ""


def at(schema: dict[str, Any], pointer: Pointer) -> dict[str, Any]:
    """Return the part of a schema that describes the value at ``pointer``; {} where none does."""
    node = schema
    for step in pointer:
        node = resolved(schema, node)
        if isinstance(step, int):
            node = node.get("items", {})
        else:
            below = node.get("properties", {}).get(step)
            extra = node.get("additionalProperties")
            node = below if below is not None else extra if isinstance(extra, dict) else {}
    return resolved(schema, node)


def resolved(schema: dict[str, Any], node: dict[str, Any]) -> dict[str, Any]:
    """Return ``node``, or what its ``$ref`` names."""
    ref = node.get("$ref")
    if ref is None:
        return node
    found: dict[str, Any] = schema["$defs"][ref.rpartition("/")[2]]
    return found


def value_at(data: Any, pointer: Pointer) -> Any:
    """Return the value at ``pointer``, None where there is none."""
    for step in pointer:
        try:
            data = data[step]
        except (KeyError, IndexError, TypeError):
            return None
    return data
