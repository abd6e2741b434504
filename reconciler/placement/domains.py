"""Which values of a label exist at all: on nodes, and on what NodePools may launch.

A spread is even over domains that may still be empty, so they have to be known before anything
is there. Availability, limits and whether a type fits do not matter here (Karpenter
``topologydomaingroup.go``).
"""

from __future__ import annotations

from collections.abc import Iterable

from reconciler.catalog.table import TypeTable
from reconciler.model.nodepool import NodePool
from reconciler.model.requirement import equals
from reconciler.model.requirements import Requirements
from reconciler.model.taint import Taint, Toleration, untolerated


class Universe:
    """The domains that NodePools can make, by label key, with the taints that guard each."""

    def __init__(self, pools: Iterable[tuple[NodePool, TypeTable]]) -> None:
        self._pools = [
            (_own_requirements(pool), pool.spec.template.spec.taints, table)
            for pool, table in pools
        ]
        self._guards: dict[str, dict[str, list[tuple[Taint, ...]]]] = {}

    def domains(self, key: str, tolerations: tuple[Toleration, ...] | None) -> list[str]:
        """Return the domains of ``key``, sorted; with tolerations, those of pools they open."""
        guards = self._guards.get(key)
        if guards is None:
            guards = self._guards[key] = self._found(key)
        if tolerations is None:
            return list(guards)
        return [
            domain
            for domain, taints in guards.items()
            if any(not untolerated(t, tolerations) for t in taints)
        ]

    def _found(self, key: str) -> dict[str, list[tuple[Taint, ...]]]:
        found: dict[str, list[tuple[Taint, ...]]] = {}
        for requirements, taints, table in self._pools:
            own = requirements.get(key)
            values = set(own.values) if own is not None and not own.complement else set()
            borne = [v for v in table.values(key) if own is None or own.has(v)]
            for value in values.union(borne):
                found.setdefault(value, []).append(taints)
        return dict(sorted(found.items()))


def _own_requirements(pool: NodePool) -> Requirements:
    """Return the template's requirements and labels; the pool's own name makes no domain."""
    labels = pool.spec.template.metadata.labels
    return pool.requirements().adding(equals(key, value) for key, value in labels.items())
