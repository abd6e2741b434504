"""The selectors of devices: CEL expressions on the variable ``device``."""

from __future__ import annotations

from typing import Final

from reconciler.model.expressions.evaluation import check_names
from reconciler.model.expressions.syntax import CELError, Node, parse_expression

_VARIABLES: Final = frozenset({"device"})
_CHARACTERS_MAX: Final = 2 * 2**20


class _Selectors:
    """The tree of each selector, or what is wrong with it: a cluster has few different ones.

    All are forgotten where they have more than ``_CHARACTERS_MAX``: a tree takes some twenty times
    the memory of its text, and whoever may create claims chooses how many there are.
    """

    def __init__(self) -> None:
        self._known: dict[str, Node | str] = {}
        self._characters = 0

    def parsed(self, text: str) -> Node | str:
        known = self._known.get(text)
        if known is None:
            if self._characters + len(text) > _CHARACTERS_MAX:
                self._known.clear()
                self._characters = 0
            known = self._known[text] = _parse(text)
            self._characters += len(text)
        return known


_SELECTORS: Final = _Selectors()


def selector_problem(text: str) -> str | None:
    """Return what is wrong with the CEL expression of a selector, or None."""
    found = _SELECTORS.parsed(text)
    return found if isinstance(found, str) else None


def selector_tree(text: str) -> Node:
    """Return the tree of a valid selector."""
    found = _SELECTORS.parsed(text)
    assert not isinstance(found, str), "invalid selectors are rejected"
    return found


def _parse(text: str) -> Node | str:
    try:
        node = parse_expression(text)
        return check_names(node, _VARIABLES) or node
    except CELError as error:
        return str(error)
