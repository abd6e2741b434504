"""The fields in an expression that no plan has.

A mistyped field is an error only when it is evaluated, which may be long after the policy was
merged. So the paths of an expression are compared with the schema of plans.
"""

from __future__ import annotations

from typing import NamedTuple

from reconciler.adapters.cel.paths import reader_of
from reconciler.model.text.nearest import nearest


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
    reader = reader_of(expression)
    if reader is None:
        return []
    reader.read(0, len(reader.tokens))
    tested = {(one.owner, one.name) for one in reader.unknown if one.is_tested}
    found: dict[tuple[str, str], UnknownField] = {}
    for one in sorted(reader.unknown, key=lambda step: step.offset):
        key, near = (one.owner, one.name), nearest(one.name, one.siblings)
        found.setdefault(key, UnknownField(*key, one.offset, near, key in tested))
    return list(found.values())
