"""What NodePools may still launch before their limits are reached.

A new node counts with the most that any of its candidate types has, so that a pass never goes
beyond a limit whichever type is launched (Karpenter does so for resources; the number of nodes,
which it lets one pass exceed, is counted here as well).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from reconciler.model.resources import NODES, Resources, pods
from reconciler.observed.state import StateNode
from reconciler.placement.template import Template


class Limits:
    """What is left of each NodePool's limits; pools without any are not in here."""

    def __init__(
        self,
        templates: Iterable[Template],
        nodes: Iterable[StateNode],
        promised: Iterable[tuple[str, Resources]],
        without: Collection[str] = (),
    ) -> None:
        self._left: dict[str, Resources] = {}
        for template in templates:
            if template.node_pool.spec.limits:
                self._left[template.name] = template.node_pool.limits()
        if self._left:
            for node in nodes:
                if not node.is_deleting and node.name not in without:
                    self._take(node.node_pool, node.capacity)
            for pool, capacity in promised:
                self._take(pool, capacity)
        self._allowed: dict[str, int] = {}

    def _take(self, pool: str, capacity: Resources) -> None:
        left = self._left.get(pool)
        if left is None:
            return
        for name in left:
            left[name] -= pods(1) if name == NODES else capacity.get(name, 0)

    def left(self, template: Template) -> Resources | None:
        """Return what is left of the pool's limits, None if it has none."""
        return self._left.get(template.name)

    def allowed(self, template: Template) -> int:
        """Return the types of the pool that its limits still allow."""
        left = self._left.get(template.name)
        if left is None:
            return template.types
        known = self._allowed.get(template.name)
        if known is None:
            known = template.types
            for name, amount in left.items():
                if name == NODES:
                    known = known if amount >= pods(1) else 0
                else:
                    known &= template.table.capacity_at_most(name, amount)
            self._allowed[template.name] = known
        return known

    def take(self, template: Template, mask: int) -> None:
        """Count a new node that may become any type of ``mask``."""
        left = self._left.get(template.name)
        if left is None:
            return
        for name in left:
            left[name] -= pods(1) if name == NODES else template.table.most_capacity(name, mask)
        self._allowed.pop(template.name, None)
