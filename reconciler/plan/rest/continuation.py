"""Continues a fleet, plan after plan, until nothing is left to do.

The clock is virtual. A launch takes ``LAUNCH``, a removal ``REMOVAL``. If a plan changes nothing,
the clock jumps to the next moment at which one may. All work is counted, so that the same inputs
end at the same point on every machine.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field
from dataclasses import replace as with_fields
from datetime import datetime, timedelta
from typing import Final

import msgspec
from msgspec.structs import replace

from reconciler.disruption.calendar import Windows, protected_until
from reconciler.disruption.command import Command, Decisions, Deferral, WaitsFor
from reconciler.disruption.decide import decide
from reconciler.disruption.disruptionpass import WORK_MAX
from reconciler.disruption.gates.consolidatable import consolidatable_at, retained_until
from reconciler.disruption.gates.guards import WAVE_REASONS, count_remaining_nodes, wave_size
from reconciler.disruption.gates.pdb import PodDisruptionBudgets
from reconciler.disruption.gates.policy import forceful_expiry_at
from reconciler.disruption.methods.forceful import toleration_ends_at
from reconciler.disruption.simulation import examinable_nodes
from reconciler.model.history import DAY, DisruptionRecord, History, Move, Rollout
from reconciler.model.karpenter.nodepool import NodePool
from reconciler.model.settings import FeatureGate, Settings
from reconciler.observed.state import ClusterState
from reconciler.placement.nodes.static import static_claims
from reconciler.placement.question import Placement, PlannedClaim
from reconciler.plan.make.actions import Namer
from reconciler.plan.make.costs import owned_nodes, sum_dollars
from reconciler.plan.make.decide import (
    PlacementDecisions,
    disruption_inputs,
    ignore_phase,
    make_decisions,
)
from reconciler.plan.make.facts import Facts
from reconciler.plan.make.factscache import FactsCache
from reconciler.plan.make.gather import facts_of, with_cluster
from reconciler.plan.make.inputs import Inputs
from reconciler.plan.make.planner import outcome_of
from reconciler.plan.rest.nodes import InstantLauncher
from reconciler.plan.rest.world import (
    FleetTransition,
    RestingFleet,
    apply_transition,
    pods_blocking_drain,
    start_nodes,
)
from reconciler.plan.value.costs import Cost

# The history for the rate limits of a fleet that is continued in memory.


def record_disruptions(
    history: History,
    commands: Iterable[Command],
    cluster: ClusterState,
    settings: Settings,
    now: datetime,
    done: datetime,
) -> History:
    """Return the history after the commands of ``now`` have ended at ``done``.

    ``cluster`` is the one before. Everything that a wave has moved is healthy.
    """
    pools = {n.claim.name: n.node_pool for n in cluster.nodes if n.claim is not None}
    rollouts = {rollout.node_pool: rollout for rollout in history.rollouts}
    recent = [row for row in history.taken if now - row.at < DAY]
    for command in commands:
        if command.is_forceful:
            continue
        counts = Counter(pools.get(name, "") for name in command.node_claims)
        for pool, nodes in sorted(counts.items()):
            recent.append(DisruptionRecord(now, pool, nodes))
            if command.reason in WAVE_REASONS and settings.pool(pool).wave_size:
                known = rollouts.get(pool) or Rollout(pool)
                rollouts[pool] = _add_to_wave(known, command, nodes, cluster, settings, now, done)
    ordered = tuple(rollouts[pool] for pool in sorted(rollouts))
    return replace(history, taken=tuple(recent), rollouts=ordered)


def _add_to_wave(
    rollout: Rollout,
    command: Command,
    nodes: int,
    cluster: ClusterState,
    settings: Settings,
    now: datetime,
    done: datetime,
) -> Rollout:
    pool = rollout.node_pool
    if not rollout.moves:
        size = wave_size(pool, count_remaining_nodes(cluster.nodes)[pool], settings)
        rollout = replace(rollout, wave=rollout.wave + 1, size=size)
    move = Move(command.id, started_at=now, nodes=nodes, ended_at=done, healthy_at=done)
    return replace(rollout, moves=(*rollout.moves, move))


def close_healthy_waves(history: History, settings: Settings, now: datetime) -> History:
    """Return the history with every wave closed that has been healthy for long enough."""
    if not history.rollouts:
        return history
    return replace(
        history, rollouts=tuple(_close_if_healthy(r, settings, now) for r in history.rollouts)
    )


def _close_if_healthy(rollout: Rollout, settings: Settings, now: datetime) -> Rollout:
    soak = settings.pool(rollout.node_pool).wave_soak
    over = all(move.is_settled(soak, now) for move in rollout.moves)
    return replace(rollout, moves=()) if over else rollout


# How far the clock of a continued fleet advances if nothing can be done at once.


_GRAIN: Final = timedelta(minutes=5)
"""Nodes whose ``consolidateAfter`` ends this close together are evaluated together; for a longer
wait, so are those whose wait ends before it has doubled. A thousand nodes then do not need a
thousand passes."""


def next_possible_change(
    cluster: ClusterState,
    pools: Iterable[NodePool],
    settings: Settings,
    deferred: Iterable[Deferral],
    now: datetime,
) -> datetime | None:
    """Return the next time at which something that the fleet waits for may happen, or None.

    A fleet does not wait for the expiry of a node, but it happens if the fleet waits longer.
    """
    by_name = {pool.name: pool for pool in pools}
    quiet = [at for at in _consolidatable_times(cluster, by_name, deferred) if at > now]
    fixed = [at for at in _opening_times(cluster, deferred) if at > now]
    first = min([*quiet, *fixed], default=None)
    if first is None:
        return None
    reach = first + max(_GRAIN, first - now)
    group_end = max((at for at in quiet if at <= reach), default=first)
    stops = [at for at in (*fixed, *_forceful_times(cluster, settings)) if at > now]
    return min([max(first, group_end), *stops])


def _consolidatable_times(
    cluster: ClusterState, pools: dict[str, NodePool], deferred: Iterable[Deferral]
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


def _opening_times(cluster: ClusterState, deferred: Iterable[Deferral]) -> Iterator[datetime]:
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
        if node.node is not None and settings.gate(FeatureGate.NODE_REPAIR):
            ends = toleration_ends_at(node.node.status.conditions)
            if ends is not None:
                yield ends


_WINDOWS_MAX: Final = 50
"""The maximum number of window changes that are searched for a new combination."""


def next_opening(
    windows: Windows, now: datetime, seen: Collection[tuple[bool, ...]]
) -> datetime | None:
    """Return when windows are next in a combination that is not in ``seen``, None if never.

    Consolidation evaluates nothing while its budget is closed, so nothing reports that it waits.
    """
    at = now
    for _ in range(_WINDOWS_MAX):
        moments = windows.change_times(at)
        following = min((m for m in moments if m is not None and m > at), default=None)
        if following is None or following - now > HORIZON:
            return None
        at = following
        if windows.active_flags(at) not in seen:
            return at
    return None


LAUNCH: Final = timedelta(minutes=1)
"""How long it takes from a launch to a node that is ready."""
REMOVAL: Final = timedelta(minutes=1)
"""How long it takes to drain a node and to terminate its instance."""
HORIZON: Final = timedelta(days=30)
"""How far ahead a fleet is continued; what waits longer never ends."""

_NODE: Final = 100
"""Creating a scheduler costs as much as evaluating each node this many times."""
_POD: Final = 50
"""Placing a pending pod costs as much as evaluating this many nodes."""
_ANSWER: Final = 2_000
"""The minimum cost of a plan."""


@dataclass
class Work:
    """The remaining work, in evaluated nodes."""

    remaining: int

    @property
    def is_used_up(self) -> bool:
        return self.remaining <= 0

    def increased_by(self, amount: int) -> Work:
        """Return the remaining work with this addition."""
        return Work(max(self.remaining, 0) + amount)

    def spend(self, amount: int) -> None:
        """Subtract what was used."""
        self.remaining -= amount


@dataclass(frozen=True)
class RestResult:
    """The end of continuing a fleet.

    ``at`` is the time it reached, ``last`` the end of its last action, None without one. ``rested``
    is whether nothing is left to do, and ``ended`` whether the work limit was reached before that;
    if neither, something waits beyond the horizon. ``decisions`` are the last result, for
    ``facts``; ``cost_first`` (USD an hour), ``drifted_first`` and ``first`` are of the first one.
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
    decisions: Decisions | PlacementDecisions = field(default_factory=Decisions)

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
) -> RestResult:
    """Return the state that the fleet reaches from ``start`` on, under the inputs.

    ``answers`` limits the number of plans. Nothing is left to do after every combination of open
    windows has been planned; the fleet is then at rest as of the first of these plans.
    """
    world = start_nodes(world, start)
    history = close_healthy_waves(history, inputs.settings, start)
    cache = FactsCache()
    facts = facts_of(_inputs_at(inputs, world, start, history), cache=cache)
    world = with_fields(world, prices={**node_prices(facts), **world.prices})
    windows = Windows.from_settings(facts.pools, inputs.settings)
    launcher = InstantLauncher.for_revision(facts, inputs.fleet, inputs.settings)
    rest = RestResult(
        inputs, world, facts, start, start, history, sum_dollars(world.node_prices.values())
    )
    number = 0
    quiet, seen = rest, set[tuple[bool, ...]]()
    while not (number and work.is_used_up) and number != answers:
        if number:
            history = close_healthy_waves(rest.history, inputs.settings, rest.at)
            facts = with_cluster(facts, _inputs_at(inputs, rest.world, rest.at, history), cache)
        answer = _decide_within_limit(facts, f"rest\n{number}", work, cache)
        static = static_claims(
            facts.types.ready, facts.cluster, inputs.settings, salt=f"rest\n{number}"
        )
        if not number:
            first = outcome_of(facts, answer, static).cost
            rest = with_fields(rest, drifted_first=len(facts.drift), first=first)
        number += 1
        rest = with_fields(rest, decisions=answer, facts=facts, history=history)
        step = _apply_decisions(rest, answer, static, launcher, inputs.settings)
        if step is not None:
            rest = step
            seen.clear()
            continue
        next_change = next_possible_change(
            rest.world.cluster, facts.pools, inputs.settings, answer.deferred, rest.at
        )
        if not seen or next_change is not None:
            quiet = rest
        seen.add(windows.active_flags(rest.at))
        opening = next_opening(windows, rest.at, seen)
        following = min((at for at in (next_change, opening) if at is not None), default=None)
        if following is None:
            return with_fields(quiet, rested=True)
        if following - start > HORIZON:
            return quiet
        rest = with_fields(rest, at=following)
    return with_fields(rest, ended=True)


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


