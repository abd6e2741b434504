"""The pods of a simulated cluster: which exist, where they run, and their state."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Final

import msgspec
from msgspec.structs import replace

from reconciler.desired.workloads.pods import Workloads
from reconciler.model.kubernetes.cluster import (
    DaemonSet,
    PodDisruptionBudget,
    PodDisruptionBudgetStatus,
)
from reconciler.model.kubernetes.eviction import disruptions_allowed
from reconciler.model.kubernetes.metadata import Condition
from reconciler.model.kubernetes.node import Node
from reconciler.model.kubernetes.pod import Pod, PodStatus
from reconciler.placement.binding import scheduler
from reconciler.placement.binding.scheduler import NodeBinder, node_infos
from reconciler.placement.binding.selection import Volumes
from reconciler.placement.topology.peers import owners_of


class NodeRecord(msgspec.Struct, rename="camel", omit_defaults=True):
    """A Node that has joined, the instance behind it, and the daemons that run there.

    ``daemons`` maps a DaemonSet (``namespace/name``) to the moment its pod started.
    """

    node: Node
    instance: str
    daemons: dict[str, datetime] = {}


class PodRecord(msgspec.Struct, rename="camel", omit_defaults=True):
    """The state of a pod: ``make`` is the hash of its spec, ``leaving`` when it was evicted."""

    born: datetime
    make: str
    node: str = ""
    bound: datetime | None = None
    leaving: datetime | None = None


class ClusterRecord(msgspec.Struct, rename="camel", omit_defaults=True):
    """The state of a cluster: nodes and pods by name, the zone of each dynamic volume.

    ``removed`` are the instances whose Node was deleted while they still ran.
    """

    nodes: dict[str, NodeRecord] = {}
    pods: dict[str, PodRecord] = {}
    volume_zones: dict[str, str] = {}
    removed: list[str] = []


def decode_record(content: bytes | None) -> ClusterRecord:
    """Return the stored record, or an empty one."""
    if content is None:
        return ClusterRecord()
    return msgspec.json.decode(content, type=ClusterRecord)


def encode_record(record: ClusterRecord) -> bytes:
    """Return the record as bytes; equal records give equal bytes."""
    return msgspec.json.encode(record, order="sorted")


_UNSCHEDULABLE: Final = PodStatus(
    phase="Pending",
    conditions=(Condition("PodScheduled", "False", "Unschedulable"),),
)


@dataclass(slots=True)
class _View:
    """The pods of the workloads as observed at ``at``, by key in the order of ``rows``.

    ``changed`` are those with changes since then, ``starting`` those that become
    ready without a change; ``ready`` is the readiness of the nodes.
    """

    rows: list[tuple[str, str, Pod]]
    shown: dict[str, Pod]
    at: datetime
    ready: dict[str, bool] = field(default_factory=dict)
    starting: set[str] = field(default_factory=set)
    changed: set[str] = field(default_factory=set)


class PodBook:
    """Keeps the record's pods in step with the workloads.

    The successor of an evicted pod has the same name, as in a StatefulSet.
    A pod whose spec changed in the fleet folder is replaced at once.
    """

    def __init__(
        self, record: ClusterRecord, *, starting: timedelta, leaving: timedelta, seed: int = 0
    ) -> None:
        self._record = record
        self._seed = seed
        self.starting = starting
        self.leaving = leaving
        self._source: tuple[Pod, ...] = ()
        self._listed: list[tuple[str, str, Pod]] = []
        self._by_key: dict[str, Pod] = {}
        self._followed: tuple[Pod, ...] | None = None
        self._next_end: datetime | None = None
        self._shapes: dict[str, tuple[Pod, tuple[object, ...], Pod]] = {}
        self._daemon_shapes: dict[tuple[str, str], tuple[tuple[object, ...], Pod]] = {}
        self._places: dict[str, list[str]] | None = None
        self._binder: tuple[tuple[object, ...], NodeBinder] | None = None
        self._failed_attempt: tuple[object, ...] | None = None
        self._budgets: tuple[PodDisruptionBudget, ...] = ()
        self._budget_numbers: dict[tuple[int, str], tuple[object, tuple[int, ...]]] = {}
        self._view: _View | None = None

    def follow(self, workloads: Workloads, now: datetime) -> None:
        """Add and remove pods as the workloads change, and end evicted ones.

        Nothing is done while the workloads are the same and no evicted pod has left.
        """
        is_due = self._next_end is not None and now >= self._next_end
        if workloads.pods is self._followed and not is_due:
            return
        known, fresh = self._record.pods, {}
        for key, make, _ in self._rows(workloads):
            record = known.get(key)
            if record is None or record.make != make or self._is_over(record, now):
                record = PodRecord(born=now, make=make)
            fresh[key] = record
        self._record.pods = fresh
        self._followed, self._places, self._view = workloads.pods, None, None
        leaving = [r.leaving for r in fresh.values() if r.leaving is not None]
        self._next_end = min(leaving) + self.leaving if leaving else None
        if len(self._shapes) > 2 * len(fresh):
            self._shapes = {key: shape for key, shape in self._shapes.items() if key in fresh}

    def _rows(self, workloads: Workloads) -> list[tuple[str, str, Pod]]:
        """Return the pods with their keys and hashes, computed once for each."""
        if workloads.pods is not self._source:
            makes: dict[tuple[int, int, int], str] = {}
            self._listed = [(pod.key, pod_hash(pod, makes), pod) for pod in workloads.pods]
            self._by_key = {key: pod for key, _, pod in self._listed}
            self._source = workloads.pods
        return self._listed

    def _is_over(self, record: PodRecord, now: datetime) -> bool:
        """Return whether a pod has ended, or lost its node; its successor then replaces it."""
        if record.leaving is not None and now - record.leaving >= self.leaving:
            return True
        return bool(record.node) and record.node not in self._record.nodes

    def bind(self, workloads: Workloads, volumes: Volumes, now: datetime) -> None:
        """Bind daemons and then pending pods to ready nodes.

        If nothing could be bound, the next attempt waits for a change of a pod or a node.
        """
        self._rows(workloads)
        by_key = self._by_key
        pending = [
            by_key[key]
            for key, record in self._record.pods.items()
            if not record.node and not by_key[key].spec.scheduling_gates
        ]
        wanted = {scheduler.daemon_set_key(daemon) for daemon in workloads.daemon_sets}
        nodes = [
            record.node
            for record in self._record.nodes.values()
            if pending or record.daemons.keys() != wanted
        ]
        if not nodes:
            return
        placed = [pod for pod in self.objects(workloads, now) if pod.spec.node_name]
        attempt = (pending, nodes, placed, workloads)
        if attempt == self._failed_attempt:
            return
        pods_by_node: dict[str, list[Pod]] = {}
        for pod in placed:
            pods_by_node.setdefault(pod.spec.node_name, []).append(pod)
        binder = self._binder_for(workloads)
        binder.follow(node_infos(nodes, pods_by_node), volumes)
        has_started = self._start_daemons(workloads, binder, now)
        bound = binder.bind(sorted(pending, key=lambda pod: self._record.pods[pod.key].born))
        for key, node in bound.items():
            record = self._record.pods[key]
            record.node, record.bound = node.name, now
            self._mark_changed(key)
        if bound:
            self._places = None
        self._failed_attempt = None if bound or has_started else attempt

    def _binder_for(self, workloads: Workloads) -> NodeBinder:
        """Return the binder, a new one if the objects change that it cannot follow."""
        scalables = {
            (kind, f"{item.metadata.namespace or 'default'}/{item.metadata.name}"): item
            for kind, items in (
                ("ReplicaSet", workloads.replica_sets),
                ("StatefulSet", workloads.stateful_sets),
            )
            for item in items
        }
        namespaces = {n.metadata.name: n.metadata.labels for n in workloads.namespaces}
        owners = owners_of(workloads.services, scalables, workloads.replication_controllers)
        known = self._binder
        if known is None or known[0] != (namespaces, owners):
            binder = NodeBinder((), namespaces, owners=owners, seed=self._seed)
            known = self._binder = ((namespaces, owners), binder)
        return known[1]

    def objects(self, workloads: Workloads, now: datetime, node: str = "") -> list[Pod]:
        """Return the observed pods: all, or those of one node."""
        if node:
            self._rows(workloads)
            records = self._record.pods
            pods = [
                self._observed_pod(self._by_key[k], records[k], now)
                for k in self._keys_on_node(node)
            ]
        else:
            pods = self._all_pods(workloads, now)
        for name in (node,) if node else sorted(self._record.nodes):
            record = self._record.nodes[name]
            for daemon in workloads.daemon_sets:
                started = record.daemons.get(scheduler.daemon_set_key(daemon))
                if started is not None:
                    pods.append(self._daemon_pod(daemon, record.node, started, now))
        return pods

    def _all_pods(self, workloads: Workloads, now: datetime) -> list[Pod]:
        """Return all observed pods of the workloads.

        Only pods with changes since the last call are evaluated.
        """
        rows, records, nodes = self._rows(workloads), self._record.pods, self._record.nodes
        ready = {name: record.node.is_ready for name, record in nodes.items()}
        known = self._view
        if known is None or known.rows is not rows or now < known.at:
            shown = {key: self._observed_pod(pod, records[key], now) for key, _, pod in rows}
            known = self._view = _View(rows, shown, now)
            known.starting = {k for k, r in records.items() if self._is_starting(r, now)}
        else:
            for name, is_ready in ready.items():
                if known.ready.get(name) != is_ready:
                    known.changed.update(self._keys_on_node(name))
            started = {k for k in known.starting if not self._is_starting(records[k], now)}
            known.starting -= started
            for key in known.changed | started:
                known.shown[key] = self._observed_pod(self._by_key[key], records[key], now)
                if self._is_starting(records[key], now):
                    known.starting.add(key)
        known.ready, known.at, known.changed = ready, now, set()
        return list(known.shown.values())

    def _is_starting(self, record: PodRecord, now: datetime) -> bool:
        return record.bound is not None and now < record.bound + self.starting

    def _mark_changed(self, key: str) -> None:
        """Record that a pod has changed."""
        if self._view is not None:
            self._view.changed.add(key)

    def _keys_on_node(self, node: str) -> Sequence[str]:
        """Return the keys of the pods on a node, in the order of the workloads."""
        if self._places is None:
            self._places = {}
            for key, record in self._record.pods.items():
                if record.node:
                    self._places.setdefault(record.node, []).append(key)
        return self._places.get(node, ())

    def with_allowed_evictions(
        self, budgets: tuple[PodDisruptionBudget, ...], pods: Iterable[Pod]
    ) -> tuple[PodDisruptionBudget, ...]:
        """Return the budgets with their allowed evictions; ``pods`` are all pods of the cluster."""
        covered: list[list[Pod]] = [[] for _ in budgets]
        for pod in pods:
            for number in self._selecting_budgets(budgets, pod):
                covered[number].append(pod)
        return tuple(
            replace(b, status=PodDisruptionBudgetStatus(disruptions_allowed(b, own)))
            for b, own in zip(budgets, covered, strict=True)
        )

    def protecting_budgets(
        self, workloads: Workloads, evicted: Sequence[Pod], now: datetime
    ) -> tuple[list[PodDisruptionBudget], list[Pod]]:
        """Return the budgets that protect ``evicted`` pods, and all pods that they select."""
        every = workloads.pod_disruption_budgets
        numbers = {number for pod in evicted for number in self._selecting_budgets(every, pod)}
        if not numbers:
            return [], []
        shown = self.objects(workloads, now)
        selected = [p for p in shown if not numbers.isdisjoint(self._selecting_budgets(every, p))]
        return [every[number] for number in sorted(numbers)], selected

    def _selecting_budgets(
        self, budgets: tuple[PodDisruptionBudget, ...], pod: Pod
    ) -> tuple[int, ...]:
        """Return which of the budgets select a pod.

        This depends on its namespace and labels, and is computed once.
        """
        if budgets is not self._budgets:
            self._budgets, self._budget_numbers = budgets, {}
        labels = pod.metadata.labels
        known = self._budget_numbers.get((id(labels), pod.namespace))
        if known is None:  # the labels are kept, so that no others get their id
            selecting = tuple(n for n, budget in enumerate(budgets) if budget.selects(pod))
            known = self._budget_numbers[id(labels), pod.namespace] = (labels, selecting)
        return known[1]

    def evict(self, pod: Pod, now: datetime) -> Pod | None:
        """Evict a pod and return its new state; a daemon is removed at once.

        If leaving takes no time, the pending successor is returned.
        """
        if pod.is_daemon:
            record = self._record.nodes[pod.spec.node_name]
            record.daemons.pop(f"{pod.namespace}/{pod.metadata.owner_references[0].name}", None)
            return None
        known = self._record.pods[pod.key]
        self._mark_changed(pod.key)
        if self.leaving:
            known.leaving = now
            ends = now + self.leaving
            self._next_end = min(self._next_end or ends, ends)
        else:
            self._places = None
            known = PodRecord(born=now, make=known.make)
            self._record.pods[pod.key] = known
            pod = replace(pod, spec=replace(pod.spec, node_name=""))
        return self._observed_pod(pod, known, now)

    def remove_from_node(self, node: str) -> None:
        """Remove all pods from a removed node; they are pending again."""
        self._places = None
        for daemon in [known for known in self._daemon_shapes if known[0] == node]:
            del self._daemon_shapes[daemon]
        for key, record in self._record.pods.items():
            if record.node == node:
                record.node, record.bound, record.leaving = "", None, None
                self._mark_changed(key)

    def _start_daemons(self, workloads: Workloads, binder: NodeBinder, now: datetime) -> bool:
        """Start the daemons that have room; return whether there was any."""
        has_started = False
        wanted = {scheduler.daemon_set_key(daemon) for daemon in workloads.daemon_sets}
        for record in self._record.nodes.values():
            record.daemons = {k: at for k, at in record.daemons.items() if k in wanted}
        for node in [record.node for record in self._record.nodes.values()]:
            running = self._record.nodes[node.name].daemons
            for daemon in workloads.daemon_sets:
                key = scheduler.daemon_set_key(daemon)
                if key not in running and binder.place(
                    scheduler.daemon_pod(daemon, node), node.name
                ):
                    running[key] = now
                    has_started = True
        return has_started

    def _observed_pod(self, pod: Pod, record: PodRecord, now: datetime) -> Pod:
        """Return the observed pod, the same object while nothing changes.

        Of thousands of pods few change between two observations.
        """
        due = record.bound is not None and now >= record.bound + self.starting
        host = self._record.nodes[record.node].node.is_ready if record.node else False
        facts = (record.node, record.born, record.bound, record.leaving, due, host)
        known = self._shapes.get(pod.key)
        if known is not None and known[0] is pod and known[1] == facts:
            return known[2]
        shown = self._build_pod(pod, record, now)
        self._shapes[pod.key] = (pod, facts, shown)
        return shown

    def _daemon_pod(self, daemon: DaemonSet, node: Node, started: datetime, now: datetime) -> Pod:
        """Return a daemon's pod on a node, the same object while nothing changes."""
        key = (node.name, scheduler.daemon_set_key(daemon))
        facts = (daemon, started, now >= started + self.starting, node.is_ready)
        known = self._daemon_shapes.get(key)
        if known is None or known[0] != facts:
            pod = scheduler.daemon_pod(daemon, node)
            known = (facts, self._running_pod(pod, node.name, started, started, now))
            self._daemon_shapes[key] = known
        return known[1]

    def _build_pod(self, pod: Pod, record: PodRecord, now: datetime) -> Pod:
        if record.node:
            assert record.bound is not None, f"{pod.key} has a node without a time"
            shown = self._running_pod(pod, record.node, record.born, record.bound, now)
            if record.leaving is None:
                return shown
            gone = record.leaving + self.leaving
            return replace(shown, metadata=replace(shown.metadata, deletion_timestamp=gone))
        metadata = replace(pod.metadata, creation_timestamp=record.born)
        status = pod.status if pod.spec.scheduling_gates else _UNSCHEDULABLE
        return replace(pod, metadata=metadata, status=status)

    def _running_pod(
        self, pod: Pod, node: str, born: datetime, bound: datetime, now: datetime
    ) -> Pod:
        host = self._record.nodes[node].node
        started = bound + self.starting
        ready = host.is_ready and now >= started
        return Pod(
            metadata=replace(pod.metadata, creation_timestamp=born),
            spec=replace(pod.spec, node_name=node),
            status=PodStatus(
                phase="Running" if now >= started else "Pending",
                conditions=(
                    Condition("PodScheduled", "True", last_transition_time=bound),
                    Condition("Ready", "True" if ready else "False", last_transition_time=started),
                ),
                start_time=bound,
            ),
        )


def pod_hash(pod: Pod, known: dict[tuple[int, int, int], str]) -> str:
    """Return a hash of everything that defines a pod; pods of one workload share these parts."""
    parts = (pod.spec, pod.metadata.labels, pod.metadata.annotations)
    key = (id(parts[0]), id(parts[1]), id(parts[2]))
    if key not in known:
        text = msgspec.json.encode(parts, order="sorted")
        known[key] = hashlib.sha256(text).hexdigest()[:16]
    return known[key]
