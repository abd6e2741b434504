"""Makes a plan: the one planner of previews, of the engine and of simulations.

The order is that of the questions: what does git change, which nodes no longer match, where do
waiting pods go, which nodes may go now, and what follows for actions and dollars. Pure: every
fact is in ``Inputs``, and nothing is done.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING

import msgspec

from reconciler.desired.objects import node_claims, node_classes, node_overlays, node_pools
from reconciler.model.decode import decode
from reconciler.model.karpenter.nodeclass import EC2NodeClass, EC2NodeClassStatus
from reconciler.observed.state import ClusterState
from reconciler.placement.nodes.static import static_claims
from reconciler.plan.make import assemble, findings
from reconciler.plan.make.actions import (
    Namer,
    OwnedNode,
    UnlaunchedClaim,
    actions_of,
    unlaunched_claim,
)
from reconciler.plan.make.costs import cost_of, owned_nodes, with_base, with_bound
from reconciler.plan.make.decide import Facts, Phase, Places, decided_by, scheduler_of, untimed
from reconciler.plan.make.inputs import Inputs
from reconciler.plan.make.launch import BootImages, launch_classes
from reconciler.plan.make.moves import changes_of, drift_of, drifted_claims
from reconciler.plan.make.pools import Memory, PoolTypes, pool_types
from reconciler.plan.value.actions import DeferredClaim
from reconciler.plan.value.changes import DriftedClaim
from reconciler.plan.value.costs import AtRest, Cost
from reconciler.plan.value.disruption import BlockedNode, PlannedBlocker, PlannedCommand
from reconciler.plan.value.nodes import PlannedHeadroom, PlannedNodeClaim, Reason, UnschedulablePod
from reconciler.plan.value.plan import Plan, PlanFinding, PlannedLock, content_digest

if TYPE_CHECKING:
    from reconciler.catalog.commitments.coverage import Cover
    from reconciler.disruption.command import Decisions
    from reconciler.placement.pods.headroom import Headroom
    from reconciler.placement.question import PlannedClaim


# A plan that does nothing: what is there may not be what the records say, so nobody acts on it.


WITHHELD = "Withheld"
"""The code of the reason why a pod gets no new node in such a plan."""


def withheld(plan: Plan, why: str, pending: Container[str]) -> Plan:
    """Return the plan without its actions; pods among ``pending`` that lose a place say ``why``."""
    planned = {claim.name for claim in plan.node_claims}
    lost = {p.pod for p in plan.placements if p.node_claim in planned}
    reason = Reason(code=WITHHELD, message=why)
    homeless = [UnschedulablePod(pod=pod, reasons=(reason,)) for pod in lost if pod in pending]
    return msgspec.structs.replace(
        plan,
        node_claims=(),
        placements=tuple(p for p in plan.placements if p.pod in pending and p.pod not in lost),
        unschedulable=tuple(sorted((*plan.unschedulable, *homeless), key=lambda u: u.pod)),
        headroom=tuple(map(_without_claims, plan.headroom)),
        commands=(),
        actions=(),
        cost=_unchanged(plan.cost),
    )


def _without_claims(room: PlannedHeadroom) -> PlannedHeadroom:
    lost = sum(room.node_claims.values())
    return msgspec.structs.replace(room, node_claims={}, unschedulable=room.unschedulable + lost)


def _unchanged(cost: Cost) -> Cost:
    """Return a cost after which everything is as before."""
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


def facts_of(inputs: Inputs) -> Facts:
    """Return what the inputs mean, the part of a plan that ``explain`` needs as well."""
    pools = node_pools(inputs.fleet)
    classes = _classes(inputs)
    coverage = None
    if inputs.settings.commitments is not None:
        from reconciler.plan.make.covering import covering, of_commitments, with_paid

        coverage = covering(inputs.settings, inputs.cluster, inputs.catalog, inputs.now)

    @cache
    def priced(covers: tuple[Cover, ...] = ()) -> PoolTypes:
        return pool_types(
            pools,
            classes,
            node_overlays(inputs.fleet),
            inputs.catalog,
            inputs.settings,
            any_class=inputs.any_class,
            unready=inputs.unready_classes,
            refused=inputs.refused,
            memory=_memory(inputs, classes),
            covers=covers,
        )

    covers = coverage.covers if coverage is not None else ()
    types = priced(covers)
    cluster, rooms = _with_headroom(inputs, _with_own_claims(inputs))
    if coverage is not None:
        cluster = with_paid(cluster, coverage)
        types = msgspec.structs.replace(
            types, findings=(*types.findings, *of_commitments(coverage))
        )
    if inputs.settings.default_constraints:
        from reconciler.plan.make.headroom import with_default_spread

        cluster = with_default_spread(cluster, inputs)
    return Facts(pools, classes, types, cluster, rooms, covers, lambda: priced().by_name)


def with_cluster(facts: Facts, inputs: Inputs) -> Facts:
    """Return the facts of ``inputs``, which ask what was asked before of another cluster.

    What the desired state means is not worked out anew, unless commitments make prices depend on
    what runs.
    """
    if inputs.settings.commitments is not None:
        return facts_of(inputs)
    cluster, rooms = _with_headroom(inputs, _with_own_claims(inputs))
    if inputs.settings.default_constraints:
        from reconciler.plan.make.headroom import with_default_spread

        cluster = with_default_spread(cluster, inputs)
    return msgspec.structs.replace(facts, cluster=cluster, headroom=rooms)


def _with_headroom(
    inputs: Inputs, cluster: ClusterState
) -> tuple[ClusterState, tuple[Headroom, ...]]:
    """Return the cluster with the pods that CapacityBuffers ask room for, and those buffers."""
    if not inputs.fleet.capacity_buffers and not cluster.capacity_buffers:
        return cluster, ()
    from reconciler.plan.make.headroom import headroom_of, with_headroom

    rooms = headroom_of(inputs)
    return with_headroom(cluster, rooms), rooms


def _memory(inputs: Inputs, classes: Mapping[str, EC2NodeClass]) -> Mapping[str, Memory]:
    """Return what nodes of each class were seen to have, in this look or an earlier one."""
    if not inputs.memory and not inputs.cluster.nodes:
        return {}
    from reconciler.catalog.adjusted.discovered import discovered, memory_of

    known = inputs.memory or discovered(inputs.cluster.nodes, classes, {}, inputs.now)
    return {name: memory_of(node_class, known) for name, node_class in classes.items()}


def _classes(inputs: Inputs) -> dict[str, EC2NodeClass]:
    """Return the desired classes; what was looked up for them may stand in the cluster's own."""
    live = {
        o["metadata"]["name"]: o["status"]
        for o in inputs.live
        if o.get("kind") == "EC2NodeClass" and o.get("status")
    }
    classes: dict[str, EC2NodeClass] = {}
    for node_class in node_classes(inputs.fleet):
        status = live.get(node_class.name)
        if status is not None and node_class.status == EC2NodeClassStatus():
            node_class = msgspec.structs.replace(
                node_class, status=decode(status, EC2NodeClassStatus)
            )
        classes[node_class.name] = node_class
    lock = inputs.fleet.lock_for(inputs.settings.region)
    if lock is None:
        return classes
    from reconciler.desired.lock import pinned

    return {name: pinned(c, lock.entry(name)) for name, c in classes.items()}


