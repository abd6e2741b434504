"""The cluster's default topology spread, for pods that define none.

kube-scheduler can be configured with default constraints. They have no selector: it derives one for
each pod from the Services that select the pod and from its controller. This module does the same,
to count the same pods (Karpenter ``scheduling/defaultconstraints.go``; Kubernetes
``DefaultSelector``).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace as with_fields
from typing import Final

from msgspec.structs import replace

from reconciler.model.kubernetes.cluster import Service
from reconciler.model.kubernetes.metadata import LabelSelector, OwnerReference, SelectorExpression
from reconciler.model.kubernetes.pod import Pod, TopologySpreadConstraint
from reconciler.model.settings import DefaultConstraint
from reconciler.observed.state import ClusterState, StateNode

TEMPLATE_HASH: Final = "pod-template-hash"
_EXACT: Final = {"ReplicaSet": "apps/v1", "StatefulSet": "apps/v1"}
_REPLICATION: Final = ("v1", "ReplicationController")

Owner = tuple[str, str]
"""Kind, and ``namespace/name``."""


class DefaultSpread:
    """Adds the cluster's default spread to pods without a spread of their own.

    ``selectors`` are those of ReplicaSets and StatefulSets, ``replications`` those of
    ReplicationControllers. For an unknown ReplicaSet, the label that distinguishes the revisions of
    a Deployment is used.
    """

    def __init__(
        self,
        constraints: Iterable[DefaultConstraint],
        services: Iterable[Service],
        selectors: Mapping[Owner, LabelSelector],
        replications: Mapping[str, Mapping[str, str]],
    ) -> None:
        self._constraints = tuple(map(_constraint, constraints))
        self._services: dict[str, list[Mapping[str, str]]] = {}
        for service in sorted(services, key=lambda s: s.metadata.name):
            if service.spec.selector:
                namespace = service.metadata.namespace or "default"
                self._services.setdefault(namespace, []).append(service.spec.selector)
        self._selectors = selectors
        self._replications = replications
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
        owner = _controller(pod)
        who = (owner.api_version, owner.kind, owner.name) if owner is not None else None
        key = (pod.namespace, who, frozenset(pod.metadata.labels.items()))
        known = self._known.get(key)
        if known is None:
            selector = self._selector(pod, owner)
            known = (
                ()
                if selector is None
                else tuple(
                    replace(constraint, label_selector=selector) for constraint in self._constraints
                )
            )
            self._known[key] = known
        return known

    def _selector(self, pod: Pod, owner: OwnerReference | None) -> LabelSelector | None:
        """Return the selector of the pod's peers, or None if none can be derived.

        An empty selector would count every pod of the namespace.
        """
        pairs: dict[str, str] = {}
        labels = pod.metadata.labels
        for selector in self._services.get(pod.namespace, ()):
            if all(labels.get(name) == value for name, value in selector.items()):
                pairs.update(selector)
        expressions: tuple[SelectorExpression, ...] = ()
        if owner is not None and (owner.api_version, owner.kind) == _REPLICATION:
            pairs.update(self._replications.get(f"{pod.namespace}/{owner.name}", {}))
        elif owner is not None and _EXACT.get(owner.kind) == owner.api_version:
            expressions = self._owner_expressions(pod, owner)
        return LabelSelector(pairs, expressions) if pairs or expressions else None

    def _owner_expressions(self, pod: Pod, owner: OwnerReference) -> tuple[SelectorExpression, ...]:
        """Return the owner's selector as expressions; the Services' selectors are added to them."""
        found = self._selectors.get((owner.kind, f"{pod.namespace}/{owner.name}"))
        if found is None:
            revision = pod.metadata.labels.get(TEMPLATE_HASH)
            if owner.kind != "ReplicaSet" or revision is None:
                return ()
            found = LabelSelector({TEMPLATE_HASH: revision})
        exact = (
            SelectorExpression(name, "In", (value,))
            for name, value in sorted(found.match_labels.items())
        )
        return (*exact, *found.match_expressions)


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


def _controller(pod: Pod) -> OwnerReference | None:
    return next((owner for owner in pod.metadata.owner_references if owner.controller), None)


def _constraint(default: DefaultConstraint) -> TopologySpreadConstraint:
    return TopologySpreadConstraint(
        topology_key=default.topology_key,
        max_skew=default.max_skew,
        when_unsatisfiable=default.when_unsatisfiable,
        min_domains=default.min_domains,
        node_affinity_policy=default.node_affinity_policy,
        node_taints_policy=default.node_taints_policy,
    )
