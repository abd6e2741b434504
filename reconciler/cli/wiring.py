"""Chooses the adapters: the only place that knows which outside thing stands behind a port."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from dataclasses import replace as with_fields
from datetime import UTC, datetime, timedelta
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from reconciler.cli.opening import state_location
from reconciler.model.errors import UsageError

if TYPE_CHECKING:
    import argparse

    from reconciler.adapters.aws.checks import Checks
    from reconciler.adapters.aws.clients import Connect, Connections
    from reconciler.adapters.aws.compute import AwsCompute
    from reconciler.adapters.aws.facts import AccountFacts
    from reconciler.adapters.aws.images import Types
    from reconciler.adapters.aws.validation import Validation
    from reconciler.adapters.database.state import DatabaseState
    from reconciler.adapters.kubernetes.api import Api
    from reconciler.catalog.memory import Discoveries
    from reconciler.cli.catalogs import Asking, CatalogInForce
    from reconciler.cli.takeover import Takeover
    from reconciler.desired.settings import Resolved
    from reconciler.desired.workloads import Workloads
    from reconciler.engine.discovery import Discovery
    from reconciler.engine.planning import PlannedFleet
    from reconciler.engine.world import World
    from reconciler.model.check import Check
    from reconciler.model.nodeclass import EC2NodeClass
    from reconciler.model.settings import Settings
    from reconciler.plan.inputs import Inputs
    from reconciler.ports import (
        Arrivals,
        Clock,
        Cluster,
        Compute,
        Interruptions,
        Notifier,
        Shelf,
        StateStore,
    )

POLL_S = 15.0
"""How often a remote is asked for its head."""


def no_workloads() -> Workloads:
    """Return what a fleet runs before it was read."""
    from reconciler.desired.workloads import Workloads

    return Workloads()


@dataclass
class FleetSource:
    """Desired state as the arguments name it (``engine.desired.DesiredSource``).

    ``workloads`` are those of the last read: an imitated cluster runs them.
    """

    args: argparse.Namespace
    compute: Compute
    catalogs: CatalogInForce
    discovery: Discovery | None = None
    workloads: Workloads = field(default_factory=no_workloads)
    _changes: int = 0
    _asked_at: float = float("-inf")
    _head: str = ""

    def read(self) -> PlannedFleet:
        """Return desired state with its node classes looked up.

        Raises:
            InvalidFleetError: it cannot be planned.
            UnreadableError: it cannot be read.
        """
        from reconciler.cli import inputs
        from reconciler.desired.objects import node_classes, node_pools
        from reconciler.desired.workloads import expand
        from reconciler.engine.discovery import Discovery
        from reconciler.engine.planning import PlannedFleet

        source = inputs.read_source(self.args)
        fleet, findings = inputs.read_desired(source, any_class=False)
        resolved = inputs.settings_of(self.args, fleet)
        catalog = self.catalogs.read(resolved, fleet.lock)
        self.workloads, more = expand(fleet.workloads)
        classes = {c.name: self.compute.resolve(c) for c in node_classes(fleet)}
        lock = fleet.lock_for(resolved.settings.region)
        if lock is not None:
            from reconciler.desired.pinning import pinned

            classes = {name: pinned(c, lock.entry(name)) for name, c in classes.items()}
        digests = inputs.digests_of(fleet, b"", catalog, resolved)
        return PlannedFleet(
            fleet=fleet,
            head=source.revision,
            tree=digests.git,
            node_pools=node_pools(fleet),
            classes=classes,
            settings=resolved.settings,
            catalog=catalog,
            diagnostics=inputs.without_errors((*findings, *more)),
            allow_removal=frozenset(self.args.allow_removal),
            digests=digests,
            discovery=self.discovery or Discovery({}),
        )

    def fingerprint(self) -> str:
        """Return what changes when a file or the commit does.

        A working tree is watched (see ``watched``); a ref or a remote is asked now and then.
        """
        if not self._is_polled:
            return str(self._changes)
        now = time.monotonic()
        if now - self._asked_at >= POLL_S:
            from reconciler.adapters.git.source import head_of
            from reconciler.cli.inputs import source_of

            self._asked_at = now
            self._head = head_of(source_of(self.args)) or ""
        return self._head

    @property
    def _is_polled(self) -> bool:
        return self.args.repo is not None or self.args.ref is not None

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Note the changes of a working tree for as long as the block lasts."""
        if self._is_polled:
            yield
            return
        from reconciler.adapters.git.watch import watch

        def note() -> None:
            self._changes += 1

        with watch(self.args.path or ".", note):
            yield


