"""The ports of one command: to act, to observe, or to adopt."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from dataclasses import replace as with_fields
from typing import TYPE_CHECKING, Final, NamedTuple

from reconciler.adapters.simulated.memory import MemoryShelf, MemoryStateStore
from reconciler.assembly.account import compute_of, connections, receive_interruptions
from reconciler.assembly.cluster import (
    calls_of,
    cluster_of,
    cluster_watch_of,
    expect_access,
    uses_threads,
)
from reconciler.assembly.context import (
    FleetContext,
    cluster_id,
    context_of,
    copy_state,
    discovery_of,
    expect_account,
    expect_cluster_name,
    is_cluster_named,
    is_real,
    locks_folder,
    recorded_journal,
)
from reconciler.assembly.decoding import prepare_decoders
from reconciler.assembly.fleetsource import FleetSource, problem_writer
from reconciler.assembly.inputs import sources
from reconciler.assembly.inputs.request import Environment, FleetRequest
from reconciler.assembly.inputs.watching import NullNotifier
from reconciler.assembly.takeover import Takeover
from reconciler.model.diagnostics import Diagnostic, Severity
from reconciler.model.errors import LeaseHeldError, LeaseLostError, StateError
from reconciler.model.settings import ClusterKind
from reconciler.ports.progress import EventKind

if TYPE_CHECKING:
    from reconciler.adapters.aws.checks import Checks
    from reconciler.adapters.aws.compute import AwsCompute
    from reconciler.adapters.aws.nodeclass.validation import Validation
    from reconciler.adapters.database.state import DatabaseState
    from reconciler.assembly.inputs.catalogs import CurrentCatalog
    from reconciler.assembly.inputs.sources import SourceFiles
    from reconciler.assembly.standby import Standby
    from reconciler.engine.observation import Observation
    from reconciler.engine.planning import PlannedFleet
    from reconciler.engine.world import World
    from reconciler.model.karpenter.nodeclass import EC2NodeClass
    from reconciler.model.settings import Settings
    from reconciler.plan.make.inputs import Inputs
    from reconciler.ports.calls import Calls
    from reconciler.ports.cloud import Compute, Interruptions
    from reconciler.ports.cluster import Arrivals, Cluster, FleetUsage
    from reconciler.ports.progress import Notifier
    from reconciler.ports.state import Shelf

UNNAMED_CLUSTER: Final = Diagnostic(
    Severity.WARNING,
    "cluster-not-named",
    "clusterName is not set; `apply` and `run` require it in a real AWS account",
    hint="set clusterName in reconciler.yaml",
)


@dataclass(frozen=True)
class CheckInputs:
    """The inputs of ``reconciler check``: the node classes of a fleet, and AWS as they find it."""

    settings: Settings
    classes: Sequence[EC2NodeClass]
    checks: Checks
    validation: Validation
    compute: Compute
    catalog: CurrentCatalog

    def cpus_of(self, instance_type: str) -> float:
        """Return the vCPUs of an instance type, 0 if it is not in the catalog."""
        kind = self.catalog.get(instance_type)
        return 0.0 if kind is None else kind.capacity.get("cpu", 0) / 1000


def check_inputs(request: FleetRequest, environment: Environment | None = None) -> CheckInputs:
    """Return the ports of the checks of a fleet; none of them writes."""
    from reconciler.adapters.aws.checks import Checks
    from reconciler.adapters.aws.nodeclass.images import types_of
    from reconciler.adapters.aws.nodeclass.validation import Validation
    from reconciler.desired.objects import node_classes

    context = context_of(request, environment)
    settings, catalog, environment = context.settings, context.catalog, context.environment
    clock = environment.clock
    connect = environment.connect or connections().connector(settings)
    fleet = sources.desired_fleet(request)
    return CheckInputs(
        settings,
        node_classes(fleet),
        Checks(connect, settings, clock),
        Validation(connect("ec2", 1), settings, types_of(catalog.current, settings), clock),
        compute_of(settings, catalog, environment),
        catalog,
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
def assemble_world(
    request: FleetRequest,
    notifier: Notifier,
    environment: Environment | None = None,
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
    context = context_of(request, environment)
    expect_cluster_name(context)
    expect_access(context.settings)
    with _hold_lease(context, standby) as state, ExitStack() as resources:
        if standby is not None and standby.has_waited:
            context = _refresh_context(context, context_of(request, environment))
            standby.report_acquired(context.environment.clock)
        settings = context.settings
        if uses_threads(settings, context.environment):
            prepare_decoders()
        adapters = _adapters(request, context, state, resources, sleeps=sleeps)
        world = _world(context, state, adapters, notifier, sleeps=sleeps)
        world = _with_kubernetes_reporting(world, adapters.cluster, settings, standby, resources)
        threads = uses_threads(settings, context.environment)
        yield Assembly(world, adapters.source, state, settings, threads)


class _Adapters(NamedTuple):
    """The adapters of a world: EC2, the cluster, and the desired state.

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
    context: FleetContext,
    state: DatabaseState,
    resources: ExitStack,
    *,
    sleeps: bool,
) -> _Adapters:
    """Return the adapters of an acting command; each call is made only while the lease is held.

    Adapters that must be closed are added to ``resources``.
    """
    settings, catalog, environment = context.settings, context.catalog, context.environment
    confirm = state.lease.confirm
    compute = compute_of(settings, catalog, environment, acts=True, confirm=confirm)
    discovery = discovery_of(request, context.resolved)
    source = FleetSource(request, compute, catalog, settings, discovery, acts=sleeps)
    if not sleeps:  # one that follows commits reads again, so that it misses none
        source.first = context.source
    calls = resources.enter_context(calls_of(settings, environment, sleeps=sleeps))
    watch = cluster_watch_of(settings, environment.clock, sleeps=sleeps)
    cluster = cluster_of(
        settings, catalog, environment, state.shelf, source, confirm, calls, watch.cache
    )
    resources.enter_context(watch.run_in_background())
    interruptions = resources.enter_context(receive_interruptions(settings, environment))
    return _Adapters(compute, source, cluster, calls, watch.arrivals, interruptions)


