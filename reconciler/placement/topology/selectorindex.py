"""Which of many selectors select a pod, found by its labels instead of one by one.

The pods of a tenant may each have a rule or a PodDisruptionBudget of their own. Every simulated
removal asks which rules select the few pods that it places, and reads nothing else of them.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Final

from reconciler.catalog.table import bits
from reconciler.placement.topology.rules import Selector

_Condition = tuple[str, str, tuple[str, ...]]
_Label = tuple[str, str]
_KNOWN: Final = frozenset({"In", "NotIn", "Exists", "DoesNotExist"})


class SelectorIndex:
    """Selectors with the namespaces of their pods, by what they select.

    A set of them is an integer with a bit for each, in their order. A selector selects the pods
    that meet all of its conditions. They are read in rounds, the first of each selector, then the
    second, so that a round has one of each.
    """

    def __init__(self, selectors: Sequence[tuple[Collection[str], Selector]]) -> None:
        by_namespace: dict[str, list[int]] = {}
        rounds: list[dict[int, _Condition]] = []
        for index, (namespaces, selector) in enumerate(selectors):
            conditions = _conditions(selector)
            if conditions is None:
                continue
            for namespace in namespaces:
                by_namespace.setdefault(namespace, []).append(index)
            for position, condition in enumerate(conditions):
                if position == len(rounds):
                    rounds.append({})
                rounds[position][index] = condition
        self._by_namespace = {name: bits(members) for name, members in by_namespace.items()}
        everything = (1 << len(selectors)) - 1
        self._rounds = [_Round(everything, conditions) for conditions in rounds]

    def selecting(self, namespace: str, labels: Mapping[str, str]) -> int:
        """Return the selectors that select pods of a namespace with these labels."""
        found = self._by_namespace.get(namespace, 0)
        for conditions in self._rounds:
            if not found:
                break
            found &= conditions.met_by(labels)
        return found


def _conditions(selector: Selector) -> Sequence[_Condition] | None:
    """Return the conditions of a selector, or None if it selects no pod."""
    if selector.nothing or any(operator not in _KNOWN for _, operator, _ in selector.expressions):
        return None
    return [*((key, "In", (value,)) for key, value in selector.pairs), *selector.expressions]


class _Round:
    """One condition of each selector; pods meet it where a selector has fewer conditions.

    ``_wanting`` are the selectors whose condition a label meets, by its key or by the label, and
    ``_excluding`` those whose condition it fails.
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
        """Return the selectors whose condition pods with these labels meet."""
        met = self._met_without_labels
        for label in labels.items():
            for asked in (label[0], label):
                wanting, excluding = self._concerned_by(asked)
                met = (met | wanting) & ~excluding
        return met

    def _concerned_by(self, asked: str | _Label) -> tuple[int, int]:
        """Return the selectors whose condition a key or a label meets, and those that it fails."""
        known = self._masks.get(asked)
        if known is None:
            known = bits(self._wanting.get(asked, ())), bits(self._excluding.get(asked, ()))
            if any(known):  # pods have any number of labels that no selector names
                self._masks[asked] = known
        return known
