"""Validate an object against a schema of ``schemas/`` and report findings to its author.

jsonschema validates; its errors become findings here. There is one finding for each error, at the
key or value that is wrong: the value read, the allowed values, and the nearest name for a
misspelled one. Kubernetes' extensions of JSON Schema are added to the library's validator: Go's
patterns, the grammars of quantities and durations (``x-format``), and misspelled keys in open
mappings.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

from reconciler._resources import resource_path
from reconciler.model.duration import NEVER, parse_nillable, parse_span
from reconciler.model.json import JsonDict
from reconciler.model.resources import parse_quantity
from reconciler.model.schedule import parse_schedule
from reconciler.model.text.nearest import SIMILARITY_MIN, did_you_mean, nearest
from reconciler.model.text.quoting import quote_value
from reconciler.source.document import Pointer
from reconciler.source.finding import Finding, field_path

if TYPE_CHECKING:
    from jsonschema import ValidationError
    from jsonschema.protocols import Validator

Schema = JsonDict
Errors = JsonDict
"""The ``ValidationError`` of one value for each keyword that it violates."""

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
_ERRORS_MAX: Final = 10_000
_SIMILARITY_MIN: Final = 0.8
_MISTYPED: Final = "x-mistyped"

PRICE_MAX: Final = 1_000_000
"""The maximum of a NodeOverlay, in USD an hour or in percent."""

_TIME: Final = r"[0-9]{4}-[0-9]{2}-[0-9]{2}[Tt][0-9:]{8}(\.[0-9]{1,9})?([Zz]|[+-][0-9]{2}:[0-9]{2})"
"""The form of RFC 3339."""

_NOUNS: Final = {"quantity": "quantity", "duration": "duration", "price": "price", "span": "period"}
_SUFFIX: Final = re.compile(r"([0-9.]+) ?([A-Za-z]{1,20})", re.ASCII)
_DURATION: Final = re.compile(r"(\d{1,5}) ?([dhmsw])[a-z]*", re.ASCII | re.IGNORECASE)
_HOURS: Final = {"d": 24, "w": 7 * 24}
"""Units that Karpenter does not read, in hours."""


@lru_cache(maxsize=16)
def load_schema(name: str) -> Schema:
    """Return a schema by name, such as ``nodepool.v1``."""
    import json

    with open(resource_path("schemas", f"{name}.json"), encoding="utf-8") as file:
        schema: Schema = json.load(file)
    return schema


def check_schema(name: str, data: Any, definition: str = "") -> list[Finding]:
    """Return the findings on ``data`` by the schema ``name``, in order; at most 200.

    ``definition`` selects a part of the schema. A value without a finding is valid for every later
    stage: ``x-format`` in a schema names the grammar of a text, which is that of the model.
    """
    errors: dict[Pointer, Errors] = {}
    for error in islice(_validator(name, definition).iter_errors(data), _ERRORS_MAX):
        errors.setdefault(tuple(error.absolute_path), {}).setdefault(str(error.validator), error)
    if not errors:
        return []
    error_paths = {pointer[:end] for pointer in errors for end in range(len(pointer) + 1)}
    return list(islice(_findings(data, (), errors, error_paths), _FINDINGS_MAX))


def unknown_nulls(name: str, data: object) -> Iterator[Finding]:
    """Yield a finding for each null under a key that the schema ``name`` does not have.

    The API server drops the nulls of fields that it knows, and rejects any other.
    """
    schema = load_schema(name)
    yield from _unknown_nulls(schema, schema, data, ())


def _unknown_nulls(
    schema: Schema, node: Schema, data: object, pointer: Pointer
) -> Iterator[Finding]:
    node = resolve_reference(schema, node)
    if isinstance(data, dict):
        yield from _unknown_nulls_in_mapping(schema, node, data, pointer)
    elif isinstance(data, list) and isinstance(node.get("items"), dict):
        for index, value in enumerate(data):
            yield from _unknown_nulls(schema, node["items"], value, (*pointer, index))


def _unknown_nulls_in_mapping(
    schema: Schema, node: Schema, data: JsonDict, pointer: Pointer
) -> Iterator[Finding]:
    fields, extra = node.get("properties", {}), node.get("additionalProperties", True)
    for key, value in data.items():
        below = fields.get(key, extra)
        if isinstance(below, dict):
            yield from _unknown_nulls(schema, below, value, (*pointer, key))
        elif value is None and below is False and fields:
            near = nearest(str(key), [field for field in fields if field not in data])
            yield _unknown_field_finding((*pointer, key), near)


def _import_jsonschema() -> None:
    """Import jsonschema without the grammar of IRIs, which it imports if that is installed.

    No schema here uses it, and building it takes five times as long as reading a small fleet.
    """
    grammar = "rfc3987_syntax"
    if "jsonschema" in sys.modules or grammar in sys.modules:
        return
    sys.modules[grammar] = None  # type: ignore[assignment]
    try:
        import jsonschema  # noqa: F401
    finally:
        del sys.modules[grammar]


@lru_cache(maxsize=32)
def _validator(name: str, definition: str) -> Validator:
    """Return jsonschema's validator of a schema, with Kubernetes' extensions."""
    _import_jsonschema()
    from jsonschema import Draft202012Validator
    from jsonschema.validators import extend

    def is_integer(_: object, value: object) -> bool:
        return isinstance(value, int) and not isinstance(value, bool)

    kinds = Draft202012Validator.TYPE_CHECKER.redefine("integer", is_integer)
    keywords = {
        "pattern": _check_pattern,
        "x-format": _check_format,
        "properties": _check_properties,
        "items": _check_items,
    }
    schema = load_schema(name)
    if definition:
        schema = {"$defs": schema["$defs"], "$ref": f"#/$defs/{definition}"}
    validator_class: Any = extend(Draft202012Validator, keywords, type_checker=kinds)  # type: ignore[no-untyped-call]
    validator: Validator = validator_class(schema)
    return validator


def _check_pattern(
    _: Validator, pattern: str, value: object, __: Schema
) -> Iterator[ValidationError]:
    from jsonschema import ValidationError

    if isinstance(value, str) and _compile_pattern(pattern).search(value) is None:
        yield ValidationError(f"does not match {pattern}")


@lru_cache(maxsize=128)
def _compile_pattern(text: str) -> re.Pattern[str]:
    """Compile a pattern as the API server does: ``$`` is the end, not before a last newline."""
    return re.compile(text.replace("$", r"\Z"), re.ASCII)


def _check_format(
    _: Validator, format_name: str, value: object, __: Schema
) -> Iterator[ValidationError]:
    from jsonschema import ValidationError

    if isinstance(value, (str, int, float)) and not isinstance(value, bool):
        try:
            _FORMATS[format_name][1](str(value))
        except ValueError as error:
            yield ValidationError(str(error))


def _check_items(
    validator: Validator, items: Schema, value: object, node: Schema
) -> Iterator[ValidationError]:
    """Validate the entries of a list; only the allowed number of them if it is too long."""
    from jsonschema import Draft202012Validator

    checked = value[: node.get("maxItems")] if isinstance(value, list) else value
    yield from Draft202012Validator.VALIDATORS["items"](validator, items, checked, node)


def _check_properties(
    validator: Validator, fields: Schema, value: object, node: Schema
) -> Iterator[ValidationError]:
    """Validate the fields, and report misspelled ones if the schema allows additional fields."""
    from jsonschema import Draft202012Validator, ValidationError

    yield from Draft202012Validator.VALIDATORS["properties"](validator, fields, value, node)
    if (
        isinstance(value, dict)
        and node.get("additionalProperties", True) is True
        and _misspelled_keys(value, node)
    ):
        yield ValidationError("mistyped fields", validator=_MISTYPED)


def _check_price(text: str) -> None:
    if abs(float(text.removesuffix("%"))) > PRICE_MAX:
        raise ValueError(f"price {quote_value(text)} is out of range: at most {PRICE_MAX:,}")


def _check_time(text: str) -> None:
    if re.fullmatch(_TIME, text, re.ASCII) is not None:
        with suppress(ValueError):
            datetime.fromisoformat(text.upper())
            return
    raise ValueError(f"invalid time {quote_value(text)} (example: 2026-01-31T10:00:00Z)")


_FORMATS: Final[dict[str, tuple[str, Callable[[str], object]]]] = {
    "quantity": ("bad-quantity", parse_quantity),
    "duration": ("bad-duration", parse_nillable),
    "price": ("bad-price", _check_price),
    "time": ("bad-format", _check_time),
    "span": ("bad-duration", lambda text: text == NEVER or parse_span(text)),
}


def _findings(
    value: object, pointer: Pointer, errors: dict[Pointer, Errors], error_paths: set[Pointer]
) -> Iterator[Finding]:
    """Yield the findings on a value and then, in its own order, on its content."""
    checked = _CheckedValue(value, pointer, errors.get(pointer, {}))
    yield from checked.findings()
    if checked.is_unusable:
        return
    items: Iterable[tuple[str | int, object]] = ()
    if isinstance(value, dict):
        items = value.items()
    elif isinstance(value, list):
        items = enumerate(value)
    unknown = checked.unknown_keys()
    for key, child in items:
        child_pointer = (*pointer, key)
        if key in unknown:
            yield _unknown_field_finding(child_pointer, unknown[key])
        elif child_pointer in error_paths:
            yield from _findings(child, child_pointer, errors, error_paths)


@dataclass(frozen=True, slots=True)
class _CheckedValue:
    """A value, where it is, and the errors on itself."""

    value: Any
    pointer: Pointer
    errors: Errors

    @property
    def is_unusable(self) -> bool:
        """Whether its content says nothing more: it has the wrong type, or is not allowed."""
        return not self.errors.keys().isdisjoint(("type", "enum", "const"))

    def findings(self) -> Iterator[Finding]:
        """Yield the findings on the value itself."""
        if "type" in self.errors:
            expected = self.errors["type"].validator_value
            yield _wrong_type_finding(self.pointer, self.value, expected)
        elif self.is_unusable:
            yield self._not_allowed_finding()
        elif isinstance(self.value, dict):
            yield from self._mapping_findings()
        elif isinstance(self.value, list):
            yield from self._list_findings()
        else:
            yield from islice(self._scalar_findings(), 1)

    def unknown_keys(self) -> dict[object, str | None]:
        """Return the unknown keys of a mapping, each with the probably intended field."""
        error = self.errors.get("additionalProperties", self.errors.get(_MISTYPED))
        if error is None:
            return {}
        meant: dict[Any, str | None] = dict(_misspelled_keys(self.value, error.schema))
        if error.validator == _MISTYPED:
            return meant
        fields = error.schema.get("properties", {})
        return {key: meant.get(key) for key in self.value if key not in fields}

    def _not_allowed_finding(self) -> Finding:
        is_list = "enum" in self.errors
        stated = self.errors["enum" if is_list else "const"].validator_value
        allowed = stated if is_list else [stated]
        message = f"{quote_value(self.value)} is not allowed; must be {_format_choices(allowed)}"
        return Finding("not-allowed", self.pointer, message, did_you_mean(self.value, allowed))

    def _mapping_findings(self) -> Iterator[Finding]:
        if "required" in self.errors:
            node = self.errors["required"].schema
            meant = _misspelled_keys(self.value, node).values()
            for key in node["required"]:
                if key not in self.value and key not in meant:
                    field = node.get("properties", {}).get(key, {})
                    hint = "" if key == "spec" else _field_description(field)
                    message = f"required field `{key}` is missing"
                    yield Finding("missing-field", (*self.pointer, key), message, hint)
        if "maxProperties" in self.errors:
            yield self._too_many_finding("maxProperties")

    def _list_findings(self) -> Iterator[Finding]:
        if "minItems" in self.errors:
            least = self.errors["minItems"].validator_value
            message = f"has {len(self.value)} entries; needs at least {least}"
            yield Finding("too-few", self.pointer, message)
        if "maxItems" in self.errors:
            yield self._too_many_finding("maxItems")
        if "uniqueItems" in self.errors:
            for index, item in enumerate(self.value):
                if item in self.value[:index]:
                    message = f"duplicate entry {quote_value(item)}"
                    yield Finding("duplicate-entry", (*self.pointer, index), message, "remove one")

    def _too_many_finding(self, keyword: str) -> Finding:
        most = self.errors[keyword].validator_value
        message = f"has {len(self.value)} entries; at most {most} are allowed"
        return Finding("too-many", self.pointer, message)

    def _scalar_findings(self) -> Iterator[Finding]:
        """Yield the findings on a scalar value, the most specific first."""
        value, pointer, errors = self.value, self.pointer, self.errors
        if "minLength" in errors:
            yield Finding("empty", pointer, "is empty")
        if "maxLength" in errors:
            most = errors["maxLength"].validator_value
            message = f"has {len(value)} characters; at most {most} are allowed"
            yield Finding("too-long", pointer, message)
        if "pattern" in errors:
            yield _bad_format_finding(errors["pattern"].schema, value, pointer)
        for keyword, bound in (("minimum", "least"), ("maximum", "most")):
            if keyword in errors:
                limit = errors[keyword].validator_value
                yield Finding("out-of-range", pointer, f"is {value}; must be at {bound} {limit}")
        if "x-format" in errors:
            error = errors["x-format"]
            yield Finding(_FORMATS[error.validator_value][0], pointer, error.message)


def _wrong_type_finding(pointer: Pointer, value: object, expected: str | list[str]) -> Finding:
    types = [expected] if isinstance(expected, str) else expected
    words = " or ".join(_TYPE_WORDS[t] for t in types)
    message = f"must be {words}, not {_describe_value(value)}"
    if value is None:
        message = f"is empty; must be {words}"
    return Finding("wrong-type", pointer, message, _hint_for_type(value, types))


def _hint_for_type(value: object, types: list[str]) -> str:
    """Return how to write a scalar as one of ``types``, empty if it cannot be."""
    if value is None or isinstance(value, (dict, list)):
        return ""
    if "string" in types:
        return f'quote it: "{quote_value(value, 40)}"'
    if isinstance(value, str) and _reads_as(value, types):
        return "write it without quotes"
    return f"write it as a list: [{quote_value(value, 40)}]" if "array" in types else ""


def _reads_as(text: str, types: list[str]) -> bool:
    """Return whether YAML would read an unquoted ``text`` as one of ``types``."""
    if "boolean" in types and text.lower() in _BOOLEANS:
        return True
    try:
        number = float(text)
    except ValueError:
        return False
    return "number" in types or ("integer" in types and number.is_integer())


def _describe_value(value: object) -> str:
    if isinstance(value, bool):
        return f"the boolean {quote_value(value)}"
    if isinstance(value, str):
        return f"the string {quote_value(value)}"
    if isinstance(value, (int, float)):
        return f"the number {quote_value(value)}"
    return quote_value(value)


def _misspelled_keys(value: dict[str, object], node: Schema) -> dict[str, str]:
    """Return the misspelled keys, each with the probably intended field.

    An open mapping may have fields that were added later, so only a key that is nearly equal to a
    known one counts as misspelled.
    """
    fields, extra = node.get("properties", {}), node.get("additionalProperties", True)
    if isinstance(extra, dict) or not fields:
        return {}
    absent = [field for field in fields if field not in value]
    cutoff = _SIMILARITY_MIN if extra else SIMILARITY_MIN
    near = {key: nearest(key, absent, cutoff) for key in value if key not in fields}
    return {key: field for key, field in near.items() if field is not None}


def _field_description(node: Schema) -> str:
    """Return a description of a missing field: the first sentence of its own, in lower case."""
    text: str = node.get("description", "").split(". ", maxsplit=1)[0].rstrip(".")
    return text[:1].lower() + text[1:] if text[1:2].islower() or text[1:2] == " " else text


def _unknown_field_finding(pointer: Pointer, suggestion: str | None) -> Finding:
    parent = field_path(pointer[:-1])
    message = f"unknown field in {parent}" if parent else "unknown field"
    hint = f"did you mean {suggestion}?" if suggestion else ""
    replaces = ((*pointer[:-1], suggestion),) if suggestion else ()
    return Finding("unknown-field", pointer, message, hint, of_key=True, replaces=replaces)


def _bad_format_finding(node: Schema, value: str, pointer: Pointer) -> Finding:
    examples = ", ".join(str(e) for e in node.get("examples", ()))
    hint = f"examples: {examples}" if examples else ""
    is_schedule = pointer[-1:] == ("schedule",)
    noun = "schedule" if is_schedule else _NOUNS.get(node.get("x-format", ""), "value")
    message = f"invalid {noun} {quote_value(value)}"
    if is_schedule:
        message += _schedule_problem(value)
    if noun == "duration":
        hint = _duration_hint(value, node["pattern"]) or hint
    suffix = _SUFFIX.fullmatch(value) if noun == "quantity" else None
    if suffix is not None:
        message += f": unknown suffix {quote_value(suffix[2])}"
        hint = quantity_hint(value) or hint
    return Finding("bad-format", pointer, message, hint)


def _duration_hint(text: str, pattern: str) -> str:
    """Return a hint with the duration that is meant by ``14d``, ``5 min`` or ``never``."""
    match = _DURATION.fullmatch(text)
    meant = text.capitalize()
    if match is not None:
        number, unit = int(match[1]), match[2].lower()
        meant = f"{number * _HOURS[unit]}h" if unit in _HOURS else f"{number}{unit}"
    return f"did you mean {meant}?" if _compile_pattern(pattern).search(meant) else ""


def _schedule_problem(text: str) -> str:
    """Return the error in a schedule, for the end of a message."""
    try:
        parse_schedule(text)
    except ValueError as error:
        return f": {str(error).partition(': ')[0]}"
    return ""


def quantity_hint(text: str) -> str:
    """Return a hint with the quantities that may be meant by ``4Gb`` or ``4gib``, else nothing."""
    match = _SUFFIX.fullmatch(text)
    if match is None:
        return ""
    number, suffix = match.groups()
    letter = "k" if suffix[0] in "kK" else suffix[0].upper()
    prefix = suffix.lower().removesuffix("b").removesuffix("i")
    if prefix != letter.lower() or letter not in "kMGTPE":
        return ""
    binary, decimal = f"{number}{letter.upper()}i", f"{number}{letter}"
    return f"did you mean {binary}?" if "i" in suffix else f"did you mean {binary} or {decimal}?"


def _format_choices(allowed: Iterable[object]) -> str:
    words = [str(a) for a in allowed]
    return words[0] if len(words) == 1 else f"one of {', '.join(words)}"


def resolve_reference(root: Schema, node: Schema) -> Schema:
    """Return ``node``, or the definition in ``root`` that its ``$ref`` names."""
    ref = node.get("$ref")
    if ref is None:
        return node
    found: Schema = root["$defs"][ref.rpartition("/")[2]]
    return found


def value_at(data: Any, pointer: Pointer) -> Any:
    """Return the value at ``pointer``, None if it does not exist."""
    for step in pointer:
        try:
            data = data[step]
        except (KeyError, IndexError, TypeError):
            return None
    return data
