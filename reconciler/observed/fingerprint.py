"""What decisions read from a cluster's objects, as one short fingerprint for each object.

An approval is valid while the facts that it is based on are unchanged.

A cluster constantly changes in ways that no rule reads: resource versions, heartbeats, messages,
completed pods. Those do not affect the fingerprints. The tables below are the only place that
defines what counts. Conditions that change with time alone do not count either: for a node that is
``Consolidatable`` now, the plan's commands are compared instead.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cached_property, lru_cache, partial
from hashlib import blake2b
from itertools import chain
from typing import TYPE_CHECKING, Any, Final

import msgspec

from reconciler.model.karpenter.labels import (
    DISRUPTION_ANNOTATIONS,
    DO_NOT_DISRUPT,
    DO_NOT_REPAIR,
    FAKE_POD,
)
from reconciler.model.karpenter.nodeclaim import NodeClaim
from reconciler.model.karpenter.nodeclass import EC2NodeClassStatus
from reconciler.model.kubernetes.metadata import Condition, Metadata
from reconciler.model.kubernetes.node import Node
from reconciler.model.kubernetes.pod import Pod
from reconciler.model.resources import Resources, add_resources

if TYPE_CHECKING:
    from reconciler.observed.snapshot import Snapshot

Fingerprints = Mapping[str, str]
"""A fingerprint by the kind and name of its object, such as ``Pod shop/web-1``."""

_ANNOTATIONS: Final = frozenset(
    {
        *DISRUPTION_ANNOTATIONS,
        DO_NOT_REPAIR,
        FAKE_POD,
        "pv.kubernetes.io/bind-completed",
        "storageclass.kubernetes.io/is-default-class",
    }
)
"""The annotations that a rule reads, of objects that are not ours."""

_OURS: Final = ("karpenter.sh/", "karpenter.k8s.aws/", "reconciler/")
"""The prefixes of the annotations of NodeClaims that we write: hashes, nominated pods, and
others."""

_POD_CONDITIONS: Final = frozenset({"PodScheduled", "Ready"})
_TIMED: Final = frozenset({"Consolidatable"})
"""Conditions of a NodeClaim that follow from the clock and from facts that count separately."""

PodKind = tuple[str, frozenset[tuple[str, str]]]
"""Namespace and labels: the parts of a pod that selectors match."""

_SIZE: Final = 8
_ENCODER: Final = msgspec.json.Encoder(order="deterministic")

_NO_METADATA: Final = Metadata()

_LABELS_MAX: Final = 50
_KINDS_MAX: Final = 10_000


def fingerprint(facts: object) -> str:
    """Return the fingerprint of facts that can be written as JSON; the order of keys is ignored."""
    return blake2b(_ENCODER.encode(facts), digest_size=_SIZE).hexdigest()


class FingerprintCache:
    """The fingerprints of the last snapshot, for objects that the next one contains unchanged.

    Of thousands of objects, few change between two passes. An object that is equal to the last one
    with its name has the same fingerprint. Objects that are not in a snapshot are forgotten.
    """

    def __init__(self) -> None:
        self._last: dict[str, tuple[object, str]] = {}
        self._pods: dict[int, tuple[Pod, str, tuple[object, str]]] = {}
        """By identity, with the name and the entry there; the pod keeps its id in use."""

    def fingerprints(self, snapshot: Snapshot) -> Fingerprints:
        """Return what ``fingerprints`` returns."""
        last, current = self._last, dict[str, tuple[object, str]]()
        for name, item, facts in _objects(snapshot):
            known = last.get(name)
            if known is None or (known[0] is not item and known[0] != item):
                known = (item, fingerprint(facts()))
            current[name] = known
        self._add_pods(snapshot.pods, current)
        self._last = current
        return {name: mark for name, (_, mark) in current.items()}

    def _add_pods(self, pods: Iterable[Pod], current: dict[str, tuple[object, str]]) -> None:
        """Add the entries of the pods; one that is the same object is not even compared."""
        last, known_pods = self._last, self._pods
        seen: dict[int, tuple[Pod, str, tuple[object, str]]] = {}
        for pod in pods:
            same = known_pods.get(id(pod))
            if same is None:
                if pod.is_terminal:
                    continue
                name = f"Pod {pod.key}"
                known = last.get(name)
                if known is None or known[0] != pod:
                    known = (pod, fingerprint(pod_facts(pod)))
                same = (pod, name, known)
            seen[id(pod)] = same
            current[same[1]] = same[2]
        self._pods = seen


def fingerprints(snapshot: Snapshot) -> Fingerprints:
    """Return the fingerprint of every object that a decision reads."""
    found = {name: fingerprint(facts()) for name, _, facts in _objects(snapshot)}
    return {**found, **snapshot.indexed_pods.fingerprints}


def join_fingerprints(found: Fingerprints) -> bytes:
    """Return the fingerprints as sorted lines of bytes, to compute a digest of them."""
    return "".join(f"{name} {mark}\n" for name, mark in sorted(found.items())).encode()


def describe_changes(before: Fingerprints, after: Fingerprints) -> list[str]:
    """Return what was removed, added or changed, in words and sorted by kind and name."""
    found = []
    for name in sorted(before.keys() | after.keys()):
        if name not in after:
            found.append(f"{name} is gone")
        elif name not in before:
            found.append(f"{name} is new")
        elif before[name] != after[name]:
            found.append(f"{name} has changed")
    return found


def _objects(snapshot: Snapshot) -> Iterator[tuple[str, object, Callable[[], object]]]:
    """Yield the name of every object except pods, the object, and the function for its facts."""
    for node in snapshot.nodes:
        yield f"Node {node.name}", node, partial(_node_facts, node)
    for claim in snapshot.node_claims:
        yield f"NodeClaim {claim.name}", claim, partial(_node_claim_facts, claim)
    for kind, item in snapshot.objects():
        if kind not in ("Pod", "Node", "NodeClaim"):
            yield f"{kind} {_object_key(item.metadata)}", item, partial(_object_facts, item)


def _object_key(metadata: Metadata) -> str:
    return f"{metadata.namespace}/{metadata.name}" if metadata.namespace else metadata.name


def _metadata_facts(metadata: Metadata) -> tuple[object, ...]:
    annotations = metadata.annotations
    if annotations:
        annotations = {k: v for k, v in annotations.items() if k in _ANNOTATIONS}
    return (
        metadata.labels,
        annotations,
        metadata.owner_references,
        metadata.deletion_timestamp,
    )


def pod_facts(pod: Pod) -> object:
    """Return what decisions read from a pod.

    Its uid distinguishes otherwise equal pods, and represents its age: the creation time of an
    object never changes.
    """
    status = pod.status
    return (
        pod.metadata.uid,
        _metadata_facts(pod.metadata),
        pod.spec,
        status.phase,
        status.nominated_node_name,
        status.start_time,
        status.resize,
        [s for s in status.container_statuses if s.resources is not None],
        [(c.type, c.status, c.reason) for c in status.conditions if c.type in _POD_CONDITIONS],
    )


def _node_facts(node: Node) -> object:
    """Return what decisions read from a Node.

    Repair depends on the age of its conditions, and on the reason of one that is not true.
    """
    return (
        _metadata_facts(node.metadata),
        node.spec,
        node.status.capacity,
        node.status.allocatable,
        [
            (c.type, c.status, c.last_transition_time, *_decisive_reason(c))
            for c in node.status.conditions
        ],
    )


def _decisive_reason(condition: Condition) -> tuple[str, ...]:
    """Return the reason of a condition that may make its node unhealthy."""
    return (condition.reason,) if condition.reason and condition.status != "True" else ()


def _node_claim_facts(claim: NodeClaim) -> object:
    conditions = [c for c in claim.status.conditions if c.type not in _TIMED]
    annotations = claim.metadata.annotations
    return (
        {key: value for key, value in annotations.items() if key.startswith(_OURS)},
        claim.metadata.creation_timestamp,
        _metadata_facts(claim.metadata),
        claim.spec,
        msgspec.structs.replace(claim.status, conditions=()),
        [
            (c.type, c.status, c.reason, c.last_transition_time)
            for c in sorted(conditions, key=lambda c: c.type)
        ],
    )


def _object_facts(item: Any) -> object:
    return _metadata_facts(item.metadata), msgspec.structs.replace(item, metadata=_NO_METADATA)


def node_class_facts(status: EC2NodeClassStatus) -> object:
    """Return what decisions read from the resolved resources of a node class.

    The remaining capacity of a reservation is compared by the plan's launches.
    """
    return (
        status.subnets,
        status.security_groups,
        status.amis,
        [(r.id, r.state) for r in status.capacity_reservations],
        status.placement_group,
        [c.status for c in status.conditions if c.type == "Ready"],
    )


class Pods(tuple[Pod, ...]):  # noqa: SLOT001 - computed values are kept in its dictionary
    """A tuple of pods that is indexed once. Equal to any other tuple of the same pods."""

    @classmethod
    def from_tuple(cls, pods: tuple[Pod, ...]) -> Pods:
        """Return the pods with their index; pods that have one are returned unchanged."""
        return pods if isinstance(pods, Pods) else cls(pods)

    @classmethod
    def index_after(cls, pods: Iterable[Pod], earlier: Pods) -> Pods:
        """Return the pods with their index, sharing the tuples of unchanged nodes with ``earlier``.

        What was computed from the pods of a node is valid while it has the same tuple.
        """
        found, known = cls(pods), earlier.by_node
        found.__dict__["by_node"] = {
            name: alike if (alike := known.get(name, on_node)) == on_node else on_node
            for name, on_node in found.by_node.items()
        }
        return found

    @cached_property
    def _by_place(self) -> Mapping[str, NodePods]:
        """The pods by the name of their node, which is empty for those without one."""
        found: dict[str, list[Pod]] = {}
        for pod in self:
            name = pod.spec.node_name
            there = found.get(name)
            if there is None:
                there = found[name] = []
            there.append(pod)
        return {name: NodePods(there) for name, there in found.items()}

    @cached_property
    def by_node(self) -> Mapping[str, NodePods]:
        """The pods that are bound to each node, by its name, in their order here."""
        return {name: on_node for name, on_node in self._by_place.items() if name}

    @property
    def unbound(self) -> tuple[Pod, ...]:
        """The pods without a node, in their order here."""
        return self._by_place.get("", ())

    @cached_property
    def workload_names(self) -> Mapping[str, tuple[str, ...]]:
        """The names of the pods on each node that run or will run, without those that end.

        These are its reschedulable pods, and none of them is terminating: ``consolidateAfter``
        counts from the time at which a pod is bound, completes or begins to terminate (Karpenter
        ``nodeclaim/podevents``). When a terminating pod is finally gone, nothing changes.
        """
        return {name: pods.workload_names for name, pods in self.by_node.items()}

    @cached_property
    def provisionable(self) -> Mapping[str, Pod]:
        """The pods for which the scheduler found no node, by ``namespace/name``."""
        return {pod.key: pod for pod in self.unbound if pod.is_provisionable}

    @cached_property
    def of_daemons(self) -> tuple[Pod, ...]:
        """The pods of DaemonSets, node by node."""
        on_nodes = (pods.daemons for pods in self.by_node.values())
        return (*chain.from_iterable(on_nodes), *_daemons(self.unbound))

    @cached_property
    def namespaces(self) -> frozenset[str]:
        """The namespaces that these pods are in."""
        waiting = {pod.namespace for pod in self.unbound}
        return frozenset(waiting.union(*(pods.namespaces for pods in self.by_node.values())))

    @cached_property
    def fingerprints(self) -> Mapping[str, str]:
        """The fingerprint of each pod that has not completed; completed pods have no effect."""
        return {f"Pod {p.key}": fingerprint(pod_facts(p)) for p in self if not p.is_terminal}


class NodePods(tuple[Pod, ...]):  # noqa: SLOT001 - computed values are kept in its dictionary
    """The pods of one node, with what is computed from them alone. Equal to any other such tuple.

    A node changes more often than its pods, so these values last longer than those of a node.
    """

    @classmethod
    def from_tuple(cls, pods: tuple[Pod, ...]) -> NodePods:
        """Return the pods with such values; pods that have them are returned unchanged."""
        return pods if isinstance(pods, NodePods) else cls(pods)

    @cached_property
    def workload_names(self) -> tuple[str, ...]:
        """The names of its reschedulable pods that do not terminate."""
        return tuple([p.key for p in self if p.is_reschedulable and not p.is_terminating])

    @cached_property
    def daemons(self) -> tuple[Pod, ...]:
        """Its pods of DaemonSets."""
        return _daemons(self)

    @cached_property
    def namespaces(self) -> frozenset[str]:
        """The namespaces that these pods are in."""
        return frozenset({pod.namespace for pod in self})

    @cached_property
    def kinds(self) -> Mapping[PodKind, int]:
        """The number of active pods by namespace and labels."""
        found: dict[PodKind, int] = {}
        for pod in self:
            if pod.is_active:
                kind = _shared_kind(pod.namespace, frozenset(pod.metadata.labels.items()))
                found[kind] = found.get(kind, 0) + 1
        return found

    @cached_property
    def with_anti_affinity(self) -> tuple[Pod, ...]:
        """The pods that have anti-affinity, required or preferred."""
        return tuple([pod for pod in self if _has_anti_affinity(pod)])

    @cached_property
    def reschedulable(self) -> tuple[Pod, ...]:
        """The pods that need another node if this one is removed."""
        return tuple([pod for pod in self if pod.is_reschedulable])

    @cached_property
    def has_annotated(self) -> bool:
        """Whether one of the pods has an annotation about its own disruption."""
        return any(DO_NOT_DISRUPT in pod.metadata.annotations for pod in self)

    @cached_property
    def used(self) -> Resources:
        """What all pods request together, without finished ones."""
        return add_resources(*(pod.requests() for pod in self if not pod.is_terminal))

    @cached_property
    def used_by_daemons(self) -> Resources:
        """The same for the pods of DaemonSets alone."""
        return add_resources(*(pod.requests() for pod in self.daemons if not pod.is_terminal))


def _shared_kind(namespace: str, labels: frozenset[tuple[str, str]]) -> PodKind:
    """Return the same object for equal kinds, of which others are compared label by label.

    One with more labels than anybody writes is not kept.
    """
    return _kept_kind(namespace, labels) if len(labels) <= _LABELS_MAX else (namespace, labels)


@lru_cache(_KINDS_MAX)
def _kept_kind(namespace: str, labels: frozenset[tuple[str, str]]) -> PodKind:
    return namespace, labels


def _has_anti_affinity(pod: Pod) -> bool:
    affinity = pod.spec.affinity
    return affinity is not None and affinity.pod_anti_affinity is not None


def _daemons(pods: Iterable[Pod]) -> tuple[Pod, ...]:
    return tuple([pod for pod in pods if pod.is_daemon])
