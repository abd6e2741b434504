"""Which of the pods to place a rule selects, found by label instead of pod by pod.

A tenant may give each of its pods a rule of its own, so that there are as many rules as pods. Here,
a rule costs a few operations on bit sets, however many pods there are.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Protocol

from reconciler.placement.topology.rules import Rule, Selector

_Expression = tuple[str, str, tuple[str, ...]]


class Labelled(Protocol):
    """Pods of one namespace with equal labels."""

    @property
    def namespace(self) -> str: ...
    @property
    def labels(self) -> Mapping[str, str]: ...


class PodKinds:
    """Pods by namespace and labels; a set of kinds is an integer with a bit for each.

    All shapes that rules are asked about have to be among ``shapes``.
    """

    def __init__(self, shapes: Iterable[Labelled]) -> None:
        self._bits: dict[tuple[str, frozenset[tuple[str, str]]], int] = {}
        self._by_namespace: dict[str, int] = {}
        self._by_key: dict[str, int] = {}
        self._by_pair: dict[tuple[str, str], int] = {}
        self._selected: dict[tuple[frozenset[str], Selector], int] = {}
        for shape in shapes:
            self._add(shape)
        self._all = (1 << len(self._bits)) - 1

    def _add(self, shape: Labelled) -> None:
        kind = (shape.namespace, frozenset(shape.labels.items()))
        if kind in self._bits:
            return
        bit = self._bits[kind] = 1 << len(self._bits)
        self._by_namespace[shape.namespace] = self._by_namespace.get(shape.namespace, 0) | bit
        for pair in shape.labels.items():
            self._by_key[pair[0]] = self._by_key.get(pair[0], 0) | bit
            self._by_pair[pair] = self._by_pair.get(pair, 0) | bit

    def bit_of(self, shape: Labelled) -> int:
        """Return the set with the kind of a shape only."""
        return self._bits[shape.namespace, frozenset(shape.labels.items())]

    def namespaces_of(self, selected: int) -> list[str]:
        """Return the namespaces of some kinds."""
        return [name for name, members in self._by_namespace.items() if members & selected]

    def selected_by(self, rule: Rule) -> int:
        """Return the kinds that a rule selects, as ``Rule.selects`` does one by one."""
        key = (rule.namespaces, rule.selector)
        known = self._selected.get(key)
        if known is None:
            known = self._selected[key] = self._find(rule.namespaces, rule.selector)
        return known

    def _find(self, namespaces: frozenset[str], selector: Selector) -> int:
        if selector.nothing:
            return 0
        found = 0
        for namespace, members in self._by_namespace.items():
            if namespace in namespaces:
                found |= members
        for pair in selector.pairs:
            found &= self._by_pair.get(pair, 0)
        for expression in selector.expressions:
            found &= self._meeting(expression)
        return found

    def _meeting(self, expression: _Expression) -> int:
        key, operator, values = expression
        match operator:
            case "In" | "NotIn":
                having = 0
                for value in values:
                    having |= self._by_pair.get((key, value), 0)
                return having if operator == "In" else self._all & ~having
            case "Exists":
                return self._by_key.get(key, 0)
            case "DoesNotExist":
                return self._all & ~self._by_key.get(key, 0)
        return 0
