"""The fields in an expression that no plan has.

A mistyped field is an error only when it is evaluated, which may be long after the policy was
merged. So the paths of an expression are compared with the schema of plans.
"""

from __future__ import annotations

from typing import Final

from reconciler.adapters.cel.paths import Steps, UnknownStep, create_reader

_NO_COST: Final = frozenset(
    {"unschedulable", "unschedulableBefore", "unschedulableReasons", "stuck"}
)
"""The fields of the fleet at rest that do not depend on its nodes and prices."""


def unknown_fields(expression: str) -> list[UnknownStep]:
    """Return the fields in an expression that no plan has, each path once, in order.

    Those that any ``has()`` of the expression tests for count as tested everywhere. An expression
    that does not compile has none.
    """
    reader = create_reader(expression)
    if reader is None:
        return []
    reader.read(0, len(reader.tokens))
    tested = {(step.owner, step.name) for step in reader.unknown if step.is_tested}
    found: dict[tuple[str, str], UnknownStep] = {}
    for step in sorted(reader.unknown, key=lambda step: step.offset):
        key = (step.owner, step.name)
        found.setdefault(key, step._replace(is_tested=key in tested))
    return list(found.values())


def reads_cost(expression: str) -> bool:
    """Return whether an expression reads the nodes or the dollars of a plan."""
    reader = create_reader(expression)
    if reader is None:
        return False
    reader.read(0, len(reader.tokens))
    return any(_is_cost(use.steps) for use in reader.uses)


def _is_cost(steps: Steps) -> bool:
    match steps:
        case ("cost", *_) | ("steadyState" | "atMaximum", *_) | ("summary", "perMonth", *_):
            return True
        case ("atRest", name, *_):
            return name not in _NO_COST
    return False
