"""Makes a plan: the one planner of previews, of the engine and of simulations.

First pending pods are placed, then nodes are selected for disruption; actions and costs follow from
that. Pure: every fact is in ``Facts``, and nothing is changed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Iterable, Iterator, Sequence
from dataclasses import replace

import msgspec

from reconciler.disruption.command import Decisions
from reconciler.disruption.gates.draining import drains_of, removed_nodes
from reconciler.model.decision.changes import DriftedClaim
from reconciler.model.decision.finding import PlanFinding
from reconciler.model.decision.waiting import Blocker, DeferredClaim
from reconciler.observed.state import ClusterState
from reconciler.placement.nodes.static import static_claims
from reconciler.placement.question import PlannedClaim
from reconciler.plan.automode import auto_mode_findings, is_auto_mode, left_to_auto_mode
from reconciler.plan.make import assemble, findings
from reconciler.plan.make.actions import (
    Namer,
    OwnedNode,
    UnlaunchedClaim,
    actions_of,
    unlaunched_claim,
)
from reconciler.plan.make.costs import (
    cost_of,
    owned_nodes,
    with_base,
    with_commitment_prices,
    with_lower_bound,
)
from reconciler.plan.make.decide import Phase, ignore_phase, lazy_scheduler, make_decisions
from reconciler.plan.make.disclosure import disclosed_drift
from reconciler.plan.make.facts import BaseCost, Facts
from reconciler.plan.make.factscache import FactsCache
from reconciler.plan.make.launch import BootImages, launch_classes
from reconciler.plan.make.lookups import lookup_findings, selector_findings
from reconciler.plan.value.actions import BlockedNode, PlannedCommand
from reconciler.plan.value.costs import Cost
from reconciler.plan.value.nodes import PlannedHeadroom, PlannedNodeClaim, Reason, UnschedulablePod
from reconciler.plan.value.plan import Plan

WITHHELD = "Withheld"
"""The code of the reason why a pod gets no new node in such a plan."""


def withhold_actions(plan: Plan, why: str, pending: Container[str]) -> Plan:
    """Return the plan without its actions; ``why`` is the reason of its ``pending`` pods."""
    planned = {claim.name for claim in plan.node_claims}
    lost = {p.pod for p in plan.placements if p.node_claim in planned}
    reason = Reason(code=WITHHELD, message=why)
    unplaced = [UnschedulablePod(pod=pod, reasons=(reason,)) for pod in lost if pod in pending]
    return msgspec.structs.replace(
        plan,
        node_claims=(),
        placements=tuple(p for p in plan.placements if p.pod in pending and p.pod not in lost),
        unschedulable=tuple(sorted((*plan.unschedulable, *unplaced), key=lambda u: u.pod)),
        headroom=tuple(map(_without_claims, plan.headroom)),
        commands=(),
        actions=(),
        cost=_unchanged_cost(plan.cost),
    )


def _without_claims(room: PlannedHeadroom) -> PlannedHeadroom:
    lost = sum(room.node_claims.values())
    return msgspec.structs.replace(room, node_claims={}, unschedulable=room.unschedulable + lost)


def _unchanged_cost(cost: Cost) -> Cost:
    """Return a cost without any change."""
    pools = {
        name: msgspec.structs.replace(c, after=c.before, nodes_after=c.nodes_before)
        for name, c in cost.by_node_pool.items()
    }
    return msgspec.structs.replace(
        cost,
        after=cost.before,
        by_node_pool=pools,
        lower_bound=None,
        bound_gap=None,
        bound_held_by=None,
    )


def make_plan(facts: Facts, phase: Phase = ignore_phase, cache: FactsCache | None = None) -> Plan:
    """Return the plan for these facts: the same facts give the same plan.

    ``cache`` only saves time.
    """
    memory = cache.schedulers if cache is not None else None
    scheduler = lazy_scheduler(facts, facts.salt, memory)
    decisions = make_decisions(facts, facts.salt, phase, scheduler, cache)
    static = static_claims(facts.types.ready, facts.cluster, facts.settings, salt=facts.salt)
    if facts.covers:
        decisions = _with_commitment_prices(decisions, facts)
    outcome = outcome_of(facts, decisions, static)
    cost = outcome.cost
    # the bound is for readers, and ignores that commitments are used up
    if facts.lists_blockers and not facts.covers:
        cost = with_lower_bound(cost, scheduler, facts.cluster, decisions.placement)
    plan = _with_base_cost(_plan_of(facts, decisions, outcome, cost), facts.base_cost)
    if not facts.withheld:
        return plan

    return withhold_actions(plan, facts.withheld, {pod.key for pod in facts.cluster.pending})


def _plan_of(facts: Facts, decisions: Decisions, outcome: PlanOutcome, cost: Cost) -> Plan:
    """Return the plan for the decisions; ``cost`` is theirs, without that of the base."""
    placements, claims, commands = outcome.placements, outcome.claims, outcome.commands
    drifted = tuple(map(disclosed_drift, facts.drift))
    disrupted = {node for command in commands for node in command.nodes}
    waiting = {(item.node, item.reason) for item in decisions.deferred}
    blocked = tuple(
        assemble.blocked_node(b, facts.cluster)
        for b in decisions.blocked
        if b.node not in disrupted  # a method rejected it, and another one selects it
        and (b.node, b.reason) not in waiting  # it is listed once, with what it waits for
    )
    left = left_to_auto_mode(facts.cluster.pending, facts.pools)
    return Plan(
        fleet=facts.settings.fleet,
        at=facts.now,
        serial=facts.serial,
        revision=facts.revision,
        inputs_digest=facts.inputs_digest,
        inputs=facts.digests,
        changes=facts.changes,
        compared_with=facts.compared_with,
        actor=facts.actor,
        node_claims=claims,
        placements=placements.placed_pods(),
        unschedulable=assemble.unschedulable_pods(
            decisions.placement, facts.virtual, facts.types.unready, left
        ),
        headroom=_headroom(facts, placements, decisions),
        drift=drifted,
        commands=commands,
        blocked=blocked,
        budgets=decisions.budgets,
        actions=actions_of(
            claims, outcome.unlaunched, commands, _nodes_by_name(outcome.nodes, facts.cluster)
        ),
        deferred=decisions.deferred,
        blockers=_blockers(facts, decisions),
        cost=cost,
        observation=facts.observation,
        observed_at=facts.observed_at,
        observed=dict(facts.observed),
        diagnostics=(
            *_overdue_findings(facts, drifted, commands, blocked, decisions.deferred),
            *_findings(facts, decisions, claims),
            *findings.uninitialized_findings(facts, outcome.nodes),
            *_auto_mode_findings(facts, decisions, left),
        ),
        lock=facts.lock,
        node_classes=launch_classes(
            [*(c.node_pool for c in claims), *(c.node_pool for c in outcome.unlaunched)],
            facts.types.by_name,
            facts.classes,
        ),
    )


def _with_base_cost(plan: Plan, change: BaseCost | None) -> Plan:
    """Return a plan with what its change costs, and what its base does."""
    if change is None:
        return plan
    return msgspec.structs.replace(
        plan,
        cost=with_base(plan.cost, change.base),
        at_rest=change.at_rest,
        offers=dict(change.offers),
    )


def _auto_mode_findings(
    facts: Facts, decisions: Decisions, left: frozenset[str]
) -> Iterator[PlanFinding]:
    unplaced = sorted(left & assemble.unplaced_pods(decisions.placement))
    return auto_mode_findings(unplaced, facts.pools, has_base=facts.base_cost is not None)


class PlanOutcome(msgspec.Struct, frozen=True):
    """The result of decisions: new NodeClaims, placements, commands, and cost."""

    placements: assemble.PlanPlacements
    claims: tuple[PlannedNodeClaim, ...]
    commands: tuple[PlannedCommand, ...]
    nodes: tuple[OwnedNode, ...]
    unlaunched: tuple[UnlaunchedClaim, ...]
    cost: Cost


def outcome_of(facts: Facts, decisions: Decisions, static: Iterable[PlannedClaim]) -> PlanOutcome:
    """Return the result of decisions; ``static`` are the claims that static pools lack."""
    namer = Namer(_claim_names(facts.cluster))
    placements = assemble.collect_placements(
        decisions, static, namer, facts.types.by_name, facts.virtual
    )
    images = BootImages(facts.classes, facts.types.by_name)
    claims = tuple(map(images.with_image, placements.node_claims(facts.cluster.pods)))
    commands = tuple(assemble.planned_command(c, placements) for c in decisions.commands)
    bounded = (command for command in decisions.commands if command.ends_drain)
    drains = drains_of(
        facts.cluster,
        removed_nodes(facts.cluster, decisions.commands),
        removed_nodes(facts.cluster, bounded),
        facts.now,
    )
    nodes = owned_nodes(facts.cluster, facts.types.by_name, facts.catalog, drains)
    unlaunched = _unlaunched_claims(facts, commands, images)
    names = [pool.name for pool in facts.pools if not is_auto_mode(pool)]
    cost = cost_of(names, nodes, commands, claims, unlaunched)
    return PlanOutcome(placements, claims, commands, nodes, unlaunched, cost)


def _with_commitment_prices(decisions: Decisions, facts: Facts) -> Decisions:
    """Return the decisions, with new claims priced by the unused part of commitments."""
    placement = decisions.placement
    if placement is None:
        return decisions
    placement = replace(
        placement, claims=with_commitment_prices(placement.claims, facts.covers, facts.uncovered)
    )
    return replace(decisions, placement=placement)


def _headroom(
    facts: Facts, placements: assemble.PlanPlacements, decisions: Decisions
) -> tuple[PlannedHeadroom, ...]:
    if not facts.headroom:
        return ()
    gone = removed_nodes(facts.cluster, decisions.commands)
    nodes_by_pod = {
        pod: where for pod, where in placements.nodes_by_pod.items() if where not in gone
    }
    return assemble.planned_headroom(
        facts.headroom, nodes_by_pod, placements.new_claim_names, decisions.placement
    )


def _blockers(facts: Facts, decisions: Decisions) -> tuple[Blocker, ...]:
    """Return what blocks disruption and since when, the most expensive first."""
    blockers = decisions.blockers
    if facts.history is not None:
        known = {(b.kind, b.name): facts.history.obstacle(b.kind, b.name) for b in blockers}
        first = {key: facts.now if o is None else o.since for key, o in known.items()}
        blockers = tuple(msgspec.structs.replace(b, since=first[b.kind, b.name]) for b in blockers)
    return tuple(sorted(blockers, key=lambda b: (-(b.forgone or 0.0), b.kind, b.name)))


def _overdue_findings(
    facts: Facts,
    drifted: Sequence[DriftedClaim],
    commands: Sequence[PlannedCommand],
    blocked: Sequence[BlockedNode],
    deferred: Sequence[DeferredClaim],
) -> Iterator[PlanFinding]:
    """Yield the nodes that drifted long ago and still exist."""
    if not drifted:
        return
    claims = {node.claim.name: node.claim for node in facts.cluster.nodes if node.claim is not None}
    late = findings.overdue_claims(
        drifted, commands, blocked, deferred, claims, facts.settings, facts.now
    )
    yield from (item.finding() for item in late)


def _claim_names(cluster: ClusterState) -> Iterator[str]:
    yield from (n.claim.name for n in cluster.nodes if n.claim is not None)
    yield from (claim.name for claim in cluster.unlaunched)


def _unlaunched_claims(
    facts: Facts, commands: Sequence[PlannedCommand], images: BootImages
) -> tuple[UnlaunchedClaim, ...]:
    """Return the claims that were created and not launched, and that no command removes."""
    removed = {name for command in commands for name in command.node_claims}
    return tuple(
        images.unlaunched_with_image(
            unlaunched_claim(claim, facts.types.by_name.get(claim.node_pool))
        )
        for claim in sorted(facts.cluster.unlaunched, key=lambda c: c.name)
        if claim.name not in removed and not claim.is_deleting
    )


def _nodes_by_name(nodes: Sequence[OwnedNode], cluster: ClusterState) -> dict[str, OwnedNode]:
    """Return the nodes by the names that a command may use for them."""
    by_name = {node.name: node for node in nodes} | {node.node_claim: node for node in nodes}
    for claim in cluster.unlaunched:
        unlaunched_node = OwnedNode(
            claim.name, claim.name, claim.node_pool, price=0.0, has_node=False
        )
        by_name.setdefault(claim.name, unlaunched_node)
    return by_name


def _nodes_by_pool(facts: Facts) -> dict[str, int]:
    """Return how many nodes each NodePool has: in the base of a change, otherwise now."""
    if facts.base_cost is not None:
        pools = facts.base_cost.at_rest.by_node_pool
        return {name: pool.before.nodes for name, pool in pools.items()}
    return dict(Counter(node.node_pool for node in facts.cluster.nodes if node.is_managed))


def _findings(
    facts: Facts, decisions: Decisions, claims: Sequence[PlannedNodeClaim]
) -> tuple[PlanFinding, ...]:
    found = (
        *findings.workload_findings(facts),
        *facts.findings,
        *findings.foreign_limits_findings(facts.settings),
        *findings.region_findings(facts.left_region, facts.settings.region, facts.changes),
        *selector_findings(facts.changes, facts.classes, facts.pools, _nodes_by_pool(facts)),
        *lookup_findings(facts),
        *findings.decision_findings(facts, decisions),
        *findings.lock_findings(facts.lock),
        *findings.catalog_findings(facts, claims),
        *facts.buffer_findings,
    )
    return tuple(dict.fromkeys(found))
