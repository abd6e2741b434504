"""The cluster's default topology spread, for pods that define none.

kube-scheduler can be configured with default constraints. They have no selector: it derives one for
each pod, as does this module, to count the same pods (Karpenter
``scheduling/defaultconstraints.go``).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace as with_fields

from msgspec.structs import replace

from reconciler.model.kubernetes.pod import Pod, TopologySpreadConstraint
from reconciler.observed.state import ClusterState, StateNode
from reconciler.placement.topology.peers import Owners, Peers


class DefaultSpread:
    """Adds the cluster's default spread to pods without a spread of their own."""

    def __init__(self, constraints: Iterable[TopologySpreadConstraint], owners: Owners) -> None:
        self._constraints = tuple(constraints)
        self._peers = Peers(owners)
        self._known: dict[object, tuple[TopologySpreadConstraint, ...]] = {}

    def apply(self, pod: Pod) -> Pod:
        """Return the pod with the default spread, or unchanged if no selector can be derived."""
        if pod.spec.topology_spread_constraints:
            return pod
        found = self._constraints_of(pod)
        if not found:
            return pod
        return replace(pod, spec=replace(pod.spec, topology_spread_constraints=found))

    def _constraints_of(self, pod: Pod) -> tuple[TopologySpreadConstraint, ...]:
        owner = pod.metadata.controller
        who = (owner.api_version, owner.kind, owner.name) if owner is not None else None
        key = (pod.namespace, who, frozenset(pod.metadata.labels.items()))
        known = self._known.get(key)
        if known is None:
            selector = self._peers.selector(pod)
            known = (
                ()
                if selector is None
                else tuple(
                    replace(constraint, label_selector=selector) for constraint in self._constraints
                )
            )
            self._known[key] = known
        return known


def with_default_spread(cluster: ClusterState, spread: DefaultSpread) -> ClusterState:
    """Return the cluster with the default spread on pods that define none.

    A pod that is in two lists remains one object.
    """
    with_spread = {id(pod): spread.apply(pod) for pod in cluster.pods}

    def on_node(node: StateNode) -> StateNode:
        pods = tuple(with_spread.get(id(pod)) or spread.apply(pod) for pod in node.pods)
        return with_fields(node, pods=pods) if pods else node

    nodes = tuple(map(on_node, cluster.nodes))
    return with_fields(cluster, pods=tuple(with_spread[id(p)] for p in cluster.pods), nodes=nodes)
