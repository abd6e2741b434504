"""Evaluates CEL with the values that Kubernetes adds: quantities, versions and optional values.

The number of steps is limited: macros nest, and a selector is evaluated for every device. What
cannot be evaluated is an error, except where ``&&``, ``||`` and ``?:`` do not need its value.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from reconciler.model.expressions.syntax import (
    Binary,
    Bind,
    Call,
    CELError,
    Choice,
    Element,
    Field,
    Has,
    ListOf,
    Literal,
    Macro,
    MapOf,
    Node,
    Unary,
    Variable,
)
from reconciler.model.expressions.values import (
    FUNCTIONS,
    METHOD_NAMES,
    METHODS,
    DefaultingMap,
    Operation,
    Optional,
    bounded,
    matching_steps,
    steps_to_visit,
    type_name,
)

STEPS_MAX: Final = 20_000
"""The maximum number of steps of one evaluation; a selector of ten lines takes about a hundred."""


def evaluate(node: Node, variables: Mapping[str, object]) -> object:
    """Return the value of an expression.

    Raises:
        CELError: it has none: a missing key, a wrong type, or too many steps.
    """
    try:
        return _Evaluation().value(node, variables)
    except RecursionError as error:
        raise CELError("nested too deeply") from error


def _check_call(call: Call, known: frozenset[str]) -> str | None:
    name, operand = call.name, call.operand
    parts: list[Node] = [*call.arguments]
    if operand is None:
        if name not in FUNCTIONS:
            return f'unknown function "{name}"'
    elif not (operand == Variable("optional") and name in ("of", "none")):
        if name not in METHOD_NAMES:
            return f'unknown method "{name}"'
        parts.insert(0, operand)
    return _first(check_names(part, known) for part in parts)


def check_names(node: Node, known: frozenset[str]) -> str | None:
    """Return the first unknown variable or function of an expression, or None."""
    match node:
        case Variable(name):
            return None if name in known else f'unknown name "{name}"'
        case Macro(operand=operand, name=name, body=body, condition=condition):
            found = check_names(operand, known) or check_names(body, known | {name})
            return found if condition is None else found or check_names(condition, known | {name})
        case Bind(name, value, body):
            return check_names(value, known) or check_names(body, known | {name})
        case Call():
            return _check_call(node, known)
    return _first(check_names(part, known) for part in _children(node))


def _first(found: object) -> str | None:
    return next((item for item in found if item is not None), None)  # type: ignore[attr-defined]


def _children(node: Node) -> tuple[Node, ...]:
    match node:
        case Field(operand=operand) | Unary(operand=operand):
            return (operand,)
        case Has(inner):
            return (inner,)
        case Element(operand=operand, key=key):
            return (operand, key)
        case ListOf(items):
            return items
        case MapOf(entries):
            return tuple(part for entry in entries for part in entry)
        case Binary(_, left, right):
            return (left, right)
        case Choice(condition, then, otherwise):
            return (condition, then, otherwise)
    return ()


_Scope = Mapping[str, object]
"""The variables that an expression may use at one place."""


@dataclass(slots=True)
class _Evaluation:
    """One evaluation, with the steps that it took."""

    steps: int = field(default=0)

    def value(self, node: Node, scope: _Scope) -> object:
        self._take_steps(1)
        return _VISITS[type(node)](self, node, scope)

    def _take_steps(self, number: int) -> None:
        self.steps += number
        if self.steps > STEPS_MAX:
            raise CELError("it takes too many steps")

    def _visit(self, *values: object) -> None:
        """Take the steps of an operation that reads values with all that they contain."""
        for value in values:
            self._take_steps(steps_to_visit(value, STEPS_MAX + 1))

    def literal(self, node: Literal, _scope: _Scope) -> object:
        return node.value

    def name(self, node: Variable, scope: _Scope) -> object:
        if node.name not in scope:
            raise CELError(f'unknown name "{node.name}"')
        return scope[node.name]

    def binary(self, node: Binary, scope: _Scope) -> object:
        if node.operator in ("&&", "||"):
            return self._logical(node.operator, node.left, node.right, scope)
        left, right = self.value(node.left, scope), self.value(node.right, scope)
        self._visit(left, right)
        return _operate(node.operator, left, right)

    def unary(self, node: Unary, scope: _Scope) -> object:
        return _negate(node.operator, self.value(node.operand, scope))

    def choice(self, node: Choice, scope: _Scope) -> object:
        chosen = _boolean(self.value(node.condition, scope))
        return self.value(node.then if chosen else node.otherwise, scope)

    def has(self, node: Has, scope: _Scope) -> object:
        return _has(self.value(node.field.operand, scope), node.field.name)

    def bind(self, node: Bind, scope: _Scope) -> object:
        return self.value(node.body, {**scope, node.name: self.value(node.value, scope)})

    def list_of(self, node: ListOf, scope: _Scope) -> object:
        found = [self.value(item, scope) for item in node.items]
        self._visit(found)
        return found

    def map_of(self, node: MapOf, scope: _Scope) -> object:
        found = {_key(self.value(k, scope)): self.value(v, scope) for k, v in node.items}
        self._visit(found)
        return found

    def select(self, node: Field | Element, scope: _Scope) -> object:
        operand = self.value(node.operand, scope)
        key = node.name if isinstance(node, Field) else self.value(node.key, scope)
        if isinstance(operand, Optional):
            if not operand.is_present or not _has(operand.value, key):
                return Optional()
            return Optional(_element(operand.value, key), is_present=True)
        if node.optional:
            present = _has(operand, key)
            return Optional(_element(operand, key) if present else None, is_present=present)
        return _element(operand, key)

    def _logical(self, operator: str, left: Node, right: Node, scope: _Scope) -> object:
        """Evaluate a conjunction or disjunction; either side may decide it."""
        deciding = operator == "||"
        try:
            if _boolean(self.value(left, scope)) is deciding:
                return deciding
        except CELError:
            if self.steps <= STEPS_MAX and _boolean(self.value(right, scope)) is deciding:
                return deciding
            raise
        return _boolean(self.value(right, scope))

    def macro(self, node: Macro, scope: _Scope) -> object:
        items = self.value(node.operand, scope)
        if not isinstance(items, (list, dict)):
            raise CELError(f"{node.kind}() needs a list or a map")
        if node.kind == "map":
            return self._mapped(node, items, scope)
        held = (_boolean(self.value(node.body, {**scope, node.name: item})) for item in items)
        match node.kind:
            case "all":
                return all(held)
            case "exists":
                return any(held)
            case "filter":
                return [item for item, holds in zip(items, held, strict=True) if holds]
        return sum(held) == 1

    def _mapped(self, node: Macro, items: Iterable[object], scope: _Scope) -> list[object]:
        found: list[object] = []
        for item in items:
            inner = {**scope, node.name: item}
            if node.condition is None or _boolean(self.value(node.condition, inner)):
                found.append(self.value(node.body, inner))
        self._visit(found)
        return found

    def call(self, node: Call, scope: _Scope) -> object:
        name, operand = node.name, node.operand
        values = [self.value(argument, scope) for argument in node.arguments]
        if operand == Variable("optional") and name in ("of", "none"):
            return Optional(values[0], is_present=True) if values else Optional()
        if operand is None:
            function = FUNCTIONS.get(name)
        else:
            receiver = self.value(operand, scope)
            function = _method(receiver, name)
            values.insert(0, receiver)
        if function is None:
            raise CELError(f'unknown function "{name}"')
        if name == "matches" and len(values) == 2:
            self._take_steps(matching_steps(*values))
        self._visit(*values)
        try:
            found = function(*values)
        except CELError:
            raise
        except (ArithmeticError, AttributeError, KeyError, TypeError, ValueError) as error:
            raise CELError(f"wrong arguments of {name}()") from error
        self._visit(found)
        return found


_VISITS: Final[dict[type, Callable[..., object]]] = {
    Literal: _Evaluation.literal,
    Variable: _Evaluation.name,
    Field: _Evaluation.select,
    Element: _Evaluation.select,
    ListOf: _Evaluation.list_of,
    MapOf: _Evaluation.map_of,
    Unary: _Evaluation.unary,
    Binary: _Evaluation.binary,
    Choice: _Evaluation.choice,
    Call: _Evaluation.call,
    Has: _Evaluation.has,
    Bind: _Evaluation.bind,
    Macro: _Evaluation.macro,
}


def _method(receiver: object, name: str) -> Operation | None:
    for kind, methods in METHODS:
        if isinstance(receiver, kind) and name in methods:
            return methods[name]
    raise CELError(f'{type_name(receiver)} has no method "{name}"')


def _boolean(value: object) -> bool:
    if isinstance(value, bool):
        return value
    raise CELError(f"expected true or false, not {type_name(value)}")


def _key(value: object) -> object:
    if isinstance(value, (str, int)):
        return value
    raise CELError("a key must be a string or a number")


def _has(operand: object, key: object) -> bool:
    if isinstance(operand, list):
        return isinstance(key, int) and 0 <= key < len(operand)
    if isinstance(operand, dict):
        return key in operand
    raise CELError(f"{type_name(operand)} has no fields")


def _element(operand: object, key: object) -> object:
    if isinstance(operand, DefaultingMap) and isinstance(key, str):
        return operand[key]
    if not _has(operand, key):
        raise CELError(f"no such key: {key}")
    return operand[key]  # type: ignore[index]


def _negate(operator: str, value: object) -> object:
    if operator == "!":
        return not _boolean(value)
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return bounded(-value)
    raise CELError(f"- needs a number, not {type_name(value)}")


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _operate(operator: str, left: object, right: object) -> object:
    match operator:
        case "==":
            return _equal(left, right)
        case "!=":
            return not _equal(left, right)
        case "in":
            if isinstance(right, list):
                return any(_equal(left, item) for item in right)
            return _has(right, left)
    alike = type(left) is type(right) or (_is_number(left) and _is_number(right))
    if operator in ("<", "<=", ">", ">="):
        if alike and isinstance(left, (bool, int, float, str)):
            return _COMPARED[operator](left, right)
    elif alike and (_is_number(left) or (operator == "+" and isinstance(left, (str, list)))):
        return _calculate(operator, left, right)
    raise CELError(f"{operator} is not defined for {type_name(left)} and {type_name(right)}")


def _equal(left: object, right: object) -> bool:
    if isinstance(left, bool) is not isinstance(right, bool):
        return False
    return left == right


def _calculate(operator: str, left: object, right: object) -> object:
    if operator in ("/", "%") and right == 0:
        raise CELError("division by zero")
    return bounded(_CALCULATED[operator](left, right))


def _divide(left: float, right: float) -> float:
    if isinstance(left, int) and isinstance(right, int):
        quotient = abs(left) // abs(right)
        return quotient if (left < 0) is (right < 0) else -quotient
    return left / right


_COMPARED: Final[dict[str, Operation]] = {
    "<": lambda a, b: a < b,
    "<=": lambda a, b: a <= b,
    ">": lambda a, b: a > b,
    ">=": lambda a, b: a >= b,
}
_CALCULATED: Final[dict[str, Operation]] = {
    "+": lambda a, b: a + b,
    "-": lambda a, b: a - b,
    "*": lambda a, b: a * b,
    "/": _divide,
    "%": lambda a, b: a - b * _divide(a, b),
}
