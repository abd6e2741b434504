"""One disruption pass: every command that may start now, and every rejection.

When the replacements of a command are ready, the command is validated once more.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from datetime import datetime, timedelta
from typing import Final

from reconciler.disruption.blockers import blockers_of
from reconciler.disruption.candidates import Drifted, describe_protection
from reconciler.disruption.command import Block, BlockCode, Decisions, ForcefulReason
from reconciler.disruption.consolidation.multinode import (
    CheckedConsolidation,
    MultiNodeConsolidation,
    MultiNodeOfOnePool,
)
from reconciler.disruption.consolidation.proposal import REASON, consolidation_candidates
from reconciler.disruption.consolidation.singlenode import SingleNodeConsolidation
from reconciler.disruption.consolidation.thorough import (
    MostWastefulSets,
    SmallSets,
    ThoroughConsolidation,
)
from reconciler.disruption.disruptionpass import DisruptionPass, Method
from reconciler.disruption.equalcandidates import with_equal_candidates
from reconciler.disruption.gates.policy import holds_of, is_due_for_expiry
from reconciler.disruption.inputs import DisruptionInputs, PassStart, open_pass
from reconciler.disruption.methods.drift import DriftMethod
from reconciler.disruption.methods.emptiness import Emptiness
from reconciler.disruption.methods.expiry import GracefulExpiry
from reconciler.disruption.methods.removal import Removal
from reconciler.disruption.methods.repair import RepairMethod
from reconciler.disruption.methods.repairpolicy import repair_matches
from reconciler.disruption.methods.staticdrift import StaticDrift
from reconciler.model.decision.waiting import DeferredClaim, WaitsFor
from reconciler.model.karpenter.budget import DisruptionReason
from reconciler.model.karpenter.labels import DO_NOT_DISRUPT, DO_NOT_REPAIR
from reconciler.model.settings import DecisionRules, Settings
from reconciler.observed.state import StateNode

_TIMEOUT_PER_NODE: Final = timedelta(milliseconds=80)
_TIMEOUT_MIN: Final = timedelta(minutes=10)
_TIMEOUT_MAX: Final = timedelta(hours=1)

METHODS: Final[tuple[Method, ...]] = (
    RepairMethod(),
    Emptiness(),
    StaticDrift(),
    DriftMethod(),
    Removal(),
    GracefulExpiry(),
    ThoroughConsolidation(),
    MultiNodeConsolidation(),
    SingleNodeConsolidation(),
    MultiNodeOfOnePool(),
    SmallSets(),
    MostWastefulSets(),
)
"""Karpenter's methods in its order, plus Removal and graceful expiry next to drift, and the
thorough search before and after multi-node and single-node consolidation.
"""
_THOROUGH: Final = (ThoroughConsolidation, SmallSets)
_CONSOLIDATION: Final = (
    *_THOROUGH,
    MultiNodeConsolidation,
    SingleNodeConsolidation,
    MultiNodeOfOnePool,
    MostWastefulSets,
)

_IMPROVEMENTS: Final = (*_THOROUGH, MultiNodeOfOnePool, MostWastefulSets)
"""Methods that Karpenter does not have."""


def command_timeout(queued: int) -> timedelta:
    """Return the timeout of a command while ``queued`` nodes are in commands.

    Launches are slower if many are requested at once; after an hour something is wrong (Karpenter
    ``queue.go``).
    """
    return min(max(_TIMEOUT_PER_NODE * queued, _TIMEOUT_MIN), _TIMEOUT_MAX)


def objection(
    reason: str, nodes: Sequence[StateNode], settings: Settings, now: datetime
) -> str | None:
    """Return why a voluntary command can no longer disrupt its nodes, or None.

    ``nodes`` are those of its nodes that still exist. A PodDisruptionBudget that is used up now is
    not an objection: the drain waits for it. Nor is a budget of the NodePool: the command already
    counts in it.
    """
    found = (_node_protection(node, reason, settings, now) for node in nodes)
    return _hold_message(reason, nodes, settings, now) or next(filter(None, found), None)


def _hold_message(
    reason: str, nodes: Sequence[StateNode], settings: Settings, now: datetime
) -> str | None:
    """Return the message of the suspension or closed window that holds one of the pools."""
    by_value = {r.value: r for r in DisruptionReason}
    gate = by_value.get(reason, DisruptionReason.DRIFTED)
    holds = holds_of(sorted({node.node_pool for node in nodes}), settings, now)
    return next(
        (hold.message for (_, held_reason), hold in holds.items() if held_reason is gate), None
    )


def _node_protection(node: StateNode, reason: str, settings: Settings, now: datetime) -> str | None:
    """Return which annotation protects the node, or that it is no longer empty or unhealthy."""
    if reason == DisruptionReason.UNHEALTHY:
        return _repair_objection(node, settings)
    if node.annotations.get(DO_NOT_DISRUPT) == "true":
        return f"node {node.name} {describe_protection(node.annotations)}"
    if reason == DisruptionReason.EMPTY and node.reschedulable:
        return f"node {node.name} is no longer empty"
    ends = node.claim is not None and node.claim.spec.termination_grace_period is not None
    if reason == DisruptionReason.DRIFTED and ends:
        return None  # the grace period ends such protection anyway
    pod = next((p for p in node.pods if not p.is_disruptable(now)), None)
    if pod is None:
        return None
    return f"pod {pod.key} {describe_protection(pod.metadata.annotations)}"


def _repair_objection(node: StateNode, settings: Settings) -> str | None:
    """Return why a node is no longer repaired: only its own annotation and its recovery count.

    Karpenter does not check again whether the node has recovered.
    """
    if node.annotations.get(DO_NOT_REPAIR) == "true":
        return f"node {node.name} is annotated {DO_NOT_REPAIR}"
    if node.node is None or settings.decide is DecisionRules.KARPENTER:
        return None
    return None if repair_matches(node.node, settings) else f"node {node.name} is healthy again"


def decide(inputs: DisruptionInputs, methods: Sequence[Method] = METHODS) -> Decisions:
    """Return what may start now, what is blocked and why, and what is deferred.

    Where Karpenter's rules decide, the first method that starts a command ends the pass. Otherwise
    the result of the thorough search is used only if the pass saves at least as much as without it.
    """
    exact = inputs.settings.decide is DecisionRules.KARPENTER
    waits = bool(inputs.unsettled) and not exact
    if exact:
        methods = [method for method in methods if not isinstance(method, _IMPROVEMENTS)]
    elif waits:
        methods = _with_consolidation(methods, _SettlingConsolidation())
    if inputs.checked:
        methods = _with_consolidation(methods, CheckedConsolidation(inputs.checked))
    inputs.refusals.begin_pass()
    start = _run_methods(inputs, methods)
    spent, reached_limit = start.work.simulation.work, start.work.reached_limit
    if start.work.used_thorough_search:
        plain = [method for method in methods if not isinstance(method, _THOROUGH)]
        without = _run_methods(inputs, plain)
        spent += without.work.simulation.work
        reached_limit = reached_limit or without.work.reached_limit
        if without.work.savings > start.work.savings:
            start = without
    work = start.work
    moves = any(command.reason is REASON for command in work.commands)
    inputs.refusals.end_pass(has_commands=moves)
    blocks = [*work.blocks, *start.blocks, *_blocks_of_refused_nodes(work, inputs.drifted)]
    desired = {pool.name for pool in inputs.pools} | start.removed.keys()
    return Decisions(
        commands=tuple(with_equal_candidates(work) if inputs.lists_blockers else work.commands),
        blocked=tuple(sorted(set(blocks))),
        deferred=tuple(_sort_deferrals([*work.deferrals, *_unapproved_removals(work, desired)])),
        budgets=work.limits.states,
        placement=start.placement,
        limits_hit=tuple(work.limits_hit),
        blockers=blockers_of(work) if inputs.lists_blockers else (),
        work=spent,
        reached_limit=reached_limit,
        limited_namespaces=tuple(sorted(inputs.simulated.closed)),
        consolidation_waits=waits,
    )


def _with_consolidation(methods: Iterable[Method], consolidation: Method) -> list[Method]:
    """Return the methods with another one in the place of those that consolidate."""
    return [*(m for m in methods if not isinstance(m, _CONSOLIDATION)), consolidation]


class _SettlingConsolidation:
    """Takes the place of consolidation while its last commands settle; it only reports rejections.

    A simulation now would ignore the nodes that are starting for those commands, and the room that
    the commands are about to free. It would move the same pods again, and the fleet would cost
    more.
    """

    reason: Final = REASON

    def decide(self, work: DisruptionPass) -> None:
        consolidation_candidates(work)


def _run_methods(inputs: DisruptionInputs, methods: Iterable[Method]) -> PassStart:
    """Open a pass and let every method decide."""
    start = open_pass(inputs)
    for method in methods:
        started = len(start.work.commands)
        method.decide(start.work)
        if start.work.starts_one_command and len(start.work.commands) > started:
            break
    return start


def _blocks_of_refused_nodes(work: DisruptionPass, drifted: Sequence[Drifted]) -> list[Block]:
    """Return the blocks of nodes that are not candidates although a method selected them.

    Drift and graceful expiry select a node for that reason. Protection of any other node is
    reported as well, before a method selects it. Nodes that are starting or being deleted are
    reported only if they drifted.
    """
    drifted_claims = {drift.node_claim for drift in drifted}
    blocks: list[Block] = []
    for node, refusal in work.candidate_set.refusals:
        if node.claim is None or refusal.code is BlockCode.DELETING:
            continue
        if node.claim.name in drifted_claims:
            blocks.append(refusal.block(node.name, DisruptionReason.DRIFTED))
        elif is_due_for_expiry(node.claim, node.node_pool, work.settings, work.now):
            blocks.append(refusal.block(node.name, ForcefulReason.EXPIRED))
        elif refusal.code is BlockCode.NODE_POOL_NOT_FOUND:
            blocks.append(refusal.block(node.name, ForcefulReason.NODE_POOL_DELETED))
        elif refusal.code is BlockCode.NODE_DO_NOT_DISRUPT:
            blocks.append(refusal.block(node.name, _prevented_reason(work, node)))
    return blocks


def _prevented_reason(work: DisruptionPass, node: StateNode) -> DisruptionReason:
    """Return the first reason that could apply to a node: consolidation if its pool allows it."""
    pool = work.pools.get(node.node_pool)
    consolidates = (
        pool is not None
        and not pool.node_pool.is_static
        and pool.node_pool.spec.disruption.consolidates_after is not None
    )
    return DisruptionReason.UNDERUTILIZED if consolidates else DisruptionReason.DRIFTED


def _unapproved_removals(work: DisruptionPass, known_pools: Collection[str]) -> list[DeferredClaim]:
    """Return the nodes of removed NodePools, which wait until their removal is allowed."""
    return [
        DeferredClaim(
            node_claim=node.claim.name,
            node=node.name,
            node_pool=node.node_pool,
            reason=ForcefulReason.NODE_POOL_DELETED,
            waits_for=WaitsFor.APPROVAL,
            not_before=None,
            message=f"NodePool {node.node_pool} was removed from git; its nodes are kept until "
            f"the removal is allowed with `--allow-removal {node.node_pool}`",
        )
        for node, refusal in work.candidate_set.refusals
        if node.claim is not None
        and refusal.code is BlockCode.NODE_POOL_NOT_FOUND
        and node.node_pool not in known_pools
    ]


def _sort_deferrals(deferrals: Sequence[DeferredClaim]) -> list[DeferredClaim]:
    return sorted(deferrals, key=lambda d: (d.node_pool, d.node_claim, d.reason, d.waits_for))
