"""Which of many pods a rule selects, found by label instead of pod by pod.

A tenant may give each of its pods a rule of its own, so that there are as many rules as pods. Here,
a rule costs a few operations on bit sets, however many pods there are.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Protocol

from reconciler.catalog.table import bits, union_of
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
        self._numbers: dict[tuple[str, frozenset[tuple[str, str]]], int] = {}
        namespaces: dict[str, list[int]] = {}
        self._by_label: dict[str | tuple[str, str], list[int]] = {}
        self._having: dict[str | tuple[str, str], int] = {}
        self._selected: dict[tuple[frozenset[str], Selector], int] = {}
        for shape in shapes:
            kind = (shape.namespace, frozenset(shape.labels.items()))
            if kind in self._numbers:
                continue
            number = self._numbers[kind] = len(self._numbers)
            namespaces.setdefault(shape.namespace, []).append(number)
            for label in shape.labels.items():
                self._by_label.setdefault(label[0], []).append(number)
                self._by_label.setdefault(label, []).append(number)
        self._all = (1 << len(self._numbers)) - 1
        self._namespaces = {name: bits(members) for name, members in namespaces.items()}

    def bit_of(self, shape: Labelled) -> int:
        """Return the set with the kind of a shape only."""
        return 1 << self._numbers[shape.namespace, frozenset(shape.labels.items())]

    def in_namespaces(self, names: Collection[str]) -> int:
        """Return the kinds of some namespaces."""
        return union_of(members for name, members in self._namespaces.items() if name in names)

    def namespaces_of(self, selected: int) -> list[str]:
        """Return the namespaces of some kinds."""
        return [name for name, members in self._namespaces.items() if members & selected]

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
        found = self.in_namespaces(namespaces)
        for pair in selector.pairs:
            found &= self._with(pair)
        for expression in selector.expressions:
            found &= self._meeting(expression)
        return found

    def _with(self, label: str | tuple[str, str]) -> int:
        """Return the kinds with a label, or with a label of that key."""
        known = self._having.get(label)
        if known is None:
            known = bits(self._by_label.get(label, ()))
            if known:  # rules may name any number of labels that no pod has
                self._having[label] = known
        return known

    def _meeting(self, expression: _Expression) -> int:
        key, operator, values = expression
        match operator:
            case "In" | "NotIn":
                having = union_of(self._with((key, value)) for value in values)
                return having if operator == "In" else self._all & ~having
            case "Exists":
                return self._with(key)
            case "DoesNotExist":
                return self._all & ~self._with(key)
        return 0