@dataclass(frozen=True, slots=True)
class Imitation:
    """An imitated world: by which clock time passes, and how long things take on it.

    The seconds are those of ``EmbeddedCluster``; ``connect`` leads to an imitated EC2, None to
    whichever the settings name; ``workers`` launch at the same time.
    """

    clock: Clock
    connect: Connect | None = None
    workers: int = 8
    joining_s: float = 0.0
    ready_s: float = 0.0
    starting_s: float = 0.0
    leaving_s: float = 0.0


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

    A command that ``sleeps`` between two looks is woken by pods that wait.

    Raises:
        LockedError: another process holds this fleet.
        StateError: the recorded state cannot be opened.
    """
    from reconciler.adapters.database.state import open_state
    from reconciler.adapters.kubernetes.cluster import KubernetesCluster
    from reconciler.engine.world import World
    from reconciler.plan.decisions import decisions_of

    ground = _ground(args, imitation)
    settings, catalog, imitation = ground.settings, ground.catalog, ground.imitation
    with open_state(ground.location, settings.fleet) as state, ExitStack() as resources:
        state.lease.acquire()
        compute = _compute(settings, catalog, imitation, acts=True)
        source = FleetSource(args, compute, catalog, _discovery(args, ground.resolved))
        cluster = _cluster(settings, catalog, imitation, state.shelf, source)
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
            arrivals=resources.enter_context(_arrivals(settings, imitation.clock, sleeps)),
            leftovers=compute.leftovers,
            interruptions=resources.enter_context(_listening(settings, imitation)),
        )
        if isinstance(cluster, KubernetesCluster):
            world.tell("Connected", f"the cluster is {cluster.where}")
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

    from reconciler.adapters.simulated.memory import MemoryJournal, MemoryShelf, MemoryStateStore
    from reconciler.cli import inputs
    from reconciler.cli.stopping import Silence
    from reconciler.engine.observation import observe
    from reconciler.engine.recollection import history_of
    from reconciler.engine.reconcile import restamp
    from reconciler.engine.world import World

    ground = _ground(args, imitation)
    settings, catalog, imitation = ground.settings, ground.catalog, ground.imitation
    clock, store, shelf = imitation.clock, MemoryStateStore(), MemoryShelf()
    serial = _copy_state(ground.location, settings.fleet, store, shelf, clock.now())
    compute = _compute(settings, catalog, imitation)
    source = FleetSource(args, compute, catalog, _discovery(args, ground.resolved, keeps=False))
    cluster = _cluster(settings, catalog, imitation, shelf, source)
    if settings.cluster == "kubeconfig":
        from reconciler.adapters.kubernetes.onlooker import Onlooker

        cluster = Onlooker(cluster)
    desired = source.read()
    world = World(clock, compute, cluster, store, MemoryJournal(), Silence())
    restamp(world, desired)
    seen = observe(world, desired.node_pools)
    seen = with_fields(seen, history=history_of(store, settings, seen.at))
    facts = desired.inputs(seen, store.unavailable(seen.at), store.objects(), serial)
    base = inputs.read_base(args)
    if base is None:
        return facts
    return msgspec.structs.replace(
        facts,
        base=base[1],
        compared_with="base",
        revision=msgspec.structs.replace(facts.revision, base=base[0]),
    )


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
    from reconciler.adapters.simulated.memory import MemoryJournal, MemoryShelf, MemoryStateStore
    from reconciler.cli.takeover import Takeover

    ground = _ground(args, imitation)
    settings, clock = ground.settings, ground.imitation.clock
    compute = _compute(settings, ground.catalog, ground.imitation)
    desired = FleetSource(args, compute, ground.catalog).read()
    if not writes:
        store = MemoryStateStore()
        _copy_state(ground.location, settings.fleet, store, MemoryShelf(), clock.now())
        yield Takeover(compute, desired, store, MemoryJournal(), clock)
        return
    with open_state(ground.location, settings.fleet) as state:
        state.lease.acquire()
        yield Takeover(compute, desired, state.store, state.journal, clock)


def _copy_state(location: str, fleet: str, store: StateStore, shelf: Shelf, now: datetime) -> int:
    """Copy what is recorded, if anything is, and return its serial."""
    from reconciler.adapters.database.connection import FILE, is_url
    from reconciler.adapters.database.state import open_state
    from reconciler.adapters.simulated.cluster import SHELF_NAME
    from reconciler.model.history import DAY

    if not is_url(location) and not (Path(location) / FILE).exists():
        return 0
    with open_state(location, fleet, create=False) as state:
        store.put_node_claims(state.store.node_claims())
        for command in (*state.store.commands(), *state.store.commands_since(now - DAY)):
            store.put_command(command)
        for rollout in state.store.rollouts():
            store.put_rollout(rollout)
        store.put_obstacles(state.store.obstacles())
        epoch = datetime.fromtimestamp(0, UTC)
        store.put_objects(state.store.objects(), "", epoch)
        store.put_unavailable(state.store.unavailable(epoch))
        kept = state.shelf.read(SHELF_NAME)
        if kept is not None:
            shelf.write(SHELF_NAME, kept)
        return state.store.serial()


class _Ground(NamedTuple):
    """What every look at a live fleet starts from."""

    resolved: Resolved
    catalog: CatalogInForce
    imitation: Imitation
    location: str

    @property
    def settings(self) -> Settings:
        """The effective settings."""
        return self.resolved.settings


def _ground(args: argparse.Namespace, imitation: Imitation | None) -> _Ground:
    """Return the effective settings, the catalogue of the region, and where the state is."""
    from reconciler.adapters.aws.profiles import is_imitated
    from reconciler.cli import inputs
    from reconciler.cli.catalogs import CatalogInForce

    imitation = imitation or Imitation(_clock(args))
    fleet, _ = inputs.read_desired(inputs.read_source(args), any_class=False)
    resolved = inputs.settings_of(args, fleet)
    by_default = not is_imitated(resolved.settings)
    asking = asking_of(args, resolved, imitation, by_default=by_default)
    catalog = CatalogInForce(args, asking, resolved, fleet.lock)
    return _Ground(resolved, catalog, imitation, state_location(args.path, resolved))


def _discovery(args: argparse.Namespace, resolved: Resolved, *, keeps: bool = True) -> Discovery:
    """Return what nodes were seen to have, as far as it was kept beside the state."""
    import msgspec

    from reconciler.adapters.aws.cache import folder_of
    from reconciler.catalog.memory import Memory
    from reconciler.cli.opening import cache_place
    from reconciler.engine.discovery import Discovery, forget

    name = "memory.1"
    folder = folder_of(resolved.settings, cache_place(args.path, resolved))

    def keep(known: Discoveries) -> None:
        folder.write(name, msgspec.json.encode(known, order="sorted"))

    try:
        known = msgspec.json.decode(folder.read(name) or b"{}", type=dict[str, dict[str, Memory]])
    except msgspec.MsgspecError:
        known = {}  # it is seen again soon
    return Discovery(known, keep if keeps else forget)


def look_up(args: argparse.Namespace, resolved: Resolved) -> Callable[[EC2NodeClass], EC2NodeClass]:
    """Return what finds in the account what a node class selects."""
    from reconciler.cli.catalogs import CatalogInForce

    imitation = Imitation(_clock(args))
    asking = asking_of(args, resolved, imitation, by_default=False)
    catalog = CatalogInForce(args, asking, resolved, None)
    return _compute(resolved.settings, catalog, imitation).resolve


def asking_of(
    args: argparse.Namespace,
    resolved: Resolved,
    imitation: Imitation | None = None,
    *,
    by_default: bool,
    anew: bool = False,
) -> Asking:
    """Return how AWS is asked for types and prices; nothing connects before it is.

    ``anew`` takes no earlier answer while AWS gives one.
    """
    from reconciler.cli.catalogs import Asking

    @cache
    def facts() -> AccountFacts:
        from reconciler.adapters.aws.cache import folder_of
        from reconciler.adapters.aws.facts import AccountFacts
        from reconciler.catalog.catalog import bundled_data
        from reconciler.cli.catalogs import max_age
        from reconciler.cli.opening import cache_place

        settings = resolved.settings
        own = imitation.connect if imitation is not None else None
        return AccountFacts(
            own or connections().of(settings),
            settings,
            imitation.clock if imitation is not None else _clock(args),
            folder_of(settings, cache_place(args.path, resolved)),
            max_age=timedelta() if anew else max_age(settings),
            bundle=bundled_data()[1],
        )

    return Asking(facts, by_default)


def _clock(args: argparse.Namespace) -> Clock:
    """Return the machine's clock, set to ``--now`` where that is given."""
    from reconciler.adapters.clock import SystemClock
    from reconciler.cli.moment import present

    return SystemClock() if args.now is None else SystemClock(present(args.now))


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
    from reconciler.adapters.aws.images import types_of
    from reconciler.adapters.aws.validation import Validation
    from reconciler.cli import inputs
    from reconciler.desired.objects import node_classes

    ground = _ground(args, imitation)
    settings, catalog, imitation = ground.settings, ground.catalog, ground.imitation
    clock = imitation.clock
    connect = imitation.connect or connections().of(settings)
    fleet, _ = inputs.read_desired(inputs.read_source(args), any_class=False)
    return CheckBench(
        settings,
        node_classes(fleet),
        Checks(connect, settings, clock),
        Validation(connect("ec2", 1), settings, types_of(catalog.current, settings), clock),
        _compute(settings, catalog, imitation),
        catalog,
    )


