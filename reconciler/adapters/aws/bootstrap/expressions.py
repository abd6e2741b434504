"""Evaluate expressions in kubelet settings: CEL over the facts of an instance type.

With Karpenter's gate ``NodeClassCEL`` a reservation can be a formula such as ``200 + 8 * vcpus``.
The formulas come from a repository, so everything that allows a short one to run for an unbounded
time is rejected: lists and mappings, and therefore the macros over them. The facts contain neither.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any, Final

from reconciler.model.errors import UsageError

Value = int | float | str | bool

LENGTH_MAX: Final = 1000
"""The maximum length of an expression in characters."""

_STRING: Final = re.compile(r"'[^']*'|\"[^\"]*\"")
_UNREADABLE: Final = ("\\", "//", "'''", '"""')
"""Tokens that could hide the end of a string from the check for lists."""


def evaluate(text: str, facts: Mapping[str, Value]) -> int:
    """Return the integer value of an expression; the fraction of a double is cut off.

    Raises:
        ValueError: the expression is invalid, uses an unknown name, or has no finite number.
        UsageError: the package that evaluates expressions is not installed.
    """
    cel = _library()
    _check(text)
    functions = {"min": _extreme(min), "max": _extreme(max)}
    try:
        program = cel.compile(text)
        unknown = [name for name in program.variables() if name not in facts]
        value: Any = None if unknown else program.execute(cel.Context(dict(facts), functions))
    except (ArithmeticError, LookupError, RuntimeError, TypeError, ValueError) as error:
        raise ValueError(f"{text!r} has no value: {_message_of(error)}") from error
    if unknown:
        raise ValueError(f"unknown name {unknown[0]} in {text!r}")
    if type(value) not in (int, float) or not math.isfinite(value):
        raise ValueError(f"{text!r} must be a number, not {value!r}")
    return int(value)


def _library() -> Any:
    """Return the package ``cel``, the Rust implementation of CEL.

    Raises:
        UsageError: it is not installed.
    """
    try:
        import cel
    except ImportError as error:
        raise UsageError(
            "an expression in kubelet settings needs the package common-expression-language",
            where="featureGates.NodeClassCEL",
            remedy="run `pip install 'reconciler[cel]'`",
        ) from error
    return cel


def _check(text: str) -> None:
    """Reject expressions that could run for a long time.

    Raises:
        ValueError: it is too long, or contains a list, mapping, comment or escape.
    """
    if len(text) > LENGTH_MAX:
        raise ValueError(f"an expression has at most {LENGTH_MAX} characters, not {len(text)}")
    for sign in _UNREADABLE:
        if sign in text:
            raise ValueError(f"{sign} is not supported in the expression {text!r}")
    for sign in "[{":
        if sign in _STRING.sub("", text):
            raise ValueError(f"lists and mappings are not supported in the expression {text!r}")


def _extreme(choose: Any) -> Any:
    """Return ``min`` or ``max`` of two integers or two doubles, as Karpenter declares them."""

    def chosen(*numbers: Any) -> Any:
        kinds = {type(n) for n in numbers}
        is_declared = len(numbers) == 2 and kinds in ({int}, {float})
        return choose(numbers) if is_declared else None

    return chosen


def _message_of(error: Exception) -> str:
    """Return the library's error message without its list of valid alternatives."""
    return str(error).partition("\n")[0].partition(" expecting {")[0].rpartition("ERROR: ")[2]
