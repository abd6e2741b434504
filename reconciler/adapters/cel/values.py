"""The values that a violated rule has compared: those of the paths in its expression.

Of ``has(plan.x) ? a : b`` and ``plan.x == null ? a : b`` only the branch that applies is read. A
limit is stated where a path is compared with a literal, and all parts of the rule have to hold.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

from reconciler.adapters.cel.paths import (
    PathReader,
    PathUse,
    Scope,
    Steps,
    create_reader,
    match_brackets,
    tokenize,
)
from reconciler.model.decision.verdicts import ComparedValue, Scalar
from reconciler.model.json import JsonDict

VALUES_MAX: Final = 8
"""The maximum number of values that are shown for a rule."""
_ABSENT: Final = object()
_MIRRORED: Final = {"<=": ">=", "<": ">", ">=": "<=", ">": "<", "==": "==", "!=": "!="}
_COMPARED: Final[Mapping[str, Callable[[float, float], bool]]] = {
    "<=": operator.le,
    "<": operator.lt,
    ">=": operator.ge,
    ">": operator.gt,
    "==": operator.eq,
    "!=": operator.ne,
}
_BOUNDARIES: Final = frozenset(("", "(", "[", "{", ",", ":", "?"))
_AROUND: Final = frozenset(("", "(", ")", "&&", ":", "?"))
"""What may stand before and after a comparison that has to hold for the whole rule to hold."""
_CONVERSIONS: Final = frozenset(("double", "int", "size", "uint"))


class Quantified(NamedTuple):
    """A rule about all elements of a list: which list, and an expression for those that violate."""

    steps: Steps
    expression: str


def parse_quantified(expression: str) -> Quantified | None:
    """Return what a rule of the form ``list.all(x, …)`` or ``!list.exists(x, …)`` is about."""
    reader = create_reader(expression)
    if reader is None or not reader.tokens:
        return None
    tokens, pairs = reader.tokens, reader.pairs
    begin = 1 if tokens[0].text == "!" else 0
    macro = "exists" if begin else "all"
    reader.read(begin, len(tokens))
    use = next((u for u in reader.uses if u.begin == begin and u.macro == macro), None)
    if use is None or pairs[use.end + 2] != len(tokens) - 1 or reader.text(use.end + 4) != ",":
        return None
    variable, body = use.end + 3, tokens[use.end + 5].offset
    rule = expression[body : tokens[-1].offset]
    violates = f"({rule})" if macro == "exists" else f"!({rule})"
    path = expression[tokens[begin].offset : tokens[use.end].offset]
    return Quantified(use.steps, f"{path}.filter({tokens[variable].text}, {violates})")


def violation_counts(expression: str, counts: JsonDict) -> ComparedValue:
    """Return what was found in the list that a rule is about."""
    rule = parse_quantified(expression)
    assert rule is not None, "only such rules are asked about"
    return ComparedValue(
        _path_text(rule.steps),
        count=counts["count"],
        violating=counts["violating"],
        names=tuple(counts["names"]),
    )


def find_values(expression: str, plan: JsonDict) -> tuple[ComparedValue, ...]:
    """Return the values of the paths in a violated rule, each path once, at most 8."""
    tokens = tokenize(expression)
    pairs = match_brackets(tokens)
    if pairs is None:
        return ()
    reader = _BranchReader(tokens, pairs, plan=plan)
    reader.read(0, len(tokens))
    found: dict[Steps, ComparedValue] = {}
    for use in reader.uses:
        value = _value_at(plan, use.steps)
        if not (use.is_tested or use.macro) and isinstance(value, (str, int, float, list)):
            measured = len(value) if isinstance(value, list) else value
            item = _found_value(use.steps, value, *_violated_limit(reader, use, measured))
            if use.steps not in found or item.operator:
                found[use.steps] = item
    return tuple(found.values())[:VALUES_MAX]


def _found_value(
    steps: Steps, value: Scalar | list[object], sign: str = "", limit: Scalar | None = None
) -> ComparedValue:
    path = _path_text(steps)
    if isinstance(value, list):
        return ComparedValue(path, count=len(value), operator=sign, limit=limit)
    return ComparedValue(path, value, operator=sign, limit=limit)


def _path_text(steps: Steps) -> str:
    return "".join(_step_text(step) for step in steps).removeprefix(".")


def _step_text(step: str | int) -> str:
    if isinstance(step, int):
        return f"[{step}]"
    return f".{step}" if step.isidentifier() else f'["{step}"]'


def _value_at(plan: JsonDict, steps: Steps) -> object:
    value: object = plan
    for step in steps:
        if isinstance(value, dict):
            value = value.get(step, _ABSENT)
        elif isinstance(value, list) and isinstance(step, int):
            value = value[step] if step < len(value) else _ABSENT
        else:
            return _ABSENT
    return value


@dataclass
class _BranchReader(PathReader):
    """Reads only the branches of ``?:`` that apply to a plan, where that is easily known.

    ``is_strict`` is whether all parts that were read have to hold.
    """

    plan: JsonDict | None = None
    is_strict: bool = True

    def read(self, begin: int, end: int, scope: Scope | None = None) -> None:
        """Read the tokens, without the branches that do not apply."""
        for branch in self._parse_branches(begin, end):
            self._read_all(begin, branch.begin, scope)
            self.read(branch.applied_from, branch.applied_to, scope)
            begin = branch.end
        self._read_all(begin, end, scope)

    def _read_all(self, begin: int, end: int, scope: Scope | None) -> None:
        self.is_strict &= not any(self.text(i) in ("||", "?") for i in range(begin, end))
        super().read(begin, end, scope)

    def _parse_branches(self, begin: int, end: int) -> Iterator[_Branch]:
        index = begin
        while index < end:
            branch = self._parse_branch(index, end)
            if branch is not None:
                yield branch
            index = branch.end if branch is not None else index + 1

    def _parse_branch(self, index: int, end: int) -> _Branch | None:
        """Return the conditional that begins at ``index``, None if there is none or unknown."""
        if self.text(index - 1) not in _BOUNDARIES:
            return None
        holds, after = self._evaluate_condition(index)
        if holds is None or self.text(after) != "?":
            return None
        middle = self._find_sign(after + 1, end, (":",))
        last = self._find_sign(middle + 1, end, (":", ","))
        applied = (after + 1, middle) if holds else (middle + 1, last)
        return _Branch(index, last, *applied)

    def _evaluate_condition(self, index: int) -> tuple[bool | None, int]:
        """Return whether a test at ``index`` holds, and the index after it."""
        is_test = self.text(index) == "has" and self.text(index + 1) == "("
        first = index + 2 if is_test else index
        path = PathReader(self.tokens, self.pairs)
        after = path.read_path(first, {"plan": {}}) if self.text(first) == "plan" else first
        if not path.uses:
            return None, index
        value = _value_at(self.plan or {}, path.uses[-1].steps)
        if is_test:
            return value is not _ABSENT, after + 1
        if self.text(after) in ("==", "!=") and self.text(after + 1) == "null":
            return (value is None) is (self.text(after) == "=="), after + 2
        return None, index

    def _find_sign(self, index: int, end: int, signs: tuple[str, ...]) -> int:
        """Return the index of the first of the signs that belongs to no inner conditional."""
        inner = 0
        while index < end:
            text = self.text(index)
            if index in self.pairs:
                index = self.pairs[index]
            elif text == "?":
                inner += 1
            elif text == ":" and inner:
                inner -= 1
            elif (text in signs and not inner) or text in (")", "]", "}"):
                return index
            index += 1
        return end


class _Branch(NamedTuple):
    """A conditional, and the part of it that applies, as indexes of tokens."""

    begin: int
    end: int
    applied_from: int
    applied_to: int


def _violated_limit(
    reader: _BranchReader, use: PathUse, value: Scalar
) -> tuple[str, Scalar] | tuple[()]:
    """Return the comparison with a literal that the value violates."""
    begin, end = use.begin, use.end
    if reader.text(begin - 1) == "(" and reader.text(begin - 2) in _CONVERSIONS:
        begin, end = begin - 2, end + 1
    for sign, at, before, after in (
        (reader.text(end), end + 1, begin - 1, end + 2),
        (_MIRRORED.get(reader.text(begin - 1), ""), begin - 2, begin - 3, end),
    ):
        is_complete = {reader.text(before), reader.text(after)} <= _AROUND
        if not reader.is_strict or sign not in _MIRRORED or not is_complete:
            continue
        limit = _parse_literal(reader, at)
        if limit is not None and not _holds(value, sign, limit):
            return sign, limit
    return ()


def _parse_literal(reader: PathReader, index: int) -> Scalar | None:
    token = reader.tokens[index] if 0 <= index < len(reader.tokens) else None
    if token is None:
        return None
    if token.kind == "number":
        text = token.text.rstrip("uU")
        return int(text) if text.isdecimal() else float(text)
    if token.kind == "string":
        return token.unquoted
    return {"true": True, "false": False}.get(token.text)


def _holds(value: Scalar, sign: str, limit: Scalar) -> bool:
    """Return whether a comparison holds; values of different kinds are not compared."""
    if isinstance(value, str) or isinstance(limit, str):
        return value != limit if sign == "!=" else value == limit
    return _COMPARED[sign](value, limit)
