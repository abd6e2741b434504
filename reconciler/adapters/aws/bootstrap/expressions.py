"""Expressions in kubelet settings: CEL over the facts of an instance type.

Karpenter's gate ``NodeClassCEL`` lets a reservation be a formula such as ``200 + 8 * vcpus``. The
formulas come from a repository, so what makes the work of a short one grow without bound is left
out: lists and mappings, and with them the macros that go through them. The facts hold neither.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any, Final

from reconciler.model.errors import UsageError

Value = int | float | str | bool

LENGTH_MAX: Final = 1000
"""How many characters an expression may have."""

_STRING: Final = re.compile(r"'[^']*'|\"[^\"]*\"")
_UNREADABLE: Final = ("\\", "//", "'''", '"""')
"""What could hide from the search for lists where a string ends."""


def evaluate(text: str, facts: Mapping[str, Value]) -> int:
    """Return the whole number that an expression means; a double loses its fraction.

    Raises:
        ValueError: it is no expression, names something unknown, or has no finite number.
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
        raise ValueError(f"{text!r} has no value: {_told(error)}") from error
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
    """Refuse what could run long.

    Raises:
        ValueError: it is too long, or has a list, mapping, comment or escape in it.
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


def _told(error: Exception) -> str:
    """Return what the library says, without the list of all that would have been right."""
    return str(error).partition("\n")[0].partition(" expecting {")[0].rpartition("ERROR: ")[2]
