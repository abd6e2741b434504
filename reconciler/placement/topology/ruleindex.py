"""Which of the rules select a pod, found by its labels instead of rule by rule.

The pods of a tenant may each have a rule of their own. Every simulated removal asks which rules
select the few pods that it places, and nothing else of the rules is read then.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from reconciler.catalog.table import bits
from reconciler.placement.topology.rules import Rule

_Condition = tuple[str, str, tuple[str, ...]]
_Label = tuple[str, str]
_KNOWN: Final = frozenset({"In", "NotIn", "Exists", "DoesNotExist"})


class RuleIndex:
    """Rules by what they select; a set of them is an integer with a bit for each, in their order.

    A rule selects the pods of its namespaces that meet all of its conditions. The conditions are
    read in rounds, the first of each rule, then the second, so that a round has one of each.
    """

    def __init__(self, rules: Sequence[Rule]) -> None:
        by_namespace: dict[str, list[int]] = {}
        rounds: list[dict[int, _Condition]] = []
        for index, rule in enumerate(rules):
            conditions = _conditions(rule)
            if conditions is None:
                continue
            for namespace in rule.namespaces:
                by_namespace.setdefault(namespace, []).append(index)
            for position, condition in enumerate(conditions):
                if position == len(rounds):
                    rounds.append({})
                rounds[position][index] = condition
        self._by_namespace = {name: bits(members) for name, members in by_namespace.items()}
        everything = (1 << len(rules)) - 1
        self._rounds = [_Round(everything, conditions) for conditions in rounds]

    def selecting(self, namespace: str, labels: Mapping[str, str]) -> int:
        """Return the rules that select pods of a namespace with these labels."""
        found = self._by_namespace.get(namespace, 0)
        for conditions in self._rounds:
            if not found:
                break
            found &= conditions.met_by(labels)
        return found


def _conditions(rule: Rule) -> Sequence[_Condition] | None:
    """Return the conditions of a rule's selector, or None if it selects no pod."""
    selector = rule.selector
    if selector.nothing or any(operator not in _KNOWN for _, operator, _ in selector.expressions):
        return None
    return [*((key, "In", (value,)) for key, value in selector.pairs), *selector.expressions]


class _Round:
    """One condition of each rule; rules that have fewer conditions meet it.

    ``_wanting`` are the rules that a label meets, by its key or by the label, and ``_excluding``
    those that one fails.
    """

    def __init__(self, everything: int, conditions: Mapping[int, _Condition]) -> None:
        self._wanting: dict[str | _Label, list[int]] = {}
        self._excluding: dict[str | _Label, list[int]] = {}
        self._masks: dict[str | _Label, tuple[int, int]] = {}
        wanted: list[int] = []
        for index, (key, operator, values) in conditions.items():
            side = self._excluding
            if operator in ("In", "Exists"):
                side = self._wanting
                wanted.append(index)
            if operator in ("Exists", "DoesNotExist"):
                side.setdefault(key, []).append(index)
            else:
                for value in set(values):
                    side.setdefault((key, value), []).append(index)
        self._met_without_labels = everything & ~bits(wanted)

    def met_by(self, labels: Mapping[str, str]) -> int:
        """Return the rules whose condition pods with these labels meet."""
        met = self._met_without_labels
        for label in labels.items():
            for asked in (label[0], label):
                wanting, excluding = self._concerned_by(asked)
                met = (met | wanting) & ~excluding
        return met

    def _concerned_by(self, asked: str | _Label) -> tuple[int, int]:
        """Return the rules that a key or a label meets, and those that it fails."""
        known = self._masks.get(asked)
        if known is None:
            known = bits(self._wanting.get(asked, ())), bits(self._excluding.get(asked, ()))
            if any(known):  # pods have any number of labels that no rule names
                self._masks[asked] = known
        return known
