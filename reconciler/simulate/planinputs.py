"""The inputs of a plan: files and a snapshot, or the running fleet."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from dataclasses import replace as with_fields
from typing import TYPE_CHECKING, Final, NamedTuple

from reconciler.assembly.capturing import (
    BesideKarpenter,
    beside_karpenter,
    captured_fleet,
    objects_of_cluster,
    objects_of_fleet,
    settings_for,
)
from reconciler.assembly.comparison import (
    emptied_request,
    has_other_provider,
    is_new_fleet,
    learned_types,
    read_types,
    with_base_inputs,
    with_one_region,
    with_removal,
)
from reconciler.assembly.inputs import sources
from reconciler.assembly.inputs.manifests import read_manifests
from reconciler.assembly.inputs.records import is_live
from reconciler.assembly.inputs.timings import YEARS, current_time
from reconciler.assembly.snapshots import read_captured, read_cluster, scaled_cluster
from reconciler.desired.fleet import SourceFile, read_fleet
from reconciler.desired.objects import node_classes
from reconciler.diff.nodeclass import with_observed_status
from reconciler.engine.ownership import acting_findings, karpenter_findings, running_karpenters
from reconciler.model.decode import decode
from reconciler.model.diagnostics import Diagnostic, Severity
from reconciler.model.errors import InvalidFleetError, UnreadableError, UsageError
from reconciler.model.json import nest
from reconciler.model.karpenter.nodeclass import EC2NodeClassStatus
from reconciler.model.settings import DecisionRules
from reconciler.model.text.times import format_time
from reconciler.observed.fingerprint import (
    fingerprint,
    fingerprints,
    join_fingerprints,
    node_class_facts,
)
from reconciler.observed.identity import identify_nodes
from reconciler.observed.snapshot import objects_snapshot
from reconciler.observed.state import cluster_state
from reconciler.placement.pods.whatif import offerings_in, suppose
from reconciler.plan.make.inputs import Inputs
from reconciler.plan.render.wording import format_age
from reconciler.plan.value.plan import Revision
from reconciler.source.resource import CONFIG_FILES
from reconciler.source.schema import value_at

if TYPE_CHECKING:
    from datetime import datetime

    from reconciler.assembly.inputs.request import FleetRequest
    from reconciler.assembly.inputs.sources import SourceFiles
    from reconciler.assembly.inputs.timings import Timings
    from reconciler.assembly.snapshots import ObservedCluster
    from reconciler.catalog.catalog import Catalog
    from reconciler.desired.fleet import Fleet
    from reconciler.desired.settings.layers import Resolved
    from reconciler.model.json import JsonDict
    from reconciler.model.settings import Settings
    from reconciler.observed.snapshot import Snapshot
    from reconciler.observed.state import ClusterState
    from reconciler.placement.pods.whatif import WhatIf
    from reconciler.plan.value.plan import ObservationSource
    from reconciler.source.resource import Resource

_TAKEN: Final = ("NodePool", "NodeOverlay", "EC2NodeClass")
_READ: Final = frozenset({*_TAKEN, "Node", "Deployment"})
"""The kinds that the files of a cluster are made from."""
_REGION: Final = "topology.kubernetes.io/region"


def read_inputs(
    request: FleetRequest,
    phase: Timings,
    what_if: WhatIf | None = None,
    observed: Sequence[JsonDict] | None = None,
    *,
    for_changes: bool = False,
) -> Inputs:
    """Return everything that the request names, after what is only supposed (``what_if``).

    A fleet without a NodePool is an error, unless the change is what deletes them.
    ``observed`` are the objects of the cluster if they are read already. Inputs ``for_changes``
    have a ``simulation`` without a base as well, for changes that the caller makes.

    Raises:
        UsageError: an argument or setting is wrong.
        UnreadableError: an input cannot be read.
        InvalidFleetError: the desired state has errors.
    """
    try:
        facts = _read_inputs(request, phase, what_if, observed, for_changes=for_changes)
    except InvalidFleetError as error:
        is_empty = any(d.code == "empty-fleet" for d in error.diagnostics)
        emptied = emptied_request(request) if is_empty else None
        if emptied is None:
            raise
        request, facts = emptied, _read_inputs(emptied, phase, what_if, observed)
    return with_removal(facts, request) if request.removes_nodes else facts


def _read_inputs(
    request: FleetRequest,
    phase: Timings,
    what_if: WhatIf | None,
    observed: Sequence[JsonDict] | None,
    *,
    for_changes: bool = False,
) -> Inputs:
    with phase("read"):
        head, live = _read_head(request, observed)
        fleet, findings = sources.read_desired(
            head, any_class=request.catalog is not None, allow_empty=request.may_be_empty
        )
        base = sources.read_base(request)
        request = with_one_region(request, fleet, base)
        resolved = sources.settings_of(request, fleet)
        if request.overrides:
            fleet = _with_overrides(fleet, request.overrides, resolved.settings)
        if live is None and is_live(request, resolved):
            beside = _read_beside(request, resolved, supposes=bool(what_if or request.overrides))
            if beside is None or beside.objects is None:
                return _own_inputs(request, head, beside)
            live = objects_snapshot(beside.objects)
        captured = read_captured(request) if live is None else live
        now = _time_of_plan(request, head.committed_at if live is None else None, captured)
        cluster = read_cluster(request, fleet, now, captured)
        if what_if:
            cluster = _supposed(cluster, what_if, now)
    with phase("catalog"):
        catalog = read_types(request, resolved, fleet.lock, learned_types(fleet, cluster.snapshot))
    question = _PlanQuestion(
        request,
        head.revision,
        fleet,
        (*findings, *cluster.findings),
        resolved,
        catalog,
        is_live=live is not None,
    )
    facts = question.inputs_from_records(cluster.snapshot, now) or question.inputs_from_objects(
        cluster.snapshot, now
    )
    if cluster.scaled:
        facts = _with_scaled(facts, cluster)
    if what_if:
        facts = _without_zones(facts, what_if)
    if base is not None:
        own = _cluster_of_base(base, request, cluster, now)
        facts = with_base_inputs(base, request, facts, cluster=own)
    if facts.against is None and not for_changes:
        return facts
    request = _without_missing_base(request, base, facts)
    return _with_simulated_change(facts, request, cluster.captured or cluster.snapshot)


def _read_beside(
    request: FleetRequest, resolved: Resolved, *, supposes: bool
) -> BesideKarpenter | None:
    """Return the objects of a cluster beside Karpenter; what is supposed always needs some."""
    beside = beside_karpenter(request, resolved)
    if supposes and (beside is None or beside.objects is None):
        return BesideKarpenter(objects_of_fleet(request))
    return beside


def _without_missing_base(
    request: FleetRequest, base: sources.Base | None, facts: Inputs
) -> FleetRequest:
    """Return the request without a base in which there is nothing that could be simulated."""
    if base is None or (facts.against is not None and not is_new_fleet(base, facts)):
        return request
    return replace(request, base=None)


def _read_head(
    request: FleetRequest, observed: Sequence[JsonDict] | None
) -> tuple[SourceFiles, Snapshot | None]:
    """Return the files to plan; those of a cluster come with its snapshot."""
    if not request.is_of_cluster:
        live = None if observed is None else objects_snapshot(observed)
        return sources.read_source(request), live
    objects = objects_of_cluster(request) if observed is None else observed
    return _source_of_cluster(objects), objects_snapshot(objects)


def _source_of_cluster(objects: Sequence[JsonDict]) -> SourceFiles:
    """Return the objects and settings of a running Karpenter as the files of a fleet.

    Raises:
        UnreadableError: the cluster has no NodePool.
    """
    import copy

    import msgspec

    from reconciler.desired.migration import controller
    from reconciler.desired.migration.objects import remove_live_fields

    objects = [item for item in objects if item["kind"] in _READ]
    taken = [copy.deepcopy(o) for o in objects if o["kind"] in _TAKEN]
    if not any(o["kind"] == "NodePool" for o in taken):
        raise UnreadableError(
            "the cluster has no NodePool",
            where="--context",
            remedy="pass the fleet folder as PATH, or another context",
        )
    for item in taken:
        remove_live_fields(item)
    regions = (value_at(o, ("metadata", "labels", _REGION)) for o in objects if o["kind"] == "Node")
    region = next((found for found in regions if found), "")
    values: dict[str, object] = {"aws.region": region} if region else {}
    running = controller.running_controller(objects)
    if running is not None:
        values |= controller.settings_of_deployment(running).values
    config = {
        "apiVersion": "reconciler/v1",
        "kind": "Configuration",
        **nest({"fleet": "cluster", **values, "decide": "karpenter"}),
    }
    whole = {"apiVersion": "v1", "kind": "List", "items": taken}
    files = (
        SourceFile(CONFIG_FILES[0], msgspec.json.encode(config)),
        SourceFile("cluster.json", msgspec.json.encode(whole)),
    )
    return sources.SourceFiles(files, (), Revision())


def _with_overrides(fleet: Fleet, places: Sequence[str], settings: Settings) -> Fleet:
    """Return the fleet with the objects of files in place of those of the same name.

    Raises:
        UnreadableError: a file cannot be read.
        InvalidFleetError: an object in it is not valid.
        UsageError: it has workloads, or no object of Karpenter.
    """
    found, findings = read_fleet(
        read_manifests(tuple(places)),
        any_class=True,
        allow_empty=True,
        karpenter=settings.karpenter,
    )
    sources.without_errors(findings)
    if found.workloads or not found.resources:
        raise UsageError(
            "workloads cannot be replaced" if found.workloads else "no object of Karpenter",
            where="--with",
            remedy="pass NodePools, NodeOverlays, EC2NodeClasses or CapacityBuffers, and use "
            "--scale for workloads",
        )
    return replace(
        fleet,
        node_pools=_overridden(fleet.node_pools, found.node_pools),
        node_overlays=_overridden(fleet.node_overlays, found.node_overlays),
        node_classes=_overridden(fleet.node_classes, found.node_classes),
        capacity_buffers=_overridden(fleet.capacity_buffers, found.capacity_buffers),
    )


def _overridden(known: Sequence[Resource], fresh: Sequence[Resource]) -> tuple[Resource, ...]:
    merged = {r.order: r for r in (*known, *fresh)}
    return tuple(merged[key] for key in sorted(merged))


def _supposed(cluster: ObservedCluster, what_if: WhatIf, now: datetime) -> ObservedCluster:
    """Return the cluster after what is supposed; autoscalers then keep the replicas stated."""
    found = suppose(cluster.snapshot, what_if, now)
    return cluster._replace(
        snapshot=found.snapshot,
        findings=(*cluster.findings, *found.findings),
        scaled=(),
        maximum=None,
        captured=None,
    )


def _without_zones(facts: Inputs, what_if: WhatIf) -> Inputs:
    """Return the facts without an offering in the zones that are down."""
    from msgspec.structs import replace

    gone = offerings_in(facts.catalog, what_if.zones)
    return replace(facts, unavailable=[*facts.unavailable, *sorted(gone)]) if gone else facts


def _own_inputs(request: FleetRequest, head: SourceFiles, beside: BesideKarpenter | None) -> Inputs:
    """Return the inputs of the running fleet, with a finding about nodes of others."""
    from msgspec.structs import replace

    from reconciler.assembly.assembly import live_inputs

    facts = live_inputs(request, source=head)
    if beside is None:
        return facts
    return replace(facts, diagnostics=(*facts.diagnostics, *beside.findings))


def _time_of_plan(
    request: FleetRequest, committed_at: datetime | None, captured: Snapshot | None
) -> datetime:
    """Return the time that a plan of files is made for.

    It is that of the commit, if the request says so, but not before the newest object of the
    snapshot existed, and not in the future.
    """
    clock = current_time(request.now)
    if committed_at is None or committed_at.year not in YEARS:
        return clock
    return min(clock, max([committed_at, *_times_of(captured)]))


def _times_of(captured: Snapshot | None) -> Iterator[datetime]:
    """Yield when a snapshot was captured, and when its objects were created."""
    if captured is None:
        return
    if captured.captured_at is not None:
        yield captured.captured_at
    for kind in (captured.nodes, captured.node_claims, captured.pods):
        created = (found.metadata.creation_timestamp for found in kind)
        yield from filter(None, created)


def _cluster_of_base(
    base: sources.Base, request: FleetRequest, cluster: ObservedCluster, now: datetime
) -> ClusterState | None:
    """Return a captured cluster with the replicas of the base, None if the head has the same."""
    if cluster.captured is None or base.fleet is None:
        return None
    own = scaled_cluster(cluster.captured, request, base.fleet, now).snapshot
    if own.pods == cluster.snapshot.pods:
        return None
    return cluster_state(identify_nodes(own).snapshot)


def _with_scaled(facts: Inputs, cluster: ObservedCluster) -> Inputs:
    """Return the facts with the scaled workloads, and with the cluster at their maximum."""
    from msgspec.structs import replace

    most = cluster.maximum
    maximum = None if most is None else cluster_state(identify_nodes(most).snapshot)
    return replace(facts, scaled=cluster.scaled, maximum=maximum)


def _with_simulated_change(facts: Inputs, request: FleetRequest, snapshot: Snapshot) -> Inputs:
    """Return the facts with a simulation of the change, in a cluster or in a folder."""
    from msgspec.structs import replace

    from reconciler.simulate.change import SimulatedChange

    observed = identify_nodes(snapshot).snapshot if facts.observation != "workloads" else None
    catalogs = (facts.catalog, (facts.against or facts).catalog)
    request = with_fields(request, cost_by=str(facts.cost_by))
    return replace(facts, simulation=SimulatedChange(request, facts.now, observed, *catalogs))


class _PlanQuestion(NamedTuple):
    """The inputs of a plan of a cluster: a revision, what it can launch, and how to plan it."""

    request: FleetRequest
    revision: Revision
    fleet: Fleet
    findings: tuple[Diagnostic, ...]
    resolved: Resolved
    catalog: Catalog
    is_live: bool = False

    def inputs_from_objects(self, snapshot: Snapshot, now: datetime) -> Inputs:
        """Return the inputs from objects alone, without records of this program."""
        request, settings = self.request, self.resolved.settings
        acts = settings.decide is DecisionRules.KARPENTER
        known = identify_nodes(snapshot, trusts_initialized=acts)
        is_captured = request.snapshot is not None or self.is_live
        marks = _evidence(snapshot) if is_captured else {}
        return Inputs(
            fleet=self.fleet,
            cluster=cluster_state(known.snapshot),
            catalog=self.catalog,
            settings=settings,
            now=now,
            revision=self.revision,
            base=snapshot.live or None,
            compared_with="cluster" if snapshot.live else "",
            live=snapshot.live,
            unready_classes=snapshot.unready_classes,
            diagnostics=(
                *self.findings,
                *known.findings,
                *_karpenter_findings(snapshot, settings),
                *_old_snapshot_warning(snapshot.captured_at, request),
            ),
            any_class=request.catalog is not None or has_other_provider(self.fleet, settings),
            allow_removal=request.allow_removal,
            digests=sources.digests_of(
                self.fleet, join_fingerprints(marks), self.catalog, self.resolved
            ),
            observation=self._observation,
            observed_at=None if self.is_live else snapshot.captured_at,
            observed=marks,
            actor="karpenter" if acts else "",
        )

    @property
    def _observation(self) -> ObservationSource:
        if self.is_live:
            return "cluster"
        return "snapshot" if self.request.snapshot is not None else "workloads"

    def inputs_from_records(self, snapshot: Snapshot, now: datetime) -> Inputs | None:
        """Return the inputs as the engine makes them; None for a snapshot without records.

        Raises:
            UnreadableError: the records are not of this release.
            UsageError: they are those of another fleet.
        """
        from msgspec.structs import replace

        found = captured_fleet(snapshot)
        if found is None:
            return None
        from reconciler.assembly.fleetsource import planned_fleet
        from reconciler.engine.records import Discovery

        request, fleet = self.request, self.fleet
        classes = with_observed_status(node_classes(fleet), snapshot.live)
        desired = planned_fleet(
            fleet,
            classes.values(),
            self.revision,
            self.catalog,
            self.resolved,
            settings=settings_for(found.records, self.resolved),
            diagnostics=self.findings,
            allow_removal=request.allow_removal,
            discovery=Discovery(found.records.memory),
        )
        at = max(now, found.records.at) if request.is_at_commit_time else now
        inputs = found.inputs(desired, at)
        return replace(
            inputs,
            observed_at=found.records.at,
            diagnostics=(*inputs.diagnostics, *_old_snapshot_warning(found.records.at, request)),
            any_class=request.catalog is not None,
            unready_classes=snapshot.unready_classes,
        )


def _karpenter_findings(snapshot: Snapshot, settings: Settings) -> tuple[Diagnostic, ...]:
    """Return whose nodes these are: a warning about a Karpenter that runs, unless it decides."""
    if settings.decide is DecisionRules.KARPENTER:
        return acting_findings(snapshot.node_claims)
    if settings.kube_allow_karpenter or not snapshot.pods:
        return ()
    return karpenter_findings(running_karpenters(snapshot.pods))


def _old_snapshot_warning(at: datetime | None, request: FleetRequest) -> Iterator[Diagnostic]:
    """Yield a warning about a snapshot that is too old to rely on."""
    now = current_time(request.now)
    if at is None or now - at <= request.snapshot_max_age:
        return
    yield Diagnostic(
        Severity.WARNING,
        "old-snapshot",
        f"the snapshot is {format_age(at, now)}, captured {format_time(at)}; "
        "the cluster may have changed since",
        hint="capture it again with `reconciler snapshot`, or raise --snapshot-max-age",
    )


def _evidence(snapshot: Snapshot) -> dict[str, str]:
    """Return the fingerprints that an approval of a plan from a file depends on."""
    found = dict(fingerprints(snapshot))
    for item in snapshot.live:
        if item["kind"] == "EC2NodeClass":
            status = decode(item.get("status") or {}, EC2NodeClassStatus)
            found[f"EC2NodeClass {item['metadata']['name']}"] = fingerprint(
                node_class_facts(status)
            )
    return found
