"""Continues a fleet, plan after plan, until nothing is left to do.

The clock is virtual. A launch takes ``LAUNCH``, a removal ``REMOVAL``. If a plan changes nothing,
the clock jumps to the next moment at which one may. All work is counted, so that the same inputs
end at the same point on every machine.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from dataclasses import replace as with_fields
from datetime import datetime, timedelta
from typing import Final

import msgspec

from reconciler.disruption.calendar import HORIZON, Windows, protected_until
from reconciler.disruption.command import Command, Decisions
from reconciler.disruption.decide import decide
from reconciler.disruption.disruptionpass import WORK_MAX
from reconciler.disruption.gates.consolidatable import consolidatable_at, retained_until
from reconciler.disruption.gates.draining import drains_of, removed_nodes
from reconciler.disruption.gates.policy import forceful_expiry_at
from reconciler.disruption.methods.repairpolicy import repair_matches
from reconciler.disruption.simulation import examinable_nodes
from reconciler.model.chance import Chance
from reconciler.model.decision.waiting import DeferredClaim, WaitsFor
from reconciler.model.history import History
from reconciler.model.karpenter.nodepool import NodePool
from reconciler.model.kubernetes.profile import Profile
from reconciler.model.settings import Settings
from reconciler.observed.state import ClusterState
from reconciler.placement.nodes.existing import SchedulerMemory
from reconciler.placement.nodes.static import static_claims
from reconciler.placement.question import Placement, PlannedClaim
from reconciler.plan.make.actions import Namer
from reconciler.plan.make.costs import owned_nodes, sum_dollars
from reconciler.plan.make.decide import disruption_inputs, ignore_phase, make_decisions
from reconciler.plan.make.facts import Facts
from reconciler.plan.make.factscache import FactsCache
from reconciler.plan.make.gather import facts_of, with_cluster
from reconciler.plan.make.inputs import Inputs
from reconciler.plan.make.planner import outcome_of
from reconciler.plan.rest.binding import RestBinder, has_more_important_pending
from reconciler.plan.rest.limits import close_healthy_waves, record_disruptions
from reconciler.plan.rest.nodes import InstantLauncher
from reconciler.plan.rest.world import FleetTransition, RestingFleet, apply_transition, start_nodes
from reconciler.plan.value.costs import Cost

_GRAIN: Final = timedelta(minutes=5)
"""Nodes whose ``consolidateAfter`` ends this close together are evaluated together; for a longer
wait, so are those whose wait ends before it has doubled. A thousand nodes then do not need a
thousand passes."""

LAUNCH: Final = timedelta(minutes=1)
"""How long it takes from a launch to a node that is ready."""
REMOVAL: Final = timedelta(minutes=1)
"""How long it takes to drain a node and to terminate its instance."""
REBOOT: Final = timedelta(minutes=5)
"""How long it takes to drain a node, to reboot it, and until it is ready."""
_NODE: Final = 100
"""Creating a scheduler costs as much as evaluating each node this many times."""
_POD: Final = 50
"""Placing a pending pod costs as much as evaluating this many nodes."""
_ANSWER: Final = 2_000
"""The minimum cost of a plan."""


def next_possible_change(
    cluster: ClusterState, facts: Facts, deferred: Iterable[DeferredClaim], now: datetime
) -> datetime | None:
    """Return the next time at which something that the fleet waits for may happen, or None.

    A fleet does not wait for the expiry of a node, but it happens if the fleet waits longer.
    """
    by_name = {pool.name: pool for pool in facts.pools}
    quiet = [at for at in _consolidatable_times(cluster, by_name, deferred) if at > now]
    fixed = [at for at in _opening_times(cluster, deferred) if at > now]
    first = min([*quiet, *fixed], default=None)
    if first is None:
        return None
    reach = first + max(_GRAIN, first - now)
    group_end = max((at for at in quiet if at <= reach), default=first)
    stops = [at for at in (*fixed, *_forceful_times(cluster, facts.settings)) if at > now]
    return min([max(first, group_end), *stops])


def _consolidatable_times(
    cluster: ClusterState, pools: dict[str, NodePool], deferred: Iterable[DeferredClaim]
) -> Iterator[datetime]:
    """Yield when ``consolidateAfter`` of nodes ends."""
    for node in cluster.nodes:
        if node.claim is None or node.is_deleting:
            continue
        left_over_end = retained_until(node.claim)
        if left_over_end is not None:
            yield left_over_end
        pool = pools.get(node.node_pool)
        at = consolidatable_at(node.claim, pool) if pool is not None else None
        if at is not None:
            yield at
    for deferral in deferred:
        if deferral.waits_for is WaitsFor.CONSOLIDATE_AFTER and deferral.not_before is not None:
            yield deferral.not_before


def _opening_times(cluster: ClusterState, deferred: Iterable[DeferredClaim]) -> Iterator[datetime]:
    """Yield when windows open, suspensions end, and pods are no longer protected."""
    for deferral in deferred:
        if deferral.waits_for is not WaitsFor.CONSOLIDATE_AFTER and deferral.not_before is not None:
            yield deferral.not_before
    for pod in cluster.pods:
        at = protected_until(pod)
        if at is not None:
            yield at


def _forceful_times(cluster: ClusterState, settings: Settings) -> Iterator[datetime]:
    for node in cluster.nodes:
        if node.claim is None or node.is_deleting:
            continue
        at = forceful_expiry_at(node.claim, node.node_pool, settings)
        if at is not None:
            yield at
        if node.node is not None:
            yield from (match.tolerated_until for match in repair_matches(node.node, settings))


@dataclass
class Work:
    """The remaining work and that which was used, in evaluated nodes.

    ``has_cut_plan`` is whether the last plan might have found more with more of it.
    """

    remaining: int
    used: int = 0
    has_cut_plan: bool = False

    @property
    def is_used_up(self) -> bool:
        return self.remaining <= 0

    def increased_by(self, amount: int) -> Work:
        """Return the remaining work with this addition."""
        return Work(max(self.remaining, 0) + amount, self.used)

    def spend(self, amount: int) -> None:
        """Subtract what was used."""
        self.remaining -= amount
        self.used += amount


@dataclass
class _FirstPlan:
    """The first plan of a fleet: ``cluster`` before and ``world`` after its nodes have started."""

    cluster: ClusterState
    world: RestingFleet
    facts: Facts
    answer: Decisions
    work: int
    was_cut: bool


@dataclass
class SharedWork:
    """What runs with several seeds have in common; it saves time and changes nothing.

    Caches are kept for each of the inputs, and the first plan for each start of them. The memory of
    schedulers is that of all, and a binder that of all with the same ``kubeScheduler``.
    """

    binders: list[tuple[Mapping[str, Profile], RestBinder]] = field(default_factory=list)
    schedulers: SchedulerMemory = field(default_factory=SchedulerMemory)
    caches: dict[int, tuple[Inputs, FactsCache]] = field(default_factory=dict)
    first: dict[tuple[int, int], _FirstPlan] = field(default_factory=dict)

    def cache(self, inputs: Inputs) -> FactsCache:
        """Return the cache of one of the inputs."""
        fresh = FactsCache(self.schedulers)
        return self.caches.setdefault(id(inputs), (inputs, fresh))[1]

    def binder(self, settings: Settings) -> RestBinder:
        """Return the binder for the scheduler of these settings."""
        profiles = settings.scheduler_profiles
        for known, binder in self.binders:
            if known == profiles:
                return binder
        binder = RestBinder(profiles)
        self.binders.append((profiles, binder))
        return binder

    def for_other_inputs(self) -> SharedWork:
        """Return what runs of the same fleet under other inputs share: pods, nothing decided."""
        return SharedWork(self.binders, self.schedulers)


@dataclass(frozen=True)
class RestResult:
    """The end of continuing a fleet.

    ``at`` is the time it reached, ``last`` the end of its last action, None without one. ``rested``
    is whether nothing is left to do, and ``ended`` whether the work limit was reached before that;
    if neither, something waits beyond the horizon. ``decisions`` are the last result, for
    ``facts``; ``cost_first`` (USD an hour), ``drifted_first`` and ``first`` are of the first one.
    ``later`` are the commands after the first one, and ``schedulers`` the memory of those that
    placed its pods. ``work`` is what it took, in evaluated nodes, where somebody counts it.
    """

    inputs: Inputs
    world: RestingFleet
    facts: Facts
    began: datetime
    at: datetime
    history: History
    cost_first: float = 0.0
    drifted_first: int = 0
    last: datetime | None = None
    rested: bool = False
    ended: bool = False
    first: Cost | None = None
    decisions: Decisions = field(default_factory=Decisions)
    later: tuple[Command, ...] = ()
    schedulers: SchedulerMemory = field(default_factory=SchedulerMemory)
    work: int = 0

    def node_prices(self) -> dict[str, float]:
        """Return the cost of each managed node by NodeClaim, USD an hour; 0 if unknown.

        Commitments cover whatever runs, so with commitments prices are those at the end.
        """
        if self.inputs.settings.commitments is None:
            return self.world.node_prices
        return node_prices(self.facts)


def node_prices(facts: Facts) -> dict[str, float]:
    """Return the present cost of each managed node by NodeClaim, USD an hour; 0 if unknown."""
    owned = owned_nodes(facts.cluster, facts.types.by_name, facts.catalog)
    return {node.node_claim: node.price or 0.0 for node in owned}


def continue_fleet(
    inputs: Inputs,
    world: RestingFleet,
    start: datetime,
    history: History,
    work: Work,
    *,
    answers: int | None = None,
    chance: Chance | None = None,
    shared: SharedWork | None = None,
) -> RestResult:
    """Return the state that the fleet reaches from ``start`` on, under the inputs.

    ``answers`` limits the number of plans. ``chance`` decides what is undetermined in a cluster,
    and ``shared`` is what runs with other seeds have computed already. Nothing is left to do after
    every combination of open windows has been planned; the fleet is then at rest as of the first of
    these plans.
    """
    chance, shared = chance or Chance(), shared or SharedWork()
    cache, binder = shared.cache(inputs), shared.binder(inputs.settings)
    history = close_healthy_waves(history, inputs.settings, start)
    first_plan = _first_plan(inputs, world, start, history, work, shared)
    world, facts = first_plan.world, first_plan.facts
    windows = Windows.from_settings(facts.pools, inputs.settings)
    launcher = InstantLauncher.for_revision(facts, inputs.fleet, inputs.settings)
    cost = sum_dollars(world.node_prices.values())
    rest = RestResult(
        inputs, world, facts, start, start, history, cost, schedulers=shared.schedulers
    )
    number, quiet, seen = 0, rest, set[tuple[bool, ...]]()
    while not (number and work.is_used_up) and number != answers:
        salt = f"rest\n{number}"
        answer = first_plan.answer
        if number:
            rest = _with_present_facts(rest, cache)
            answer = _decide_within_limit(rest.facts, salt, work, cache)
        facts = rest.facts
        static = static_claims(facts.types.ready, facts.cluster, inputs.settings, salt=salt)
        rest = _with_decisions(rest, answer, static)
        number += 1
        step = _apply_decisions(rest, answer, static, launcher, chance, binder)
        if step is not None:
            rest = step
            seen.clear()
            continue
        if work.has_cut_plan:
            break  # a plan that could not evaluate all nodes proves nothing
        next_change = next_possible_change(rest.world.cluster, facts, answer.deferred, rest.at)
        if not seen or next_change is not None:
            quiet = rest
        seen.add(windows.active_flags(rest.at))
        opening = _next_opening(windows, rest.at, seen, start)
        following = min((at for at in (next_change, opening) if at is not None), default=None)
        if following is None:
            return with_fields(quiet, rested=True)
        if following - start > HORIZON:
            return quiet
        rest = with_fields(rest, at=following)
    return with_fields(rest, ended=True)


def _next_opening(
    windows: Windows, at: datetime, seen: Collection[tuple[bool, ...]], start: datetime
) -> datetime | None:
    """Return when windows are next open in a combination that is not in ``seen``, None if never.

    Beyond the horizon counts as never: nothing shows that something waits for it.
    """
    opening = windows.next_opening(at, seen)
    return None if opening is None or opening - start > HORIZON else opening


def _with_decisions(
    rest: RestResult, decisions: Decisions, static: Sequence[PlannedClaim]
) -> RestResult:
    """Return the result with the decisions for its facts; ``static`` are claims of static pools."""
    if rest.first is None:
        first = outcome_of(rest.facts, decisions, static).cost
        rest = with_fields(rest, drifted_first=len(rest.facts.drift), first=first)
    elif decisions.commands:
        rest = with_fields(rest, later=(*rest.later, *decisions.commands))
    return with_fields(rest, decisions=decisions)


def _with_present_facts(rest: RestResult, cache: FactsCache) -> RestResult:
    """Return the result with what holds at its moment: the history, and the facts for a plan."""
    history = close_healthy_waves(rest.history, rest.inputs.settings, rest.at)
    now = _inputs_at(rest.inputs, rest.world, rest.at, history)
    return with_fields(rest, history=history, facts=with_cluster(rest.facts, now, cache))


def _first_plan(
    inputs: Inputs,
    world: RestingFleet,
    start: datetime,
    history: History,
    work: Work,
    shared: SharedWork,
) -> _FirstPlan:
    """Return the first plan of a fleet, the same for every seed."""
    key = (id(inputs), id(world.cluster))
    known = shared.first.get(key)
    if known is not None and known.facts.now == start:
        work.spend(known.work)
        work.has_cut_plan = known.was_cut
        return known
    began, used, cache = world.cluster, work.used, shared.cache(inputs)
    world = start_nodes(world, start)
    facts = facts_of(_inputs_at(inputs, world, start, history), cache=cache)
    world = with_fields(world, prices={**node_prices(facts), **world.prices})
    answer = _decide_within_limit(facts, "rest\n0", work, cache)
    found = _FirstPlan(began, world, facts, answer, work.used - used, work.has_cut_plan)
    shared.first[key] = found
    return found


def _inputs_at(inputs: Inputs, world: RestingFleet, now: datetime, history: History) -> Inputs:
    """Return the inputs of the planner at a time of the virtual clock."""
    return msgspec.structs.replace(
        inputs,
        cluster=world.cluster,
        now=now,
        instances=world.instances,
        history=history,
        nominated=frozenset(),
        unsettled=frozenset(),
        against=None,
        lists_blockers=False,
        finds_steady_state=False,
    )


def _decide_within_limit(facts: Facts, salt: str, work: Work, cache: FactsCache) -> Decisions:
    """Return what the planner decides within the remaining work."""
    cluster, work.has_cut_plan = facts.cluster, False
    work.spend(_ANSWER + _NODE * len(cluster.nodes) + _POD * len(cluster.pending))
    if not cluster.unlaunched and not any(node.is_managed for node in cluster.nodes):
        return make_decisions(facts, salt, ignore_phase)
    inputs = disruption_inputs(facts, salt, cache=cache)
    most = examinable_nodes(max(work.remaining, 0), len(cluster.nodes))
    answer = decide(with_fields(inputs, work_max=max(min(WORK_MAX, most), 1)))
    work.spend(answer.work)
    work.has_cut_plan = most < WORK_MAX and answer.reached_limit
    return answer


def _apply_decisions(
    rest: RestResult,
    answer: Decisions,
    static: Iterable[PlannedClaim],
    launcher: InstantLauncher,
    chance: Chance,
    binder: RestBinder,
) -> RestResult | None:
    """Return the effect of decisions, None if they change nothing."""
    cluster = rest.world.cluster
    moves, done = _transition(rest, answer, static, launcher)
    if not _has_effect(moves, cluster, rest.at):
        return None
    world = apply_transition(rest.world, moves, done, chance, binder)
    if done == rest.at and world.cluster.pods == cluster.pods:
        return None  # no pod could be bound, or evicted for another one
    return with_fields(
        rest,
        world=world,
        history=record_disruptions(
            rest.history, answer.commands, cluster, rest.inputs.settings, rest.at, done
        ),
        at=done,
        last=done,
    )


def _transition(
    rest: RestResult, answer: Decisions, static: Iterable[PlannedClaim], launcher: InstantLauncher
) -> tuple[FleetTransition, datetime]:
    """Return what decisions change, and when that is done."""
    cluster = rest.world.cluster
    gone = _removed_names(cluster, answer.commands)
    waiting = [c for c in rest.facts.cluster.unlaunched if not c.is_deleting and c.name not in gone]
    planned, placed_on = _planned_launches(answer, static, cluster)
    rebooted = frozenset(n for c in answer.commands if not c.removes_nodes for n in c.nodes)
    done = rest.at
    if planned or waiting:
        done += LAUNCH
    if gone or _finishes_draining(cluster, rest.at):
        done += REMOVAL
    if rebooted:
        done += REBOOT
    launched = [launcher.launch(claim, done) for claim in planned]
    made = [node for claim in waiting if (node := launcher.launch_claim(claim, done)) is not None]
    names = frozenset(launch.node.name for launch in made)
    bounded = removed_nodes(cluster, (c for c in answer.commands if c.ends_drain))
    nodes = (*launched, *made)
    return FleetTransition(gone, placed_on, nodes, names | gone, bounded, rebooted), done


def _has_effect(moves: FleetTransition, cluster: ClusterState, at: datetime) -> bool:
    """Return whether a transition may change the cluster: nodes, or where pending pods run."""
    if moves.launched or moves.removed or moves.rebooted:
        return True
    places_pods = any(pod.key in moves.placed_on for pod in cluster.pending)
    return places_pods or has_more_important_pending(cluster) or _finishes_draining(cluster, at)


def _removed_names(cluster: ClusterState, commands: Iterable[Command]) -> frozenset[str]:
    """Return the names of the nodes that commands remove, and of claims without an instance."""
    commands = tuple(commands)
    named = {name for c in commands if c.removes_nodes for name in c.node_claims}
    unlaunched = (c.name for c in cluster.unlaunched if c.name in named)
    return removed_nodes(cluster, commands) | frozenset(unlaunched)


def _planned_launches(
    answer: Decisions, static: Iterable[PlannedClaim], cluster: ClusterState
) -> tuple[list[PlannedClaim], dict[str, str]]:
    """Return the NodeClaims to launch with unique names, and the node of each pod."""
    placements = [answer.placement, *map(_command_placement, answer.commands)]
    placed_on: dict[str, str] = {}
    planned: list[PlannedClaim] = []
    namer = Namer((*(n.name for n in cluster.nodes), *(c.name for c in cluster.unlaunched)))
    claims = list(static)
    for placement in placements:
        if placement is not None:
            placed_on.update(placement.on_nodes)
            claims += placement.claims
    for claim in claims:
        final = with_fields(claim, name=namer.name(claim.name))
        placed_on.update(dict.fromkeys(claim.pods, final.name))
        planned.append(final)
    return planned, placed_on


def _command_placement(command: Command) -> Placement | None:
    """Return where a command places pods, with its replacements as narrowed by its method."""
    if command.placement is None or not command.replacements:
        return command.placement
    return with_fields(command.placement, claims=command.replacements)


def _finishes_draining(cluster: ClusterState, now: datetime) -> bool:
    """Return whether a node that is being removed is gone by now."""
    return any(not blocking for blocking in drains_of(cluster, (), (), now).values())
