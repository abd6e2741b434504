"""Nodes that are there: which pods they would take, and what is left on them.

Prepared once for a cluster and asked by every pass. As with instance types, node *i* is bit *i*:
labels are indexed by value when a pod first asks for one, so that «on which nodes could this run»
is a few ``&``. A pass only notes what it takes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType

from reconciler.catalog.table import bits, indices
from reconciler.model.labels import HOSTNAME
from reconciler.model.node import CSINode
from reconciler.model.requirements import Requirements
from reconciler.model.resources import CPU, MEMORY, Resources, add
from reconciler.model.taint import Taint, Toleration
from reconciler.observed.state import StateNode
from reconciler.placement.daemons import Daemon
from reconciler.placement.labelindex import LabelIndex
from reconciler.placement.space import Demand


@dataclass(frozen=True)
class Target:
    """A node that pods may be put on: a running one, or a NodeClaim that waits for its instance.

    ``left`` is what pods may still take once its daemons are there. ``capacity`` is what a
    waiting NodeClaim counts with for its NodePool's limits; a running node has its own.
    """

    name: str
    labels: dict[str, str]
    taints: tuple[Taint, ...]
    left: Resources
    is_initialized: bool
    state: StateNode | None = None
    capacity: Resources = field(default_factory=dict)

    @property
    def host(self) -> str:
        return self.labels.get(HOSTNAME) or self.name


class Nodes:
    """The nodes of a cluster as targets, in the order in which pods try them.

    Initialized ones come first, then by name. Nodes on their way out are not among them.
    """

    def __init__(
        self,
        targets: Iterable[Target],
        daemons: Iterable[Daemon],
        csi_nodes: Mapping[str, CSINode] = MappingProxyType({}),
    ) -> None:
        self._csi_nodes = csi_nodes
        self._requirements: dict[int, Requirements] = {}
        rows = sorted(targets, key=lambda t: (not t.is_initialized, t.name))
        self._rows = rows
        self.labels = LabelIndex(
            [t.name for t in rows], [t.labels for t in rows], (t.taints for t in rows)
        )
        self._suited: dict[tuple[Demand, tuple[Toleration, ...]], int] = {}
        self.rows = self._less_daemons(tuple(daemons))
        self.index = {row.name: index for index, row in enumerate(rows)}
        self.cpu = [row.left.get(CPU, 0) for row in self.rows]
        self.memory = [row.left.get(MEMORY, 0) for row in self.rows]
        self.open = bits(
            i for i, row in enumerate(self.rows) if all(v >= 0 for v in row.left.values())
        )

    def _less_daemons(self, daemons: tuple[Daemon, ...]) -> list[Target]:
        """Return the targets less what their daemons will still take."""
        due: dict[int, list[Resources]] = {}
        for daemon in daemons:
            # like Karpenter, only the first alternative counts on a node that is there
            demand = Demand(daemon.terms[0])
            for index in indices(self.suited(demand, daemon.tolerations)):
                due.setdefault(index, []).append(daemon.requests)
        if not due:
            return self._rows
        rows = list(self._rows)
        for index, lists in due.items():
            row = rows[index]
            here = row.state.daemons_used if row.state is not None else {}
            left = dict(row.left)
            for name, amount in add(*lists).items():
                missing = amount - here.get(name, 0)
                if missing > 0 and name in left:
                    left[name] -= missing
            rows[index] = replace(row, left=left)
        return rows

    def volume_limits(self, index: int) -> dict[str, int]:
        """Return how many volumes of each driver may be attached to a node."""
        known = self._csi_nodes.get(self.rows[index].name)
        return known.limits() if known is not None else {}

    def suited(self, demand: Demand, tolerations: tuple[Toleration, ...]) -> int:
        """Return the nodes whose labels and taints suit a pod."""
        key = (demand, tolerations)
        known = self._suited.get(key)
        if known is None:
            known = self.labels.tolerated(tolerations) & self.meeting(demand)
            self._suited[key] = known
        return known

    def meeting(self, demand: Demand) -> int:
        """Return the nodes whose labels meet a demand."""
        mask = self.labels.meeting(demand.requirements)
        if demand.hostname is not None:
            mask &= self.labels.meeting({HOSTNAME: demand.hostname})
        return mask

    def requirements(self, index: int) -> Requirements:
        """Return what a node's labels say, as requirements."""
        known = self._requirements.get(index)
        if known is None:
            known = Requirements.from_labels(self.rows[index].labels)
            self._requirements[index] = known
        return known
