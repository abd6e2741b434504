"""The first moment of a simulated world, as a snapshot shows it.

What a cluster shows is pulled apart again into what made it: instances that run, claims that are
recorded, and workloads whose pods already have their nodes.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TypeVar

import msgspec

from reconciler.adapters.simulated.compute import CLAIM_TAG
from reconciler.adapters.simulated.pods import make_of
from reconciler.adapters.simulated.record import ClusterRecord, NodeRecord, PodRecord
from reconciler.desired.workloads.pods import Workloads
from reconciler.model.karpenter.labels import (
    CAPACITY_TYPE,
    INSTANCE_TYPE,
    NODEPOOL,
    RESERVATION_ID,
    ZONE,
)
from reconciler.model.karpenter.nodeclaim import NodeClaim
from reconciler.model.kubernetes.metadata import Condition
from reconciler.model.kubernetes.node import Node
from reconciler.model.kubernetes.pod import Pod, PodStatus
from reconciler.observed.snapshot import Snapshot
from reconciler.placement.binding import scheduler
from reconciler.ports.cloud import Instance

T = TypeVar("T")

FOREIGN = "foreign/"
"""Begins the made-up instance of a node that is none of ours."""

_WAITING = PodStatus(
    phase="Pending", conditions=(Condition("PodScheduled", "False", "Unschedulable"),)
)


@dataclass(frozen=True)
class FirstState:
    """The world at its first moment.

    ``foreign`` stand for the nodes that no NodeClaim owns, ``ill`` are the instances whose node
    is not ready though it once was, ``rooted`` the pods that end with their node.
    """

    record: ClusterRecord
    workloads: Workloads
    claims: tuple[NodeClaim, ...] = ()
    instances: tuple[Instance, ...] = ()
    foreign: tuple[Instance, ...] = ()
    ill: frozenset[str] = frozenset()
    rooted: frozenset[str] = frozenset()


def first_state(snapshot: Snapshot, now: datetime, leaving: timedelta) -> FirstState:
    """Return what a snapshot means; pods that are on their way out take ``leaving`` to go."""
    claims = tuple(map(_with_plain_id, snapshot.node_claims))
    by_provider = {c.status.provider_id: c for c in claims if c.status.provider_id}
    nodes: dict[str, NodeRecord] = {}
    foreign, ill = [], set()
    for node in map(_with_provider_id, snapshot.nodes):
        claim = by_provider.get(node.spec.provider_id)
        identity = _identity(node.spec.provider_id) if claim is not None else FOREIGN + node.name
        nodes[node.name] = NodeRecord(node, identity)
        if claim is None:
            foreign.append(_stand_in(node, now))
        if not node.is_ready and _was_ready(claim):
            ill.add(identity)
    record = ClusterRecord(nodes=nodes)
    pods, rooted = _settle_pods(record, snapshot, now, leaving)
    return FirstState(
        record,
        _workloads(snapshot, pods),
        claims,
        tuple(_instance(c, now) for c in claims if c.status.provider_id),
        tuple(foreign),
        frozenset(ill),
        rooted,
    )


def _identity(provider_id: str) -> str:
    return provider_id.rpartition("/")[2]


def _plain(provider_id: str, zone: str) -> str:
    """Return the provider id as ``Instance`` spells it, so that the two are found together."""
    return f"aws:///{zone}/{_identity(provider_id)}" if provider_id else ""


def _with_plain_id(claim: NodeClaim) -> NodeClaim:
    plain = _plain(claim.status.provider_id, claim.metadata.labels.get(ZONE, ""))
    if plain == claim.status.provider_id:
        return claim
    status = msgspec.structs.replace(claim.status, provider_id=plain)
    return msgspec.structs.replace(claim, status=status)


def _with_provider_id(node: Node) -> Node:
    if NODEPOOL not in node.metadata.labels:
        return node
    plain = _plain(node.spec.provider_id, node.metadata.labels.get(ZONE, ""))
    spec = msgspec.structs.replace(node.spec, provider_id=plain)
    return msgspec.structs.replace(node, spec=spec)


def _was_ready(claim: NodeClaim | None) -> bool:
    """Return whether a node that is not ready is ill, and not merely starting."""
    return claim is None or claim.is_true("Initialized") or claim.is_true("Registered")


def _stand_in(node: Node, now: datetime) -> Instance:
    """Return an instance for a node that this fleet does not manage: it never ends."""
    labels = node.metadata.labels
    return Instance(
        FOREIGN + node.name,
        labels.get(INSTANCE_TYPE, ""),
        labels.get(ZONE, ""),
        labels.get(CAPACITY_TYPE, ""),
        "running",
        node.metadata.creation_timestamp or now,
        {},
    )


def _instance(claim: NodeClaim, now: datetime) -> Instance:
    labels, identity = claim.metadata.labels, _identity(claim.status.provider_id)
    going = claim.is_true("InstanceTerminating")
    return Instance(
        id=identity,
        instance_type=labels.get(INSTANCE_TYPE, ""),
        zone=labels.get(ZONE, ""),
        capacity_type=labels.get(CAPACITY_TYPE, ""),
        state="shutting-down" if going else "running",
        launched_at=claim.metadata.creation_timestamp or now,
        tags={NODEPOOL: claim.node_pool, CLAIM_TAG: claim.name},
        image_id=claim.status.image_id,
        private_dns_name=claim.status.node_name,
        reservation_id=labels.get(RESERVATION_ID, ""),
    )


def _settle_pods(
    record: ClusterRecord, snapshot: Snapshot, now: datetime, leaving: timedelta
) -> tuple[list[Pod], frozenset[str]]:
    """Enter every pod in the record; return those of the workloads, and which are rooted.

    Daemons come back from their DaemonSet. One whose DaemonSet is not in the snapshot, and what a
    kubelet runs from a file, stays on its node for as long as that lives.
    """
    sets = {scheduler.key_of(d): d for d in snapshot.daemon_sets}
    shared = _Shared()
    makes: dict[tuple[int, int, int], str] = {}
    pods: list[Pod] = []
    rooted: set[str] = set()
    for pod in snapshot.pods:
        host = record.nodes.get(pod.spec.node_name)
        if pod.is_terminal or (pod.spec.node_name and host is None):
            continue
        born = pod.metadata.creation_timestamp or now
        bound = pod.status.start_time or born
        if pod.is_daemon or pod.is_mirror:
            owner = f"{pod.namespace}/{pod.metadata.owner_references[0].name}"
            if host is not None and owner in sets and pod.is_daemon:
                host.daemons[owner] = bound
                continue
            rooted.add(pod.key)
        free = shared.freed(pod)
        pods.append(free)
        gone = pod.metadata.deletion_timestamp
        record.pods[pod.key] = PodRecord(
            born=born,
            make=make_of(free, makes),
            node=pod.spec.node_name,
            bound=bound if host is not None else None,
            leaving=gone - leaving if gone is not None and host is not None else None,
        )
    return pods, frozenset(rooted)


class _Shared:
    """Gives pods of one workload the same spec, labels and annotations, as ``expand`` does."""

    def __init__(self) -> None:
        self._known: dict[bytes, object] = {}

    def freed(self, pod: Pod) -> Pod:
        """Return the pod as if it had no node yet."""
        metadata = msgspec.structs.replace(
            pod.metadata,
            labels=self._one(pod.metadata.labels),
            annotations=self._one(pod.metadata.annotations),
            deletion_timestamp=None,
        )
        spec = self._one(msgspec.structs.replace(pod.spec, node_name=""))
        status = pod.status if pod.spec.scheduling_gates else _WAITING
        return Pod(metadata, spec, status)

    def _one(self, value: T) -> T:
        key = type(value).__name__.encode() + msgspec.json.encode(value)
        return self._known.setdefault(key, value)  # type: ignore[return-value]


def _workloads(snapshot: Snapshot, pods: Iterable[Pod]) -> Workloads:
    return Workloads(
        pods=tuple(pods),
        daemon_sets=snapshot.daemon_sets,
        pod_disruption_budgets=snapshot.pod_disruption_budgets,
        volume_claims=snapshot.volume_claims,
        volumes=snapshot.volumes,
        storage_classes=snapshot.storage_classes,
        csi_nodes=snapshot.csi_nodes,
        namespaces=snapshot.namespaces,
        priority_classes=snapshot.priority_classes,
    )
