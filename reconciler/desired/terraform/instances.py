"""The instances of a resource: one, or those that its ``count`` or ``for_each`` makes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from reconciler.desired.terraform.expressions import evaluate
from reconciler.desired.terraform.functions import Value
from reconciler.desired.terraform.hcl import HclBlock, find_outside
from reconciler.desired.terraform.scope import ModuleScope
from reconciler.model.text.quoting import quote_value

_MANY: Final = 200

Names = Mapping[str, Value]
"""What ``each`` and ``count`` are in one instance; without them, an instance has no names."""


def instances_of(block: HclBlock, scope: ModuleScope) -> list[Names]:
    """Return the names of each instance of a resource; where it is not known, there is one."""
    each, count = block.attributes.get("for_each"), block.attributes.get("count")
    if each is not None:
        return list(_each(evaluate(each.text, scope)))
    if count is None:
        return [{}]
    return _counted(evaluate(count.text, scope))


def _counted(number: Value) -> list[Names]:
    """Return as many instances as a ``count``; where it is not known, there is one."""
    total = number if isinstance(number, int) and not isinstance(number, bool) else 1
    return [{"count": {"index": index}} for index in range(min(total, _MANY))]


def disabled_instances(block: HclBlock, scope: ModuleScope) -> list[Names]:
    """Return the instances that a resource without any would have if its condition held."""
    each, count = block.attributes.get("for_each"), block.attributes.get("count")
    of = each or count
    for branch in () if of is None else _branches(of.text):
        value = evaluate(branch, scope)
        made = list(_each(value)) if each is not None else _counted(value)
        if made:
            return made
    return [{} if each is not None else {"count": {"index": 0}}]


def _branches(text: str) -> tuple[str, ...]:
    """Return both results of a conditional expression, none if it is no such expression."""
    question = find_outside(text, "?")
    colon = find_outside(text, ":", question + 1) if question >= 0 else -1
    return (text[question + 1 : colon], text[colon + 1 :]) if colon > 0 else ()


def multiplier(block: HclBlock) -> str:
    """Return the argument that decides how many instances there are, and its text."""
    of = next(name for name in ("for_each", "count") if name in block.attributes)
    return f"{of} is {quote_value(block.attributes[of].text[:80])}"


def _each(items: Value) -> Iterator[Names]:
    if isinstance(items, Mapping):
        pairs = list(items.items())
    elif isinstance(items, list):
        pairs = [(item, item) for item in items]
    else:
        yield {}
        return
    for key, value in pairs[:_MANY]:
        yield {"each": {"key": key, "value": value}}