def _with_own_claims(inputs: Inputs) -> ClusterState:
    """Return the cluster with the NodeClaims that git declares and nobody has made yet."""
    declared = node_claims(inputs.fleet)
    if not declared:
        return inputs.cluster
    known = {n.claim.name for n in inputs.cluster.nodes if n.claim is not None}
    known.update(claim.name for claim in inputs.cluster.unlaunched)
    fresh = [claim for claim in declared if claim.name not in known]
    return replace(inputs.cluster, unlaunched=(*inputs.cluster.unlaunched, *fresh))


def make_plan(inputs: Inputs, phase: Phase = untimed) -> Plan:
    """Return the plan for ``inputs``: the same inputs give the same plan."""
    with phase("catalog"):
        facts = facts_of(inputs)
    drift = drift_of(inputs, facts.types, facts.classes)
    changes = changes_of(inputs, drift)
    digests = inputs.digests
    combined = content_digest(*(getattr(digests, n).encode() for n in digests.__struct_fields__))
    salt = f"{combined}\n{inputs.serial}"
    scheduler = scheduler_of(inputs, facts, salt)
    decisions = decided_by(inputs, facts, drift, salt, phase, scheduler)
    static = static_claims(facts.types.ready, facts.cluster, inputs.settings, salt=salt)
    if facts.covers:
        decisions = _settled(decisions, facts)
    outcome = outcome_of(inputs, facts, decisions, static)
    seating, claims, commands = outcome.seating, outcome.claims, outcome.commands
    cost = outcome.cost
    at_rest: AtRest | None = None
    if not facts.covers:  # the bound knows of no room that ends
        cost = with_bound(cost, scheduler, facts.cluster, decisions.placement)
    if inputs.against is not None:
        from reconciler.plan.rest.compare import compared

        with phase("disruption"):
            at_rest, base = compared(inputs, inputs.against)
        cost = with_base(cost, base)
    drifted = drifted_claims(drift)
    blocked = tuple(assemble.blocked_node(b, facts.cluster) for b in decisions.blocked)
    deferred = tuple(map(assemble.deferred_claim, decisions.deferred))
    plan = Plan(
        fleet=inputs.settings.fleet,
        at=inputs.now,
        serial=inputs.serial,
        revision=inputs.revision,
        inputs_digest=combined,
        inputs=digests,
        changes=changes,
        compared_with=inputs.compared_with,
        node_claims=claims,
        placements=seating.placements(),
        unschedulable=assemble.unschedulable_pods(decisions.placement, _virtual(facts)),
        headroom=_headroom(facts, seating, decisions),
        drift=drifted,
        commands=commands,
        blocked=blocked,
        budgets=tuple(map(assemble.pool_budget, decisions.budgets)),
        actions=actions_of(
            claims, outcome.unlaunched, commands, _by_name(outcome.nodes, facts.cluster)
        ),
        deferred=deferred,
        blockers=_blockers(inputs, decisions),
        cost=cost,
        observation=inputs.observation,
        observed=dict(inputs.observed),
        diagnostics=(
            *_overdue(inputs, drifted, commands, blocked, deferred),
            *_findings(inputs, facts, decisions, claims),
        ),
        lock=_lock(inputs),
        node_classes=launch_classes(
            [*(c.node_pool for c in claims), *(c.node_pool for c in outcome.unlaunched)],
            facts.types.by_name,
            facts.classes,
        ),
        at_rest=at_rest,
    )
    if not inputs.withheld:
        return plan

    return withheld(plan, inputs.withheld, {pod.key for pod in facts.cluster.pending})


