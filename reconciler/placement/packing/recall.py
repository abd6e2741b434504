"""What packing has computed about a catalog, kept as long as its table.

A loop of passes evaluates the same types repeatedly, while only pods and nodes change. Results that
depend on the types alone are then computed once. Keys are contents, so a result is the same with
and without it.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from functools import lru_cache
from typing import Final, Generic, TypeVar

from reconciler.catalog.table import TypeTable
from reconciler.placement.nodes.template import PoolTemplate

_ANSWERS_MAX: Final = 512
"""The maximum number of answers of one kind that are kept for one catalog."""
_CATALOGS_MAX: Final = 16

T = TypeVar("T")


class KnownAnswers(Generic[T]):
    """KnownAnswers by question; all are forgotten when there are too many."""

    def __init__(self, most: int = _ANSWERS_MAX) -> None:
        self._known: dict[Hashable, T] = {}
        self._most = most

    def __len__(self) -> int:
        return len(self._known)

    def of(self, question: Hashable, answer: Callable[[], T]) -> T:
        """Return the known answer, or compute it."""
        try:
            return self._known[question]
        except KeyError:
            if len(self._known) >= self._most:
                self._known.clear()
            found = self._known[question] = answer()
            return found


@lru_cache(maxsize=_CATALOGS_MAX)
def answers_of(subject: str, tables: tuple[TypeTable, ...]) -> KnownAnswers[object]:
    """Return the answers about a subject that depend on these tables."""
    del subject, tables
    return KnownAnswers()


def tables_of(templates: Iterable[PoolTemplate]) -> tuple[TypeTable, ...]:
    """Return the tables of NodePools, in their order."""
    return tuple(template.table for template in templates)


def daemons_of(template: PoolTemplate) -> Hashable:
    """Return the daemons of a NodePool's nodes as part of a question; ports are left out."""
    return tuple((g.mask, tuple(sorted(g.requests.items()))) for g in template.daemon_groups)