@cache
def connections() -> Connections:
    """Return the connections of this process: its fleets share rates where they share accounts."""
    from reconciler.adapters.aws.clients import Connections
    from reconciler.adapters.clock import SystemClock

    return Connections(SystemClock())


def _compute(
    settings: Settings, catalog: CatalogInForce, imitation: Imitation, *, acts: bool = False
) -> AwsCompute:
    """Return EC2. Who acts has node classes tried; a plan's credentials need not allow that."""
    from reconciler.adapters.aws.compute import AwsCompute
    from reconciler.adapters.aws.images import types_of
    from reconciler.adapters.aws.profiles import is_imitated

    def find(node_class: EC2NodeClass) -> Types:
        return types_of(catalog.current, settings)(node_class)

    return AwsCompute(
        imitation.connect or connections().of(settings),
        settings,
        catalog.get,
        imitation.clock,
        types_of=find,
        workers=imitation.workers,
        validates=acts and not is_imitated(settings),
    )


@contextmanager
def _listening(settings: Settings, imitation: Imitation) -> Iterator[Interruptions]:
    """Hear of interruptions for as long as the block lasts: from EC2, and a queue if one is named.

    An imitation in this process has nothing to say that was not put there as a message.
    """
    from reconciler.adapters.aws.hearing import Hearing

    ways: list[Interruptions] = []
    connect = imitation.connect or connections().of(settings)
    with ExitStack() as listeners:
        if settings.interruption_queue:
            from reconciler.adapters.aws.queue import InterruptionQueue

            queue = InterruptionQueue(connect, settings.interruption_queue, imitation.clock)
            listeners.enter_context(queue.listening())
            ways.append(queue)
        if imitation.connect is None:
            from reconciler.adapters.aws.statuses import InstanceStatuses

            statuses = InstanceStatuses(connect, imitation.clock)
            listeners.enter_context(statuses.listening())
            ways.append(statuses)
        yield Hearing(*ways)


