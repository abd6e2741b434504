"""The simulated cluster of a simulation: it starts from a snapshot and reports what it observes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import TypeVar

import msgspec

from reconciler.adapters.simulated.cluster import EmbeddedCluster, started_at
from reconciler.adapters.simulated.compute import CLAIM_TAG
from reconciler.adapters.simulated.conditions import REBOOTED_TAG, Conditions
from reconciler.adapters.simulated.nodes import Drivers, Types, devices_of_catalog
from reconciler.adapters.simulated.podstatus import present_key
from reconciler.adapters.simulated.records import ClusterRecord, NodeRecord, PodRecord, pod_hash
from reconciler.desired.workloads.pods import Workloads
from reconciler.model.chance import Chance
from reconciler.model.karpenter.labels import (
    CAPACITY_TYPE,
    DISRUPTED_TAINT,
    INSTANCE_TYPE,
    NODEPOOL,
    RESERVATION_ID,
    ZONE,
)
from reconciler.model.karpenter.nodeclaim import NodeClaim
from reconciler.model.kubernetes.controllers import grace_period, is_replaced_at_once
from reconciler.model.kubernetes.node import Node
from reconciler.model.kubernetes.pod import UNSCHEDULABLE, Pod
from reconciler.model.kubernetes.priority import with_priorities
from reconciler.observed.snapshot import Snapshot
from reconciler.placement.binding import scheduler
from reconciler.ports.clock import Clock
from reconciler.ports.cloud import Instance
from reconciler.ports.cluster import DrainStep
from reconciler.ports.progress import PREEMPTED, EventKind, Notifier, Progress
from reconciler.ports.state import Shelf

T = TypeVar("T")

FOREIGN = "foreign/"
"""The prefix of the instance id of a node that is not ours."""


@dataclass(frozen=True)
class FirstState:
    """The initial state of a simulation.

    ``foreign`` are the instances of nodes without a NodeClaim, ``unhealthy`` are the instances
    whose node is no longer ready, ``node_bound`` the pods that end without a successor: with their
    node, or because their successors exist already.
    """

    record: ClusterRecord
    workloads: Workloads
    claims: tuple[NodeClaim, ...] = ()
    instances: tuple[Instance, ...] = ()
    foreign: tuple[Instance, ...] = ()
    unhealthy: frozenset[str] = frozenset()
    node_bound: frozenset[str] = frozenset()


def first_state(snapshot: Snapshot, now: datetime, leaving: timedelta | None) -> FirstState:
    """Return the initial state of a snapshot.

    Terminating pods take ``leaving`` to end, None for their grace periods.
    """
    claims = tuple(map(_with_plain_id, snapshot.node_claims))
    by_provider = {c.status.provider_id: c for c in claims if c.status.provider_id}
    nodes: dict[str, NodeRecord] = {}
    foreign, unhealthy = [], set()
    for node in map(_with_provider_id, snapshot.nodes):
        claim = by_provider.get(node.spec.provider_id)
        identity = _instance_id(node.spec.provider_id) if claim is not None else FOREIGN + node.name
        nodes[node.name] = NodeRecord(node, identity)
        if claim is None:
            foreign.append(_foreign_instance(node, now))
        if not node.is_ready and _was_ready(claim):
            unhealthy.add(identity)
    record = ClusterRecord(nodes=nodes)
    pods, node_bound = _record_pods(record, snapshot, now, leaving)
    return FirstState(
        record,
        _snapshot_workloads(snapshot, pods),
        claims,
        tuple(_claim_instance(c, now) for c in claims if c.status.provider_id),
        tuple(foreign),
        frozenset(unhealthy),
        node_bound,
    )


def _instance_id(provider_id: str) -> str:
    return provider_id.rpartition("/")[2]


def _plain_provider_id(provider_id: str, zone: str) -> str:
    """Return the provider id in the form of ``Instance``, so that the two match."""
    return f"aws:///{zone}/{_instance_id(provider_id)}" if provider_id else ""


def _with_plain_id(claim: NodeClaim) -> NodeClaim:
    plain = _plain_provider_id(claim.status.provider_id, claim.metadata.labels.get(ZONE, ""))
    if plain == claim.status.provider_id:
        return claim
    status = msgspec.structs.replace(claim.status, provider_id=plain)
    return msgspec.structs.replace(claim, status=status)


def _with_provider_id(node: Node) -> Node:
    if NODEPOOL not in node.metadata.labels:
        return node
    plain = _plain_provider_id(node.spec.provider_id, node.metadata.labels.get(ZONE, ""))
    spec = msgspec.structs.replace(node.spec, provider_id=plain)
    return msgspec.structs.replace(node, spec=spec)


def _was_ready(claim: NodeClaim | None) -> bool:
    """Return whether an unready node is unhealthy, and not merely starting."""
    return claim is None or claim.is_true("Initialized") or claim.is_true("Registered")


def _foreign_instance(node: Node, now: datetime) -> Instance:
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


def _claim_instance(claim: NodeClaim, now: datetime) -> Instance:
    labels, identity = claim.metadata.labels, _instance_id(claim.status.provider_id)
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


def _record_pods(
    record: ClusterRecord, snapshot: Snapshot, now: datetime, leaving: timedelta | None
) -> tuple[list[Pod], frozenset[str]]:
    """Record every pod; return those of the workloads, and which are bound to their node's life.

    Daemons come back from their DaemonSet. One whose DaemonSet is not in the snapshot, and what a
    kubelet runs from a file, stays on its node until the node is removed.
    """
    sets = {scheduler.daemon_set_key(d): d for d in snapshot.daemon_sets}
    shared = _SharedParts()
    makes: dict[tuple[int, int, int], str] = {}
    pods: list[Pod] = []
    node_bound: set[str] = set()
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
            node_bound.add(pod.key)
        free = shared.without_node(pod)
        pods.append(free)
        gone, span = pod.metadata.deletion_timestamp, leaving
        if span is None:
            span = grace_period(pod)
        if gone is not None and is_replaced_at_once(pod):
            node_bound.add(pod.key)  # its successor is a pod of the snapshot
        record.pods[pod.key] = PodRecord(
            born=born,
            make=pod_hash(free, makes),
            node=pod.spec.node_name,
            bound=bound if host is not None else None,
            leaving=gone - span if gone is not None and host is not None else None,
        )
    return pods, frozenset(node_bound)


class _SharedParts:
    """Gives pods of one workload the same spec, labels and annotations, as ``expand`` does."""

    def __init__(self) -> None:
        self._known: dict[bytes, object] = {}

    def without_node(self, pod: Pod) -> Pod:
        """Return the pod as if it had not been bound yet."""
        metadata = msgspec.structs.replace(
            pod.metadata,
            labels=self._share(pod.metadata.labels),
            annotations=self._share(pod.metadata.annotations),
            deletion_timestamp=None,
        )
        spec = self._share(msgspec.structs.replace(pod.spec, node_name=""))
        status = pod.status if pod.spec.scheduling_gates else UNSCHEDULABLE
        return Pod(metadata, spec, status)

    def _share(self, value: T) -> T:
        key = type(value).__name__.encode() + msgspec.json.encode(value)
        return self._known.setdefault(key, value)  # type: ignore[return-value]


def _snapshot_workloads(snapshot: Snapshot, pods: Iterable[Pod]) -> Workloads:
    return replace(
        Workloads(**snapshot.workload_objects()),
        pods=tuple(pods),
        daemon_sets=with_priorities(snapshot.daemon_sets, snapshot.priority_classes),
    )


class WatchedCluster(EmbeddedCluster):
    """A cluster that notifies ``notifier`` of bound and evicted pods, taints and drains.

    ``first`` is its initial state; the rest is as for ``EmbeddedCluster``.
    """

    def __init__(
        self,
        shelf: Shelf,
        types: Types,
        workloads: Callable[[], Workloads],
        clock: Clock,
        notifier: Notifier,
        first: FirstState,
        conditions: Conditions,
        chance: Chance,
        drivers: Drivers = devices_of_catalog,
    ) -> None:
        span = conditions.latencies
        super().__init__(
            shelf,
            types,
            self._current_workloads,
            clock,
            starting_s=span.starting,
            leaving_s=span.leaving,
            chance=chance,
            drivers=drivers,
        )
        self._all_workloads = workloads
        self._notifier = notifier
        self._first = first
        self._chance = chance
        self._conditions = conditions
        self._initial_ids = {i.id for i in (*first.instances, *first.foreign)}
        self._instances: tuple[Instance, ...] = ()
        self._claims: dict[str, NodeClaim] = {}
        self._drained: set[str] = set()
        self._drawn_joins: dict[str, timedelta | None] = {}
        self._cached_workloads: tuple[Workloads, frozenset[str], Workloads] | None = None

    def observe(self, claims: Sequence[NodeClaim], instances: Sequence[Instance]) -> Snapshot:
        """Return what runs now, and notify about pods that got or lost their nodes."""
        self._instances = tuple(instances)
        self._claims = {c.status.provider_id: c for c in claims if c.status.provider_id}
        moved = self._pods.watch_moves()
        snapshot = super().observe(claims, (*instances, *self._first.foreign))
        for key in [key for key in self._record.pods if key in moved]:
            self._notify_move(key, *moved[key])
        for pod, node in self._pods.preempted:
            message = f"{pod} made room on {node} for a pod of a higher priority"
            self._notify(EventKind.POD_EVICTED, message, node, reason=PREEMPTED, pod=pod)
        return snapshot

    def taint(self, node: str) -> None:
        """Add the taint ``karpenter.sh/disrupted:NoSchedule`` to a node; this is idempotent."""
        known = self._record.nodes.get(node)
        fresh = known is not None and all(t.key != DISRUPTED_TAINT for t in known.node.spec.taints)
        super().taint(node)
        if fresh:
            self._notify(EventKind.TAINTED, f"{node} is cordoned", node)

    def untaint(self, node: str) -> None:
        """Remove that taint; a missing node is not an error."""
        self._drained.discard(node)
        super().untaint(node)

    def drain(self, node: str, deadline: datetime | None, now: datetime) -> DrainStep:
        """Evict the pods of a node, and notify about them and about the end of the drain."""
        records = self._record.pods
        remaining = {
            key: self._pods.key_of(key)
            for key in self._pods.keys_on_node(node)
            if records[key].leaving is None
        }
        waits_for = super().drain(node, deadline, now)
        for key, pod in remaining.items():
            record = self._record.pods.get(key)
            if record is None or record.node != node or record.leaving is not None:
                self._notify(
                    EventKind.POD_EVICTED, f"{pod} leaves {node}", node, reason="Drain", pod=pod
                )
        if waits_for.is_done and node in self._record.nodes and node not in self._drained:
            self._drained.add(node)
            self._notify(EventKind.DRAINED, f"{node} is empty", node)
        return waits_for

    def delete_node(self, node: str) -> None:
        """Remove the Node object; a missing one is not an error."""
        self._drained.discard(node)
        super().delete_node(node)

    def next_moment(self) -> datetime | None:
        """Return the time of the next event, None if there is none."""
        now = self._clock.now()
        return min((m for m in self._moments() if m > now), default=None)

    def unbound_pod_count(self) -> int:
        """Return the number of pods without a node."""
        return [record.node for record in self._record.pods.values()].count("")

    def pods_per_node(self) -> dict[str, int]:
        """Return the number of pods of each node, without daemons."""
        found: dict[str, int] = {}
        for record in self._record.pods.values():
            if record.node:
                found[record.node] = found.get(record.node, 0) + 1
        return found

    def _has_ended(self, key: str) -> bool:
        """Return whether a pod that is bound to the life of its node has ended."""
        pod = self._record.pods.get(key)
        if pod is None or pod.node not in self._record.nodes:
            return True
        return self._pods.has_left(key, self._clock.now())

    def _notify_move(self, key: str, name: str, was: str) -> None:
        """Notify about a pod that was called ``name`` on the node ``was``, and is elsewhere now."""
        node = self._record.pods[key].node
        if was and was != node and was not in self._record.nodes:
            pod = present_key(key, name)
            self._notify(
                EventKind.POD_EVICTED, f"{pod} lost {was}", was, reason="NodeGone", pod=pod
            )
        if node and was != node:
            pod = self._pods.key_of(key)
            self._notify(EventKind.POD_BOUND, f"{pod} on {node}", node, pod=pod)

    def _current_workloads(self) -> Workloads:
        """Return the workloads without the pods that ended with their node."""
        workloads, node_bound = self._all_workloads(), self._first.node_bound
        ended = frozenset(filter(self._has_ended, node_bound))
        if not ended:
            return workloads
        known = self._cached_workloads
        if known is None or known[0] is not workloads or known[1] != ended:
            left = tuple(p for p in workloads.pods if p.key not in ended)
            self._cached_workloads = known = (workloads, ended, replace(workloads, pods=left))
        return known[2]

    def _save(self) -> None:
        """Store nothing: a simulated cluster ends with its process."""

    def _moments(self) -> Iterator[datetime]:
        for instance in self._instances:
            if not self._runs_since_start(instance) and not instance.is_terminating:
                for moment in (self._join_time(instance), self._ready_time(instance)):
                    if moment is not None:
                        yield moment
        yield from self._pods.moments()

    def _runs_since_start(self, instance: Instance) -> bool:
        """Return whether an instance ran at the start and was not rebooted since."""
        return instance.id in self._initial_ids and REBOOTED_TAG not in instance.tags

    def _join_time(self, instance: Instance) -> datetime | None:
        if self._runs_since_start(instance):
            return instance.launched_at
        if instance.id not in self._drawn_joins:
            self._drawn_joins[instance.id] = self._draw_join(instance.id)
        wait = self._drawn_joins[instance.id]
        return None if wait is None else started_at(instance) + wait

    def _draw_join(self, instance: str) -> timedelta | None:
        """Return how long after its start a node joins, None if it never does."""
        if self._chance.share("joins", instance) < self._conditions.never_joins:
            return None
        return timedelta(seconds=self._conditions.latencies.join_seconds(self._chance, instance))

    def _ready_time(self, instance: Instance) -> datetime | None:
        is_old = self._runs_since_start(instance)
        if is_old and instance.id in self._first.unhealthy:
            return None
        joins_at = self._join_time(instance)
        if joins_at is None or is_old:
            return joins_at
        return joins_at + timedelta(seconds=self._conditions.latencies.ready)

    def renamed_pods(self) -> dict[str, str]:
        """Return the key in the workloads of each present pod that has another name there."""
        pods = self._record.pods.items()
        return {self._pods.key_of(key): key for key, pod in pods if pod.name}

    def _notify(self, kind: EventKind, message: str, node: str, **facts: str) -> None:
        reason = facts.pop("reason", "")
        record = self._record.nodes.get(node)
        claim = self._claims.get(record.node.spec.provider_id) if record is not None else None
        self._notifier.notify(
            Progress(
                self._clock.now(),
                kind,
                message,
                node=node,
                node_claim=claim.name if claim is not None else "",
                node_pool=claim.node_pool if claim is not None else "",
                reason=reason,
                facts=facts,
            )
        )
