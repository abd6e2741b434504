"""What a plan is asked for: of files and a snapshot, or of the fleet that runs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from reconciler.cli.shared import request as given
from reconciler.cli.shared.moment import present

if TYPE_CHECKING:
    import argparse

    from reconciler.catalog.catalog import Catalog
    from reconciler.cli.shared.timings import Timings
    from reconciler.desired.fleet import Fleet
    from reconciler.desired.lock import Lock
    from reconciler.desired.settings.layers import Resolved
    from reconciler.plan.make.inputs import Inputs


def read_inputs(args: argparse.Namespace, phase: Timings) -> Inputs:
    """Return everything that the arguments name.

    Raises:
        UsageError: an argument or setting is wrong.
        UnreadableError: an input cannot be read.
        InvalidFleetError: the desired state has errors.
    """
    now = present(args.now)
    with phase("read"):
        head = given.read_source(args)
        fleet, findings = given.read_desired(
            head, any_class=args.catalog is not None, allow_empty=given.may_be_empty(args)
        )
        resolved = given.settings_of(args, fleet)
        if is_live(args, resolved):
            from reconciler.cli.wiring.assembly import live_inputs

            return live_inputs(args)
        base = given.read_base(args)
        snapshot, observed, more = given.read_cluster(args, fleet, now)
    with phase("catalog"):
        catalog = read_types(args, resolved, fleet.lock)
    from msgspec.structs import replace

    from reconciler.observed.identity import identified
    from reconciler.observed.state import cluster_state
    from reconciler.plan.make.inputs import Inputs

    known = identified(snapshot)
    inputs = Inputs(
        fleet=fleet,
        cluster=cluster_state(known.snapshot),
        catalog=catalog,
        settings=resolved.settings,
        now=now,
        revision=replace(head.revision, base=base.head) if base is not None else head.revision,
        base=base.objects if base is not None else snapshot.live or None,
        compared_with="base" if base is not None else "cluster" if snapshot.live else "",
        live=snapshot.live,
        diagnostics=(*findings, *more, *known.findings),
        any_class=args.catalog is not None,
        allow_removal=frozenset(args.allow_removal),
        digests=given.digests_of(fleet, observed, catalog, resolved),
    )
    return inputs if base is None else replace(inputs, against=asked_of(base, args, inputs))


def read_types(args: argparse.Namespace, resolved: Resolved, lock: Lock | None) -> Catalog:
    """Return the catalogue of ``--catalog``, else that of the region.

    It is the bundled one, unless there is a lock or the settings say otherwise.
    """
    from reconciler.model.settings import DataSource

    settings = resolved.settings
    wants_live = DataSource.LIVE in (settings.instance_types_from, settings.prices_from)
    if args.catalog is None and lock is None and not wants_live and settings.price_book is None:
        from reconciler.catalog.catalog import bundled

        return bundled(settings.region)
    from reconciler.cli.shared import catalogs

    asking = None
    if args.catalog is None:
        from reconciler.cli.wiring.account import asking_of

        asking = asking_of(args, resolved, by_default=False)
    return catalogs.read_types(args, resolved, lock, asking)


def asked_of(base: given.Base, args: argparse.Namespace, head: Inputs) -> Inputs | None:
    """Return the question that ``head`` asks, asked of the base; None if that is not valid.

    Without a snapshot the cluster is to run the base's own workloads, on the nodes that are there.
    """
    if base.fleet is None:
        return None
    from msgspec.structs import replace

    from reconciler.observed.state import cluster_state

    cluster = head.cluster
    if args.snapshot is None:
        cluster = cluster_state(given.read_cluster(args, base.fleet, head.now)[0])
        if head.cluster.nodes:
            from reconciler.plan.rest.world import with_workloads

            cluster = with_workloads(head.cluster, cluster, head.now)
    resolved = given.settings_of(args, base.fleet)
    catalog = head.catalog
    if _locked(base.fleet) != _locked(head.fleet):
        catalog = read_types(args, resolved, base.fleet.lock)
    return replace(
        head,
        fleet=base.fleet,
        cluster=cluster,
        catalog=catalog,
        settings=resolved.settings,
        base=None,
        diagnostics=(),
    )


def _locked(fleet: Fleet) -> str:
    """Return the digest of the fleet's lock, empty without one."""
    return fleet.lock.digest if fleet.lock is not None else ""


def is_live(args: argparse.Namespace, resolved: Resolved) -> bool:
    """Return whether the plan is of the fleet that runs, and not of a snapshot or of files."""
    from reconciler.model.settings import ClusterKind

    return args.snapshot is None and resolved.settings.cluster == ClusterKind.EMBEDDED
