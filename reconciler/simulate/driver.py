"""Runs the engine in virtual time, pass after pass, and skips to the next relevant time.

Nothing here decides anything about the fleet: passes belong to the engine, and the simulated world
determines what happens between them.

The engine waits for certain periods: for a node to join, for a replacement, for consolidateAfter,
for a window. Between two such times a pass that changed nothing would change nothing again, so a
simulation skips the time between them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Final

import msgspec

from reconciler.adapters.simulated.compute import CLAIM_TAG, SimulatedCompute
from reconciler.adapters.simulated.conditions import SimulatedClock
from reconciler.adapters.simulated.watched import WatchedCluster
from reconciler.disruption.calendar import HORIZON, Windows
from reconciler.disruption.command import BlockCode, ForcefulReason
from reconciler.disruption.decide import command_timeout
from reconciler.disruption.gates.consolidatable import retained_until
from reconciler.disruption.gates.guards import rollout_change_times
from reconciler.disruption.methods.repairpolicy import legacy_matches, repair_matches
from reconciler.engine.planning import PlannedFleet
from reconciler.engine.reboots import episode
from reconciler.engine.reconcile import Mandate, Pass, reconcile
from reconciler.engine.steps import lifecycle, nomination, provision, recovery, termination
from reconciler.engine.world import World
from reconciler.model.chance import Chance
from reconciler.model.duration import parse_duration
from reconciler.model.errors import CloudError, ClusterError, ReconcilerError, TransientCloudError
from reconciler.model.karpenter.labels import DO_NOT_DISRUPT
from reconciler.model.karpenter.nodeclaim import NodeClaim
from reconciler.model.karpenter.nodepool import NodePool
from reconciler.model.kubernetes.controllers import grace_period
from reconciler.model.kubernetes.pod import Pod
from reconciler.model.settings import Settings
from reconciler.model.text.times import format_time
from reconciler.observed.state import last_pod_change
from reconciler.plan.make.findings import drift_deadline
from reconciler.plan.planning import plan_of
from reconciler.ports.journal import Journal, Verb
from reconciler.ports.progress import EventKind, Progress
from reconciler.ports.state import StateStore
from reconciler.simulate.disruptionloop import LoopPlans
from reconciler.simulate.eventlog import EventLog
from reconciler.simulate.script import KilledError

_NO_PLACE: Final = BlockCode.UNSCHEDULABLE.value
_MINUTE: Final = timedelta(minutes=1)
_MOMENT: Final = timedelta(seconds=1)

PASS_INTERVAL: Final = timedelta(seconds=0.1)
PASS_INTERVAL_MAX: Final = timedelta(seconds=30)
"""The least time between two passes: so much for each NodeClaim, from a second up to the maximum.

