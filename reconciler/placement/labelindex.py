"""Nodes by their labels and taints: «which of them» as one integer, node *i* being bit *i*.

A label is indexed when somebody first asks for it; most labels never are.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from reconciler.catalog.table import bits
from reconciler.model.labels import HOSTNAME
from reconciler.model.requirement import Requirement
from reconciler.model.taint import Taint, Toleration, untolerated


class LabelIndex:
    """Rows of labels and taints; ``names`` stand in for hostnames that no label gives."""

    def __init__(
        self,
        names: Sequence[str],
        labels: Sequence[Mapping[str, str]],
        taints: Iterable[tuple[Taint, ...]],
    ) -> None:
        self.all = (1 << len(names)) - 1
        self._names = names
        self._labels = labels
        self._by_key: dict[str, dict[str | None, int]] = {}
        by_taints: dict[tuple[Taint, ...], list[int]] = {}
        for index, row in enumerate(taints):
            by_taints.setdefault(row, []).append(index)
        self._taints = {row: bits(members) for row, members in by_taints.items()}

    def values(self, key: str) -> dict[str | None, int]:
        """Return the nodes by value of a label; None stands for those without it."""
        known = self._by_key.get(key)
        if known is None:
            column = [row.get(key) for row in self._labels]
            if key == HOSTNAME:
                column = [v or n for v, n in zip(column, self._names, strict=True)]
            found: dict[str | None, list[int]] = {}
            for index, value in enumerate(column):
                members = found.get(value)
                if members is None:
                    found[value] = [index]
                else:
                    members.append(index)
            known = self._by_key[key] = {v: bits(members) for v, members in found.items()}
        return known

    def _matching(self, wanted: Requirement) -> int:
        """Return the nodes whose label is as wanted; a missing one meets only a negative demand."""
        values = self.values(wanted.key)
        mask = values.get(None, 0) if wanted.is_negative else 0
        if wanted.complement:
            for value, members in values.items():
                if value is not None and wanted.has(value):
                    mask |= members
        else:
            for value in wanted.values:
                mask |= values.get(value, 0)
        return mask

    def meeting(self, requirements: Mapping[str, Requirement]) -> int:
        """Return the nodes whose labels are as demanded; what a node does not say it has not."""
        mask = self.all
        for wanted in requirements.values():
            mask &= self._matching(wanted)
        return mask

    def tolerated(self, tolerations: tuple[Toleration, ...]) -> int:
        """Return the nodes all of whose taints are tolerated."""
        mask = 0
        for taints, members in self._taints.items():
            if not taints or not untolerated(taints, tolerations):
                mask |= members
        return mask
