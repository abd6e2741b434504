"""The base of a comparison: the request for the head, applied to another commit."""

from __future__ import annotations

import os
from dataclasses import replace as replace_request
from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from reconciler.assembly.inputs import sources
from reconciler.assembly.snapshots import read_cluster
from reconciler.desired.fleet import Fleet
from reconciler.desired.objects import node_classes, node_pools
from reconciler.desired.settings.layers import DEFAULT, OF_ZONES
from reconciler.desired.sources.chart import CHART
from reconciler.desired.sources.unread import new_failures
from reconciler.desired.workloads.pods import workloads_of
from reconciler.model.diagnostics import Diagnostic, Severity
from reconciler.model.errors import InvalidFleetError, UnreadableError, UsageError
from reconciler.model.settings import DataSource, DecisionRules
from reconciler.model.text.counting import format_list
from reconciler.model.text.identifiers import short_commit
from reconciler.model.text.paths import is_below
from reconciler.model.text.quoting import quote_value
from reconciler.observed.allocation import choose_grouping
from reconciler.observed.snapshot import Snapshot
from reconciler.observed.state import cluster_state
from reconciler.source.endings import GENERATORS
from reconciler.source.resource import EC2

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from reconciler.assembly.inputs.request import FleetRequest
    from reconciler.catalog.catalog import Catalog
    from reconciler.desired.lock import Lock
    from reconciler.desired.settings.layers import Resolved
    from reconciler.model.karpenter.nodeclass import EC2NodeClass
    from reconciler.model.kubernetes.pod import Pod
    from reconciler.model.settings import Settings
    from reconciler.observed.state import ClusterState
    from reconciler.plan.make.inputs import Inputs

    Resolve = Callable[[EC2NodeClass], EC2NodeClass]

"""Files that objects are made from, by tools of which only Helm is run, for the files of charts."""

_UNREAD_NAMED: Final = 3

_NODES_SHOWN: Final = 10


def has_other_provider(fleet: Fleet, settings: Settings) -> bool:
    """Return whether Karpenter decides, and no NodePool has a node class of EC2."""
    if settings.decide is not DecisionRules.KARPENTER:
        return False
    groups = {pool.spec.template.spec.node_class_ref.group for pool in node_pools(fleet)}
    return bool(groups) and EC2 not in groups


def read_types(
    request: FleetRequest,
    resolved: Resolved,
    lock: Lock | None,
    learned: Callable[[Settings], Catalog | None] = lambda _: None,
) -> Catalog:
    """Return the catalog of ``--catalog``, else that of the region.

    It is the bundled one, unless there is a lock or the settings require another one. ``learned``
    returns the types of another cloud, as its nodes show them; None where they are EC2's.
    """
    settings = resolved.settings
    if request.catalog is None and (found := learned(settings)) is not None:
        return found
    wants_live = DataSource.LIVE in (settings.instance_types_from, settings.prices_from)
    if request.catalog is None and lock is None and not wants_live and settings.price_book is None:
        from reconciler.catalog.catalog import bundled_catalog

        return bundled_catalog(settings.region)
    from reconciler.assembly.inputs import catalogs

    query = None
    if request.catalog is None:
        from reconciler.assembly.account import aws_query_of

        query = aws_query_of(request, resolved, by_default=False)
    return catalogs.read_types(request, resolved, lock, query)


def learned_types(fleet: Fleet, snapshot: Snapshot) -> Callable[[Settings], Catalog | None]:
    """Return what learns the instance types of another cloud from the nodes of a cluster."""

    def learn(settings: Settings) -> Catalog | None:
        if not has_other_provider(fleet, settings):
            return None
        from reconciler.catalog.learned import learned_catalog

        return learned_catalog(snapshot.nodes, snapshot.node_claims)

    return learn