def _world(
    context: FleetContext,
    state: DatabaseState,
    adapters: _Adapters,
    notifier: Notifier,
    *,
    sleeps: bool,
) -> World:
    """Return the world of an acting command, with the recorded state."""
    from reconciler.engine.world import World
    from reconciler.plan.explain.answer import decisions_of

    history = state.history
    return World(
        context.environment.clock,
        adapters.compute,
        adapters.cluster,
        state.store,
        state.journal,
        notifier,
        keep_reasons=lambda plan: history.put_decisions(plan.digest, plan.at, decisions_of(plan)),
        keep_usage=usage_writer(state.shelf),
        keep_problem=problem_writer(state.shelf),
        prune=lambda now, keep, needed: sum(t.gone for t in history.prune(now, keep, needed)),
        trace=state.trace if sleeps else None,
        arrivals=adapters.arrivals,
        confirm=state.lease.confirm,
        unused_resources=adapters.compute.unused_resources,
        interruptions=adapters.interruptions,
        calls=adapters.calls,
        allows_karpenter=context.settings.kube_allow_karpenter,
    )


def _with_kubernetes_reporting(
    world: World,
    cluster: Cluster,
    settings: Settings,
    standby: Standby | None,
    resources: ExitStack,
) -> World:
    """Return the world with the mirror of NodeClaims and the Events in the Kubernetes API.

    The world of a simulated cluster has neither and is returned unchanged.
    """
    from socket import gethostname

    from reconciler.adapters.kubernetes.cluster import KubernetesCluster

    if not isinstance(cluster, KubernetesCluster):
        return world
    if standby is not None and standby.sharing is not None:
        states = standby.sharing.states
        resources.enter_context(states.reserve_cluster(cluster.server, settings.fleet))
    world = with_fields(
        world,
        mirror=cluster.mirror(settings.fleet),
        announcer=cluster.events(world.clock, gethostname()),
        pod_costs=cluster.pod_costs(),
    )
    world.notify(EventKind.CONNECTED, f"the cluster is {cluster.where}")
    for missing in cluster.missing_permissions():
        world.notify(EventKind.FORBIDDEN, missing)
    return world


