"""Builds the simulated environment of a request from the same facts as a plan."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from datetime import datetime, timedelta
from functools import cached_property
from hashlib import sha256
from typing import NamedTuple, Protocol

import msgspec

from reconciler.adapters.simulated.cluster import SHELF_NAME
from reconciler.adapters.simulated.compute import SimulatedCompute
from reconciler.adapters.simulated.conditions import Conditions, RecordedMarket, SimulatedClock
from reconciler.adapters.simulated.memory import MemoryJournal, MemoryShelf
from reconciler.adapters.simulated.records import encode_record
from reconciler.adapters.simulated.watched import FirstState, WatchedCluster, first_state
from reconciler.assembly import capturing, comparison
from reconciler.assembly.inputs import sources, timings
from reconciler.assembly.inputs.records import is_live
from reconciler.assembly.inputs.request import FleetRequest
from reconciler.assembly.snapshots import read_content
from reconciler.catalog.adjusted.adjustment import with_price_factors, with_quoted_prices
from reconciler.catalog.aws.devices import drivers_of_nodes
from reconciler.catalog.catalog import Catalog
from reconciler.desired.hash import object_hash
from reconciler.desired.objects import node_classes, node_pools
from reconciler.desired.workloads.pods import Workloads, workloads_of
from reconciler.desired.workloads.podsets import ReplicaChoice
from reconciler.diff.nodeclass import with_observed_status
from reconciler.engine.observation import Observation
from reconciler.engine.planning import PlannedFleet
from reconciler.engine.reconcile import owner_of
from reconciler.engine.records import Discovery, restore_records
from reconciler.engine.steps import lifecycle
from reconciler.engine.world import World
from reconciler.model.chance import Chance
from reconciler.model.decode import decode_json
from reconciler.model.grouping import BY_NAMESPACE, Grouping
from reconciler.model.json import JsonDict
from reconciler.model.karpenter.labels import CAPACITY_TYPE, NODEPOOL, SPOT
from reconciler.model.karpenter.nodeclass import EC2NodeClass
from reconciler.model.karpenter.nodepool import NodePool
from reconciler.model.kubernetes.metadata import Metadata
from reconciler.model.settings import ClusterKind, DecisionRules
from reconciler.observed.allocation import choose_grouping
from reconciler.observed.identity import identify_nodes
from reconciler.observed.snapshot import Snapshot, read_snapshot
from reconciler.placement.pods.replicas import autoscalers_of
from reconciler.plan.make.decide import Phase
from reconciler.plan.make.inputs import Inputs
from reconciler.plan.value.plan import InputDigests
from reconciler.ports.cloud import Instance
from reconciler.ports.state import RecordedObject, Unavailable
from reconciler.simulate.driver import SimulationStage
from reconciler.simulate.eventlog import EventLog, NotifyingStore
from reconciler.simulate.scheduled import CapturedWorkloads
from reconciler.simulate.script import Script, Steps, with_kills


@dataclass(frozen=True)
class SimulatedFleet(PlannedFleet):
    """Desired state of the engine, extended for simulations.

    ``any_class`` takes node classes that are not in the folder as known, as a plan with a
    catalog file does. ``compute`` reports which instances EC2 is about to reclaim.
    """

    any_class: bool = False
    unready_classes: frozenset[tuple[str, str]] = frozenset()
    workloads: Workloads = field(default_factory=Workloads)
    replicas_percent: int | None = None
    compute: SimulatedCompute | None = None
    _repriced: dict[str, SimulatedFleet] = field(default_factory=dict, init=False)

    def __reduce__(self) -> tuple[object, ...]:
        """Pickle the fleet without the caches of this process.

        Node classes are pickled as JSON: fields that they omit are then omitted in the journal as
        well, unlike copies of default values. Ids, and so random events, depend on it.
        """
        names = {f.name for f in fields(self) if f.init} - {"covering", "phase", "compute"}
        arguments = {name: getattr(self, name) for name in names - {"classes"}}
        return _restore_fleet, (msgspec.json.encode(self.classes), arguments)

    @property
    def facts(self) -> tuple[object, ...]:
        """Its identity: two fleets with the same facts are simulated in the same way."""
        return (self.digests, self.any_class, sorted(self.allow_removal), self.replicas_percent)

    @cached_property
    def placeholder_classes(self) -> Mapping[str, EC2NodeClass]:
        """Return a class for each name that pools refer to without a declaration of its kind."""
        pools = self.node_pools if self.any_class else ()
        missing = {
            pool.spec.template.spec.node_class_ref.name
            for pool in pools
            if PlannedFleet.launch_class_of(self, pool) is None
        }
        return {name: EC2NodeClass(Metadata(name=name)) for name in sorted(missing)}

    def launch_class_of(self, pool: NodePool) -> EC2NodeClass | None:
        """Return the node class of a NodePool, or its placeholder."""
        name = pool.spec.template.spec.node_class_ref.name
        return super().launch_class_of(pool) or self.placeholder_classes.get(name)

    def priced_at(self, moment: datetime) -> SimulatedFleet:
        """Return the fleet at the prices of a time."""
        conditions = self.compute.conditions if self.compute is not None else Conditions()
        name = ", ".join(str(p.at) for p in conditions.prices if p.at <= moment)
        changes = conditions.market.count(moment) if self.can_use_spot else 0
        if not name and not changes:
            return self
        key = f"{changes} {name}"
        known = self._repriced.get(key)
        if known is None:

            def factor(instance_type: str, zone: str, capacity_type: str) -> float:
                return conditions.factor((instance_type, zone, capacity_type), moment)

            catalog = self.catalog
            if changes:
                prices = dict(conditions.market.prices(moment))
                catalog = with_quoted_prices(catalog, prices, f"{moment} {changes}")
            if name:
                catalog = with_price_factors(catalog, factor, name)
            self._repriced.clear()  # time does not go back: earlier prices are no longer needed
            known = self._repriced[key] = replace(self, catalog=catalog)
        return known

    def price_moments(self) -> Sequence[datetime]:
        """Return the moments at which prices change that the fleet depends on, in order."""
        if self.compute is None:
            return ()
        conditions = self.compute.conditions
        market = conditions.market.moments if self.can_use_spot else ()
        return sorted({*market, *(change.at for change in conditions.prices)})

    @cached_property
    def can_use_spot(self) -> bool:
        """Whether a NodePool allows spot nodes."""
        pools = self.node_pools
        return any(pool.requirements().requirement_on(CAPACITY_TYPE).has(SPOT) for pool in pools)

    def inputs(
        self,
        seen: Observation,
        unavailable: Sequence[Unavailable],
        recorded: Sequence[RecordedObject],
        serial: int,
    ) -> Inputs:
        """Return the inputs of a plan."""
        facts = super().inputs(seen, unavailable, recorded, serial)
        interrupted = self.compute.interrupted_claims() if self.compute is not None else {}
        return msgspec.structs.replace(
            facts,
            lists_blockers=False,
            any_class=self.any_class,
            unready_classes=self.unready_classes,
            interrupted={**facts.interrupted, **interrupted},
        )

    def input_digests(self, seen: Observation) -> InputDigests:
        """Return the course of chance, which names new nodes: nobody approves these plans."""
        del seen
        return InputDigests(snapshot=self.compute.course if self.compute is not None else "")


def _restore_fleet(classes: bytes, arguments: JsonDict) -> SimulatedFleet:
    return SimulatedFleet(classes=decode_json(classes, _Classes), **arguments)


_Classes = dict[str, EC2NodeClass]


@dataclass
class SimulationSetup:
    """The start of a simulation: the world, and the revisions that it simulates.

    ``base`` is the fleet at ``--base``, None without it. ``present`` are the workloads that run
    now: those of a snapshot forever, else those of the revision that is simulated.
    """

    stage: SimulationStage
    head: SimulatedFleet
    base: SimulatedFleet | None
    start: datetime
    present: PresentWorkloads
    captured: CapturedWorkloads | None
    cost_by: Grouping = BY_NAMESPACE

    def start_fleet(self, fleet: SimulatedFleet) -> SimulatedFleet:
        """Return a revision in this world, and start its workloads and its scheduler.

        Those of a snapshot run forever, with the replicas that the revision allows. Facts
        discovered in this world are not known in others.
        """
        self.stage.cluster.schedule_with(fleet.settings.scheduler_profiles)
        if self.captured is None:
            self.present.base = fleet.workloads
        else:
            self.present.base = self.captured.of_fleet(fleet.fleet, fleet.replicas_percent)
        return replace(
            fleet, compute=self.stage.compute, discovery=fleet.discovery.independent_copy()
        )


@dataclass(frozen=True, slots=True)
class KnownInputs:
    """The inputs that the caller has read: the snapshot, if there is one, and both catalogs."""

    snapshot: Snapshot | None
    catalog: Catalog
    base_catalog: Catalog


@dataclass(frozen=True, slots=True)
class SimulationInputs:
    """Everything that a simulation depends on except faults and the seed; it can be pickled.

    ``snapshot`` is the cluster at the ``start``, None if nothing runs; ``captured`` is a digest of
    its source. ``base`` is None without ``--base``. ``cost_by`` is how the cost of a change is
    divided among workloads.
    """

    start: datetime
    snapshot: Snapshot | None
    head: SimulatedFleet
    base: SimulatedFleet | None = None
    captured: str = ""
    cost_by: Grouping = BY_NAMESPACE

    @property
    def address(self) -> tuple[object, ...]:
        """The identity of a result from these inputs (``sweeps.evaluation``)."""
        fleets = (self.head, *((self.base,) if self.base is not None else ()))
        return (self.start, self.captured, *(fleet.facts for fleet in fleets))


class PresentWorkloads(Protocol):
    """The workloads in addition to a trace, which change with the revision, and those of a time."""

    base: Workloads

    def workloads(self, now: datetime) -> Workloads:
        """Return what should run now."""


@dataclass
class _ConstantWorkloads:
    base: Workloads

    def workloads(self, now: datetime) -> Workloads:
        """Return the workloads, which are the same at all times."""
        del now
        return self.base


def read_simulation(
    request: FleetRequest,
    phase: Phase,
    known: KnownInputs | None = None,
    *,
    is_replay: bool = False,
) -> SimulationInputs:
    """Return the inputs that the request names; ``known`` ones are not read again.

    A replay omits the pods that run on the cluster.

    Raises:
        ReconcilerError: an argument is wrong or an input cannot be read, as for a plan.
    """
    start = timings.start_of_simulation(request.now)
    with phase("read"):
        if known is None:
            found, digest = _read_snapshot(request, is_replay=is_replay)
        else:
            found, digest = known.snapshot, ""
        head = read_simulated_fleet(
            request, found, phase, known.catalog if known is not None else None
        )
        base = None
        if request.base:
            catalog = known.base_catalog if known is not None else None
            base = read_simulated_fleet(request.at_base, found, phase, catalog)
            comparison.expect_one_region(base.settings.region, head.settings.region)
            head = _with_removals(head, base)
    pods = (*(base or head).workloads.pods, *head.workloads.pods)
    by = choose_grouping(request.cost_by, pods if found is None else found.pods)
    return SimulationInputs(start, found, head, base, digest, by)


def _with_removals(head: SimulatedFleet, base: SimulatedFleet) -> SimulatedFleet:
    """Return the head with the removal of what it deletes allowed, if Karpenter decides."""
    if head.settings.decide is not DecisionRules.KARPENTER:
        return head
    deleted = {pool.name for pool in base.node_pools} - {pool.name for pool in head.node_pools}
    return replace(head, allow_removal=head.allow_removal | deleted)


def build_simulation(
    inputs: SimulationInputs,
    script: Script,
    seed: int = 0,
    present: PresentWorkloads | None = None,
    market: RecordedMarket | None = None,
) -> SimulationSetup:
    """Return the simulated world at its start; ``present`` replays a trace in it.

    ``market`` has the recorded spot prices and refusals of the trace.

    Raises:
        UsageError: the script of faults is wrong.
    """
    start, head, base = inputs.start, inputs.head, inputs.base
    snapshot, is_captured = inputs.snapshot or Snapshot(), inputs.snapshot is not None
    conditions = script.conditions(start, (base or head).node_pools, snapshot.node_claims)
    if market is not None:
        conditions = replace(conditions, market=market)
    leaving = conditions.latencies.leaving
    first = first_state(
        snapshot, start, timedelta(seconds=leaving) if leaving is not None else None
    )
    workloads = first.workloads if is_captured else (base or head).workloads
    present = present or _ConstantWorkloads(workloads)
    present.base = workloads
    stage = _make_stage(start, first, head, present, conditions, script, seed)
    _record_history(stage, first, base or head, snapshot)
    if kill_steps := script.kill_steps():
        stage.world = with_kills(stage.world, Steps(kill_steps))
    captured = None
    if is_captured:
        captured = CapturedWorkloads(workloads, tuple(autoscalers_of(snapshot)), start)
    return SimulationSetup(stage, head, base, start, present, captured, inputs.cost_by)


class _CapturedSnapshot(NamedTuple):
    snapshot: Snapshot | None = None
    digest: str = ""


def _read_snapshot(request: FleetRequest, *, is_replay: bool) -> _CapturedSnapshot:
    """Return the current cluster: that of ``--snapshot``, else the running fleet, as for a plan.

    There is no snapshot if there is neither: then the workloads of the folder start without nodes.
    So they do with ``--base`` on an embedded cluster, whose workloads are those of a revision. With
    a trace, the current pods are omitted: the trace may have been recorded on this cluster.
    """
    if request.snapshot is not None:
        content, source = read_content(request.snapshot, request)
    else:
        running = None if is_replay else _capture_running_fleet(request)
        if running is None:
            return _CapturedSnapshot()
        content, source = running, "the cluster"
    snapshot = identify_nodes(read_snapshot(content, source)).snapshot
    return _CapturedSnapshot(snapshot, sha256(content).hexdigest())


def _capture_running_fleet(request: FleetRequest) -> bytes | None:
    """Return the running fleet as a snapshot; None if a plan would not observe it either."""
    fleet = sources.desired_fleet(
        request, any_class=request.catalog is not None, allow_empty=request.may_be_empty
    )
    resolved = sources.settings_of(request, fleet)
    if not is_live(request, resolved):
        return None
    if request.base and resolved.settings.cluster == ClusterKind.EMBEDDED:
        return None
    whole = {"apiVersion": "v1", "kind": "List", "items": capturing.objects_of_fleet(request)}
    return msgspec.json.encode(whole)


def read_simulated_fleet(
    request: FleetRequest,
    captured: Snapshot | None,
    phase: Phase,
    catalog: Catalog | None = None,
) -> SimulatedFleet:
    """Return desired state as the request names it, and what can be launched.

    With a snapshot its pods run, without one the workloads of the revision. The ``catalog`` is
    read where it is not given.
    """
    snapshot, has_file = captured or Snapshot(), request.catalog is not None
    source = sources.read_source(request)
    fleet, findings = sources.read_desired(
        source, any_class=has_file, allow_empty=request.may_be_empty
    )
    resolved = sources.settings_of(request, fleet)
    settings, memory = resolved.settings, Discovery({})
    found = capturing.captured_fleet(snapshot)
    if found is not None:
        settings = capturing.settings_for(found.records, resolved)
        memory = Discovery(found.records.memory)
    choice = ReplicaChoice(request.replicas_percent)
    workloads, more = (
        (Workloads(), ()) if captured is not None else workloads_of(fleet, choice=choice)
    )
    with phase("catalog"):
        learned = comparison.learned_types(fleet, snapshot)
        catalog = catalog or comparison.read_types(request, resolved, fleet.lock, learned)
    digests = sources.digests_of(fleet, b"", catalog, resolved)
    return SimulatedFleet(
        fleet=fleet,
        head=source.revision,
        tree=digests.git,
        node_pools=node_pools(fleet),
        classes=with_observed_status(node_classes(fleet), snapshot.live),
        settings=settings,
        catalog=catalog,
        diagnostics=sources.without_errors((*findings, *more, *snapshot.findings)),
        allow_removal=request.allow_removal,
        digests=digests,
        discovery=memory,
        any_class=has_file or comparison.has_other_provider(fleet, settings),
        unready_classes=snapshot.unready_classes,
        workloads=workloads,
        replicas_percent=request.replicas_percent,
        phase=phase,
    )


def _make_stage(
    start: datetime,
    first: FirstState,
    head: SimulatedFleet,
    present: PresentWorkloads,
    conditions: Conditions,
    script: Script,
    seed: int,
) -> SimulationStage:
    clock, chance, event_log = SimulatedClock(start), Chance(seed), EventLog()
    compute = SimulatedCompute(clock, head.catalog.get, conditions, chance, script.faults())
    shelf = MemoryShelf()
    shelf.write(SHELF_NAME, encode_record(first.record))
    cluster = WatchedCluster(
        shelf,
        head.catalog.get,
        lambda: present.workloads(clock.now()),
        clock,
        event_log,
        first,
        conditions,
        chance,
        drivers_of_nodes(head.settings, lambda: head.classes),
    )
    store = NotifyingStore(event_log, clock)
    ports = World(clock, compute, cluster, store, MemoryJournal(), event_log)
    return SimulationStage(clock, compute, cluster, ports, event_log, chance)


def _record_history(
    stage: SimulationStage, first: FirstState, desired: SimulatedFleet, snapshot: Snapshot
) -> None:
    """Record the contents of the snapshot as the history before the simulation."""
    now, event_log, store = stage.clock.now(), stage.event_log, stage.world.store
    pods_by_node = snapshot.indexed_pods.workload_names
    nodes = {r.node.spec.provider_id: r.node.name for r in first.record.nodes.values()}
    claims = []
    for claim in first.claims:
        pods = pods_by_node.get(nodes.get(claim.status.provider_id, ""), ())
        seen = lifecycle.with_pods(claim, pods, now)
        since = claim.status.last_pod_event_time
        status = msgspec.structs.replace(seen.status, last_pod_event_time=since)
        claims.append(msgspec.structs.replace(seen, status=status))
    event_log.record_claims(claims)
    store.put_node_claims(claims)
    ours = owner_of(desired.settings).tags
    found = capturing.captured_fleet(snapshot)
    shown = {i.id: i for i in found.records.instances} if found is not None else {}
    for derived in first.instances:
        instance = msgspec.structs.replace(shown.get(derived.id, derived), state=derived.state)
        tagged = msgspec.structs.replace(instance, tags={**instance.tags, **ours})
        stage.compute.add(tagged, _price(instance, desired))
    if found is not None:
        restore_records(found.records, store)
        return
    known = [
        RecordedObject(o["kind"], o["metadata"]["name"], (object_hash(o) or ("",))[0], o)
        for o in snapshot.live
    ]
    if known:
        store.put_objects(known, "", now)


def _price(instance: Instance, desired: SimulatedFleet) -> float | None:
    """Return the price of an instance in USD an hour, from the types of its NodePool."""
    kind = desired.instance_type(instance.tags.get(NODEPOOL, ""), instance.instance_type)
    return kind.price_of(instance.zone, instance.capacity_type) if kind is not None else None
