"""The ports of one command: to act, to observe, or to adopt."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from dataclasses import replace as with_fields
from typing import TYPE_CHECKING, Final, NamedTuple

from reconciler.cli.wiring.account import compute_of, connections, hearing
from reconciler.cli.wiring.cluster import calls_of, cluster_of, cluster_watch_of, has_threads
from reconciler.cli.wiring.fleetsource import FleetSource
from reconciler.cli.wiring.ground import (
    Ground,
    cluster_id,
    copy_state,
    discovery_of,
    expect_account,
    expect_cluster_name,
    ground_of,
    is_named,
    is_real,
    locks_folder,
    recorded_journal,
)
from reconciler.cli.wiring.imitation import Imitation
from reconciler.model.diagnostics import Diagnostic, Severity
from reconciler.model.errors import LeaseHeldError, LeaseLostError, StateError
from reconciler.ports.progress import EventKind

if TYPE_CHECKING:
    from reconciler.adapters.aws.checks import Checks
    from reconciler.adapters.aws.compute import AwsCompute
    from reconciler.adapters.aws.nodeclass.validation import Validation
    from reconciler.adapters.database.state import DatabaseState
    from reconciler.cli.shared.catalogs import CatalogInForce
    from reconciler.cli.shared.request import FleetRequest
    from reconciler.cli.wiring.standby import Standby
    from reconciler.cli.wiring.takeover import Takeover
    from reconciler.engine.observation import Observation
    from reconciler.engine.planning import PlannedFleet
    from reconciler.engine.world import World
    from reconciler.model.karpenter.nodeclass import EC2NodeClass
    from reconciler.model.settings import Settings
    from reconciler.plan.make.inputs import Inputs
    from reconciler.ports.calls import Calls
    from reconciler.ports.cloud import Compute, Interruptions
    from reconciler.ports.cluster import Arrivals, Cluster, FleetUsage, NodeUsage
    from reconciler.ports.progress import Notifier
    from reconciler.ports.state import Shelf


# The ports of ``reconciler check``.


@dataclass(frozen=True)
class CheckBench:
    """The inputs of ``reconciler check``: the node classes of a fleet, and AWS as they find it."""

    settings: Settings
    classes: Sequence[EC2NodeClass]
    checks: Checks
    validation: Validation
    compute: Compute
    catalog: CatalogInForce

    def cpus_of(self, instance_type: str) -> float:
        """Return the vCPUs of an instance type, 0 if it is not in the catalog."""
        kind = self.catalog.get(instance_type)
        return 0.0 if kind is None else kind.capacity.get("cpu", 0) / 1000


def check_bench(request: FleetRequest, imitation: Imitation | None = None) -> CheckBench:
    """Return the ports of the checks of a fleet; none of them writes."""
    from reconciler.adapters.aws.checks import Checks
    from reconciler.adapters.aws.nodeclass.images import types_of
    from reconciler.adapters.aws.nodeclass.validation import Validation
    from reconciler.cli.shared import sources
    from reconciler.desired.objects import node_classes

    ground = ground_of(request, imitation)
    settings, catalog, imitation = ground.settings, ground.catalog, ground.imitation
    clock = imitation.clock
    connect = imitation.connect or connections().of(settings)
    fleet, _ = sources.read_desired(sources.read_source(request), any_class=False)
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
    """A world with its adapters, for one command.

    ``has_threads`` is whether its calls are made at the same time.
    """

    world: World
    source: FleetSource
    state: DatabaseState
    settings: Settings
    has_threads: bool = False


@contextmanager
def assembled(
    request: FleetRequest,
    notifier: Notifier,
    imitation: Imitation | None = None,
    *,
    sleeps: bool = False,
    standby: Standby | None = None,
) -> Iterator[Assembly]:
    """Assemble a world, and hold the lease of its fleet while it is used.

    A command that ``sleeps`` between two passes is woken by pending pods. With a ``standby`` it
    waits while another process holds the lease.

    Raises:
        UnnamedClusterError: nobody has named the cluster of a real account.
        LeaseHeldError: another process holds this fleet.
        FleetConflictError: another fleet has nodes in the cluster.
        FleetMovedError: this fleet has nodes in another account or region.
        StateError: the recorded state cannot be opened.
    """
    from reconciler.cli.wiring.decoding import prepare_decoders

    ground = ground_of(request, imitation)
    expect_cluster_name(ground)
    with _leased(ground, standby) as state, ExitStack() as resources:
        if standby is not None and standby.has_waited:
            ground = _renewed(ground, ground_of(request, imitation))
            standby.ended(ground.imitation.clock)
        settings = ground.settings
        if has_threads(settings, ground.imitation):
            prepare_decoders()
        adapters = _adapters(request, ground, state, resources, sleeps=sleeps)
        world = _world(ground, state, adapters, notifier, sleeps=sleeps)
        world = _on_kubernetes(world, adapters.cluster, settings, standby, resources)
        threads = has_threads(settings, ground.imitation)
        yield Assembly(world, adapters.source, state, settings, threads)


class _Adapters(NamedTuple):
    """What a world acts through: EC2, the cluster, and the desired state.

    ``arrivals`` wakes a sleeping command for pending pods.
    """

    compute: AwsCompute
    source: FleetSource
    cluster: Cluster
    calls: Calls
    arrivals: Arrivals
    interruptions: Interruptions


def _adapters(
    request: FleetRequest,
    ground: Ground,
    state: DatabaseState,
    resources: ExitStack,
    *,
    sleeps: bool,
) -> _Adapters:
    """Return the adapters of an acting command; each call is made only while the lease is held.

    What they need to be closed is added to ``resources``.
    """
    settings, catalog, imitation = ground.settings, ground.catalog, ground.imitation
    confirm = state.lease.confirm
    compute = compute_of(settings, catalog, imitation, acts=True, confirm=confirm)
    discovery = discovery_of(request, ground.resolved)
    source = FleetSource(request, compute, catalog, settings.region, discovery)
    calls = resources.enter_context(calls_of(settings, imitation, sleeps=sleeps))
    watch = cluster_watch_of(settings, imitation.clock, sleeps=sleeps)
    cluster = cluster_of(
        settings, catalog, imitation, state.shelf, source, confirm, calls, watch.cache
    )
    resources.enter_context(watch.listening())
    interruptions = resources.enter_context(hearing(settings, imitation))
    return _Adapters(compute, source, cluster, calls, watch.arrivals, interruptions)


def _world(
    ground: Ground, state: DatabaseState, adapters: _Adapters, notifier: Notifier, *, sleeps: bool
) -> World:
    """Return the world of an acting command, with the recorded state."""
    from reconciler.engine.world import World
    from reconciler.plan.explain.answer import decisions_of

    history = state.history
    return World(
        ground.imitation.clock,
        adapters.compute,
        adapters.cluster,
        state.store,
        state.journal,
        notifier,
        keep_reasons=lambda plan: history.put_decisions(plan.digest, plan.at, decisions_of(plan)),
        keep_usage=_keeping_usage(state.shelf),
        prune=lambda now, keep, needed: sum(
            tally.gone for tally in history.prune(now, keep, needed)
        ),
        trace=state.trace if sleeps else None,
        arrivals=adapters.arrivals,
        confirm=state.lease.confirm,
        leftovers=adapters.compute.leftovers,
        interruptions=adapters.interruptions,
        calls=adapters.calls,
    )


def _on_kubernetes(
    world: World,
    cluster: Cluster,
    settings: Settings,
    standby: Standby | None,
    resources: ExitStack,
) -> World:
    """Return the world with what a Kubernetes API shows to people: NodeClaims and Events.

    A simulated cluster has none of it, and its world is returned unchanged.
    """
    from socket import gethostname

    from reconciler.adapters.kubernetes.cluster import KubernetesCluster

    if not isinstance(cluster, KubernetesCluster):
        return world
    if standby is not None and standby.sharing is not None:
        states = standby.sharing.states
        resources.enter_context(states.only_user(cluster.server, settings.fleet))
    world = with_fields(
        world,
        mirror=cluster.mirror(settings.fleet),
        announcer=cluster.events(world.clock, gethostname()),
    )
    world.notify(EventKind.CONNECTED, f"the cluster is {cluster.where}")
    for missing in cluster.missing_permissions():
        world.notify(EventKind.FORBIDDEN, missing)
    return world


def _keeping_usage(shelf: Shelf) -> Callable[[FleetUsage], None]:
    """Return a function that stores the usage of the nodes if it has changed."""
    from reconciler.ports.cluster import SHELF

    last: dict[str, NodeUsage] | None = None

    def keep(usage: FleetUsage) -> None:
        nonlocal last
        if usage.nodes != last:
            import msgspec

            shelf.write(SHELF, msgspec.json.encode(usage, order="sorted"))
            last = usage.nodes

    return keep


def expect_free(request: FleetRequest) -> None:
    """Refuse what acting commands would refuse without a name or a lease, before creating a state.

    Raises:
        UnnamedClusterError: nobody has named the cluster of a real account.
        LeaseHeldError: another process acts for the cluster.
    """
    from reconciler.adapters.database.leases import lease

    ground = ground_of(request, None)
    expect_cluster_name(ground)
    lease.expect_free(locks_folder(), cluster_id(ground), ground.settings.fleet)


@contextmanager
def _leased(ground: Ground, standby: Standby | None = None) -> Iterator[DatabaseState]:
    """Open the recorded state of a fleet, and hold the lease while it is open."""
    from reconciler.adapters.database.state import open_state

    cluster, clock = cluster_id(ground), ground.imitation.clock
    sharing = standby.sharing if standby is not None else None
    opens = open_state if sharing is None else sharing.states.open
    with opens(ground.location, ground.settings.fleet, locks=locks_folder()) as state:
        while True:
            if standby is not None:
                standby.await_turn(clock, state)
            try:
                state.lease.acquire(cluster)
                break
            except (LeaseHeldError, StateError) as error:
                if standby is None or not standby.waits(clock, error):
                    raise
        yield state


def _renewed(before: Ground, now: Ground) -> Ground:
    """Return the starting point after a long wait, during which git and prices may have changed.

    Raises:
        LeaseLostError: fleet or state have changed and no longer match the lease.
    """
    if (before.location, before.settings.fleet) != (now.location, now.settings.fleet) or (
        cluster_id(before) != cluster_id(now)
    ):
        why = "the configuration names another fleet, state or cluster by now"
        raise LeaseLostError("the acquired lease does not fit", why=why)
    return now


@dataclass(frozen=True)
class Look:
    """One observation of the running fleet, made as in a pass, without writing anything.

    ``serial`` is that of the records, which ``world`` has a copy of. ``compute`` looks up node
    classes in the account. ``region`` is the one that the fleet acted in last, empty if unknown.
    """

    world: World
    compute: Compute
    desired: PlannedFleet
    seen: Observation
    serial: int
    settings: Settings
    region: str = ""

    def inputs(self) -> Inputs:
        """Return what a plan is made from."""
        import msgspec

        from reconciler.engine.steps.provision import refused_now

        store, desired, seen = self.world.store, self.desired, self.seen
        facts = desired.inputs(seen, refused_now(store, seen.at), store.objects(), self.serial)
        is_real = self.settings.cluster == "kubeconfig"
        return msgspec.structs.replace(
            facts,
            observation="cluster" if is_real else "embedded",
            observed=desired.evidence(seen),
            region_before=self.region if seen.claims else "",
        )


def look(request: FleetRequest, imitation: Imitation | None = None) -> Look:
    """Observe the running fleet as a pass does, and write nothing anywhere.

    It uses the engine's own code on a copy of the records, because a simulated cluster writes to
    the state when it is observed, and a preview must not.

    Raises:
        FleetMovedError: this fleet has nodes in another account.
        TransientCloudError: EC2 could not be read.
        ClusterError: the cluster could not be read.
    """
    from reconciler.adapters.simulated.memory import MemoryShelf, MemoryStateStore
    from reconciler.cli.shared.watching import Silence
    from reconciler.engine.world import World
    from reconciler.model.settings import ClusterKind

    ground = ground_of(request, imitation)
    settings, catalog, imitation = ground.settings, ground.catalog, ground.imitation
    clock, store, shelf = imitation.clock, MemoryStateStore(), MemoryShelf()
    copied = copy_state(ground.location, settings.fleet, store, shelf, clock.now())
    expect_account(ground, copied, len(store.node_claims()))
    compute = compute_of(settings, catalog, imitation)
    discovery = discovery_of(request, ground.resolved, keeps=False)
    source = FleetSource(request, compute, catalog, settings.region, discovery)
    cluster = cluster_of(settings, catalog, imitation, shelf, source)
    if settings.cluster == ClusterKind.KUBECONFIG:
        from reconciler.adapters.kubernetes.cluster import Onlooker

        cluster = Onlooker(cluster)
    desired = source.read()
    if is_real(settings, imitation) and not is_named(ground.resolved):
        desired = with_fields(desired, diagnostics=(*desired.diagnostics, UNNAMED))
    journal = recorded_journal(ground.location, settings.fleet)
    world = World(clock, compute, cluster, store, journal, Silence())
    seen = observed(world, desired, settings)
    return Look(world, compute, desired, seen, copied.serial, settings, copied.cluster.region)


def observed(world: World, desired: PlannedFleet, settings: Settings) -> Observation:
    """Return the observation of a pass, with the recalled results of earlier ones."""
    from reconciler.engine.observation import observe
    from reconciler.engine.reconcile import owner_of, restamp
    from reconciler.engine.records import history_of

    restamp(world, desired)
    seen = observe(world, desired.node_pools, owner_of(settings))
    return with_fields(seen, history=history_of(world.store, settings, seen.at))


def live_inputs(request: FleetRequest, imitation: Imitation | None = None) -> Inputs:
    """Return the inputs of a plan of the live fleet, and write nothing.

    With ``--base`` the changes are those since that commit instead of since the last applied
    revision, and the base is planned from the same observation.

    Raises:
        FleetMovedError: this fleet has nodes in another account.
        TransientCloudError: EC2 could not be read.
        ClusterError: the cluster could not be read.
    """
    from reconciler.cli.shared import sources
    from reconciler.cli.wiring.comparison import compared_with_base

    found = look(request, imitation)
    base = sources.read_base(request)
    facts = found.inputs()
    return (
        facts if base is None else compared_with_base(base, request, facts, found.compute.resolve)
    )


@contextmanager
def taking_over(
    request: FleetRequest, *, writes: bool, imitation: Imitation | None = None
) -> Iterator[Takeover]:
    """Assemble the ports of an adoption; the state is opened for writing only if it ``writes``.

    Raises:
        LeaseHeldError: another process holds this fleet.
        FleetConflictError: another fleet has nodes in the cluster.
        FleetMovedError: this fleet has nodes in another account or region.
        StateError: the recorded state cannot be opened.
    """
    from reconciler.adapters.simulated.memory import MemoryShelf, MemoryStateStore
    from reconciler.cli.wiring.takeover import Takeover

    ground = ground_of(request, imitation)
    settings, clock = ground.settings, ground.imitation.clock
    expect_cluster_name(ground)
    if not writes:
        compute = compute_of(settings, ground.catalog, ground.imitation)
        desired = FleetSource(request, compute, ground.catalog, settings.region).read()
        store = MemoryStateStore()
        copy_state(ground.location, settings.fleet, store, MemoryShelf(), clock.now())
        journal = recorded_journal(ground.location, settings.fleet)
        yield Takeover(compute, desired, store, journal, clock)
        return
    with _leased(ground) as state:
        confirm = state.lease.confirm
        compute = compute_of(settings, ground.catalog, ground.imitation, confirm=confirm)
        desired = FleetSource(request, compute, ground.catalog, settings.region).read()
        yield Takeover(compute, desired, state.store, state.journal, clock)