def _decide_within_limit(
    facts: Facts, salt: str, work: Work, cache: FactsCache
) -> Decisions | PlacementDecisions:
    """Return what the planner decides within the remaining work."""
    cluster = facts.cluster
    work.spend(_ANSWER + _NODE * len(cluster.nodes) + _POD * len(cluster.pending))
    if not cluster.unlaunched and not any(node.is_managed for node in cluster.nodes):
        return make_decisions(facts, salt, ignore_phase)
    inputs = disruption_inputs(facts, salt, cache=cache)
    most = examinable_nodes(max(work.remaining, 0), len(cluster.nodes))
    answer = decide(with_fields(inputs, work_max=max(min(WORK_MAX, most), 1)))
    work.spend(answer.work)
    return answer


def _apply_decisions(
    rest: RestResult,
    answer: Decisions | PlacementDecisions,
    static: Iterable[PlannedClaim],
    launcher: InstantLauncher,
    settings: Settings,
) -> RestResult | None:
    """Return the effect of decisions, None if they change nothing."""
    cluster = rest.world.cluster
    gone = _removed_names(cluster, answer.commands)
    waiting = [c for c in rest.facts.cluster.unlaunched if not c.is_deleting and c.name not in gone]
    planned, placed_on = _planned_launches(answer, static, cluster)
    leaves = bool(gone) or _finishes_draining(cluster, rest.at)
    done = rest.at
    if planned or waiting:
        done += LAUNCH
    if leaves:
        done += REMOVAL
    launched = [launcher.launch(claim, done) for claim in planned]
    made = [node for claim in waiting if (node := launcher.launch_claim(claim, done)) is not None]
    places_pods = any(pod.key in placed_on for pod in cluster.pending)
    if not (launched or made or leaves or places_pods):
        return None
    names = frozenset(launch.node.name for launch in made)
    moves = FleetTransition(gone, placed_on, (*launched, *made), names | gone)
    return with_fields(
        rest,
        world=apply_transition(rest.world, moves, done),
        history=record_disruptions(rest.history, answer.commands, cluster, settings, rest.at, done),
        at=done,
        last=done,
    )


def _removed_names(cluster: ClusterState, commands: Iterable[Command]) -> frozenset[str]:
    """Return the names of the nodes that commands remove, and of claims without an instance."""
    named = {name for c in commands for name in (*c.nodes, *c.node_claims)}
    if not named:
        return frozenset()
    nodes = (
        node.name
        for node in cluster.nodes
        if node.name in named or (node.claim is not None and node.claim.name in named)
    )
    return frozenset((*nodes, *(c.name for c in cluster.unlaunched if c.name in named)))


def _planned_launches(
    answer: Decisions | PlacementDecisions, static: Iterable[PlannedClaim], cluster: ClusterState
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
    leaving = [node for node in cluster.nodes if node.is_deleting]
    if not leaving:
        return False
    budgets = PodDisruptionBudgets(cluster.pod_disruption_budgets)
    return any(not pods_blocking_drain(node, budgets, now) for node in leaving)
