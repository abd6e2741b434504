"""One pass of disruption: every command that may start now, and every «no».

Karpenter starts the first method that finds something and begins again; a plan shows where that
leads. So each method goes on until it finds no more, in Karpenter's order, and each command is
decided as if those before it had started: its nodes are gone, its budget is used, its pods stand
on their new nodes. The fifteen seconds after which Karpenter validates a command count as past;
whoever carries it out asks again.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import datetime
from types import MappingProxyType
from typing import Final

from reconciler.disruption.budgets import BudgetLedger, budget_states
from reconciler.disruption.candidates import DriftedClaim, Roster
from reconciler.disruption.command import (
    Block,
    BlockCode,
    Command,
    Decisions,
    Deferral,
    ForcefulReason,
    WaitsFor,
)
from reconciler.disruption.deliberation import Deliberation, Method
from reconciler.disruption.drift import DriftMethod
from reconciler.disruption.emptiness import Emptiness
from reconciler.disruption.forceful import forceful_commands
from reconciler.disruption.multinode import MultiNodeConsolidation
from reconciler.disruption.pdb import PodDisruptionBudgets
from reconciler.disruption.removal import Removal
from reconciler.disruption.simulation import Placer, Simulation
from reconciler.disruption.singlenode import SingleNodeConsolidation
from reconciler.disruption.staticdrift import StaticDrift
from reconciler.model.budget import DisruptionReason
from reconciler.model.metadata import Metadata
from reconciler.model.nodepool import NodePool
from reconciler.model.pod import Pod
from reconciler.model.settings import Settings
from reconciler.observed.state import ClusterState, StateNode
from reconciler.placement.problem import LaunchPool
from reconciler.placement.result import Placement

METHODS: Final[tuple[Method, ...]] = (
    Emptiness(),
    StaticDrift(),
    DriftMethod(),
    Removal(),
    MultiNodeConsolidation(),
    SingleNodeConsolidation(),
)
"""Karpenter's methods in its order; Removal, which is ours, stands beside drift."""

_NONE: Final[Mapping[str, str]] = MappingProxyType({})


def decide(
    *,
    cluster: ClusterState,
    pools: Sequence[NodePool],
    launch_pools: Sequence[LaunchPool],
    scheduler: Placer,
    renew: Callable[[ClusterState, int], Placer],
    settings: Settings,
    drifted: Sequence[DriftedClaim],
    now: datetime,
    pending: Sequence[Pod],
    interrupted: Mapping[str, str] = _NONE,
    allow_removal: Collection[str] = (),
    last_known: Sequence[NodePool] = (),
    methods: Sequence[Method] = METHODS,
) -> Decisions:
    """Return what may start at ``now``, what may not and why, and what waits for what.

    ``pending`` are the pods that wait for a place already: they get theirs first, and the nodes
    to which they go are left alone. ``renew`` makes the scheduler of the cluster as it will be,
    given how many times that was asked. ``interrupted`` are NodeClaims that EC2 takes away.
    ``allow_removal`` names the NodePools that may go with their nodes because git no longer has
    them; ``last_known`` are such pools as they were, for their budgets.
    """
    desired = {pool.name: pool for pool in pools}
    forced, forced_blocks = forceful_commands(cluster, desired, settings, now, interrupted)
    removed = _removed(cluster, desired, allow_removal, last_known)
    states = budget_states([*pools, *removed.values()], cluster.nodes, now)
    ledger = BudgetLedger(states)
    simulation = Simulation(scheduler, cluster, renew)
    budgets = PodDisruptionBudgets(cluster.pod_disruption_budgets)
    gone = _forced_nodes(cluster, forced)
    placement = _place_waiting(simulation, pending, gone, budgets, now)
    nominated = frozenset(placement.on_nodes.values()) if placement is not None else frozenset()
    for node in gone:
        ledger.take(node.node_pool)
    leaving = {node.name for node in gone}
    staying = [node for node in cluster.nodes if node.name not in leaving]
    work = Deliberation(
        now=now,
        settings=settings,
        pools={pool.node_pool.name: pool for pool in launch_pools},
        states=states,
        ledger=ledger,
        roster=Roster(
            staying,
            {pool.node_pool.name: pool for pool in launch_pools},
            budgets,
            {drift.node_claim: drift for drift in drifted},
            now,
            removed,
            nominated,
        ),
        simulation=simulation,
        nodes=cluster.nodes,
        unlaunched=cluster.unlaunched,
        commands=forced,
    )
    for method in methods:
        method.decide(work)
    blocks = [*work.blocks, *forced_blocks, *_refused(work, drifted)]
    return Decisions(
        commands=tuple(work.commands),
        blocked=tuple(sorted(set(blocks))),
        deferred=tuple(_in_order([*work.deferrals, *_unapproved(work, desired, removed)])),
        budgets=states,
        placement=placement,
        limits_hit=tuple(work.limits_hit),
    )


