"""A cluster as its nodes: each Node paired with its NodeClaim, and the pods that are on it.

What Karpenter keeps as live state (``pkg/controllers/state``) is computed here from a snapshot:
which taints still count, what a starting node will offer, and what is left on it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import cached_property
from operator import attrgetter
from typing import Final, TypeVar

from msgspec import structs

from reconciler.model.karpenter.capacitybuffer import CapacityBuffer, Scalable
from reconciler.model.karpenter.labels import (
    HOSTNAME,
    INITIALIZED,
    INSTANCE_TYPE,
    NODEPOOL,
    POD_DELETION_COST,
    REBOOTING_TAINT,
    REGISTERED,
)
from reconciler.model.karpenter.nodeclaim import NodeClaim
from reconciler.model.kubernetes.cluster import (
    DaemonSet,
    PersistentVolume,
    PersistentVolumeClaim,
    PodDisruptionBudget,
    PodTemplate,
    ReplicationController,
    Service,
    StorageClass,
)
from reconciler.model.kubernetes.devices import (
    DeviceClass,
    ResourceClaim,
    ResourceClaimTemplate,
    ResourceSlice,
)
from reconciler.model.kubernetes.metadata import HasMetadata, Metadata
from reconciler.model.kubernetes.node import CSINode, Node
from reconciler.model.kubernetes.pod import Pod
from reconciler.model.kubernetes.priority import with_priorities
from reconciler.model.kubernetes.storage import claim_keys
from reconciler.model.kubernetes.taint import Taint
from reconciler.model.resources import Resources, parse_resources, subtract_resources
from reconciler.observed.fingerprint import NodePods, PodKind, Pods
from reconciler.observed.snapshot import Snapshot

NAMESPACE_NAME: Final = "kubernetes.io/metadata.name"
"""The label of each namespace with its name."""

_T = TypeVar("_T", bound=HasMetadata)


@dataclass(frozen=True)
class StateNode:
    """A Node, a NodeClaim, or both of the same instance, and the pods bound there.

    ``marked`` is whether a command of ours has begun to remove it. ``paid`` is its cost in USD an
    hour besides what a commitment has already paid for, None if none covers it.
    """

    node: Node | None
    claim: NodeClaim | None
    pods: tuple[Pod, ...] = ()
    marked: bool = False
    paid: float | None = None

    @cached_property
    def name(self) -> str:
        """The Node's name once it is registered (or not ours), otherwise the NodeClaim's."""
        return self._source.metadata.name

    @cached_property
    def node_name(self) -> str:
        """The name by which its pods call it (``spec.nodeName``).

        Pods that are nominated to a node in flight have the name of its NodeClaim. A Node that is
        gone still has its pods, until Kubernetes collects them.
        """
        return _node_name(self.node, self.claim)

    @property
    def provider_id(self) -> str:
        if self.claim is not None:
            return self.claim.status.provider_id
        assert self.node is not None
        return self.node.spec.provider_id or self.node.name

    @property
    def is_managed(self) -> bool:
        return self.claim is not None

    @cached_property
    def is_registered(self) -> bool:
        if self.claim is None:
            return True
        return self.node is not None and self.node.metadata.labels.get(REGISTERED) == "true"

    @cached_property
    def is_initialized(self) -> bool:
        if self.claim is None:
            return True
        return self.node is not None and self.node.metadata.labels.get(INITIALIZED) == "true"

    @property
    def is_rebooting(self) -> bool:
        """Whether it is being rebooted: its pods leave, and its room comes back."""
        return self.claim is not None and self.claim.is_rebooting

    @property
    def _source(self) -> Node | NodeClaim:
        """The object that describes it: the Node once it is registered (or not ours)."""
        source = self.node if self.node is not None and self.is_registered else self.claim
        assert source is not None, "a state node has a Node or a NodeClaim"
        return source

    @cached_property
    def labels(self) -> Mapping[str, str]:
        return self._source.metadata.labels

    @cached_property
    def annotations(self) -> Mapping[str, str]:
        return self._source.metadata.annotations

    @property
    def node_pool(self) -> str:
        """The name of its NodePool, empty if it has none."""
        return self.labels.get(NODEPOOL, "")

    @property
    def hostname(self) -> str:
        return self.labels.get(HOSTNAME) or self.name

    @property
    def is_host(self) -> bool:
        """Whether its pods count for placement: they run there, or will once the node has joined.

        A node in flight is a node for every purpose of placement, so that a plan does not change
        when it joins. Pods count no longer where the Node is gone, or will never join.
        """
        return self.node is not None or not self.is_deleting

    @cached_property
    def is_deleting(self) -> bool:
        """Whether it is being removed: by a command, or as its claim (or lone Node) is deleted.

        A deletion timestamp on the Node of a NodeClaim does not count: the claim decides.
        """
        if self.marked:
            return True
        if self.claim is not None:
            return self.claim.is_deleting
        return self.node is not None and self.node.metadata.deletion_timestamp is not None

    @cached_property
    def taints(self) -> tuple[Taint, ...]:
        """The taints that pods must tolerate: until it is initialized, without temporary ones.

        The taint of a reboot is temporary as well.
        """
        taints = self._source.spec.taints
        if self.claim is None or (self.is_initialized and not self.is_rebooting):
            return taints
        startup = self.claim.spec.startup_taints
        return tuple(
            t
            for t in taints
            if t.key != REBOOTING_TAINT
            and not t.is_ephemeral
            and not any(t.matches(s) for s in startup)
        )

    @cached_property
    def capacity(self) -> Resources:
        return self._amounts("capacity")

    @cached_property
    def allocatable(self) -> Resources:
        return self._amounts("allocatable")

    def _amounts(self, kind: str) -> Resources:
        """Return the Node's amounts; until it is initialized, gaps and zeros come from the claim.

        A kubelet reports extended resources as zero before their device plugin runs.
        """
        own = parse_resources(getattr(self.node.status, kind)) if self.node else {}
        if self.is_initialized or self.claim is None:
            return own
        promised = parse_resources(getattr(self.claim.status, kind))
        return {**promised, **{name: amount for name, amount in own.items() if amount}}

    @cached_property
    def _pods(self) -> NodePods:
        return NodePods.from_tuple(self.pods)

    @property
    def kinds(self) -> Mapping[PodKind, int]:
        """The number of its pods by namespace and labels, without ended and terminating ones."""
        return self._pods.kinds

    @property
    def with_anti_affinity(self) -> tuple[Pod, ...]:
        """Its pods that have anti-affinity."""
        return self._pods.with_anti_affinity

    @property
    def has_annotated_pods(self) -> bool:
        """Whether one of its pods has an annotation about its own disruption."""
        return self._pods.has_annotated

    @property
    def reschedulable(self) -> tuple[Pod, ...]:
        """The pods on it as every count and decision means them: they need another node.

        A node without any is empty. Without pods of DaemonSets, static pods, completed pods, and
        those that terminate, unless their StatefulSet starts them again only afterwards.
        """
        return self._pods.reschedulable

    @cached_property
    def eviction_cost(self) -> float:
        """The sum of the positive eviction costs of its reschedulable pods."""
        return eviction_costs(self.reschedulable)

    @cached_property
    def used(self) -> Resources:
        """What its pods request; terminating pods still count, finished ones do not.

        On a node that reboots, terminating pods are gone before any other pod starts.
        """
        if self.is_rebooting:
            return NodePods(pod for pod in self.pods if not pod.is_terminating).used
        return self._pods.used

    @property
    def daemons_used(self) -> Resources:
        """What its pods of DaemonSets request."""
        return self._pods.used_by_daemons

    @cached_property
    def available(self) -> Resources:
        """What is left for more pods; may be negative on an over-committed node."""
        return subtract_resources(self.allocatable, self.used)


def _without_deletion_cost(pod: Pod) -> Pod:
    metadata = pod.metadata
    kept = {k: v for k, v in metadata.annotations.items() if k != POD_DELETION_COST}
    return structs.replace(pod, metadata=structs.replace(metadata, annotations=kept))


def eviction_costs(pods: Iterable[Pod]) -> float:
    """Return the sum of the positive eviction costs."""
    return sum(max(0.0, pod.eviction_cost()) for pod in pods)


@dataclass(frozen=True)
class ClusterState:
    """Everything that a decision reads from a cluster, indexed.

    ``nodes`` are in the order of their names. ``unlaunched`` are NodeClaims without an instance
    yet. ``pod_templates`` and ``scalables`` are what buffers may name: by ``namespace/name``, and
    by kind and that.
    """

    nodes: tuple[StateNode, ...] = ()
    unlaunched: tuple[NodeClaim, ...] = ()
    pods: tuple[Pod, ...] = ()
    daemon_sets: tuple[DaemonSet, ...] = ()
    pod_disruption_budgets: tuple[PodDisruptionBudget, ...] = ()
    volume_claims: Mapping[str, PersistentVolumeClaim] = field(default_factory=dict)
    volumes: Mapping[str, PersistentVolume] = field(default_factory=dict)
    storage_classes: Mapping[str, StorageClass] = field(default_factory=dict)
    csi_nodes: Mapping[str, CSINode] = field(default_factory=dict)
    device_classes: Mapping[str, DeviceClass] = field(default_factory=dict)
    resource_claims: Mapping[str, ResourceClaim] = field(default_factory=dict)
    claim_templates: Mapping[str, ResourceClaimTemplate] = field(default_factory=dict)
    resource_slices: tuple[ResourceSlice, ...] = ()
    namespaces: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    capacity_buffers: tuple[CapacityBuffer, ...] = ()
    pod_templates: Mapping[str, PodTemplate] = field(default_factory=dict)
    scalables: Mapping[tuple[str, str], Scalable] = field(default_factory=dict)
    replication_controllers: tuple[ReplicationController, ...] = ()
    services: tuple[Service, ...] = ()

    @cached_property
    def by_name(self) -> Mapping[str, StateNode]:
        return {node.name: node for node in self.nodes}

    @cached_property
    def hosts(self) -> tuple[StateNode, ...]:
        """The nodes whose pods count for placement, running or in flight."""
        return tuple(node for node in self.nodes if node.is_host)

    @cached_property
    def _by_node_name(self) -> Mapping[str, StateNode]:
        return {node.node_name: node for node in self.nodes}

    def node_of(self, pod: Pod) -> StateNode | None:
        """Return the node that a pod is bound or nominated to, None if it is not known."""
        return self._by_node_name.get(pod.spec.node_name)

    def node_named(self, name: str) -> StateNode | None:
        """Return the node that pods and drivers call so, None if it is not known."""
        return self._by_node_name.get(name)

    @cached_property
    def claim_users(self) -> Mapping[str, str]:
        """The pod that uses each claim, by their keys: the first that has a node and stays."""
        found: dict[str, str] = {}
        for pod in self.pods:
            if pod.spec.volumes and pod.spec.node_name and pod.is_active:
                for claim in claim_keys(pod):
                    found.setdefault(claim, pod.key)
        return found

    @cached_property
    def pending(self) -> tuple[Pod, ...]:
        """The pods for which the scheduler found no node."""
        return tuple(Pods.from_tuple(self.pods).provisionable.values())

    def with_all_namespaces(self) -> ClusterState:
        """Return this state with every namespace that a pod is in.

        A snapshot may contain pods without Namespace objects; the label that Kubernetes sets on
        each namespace is known anyway.
        """
        missing = Pods.from_tuple(self.pods).namespaces - self.namespaces.keys()
        if not missing:
            return self
        added = {name: {NAMESPACE_NAME: name} for name in sorted(missing)}
        return replace(self, namespaces={**self.namespaces, **added})

    def without_deletion_costs(self) -> ClusterState:
        """Return this state with pods that have no deletion cost.

        With Karpenter's gate ``PodDeletionCostManagement``, that cost is what Karpenter wrote to
        steer ReplicaSets, and states nothing about an eviction.
        """
        fresh = {
            pod.key: _without_deletion_cost(pod)
            for pod in self.pods
            if POD_DELETION_COST in pod.metadata.annotations
        }
        if not fresh:
            return self
        nodes = tuple(
            replace(node, pods=tuple(fresh.get(pod.key, pod) for pod in node.pods))
            if any(pod.key in fresh for pod in node.pods)
            else node
            for node in self.nodes
        )
        pods = tuple(fresh.get(pod.key, pod) for pod in self.pods)
        return replace(self, nodes=nodes, pods=pods)

    def with_shared_nodes(self, earlier: ClusterState) -> ClusterState:
        """Return this state, sharing the objects of unchanged nodes with an earlier one.

        What was computed from those nodes does not have to be computed again.
        """
        known = earlier.by_name
        nodes = tuple(
            alike if (alike := known.get(node.name, node)) == node else node for node in self.nodes
        )
        return replace(self, nodes=nodes)


class KnownNodes:
    """The nodes of the last state of a loop.

    Where none of its objects has changed, a node is the same one in the next state, with all that
    was computed from it.
    """

    def __init__(self) -> None:
        self._last: dict[tuple[int, int, int, bool], StateNode] = {}

    def share(self, nodes: Iterable[StateNode]) -> list[StateNode]:
        """Return the nodes, and those of the last state instead of the ones that are equal."""
        last, self._last = self._last, {}
        for node in nodes:
            key = id(node.node), id(node.claim), id(node.pods), node.marked
            self._last[key] = last.get(key, node)  # the node keeps the ids in use
        return list(self._last.values())


def cluster_state(
    snapshot: Snapshot, marked: Iterable[str] = (), known: KnownNodes | None = None
) -> ClusterState:
    """Return the state that a snapshot shows.

    ``marked`` are names of NodeClaims (or Nodes) that a command of ours is removing. ``known`` has
    the nodes of an earlier state of the same cluster.
    """
    nodes = _state_nodes(snapshot, frozenset(marked))
    nodes = known.share(nodes) if known is not None else nodes
    return ClusterState(
        nodes=tuple(sorted(nodes, key=attrgetter("name"))),
        unlaunched=tuple(c for c in snapshot.node_claims if not c.status.provider_id),
        pods=snapshot.pods,
        daemon_sets=with_priorities(snapshot.daemon_sets, snapshot.priority_classes),
        pod_disruption_budgets=snapshot.pod_disruption_budgets,
        volume_claims={claim.key: claim for claim in snapshot.volume_claims},
        volumes=_by_name(snapshot.volumes),
        storage_classes=_by_name(snapshot.storage_classes),
        csi_nodes=_by_name(snapshot.csi_nodes),
        device_classes=_by_name(snapshot.device_classes),
        resource_claims={claim.key: claim for claim in snapshot.resource_claims},
        claim_templates={template.key: template for template in snapshot.claim_templates},
        resource_slices=snapshot.resource_slices,
        namespaces={n.metadata.name: n.metadata.labels for n in snapshot.namespaces},
        capacity_buffers=snapshot.capacity_buffers,
        pod_templates={_object_key(t.metadata): t.template for t in snapshot.pod_templates},
        scalables=index_scalables(
            Deployment=snapshot.deployments,
            StatefulSet=snapshot.stateful_sets,
            ReplicaSet=snapshot.replica_sets,
        ),
        replication_controllers=snapshot.replication_controllers,
        services=snapshot.services,
    )


def _by_name(objects: Iterable[_T]) -> dict[str, _T]:
    return {item.metadata.name: item for item in objects}


def index_scalables(**objects: Iterable[Scalable]) -> dict[tuple[str, str], Scalable]:
    """Return objects, given by kind, by their kind and ``namespace/name``."""
    return {
        (kind, _object_key(item.metadata)): item
        for kind, items in objects.items()
        for item in items
    }


def _object_key(metadata: Metadata) -> str:
    return f"{metadata.namespace or 'default'}/{metadata.name}"


def _node_name(node: Node | None, claim: NodeClaim | None) -> str:
    if node is None and claim is not None and claim.is_deleting and claim.status.node_name:
        return claim.status.node_name
    source = node or claim
    assert source is not None, "a state node has a Node or a NodeClaim"
    return source.metadata.name


def _state_nodes(snapshot: Snapshot, removed: frozenset[str]) -> list[StateNode]:
    pods_by_node = Pods.from_tuple(snapshot.pods).by_node
    return [
        StateNode(
            node,
            claim,
            pods_by_node.get(_node_name(node, claim), ()),
            marked=bool(removed)
            and (
                (claim is not None and claim.name in removed)
                or (node is not None and node.name in removed)
            ),
        )
        for node, claim in _pair_nodes_and_claims(snapshot)
    ]


def _pair_nodes_and_claims(snapshot: Snapshot) -> list[tuple[Node | None, NodeClaim | None]]:
    """Pair Nodes and NodeClaims by provider id, leaving out what Karpenter does not track.

    Untracked are claims without an instance, Nodes of a pool without a provider id, and Nodes of
    a pool whose instance type is not known yet.
    """
    claims = {c.status.provider_id: c for c in snapshot.node_claims if c.status.provider_id}
    pairs: list[tuple[Node | None, NodeClaim | None]] = []
    for node in snapshot.nodes:
        claim = claims.pop(node.spec.provider_id, None)
        labels = node.metadata.labels
        if claim is None and NODEPOOL in labels:
            if not node.spec.provider_id:
                continue
            if labels.get(INITIALIZED) != "true" and INSTANCE_TYPE not in labels:
                continue
        pairs.append((node, claim))
    return pairs + [(None, claim) for claim in claims.values()]


def last_pod_change(claim: NodeClaim) -> datetime | None:
    """Return when a pod was last added or removed, or when the node was initialized."""
    if claim.status.last_pod_event_time is not None:
        return claim.status.last_pod_event_time
    initialized = claim.condition("Initialized")
    return initialized.last_transition_time if initialized is not None else None
