"""The capacity that nodes turned out to have, kept from pass to pass and across restarts."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from datetime import datetime, timedelta
from typing import Final

from reconciler.catalog.adjusted.discovered import Discoveries, discovered, memory_of
from reconciler.model.karpenter.nodeclass import EC2NodeClass
from reconciler.observed.state import StateNode
from reconciler.plan.make.pools import Memory

_KEPT_EVERY: Final = timedelta(days=1)


def forget(_: Discoveries) -> None:
    """Store nothing: a preview has nowhere to write."""


class Discovery:
    """Discovered capacity; ``keep`` stores it when there is something new.

    A confirmed amount is stored once a day: that only extends its lifetime.
    """

    def __init__(self, known: Discoveries, keep: Callable[[Discoveries], None] = forget) -> None:
        self._known = known
        self._keep = keep
        self._kept_at: datetime | None = None

    def copied(self) -> Discovery:
        """Return one that knows the same, and learns from here on by itself."""
        return Discovery(self._known)

    def update(
        self, nodes: Iterable[StateNode], classes: Mapping[str, EC2NodeClass], now: datetime
    ) -> Discoveries:
        """Update what is known from the observed nodes, and return it."""
        before, self._known = self._known, discovered(nodes, classes, self._known, now)
        is_due = self._kept_at is None or now - self._kept_at >= _KEPT_EVERY
        if _amounts(before) != _amounts(self._known) or (self._known and is_due):
            self._keep(self._known)
            self._kept_at = now
        return self._known

    def of(self, classes: Mapping[str, EC2NodeClass]) -> Mapping[str, Memory]:
        """Return what is known about the nodes of each class, by the name of the class."""
        if not self._known:
            return {}
        return {name: memory_of(node_class, self._known) for name, node_class in classes.items()}


def _amounts(known: Discoveries) -> dict[str, dict[str, int]]:
    return {key: {n: m.amount for n, m in types.items()} for key, types in known.items()}
