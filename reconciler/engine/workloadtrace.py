"""Records how the workload of a fleet changes, so that a backtest can replay it.

Recorded are the pods that count for the fleet: those on its nodes, and those for which the
scheduler found no node. Pods of DaemonSets come with their DaemonSet, static pods with their node.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from hashlib import blake2b
from math import isnan
from typing import Final

import msgspec

from reconciler.engine.observation import Observation
from reconciler.engine.planning import PlannedFleet
from reconciler.engine.steps.provision import unavailable_offerings
from reconciler.engine.world import ReportedProblem, World
from reconciler.model.errors import StateError
from reconciler.model.history import DAY
from reconciler.model.karpenter.labels import (
    CAPACITY_TYPE,
    DISRUPTION_ANNOTATIONS,
    INSTANCE_TYPE,
    ZONE,
    normalize_label,
)
from reconciler.model.karpenter.nodeclaim import NodeClaim
from reconciler.model.kubernetes.cluster import DaemonSet, PersistentVolume
from reconciler.model.kubernetes.node import Node
from reconciler.model.kubernetes.pod import (
    Affinity,
    NodeAffinity,
    NodeSelector,
    NodeSelectorExpression,
    NodeSelectorTerm,
    Pod,
    PodSpec,
    Volume,
)
from reconciler.observed.comparison import have_same_objects, other_pods
from reconciler.observed.snapshot import Snapshot
from reconciler.ports.state import (
    NodeArrival,
    OfferingRefusal,
    PodArrival,
    PodClass,
    SpotChanges,
    TraceBatch,
    TraceLog,
    Unavailable,
    spot_changes,
)

CLASS_BYTES_MAX: Final = 2**27
"""The bytes of the classes of pods, as JSON, that are recorded in a day. Whoever may create pods
could otherwise fill the disk with pods that come and go, or a batch beyond what is read again."""
_FULL: Final = (
    "no more new kinds of pods are recorded for backtests today: their specs have more than "
    f"{CLASS_BYTES_MAX >> 20} MiB"
)

_POD_IDENTITY_LABELS: Final = frozenset(
    {
        "apps.kubernetes.io/pod-index",
        "batch.kubernetes.io/job-completion-index",
        "statefulset.kubernetes.io/pod-name",
    }
)
"""Labels that Kubernetes adds to a single pod: with them, every pod would have its own class."""


def _without_place(spec: PodSpec) -> PodSpec:
    """Return the spec of a pod before it was bound, without claims that may tie it to a zone."""
    if spec.node_name or spec.scheduling_gates or any(map(_is_volume_claim, spec.volumes)):
        kept = tuple(volume for volume in spec.volumes if not _is_volume_claim(volume))
        return msgspec.structs.replace(spec, node_name="", scheduling_gates=(), volumes=kept)
    return spec


def classify_pod(pod: Pod, zones: Collection[str] | None = None) -> PodClass:
    """Return what decisions read from a pod, without data of its node.

    Volumes are omitted: a replay has no claims that they could be bound to. ``zones`` are those
    of its volumes, None if no volume restricts it; the class requires one of them.
    """
    meta = pod.metadata
    owners = meta.owner_references
    owner = meta.controller or (owners[0] if owners else None)
    spec = _without_place(pod.spec)
    if zones is not None:
        spec = _require_zones(spec, sorted(zones))
    return PodClass(
        spec,
        {
            name: meta.labels[name]
            for name in sorted(meta.labels)
            if name not in _POD_IDENTITY_LABELS
        },
        {
            name: meta.annotations[name]
            for name in DISRUPTION_ANNOTATIONS
            if name in meta.annotations
        },
        None if owner is None else msgspec.structs.replace(owner, uid=""),
    )


def _is_volume_claim(volume: Volume) -> bool:
    return volume.persistent_volume_claim is not None or volume.ephemeral is not None


def _require_zones(spec: PodSpec, zones: Sequence[str]) -> PodSpec:
    """Return the spec with one of the zones required, beside what it requires already."""
    here = NodeSelectorExpression(ZONE, "In", tuple(zones))
    affinity = spec.affinity or Affinity()
    nodes = affinity.node_affinity or NodeAffinity()
    terms = tuple(
        msgspec.structs.replace(term, match_expressions=(*term.match_expressions, here))
        for term in spec.required_node_terms or (NodeSelectorTerm(),)
    )
    nodes = msgspec.structs.replace(nodes, required=NodeSelector(terms))
    return msgspec.structs.replace(
        spec, affinity=msgspec.structs.replace(affinity, node_affinity=nodes)
    )


class _BoundVolumes:
    """The zones of bound PersistentVolumes; indexed when the first pod with a volume asks."""

    def __init__(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot
        self._zones: dict[str, frozenset[str]] | None = None

    def zones(self, pod: Pod) -> frozenset[str] | None:
        """Return the zones from which every bound volume of a pod is reachable, None for any.

        A volume that is not bound yet follows its pod, and an ephemeral one does not outlive it.
        """
        found: frozenset[str] | None = None
        for volume in pod.spec.volumes:
            claim = volume.persistent_volume_claim
            if claim is not None:
                zones = self._by_claim().get(f"{pod.namespace}/{claim.claim_name}")
                if zones is not None:
                    found = zones if found is None else found & zones
        return found

    def _by_claim(self) -> Mapping[str, frozenset[str]]:
        if self._zones is None:
            volumes = {volume.metadata.name: volume for volume in self._snapshot.volumes}
            self._zones = {}
            for claim in self._snapshot.volume_claims:
                volume = volumes.get(claim.spec.volume_name)
                zones = None if volume is None else _volume_zones(volume)
                if zones is not None:
                    self._zones[claim.key] = zones
        return self._zones


def _volume_zones(volume: PersistentVolume) -> frozenset[str] | None:
    """Return the zones of a volume, None if a term of its node affinity names none."""
    affinity = volume.spec.node_affinity
    if affinity is None or affinity.required is None:
        return None
    found: set[str] = set()
    for term in affinity.required.node_selector_terms:
        zones = [
            frozenset(e.values)
            for e in term.match_expressions
            if e.operator == "In" and normalize_label(e.key) == ZONE
        ]
        if not zones:
            return None
        found |= frozenset.intersection(*zones)
    return frozenset(found)


@dataclass(frozen=True, slots=True)
class _RecordedPod:
    """A pod that is recorded as present, as it was when last observed."""

    pod: Pod
    arrival: PodArrival


@dataclass(frozen=True, slots=True)
class _Fleet:
    """The fleet's claims and the cluster's Nodes of a pass, and which nodes are the fleet's."""

    claims: Sequence[NodeClaim]
    nodes: Sequence[Node]
    names: frozenset[str]
    launched: frozenset[str]


