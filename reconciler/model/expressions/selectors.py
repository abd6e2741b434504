"""The selectors of devices: CEL expressions on the variable ``device``."""

from __future__ import annotations

from typing import Final

from reconciler.model.expressions.evaluation import check_names
from reconciler.model.expressions.syntax import CELError, Node, parse_expression

_VARIABLES: Final = frozenset({"device"})
_PARSED: Final[dict[str, Node | str]] = {}
"""The tree of each selector, or what is wrong with it: a cluster has few different ones."""
_PARSED_MAX: Final = 10_000


def selector_problem(text: str) -> str | None:
    """Return what is wrong with the CEL expression of a selector, or None."""
    found = _parsed(text)
    return found if isinstance(found, str) else None


def selector_tree(text: str) -> Node:
    """Return the tree of a valid selector."""
    found = _parsed(text)
    assert not isinstance(found, str), "invalid selectors are rejected"
    return found


def _parsed(text: str) -> Node | str:
    known = _PARSED.get(text)
    if known is None:
        if len(_PARSED) >= _PARSED_MAX:
            _PARSED.clear()
        try:
            node = parse_expression(text)
            known = check_names(node, _VARIABLES) or node
        except CELError as error:
            known = str(error)
        _PARSED[text] = known
    return known
