"""Records how the workload of a fleet changes, so that a backtest can replay it.

Recorded are the pods that count for the fleet: those on its nodes, and those for which the
scheduler found no node. Pods of DaemonSets come with their DaemonSet, static pods with their node.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from hashlib import blake2b
from math import isnan
from typing import Final

import msgspec

from reconciler.engine.desired import Desired
from reconciler.engine.observation import Observation
from reconciler.engine.world import Complaint, World
from reconciler.model.errors import StateError
from reconciler.model.history import DAY
from reconciler.model.karpenter.labels import (
    CAPACITY_TYPE,
    DO_NOT_DISRUPT,
    INSTANCE_TYPE,
    POD_DELETION_COST,
    ZONE,
)
from reconciler.model.karpenter.nodeclaim import NodeClaim
from reconciler.model.kubernetes.cluster import DaemonSet
from reconciler.model.kubernetes.pod import Pod, Volume
from reconciler.ports.state import NodeArrival, PodArrival, PodClass, TraceBatch, TraceLog

_READ_ANNOTATIONS: Final = (DO_NOT_DISRUPT, POD_DELETION_COST)
_OF_ONE_POD: Final = frozenset(
    {
        "apps.kubernetes.io/pod-index",
        "batch.kubernetes.io/job-completion-index",
        "statefulset.kubernetes.io/pod-name",
    }
)
"""Labels that Kubernetes adds to a single pod: with them, every pod would have its own class."""


def class_of(pod: Pod) -> PodClass:
    """Return what decisions read from a pod, without data of its node.

    Volumes are omitted: a replay has no claims that they could be bound to.
    """
    meta = pod.metadata
    owners = meta.owner_references
    owner = next((o for o in owners if o.controller), owners[0] if owners else None)
    spec = pod.spec
    if spec.node_name or spec.scheduling_gates or any(map(_is_claim, spec.volumes)):
        kept = tuple(volume for volume in spec.volumes if not _is_claim(volume))
        spec = msgspec.structs.replace(spec, node_name="", scheduling_gates=(), volumes=kept)
    return PodClass(
        spec,
        {name: meta.labels[name] for name in sorted(meta.labels) if name not in _OF_ONE_POD},
        {name: meta.annotations[name] for name in _READ_ANNOTATIONS if name in meta.annotations},
        None if owner is None else msgspec.structs.replace(owner, uid=""),
    )


def _is_claim(volume: Volume) -> bool:
    return volume.persistent_volume_claim is not None or volume.ephemeral is not None


def _id_of(pod_class: PodClass) -> str:
    content = msgspec.json.encode(pod_class, order="deterministic")
    return blake2b(content, digest_size=8).hexdigest()


@dataclass(frozen=True, slots=True)
class _Present:
    """A pod that is recorded as present, as it was when last observed."""

    pod: Pod
    arrival: PodArrival


@dataclass
class WorkloadRecorder:
    """Writes a batch after each pass that observed a change, and a complete one each day.

    A process that starts does not know what is recorded, so it begins with a complete batch, and so
    does one that could not write: readers compare it with what they know.
    """

    log: TraceLog
    _whole_at: datetime | None = field(default=None, init=False)
    _classes: dict[str, PodClass] = field(default_factory=dict, init=False)
    _pods: dict[str, _Present] = field(default_factory=dict, init=False)
    _nodes: dict[str, NodeArrival] = field(default_factory=dict, init=False)
    _daemon_sets: tuple[DaemonSet, ...] | None = field(default=None, init=False)
    _seen: tuple[object, frozenset[str]] | None = field(default=None, init=False)
    _problem: Complaint = field(default_factory=Complaint, init=False)

    def after(self, world: World, seen: Observation, desired: Desired) -> None:
        """Record what a pass observed, if ``history.trace`` enables it. A failure is reported."""
        keep, now = desired.settings.history_trace, seen.at
        if keep is None:
            return
        is_whole = self._whole_at is None or not timedelta() <= now - self._whole_at < DAY
        if is_whole:
            self._forget()
        batch = self._batch(seen, lambda claim: _node_of(claim, desired, now), is_whole=is_whole)
        if batch is None:
            return
        try:
            self.log.append(batch, now - keep if is_whole else None)
        except StateError as error:
            self._forget()
            self._problem.report(world, f"cannot record the workload for backtests: {error}")
            return
        self._problem.report(world, "")
        if is_whole:
            self._whole_at = now

    def _forget(self) -> None:
        self._whole_at = self._daemon_sets = self._seen = None
        self._classes, self._pods, self._nodes = {}, {}, {}

    def _batch(
        self, seen: Observation, arrived: Callable[[NodeClaim], NodeArrival], *, is_whole: bool
    ) -> TraceBatch | None:
        """Return what changed since the last batch, and keep it; None if nothing did."""
        known = set(self._classes)
        nodes, gone_nodes = self._moved_nodes(seen, arrived)
        pods, bound, gone = self._moved_pods(seen)
        daemons = self._changed_daemons(seen.snapshot.daemon_sets)
        if not (is_whole or nodes or gone_nodes or pods or bound or gone or daemons is not None):
            return None
        return TraceBatch(
            at=seen.at,
            is_whole=is_whole,
            gone=gone,
            gone_nodes=gone_nodes,
            classes={name: self._classes[name] for name in self._classes if name not in known},
            pods=pods,
            bound=bound,
            nodes=nodes,
            daemons=daemons,
        )

    def _moved_nodes(
        self, seen: Observation, arrived: Callable[[NodeClaim], NodeArrival]
    ) -> tuple[tuple[NodeArrival, ...], tuple[str, ...]]:
        launched = {claim.name: claim for claim in seen.claims if claim.status.provider_id}
        gone = tuple(name for name in self._nodes if name not in launched)
        for name in gone:
            del self._nodes[name]
        new = {name: arrived(c) for name, c in launched.items() if name not in self._nodes}
        self._nodes |= new
        return tuple(new.values()), gone

    def _moved_pods(
        self, seen: Observation
    ) -> tuple[tuple[PodArrival, ...], dict[str, datetime], tuple[str, ...]]:
        ours = frozenset(_node_names(seen))
        if self._seen is not None and self._seen[0] is seen.snapshot.pods and self._seen[1] == ours:
            return (), {}, ()
        self._seen = (seen.snapshot.pods, ours)
        arrived: list[PodArrival] = []
        bound: dict[str, datetime] = {}
        gone: list[str] = []
        present: dict[str, _Present] = {}
        for pod in seen.snapshot.pods:
            known = self._pods.get(pod.key)
            host = pod.spec.node_name
            if known is not None and known.pod is pod and (not host or host in ours):
                present[pod.key] = known
                continue
            if known is not None and known.pod.metadata.uid != pod.metadata.uid:
                known = None  # another pod of that name, in the place of the one before
            if not _counts(pod, ours, is_known=known is not None):
                continue
            if known is None:
                gone += [pod.key] if pod.key in self._pods else []
                arrival = self._arrival(pod, seen.at)
                arrived.append(arrival)
            elif host and known.arrival.bound is None:
                at = bound[pod.key] = _bound_at(pod, known.arrival.created, seen.at)
                arrival = msgspec.structs.replace(known.arrival, bound=at)
            else:
                arrival = known.arrival
            present[pod.key] = _Present(pod, arrival)
        gone += [key for key in self._pods if key not in present]
        self._pods = present
        return tuple(arrived), bound, tuple(gone)

    def _arrival(self, pod: Pod, now: datetime) -> PodArrival:
        name = self._named(class_of(pod))
        created = min(pod.metadata.creation_timestamp or now, now)
        bound = _bound_at(pod, created, now) if pod.spec.node_name else None
        return PodArrival(pod.key, name, created, bound)

    def _named(self, pod_class: PodClass) -> str:
        name = _id_of(pod_class)
        self._classes.setdefault(name, pod_class)
        return name

    def _changed_daemons(self, daemon_sets: tuple[DaemonSet, ...]) -> dict[str, PodClass] | None:
        if self._daemon_sets == daemon_sets:
            return None
        self._daemon_sets = daemon_sets
        return {daemon.pod().key: class_of(daemon.pod()) for daemon in daemon_sets}


def _node_names(seen: Observation) -> Iterator[str]:
    """Yield the names of the fleet's nodes; a Node may be there before its claim knows."""
    providers = set()
    for claim in seen.claims:
        if claim.status.node_name:
            yield claim.status.node_name
        providers.add(claim.status.provider_id)
    providers.discard("")
    for node in seen.snapshot.nodes:
        if node.spec.provider_id in providers:
            yield node.name


def _counts(pod: Pod, ours: frozenset[str], *, is_known: bool) -> bool:
    """Return whether a pod is on a node of the fleet, or waits for one."""
    if pod.is_terminal or pod.is_daemon or pod.is_mirror or pod.is_virtual:
        return False
    if pod.spec.node_name:
        return pod.spec.node_name in ours
    return is_known or pod.is_provisionable


def _bound_at(pod: Pod, created: datetime, now: datetime) -> datetime:
    """Return when a pod was bound, as near as the kubelet and this pass know."""
    return max(created, min(pod.status.start_time or now, now))


def _node_of(claim: NodeClaim, desired: Desired, now: datetime) -> NodeArrival:
    labels = claim.metadata.labels
    kind, zone = labels.get(INSTANCE_TYPE, ""), labels.get(ZONE, "")
    capacity_type = labels.get(CAPACITY_TYPE, "")
    known = desired.instance_type(claim.node_pool, kind)
    price = None if known is None else known.price_of(zone, capacity_type)
    return NodeArrival(
        claim.name,
        claim.node_pool,
        kind,
        zone,
        capacity_type,
        min(claim.metadata.creation_timestamp or now, now),
        None if price is None or isnan(price) else price,
    )