Karpenter and the daemon act on each event, but passes of hundreds of nodes take longer.
"""
PASSES_MAX: Final = 20_000
"""The maximum number of passes of a simulation."""
_RESTLESS: Final = (timedelta(days=1), 3_000)
"""The time and the passes after which it stops, as pods or nodes come and go all the time."""
_PAUSE_MAX_S: Final = 60.0
_EACH_PASS: Final = 7
"""A pass takes as long as observing this many nodes, and each of its own nodes in addition."""
_EVALUATED_FOR_OBSERVED: Final = 35
"""How many nodes a plan evaluates for disruption in the time that observing one takes."""


@dataclass(frozen=True, slots=True)
class Outlook:
    """Relevant times in the future.

    ``awaited`` are those that the fleet waits for: a window, the end of consolidateAfter, an
    offering that becomes available. ``others`` do not depend on the fleet: a node expires, or a
    window opens that nothing waits for.
    """

    awaited: tuple[datetime, ...]
    others: tuple[datetime, ...]

    def next_after(self, now: datetime) -> datetime | None:
        """Return the first moment after ``now``."""
        return min((m for m in (*self.awaited, *self.others) if m > now), default=None)

    def is_settled(self, now: datetime) -> bool:
        """Return whether the fleet waits for nothing in the future."""
        return not any(m > now for m in self.awaited)


def look_ahead(done: Pass, world: World, fleet: PlannedFleet, now: datetime) -> Outlook:
    """Return the relevant times after a pass that changed nothing; others are continued at once."""
    store, settings, claims = world.store, fleet.settings, world.store.node_claims()
    pools = {pool.name: pool for pool in fleet.node_pools}
    awaited = [d.not_before for d in done.plan.deferred if d.not_before is not None]
    awaited += _consolidation_times(claims, pools, now)
    awaited += _operation_deadlines(claims, store, world.journal)
    for reboot in filter(None, map(episode.next_moment, claims)):
        awaited += [reboot, reboot + _MOMENT]
    if done.plan.unschedulable or any(b.code == _NO_PLACE for b in done.plan.blocked):
        awaited += [u.until for u in store.unavailable(now)]
    awaited += _protection_ends(done.seen.snapshot.pods)
    awaited += nomination.nomination_expiries(done.seen.snapshot, done.seen.nominations.values())
    awaited += rollout_change_times(store.rollouts(), settings)
    return Outlook(tuple(awaited), tuple(_independent_times(claims, done, settings)))


def _independent_times(
    claims: Collection[NodeClaim], done: Pass, settings: Settings
) -> Iterator[datetime]:
    """Yield when budgets, the age of nodes or their health matter, whatever the fleet waits for."""
    yield from filter(None, (budget.next_change for budget in done.plan.budgets))
    yield from filter(None, (claim.expires_at for claim in claims))
    for node in done.seen.snapshot.nodes:
        for match in repair_matches(node, settings) or legacy_matches(node):
            yield match.tolerated_until
    yield from _drain_deadlines(claims, done)
    yield from filter(None, (drift_deadline(claim, settings) for claim in claims))


def _consolidation_times(
    claims: Iterable[NodeClaim], pools: Mapping[str, NodePool], now: datetime
) -> Iterator[datetime]:
    """Yield when the ``consolidateAfter`` of nodes has passed."""
    for claim in claims:
        retained = retained_until(claim)
        if retained is not None and not claim.is_deleting:
            yield retained
        pool = pools.get(claim.node_pool)
        since = last_pod_change(claim)
        if pool is None or since is None or claim.is_deleting:
            continue
        after = pool.spec.disruption.consolidates_after
        if after is not None and claim.is_true(lifecycle.INITIALIZED) and since + after > now:
            yield since + after


def _claim_deadlines(claim: NodeClaim) -> Iterator[datetime]:
    """Yield when the instance or the Node of a claim must have appeared, or be gone."""
    missing = claim.condition(lifecycle.MISSING)
    if missing is not None and missing.last_transition_time is not None:
        yield missing.last_transition_time + lifecycle.VANISHED_AFTER
    launched = claim.condition(lifecycle.LAUNCHED)
    if launched is None or launched.last_transition_time is None:
        return
    if not claim.is_true(lifecycle.REGISTERED):
        yield launched.last_transition_time + lifecycle.REGISTRATION_TIMEOUT
    if claim.is_true(lifecycle.TERMINATING):
        yield launched.last_transition_time + lifecycle.VANISHED_AFTER


def _operation_deadlines(
    claims: Iterable[NodeClaim], store: StateStore, journal: Journal
) -> Iterator[datetime]:
    """Yield when operations in progress reach their deadlines."""
    running = store.commands()
    patience = command_timeout(sum(len(c.node_claims) for c in running))
    for command in running:
        yield command.started_at + patience
        yield command.started_at + patience + _MOMENT
    for claim in claims:
        yield from _claim_deadlines(claim)
    for entry in journal.in_doubt():
        if entry.intent.verb is Verb.LAUNCH:
            yield entry.intent.at + recovery.LAG


def _drain_deadlines(claims: Collection[NodeClaim], done: Pass) -> Iterator[datetime]:
    """Yield when pods are deleted against their budgets, and when a drain counts as stalled."""
    graces: dict[str, set[timedelta]] = {}
    pods = done.seen.snapshot.indexed_pods
    for claim in claims:
        if lifecycle.drain_deadline(claim):
            on_node = pods.by_node.get(claim.status.node_name, ())
            graces[claim.status.node_name] = set(map(grace_period, on_node))
    for pod in pods:
        deleted = pod.metadata.deletion_timestamp
        if deleted is not None:
            yield deleted + _MINUTE + _MOMENT
    for claim in claims:
        since = claim.metadata.deletion_timestamp
        if since is None:
            continue
        yield since + termination.DRAIN_PATIENCE
        deadline = lifecycle.drain_deadline(claim)
        if deadline is not None:
            yield deadline
            for span in sorted(graces.get(claim.status.node_name, ())):
                yield deadline - span


def _protection_ends(pods: Iterable[Pod]) -> Iterator[datetime]:
    """Yield when temporary protections of pods end."""
    for pod in pods:
        text = pod.metadata.annotations.get(DO_NOT_DISRUPT)
        if text is None or text == "true" or pod.status.start_time is None:
            continue
        try:
            yield pod.status.start_time + parse_duration(text)
        except (ValueError, OverflowError):
            continue


_FORCED: Final = frozenset(reason.value for reason in ForcefulReason)


def next_work(fleet: PlannedFleet, done: Pass, store: StateStore, now: datetime) -> datetime | None:
    """Return when a window opens or closes that allows the planner to act, None without one.

    Consolidation evaluates nothing while its budget is closed, so nothing shows that it waits. So
    the planner evaluates the current fleet at each future combination of windows.
    Expiry does not count: it never ends.
    """
    windows = Windows.from_settings(fleet.node_pools, fleet.settings)
    seen = {windows.active_flags(now)}
    at = windows.next_opening(now, seen)
    if at is None:
        return None
    refused = provision.unavailable_offerings(store, now)
    inputs = fleet.inputs(done.seen, refused, store.objects(), store.serial())
    while at is not None and at - now <= HORIZON:
        plan = plan_of(msgspec.structs.replace(inputs, now=at))
        if any(command.reason not in _FORCED for command in plan.commands):
            return at
        seen.add(windows.active_flags(at))
        at = windows.next_opening(at, seen)
    return None


class NextWindow:
    """The next window that a converged fleet waits for, searched once while nothing changes."""

    def __init__(self) -> None:
        self._next: datetime | None = None

    def add_to(
        self, ahead: Outlook, fleet: PlannedFleet, done: Pass, store: StateStore, now: datetime
    ) -> Outlook:
        """Return the outlook of an idle fleet with that window, if there is one."""
        if self._next is None or self._next <= now:
            self._next = next_work(fleet, done, store, now)
        return ahead if self._next is None else replace(ahead, awaited=(*ahead.awaited, self._next))

    def forget(self) -> None:
        """Forget the window: the fleet has changed."""
        self._next = None


class Sample(msgspec.Struct, frozen=True, rename="camel"):
    """The fleet at a time: USD an hour, running nodes, pods without a node."""

    at: datetime
    per_hour: float
    nodes: int
    pending: int


@dataclass
class SimulationStage:
    """A simulated world, and the engine's view of it.

    ``next_workload_change`` returns when the workload changes next without other events, as in a
    replayed trace. ``observed_nodes`` is how many nodes its passes observed together, and
    ``disruption_work`` how many nodes their plans evaluated.
    """

    clock: SimulatedClock
    compute: SimulatedCompute
    cluster: WatchedCluster
    world: World
    event_log: EventLog
    chance: Chance = field(default_factory=Chance)
    samples: list[Sample] = field(default_factory=list)
    passes: int = 0
    observed_nodes: int = 0
    disruption_work: int = 0
    next_workload_change: Callable[[datetime], datetime | None] = lambda _: None

    @property
    def work(self) -> int:
        """An estimate of the CPU time that is the same on every machine, in observed nodes."""
        plans = self.disruption_work // _EVALUATED_FOR_OBSERVED
        return self.passes * _EACH_PASS + self.observed_nodes + plans

    def per_hour(self) -> float:
        """Return the cost of the instances in USD an hour; terminating ones cost nothing."""
        now = self.clock.now()
        return round(sum(m.price(now) or 0.0 for m in self.compute.running_instances()), 9)


class EndlessError(ReconcilerError):
    """The simulation exceeded the limit of passes; it had reached ``at``."""

    def __init__(self, at: datetime, passes_max: int) -> None:
        super().__init__(
            f"the simulation stopped after {passes_max:,} passes, at {format_time(at)}",
            remedy="end it earlier with --until",
        )


@dataclass(frozen=True, slots=True)
class SimulationOutcome:
    """The result: the last pass, and whether the fleet converged.

    ``renamed`` has the key in the workloads of each pod that has another name at the end.
    """

    last: Pass | None
    converged: bool
    at: datetime
    renamed: Mapping[str, str]


def play(
    stage: SimulationStage,
    desired: Callable[[datetime], PlannedFleet],
    mandate: Mandate,
    until: datetime | None = None,
    watch: Callable[[Pass], None] = lambda _: None,
    passes_max: int | None = None,
    plans: LoopPlans | None = None,
) -> SimulationOutcome:
    """Run passes until ``until``, without it until nothing can change, or for a day if all does.

    ``desired`` returns the desired fleet at the beginning of each pass. ``watch`` receives every
    completed pass; there are at most ``passes_max``, by default ``PASSES_MAX``. ``plans`` makes
    the plans.

    Raises:
        EndlessError: the maximum number of passes is reached.
    """
    begin, passes_max, last = stage.clock.now(), passes_max or PASSES_MAX, None
    next_window, passes = NextWindow(), _Passes(stage, mandate, plans or LoopPlans())
    while True:
        if stage.passes >= passes_max:
            raise EndlessError(stage.clock.now(), passes_max)
        before = _progress_mark(stage)
        fleet = desired(stage.clock.now())
        done, pause = passes.run(fleet)
        now, ahead, at_rest = stage.clock.now(), None, False
        if done is not None:
            last = done
            watch(done)
        if done is None or _progress_mark(stage) != before:
            next_window.forget()
        else:
            ahead = look_ahead(done, stage.world, fleet, now)
            at_rest = done.is_quiet and passes.plans.due is None
            if until is None and at_rest and _is_idle(stage, ahead):
                ahead = next_window.add_to(ahead, fleet, done, stage.world.store, now)
                if ahead.is_settled(now):
                    return SimulationOutcome(last, True, now, stage.cluster.renamed_pods())
        following = _next_pass_at(stage, ahead, pause, passes.plans.due)
        end = _end_of(stage, begin, until)
        if following is None or following >= end:
            return _finish(stage, last, end, ahead if at_rest else None)
        stage.clock.advance((following - now).total_seconds())


def _end_of(stage: SimulationStage, begin: datetime, until: datetime | None) -> datetime:
    """Return when a simulation stops; one that is restless does now if it has no end."""
    if until is not None:
        return until
    now = stage.clock.now()
    is_restless = now - begin >= _RESTLESS[0] and stage.passes >= _RESTLESS[1]
    return now if is_restless else begin + HORIZON


def _finish(
    stage: SimulationStage, last: Pass | None, at: datetime, ahead: Outlook | None
) -> SimulationOutcome:
    """Return the outcome at the end; a fleet that is not at rest has nothing ``ahead``."""
    stage.clock.advance((at - stage.clock.now()).total_seconds())
    _notify_of_interruptions(stage)
    _record_sample(stage)
    settled = ahead is not None and ahead.is_settled(at)
    return SimulationOutcome(last, settled, at, stage.cluster.renamed_pods())


def _is_idle(stage: SimulationStage, ahead: Outlook) -> bool:
    """Return whether neither the fleet nor the cluster waits for anything."""
    return ahead.is_settled(stage.clock.now()) and stage.cluster.next_moment() is None


@dataclass(slots=True)
class _Passes:
    """Runs passes as a daemon does: it waits longer after each failure."""

    stage: SimulationStage
    mandate: Mandate
    plans: LoopPlans
    failures: int = 0

    def run(self, desired: PlannedFleet) -> tuple[Pass | None, timedelta | None]:
        """Run one pass; return it, or None if it was aborted, and how long to pause then."""
        stage, before = self.stage, self.plans.disruption_work
        _notify_of_interruptions(stage)
        stage.passes += 1
        done, pause = None, None
        try:
            done = reconcile(stage.world, desired, self.mandate, self.plans)
            stage.observed_nodes += len(done.seen.snapshot.nodes)
        except (TransientCloudError, CloudError, ClusterError) as error:
            stage.world.notify(EventKind.RETRYING, str(error))
        except KilledError as error:
            stage.world.notify(EventKind.KILLED, str(error))
            pause = error.restart
        stage.disruption_work += self.plans.disruption_work - before
        _record_sample(stage)
        if done is None:
            self.plans = LoopPlans()  # a killed process loses its memory
        if done is not None and not done.all_failed:
            self.failures = 0
            return done, pause
        self.failures += 1
        return done, pause or timedelta(seconds=min(2.0 ** (self.failures - 1), _PAUSE_MAX_S))


def _progress_mark(stage: SimulationStage) -> tuple[object, ...]:
    """Return a value that differs whenever a pass changed something."""
    journal = stage.world.journal
    newest = journal.entries(limit=1)
    return (
        stage.world.store.serial(),
        newest[0].sequence if newest else 0,
        len(journal.in_doubt()),
        len(stage.event_log.events),
    )


def _next_pass_at(
    stage: SimulationStage, ahead: Outlook | None, pause: timedelta | None, due: datetime | None
) -> datetime | None:
    """Return when the next pass is due, None if nothing will happen; ``due`` is not later.

    After a pass that changed something, nothing is known to be ``ahead``.
    """
    now = stage.clock.now()
    if pause is not None:
        return now + pause
    moments = [
        stage.compute.next_moment(),
        stage.cluster.next_moment(),
        stage.next_workload_change(now),
    ]
    if ahead is None:
        moments.append(now + _MOMENT)
    elif any(e.intent.verb is Verb.LAUNCH for e in stage.world.journal.in_doubt()):
        moments.append(now + PASS_INTERVAL_MAX)  # the call is repeated, as by the daemon
    else:
        moments.append(ahead.next_after(now))
    known = [m for m in moments if m is not None]
    claims = len(stage.world.store.node_claims())
    soonest = now + min(max(claims * PASS_INTERVAL, _MOMENT), PASS_INTERVAL_MAX)
    at = [max(min(known), soonest)] if known else []
    if due is not None and due > now:
        at.append(due)
    return _next_second(min(at)) if at else None


def _next_second(moment: datetime) -> datetime:
    """Return a moment, rounded up to a whole second."""
    return moment + timedelta(microseconds=-moment.microsecond % 1_000_000)


def _notify_of_interruptions(stage: SimulationStage) -> None:
    for notice in stage.compute.advance():
        claim = notice.instance.tags.get(CLAIM_TAG, "")
        text = f"EC2 reclaims {notice.instance.id} in two minutes"
        stage.event_log.notify(
            Progress(
                notice.at, EventKind.INTERRUPTED, text, node_claim=claim, reason="SpotInterruption"
            )
        )


def _record_sample(stage: SimulationStage) -> None:
    """Record the fleet if it changed."""
    nodes = len(stage.compute.running_instances())
    sample = Sample(stage.clock.now(), stage.per_hour(), nodes, stage.cluster.unbound_pod_count())
    known = stage.samples[-1] if stage.samples else None
    if known is None or (known.per_hour, known.nodes, known.pending) != (
        sample.per_hour,
        sample.nodes,
        sample.pending,
    ):
        stage.samples.append(sample)