def _removed(
    cluster: ClusterState,
    desired: Mapping[str, NodePool],
    allowed: Collection[str],
    last_known: Sequence[NodePool],
) -> dict[str, NodePool]:
    """Return the vanished pools that may go; one of which nothing is known has default budgets."""
    known = {pool.name: pool for pool in last_known}
    names = {n.node_pool for n in cluster.nodes if n.claim is not None}
    return {
        name: known.get(name) or NodePool(Metadata(name=name))
        for name in sorted(names & set(allowed) - desired.keys())
    }


def _forced_nodes(cluster: ClusterState, forced: Sequence[Command]) -> list[StateNode]:
    claims = {name for command in forced for name in command.node_claims}
    if not claims:
        return []
    return [n for n in cluster.nodes if n.claim is not None and n.claim.name in claims]


def _place_waiting(
    simulation: Simulation,
    pending: Sequence[Pod],
    gone: Sequence[StateNode],
    budgets: PodDisruptionBudgets,
    now: datetime,
) -> Placement | None:
    """Find a place for the pods that wait, and for those on nodes that go by force."""
    names = [node.name for node in gone]
    evicted = [
        pod for node in gone for pod in node.pods if budgets.is_currently_reschedulable(pod, now)
    ]
    if not pending and not evicted:
        if names:
            simulation.commit(names, Placement())
        return None
    placement = simulation.place([*pending, *evicted], names)
    simulation.commit(names, placement)
    return placement


def _refused(work: Deliberation, drifted: Sequence[DriftedClaim]) -> list[Block]:
    """Return the blocks of nodes that are no candidates though something wants them.

    A node that is drifted is wanted for that; any other that is ready, for consolidation where
    its pool does it. Nodes that start up or go already are not worth a word unless drifted.
    """
    wanted = {drift.node_claim for drift in drifted}
    blocks: list[Block] = []
    for node, refusal in work.roster.refusals:
        if node.claim is None or refusal.code is BlockCode.DELETING:
            continue
        if node.claim.name in wanted:
            blocks.append(refusal.block(node.name, DisruptionReason.DRIFTED))
        elif refusal.code is BlockCode.NODE_POOL_NOT_FOUND:
            blocks.append(refusal.block(node.name, ForcefulReason.NODE_POOL_DELETED))
        elif refusal.code is BlockCode.NODE_DO_NOT_DISRUPT and _consolidates(work, node):
            blocks.append(refusal.block(node.name, DisruptionReason.UNDERUTILIZED))
    return blocks


def _consolidates(work: Deliberation, node: StateNode) -> bool:
    pool = work.pools.get(node.node_pool)
    if pool is None or pool.node_pool.is_static:
        return False
    return pool.node_pool.spec.disruption.consolidates_after is not None


def _unapproved(
    work: Deliberation, desired: Mapping[str, NodePool], removed: Mapping[str, NodePool]
) -> list[Deferral]:
    """Return what waits until someone allows the removal of a pool that git no longer has."""
    waiting: list[Deferral] = []
    for node, refusal in work.roster.refusals:
        name = node.node_pool
        if refusal.code is not BlockCode.NODE_POOL_NOT_FOUND or name in desired or name in removed:
            continue
        assert node.claim is not None
        waiting.append(
            Deferral(
                node_claim=node.claim.name,
                node=node.name,
                node_pool=name,
                reason=ForcefulReason.NODE_POOL_DELETED,
                waits_for=WaitsFor.APPROVAL,
                not_before=None,
                message=f"NodePool {name} is not in git any more: its nodes stay until "
                f"`--allow-removal {name}` says that they may go",
            )
        )
    return waiting


def _in_order(deferrals: Sequence[Deferral]) -> list[Deferral]:
    return sorted(deferrals, key=lambda d: (d.node_pool, d.node_claim, d.reason, d.waits_for))