def usage_writer(shelf: Shelf) -> Callable[[FleetUsage], None]:
    """Return a function that stores the usage of the nodes if it has changed, and its time."""
    from reconciler.ports.cluster import USAGE_RECORD
    from reconciler.ports.passes import RecordedPasses

    last: tuple[object, ...] | None = None
    passes = RecordedPasses(shelf)

    def keep(usage: FleetUsage) -> None:
        nonlocal last
        passes.record(usage.at)
        known = usage.nodes, usage.costs, usage.pods
        if known != last:
            import msgspec

            shelf.write(USAGE_RECORD, msgspec.json.encode(usage, order="sorted"))
            last = known

    return keep


def expect_free(request: FleetRequest) -> None:
    """Refuse what acting commands would refuse without a name or a lease, before creating a state.

    Raises:
        UnnamedClusterError: nobody has named the cluster of a real account.
        LeaseHeldError: another process acts for the cluster.
    """
    from reconciler.adapters.database.leases import lease

    context = context_of(request, None)
    expect_cluster_name(context)
    lease.expect_free(locks_folder(), cluster_id(context), context.settings.fleet)


@contextmanager
def _hold_lease(context: FleetContext, standby: Standby | None = None) -> Iterator[DatabaseState]:
    """Open the recorded state of a fleet, and hold the lease while it is open."""
    from reconciler.adapters.database.state import open_state

    cluster, clock = cluster_id(context), context.environment.clock
    sharing = standby.sharing if standby is not None else None
    opens = open_state if sharing is None else sharing.states.open
    with opens(context.location, context.settings.fleet, locks=locks_folder()) as state:
        while True:
            if standby is not None:
                standby.await_turn(clock, state)
            try:
                state.lease.acquire(cluster)
                break
            except (LeaseHeldError, StateError) as error:
                if standby is None or not standby.wait_for_retry(clock, error):
                    raise
        yield state


def _refresh_context(before: FleetContext, now: FleetContext) -> FleetContext:
    """Return the context after a long wait, during which git and prices may have changed.

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
class FleetObservation:
    """One observation of the running fleet, made as in a pass, without writing anything.

    ``serial`` is that of the records, of which ``world`` has a copy. ``compute`` looks up node
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
        """Return the inputs of a plan."""
        import msgspec

        from reconciler.engine.steps.provision import unavailable_offerings

        store, desired, seen = self.world.store, self.desired, self.seen
        facts = desired.inputs(
            seen, unavailable_offerings(store, seen.at), store.objects(), self.serial
        )
        is_real = self.settings.cluster == "kubeconfig"
        return msgspec.structs.replace(
            facts,
            observation="cluster" if is_real else "embedded",
            observed=desired.evidence(seen),
            region_before=self.region if seen.claims else "",
        )


