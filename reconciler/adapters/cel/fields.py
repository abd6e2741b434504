"""The fields of a plan that an expression names, and those that no plan has.

CEL has no types for ``plan``: a mistyped field is an error only when it is evaluated, which may be
long after the policy was merged. So the paths in an expression are compared with the schema of
plans. Only paths are read here, and the variables that macros such as ``all(c, …)`` bind; whether
the expression is valid is decided by compiling it (``evaluator.py``).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from reconciler.model.json import JsonDict
from reconciler.model.text.nearest import nearest
from reconciler.source.schema import load

_TOKEN: Final = re.compile(
    r"""
    (?P<space> \s+ | //[^\n]* )
  | (?P<string> [rRbB]{0,2} (?: \"{3}.*?\"{3} | '{3}.*?'{3}
                              | "(?:\\.|[^"\\\n])*" | '(?:\\.|[^'\\\n])*' ) )
  | (?P<number> \d+ (?:\.\d+)? (?:[eE][+-]?\d+)? [uU]? )
  | (?P<name> [A-Za-z_]\w* )
  | (?P<other> . )
    """,
    re.VERBOSE | re.DOTALL,
)
_MACROS: Final = ("all", "exists", "exists_one", "existsOne", "filter", "map")
_CLOSING: Final = {"(": ")", "[": "]", "{": "}"}
_ANY: Final[JsonDict] = {}
"""The schema of a value of which nothing is known."""


class UnknownField(NamedTuple):
    """A field that no plan has.

    ``owner`` is the part of the path before it, ``offset`` its position in the expression, ``near``
    the field that was probably meant. ``is_tested`` is whether ``has()`` tests for it.
    """

    owner: str
    name: str
    offset: int
    near: str | None
    is_tested: bool


def unknown_fields(expression: str) -> list[UnknownField]:
    """Return the fields in an expression that no plan has, each path once, in order.

    An expression that does not compile has none.
    """
    tokens = _tokens(expression)
    pairs = _pairs(tokens)
    if pairs is None:
        return []
    reader = _Reader(tokens, pairs)
    reader.read(0, len(tokens), {"plan": _plan_schema()})
    tested = {(one.owner, one.name) for one in reader.unknown if one.is_tested}
    first: dict[tuple[str, str], UnknownField] = {}
    for one in sorted(reader.unknown, key=lambda u: u.offset):
        key = (one.owner, one.name)
        first.setdefault(key, one._replace(is_tested=key in tested))
    return list(first.values())


class _Token(NamedTuple):
    kind: str
    text: str
    offset: int


def _tokens(expression: str) -> list[_Token]:
    found = (
        _Token(match.lastgroup or "", match[0], match.start())
        for match in _TOKEN.finditer(expression)
    )
    return [token for token in found if token.kind != "space"]


def _pairs(tokens: Sequence[_Token]) -> dict[int, int] | None:
    """Return the index of each closing bracket by that of its opening one; None if unbalanced."""
    open_ones: list[int] = []
    pairs = {}
    for index, token in enumerate(tokens):
        if token.text in _CLOSING:
            open_ones.append(index)
        elif token.text in _CLOSING.values():
            if not open_ones or _CLOSING[tokens[open_ones[-1]].text] != token.text:
                return None
            pairs[open_ones.pop()] = index
    return None if open_ones else pairs


def _plan_schema() -> JsonDict:
    return load("plan.v1")


_Scope = Mapping[str, JsonDict]
"""The schemas of the variables that an expression may use at one place."""


@dataclass
class _Reader:
    """Reads the paths of an expression, and collects the fields that no plan has."""

    tokens: Sequence[_Token]
    pairs: Mapping[int, int]
    unknown: list[UnknownField] = field(default_factory=list)
    _tests: bool = False

    def read(self, begin: int, end: int, scope: _Scope) -> None:
        """Read the tokens from ``begin`` up to ``end``."""
        index = begin
        while index < end:
            is_start = self.tokens[index].kind == "name" and self._text(index - 1) != "."
            index = self._path(index, scope) if is_start else index + 1

    def _text(self, index: int) -> str:
        return self.tokens[index].text if 0 <= index < len(self.tokens) else ""

    def _path(self, index: int, scope: _Scope) -> int:
        """Read a path or a call of a function; return the index after it."""
        if self._text(index + 1) == "(":
            return self._call(index, scope)
        schema, begin = scope.get(self._text(index), _ANY), index
        index += 1
        while True:
            if self._text(index) == "." and self._text(index + 2) == "(":
                schema = self._method(index + 1, schema, scope)
                index = self.pairs[index + 2] + 1
            elif self._text(index) == "." and index + 1 < len(self.tokens):
                schema = self._select(begin, index, schema)
                index += 2
            elif self._text(index) == "[":
                schema = self._index(begin, index, schema, scope)
                index = self.pairs[index] + 1
            else:
                return index

    def _call(self, index: int, scope: _Scope) -> int:
        """Read the arguments of a function."""
        begin, end = index + 2, self.pairs[index + 1]
        was, self._tests = self._tests, self._tests or self._text(index) == "has"
        self.read(begin, end, scope)
        self._tests = was
        if self._text(index) == "count":
            self._counted(begin, scope)
        return end + 1

    def _counted(self, index: int, scope: _Scope) -> None:
        """Check the path in the second argument of ``count(list, "a.b", value)``."""
        schema = scope.get(self._text(index), _ANY)
        begin = index
        index += 1
        while self._text(index) == "." and self._text(index + 2) != "(":
            schema = _property(schema, self._text(index + 1)) or _ANY
            index += 2
        token = self.tokens[index + 1]
        if self._text(index) != "," or token.kind != "string":
            return
        schema, owner = _element(schema), self._written(begin, index) + "[]"
        for step in token.text.strip("\"'").split("."):
            found = _property(schema, step)
            if found is None:
                self._report(owner, step, token.offset, schema)
                return
            schema, owner = found, f"{owner}.{step}"

    def _method(self, index: int, schema: JsonDict, scope: _Scope) -> JsonDict:
        """Read the arguments of a method; return the schema of its value."""
        begin, end = index + 2, self.pairs[index + 1]
        if self._text(index) in _MACROS and self._text(begin + 1) == ",":
            inner = {**scope, self._text(begin): _element(schema)}
            self.read(begin + 2, end, inner)
        else:
            self.read(begin, end, scope)
        return schema if self._text(index) == "filter" else _ANY

    def _select(self, begin: int, index: int, schema: JsonDict) -> JsonDict:
        """Return the schema of the field after the point at ``index``; report an unknown one."""
        token = self.tokens[index + 1]
        found = _property(schema, token.text)
        if found is None:
            self._report(self._written(begin, index), token.text, token.offset, schema)
        return found or _ANY

    def _index(self, begin: int, index: int, schema: JsonDict, scope: _Scope) -> JsonDict:
        """Return the schema of an element, ``[0]`` or ``["key"]``."""
        end = self.pairs[index]
        token = self.tokens[index + 1]
        if end != index + 2 or token.kind != "string":
            self.read(index + 1, end, scope)
            return _value(schema)
        name = token.text.strip("\"'")
        found = _property(schema, name)
        if found is None:
            self._report(self._written(begin, index), name, token.offset, schema)
        return found or _ANY

    def _written(self, begin: int, end: int) -> str:
        return "".join(token.text for token in self.tokens[begin:end])

    def _report(self, owner: str, name: str, offset: int, schema: JsonDict) -> None:
        near = nearest(name, _fields(schema))
        self.unknown.append(UnknownField(owner, name, offset, near, self._tests))


def _resolved(schema: JsonDict) -> JsonDict:
    while "$ref" in schema:
        schema = _plan_schema()["$defs"][schema["$ref"].rpartition("/")[2]]
    return schema


def _fields(schema: JsonDict) -> Iterator[str]:
    yield from _resolved(schema).get("properties", {})


def _property(schema: JsonDict, name: str) -> JsonDict | None:
    """Return the schema of a field, None if no plan has it."""
    schema = _resolved(schema)
    more = schema.get("additionalProperties", "properties" not in schema and _is_object(schema))
    known: JsonDict | None = schema.get("properties", {}).get(name)
    if known is None and more:
        return more if isinstance(more, dict) else _ANY
    return known


def _is_object(schema: JsonDict) -> bool:
    """Return whether a schema allows an object, as one without a type does."""
    if "type" not in schema:
        return not {"const", "enum"} & schema.keys()
    return schema["type"] == "object" or "object" in schema["type"]


def _element(schema: JsonDict) -> JsonDict:
    """Return the schema of what a macro iterates over: elements of a list, keys of a map."""
    found: JsonDict = _resolved(schema).get("items", _ANY)
    return found


def _value(schema: JsonDict) -> JsonDict:
    """Return the schema of an element of a list, or of a value of a map."""
    schema = _resolved(schema)
    found = schema.get("items", schema.get("additionalProperties", _ANY))
    return found if isinstance(found, dict) else _ANY