def with_base_inputs(
    base: sources.Base,
    request: FleetRequest,
    facts: Inputs,
    resolve: Resolve | None = None,
    cluster: ClusterState | None = None,
) -> Inputs:
    """Return the facts with the changes since ``base``, and with the inputs of the base.

    ``cluster`` is a captured one with the replicas of the base, None if they are those of the head.

    Raises:
        InvalidFleetError: a submodule replaces files of the base, or a source can no longer be
            rendered: their objects must not look removed.
    """
    replaced = tuple(_replacing_submodules(base, facts.diagnostics))
    failed = new_failures(facts.diagnostics, base.read)
    if replaced or failed:
        raise InvalidFleetError((*replaced, *failed))
    if is_new_fleet(base, facts):
        return _with_new_fleet(base, facts)
    facts = replace(
        facts,
        base=base.objects,
        compared_with="base",
        revision=replace(facts.revision, base=base.head),
        base_policies=base.policies,
        diagnostics=(
            *facts.diagnostics,
            *_migrated_base(base),
            *_renamed_fleet(base, request, facts),
            *_unstated_region(base, request, facts),
            *_unread_changes(request),
        ),
    )
    against = base_inputs(base, request, facts, resolve)
    if against is None:
        return replace(facts, diagnostics=(*facts.diagnostics, _invalid_base(base)))
    if cluster is not None:
        against = replace(against, cluster=cluster)
    grouping = choose_grouping(request.cost_by, _paying_pods((against, facts)))
    return replace(facts, against=against, cost_by=grouping)


def _paying_pods(sides: Iterable[Inputs]) -> Iterator[Pod]:
    """Yield the pods of both revisions: those that run, and those of files beside a cluster."""
    for side in sides:
        yield from side.cluster.pods
        if side.observation != "workloads":
            yield from workloads_of(side.fleet)[0].pods


def _renamed_fleet(base: sources.Base, request: FleetRequest, head: Inputs) -> Iterator[Diagnostic]:
    """Yield that a fleet has another name because its folder was renamed."""
    if request.base_path is None or base.fleet is None:
        return
    before = sources.settings_of(request.at_base, base.fleet).settings.fleet
    after = head.settings.fleet
    if before == after:
        return
    yield Diagnostic(
        Severity.WARNING,
        "fleet-renamed",
        f"Fleet {quote_value(before)} is now named {quote_value(after)}, as its folder is: apply "
        f"and run take it as another fleet, and refuse it while {quote_value(before)} has nodes in "
        "the cluster; Karpenter does not use the name",
        hint=f"write `fleet: {before}` into reconciler.yaml",
    )


def _migrated_base(base: sources.Base) -> Iterator[Diagnostic]:
    """Yield that the base is compared as its migration to the current version of the API."""
    if base.migrated_from and base.fleet is not None:
        yield Diagnostic(
            Severity.INFO,
            "base-migrated",
            f"the base {short_commit(base.head or '')} has objects of "
            f"{format_list(base.migrated_from)}; it is compared as `reconciler init --from` "
            "migrates it to v1",
        )


def _replacing_submodules(
    base: sources.Base, findings: Iterable[Diagnostic]
) -> Iterator[Diagnostic]:
    """Yield an error for each submodule of the head where the base has an object of the fleet."""
    files = {resource.file for resource in base.fleet.resources} if base.fleet else set()
    for finding in findings:
        if finding.code == "submodule" and finding.place is not None:
            path = finding.place.file
            if any(is_below(file, path) for file in files):
                yield Diagnostic(
                    Severity.ERROR, finding.code, finding.message, finding.place, hint=finding.hint
                )


def is_new_fleet(base: sources.Base, head: Inputs) -> bool:
    """Return whether the head has the first NodePools of a fleet.

    If nodes are observed, those of a base without a NodePool are of NodePools that it deleted.
    """
    if not head.fleet.node_pools:
        return False
    is_empty = base.fleet is not None and not base.fleet.node_pools
    return base.is_missing or (is_empty and not head.cluster.nodes)


def without_missing_base(request: FleetRequest) -> tuple[FleetRequest, str]:
    """Return the request, without a base that has no NodePool, and then why all of it is new.

    With a snapshot, the nodes of a base without a NodePool are of NodePools that it deleted.

    Raises:
        InvalidFleetError: there is an error in the head, or it cannot render a source of the base.
    """
    base = sources.read_base(request)
    if base is None:
        return request, ""
    source = sources.read_source(request)
    head, findings = sources.read_desired(source, any_class=True, allow_empty=True)
    if failed := new_failures(findings, base.read):
        raise InvalidFleetError(failed)
    request = with_one_region(request, head, base)
    is_empty = base.fleet is not None and not base.fleet.node_pools
    if not base.is_missing and (request.snapshot is not None or not is_empty):
        return request, ""
    return replace_request(request, base=None), _new_fleet_message(base)