def observe_fleet(
    request: FleetRequest,
    environment: Environment | None = None,
    source: SourceFiles | None = None,
) -> FleetObservation:
    """Observe the running fleet as a pass does, and write nothing anywhere.

    ``source`` is what was already read of the fleet.

    It uses the engine's own code on a copy of the records, because a simulated cluster writes to
    the state when it is observed, and a preview must not.

    Raises:
        FleetMovedError: this fleet has nodes in another account.
        TransientCloudError: EC2 could not be read.
        ClusterError: the cluster could not be read.
    """
    from reconciler.engine.world import World

    context = context_of(request, environment, source)
    settings, catalog, environment = context.settings, context.catalog, context.environment
    clock, store, shelf = environment.clock, MemoryStateStore(), MemoryShelf()
    state = copy_state(context.location, settings.fleet, store, shelf, clock.now())
    expect_account(context, state, len(store.node_claims()))
    compute = compute_of(settings, catalog, environment)
    discovery = discovery_of(request, context.resolved, keeps=False)
    desired_source = FleetSource(
        request, compute, catalog, settings, discovery, first=context.source
    )
    cluster = cluster_of(settings, catalog, environment, shelf, desired_source)
    if settings.cluster == ClusterKind.KUBECONFIG:
        from reconciler.adapters.kubernetes.cluster import ReadOnlyCluster

        cluster = ReadOnlyCluster(cluster)
    desired = desired_source.read()
    if is_real(settings, environment) and not is_cluster_named(context.resolved):
        desired = with_fields(desired, diagnostics=(*desired.diagnostics, UNNAMED_CLUSTER))
    journal = recorded_journal(context.location, settings.fleet)
    world = World(
        clock,
        compute,
        cluster,
        store,
        journal,
        NullNotifier(),
        allows_karpenter=settings.kube_allow_karpenter,
    )
    seen = observe_world(world, desired, settings)
    return FleetObservation(
        world, compute, desired, seen, state.serial, settings, state.cluster.region
    )


def observe_world(world: World, desired: PlannedFleet, settings: Settings) -> Observation:
    """Return the observation of a pass, with the cached results of earlier ones."""
    from reconciler.engine.observation import observe
    from reconciler.engine.reconcile import migrate_hashes, owner_of
    from reconciler.engine.records import history_of

    migrate_hashes(world, desired)
    seen = observe(world, desired.node_pools, owner_of(settings))
    return with_fields(seen, history=history_of(world.store, settings, seen.at))


def live_inputs(
    request: FleetRequest,
    environment: Environment | None = None,
    source: SourceFiles | None = None,
) -> Inputs:
    """Return the inputs of a plan of the live fleet, and write nothing.

    ``source`` is what was already read of it.

    With ``--base`` the changes are those since that commit instead of since the last applied
    revision, and the base is planned from the same observation.

    Raises:
        FleetMovedError: this fleet has nodes in another account.
        TransientCloudError: EC2 could not be read.
        ClusterError: the cluster could not be read.
    """
    from reconciler.assembly.comparison import with_base_inputs

    found = observe_fleet(request, environment, source)
    base = sources.read_base(request)
    facts = found.inputs()
    return facts if base is None else with_base_inputs(base, request, facts, found.compute.resolve)


@contextmanager
def assemble_takeover(
    request: FleetRequest, *, writes: bool, environment: Environment | None = None
) -> Iterator[Takeover]:
    """Assemble the ports of an adoption; the state is opened for writing only if it ``writes``.

    Raises:
        LeaseHeldError: another process holds this fleet.
        FleetConflictError: another fleet has nodes in the cluster.
        FleetMovedError: this fleet has nodes in another account or region.
        StateError: the recorded state cannot be opened.
    """
    context = context_of(request, environment)
    settings, clock = context.settings, context.environment.clock
    expect_cluster_name(context)
    if not writes:
        compute = compute_of(settings, context.catalog, context.environment)
        desired = FleetSource(request, compute, context.catalog, settings).read()
        store = MemoryStateStore()
        copy_state(context.location, settings.fleet, store, MemoryShelf(), clock.now())
        journal = recorded_journal(context.location, settings.fleet)
        yield Takeover(compute, desired, store, journal, clock)
        return
    with _hold_lease(context) as state:
        confirm = state.lease.confirm
        compute = compute_of(settings, context.catalog, context.environment, confirm=confirm)
        desired = FleetSource(request, compute, context.catalog, settings).read()
        yield Takeover(compute, desired, state.store, state.journal, clock)
