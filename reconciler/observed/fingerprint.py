"""What decisions read of a cluster's objects, as one short fingerprint for each object.

An approval holds for as long as the facts hold that it rests on. A cluster changes all the time in
ways that no rule reads: resource versions, heartbeats, messages, pods that have ended. Those leave
the fingerprints as they are. The tables below are the one place that says what counts.

What changes with time alone is not here either: a node that is ``Consolidatable`` now is compared
by what the plan does about it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cached_property, partial
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, Final

import msgspec

from reconciler.model.karpenter.labels import DO_NOT_DISRUPT, FAKE_POD, POD_DELETION_COST
from reconciler.model.karpenter.nodeclaim import NodeClaim
from reconciler.model.karpenter.nodeclass import EC2NodeClassStatus
from reconciler.model.kubernetes.metadata import Condition, Metadata
from reconciler.model.kubernetes.node import Node
from reconciler.model.kubernetes.pod import Pod

if TYPE_CHECKING:
    from reconciler.observed.snapshot import Snapshot

Fingerprints = Mapping[str, str]
"""A fingerprint by the kind and name of its object, such as ``Pod shop/web-1``."""

_ANNOTATIONS: Final = frozenset(
    {
        DO_NOT_DISRUPT,
        FAKE_POD,
        POD_DELETION_COST,
        "pv.kubernetes.io/bind-completed",
        "storageclass.kubernetes.io/is-default-class",
    }
)
"""The annotations that a rule reads, of objects that are not ours."""

_OURS: Final = ("karpenter.sh/", "karpenter.k8s.aws/", "reconciler/")
"""How the annotations of NodeClaims begin that we write: hashes, nominated pods, and the like."""

_POD_CONDITIONS: Final = frozenset({"PodScheduled", "Ready"})
_TIMED: Final = frozenset({"Consolidatable"})
"""Conditions of a NodeClaim that follow from the clock and from facts that count themselves."""

_SIZE: Final = 8
_ENCODER: Final = msgspec.json.Encoder(order="deterministic")


def fingerprint(facts: object) -> str:
    """Return the fingerprint of facts that can be written as JSON; the order of keys is none."""
    return blake2b(_ENCODER.encode(facts), digest_size=_SIZE).hexdigest()


class FingerprintRecall:
    """The fingerprints of the last snapshot, for objects that the next one contains unchanged.

    Of thousands of objects, few change between two passes. An object that is equal to the last one
    of its name has the same fingerprint. Objects that a snapshot lacks are forgotten.
    """

    def __init__(self) -> None:
        self._last: dict[str, tuple[object, str]] = {}

    def of(self, snapshot: Snapshot) -> Fingerprints:
        """Return what ``fingerprints`` returns."""
        last, kept = self._last, dict[str, tuple[object, str]]()
        for name, item, facts in _objects(snapshot):
            known = last.get(name)
            if known is None or (known[0] is not item and known[0] != item):
                known = (item, fingerprint(facts()))
            kept[name] = known
        for pod in snapshot.pods:
            if pod.is_terminal:
                continue
            name = f"Pod {pod.key}"
            known = last.get(name)
            if known is None or (known[0] is not pod and known[0] != pod):
                known = (pod, fingerprint(pod_facts(pod)))
            kept[name] = known
        self._last = kept
        return {name: mark for name, (_, mark) in kept.items()}


def fingerprints(snapshot: Snapshot) -> Fingerprints:
    """Return the fingerprint of every object that a decision reads."""
    found = {name: fingerprint(facts()) for name, _, facts in _objects(snapshot)}
    return {**found, **snapshot.indexed_pods.fingerprints}


def joined(found: Fingerprints) -> bytes:
    """Return the fingerprints as bytes, for a digest: a line for each, sorted."""
    return "".join(f"{name} {mark}\n" for name, mark in sorted(found.items())).encode()


def difference(before: Fingerprints, after: Fingerprints) -> list[str]:
    """Return what is gone, new or changed, in words and sorted by kind and name."""
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
    """Yield the name of every object but the pods, the object, and what gives its facts."""
    for node in snapshot.nodes:
        yield f"Node {node.name}", node, partial(_node, node)
    for claim in snapshot.node_claims:
        yield f"NodeClaim {claim.name}", claim, partial(_node_claim, claim)
    for kind, item in snapshot.objects():
        if kind not in ("Pod", "Node", "NodeClaim"):
            yield f"{kind} {_key(item.metadata)}", item, partial(_plain, item)


def _key(metadata: Metadata) -> str:
    return f"{metadata.namespace}/{metadata.name}" if metadata.namespace else metadata.name


def _metadata(metadata: Metadata) -> tuple[object, ...]:
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
    """Return what is read of a pod.

    Its uid decides between pods that are otherwise alike, and stands for its age: an object keeps
    the moment of its creation for as long as it lives.
    """
    status = pod.status
    return (
        pod.metadata.uid,
        _metadata(pod.metadata),
        pod.spec,
        status.phase,
        status.nominated_node_name,
        status.start_time,
        status.resize,
        [s for s in status.container_statuses if s.resources is not None],
        [(c.type, c.status, c.reason) for c in status.conditions if c.type in _POD_CONDITIONS],
    )


def _node(node: Node) -> object:
    """Return what is read of a Node: since when a condition holds decides about its repair."""
    return (
        _metadata(node.metadata),
        node.spec,
        node.status.capacity,
        node.status.allocatable,
        [(c.type, c.status, c.last_transition_time) for c in node.status.conditions],
    )


def _node_claim(claim: NodeClaim) -> object:
    conditions = [c for c in claim.status.conditions if c.type not in _TIMED]
    annotations = claim.metadata.annotations
    return (
        {key: value for key, value in annotations.items() if key.startswith(_OURS)},
        claim.metadata.creation_timestamp,
        _metadata(claim.metadata),
        claim.spec,
        msgspec.structs.replace(claim.status, conditions=()),
        [(c.type, c.status, c.reason, c.last_transition_time) for c in _by_type(conditions)],
    )


def _by_type(conditions: Iterable[Condition]) -> list[Condition]:
    return sorted(conditions, key=lambda c: c.type)


def _plain(item: Any) -> object:
    return _metadata(item.metadata), msgspec.structs.replace(item, metadata=_NO_METADATA)


_NO_METADATA: Final = Metadata()


def node_class_facts(status: EC2NodeClassStatus) -> object:
    """Return what is read of what a node class was found to select.

    How many instances a reservation still holds is compared by what the plan launches.
    """
    return (
        status.subnets,
        status.security_groups,
        status.amis,
        [(r.id, r.state) for r in status.capacity_reservations],
        status.placement_group,
        [c.status for c in status.conditions if c.type == "Ready"],
    )


class Pods(tuple[Pod, ...]):  # noqa: SLOT001 - what is worked out is kept in its dictionary
    """A tuple of pods that is indexed once. Equal to any other tuple of the same pods."""

    @classmethod
    def of(cls, pods: tuple[Pod, ...]) -> Pods:
        """Return the pods with their index, themselves where they have one."""
        return pods if isinstance(pods, Pods) else cls(pods)

    @cached_property
    def by_node(self) -> Mapping[str, tuple[Pod, ...]]:
        """The pods that are bound to each node, by its name, in their order here."""
        found: dict[str, list[Pod]] = {}
        for pod in self:
            name = pod.spec.node_name
            if name:
                on_node = found.get(name)
                if on_node is None:
                    on_node = found[name] = []
                on_node.append(pod)
        return {name: tuple(on_node) for name, on_node in found.items()}

    @cached_property
    def holding(self) -> Mapping[str, tuple[str, ...]]:
        """The names of the pods that hold each node: no daemons, none that has ended."""
        return {
            name: tuple([p.key for p in pods if not p.is_terminal and not p.is_daemon])
            for name, pods in self.by_node.items()
        }

    @cached_property
    def fingerprints(self) -> Mapping[str, str]:
        """The fingerprint of each pod that has not ended: one that has holds nothing any more."""
        return {f"Pod {p.key}": fingerprint(pod_facts(p)) for p in self if not p.is_terminal}
