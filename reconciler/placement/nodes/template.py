"""A NodePool as a template for new nodes: its requirements, instance types and daemons."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from reconciler.catalog.table import TypeTable
from reconciler.model.karpenter.labels import INSTANCE_TYPE
from reconciler.model.karpenter.nodepool import NodePool
from reconciler.model.karpenter.requirements import Requirement
from reconciler.model.kubernetes.pod import HostPort
from reconciler.model.resources import CPU, MEMORY
from reconciler.placement.nodes.daemons import Daemon, DaemonGroup, groups
from reconciler.placement.nodes.space import Space, SpaceBook


class PoolTemplate:
    """A NodePool that may launch nodes; ``types`` are the candidates before any pod is placed.

    ``best_effort`` is whether the NodePool's ``minValues`` may be lowered.
    """

    __slots__ = (
        "best_effort",
        "book",
        "daemon_groups",
        "least_cpu",
        "least_memory",
        "name",
        "node_pool",
        "space",
        "table",
        "taints",
        "types",
    )

    def __init__(
        self, node_pool: NodePool, book: SpaceBook, daemons: Iterable[Daemon], *, best_effort: bool
    ) -> None:
        self.node_pool = node_pool
        self.name = node_pool.name
        self.book = book
        self.table = book.table
        self.best_effort = best_effort
        self.taints = node_pool.spec.template.spec.taints
        self.space: Space = book.of(node_pool.template_requirements())
        self.types = self.space.mask & self.table.usable
        if not best_effort and self.space.has_min_values:
            self.types = 0 if shortfalls(self.table, self.types, self.space) else self.types
        self.daemon_groups: tuple[DaemonGroup, ...] = groups(
            daemons, self.table, self.types, self.space.requirements, self.taints
        )
        self.least_cpu = min((g.requests.get(CPU, 0) for g in self.daemon_groups), default=0)
        self.least_memory = min((g.requests.get(MEMORY, 0) for g in self.daemon_groups), default=0)

    def fitting(self, mask: int, requests: Mapping[str, int], ports: tuple[HostPort, ...]) -> int:
        """Return the types of ``mask`` on which ``requests`` fit besides the daemons.

        ``ports`` are the host ports of the new pod; types whose daemons use one are excluded.
        """
        at_least = self.table.at_least
        found = 0
        for group in self.daemon_groups:
            fits = mask & group.mask
            if not fits or (ports and group.ports and clash(ports, group.ports)):
                continue
            if group.requests:
                for name, amount in group.requests.items():
                    fits &= at_least(name, amount + requests.get(name, 0))
                for name, amount in requests.items():
                    if name not in group.requests:
                        fits &= at_least(name, amount)
            else:
                for name, amount in requests.items():
                    fits &= at_least(name, amount)
            found |= fits
        return found


def clash(wanted: Iterable[HostPort], taken: Iterable[HostPort]) -> bool:
    """Return whether a host port of one side conflicts with one of the other."""
    held = tuple(taken)
    return any(port.matches(other) for port in wanted for other in held)


def shortfalls(table: TypeTable, mask: int, space: Space) -> dict[str, tuple[Requirement, int]]:
    """Return the requirements whose ``minValues`` the types miss, with the number of values."""
    found: dict[str, tuple[Requirement, int]] = {}
    for key, wanted in space.requirements.items():
        if wanted.min_values is None:
            continue
        if key == INSTANCE_TYPE:
            achieved = mask.bit_count()
        else:
            achieved = sum(1 for types in table.values(key).values() if types & mask)
        if achieved < wanted.min_values:
            found[key] = (wanted, achieved)
    return found
