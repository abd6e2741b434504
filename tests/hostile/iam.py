"""An evaluator of IAM policies: the part of its language that the documented policies use.

It follows the policy evaluation logic and the condition operators of the IAM User Guide. An
operator that it does not know is an error, so that a new condition is not passed over.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

Statement = Mapping[str, Any]


@dataclass(frozen=True)
class Call:
    """A request: an action on a resource, and the context that conditions see.

    A key of ``context`` has one value or, as ``aws:TagKeys``, a list.
    """

    action: str
    resource: str
    context: Mapping[str, str | Sequence[str]] = field(default_factory=dict)

    def of(self, **changes: Any) -> Call:
        """Return the call with another action or resource."""
        return Call(**{**self.__dict__, **changes})

    def with_context(self, context: Mapping[str, str | Sequence[str] | None]) -> Call:
        """Return the call with other values of some keys; None removes one."""
        merged = {**self.context, **context}
        kept = {key: value for key, value in merged.items() if value is not None}
        return Call(self.action, self.resource, kept)


def allows(statements: Iterable[Statement], call: Call) -> bool:
    """Return whether policies allow a call: one statement does, and none denies it."""
    effects = {s["Effect"] for s in statements if _applies(s, call)}
    return "Allow" in effects and "Deny" not in effects


def denies(statements: Iterable[Statement], call: Call) -> bool:
    """Return whether a statement denies a call explicitly."""
    return any(s["Effect"] == "Deny" and _applies(s, call) for s in statements)


def _applies(statement: Statement, call: Call) -> bool:
    assert not {"NotAction", "NotResource", "NotPrincipal"} & statement.keys()
    return (
        any(is_like(call.action.lower(), a.lower()) for a in _many(statement["Action"]))
        and any(is_like(call.resource, r) for r in _many(statement["Resource"]))
        and all(
            _holds(operator, key, _many(values), call.context)
            for operator, pairs in statement.get("Condition", {}).items()
            for key, values in pairs.items()
        )
    )


def is_like(value: str, pattern: str) -> bool:
    """Return whether a pattern with ``*`` and ``?`` matches; nothing else in it is special."""
    parts = (".*" if c == "*" else "." if c == "?" else re.escape(c) for c in pattern)
    return re.fullmatch("".join(parts), value, re.DOTALL) is not None


_TESTS: Final[Mapping[str, Callable[[str, str], bool]]] = {
    "StringEquals": lambda value, wanted: value == wanted,
    "StringLike": is_like,
    "ArnEquals": is_like,
    "ArnLike": is_like,
    "Bool": lambda value, wanted: value.lower() == wanted.lower(),
}
_NEGATED: Final = {"ArnNotLike": "ArnLike", "StringNotEquals": "StringEquals"}


def _holds(
    operator: str, key: str, wanted: Sequence[str], context: Mapping[str, str | Sequence[str]]
) -> bool:
    """Return whether a condition holds; names of keys do not depend on case, values do."""
    found = {name.lower(): value for name, value in context.items()}.get(key.lower())
    quantifier, _, name = operator.rpartition(":")
    optional, name = name.endswith("IfExists"), name.removesuffix("IfExists")
    if found is None:
        return optional or quantifier == "ForAllValues" or name in _NEGATED
    values = _many(found)
    if name in _NEGATED:
        assert not quantifier
        return not any(_TESTS[_NEGATED[name]](values[0], one) for one in wanted)
    matches = [any(_TESTS[name](value, one) for one in wanted) for value in values]
    match quantifier:
        case "ForAllValues":
            return all(matches)
        case "ForAnyValue":
            return any(matches)
        case "":
            assert len(matches) == 1, f"{key} has several values: use ForAllValues or ForAnyValue"
            return matches[0]
    raise AssertionError(operator)


def _many(value: str | Sequence[str]) -> Sequence[str]:
    return [value] if isinstance(value, str) else value
