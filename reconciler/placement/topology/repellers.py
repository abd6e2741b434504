"""The required anti-affinity of running pods, which repels pods to place.

There may be as many rules as pods, and each simulated removal asks which of them apply to the few
pods that it places. Rules that select the same of these pods are added up, once for all removals.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from reconciler.catalog.table import iterate_members, union_of
from reconciler.placement.topology.podkinds import Labelled
from reconciler.placement.topology.rules import Rule
from reconciler.placement.topology.selectorindex import SelectorIndex

_SPLITS_MAX: Final = 8
"""The most sets of rules that are compared with each other; if there are more, rules are read."""
_SUMS_MAX: Final = 64


class Repellers(NamedTuple):
    """Rules about one label that select the same pods, by their first, and where they repel."""

    rule: Rule
    counts: Mapping[str, int]


class RunningRepellers:
    """The rules and the domains of the pods that have them.

    ``counts`` has both; ``label_of`` returns the label of a rule, "" if no node can have it. Rules
    that differ only in such labels leave no domain to the pods that they select, whatever the
    labels are called: the first stands for all of them.
    """

    def __init__(
        self, counts: Mapping[Rule, Mapping[str, int]], label_of: Callable[[Rule], str]
    ) -> None:
        self.counts = counts
        self._label_of = label_of
        distinct: dict[tuple[object, ...], Rule] = {}
        for rule in counts:
            distinct.setdefault((label_of(rule), rule.namespaces, rule.selector), rule)
        self._rules = tuple(distinct.values())
        self._index = SelectorIndex([(r.namespaces, r.selector) for r in self._rules])
        self._numbers = {rule: number for number, rule in enumerate(self._rules)}
        self._by_kind: dict[tuple[str, frozenset[tuple[str, str]]], int] = {}
        self._sums: dict[int, Sequence[Repellers]] = {}

    def selecting(self, kind: Labelled) -> int:
        """Return the set of the rules that select pods of a kind."""
        key = (kind.namespace, frozenset(kind.labels.items()))
        known = self._by_kind.get(key)
        if known is None:
            known = self._by_kind[key] = self._index.selecting(kind.namespace, kind.labels)
        return known

    def has(self, rule: Rule, among: int) -> bool:
        """Return whether a rule is one of a set of rules."""
        number = self._numbers.get(rule)
        return number is not None and bool(among >> number & 1)

    def alike(self, selecting: Iterable[int], selected_by: Callable[[Rule], int]) -> Iterable[int]:
        """Yield the sets of rules that select the same kinds of pods.

        ``selecting`` are the rules that select each kind; ``selected_by`` returns the kinds that a
        rule selects, which is asked if there are many different answers.
        """
        answers = {rules for rules in selecting if rules}
        together = union_of(answers)
        if len(answers) > _SPLITS_MAX:
            found: dict[int, int] = {}
            for number in iterate_members(together):
                kinds = selected_by(self._rules[number])
                found[kinds] = found.get(kinds, 0) | 1 << number
            return found.values()
        parts = [together] if together else []
        for answer in answers:
            parts = [p for part in parts for p in (part & answer, part & ~answer) if p]
        return sorted(parts, key=lambda part: part & -part)

    def sums(self, rules: int) -> Sequence[Repellers]:
        """Return the sums of some rules: one for each label and first label of their selectors."""
        known = self._sums.get(rules)
        if known is None:
            if len(self._sums) == _SUMS_MAX:
                self._sums.clear()
            known = self._sums[rules] = self._add_up(rules)
        return known

    def _add_up(self, rules: int) -> Sequence[Repellers]:
        found: dict[tuple[object, ...], tuple[Rule, dict[str, int]]] = {}
        for number in iterate_members(rules):
            rule = self._rules[number]
            key = (self._label_of(rule), rule.selector.pairs[:1])
            _, counts = found.setdefault(key, (rule, {}))
            for domain, count in self.counts[rule].items():
                counts[domain] = counts.get(domain, 0) + count
        return [Repellers(*entry) for entry in found.values()]
