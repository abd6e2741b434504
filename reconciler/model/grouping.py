"""Items in groups of equal keys, and pods in the groups by which their cost is shown."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final, TypeVar

from reconciler.model.kubernetes.labelsyntax import key_fault
from reconciler.model.text.quoting import quote_value

K = TypeVar("K")
V = TypeVar("V")


def group_by(items: Iterable[V], key: Callable[[V], K]) -> dict[K, list[V]]:
    """Return the items by their key, in the order in which the keys first occur."""
    return group_pairs((key(item), item) for item in items)


def group_pairs(pairs: Iterable[tuple[K, V]]) -> dict[K, list[V]]:
    """Return the second members of pairs by the first ones."""
    groups: dict[K, list[V]] = {}
    for key, value in pairs:
        groups.setdefault(key, []).append(value)
    return groups


@dataclass(frozen=True, slots=True)
class Grouping:
    """By what cost is shown: the namespace, the workload, or a label of pods."""

    label: str | None = None
    by_workload: bool = False

    @classmethod
    def read(cls, word: object) -> Grouping | None:
        """Return what ``namespace``, ``workload`` or ``label=KEY`` means, None for other values."""
        if word in ("namespace", "workload"):
            return cls(by_workload=word == "workload")
        kind, _, label = word.partition("=") if isinstance(word, str) else ("", "", "")
        return cls(label) if kind == "label" and not key_fault(label) else None

    @classmethod
    def from_text(cls, text: str) -> Grouping:
        """Return the grouping that a text means.

        Raises:
            ValueError: it means none.
        """
        grouping = cls.read(text)
        if grouping is None:
            allowed = "namespace, workload or label=KEY"
            raise ValueError(f"{quote_value(text)} is not a grouping (use {allowed})")
        return grouping

    def __str__(self) -> str:
        """Return the text that this grouping is read from."""
        if self.label is not None:
            return f"label={self.label}"
        return "workload" if self.by_workload else "namespace"

    @property
    def without(self) -> str:
        """The name of the group of pods without the label."""
        return f"(no label {self.label})" if self.label is not None else ""

    def group_of(self, namespace: str, workload: str, labels: Mapping[str, str]) -> str:
        """Return the group of pods."""
        if self.label is not None:
            return labels.get(self.label) or self.without
        return workload if self.by_workload else namespace


BY_NAMESPACE: Final = Grouping()
