"""The syntax of CEL: text to a tree.

A parser of our own, because selectors of devices are evaluated by pure code, thousands of times,
and read values that Kubernetes adds to CEL (quantities, versions), which the library for policies
does not know. Length and depth are limited, as an expression comes from a repository.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

LENGTH_MAX: Final = 10 * 1024
"""The maximum length of an expression, as in the API (``CELSelectorExpressionMaxLength``)."""
DEPTH_MAX: Final = 50
_TREE_DEPTH_MAX: Final = 100
"""The maximum depth of the tree, which operators in a row make deep without any parentheses."""

_TOKEN: Final = re.compile(
    r"""
    (?P<space> [ \t\r\n\f]+ | //[^\n]* )
  | (?P<string> [rR]? (?: "(?:\\.|[^"\\\n])*" | '(?:\\.|[^'\\\n])*' ) )
  | (?P<float> [0-9]+\.[0-9]+(?:[eE][+-]?[0-9]+)? | [0-9]+[eE][+-]?[0-9]+ )
  | (?P<int> 0x[0-9a-fA-F]+[uU]? | [0-9]+[uU]? )
  | (?P<name> [A-Za-z_][A-Za-z0-9_]* )
  | (?P<operator> && | \|\| | [<>=!]= | \[\? | \.\? | [-+*/%<>!?:.,()\[\]{}] )
    """,
    re.VERBOSE | re.ASCII,
)
_LITERALS: Final[dict[str, object]] = {"true": True, "false": False, "null": None}
_BINARY: Final = (
    ("||",),
    ("&&",),
    ("<", "<=", ">", ">=", "==", "!=", "in"),
    ("+", "-"),
    ("*", "/", "%"),
)
"""Operators by precedence, the weakest first."""
_LOGICAL_LEVEL_MAX: Final = 1
MACROS: Final = {"all": 2, "exists": 2, "exists_one": 2, "existsOne": 2, "filter": 2, "map": 2}
"""Macros over a list or a map, with their number of arguments; ``map`` may have three."""


class CELError(ValueError):
    """An expression that cannot be parsed or evaluated; ``offset`` is where, if known."""

    def __init__(self, message: str, offset: int | None = None) -> None:
        super().__init__(message)
        self.offset = offset


@dataclass(frozen=True, slots=True)
class Literal:
    value: object


@dataclass(frozen=True, slots=True)
class Variable:
    """A variable."""

    name: str


@dataclass(frozen=True, slots=True)
class Field:
    """``operand.name``; an ``optional`` one (``.?``) is absent instead of an error."""

    operand: Node
    name: str
    optional: bool = False


@dataclass(frozen=True, slots=True)
class Element:
    """``operand[key]``."""

    operand: Node
    key: Node
    optional: bool = False


@dataclass(frozen=True, slots=True)
class ListOf:
    items: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class MapOf:
    items: tuple[tuple[Node, Node], ...]


@dataclass(frozen=True, slots=True)
class Unary:
    operator: str
    operand: Node


@dataclass(frozen=True, slots=True)
class Binary:
    operator: str
    left: Node
    right: Node


@dataclass(frozen=True, slots=True)
class Choice:
    """``condition ? then : otherwise``."""

    condition: Node
    then: Node
    otherwise: Node


@dataclass(frozen=True, slots=True)
class Call:
    """A function, or a method of ``operand``."""

    name: str
    arguments: tuple[Node, ...]
    operand: Node | None = None


@dataclass(frozen=True, slots=True)
class Has:
    """``has(operand.name)``."""

    field: Field


@dataclass(frozen=True, slots=True)
class Bind:
    """``cel.bind(name, value, body)``."""

    name: str
    value: Node
    body: Node


@dataclass(frozen=True, slots=True)
class Macro:
    """``operand.all(name, body)`` and the like; ``condition`` is that of a ``map`` with three."""

    kind: str
    operand: Node
    name: str
    body: Node
    condition: Node | None = None


Node = (
    Literal
    | Variable
    | Field
    | Element
    | ListOf
    | MapOf
    | Unary
    | Binary
    | Choice
    | Call
    | Has
    | Bind
    | Macro
)


@dataclass(frozen=True, slots=True)
class _Token:
    kind: str
    text: str
    offset: int


def parse_expression(text: str) -> Node:
    """Return the tree of an expression.

    Raises:
        CELError: it is not an expression, or is too long or nested too deeply.
    """
    if len(text) > LENGTH_MAX:
        raise CELError(f"longer than {LENGTH_MAX} characters")
    parser = _Parser(_tokens(text))
    try:
        found = parser.expression()
    except RecursionError as error:
        raise CELError("nested too deeply") from error
    if parser.token.kind != "end":
        raise CELError(f'unexpected "{parser.token.text}"', parser.token.offset)
    if _is_too_deep(found):
        raise CELError("nested too deeply")
    return found


def _is_too_deep(node: Node) -> bool:
    """Return whether a tree has too many levels; it may have too many to be visited recursively."""
    found = [node]
    for _ in range(_TREE_DEPTH_MAX):
        found = [
            p for item in found for name in item.__slots__ for p in _parts(getattr(item, name))
        ]
        if not found:
            return False
    return True


def _parts(value: object) -> Iterator[Node]:
    """Return the nodes in the value of a field."""
    if isinstance(value, tuple):
        for item in value:
            yield from _parts(item)
    elif isinstance(value, Node):
        yield value


def _tokens(text: str) -> list[_Token]:
    found, at = [], 0
    while at < len(text):
        match = _TOKEN.match(text, at)
        if match is None:
            raise CELError(f'unexpected character "{text[at]}"', at)
        if match.lastgroup != "space":
            found.append(_Token(match.lastgroup or "", match[0], at))
        at = match.end()
    return [*found, _Token("end", "end of the expression", len(text))]


class _Parser:
    """A recursive-descent parser."""

    def __init__(self, tokens: Sequence[_Token]) -> None:
        self._tokens = tokens
        self._at = 0
        self._depth = 0

    @property
    def token(self) -> _Token:
        return self._tokens[self._at]

    def _accept(self, *texts: str) -> str | None:
        token = self.token
        if token.text in texts and token.kind in ("operator", "name"):
            self._at += 1
            return token.text
        return None

    def _expect(self, text: str) -> None:
        if self._accept(text) is None:
            raise CELError(f'expected "{text}", not "{self.token.text}"', self.token.offset)

    def expression(self) -> Node:
        """Parse a complete expression, with ``?:``."""
        self._depth += 1
        if self._depth > DEPTH_MAX:
            raise CELError("nested too deeply", self.token.offset)
        found = self._binary(0)
        if self._accept("?"):
            then = self._binary(0)
            self._expect(":")
            found = Choice(found, then, self.expression())
        self._depth -= 1
        return found

    def _binary(self, level: int) -> Node:
        if level == len(_BINARY):
            return self._unary()
        found = self._binary(level + 1)
        if level <= _LOGICAL_LEVEL_MAX:
            operands = [found]
            while (operator := self._accept(*_BINARY[level])) is not None:
                operands.append(self._binary(level + 1))
            return _balanced(_BINARY[level][0], operands)
        while (operator := self._accept(*_BINARY[level])) is not None:
            found = Binary(operator, found, self._binary(level + 1))
        return found

    def _unary(self) -> Node:
        operators = []
        while (operator := self._accept("!", "-")) is not None:
            operators.append(operator)
            if len(operators) > DEPTH_MAX:
                raise CELError("nested too deeply", self.token.offset)
        found = self._member()
        for operator in reversed(operators):
            found = Unary(operator, found)
        return found

    def _member(self) -> Node:
        found, length = self._primary(), 0
        while True:
            length += 1
            if length > DEPTH_MAX:
                raise CELError("nested too deeply", self.token.offset)
            if (point := self._accept(".", ".?")) is not None:
                found = self._selection(found, optional=point == ".?")
            elif (bracket := self._accept("[", "[?")) is not None:
                key = self.expression()
                self._expect("]")
                found = Element(found, key, optional=bracket == "[?")
            else:
                return found

    def _selection(self, operand: Node, *, optional: bool) -> Node:
        token = self.token
        if token.kind != "name":
            raise CELError(f'expected a name, not "{token.text}"', token.offset)
        self._at += 1
        if optional or self._accept("(") is None:
            return Field(operand, token.text, optional)
        arguments = self._arguments(")")
        if operand == Variable("cel") and token.text == "bind":
            if len(arguments) != 3 or not isinstance(arguments[0], Variable):
                raise CELError("cel.bind needs a name and two expressions", token.offset)
            return Bind(arguments[0].name, arguments[1], arguments[2])
        if token.text in MACROS:
            return _macro(token, operand, arguments)
        return Call(token.text, arguments, operand)

    def _arguments(self, closing: str) -> tuple[Node, ...]:
        found: list[Node] = []
        while self._accept(closing) is None:
            found.append(self.expression())
            if self._accept(",") is None:
                self._expect(closing)
                break
        return tuple(found)

    def _primary(self) -> Node:
        token = self.token
        self._at += 1
        match token.kind, token.text:
            case "int", text:
                return Literal(_integer(text, token.offset))
            case "float", text:
                return Literal(float(text))
            case "string", text:
                return Literal(_string(text, token.offset))
            case "name", text if text in _LITERALS:
                return Literal(_LITERALS[text])
            case "name", text:
                return self._call(token) if self._accept("(") else Variable(text)
            case "operator", "(":
                found = self.expression()
                self._expect(")")
                return found
            case "operator", "[":
                return ListOf(self._arguments("]"))
            case "operator", "{":
                return MapOf(self._entries())
        self._at -= 1
        raise CELError(f'unexpected "{token.text}"', token.offset)

    def _call(self, token: _Token) -> Node:
        arguments = self._arguments(")")
        if token.text != "has":
            return Call(token.text, arguments)
        if len(arguments) != 1 or not isinstance(arguments[0], Field):
            raise CELError("has() needs a field, such as has(a.b)", token.offset)
        return Has(arguments[0])

    def _entries(self) -> tuple[tuple[Node, Node], ...]:
        found: list[tuple[Node, Node]] = []
        while self._accept("}") is None:
            key = self.expression()
            self._expect(":")
            found.append((key, self.expression()))
            if self._accept(",") is None:
                self._expect("}")
                break
        return tuple(found)


def _balanced(operator: str, operands: Sequence[Node]) -> Node:
    """Return the tree of operands in a row that is the least deep, as in cel-go."""
    if len(operands) == 1:
        return operands[0]
    middle = len(operands) // 2
    left, right = _balanced(operator, operands[:middle]), _balanced(operator, operands[middle:])
    return Binary(operator, left, right)


def _macro(token: _Token, operand: Node, arguments: tuple[Node, ...]) -> Macro:
    allowed = (2, 3) if token.text == "map" else (2,)
    if len(arguments) not in allowed or not isinstance(arguments[0], Variable):
        raise CELError(f"{token.text}() needs a name and an expression", token.offset)
    condition = arguments[1] if len(arguments) == 3 else None
    return Macro(token.text, operand, arguments[0].name, arguments[-1], condition)


def _integer(text: str, offset: int) -> int:
    digits = text.rstrip("uU")
    value = int(digits, 16) if digits.startswith("0x") else int(digits[:21])
    if value >= 2**64:
        raise CELError("a number beyond 64 bits", offset)
    return value


def _string(text: str, offset: int) -> str:
    if text[0] in "rR":
        return text[2:-1]
    try:
        value = ast.literal_eval(text)
    except (SyntaxError, ValueError) as error:
        raise CELError("invalid escape in a string", offset) from error
    assert isinstance(value, str)
    return value
