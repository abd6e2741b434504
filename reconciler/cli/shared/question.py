"""What a plan is asked for: of files and a snapshot, or of the fleet that runs."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Final, NamedTuple

from reconciler.cli.shared import sources
from reconciler.cli.shared.timings import present

if TYPE_CHECKING:
    from datetime import datetime

    from reconciler.catalog.catalog import Catalog
    from reconciler.cli.shared.request import FleetRequest
    from reconciler.cli.shared.timings import Timings
    from reconciler.desired.fleet import Fleet
    from reconciler.desired.lock import Lock
    from reconciler.desired.settings.layers import Resolved
    from reconciler.model.diagnostics import Diagnostic
    from reconciler.model.karpenter.nodeclass import EC2NodeClass
    from reconciler.observed.snapshot import Snapshot
    from reconciler.plan.make.inputs import Inputs
    from reconciler.plan.value.plan import Revision

    Resolve = Callable[[EC2NodeClass], EC2NodeClass]


def read_inputs(request: FleetRequest, phase: Timings) -> Inputs:
    """Return everything that the request names.

    Raises:
        UsageError: an argument or setting is wrong.
        UnreadableError: an input cannot be read.
        InvalidFleetError: the desired state has errors.
    """
    with phase("read"):
        head = sources.read_source(request)
        fleet, findings = sources.read_desired(
            head, any_class=request.catalog is not None, allow_empty=request.may_be_empty
        )
        resolved = sources.settings_of(request, fleet)
        if is_live(request, resolved):
            from reconciler.cli.wiring.assembly import live_inputs

            return live_inputs(request)
        now = present(request.now)
        base = sources.read_base(request)
        cluster = sources.read_cluster(request, fleet, now)
    with phase("catalog"):
        catalog = read_types(request, resolved, fleet.lock)
    asked = _Asked(request, head.revision, fleet, (*findings, *cluster.findings), resolved, catalog)
    facts = asked.of_records(cluster.snapshot, now) or asked.of_objects(cluster.snapshot, now)
    if base is None:
        return facts
    return _simulated(compared_with_base(base, request, facts), request, cluster.snapshot)


def _simulated(facts: Inputs, request: FleetRequest, snapshot: Snapshot) -> Inputs:
    """Return the facts with the change of a captured fleet, or of a folder, to be simulated."""
    if facts.against is None:
        return facts
    from msgspec.structs import replace

    from reconciler.cli.simulation.scenes import SimulatedChange
    from reconciler.observed.identity import identified

    observed = identified(snapshot).snapshot if request.snapshot is not None else None
    catalogs = (facts.catalog, facts.against.catalog)
    return replace(facts, simulation=SimulatedChange(request, facts.now, observed, *catalogs))


class _Asked(NamedTuple):
    """What is asked of a cluster: a revision, what it can launch, and how to plan it."""

    request: FleetRequest
    revision: Revision
    fleet: Fleet
    findings: tuple[Diagnostic, ...]
    resolved: Resolved
    catalog: Catalog

    def of_objects(self, snapshot: Snapshot, now: datetime) -> Inputs:
        """Return the question, asked of objects alone: nothing of ours is recorded in them."""
        from reconciler.observed.fingerprint import joined
        from reconciler.observed.identity import identified
        from reconciler.observed.state import cluster_state
        from reconciler.plan.make.inputs import Inputs

        request, known = self.request, identified(snapshot)
        is_captured = request.snapshot is not None
        marks = _evidence(snapshot) if is_captured else {}
        return Inputs(
            fleet=self.fleet,
            cluster=cluster_state(known.snapshot),
            catalog=self.catalog,
            settings=self.resolved.settings,
            now=now,
            revision=self.revision,
            base=snapshot.live or None,
            compared_with="cluster" if snapshot.live else "",
            live=snapshot.live,
            unready_classes=snapshot.unready_classes,
            diagnostics=(
                *self.findings,
                *known.findings,
                *_outdated(snapshot.captured_at, now, request),
            ),
            any_class=request.catalog is not None,
            allow_removal=request.allow_removal,
            digests=sources.digests_of(self.fleet, joined(marks), self.catalog, self.resolved),
            observation="snapshot" if is_captured else "workloads",
            observed_at=snapshot.captured_at,
            observed=marks,
        )

    def of_records(self, snapshot: Snapshot, now: datetime) -> Inputs | None:
        """Return the question, asked as the engine would; None of a snapshot without its records.

        Raises:
            UnreadableError: the records are not of this release.
            UsageError: they are those of another fleet.
        """
        from msgspec.structs import replace

        from reconciler.cli.wiring.captured import captured, classes_of, settings_for

        found = captured(snapshot)
        if found is None:
            return None
        from reconciler.desired.lock import pinned
        from reconciler.desired.objects import node_classes, node_pools
        from reconciler.engine.planning import PlannedFleet
        from reconciler.engine.records import Discovery

        request, fleet = self.request, self.fleet
        settings = settings_for(found.records, self.resolved, "--snapshot")
        classes = classes_of({c.name: c for c in node_classes(fleet)}, snapshot)
        lock = fleet.lock_for(settings.region)
        if lock is not None:
            classes = {name: pinned(c, lock.entry(name)) for name, c in classes.items()}
        digests = sources.digests_of(fleet, b"", self.catalog, self.resolved)
        desired = PlannedFleet(
            fleet=fleet,
            head=self.revision,
            tree=digests.git,
            node_pools=node_pools(fleet),
            classes=classes,
            settings=settings,
            catalog=self.catalog,
            diagnostics=self.findings,
            allow_removal=request.allow_removal,
            digests=digests,
            discovery=Discovery(found.records.memory),
        )
        asked = found.inputs(desired, now)
        return replace(
            asked,
            observed_at=found.records.at,
            diagnostics=(*asked.diagnostics, *_outdated(found.records.at, now, request)),
            any_class=request.catalog is not None,
            unready_classes=snapshot.unready_classes,
        )


def _outdated(at: datetime | None, now: datetime, request: FleetRequest) -> Iterator[Diagnostic]:
    """Yield a warning about a snapshot that is too old to rely on."""
    if at is None or now - at <= request.snapshot_max_age:
        return
    from reconciler.model.diagnostics import Diagnostic, Severity
    from reconciler.plan.render.wording import format_age, moment

    yield Diagnostic(
        Severity.WARNING,
        "old-snapshot",
        f"the snapshot is {format_age(at, now)}, captured {moment(at)}; "
        "the cluster may have changed since",
        hint="capture it again with `reconciler snapshot`, or raise --snapshot-max-age",
    )


def _evidence(snapshot: Snapshot) -> dict[str, str]:
    """Return what an approval of a plan from a file rests on."""
    from reconciler.model.json import decode
    from reconciler.model.karpenter.nodeclass import EC2NodeClassStatus
    from reconciler.observed.fingerprint import fingerprint, fingerprints, node_class_facts

    found = dict(fingerprints(snapshot))
    for item in snapshot.live:
        if item["kind"] == "EC2NodeClass":
            status = decode(item.get("status") or {}, EC2NodeClassStatus)
            found[f"EC2NodeClass {item['metadata']['name']}"] = fingerprint(
                node_class_facts(status)
            )
    return found


def read_types(request: FleetRequest, resolved: Resolved, lock: Lock | None) -> Catalog:
    """Return the catalogue of ``--catalog``, else that of the region.

    It is the bundled one, unless there is a lock or the settings say otherwise.
    """
    from reconciler.model.settings import DataSource

    settings = resolved.settings
    wants_live = DataSource.LIVE in (settings.instance_types_from, settings.prices_from)
    if request.catalog is None and lock is None and not wants_live and settings.price_book is None:
        from reconciler.catalog.catalog import bundled

        return bundled(settings.region)
    from reconciler.cli.shared import catalogs

    asking = None
    if request.catalog is None:
        from reconciler.cli.wiring.account import asking_of

        asking = asking_of(request, resolved, by_default=False)
    return catalogs.read_types(request, resolved, lock, asking)


def compared_with_base(
    base: sources.Base, request: FleetRequest, facts: Inputs, resolve: Resolve | None = None
) -> Inputs:
    """Return the facts with the changes since ``base``, and with the question asked of that too."""
    from msgspec.structs import replace

    facts = replace(
        facts,
        base=base.objects,
        compared_with="base",
        revision=replace(facts.revision, base=base.head),
        base_policies=base.policies,
    )
    return replace(facts, against=asked_of(base, request, facts, resolve))


def asked_of(
    base: sources.Base, request: FleetRequest, head: Inputs, resolve: Resolve | None = None
) -> Inputs | None:
    """Return the question that ``head`` asks, asked of the base; None if that is not valid.

    Both are asked of one observation. Where there is no real cluster, the base is to run its own
    workloads, on the nodes that are there. ``resolve`` looks the base's own node classes up in the
    account.
    """
    if base.fleet is None:
        return None
    from msgspec.structs import replace

    from reconciler.observed.state import cluster_state

    cluster, live = head.cluster, head.live
    if head.observation in ("embedded", "workloads"):
        own = sources.read_cluster(request, base.fleet, head.now).snapshot
        cluster = cluster_state(own)
        if head.cluster.nodes:
            from reconciler.plan.rest.world import with_workloads

            cluster = with_workloads(head.cluster, cluster, head.now)
    if resolve is not None:
        from reconciler.desired.objects import node_classes
        from reconciler.engine.planning import looked_up

        live = [looked_up(resolve(c)) for c in node_classes(base.fleet)]
    resolved = sources.settings_of(request, base.fleet)
    catalog = head.catalog
    if _locked(base.fleet) != _locked(head.fleet):
        catalog = read_types(request, resolved, base.fleet.lock)
    return replace(
        head,
        fleet=base.fleet,
        cluster=cluster,
        catalog=catalog,
        settings=resolved.settings,
        base=None,
        live=live,
        diagnostics=(),
    )


def _locked(fleet: Fleet) -> str:
    """Return the digest of the fleet's lock, empty without one."""
    return fleet.lock.digest if fleet.lock is not None else ""


