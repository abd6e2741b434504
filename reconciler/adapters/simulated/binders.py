"""The scheduler of a simulated cluster, which is kept while what it depends on stays the same."""

from __future__ import annotations

from collections.abc import Mapping

from reconciler.desired.workloads.pods import Workloads
from reconciler.model.chance import Chance
from reconciler.model.kubernetes.profile import Profile
from reconciler.observed.state import index_scalables
from reconciler.placement.binding.scheduler import NodeBinder
from reconciler.placement.topology.peers import owners_of


class ClusterBinder:
    """The binder of a cluster, a new one whenever objects change that it cannot follow.

    Only a simulation, which has one process and ``chance``, keeps the order in which pods were
    tried: the embedded cluster is the same in every process. ``profiles`` are those of the
    schedulers by name.
    """

    def __init__(self, chance: Chance | None) -> None:
        self._chance = chance
        self._known: tuple[tuple[object, ...], NodeBinder] | None = None
        self.profiles: Mapping[str, Profile] = {}

    def binder_for(self, workloads: Workloads) -> NodeBinder:
        """Return the binder for pods among these workloads."""
        scalables = index_scalables(
            ReplicaSet=workloads.replica_sets, StatefulSet=workloads.stateful_sets
        )
        namespaces = {n.metadata.name: n.metadata.labels for n in workloads.namespaces}
        owners = owners_of(workloads.services, scalables, workloads.replication_controllers)
        rules, known = (namespaces, owners, self.profiles), self._known
        if self._chance is None or known is None or known[0] != rules:
            binder = NodeBinder(
                (),
                namespaces,
                owners=owners,
                profiles=self.profiles,
                seed=self._chance.seed if self._chance is not None else 0,
            )
            known = self._known = (rules, binder)
        return known[1]