def with_one_region(request: FleetRequest, head: Fleet, base: sources.Base | None) -> FleetRequest:
    """Return the request, with the region of both revisions if the zones of only one tell it.

    Otherwise, a change that removes a requirement on zones would seem to leave the region.
    """
    if base is None or base.fleet is None or not base.fleet.node_pools or not head.node_pools:
        return request
    sides = (sources.settings_of(request, head), sources.settings_of(request.at_base, base.fleet))
    if {side.origins["aws.region"] for side in sides} != {DEFAULT, OF_ZONES}:
        return request
    (derived,) = (side for side in sides if side.origins["aws.region"] == OF_ZONES)
    region = f"aws.region={derived.settings.region}"
    return replace_request(request, settings=(*request.settings, region))


def _unread_names(folder: str, changed: Iterable[str]) -> list[str]:
    """Return the changed files below a folder that make objects, and that no plan reads."""
    paths = (path for path in changed if path.endswith(GENERATORS) and is_below(path, folder))
    names = (os.path.relpath(path, folder).replace(os.sep, "/") for path in paths)
    return [name for name in names if not _is_of_chart(folder, name)]


def _unread_changes(request: FleetRequest) -> Iterator[Diagnostic]:
    """Yield that changed files, which objects may be made from, are not read."""
    if request.base is None or request.repo or request.ref:
        return
    from reconciler.adapters.git.revision import changed_files

    folder = os.path.realpath(request.path or ".")
    try:
        found = changed_files(folder, request.base, ())
    except (UsageError, UnreadableError):
        return  # without a common ancestor, the changes of the head are not known
    unread = _unread_names(folder, [os.path.join(found.top, path) for path in found.paths])
    if not unread:
        return
    verb, them = ("changes", "it") if len(unread) == 1 else ("change", "them")
    yield Diagnostic(
        Severity.WARNING,
        "change-not-read",
        f"{format_list(map(quote_value, unread), _UNREAD_NAMED)} {verb}, which no plan reads: "
        f"objects that are made from {them} are not included",
        hint="pass the objects that it renders with -f",
    )


def _is_of_chart(folder: str, name: str) -> bool:
    """Return whether a file is in a chart of the fleet folder, which is rendered."""
    parts = name.split("/")[:-1]
    return any(
        os.path.isfile(os.path.join(folder, *parts[:depth], CHART))
        for depth in range(len(parts) + 1)
    )


def _unstated_region(
    base: sources.Base, request: FleetRequest, head: Inputs
) -> Iterator[Diagnostic]:
    """Yield that only the base tells the region: later plans, without it, take another one."""
    alone = replace_request(request, settings=request.settings[:-1])
    if not request.settings or with_one_region(alone, head.fleet, base) != request:
        return
    later = sources.settings_of(alone, head.fleet)
    if later.origins["aws.region"] != DEFAULT:
        return
    region = head.settings.region
    yield Diagnostic(
        Severity.WARNING,
        "region-unstated",
        f"This change removes the last zone that tells the region: it is compared in {region}, "
        f"but later plans take {later.settings.region}",
        hint=f"write `aws: {{region: {region}}}` into reconciler.yaml",
    )


def _new_fleet_message(base: sources.Base) -> str:
    return (
        f"the base {short_commit(base.head or '')} has no NodePool in this folder: the fleet is "
        "new, so there is nothing to compare it with"
    )


def _with_new_fleet(base: sources.Base, head: Inputs) -> Inputs:
    """Return the facts of a fleet that the base does not have.

    Without a node, all of its cost is that of the change.
    """
    finding = Diagnostic(
        Severity.INFO,
        "fleet-new",
        _new_fleet_message(base),
        hint="if its folder was moved or renamed, its base is found by its name, or by its files "
        "if at least half of them are the same",
    )
    head = replace(
        head,
        revision=replace(head.revision, base=base.head),
        base_policies=base.policies,
        diagnostics=(*head.diagnostics, finding),
    )
    if head.cluster.nodes:
        return head
    before = head.fleet
    nothing = replace(
        head,
        fleet=Fleet(config=before.config, config_file=before.config_file, lock=before.lock),
        cluster=cluster_state(Snapshot()),
        base=None,
        live=(),
        diagnostics=(),
        scaled=(),
        maximum=None,
    )
    return replace(head, base=base.objects, compared_with="base", against=nothing)


def _invalid_base(base: sources.Base) -> Diagnostic:
    """Return the finding that there is no plan to compare with."""
    errors = len(base.errors)
    why = str(base.errors[0]) if errors else "its region does not exist"
    more = f" (and {errors - 1:,} more)" if errors > 1 else ""
    return Diagnostic(
        Severity.WARNING,
        "base-invalid",
        f"the base {short_commit(base.head or '')} has no plan, so what this change costs is not "
        f"known, and objects of it that cannot be read count as created: {why}{more}",
        hint="compare with a commit that is valid",
    )


