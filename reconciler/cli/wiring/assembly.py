"""The ports of one command, put together: to act, to look, or to take over."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from dataclasses import replace as with_fields
from typing import TYPE_CHECKING, Final

from reconciler.cli.wiring.account import compute_of, connections, hearing
from reconciler.cli.wiring.cluster import arrivals, cluster_of
from reconciler.cli.wiring.fleetsource import FleetSource
from reconciler.cli.wiring.ground import (
    copy_state,
    discovery_of,
    expect_cluster_name,
    ground_of,
    is_named,
    is_real,
    recorded_journal,
)
from reconciler.cli.wiring.imitation import Imitation
from reconciler.model.diagnostics import Diagnostic, Severity

if TYPE_CHECKING:
    import argparse

    from reconciler.adapters.aws.checks import Checks
    from reconciler.adapters.aws.nodeclass.validation import Validation
    from reconciler.adapters.database.state import DatabaseState
    from reconciler.cli.maintenance.takeover import Takeover
    from reconciler.cli.shared.catalogs import CatalogInForce
    from reconciler.engine.world import World
    from reconciler.model.karpenter.nodeclass import EC2NodeClass
    from reconciler.model.settings import Settings
    from reconciler.plan.make.inputs import Inputs
    from reconciler.ports.cloud import Compute
    from reconciler.ports.progress import Notifier


# What ``reconciler check`` looks with.


@dataclass(frozen=True)
class CheckBench:
    """What ``reconciler check`` looks with: a fleet's classes, and AWS as it is found there."""

    settings: Settings
    classes: Sequence[EC2NodeClass]
    checks: Checks
    validation: Validation
    compute: Compute
    catalog: CatalogInForce

    def cpus_of(self, instance_type: str) -> float:
        """Return the vCPUs of an instance type, 0 where the catalogue does not know it."""
        kind = self.catalog.get(instance_type)
        return 0.0 if kind is None else kind.capacity.get("cpu", 0) / 1000


def check_bench(args: argparse.Namespace, imitation: Imitation | None = None) -> CheckBench:
    """Return what the checks of a fleet need; nothing of it writes."""
    from reconciler.adapters.aws.checks import Checks
    from reconciler.adapters.aws.nodeclass.images import types_of
    from reconciler.adapters.aws.nodeclass.validation import Validation
    from reconciler.cli.shared import request
    from reconciler.desired.objects import node_classes

    ground = ground_of(args, imitation)
    settings, catalog, imitation = ground.settings, ground.catalog, ground.imitation
    clock = imitation.clock
    connect = imitation.connect or connections().of(settings)
    fleet, _ = request.read_desired(request.read_source(args), any_class=False)
    return CheckBench(
        settings,
        node_classes(fleet),
        Checks(connect, settings, clock),
        Validation(connect("ec2", 1), settings, types_of(catalog.current, settings), clock),
        compute_of(settings, catalog, imitation),
        catalog,
    )


UNNAMED: Final = Diagnostic(
    Severity.WARNING,
    "cluster-not-named",
    "clusterName is not set; `apply` and `run` require it in a real AWS account",
    hint="set clusterName in reconciler.yaml",
)


@dataclass(frozen=True)
class Assembly:
    """A world with what stands behind it, for one command."""

    world: World
    source: FleetSource
    state: DatabaseState
    settings: Settings


@contextmanager
def assembled(
    args: argparse.Namespace,
    notifier: Notifier,
    imitation: Imitation | None = None,
    *,
    sleeps: bool = False,
) -> Iterator[Assembly]:
    """Put a world together, and hold the lease of its fleet for as long as it is used.

    A command that ``sleeps`` between two passes is woken by pending pods.

    Raises:
        UnnamedClusterError: nobody has named the cluster of a real account.
        LockedError: another process holds this fleet.
        StateError: the recorded state cannot be opened.
    """
    from reconciler.adapters.database.state import open_state
    from reconciler.adapters.kubernetes.cluster import KubernetesCluster
    from reconciler.engine.world import World
    from reconciler.plan.explain.decisions import decisions_of

    ground = ground_of(args, imitation)
    settings, catalog, imitation = ground.settings, ground.catalog, ground.imitation
    expect_cluster_name(ground)
    with open_state(ground.location, settings.fleet) as state, ExitStack() as resources:
        state.lease.acquire()
        compute = compute_of(settings, catalog, imitation, acts=True)
        source = FleetSource(args, compute, catalog, discovery_of(args, ground.resolved))
        cluster = cluster_of(settings, catalog, imitation, state.shelf, source)
        world = World(
            imitation.clock,
            compute,
            cluster,
            state.store,
            state.journal,
            notifier,
            keep_reasons=lambda plan: state.history.put_decisions(
                plan.digest, plan.at, decisions_of(plan)
            ),
            prune=lambda now, keep, needed: sum(
                tally.gone for tally in state.history.prune(now, keep, needed)
            ),
            arrivals=resources.enter_context(arrivals(settings, imitation.clock, sleeps)),
            leftovers=compute.leftovers,
            interruptions=resources.enter_context(hearing(settings, imitation)),
        )
        if isinstance(cluster, KubernetesCluster):
            world.notify("Connected", f"the cluster is {cluster.where}")
        yield Assembly(world, source, state, settings)


