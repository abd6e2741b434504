"""Reads the paths in an expression: ``plan.cost.after``, and those of variables that macros bind.

CEL has no types for ``plan``, and its compiler shows no syntax tree. Only paths, macros and the
conditions of ``?:`` are read here. Whether the expression is valid is decided by compiling it
(``evaluator.py``).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from reconciler.model.json import JsonDict
from reconciler.model.text.nearest import nearest
from reconciler.source.schema import load_schema

_TOKEN: Final = re.compile(
    r"""
    (?P<space> \s+ | //[^\n]* )
  | (?P<string> [rRbB]{0,2} (?: \"{3}.*?\"{3} | '{3}.*?'{3}
                              | "(?:\\.|[^"\\\n])*" | '(?:\\.|[^'\\\n])*' ) )
  | (?P<unterminated> ["'] .*+ )
  | (?P<number> \d+ (?:\.\d+)? (?:[eE][+-]?\d+)? [uU]? )
  | (?P<name> [A-Za-z_]\w* )
  | (?P<operator> && | \|\| | [<>=!]= )
  | (?P<other> . )
    """,
    re.VERBOSE | re.DOTALL,
)
_MACROS: Final = ("all", "exists", "exists_one", "existsOne", "filter", "map")
_CLOSING: Final = {"(": ")", "[": "]", "{": "}"}
_ANY: Final[JsonDict] = {}
"""The schema of a value of which nothing is known."""

Steps = tuple[str | int, ...]
"""Where a value is in a plan: names of fields, keys, and indexes of lists."""


class Token(NamedTuple):
    """A word or a sign of an expression: its kind, its text and its position."""

    kind: str
    text: str
    offset: int

    @property
    def unquoted(self) -> str:
        """The content of a string without escapes."""
        return self.text.lstrip("rRbB").strip("\"'")


class UnknownStep(NamedTuple):
    """A field that no plan has.

    ``owner`` is the part of the path before it, and ``siblings`` are the fields that are there.
    ``is_tested`` is whether it is an argument of ``has()``.
    """

    owner: str
    name: str
    offset: int
    siblings: tuple[str, ...]
    is_tested: bool

    @property
    def suggestion(self) -> str | None:
        """The field that was probably meant."""
        return nearest(self.name, self.siblings)


class PathUse(NamedTuple):
    """A path of the plan in an expression: its steps, and the indexes of its tokens.

    ``is_tested`` is whether it is an argument of ``has()``; ``macro`` is the macro that iterates
    over its value, if any.
    """

    steps: Steps
    begin: int
    end: int
    is_tested: bool
    macro: str = ""


def tokenize(expression: str) -> list[Token]:
    """Return the tokens of an expression, without spaces and comments."""
    found = (
        Token(match.lastgroup or "", match[0], match.start())
        for match in _TOKEN.finditer(expression)
    )
    return [token for token in found if token.kind != "space"]


def match_brackets(tokens: Sequence[Token]) -> dict[int, int] | None:
    """Return the index of each closing bracket by that of its opening one; None if unbalanced."""
    opened: list[int] = []
    pairs = {}
    for index, token in enumerate(tokens):
        if token.text in _CLOSING:
            opened.append(index)
        elif token.text in _CLOSING.values():
            if not opened or _CLOSING[tokens[opened[-1]].text] != token.text:
                return None
            pairs[opened.pop()] = index
    return None if opened else pairs


def create_reader(expression: str) -> PathReader | None:
    """Return the reader of an expression, None if its brackets are not balanced."""
    tokens = tokenize(expression)
    pairs = match_brackets(tokens)
    return None if pairs is None else PathReader(tokens, pairs)


Scope = Mapping[str, JsonDict]
"""The schemas of the variables that an expression may use at one place."""


@dataclass
class PathReader:
    """Reads an expression, and collects its paths and the fields that no plan has."""

    tokens: Sequence[Token]
    pairs: Mapping[int, int]
    unknown: list[UnknownStep] = field(default_factory=list)
    uses: list[PathUse] = field(default_factory=list)
    _tests: bool = False

    def read(self, begin: int, end: int, scope: Scope | None = None) -> None:
        """Read the tokens from ``begin`` up to ``end``."""
        index, scope = begin, {"plan": load_schema("plan.v1")} if scope is None else scope
        while index < end:
            is_start = self.tokens[index].kind == "name" and self.text(index - 1) != "."
            index = self.read_path(index, scope) if is_start else index + 1

    def text(self, index: int) -> str:
        """Return the text of a token, empty before the first and after the last."""
        return self.tokens[index].text if 0 <= index < len(self.tokens) else ""

    def source_text(self, begin: int, end: int) -> str:
        """Return the text of several tokens, without the spaces between them."""
        return "".join(token.text for token in self.tokens[begin:end])

    def read_path(self, index: int, scope: Scope) -> int:
        """Read a path or a call of a function; return the index after it."""
        if self.text(index + 1) == "(":
            return self._read_call(index, scope)
        name, begin = self.text(index), index
        schema = scope.get(name, _ANY)
        steps: Steps | None = () if name == "plan" else None
        index += 1
        while True:
            if self.text(index) == "." and self.text(index + 2) == "(":
                self._record_use(steps, begin, index, self.text(index + 1))
                schema, steps = self._read_method(index + 1, schema, scope), None
                index = self.pairs[index + 2] + 1
            elif self.text(index) == "." and index + 1 < len(self.tokens):
                schema = self._select_field(begin, index, schema)
                steps = None if steps is None else (*steps, self.text(index + 1))
                index += 2
            elif self.text(index) == "[":
                schema = self._select_element(begin, index, schema, scope)
                steps = self._append_element(steps, index)
                index = self.pairs[index] + 1
            else:
                self._record_use(steps, begin, index)
                return index

    def _record_use(self, steps: Steps | None, begin: int, end: int, method: str = "") -> None:
        if steps:
            macro = method if method in _MACROS else ""
            self.uses.append(PathUse(steps, begin, end, self._tests, macro))

    def _read_call(self, index: int, scope: Scope) -> int:
        """Read the arguments of a function."""
        begin, end = index + 2, self.pairs[index + 1]
        was, self._tests = self._tests, self._tests or self.text(index) == "has"
        self.read(begin, end, scope)
        self._tests = was
        if self.text(index) == "count":
            self._check_count_path(begin, scope)
        return end + 1

    def _check_count_path(self, begin: int, scope: Scope) -> None:
        """Check the path in the second argument of ``count(list, "a.b", value)``."""
        schema, index = scope.get(self.text(begin), _ANY), begin + 1
        while self.text(index) == "." and self.text(index + 2) != "(":
            schema = property_schema(schema, self.text(index + 1)) or _ANY
            index += 2
        if self.text(index) != "," or self.tokens[index + 1].kind != "string":
            return
        token, schema = self.tokens[index + 1], _element_schema(schema)
        owner = self.source_text(begin, index) + "[]"
        for step in token.unquoted.split("."):
            found = property_schema(schema, step)
            if found is None:
                self._report_unknown(owner, step, token.offset, schema)
                return
            schema, owner = found, f"{owner}.{step}"

    def _read_method(self, index: int, schema: JsonDict, scope: Scope) -> JsonDict:
        """Read the arguments of a method; return the schema of its value."""
        begin, end = index + 2, self.pairs[index + 1]
        if self.text(index) in _MACROS and self.text(begin + 1) == ",":
            inner = {**scope, self.text(begin): _element_schema(schema)}
            self.read(begin + 2, end, inner)
        else:
            self.read(begin, end, scope)
        return schema if self.text(index) == "filter" else _ANY

    def _select_field(self, begin: int, index: int, schema: JsonDict) -> JsonDict:
        """Return the schema of the field after the point at ``index``; report an unknown one."""
        token = self.tokens[index + 1]
        found = property_schema(schema, token.text)
        if found is None:
            self._report_unknown(self.source_text(begin, index), token.text, token.offset, schema)
        return found or _ANY

    def _select_element(self, begin: int, index: int, schema: JsonDict, scope: Scope) -> JsonDict:
        """Return the schema of an element, ``[0]`` or ``["key"]``."""
        end = self.pairs[index]
        token = self.tokens[index + 1]
        if end != index + 2 or token.kind != "string":
            self.read(index + 1, end, scope)
            return _value_schema(schema)
        found = property_schema(schema, token.unquoted)
        if found is None:
            self._report_unknown(
                self.source_text(begin, index), token.unquoted, token.offset, schema
            )
        return found or _ANY

    def _append_element(self, steps: Steps | None, index: int) -> Steps | None:
        """Return the steps with the element that is selected at ``index``, None if it varies."""
        if steps is None or self.pairs[index] != index + 2:
            return None
        token = self.tokens[index + 1]
        if token.kind == "string":
            return (*steps, token.unquoted)
        return (*steps, int(token.text)) if token.text.isdecimal() else None

    def _report_unknown(self, owner: str, name: str, offset: int, schema: JsonDict) -> None:
        siblings = tuple(_field_names(schema))
        self.unknown.append(UnknownStep(owner, name, offset, siblings, self._tests))


def _resolve_reference(schema: JsonDict) -> JsonDict:
    while "$ref" in schema:
        schema = load_schema("plan.v1")["$defs"][schema["$ref"].rpartition("/")[2]]
    return schema


def _field_names(schema: JsonDict) -> Iterator[str]:
    yield from _resolve_reference(schema).get("properties", {})


def property_schema(schema: JsonDict, name: str) -> JsonDict | None:
    """Return the schema of a field, None if no plan has it."""
    schema = _resolve_reference(schema)
    more = schema.get("additionalProperties", "properties" not in schema and _allows_object(schema))
    known: JsonDict | None = schema.get("properties", {}).get(name)
    if known is None and more:
        return more if isinstance(more, dict) else _ANY
    return known


def _allows_object(schema: JsonDict) -> bool:
    """Return whether a schema allows an object, as one without a type does."""
    if "type" not in schema:
        return not {"const", "enum"} & schema.keys()
    return schema["type"] == "object" or "object" in schema["type"]


def _element_schema(schema: JsonDict) -> JsonDict:
    """Return the schema of what a macro iterates over: elements of a list, keys of a map."""
    found: JsonDict = _resolve_reference(schema).get("items", _ANY)
    return found


def _value_schema(schema: JsonDict) -> JsonDict:
    """Return the schema of an element of a list, or of a value of a map."""
    schema = _resolve_reference(schema)
    found = schema.get("items", schema.get("additionalProperties", _ANY))
    return found if isinstance(found, dict) else _ANY