def base_inputs(
    base: sources.Base, request: FleetRequest, head: Inputs, resolve: Resolve | None = None
) -> Inputs | None:
    """Return the inputs of the head with the base's fleet; None if the base cannot be planned.

    Both use the same observation. Without a real cluster, the base runs its own workloads on the
    existing nodes. ``resolve`` looks up the base's own node classes in the account.
    """
    if base.fleet is None:
        return None
    cluster, live = head.cluster, head.live
    if head.observation in ("embedded", "workloads"):
        own = read_cluster(request, base.fleet, head.now).snapshot
        cluster = cluster_state(own)
        if head.cluster.nodes:
            from reconciler.plan.rest.world import with_workloads

            cluster = with_workloads(head.cluster, cluster, head.now)
    if resolve is not None:
        from reconciler.engine.planning import resolved_object

        live = [resolved_object(resolve(c)) for c in node_classes(base.fleet)]
    resolved = sources.settings_of(request, base.fleet)
    catalog = head.catalog
    moves = resolved.settings.region != head.settings.region
    if moves or _lock_digest(base.fleet) != _lock_digest(head.fleet):
        try:
            catalog = read_types(request, resolved, base.fleet.lock)
        except UsageError:
            return None  # its region does not exist
    return replace(
        head,
        fleet=base.fleet,
        cluster=cluster,
        catalog=catalog,
        settings=resolved.settings,
        base=None,
        live=live,
        diagnostics=(),
        region_before="",
        scaled=(),
        maximum=None,
    )


def emptied_request(request: FleetRequest) -> FleetRequest | None:
    """Return the request for a change that deletes every NodePool; None if it is another one.

    The nodes of the deleted NodePools may go: the comparison shows what becomes of their pods.

    Raises:
        UnreadableError: the folder or the base cannot be read.
    """
    if request.base is None or request.is_removed:
        return None
    emptied = replace_request(request, is_emptied=True)
    source = sources.read_source(emptied)
    try:
        fleet, _ = sources.read_desired(source, any_class=True, allow_empty=True)
    except InvalidFleetError:
        return None  # reported where the folder is validated
    deleted = pools_of_base(request)
    if fleet.node_pools or not deleted:
        return None
    return replace_request(emptied, allow_removal=request.allow_removal | deleted)


def pools_of_base(request: FleetRequest) -> frozenset[str]:
    """Return the names of the NodePools of the base."""
    base = sources.read_base(request)
    objects = base.objects if base is not None else ()
    return frozenset(o["metadata"]["name"] for o in objects if o["kind"] == "NodePool")


def with_removal(inputs: Inputs, request: FleetRequest) -> Inputs:
    """Return the inputs with a finding that every NodePool is gone, and its nodes with it."""
    pools = request.allow_removal
    nodes = sorted(n.name for n in inputs.cluster.nodes if n.node_pool in pools)
    going = f"; its nodes go: {format_list(nodes, _NODES_SHOWN)}" if nodes else "; its nodes go"
    name = quote_value(inputs.settings.fleet)
    if request.is_removed:
        finding = Diagnostic(
            Severity.WARNING,
            "fleet-removed",
            f"fleet {name} is no longer in {quote_value(request.path or '.')} or elsewhere{going}",
            hint="restore its folder and its name, unless it should be removed",
        )
    else:
        finding = Diagnostic(
            Severity.WARNING,
            "fleet-emptied",
            f"fleet {name} has no NodePool any more "
            f"(deleted: {format_list(sorted(pools), _NODES_SHOWN)}){going}",
            hint="restore a NodePool, or remove the fleet with its folder: `apply` and `run` "
            "refuse a fleet without a NodePool",
        )
    others = tuple(d for d in inputs.diagnostics if d.code != "empty-fleet")
    return replace(inputs, diagnostics=(finding, *others))


def _lock_digest(fleet: Fleet) -> str:
    """Return the digest of the fleet's lock, empty without one."""
    return fleet.lock.digest if fleet.lock is not None else ""


def expect_one_region(before: str, after: str) -> None:
    """Refuse to simulate a change that an engine would refuse.

    Raises:
        UsageError: the regions differ.
    """
    if before != after:
        raise UsageError(
            f"the region changes from {before} to {after}, which `apply` and `run` refuse while "
            "the fleet has nodes",
            where="aws.region",
            remedy="simulate each commit without --base",
        )