class Decided(msgspec.Struct, frozen=True):
    """What decisions come to: new NodeClaims and the place of each pod, commands, and dollars."""

    seating: assemble.Seating
    claims: tuple[PlannedNodeClaim, ...]
    commands: tuple[PlannedCommand, ...]
    nodes: tuple[OwnedNode, ...]
    unlaunched: tuple[UnlaunchedClaim, ...]
    cost: Cost


def outcome_of(
    inputs: Inputs, facts: Facts, decisions: Decisions | Places, static: Iterable[PlannedClaim]
) -> Decided:
    """Return what decisions come to; ``static`` are the claims that static pools miss."""
    namer = Namer(_names(facts.cluster))
    seating = assemble.seated(decisions, static, namer, facts.types.by_name, _virtual(facts))
    images = BootImages(facts.classes, facts.types.by_name)
    claims = tuple(map(images.on, seating.node_claims(facts.cluster.pods)))
    commands = tuple(assemble.planned_command(c, seating) for c in decisions.commands)
    nodes = owned_nodes(facts.cluster, facts.types.by_name, inputs.catalog)
    unlaunched = _unlaunched(facts, commands, images)
    cost = cost_of([p.name for p in facts.pools], nodes, commands, claims, unlaunched)
    return Decided(seating, claims, commands, nodes, unlaunched, cost)


def _virtual(facts: Facts) -> frozenset[str]:
    """Return the pods that CapacityBuffers stand for."""
    return frozenset(pod.key for room in facts.headroom for pod in room.pods)