def is_live(request: FleetRequest, resolved: Resolved) -> bool:
    """Return whether the plan is of the fleet that runs, and not of a snapshot or of files.

    ``cluster`` is ``kubeconfig`` where nobody says otherwise, for those who act. Without a
    cluster to be found, and on the machine of somebody who only wants to see what a folder means,
    a plan is made from the workloads in it. So a cluster counts where something names it: the
    settings, the environment (``KUBECONFIG``, a pod's service account), or records of this fleet.
    """
    from reconciler.desired.settings.layers import DEFAULT
    from reconciler.model.settings import ClusterKind

    cluster = resolved.settings.cluster
    if request.snapshot is not None or cluster != ClusterKind.KUBECONFIG:
        return request.snapshot is None and cluster == ClusterKind.EMBEDDED
    if any(resolved.origins[key] != DEFAULT for key in _NAMING_A_CLUSTER):
        return True
    return any(os.environ.get(name) for name in _ENVIRONMENT) or _is_recorded(request, resolved)


_NAMING_A_CLUSTER: Final = ("cluster", "kubernetes.kubeconfig", "kubernetes.context")
_ENVIRONMENT: Final = ("KUBECONFIG", "KUBERNETES_SERVICE_HOST")


def _is_recorded(request: FleetRequest, resolved: Resolved) -> bool:
    """Return whether the folder has a state: who has applied a fleet plans it as it runs.

    A state that came with the repository does not count.
    """
    from reconciler.adapters.database.location import may_exist
    from reconciler.cli.shared.records import state_location
    from reconciler.model.errors import StateError

    try:
        location = state_location(request.path, resolved)
    except StateError:
        return False
    return may_exist(location)