@dataclass(frozen=True, slots=True)
class _PodChanges:
    """The pods that were created, bound and removed by a pass; ``nodes`` are those of the fleet."""

    at: datetime
    nodes: frozenset[str]
    volumes: _BoundVolumes
    arrived: list[PodArrival] = field(default_factory=list)
    bound: dict[str, datetime] = field(default_factory=dict)
    gone: list[str] = field(default_factory=list)


@dataclass
class WorkloadRecorder:
    """Writes a batch after each pass that observed a change, and a complete one each day.

    A process that starts does not know what is recorded, so it begins with a complete batch, and so
    does one that could not write: readers compare it with what they know.
    """

    log: TraceLog
    _whole_at: datetime | None = field(default=None, init=False)
    _classes: set[str] = field(default_factory=set, init=False)
    _new_classes: dict[str, PodClass] = field(default_factory=dict, init=False)
    _class_bytes: int = field(default=0, init=False)
    _is_full: bool = field(default=False, init=False)
    _pods: dict[str, _RecordedPod] = field(default_factory=dict, init=False)
    _nodes: dict[str, NodeArrival] = field(default_factory=dict, init=False)
    _daemon_sets: tuple[DaemonSet, ...] | None = field(default=None, init=False)
    _seen: tuple[Pod, ...] = field(default=(), init=False)
    _ours: _Fleet | None = field(default=None, init=False)
    _spot: Mapping[str, Mapping[str, float]] | None = field(default=None, init=False)
    _refused: dict[tuple[str, str, str], datetime] = field(default_factory=dict, init=False)
    _problem: ReportedProblem = field(default_factory=ReportedProblem, init=False)

    def record_pass(self, world: World, seen: Observation, desired: PlannedFleet) -> None:
        """Record what a pass observed, if ``history.trace`` enables it. A failure is reported."""
        try:
            self.record(seen, desired, unavailable_offerings(world.store, seen.at))
        except StateError as error:
            self._problem.report(world, f"cannot record the workload for backtests: {error}")
            return
        self._problem.report(world, _FULL if self._is_full else "")

    def record(
        self, seen: Observation, desired: PlannedFleet, unavailable: Sequence[Unavailable] = ()
    ) -> None:
        """Record what was observed, if ``history.trace`` enables it.

        Raises:
            StateError: it cannot be written; the next batch is a complete one.
        """
        keep, now = desired.settings.history_trace, seen.at
        if keep is None:
            return
        is_whole = self._whole_at is None or not timedelta() <= now - self._whole_at < DAY
        if is_whole:
            self._reset()
        try:
            batch = self._make_batch(
                seen,
                lambda claim: _node_arrival(claim, desired, now),
                desired.spot_prices,
                unavailable,
                is_whole=is_whole,
            )
            if batch is None:
                return
            self.log.append(batch, now - keep if is_whole else None)
        except StateError:
            self._reset()
            raise
        if is_whole:
            self._whole_at = now

    def _reset(self) -> None:
        self._whole_at = self._daemon_sets = self._ours = self._spot = None
        self._pods, self._nodes, self._refused, self._seen = {}, {}, {}, ()
        self._classes, self._class_bytes, self._is_full = set(), 0, False

    def _make_batch(
        self,
        seen: Observation,
        arrived: Callable[[NodeClaim], NodeArrival],
        spot: Mapping[str, Mapping[str, float]],
        unavailable: Sequence[Unavailable],
        *,
        is_whole: bool,
    ) -> TraceBatch | None:
        """Return what changed since the last batch, and keep it; None if nothing did."""
        self._new_classes = {}
        before, fleet = self._ours, self._fleet(seen)
        nodes, gone_nodes = self._changed_nodes(seen, arrived) if fleet is not before else ((), ())
        pods, bound, gone = self._changed_pods(seen, before, fleet)
        daemons = self._changed_daemons(seen.snapshot.daemon_sets)
        prices, refused = self._changed_prices(spot), self._new_refusals(unavailable)
        changed = (nodes, gone_nodes, pods, bound, gone, refused)
        if not (is_whole or any(changed) or daemons is not None or prices is not None):
            return None
        return TraceBatch(
            at=seen.at,
            is_whole=is_whole,
            gone=gone,
            gone_nodes=gone_nodes,
            classes=self._new_classes,
            pods=pods,
            bound=bound,
            nodes=nodes,
            daemons=daemons,
            spot=prices,
            refused=refused,
        )

    def _fleet(self, seen: Observation) -> _Fleet:
        """Return what is the fleet's: the same object for as long as nothing of it changes."""
        known, claims, nodes = self._ours, seen.claims, seen.snapshot.nodes
        if (
            known is not None
            and have_same_objects(known.claims, claims)
            and have_same_objects(known.nodes, nodes)
        ):
            return known
        launched = frozenset(claim.name for claim in claims if claim.status.provider_id)
        names = frozenset(_node_names(seen))
        if known is not None and (known.names, known.launched) == (names, launched):
            return known
        self._ours = _Fleet(claims, nodes, names, launched)
        return self._ours

    def _changed_nodes(
        self, seen: Observation, arrived: Callable[[NodeClaim], NodeArrival]
    ) -> tuple[tuple[NodeArrival, ...], tuple[str, ...]]:
        launched = {claim.name: claim for claim in seen.claims if claim.status.provider_id}
        gone = tuple(name for name in self._nodes if name not in launched)
        for name in gone:
            del self._nodes[name]
        new = {name: arrived(c) for name, c in launched.items() if name not in self._nodes}
        self._nodes |= new
        return tuple(new.values()), gone

    def _changed_pods(
        self, seen: Observation, before: _Fleet | None, fleet: _Fleet
    ) -> tuple[tuple[PodArrival, ...], dict[str, datetime], tuple[str, ...]]:
        """Return the pods that were created, bound, and removed.

        Pods that are the same objects as before are not compared again, unless their node has
        become one of the fleet or no longer is one.
        """
        pods, old = seen.snapshot.pods, self._seen
        moved = fleet.names ^ before.names if before is not None else fleet.names
        if pods is old and not moved:
            return (), {}, ()
        self._seen = pods
        fresh, lost = other_pods(old, pods)
        if moved:
            new = set(map(id, fresh))
            known = [pod for pod in pods if pod.spec.node_name in moved and id(pod) not in new]
            fresh += known
            lost |= {pod.key for pod in known}
        moves = _PodChanges(seen.at, fleet.names, _BoundVolumes(seen.snapshot))
        for pod in fresh:
            lost.discard(pod.key)
            self._update_pod(pod, moves)
        for key in sorted(lost & self._pods.keys()):
            moves.gone.append(key)
            del self._pods[key]
        return tuple(moves.arrived), moves.bound, tuple(moves.gone)

    def _update_pod(self, pod: Pod, moves: _PodChanges) -> None:
        """Compare a pod with what is recorded of it, and record it as it is."""
        key, host = pod.key, pod.spec.node_name
        known = self._pods.get(key)
        if known is not None and known.pod.metadata.uid != pod.metadata.uid:
            known = None  # another pod of that name, in the place of the one before
        if not _belongs_to_fleet(pod, moves.nodes, is_known=known is not None):
            if self._pods.pop(key, None) is not None:
                moves.gone.append(key)
            return
        if known is None:
            if key in self._pods:
                moves.gone.append(key)
            arrival = self._arrival(pod, moves.at, moves.volumes)
            if not arrival.pod_class:
                self._pods.pop(key, None)
                return
            moves.arrived.append(arrival)
        elif host and known.arrival.bound is None:
            at = moves.bound[key] = _bound_at(pod, known.arrival.created, moves.at)
            arrival = msgspec.structs.replace(known.arrival, bound=at)
        else:
            arrival = known.arrival
        self._pods[key] = _RecordedPod(pod, arrival)

    def _arrival(self, pod: Pod, now: datetime, volumes: _BoundVolumes) -> PodArrival:
        name = self._add_class(classify_pod(pod, volumes.zones(pod)))
        created = min(pod.metadata.creation_timestamp or now, now)
        bound = _bound_at(pod, created, now) if pod.spec.node_name else None
        return PodArrival(pod.key, name, created, bound)

    def _add_class(self, pod_class: PodClass) -> str:
        """Return the name of a class, "" if it is new and no more are recorded today.

        Only the names are kept: the pods of most classes are gone soon.
        """
        content = msgspec.json.encode(pod_class, order="deterministic")
        name = blake2b(content, digest_size=8).hexdigest()
        if name not in self._classes:
            if self._class_bytes + len(content) > CLASS_BYTES_MAX:
                self._is_full = True
                return ""
            self._class_bytes += len(content)
            self._classes.add(name)
            self._new_classes[name] = pod_class
        return name

    def _changed_daemons(self, daemon_sets: tuple[DaemonSet, ...]) -> dict[str, PodClass] | None:
        if self._daemon_sets == daemon_sets:
            return None
        self._daemon_sets = daemon_sets
        return {daemon.pod().key: classify_pod(daemon.pod()) for daemon in daemon_sets}

    def _changed_prices(self, spot: Mapping[str, Mapping[str, float]]) -> SpotChanges | None:
        """Return the prices that differ, all of them where none is known, None where none does."""
        known, self._spot = self._spot, spot
        if known is spot:
            return None
        if known is None:
            return {kind: dict(zones) for kind, zones in spot.items()}
        return spot_changes(known, spot) or None

    def _new_refusals(self, unavailable: Sequence[Unavailable]) -> tuple[OfferingRefusal, ...]:
        """Return the refusals that are new, or last longer than was recorded."""
        if not unavailable and not self._refused:
            return ()
        known, found = self._refused, []
        self._refused = {}
        for entry in unavailable:
            if entry.reservation_id:
                continue  # a trace names no reservation, and another one may have capacity
            offering = (entry.instance_type, entry.zone, entry.capacity_type)
            self._refused[offering] = entry.until
            if known.get(offering) != entry.until:
                found.append(OfferingRefusal(*offering, entry.until, entry.code))
        return tuple(found)


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


def _belongs_to_fleet(pod: Pod, fleet: frozenset[str], *, is_known: bool) -> bool:
    """Return whether a pod is on a node of the fleet, or waits for one."""
    if pod.is_terminal or pod.is_daemon or pod.is_mirror or pod.is_virtual:
        return False
    if pod.spec.node_name:
        return pod.spec.node_name in fleet
    return is_known or pod.is_provisionable


def _bound_at(pod: Pod, created: datetime, now: datetime) -> datetime:
    """Return when a pod was bound, as closely as the kubelet and this pass know."""
    return max(created, min(pod.status.start_time or now, now))


def _node_arrival(claim: NodeClaim, desired: PlannedFleet, now: datetime) -> NodeArrival:
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