@contextmanager
def _arrivals(settings: Settings, clock: Clock, sleeps: bool) -> Iterator[Arrivals]:
    """Hear of pods that wait for as long as the block lasts, where there is a real cluster."""
    from reconciler.engine.world import NoArrivals

    if not sleeps or settings.cluster != "kubeconfig":
        yield NoArrivals()
        return
    from reconciler.adapters.kubernetes.arrivals import PendingPods
    from reconciler.model.duration import parse_duration

    pods = PendingPods(
        _kubernetes(settings, clock),
        clock,
        idle=parse_duration(settings.batch_idle_duration),
        most=parse_duration(settings.batch_max_duration),
    )
    with pods.listening():
        yield pods


def _cluster(
    settings: Settings,
    catalog: CatalogInForce,
    imitation: Imitation,
    shelf: Shelf,
    source: FleetSource,
) -> Cluster:
    if settings.cluster == "none":
        raise UsageError(
            "there is no cluster to look at",
            where="cluster",
            remedy="use --set cluster=kubeconfig, or cluster=embedded, which imitates one from the "
            "EC2 instances it sees",
        )
    if settings.cluster == "kubeconfig":
        from reconciler.adapters.kubernetes.access import expect_one_cluster
        from reconciler.adapters.kubernetes.cluster import KubernetesCluster

        api = _kubernetes(settings, imitation.clock)
        expect_one_cluster(api.access, settings)
        return KubernetesCluster(api)
    from reconciler.adapters.simulated.cluster import EmbeddedCluster

    return EmbeddedCluster(
        shelf=shelf,
        types=catalog.get,
        workloads=lambda: source.workloads,
        clock=imitation.clock,
        joining_s=imitation.joining_s,
        ready_s=imitation.ready_s,
        starting_s=imitation.starting_s,
        leaving_s=imitation.leaving_s,
    )


def _kubernetes(settings: Settings, clock: Clock) -> Api:
    """Return the API of the cluster; nothing connects before it is asked."""
    from reconciler.adapters.kubernetes.access import access_of
    from reconciler.adapters.kubernetes.api import Api
    from reconciler.model.duration import parse_duration

    return Api(
        lambda: access_of(settings),
        lambda seconds: clock.wait(seconds, lambda: False),
        parse_duration(settings.kube_timeout).total_seconds(),
    )


def cluster_checks(settings: Settings, *, writes: bool) -> Iterator[Check]:
    """Yield what the Kubernetes API says of itself and of our permissions."""
    from reconciler.adapters.clock import SystemClock
    from reconciler.adapters.kubernetes.checks import cluster_checks

    return cluster_checks(_kubernetes(settings, SystemClock()), settings, writes=writes)
