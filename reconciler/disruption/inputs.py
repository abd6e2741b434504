"""The input of a disruption pass, and how a pass begins."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime

from reconciler.disruption.candidates import CandidateSet, Drifted
from reconciler.disruption.command import Block, Command
from reconciler.disruption.consolidation.rejections import RejectionCache
from reconciler.disruption.disruptionpass import WORK_MAX, DisruptionPass
from reconciler.disruption.gates.limits import FleetLimits
from reconciler.disruption.gates.pdb import PodDisruptionBudgets
from reconciler.disruption.methods.forceful import forceful_commands
from reconciler.disruption.simulation import Placer, Simulation
from reconciler.model.history import History
from reconciler.model.karpenter.nodepool import NodePool
from reconciler.model.kubernetes.metadata import Metadata
from reconciler.model.kubernetes.pod import Pod
from reconciler.model.settings import DecisionRules, Settings
from reconciler.observed.state import ClusterState, StateNode
from reconciler.placement.question import LaunchPool, Placement
from reconciler.placement.scheduler import Scheduler
from reconciler.placement.work import SimulatedWork

Renew = Callable[[ClusterState, int], Placer]
"""Builds the scheduler of a changed cluster, given the number of previous simulations."""


@dataclass(frozen=True, slots=True)
class DisruptionInputs:
    """The inputs of a pass.

    ``scheduler`` is the scheduler of ``cluster`` if the caller already has one, and ``renew``
    builds that of a changed cluster; without them they are built from the other facts. All share
    the work that is ``simulated``.

    ``pending`` pods are placed first, and the nodes that receive them are not disrupted.
    ``interrupted`` are NodeClaims that EC2 reclaims, with the event. ``allow_removal`` names the
    NodePools whose nodes may be removed because they were deleted from git; ``last_known`` are
    their last versions, for their budgets. ``nominated`` are NodeClaims whose nodes will receive
    pods that are not pending now. If NodeClaims are ``checked``, consolidation removes all of them
    or none, and no others. ``unsettled`` are NodeClaims that consolidation removes and whose
    pods have not all moved: until then it starts nothing else. ``history`` is the data of the rate
    limits. ``lists_blockers`` also computes what blocks nodes, which needs additional simulations.
    Without ``states_reasons``, the reason of a rejection may be another one that applies as well.
    ``work_max`` is the number of nodes that the pass may examine. ``refusals`` are those of earlier
    passes of the same loop.
    """

    cluster: ClusterState
    pools: Sequence[NodePool]
    launch_pools: Sequence[LaunchPool]
    settings: Settings
    now: datetime
    drifted: Sequence[Drifted] = ()
    pending: Sequence[Pod] = ()
    scheduler: Placer | None = None
    renew: Renew | None = None
    simulated: SimulatedWork = field(default_factory=SimulatedWork)
    interrupted: Mapping[str, str] = field(default_factory=dict)
    allow_removal: Collection[str] = ()
    last_known: Sequence[NodePool] = ()
    nominated: Collection[str] = ()
    checked: frozenset[str] = frozenset()
    unsettled: Collection[str] = ()
    history: History = field(default_factory=History)
    lists_blockers: bool = False
    states_reasons: bool = True
    work_max: int = WORK_MAX
    refusals: RejectionCache = field(default_factory=RejectionCache)

    def simulation(self) -> Simulation:
        """Return the simulation that the pass uses."""
        renew = self.renew or self._scheduler
        return Simulation(self.scheduler or renew(self.cluster, 0), self.cluster, renew)

    def _scheduler(self, cluster: ClusterState, number: int) -> Placer:
        salt = str(number) if number else ""
        return Scheduler(
            self.launch_pools,
            cluster,
            self.settings,
            self.now,
            salt=salt,
            simulated=self.simulated,
        )

    def removed_pools(self) -> dict[str, NodePool]:
        """Return the deleted pools that may be removed; unknown ones have defaults."""
        known = {pool.name: pool for pool in self.last_known}
        names = {n.node_pool for n in self.cluster.nodes if n.claim is not None}
        gone = (names & set(self.allow_removal)) - {pool.name for pool in self.pools}
        return {name: known.get(name) or NodePool(Metadata(name=name)) for name in sorted(gone)}


@dataclass(frozen=True, slots=True)
class PassStart:
    """The start of a pass: forceful commands have started, and pending pods are placed."""

    work: DisruptionPass
    placement: Placement | None
    blocks: tuple[Block, ...]
    removed: Mapping[str, NodePool]


def open_pass(inputs: DisruptionInputs) -> PassStart:
    """Begin a pass: start forceful commands, place pending pods, and find candidates."""
    cluster, now = inputs.cluster, inputs.now
    desired = {pool.name: pool for pool in inputs.pools}
    launch_pools = {pool.node_pool.name: pool for pool in inputs.launch_pools}
    removed = inputs.removed_pools()
    forced, repairs = forceful_commands(
        cluster, desired, inputs.settings, now, inputs.interrupted, removed
    )
    limits = FleetLimits.from_nodes(
        [*inputs.pools, *removed.values()], inputs.settings, cluster.nodes, inputs.history
    ).now(now)
    ledger = limits.ledger()
    simulation = inputs.simulation()
    budgets = PodDisruptionBudgets(cluster.pod_disruption_budgets)
    gone = _forced_nodes(cluster, forced)
    as_karpenter = inputs.settings.decide is DecisionRules.KARPENTER
    placement = _place_pending_pods(
        simulation, inputs.pending, gone, budgets, now, as_karpenter=as_karpenter
    )
    for node in gone:
        ledger.count_disruption(node.node_pool, None)
    leaving = {node.name for node in gone}
    candidate_set = CandidateSet(
        [node for node in cluster.nodes if node.name not in leaving],
        launch_pools,
        budgets,
        {drift.node_claim: drift for drift in inputs.drifted},
        now,
        removed,
        *_expected_pods(inputs, placement),
    )
    work = DisruptionPass(
        now=now,
        settings=inputs.settings,
        pools=launch_pools,
        limits=limits,
        ledger=ledger,
        candidate_set=candidate_set,
        simulation=simulation,
        nodes=cluster.nodes,
        unlaunched=cluster.unlaunched,
        commands=list(forced),
        deferrals=dict.fromkeys(repairs.deferrals),
        work_max=inputs.work_max,
        refusals=inputs.refusals,
        states_reasons=inputs.states_reasons,
    )
    return PassStart(work, placement, tuple(repairs.blocks), removed)


def _expected_pods(
    inputs: DisruptionInputs, placement: Placement | None
) -> tuple[frozenset[str], dict[str, list[Pod]]]:
    """Return the nodes that receive pods, and the virtual pods by the node that has their room.

    Only a real pod excludes its node from disruption: the room of a CapacityBuffer may move.
    """
    nominated = frozenset(
        node.name
        for node in inputs.cluster.nodes
        if node.claim is not None and node.claim.name in inputs.nominated
    )
    if placement is None:
        return nominated, {}
    rooms: dict[str, list[Pod]] = {}
    virtual = set()
    for pod in inputs.pending:
        if pod.is_virtual:
            virtual.add(pod.key)
            if pod.key in placement.on_nodes:
                rooms.setdefault(placement.on_nodes[pod.key], []).append(pod)
    targets = placement.on_nodes.items()
    return nominated.union(node for pod, node in targets if pod not in virtual), rooms


def _forced_nodes(cluster: ClusterState, forced: Sequence[Command]) -> list[StateNode]:
    claims = {name for command in forced for name in command.node_claims}
    if not claims:
        return []
    return [n for n in cluster.nodes if n.claim is not None and n.claim.name in claims]


def _place_pending_pods(
    simulation: Simulation,
    pending: Sequence[Pod],
    gone: Sequence[StateNode],
    budgets: PodDisruptionBudgets,
    now: datetime,
    *,
    as_karpenter: bool,
) -> Placement | None:
    """Place the pending pods, and those on nodes that are removed forcefully.

    In Karpenter, the former are placed again with each removal, so those that leave a node for
    another one do not take its room in advance.
    """
    names = [node.name for node in gone]
    evicted = [
        pod for node in gone for pod in node.pods if budgets.is_currently_reschedulable(pod, now)
    ]
    if not pending and not evicted:
        if names:
            simulation.commit(names, Placement(), ())
        return None
    placement = simulation.place([*pending, *evicted], names)
    moved, counted = [*pending, *evicted], placement
    if as_karpenter:
        companions = [
            pod for pod in pending if pod.spec.node_name and pod.key in placement.on_nodes
        ]
        keys = {pod.key for pod in companions}
        moved = [pod for pod in moved if pod.key not in keys]
        on_nodes = {pod: node for pod, node in placement.on_nodes.items() if pod not in keys}
        counted = replace(placement, on_nodes=on_nodes)
        simulation.place_with_removals(companions)
    if moved or names:
        simulation.commit_before_commands(names, counted, moved)
    return placement