def live_inputs(args: argparse.Namespace, imitation: Imitation | None = None) -> Inputs:
    """Return what a plan of the live fleet is made from, and write nothing anywhere.

    The look is the engine's own, at a copy of what is recorded: an imitated cluster keeps its
    books on a shelf, and a preview must not turn its pages. With ``--base`` the changes are told
    since that commit instead of since what was carried out last.

    Raises:
        TransientCloudError: EC2 could not be looked at.
    """
    import msgspec

    from reconciler.adapters.simulated.memory import MemoryShelf, MemoryStateStore
    from reconciler.cli.shared import request
    from reconciler.cli.shared.question import asked_of
    from reconciler.cli.shared.stopping import Silence
    from reconciler.engine.history import history_of
    from reconciler.engine.observation import observe
    from reconciler.engine.reconcile import owner_of, restamp
    from reconciler.engine.world import World
    from reconciler.model.settings import ClusterKind

    ground = ground_of(args, imitation)
    settings, catalog, imitation = ground.settings, ground.catalog, ground.imitation
    clock, store, shelf = imitation.clock, MemoryStateStore(), MemoryShelf()
    serial = copy_state(ground.location, settings.fleet, store, shelf, clock.now())
    compute = compute_of(settings, catalog, imitation)
    source = FleetSource(args, compute, catalog, discovery_of(args, ground.resolved, keeps=False))
    cluster = cluster_of(settings, catalog, imitation, shelf, source)
    if settings.cluster == ClusterKind.KUBECONFIG:
        from reconciler.adapters.kubernetes.onlooker import Onlooker

        cluster = Onlooker(cluster)
    desired = source.read()
    if is_real(settings, imitation) and not is_named(ground.resolved):
        desired = with_fields(desired, diagnostics=(*desired.diagnostics, UNNAMED))
    journal = recorded_journal(ground.location, settings.fleet)
    world = World(clock, compute, cluster, store, journal, Silence())
    restamp(world, desired)
    seen = observe(world, desired.node_pools, owner_of(settings))
    seen = with_fields(seen, history=history_of(store, settings, seen.at))
    facts = desired.inputs(seen, store.unavailable(seen.at), store.objects(), serial)
    base = request.read_base(args)
    if base is None:
        return facts
    facts = msgspec.structs.replace(
        facts,
        base=base.objects,
        compared_with="base",
        revision=msgspec.structs.replace(facts.revision, base=base.head),
    )
    return msgspec.structs.replace(facts, against=asked_of(base, args, facts))


@contextmanager
def taking_over(
    args: argparse.Namespace, *, writes: bool, imitation: Imitation | None = None
) -> Iterator[Takeover]:
    """Put together what taking over needs; only where it ``writes`` is the state opened for it.

    Raises:
        LockedError: another process holds this fleet.
        StateError: the recorded state cannot be opened.
    """
    from reconciler.adapters.database.state import open_state
    from reconciler.adapters.simulated.memory import MemoryShelf, MemoryStateStore
    from reconciler.cli.maintenance.takeover import Takeover

    ground = ground_of(args, imitation)
    settings, clock = ground.settings, ground.imitation.clock
    expect_cluster_name(ground)
    compute = compute_of(settings, ground.catalog, ground.imitation)
    desired = FleetSource(args, compute, ground.catalog).read()
    if not writes:
        store = MemoryStateStore()
        copy_state(ground.location, settings.fleet, store, MemoryShelf(), clock.now())
        journal = recorded_journal(ground.location, settings.fleet)
        yield Takeover(compute, desired, store, journal, clock)
        return
    with open_state(ground.location, settings.fleet) as state:
        state.lease.acquire()
        yield Takeover(compute, desired, state.store, state.journal, clock)