def _settled(decisions: Decisions | Places, facts: Facts) -> Decisions | Places:
    """Return the decisions with the new claims of waiting pods priced as far as room goes."""
    from reconciler.plan.make.covering import settled

    placement = decisions.placement
    if placement is None:
        return decisions
    placement = replace(placement, claims=settled(placement.claims, facts.covers, facts.uncovered))
    if isinstance(decisions, Places):
        return msgspec.structs.replace(decisions, placement=placement)
    return replace(decisions, placement=placement)


def _lock(inputs: Inputs) -> PlannedLock | None:
    lock = inputs.fleet.lock_for(inputs.settings.region)
    if lock is None:
        return None
    return PlannedLock(at=lock.locked_at, digest=lock.digest, catalog=lock.catalog.bundle)


def _headroom(
    facts: Facts, seating: assemble.Seating, decisions: Decisions | Places
) -> tuple[PlannedHeadroom, ...]:
    if not facts.headroom:
        return ()
    from reconciler.plan.make.headroom import planned_headroom

    gone = {node for command in decisions.commands for node in command.nodes}
    seats = {pod: where for pod, where in seating.seats.items() if where not in gone}
    return planned_headroom(facts.headroom, seats, seating.new, decisions.placement)


def _blockers(inputs: Inputs, decisions: Decisions | Places) -> tuple[PlannedBlocker, ...]:
    """Return what keeps nodes from going, dearest first; nothing is written where nothing does."""
    made = [assemble.planned_blocker(b, inputs.history, inputs.now) for b in decisions.blockers]
    dearest = sorted(made, key=lambda b: (-(b.forgone or 0.0), b.kind, b.name))
    return tuple(dearest)


def _overdue(
    inputs: Inputs,
    drifted: Sequence[DriftedClaim],
    commands: Sequence[PlannedCommand],
    blocked: Sequence[BlockedNode],
    deferred: Sequence[DeferredClaim],
) -> Iterator[PlanFinding]:
    """Yield what drifted long ago and is still there."""
    if not drifted:
        return
    from reconciler.plan.make.findings import overdue

    claims = {
        node.claim.name: node.claim for node in inputs.cluster.nodes if node.claim is not None
    }
    late = overdue(drifted, commands, blocked, deferred, claims, inputs.settings, inputs.now)
    yield from (item.finding() for item in late)


def _names(cluster: ClusterState) -> Iterator[str]:
    yield from (n.claim.name for n in cluster.nodes if n.claim is not None)
    yield from (claim.name for claim in cluster.unlaunched)


def _unlaunched(
    facts: Facts, commands: Sequence[PlannedCommand], images: BootImages
) -> tuple[UnlaunchedClaim, ...]:
    """Return the claims that were made and not launched, less those that a command takes."""
    going = {name for command in commands for name in command.node_claims}
    return tuple(
        images.on_unlaunched(unlaunched_claim(claim, facts.types.by_name.get(claim.node_pool)))
        for claim in sorted(facts.cluster.unlaunched, key=lambda c: c.name)
        if claim.name not in going and not claim.is_deleting
    )


def _by_name(nodes: Sequence[OwnedNode], cluster: ClusterState) -> dict[str, OwnedNode]:
    """Return the nodes by the names that a command may use for them."""
    by_name = {node.name: node for node in nodes} | {node.node_claim: node for node in nodes}
    for claim in cluster.unlaunched:
        unborn = OwnedNode(claim.name, claim.name, claim.node_pool, price=0.0, has_node=False)
        by_name.setdefault(claim.name, unborn)
    return by_name


def _findings(
    inputs: Inputs, facts: Facts, decisions: Decisions | Places, claims: Sequence[PlannedNodeClaim]
) -> tuple[PlanFinding, ...]:
    found = [
        *map(findings.finding, inputs.diagnostics),
        *facts.types.findings,
        *findings.of_daemon_sets(facts.cluster),
        *findings.of_decisions(decisions),
        *findings.of_lock(inputs.fleet.lock_for(inputs.settings.region)),
        *findings.of_catalog(inputs.catalog, claims),
    ]
    if inputs.fleet.capacity_buffers or facts.cluster.capacity_buffers:
        from reconciler.plan.make.headroom import of_buffers

        found += of_buffers(inputs, facts.headroom)
    return tuple(dict.fromkeys(found))
