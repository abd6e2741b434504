"""The fields in an expression that no plan has.

A mistyped field is an error only when it is evaluated, which may be long after the policy was
merged. So the paths of an expression are compared with the schema of plans.
"""

from __future__ import annotations

from reconciler.adapters.cel.paths import UnknownStep, create_reader


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
