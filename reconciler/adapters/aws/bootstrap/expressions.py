"""Expressions in kubelet settings: the arithmetic of CEL over the facts of an instance type.

Karpenter's gate ``NodeClassCEL`` lets a reservation be a formula such as ``200 + 8 * vcpus``. A
whole CEL engine takes as long to load as a plan may take; what such formulas use is this:
integers, doubles, strings and booleans, the operators, the conditional, ``min`` and ``max``,
conversions, and tests on strings.
"""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable, Mapping
from typing import Any, Final

Value = int | float | str | bool

_TOKEN: Final = re.compile(
    r"\s*(?:(?P<number>\d+\.\d+|\d+)|(?P<name>[A-Za-z_]\w*)|(?P<text>'[^']*'|\"[^\"]*\")"
    r"|(?P<sign>&&|\|\||[=!<>]=|[-+*/%<>!?:(),.]))",
    re.ASCII,
)
_DEEPEST: Final = 50
_LEVELS: Final = (
    ("||",),
    ("&&",),
    ("==", "!=", "<", "<=", ">", ">="),
    ("+", "-"),
    ("*", "/", "%"),
)
_COMPARISONS: Final[Mapping[str, Callable[[Any, Any], bool]]] = {
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
_TESTS: Final[Mapping[str, Callable[[str, str], bool]]] = {
    "startsWith": str.startswith,
    "endsWith": str.endswith,
    "contains": str.__contains__,
}


def evaluate(text: str, facts: Mapping[str, Value]) -> int:
    """Return the whole number that an expression means; a double loses its fraction.

    Raises:
        ValueError: it is no expression, names something unknown, or has no finite number.
    """
    reader = _Reader(text, facts)
    try:
        value = reader.expression(0)
    except OverflowError as error:
        raise ValueError(f"{text!r} exceeds the limits of an expression") from error
    reader.expect_end()
    if isinstance(value, (bool, str)) or not math.isfinite(value):
        raise ValueError(f"{text!r} must be a number, not {value!r}")
    return int(value)


class _Reader:
    """Reads and evaluates in one go; both sides of every operator are evaluated."""

    def __init__(self, text: str, facts: Mapping[str, Value]) -> None:
        self._text = text
        self._facts = facts
        self._tokens = _tokens(text)
        self._at = 0

    def expression(self, depth: int) -> Value:
        """Read a conditional, or what stands in place of one."""
        if depth > _DEEPEST:
            raise ValueError(f"{self._text!r} is nested too deeply")
        condition = self._binary(0, depth)
        if not self._take("?"):
            return condition
        yes = self.expression(depth + 1)
        self._expect(":")
        no = self.expression(depth + 1)
        if condition is True or condition is False:
            return yes if condition else no
        raise ValueError(f"{condition!r} is not a condition")

    def expect_end(self) -> None:
        """Refuse what stands behind the expression."""
        if self._at < len(self._tokens):
            raise ValueError(f"unexpected {self._tokens[self._at]!r} in {self._text!r}")

    def _binary(self, level: int, depth: int) -> Value:
        if level == len(_LEVELS):
            return self._unary(depth)
        left = self._binary(level + 1, depth)
        while sign := self._take(*_LEVELS[level]):
            left = _combined(sign, left, self._binary(level + 1, depth))
        return left

    def _unary(self, depth: int) -> Value:
        if depth > _DEEPEST:
            raise ValueError(f"{self._text!r} is nested too deeply")
        if self._take("-"):
            value = self._unary(depth + 1)
            if isinstance(value, (str, bool)):
                raise ValueError(f"cannot negate {value!r}")
            return -value
        if self._take("!"):
            value = self._unary(depth + 1)
            if not isinstance(value, bool):
                raise ValueError(f"cannot negate {value!r}")
            return not value
        value = self._primary(depth)
        while self._take("."):
            name = self._next()
            arguments = self._arguments(depth)
            test = _TESTS.get(name)
            if test is None or not isinstance(value, str) or not _are(arguments, str, 1):
                raise ValueError(f"{value!r} has no method {name}")
            value = test(value, str(arguments[0]))
        return value

    def _primary(self, depth: int) -> Value:
        word = self._next()
        if word == "(":
            value = self.expression(depth + 1)
            self._expect(")")
            return value
        if word[0].isdigit():
            return float(word) if "." in word else int(word)
        if word[0] in "'\"":
            return word[1:-1]
        if word in ("true", "false"):
            return word == "true"
        if self._peek() == "(":
            return _called(word, self._arguments(depth))
        if word not in self._facts:
            raise ValueError(f"unknown name {word} in {self._text!r}")
        return self._facts[word]

    def _arguments(self, depth: int) -> list[Value]:
        self._expect("(")
        arguments = [self.expression(depth + 1)]
        while self._take(","):
            arguments.append(self.expression(depth + 1))
        self._expect(")")
        return arguments

    def _peek(self) -> str:
        return self._tokens[self._at] if self._at < len(self._tokens) else ""

    def _next(self) -> str:
        token = self._peek()
        if not token:
            raise ValueError(f"{self._text!r} ends unexpectedly")
        self._at += 1
        return token

    def _take(self, *signs: str) -> str:
        token = self._peek()
        if token in signs and token:
            self._at += 1
            return token
        return ""

    def _expect(self, sign: str) -> None:
        if not self._take(sign):
            raise ValueError(f"missing {sign!r} in {self._text!r}")


def _tokens(text: str) -> list[str]:
    tokens, at = [], 0
    end = len(text.rstrip())
    while at < end:
        match = _TOKEN.match(text, at)
        if match is None:
            raise ValueError(f"cannot parse {text[at:].strip()[:10]!r} in {text!r}")
        tokens.append(match[0].strip())
        at = match.end()
    return tokens


def _combined(sign: str, left: Value, right: Value) -> Value:
    """Apply an operator; as in CEL, both sides must be of one type."""
    if type(left) is not type(right):
        raise ValueError(f"{left!r} {sign} {right!r} mixes types")
    if sign in _COMPARISONS:
        return _COMPARISONS[sign](left, right)
    if isinstance(left, bool) and isinstance(right, bool):
        if sign in ("&&", "||"):
            return (left and right) if sign == "&&" else (left or right)
    elif isinstance(left, str) and isinstance(right, str):
        if sign == "+":
            return left + right
    elif not isinstance(left, (bool, str)) and not isinstance(right, (bool, str)):
        return _arithmetic(sign, left, right)
    raise ValueError(f"cannot compute {left!r} {sign} {right!r}")


def _arithmetic(sign: str, left: float, right: float) -> int | float:
    """Return the result in the type of both; whole numbers divide towards zero."""
    match sign:
        case "+":
            return left + right
        case "-":
            return left - right
        case "*":
            return left * right
    if not right:
        raise ValueError(f"cannot compute {left} {sign} 0")
    whole = isinstance(left, int) and isinstance(right, int)
    if sign == "/":
        if not whole:
            return left / right
        quotient = abs(int(left)) // abs(int(right))
        return quotient if (left < 0) is (right < 0) else -quotient
    if sign == "%" and whole:
        return int(math.fmod(left, right))
    raise ValueError(f"cannot compute {left} {sign} {right}")


def _called(name: str, arguments: list[Value]) -> Value:
    match name:
        case "min" | "max" if _are(arguments, int, 2) or _are(arguments, float, 2):
            numbers = [a for a in arguments if not isinstance(a, str)]
            return min(numbers) if name == "min" else max(numbers)
        case "int" if _are(arguments, int, 1) or _are(arguments, float, 1):
            return int(arguments[0])
        case "double" if _are(arguments, int, 1) or _are(arguments, float, 1):
            return float(arguments[0])
    raise ValueError(f"cannot call {name} with {arguments}")


def _are(arguments: list[Value], kind: type, count: int) -> bool:
    return len(arguments) == count and all(type(a) is kind for a in arguments)
