"""Simulate the removal of nodes with the scheduler.

A pass runs many simulations. Its decisions so far are recorded as moves: pods that a command moves
are on their new nodes, and a planned NodeClaim is a starting node. Two commands of one pass
therefore never use the same room.

Building a scheduler takes as long as a hundred simulations. It is therefore reused after a command,
and the nodes that the command affected are excluded from later simulations, so that room is never
used twice. This is exact unless the simulated pods have rules about moved pods, or a limit or a
reservation was used; then the scheduler is rebuilt.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, NamedTuple, Protocol

import msgspec

from reconciler.disruption.candidates import Candidate
from reconciler.disruption.moves import CommandMoves
from reconciler.model.karpenter.labels import (
    CAPACITY_TYPE,
    HOSTNAME,
    INSTANCE_TYPE,
    REGISTERED,
    ZONE,
)
from reconciler.model.karpenter.nodeclaim import NodeClaim, NodeClaimSpec, NodeClaimStatus
from reconciler.model.kubernetes.metadata import Metadata
from reconciler.model.kubernetes.node import Node, NodeSpec, NodeStatus
from reconciler.model.kubernetes.pod import Amounts, Pod
from reconciler.model.kubernetes.taint import Taint
from reconciler.model.resources import format_resources, maximum_resources
from reconciler.observed.fingerprint import Pods
from reconciler.observed.state import ClusterState, StateNode
from reconciler.placement.inputs import PlacementInputs
from reconciler.placement.question import Placement, PlannedClaim, Question

_PLANNED_TAINT: Final = Taint("reconciler/planned", "NoSchedule")
"""The taint that keeps the pods of later commands off a node that starts for an earlier one."""
_PODS_PER_SCAN: Final = 20
"""The number of pods that are placed in the time that one pod takes to examine the nodes."""
_NODES_PER_PACKED_POD: Final = 50
"""The number of nodes examined in the time that packing one pod for cost takes."""
_SIMULATIONS_PER_REBUILD: Final = 100
"""The number of simulations that take as long as building a scheduler."""
_NODES_PER_SIMULATION: Final = 200
"""The number of nodes examined in the fixed time of a simulation."""
_NAMED_MAX: Final = 5
"""The maximum number of pods that a message names before it only counts them."""
PODS_WITHOUT_PLACE: Final = "not all pods would schedule, "
"""How Karpenter begins the reason of a node whose pods have no other place."""


class Placer(Protocol):
    """Places pods (``placement.Scheduler`` is one)."""

    def place(self, question: Question) -> Placement:
        """Return the placement of the pods that the question names."""
        ...

    def pod_values(self, pods: Iterable[Pod]) -> Mapping[str, float]:
        """Return each pod's share in the minimum cost of new nodes, USD an hour."""
        ...

    def placement_inputs(
        self, pods: Sequence[Pod], without: frozenset[str]
    ) -> PlacementInputs | None:
        """Return the inputs of results about the pods, None if they cannot be compared."""
        ...

    def cannot_share(self, pods: Sequence[Pod], without: frozenset[str], price: float) -> bool:
        """Return whether pods certainly do not fit running nodes and a new one below ``price``."""
        ...

    def exceeds_price(
        self, pods: Sequence[Pod], without: frozenset[str], price: float, *, spot: bool
    ) -> bool:
        """Return the same by counting alone; the new node may not be spot unless that counts."""
        ...

    def strands(self, pods: Iterable[Pod]) -> bool:
        """Return whether the rules of one of the pods leave no node to it, now or later."""
        ...


class SimulationEffort(NamedTuple):
    """The work of simulations: how many, how often each node is examined, pods packed for cost."""

    simulations: int = 0
    scans: int = 0
    packed_pods: int = 0

    def since(self, before: SimulationEffort) -> SimulationEffort:
        """Return what was added to an earlier total."""
        return SimulationEffort(*(total - part for total, part in zip(self, before, strict=True)))


def _removal_effort(pods: Sequence[Pod], *, packed: bool = False) -> SimulationEffort:
    """Return the work of simulating the removal of nodes with these pods."""
    return SimulationEffort(1, 1 + len(pods) // _PODS_PER_SCAN, len(pods) if packed else 0)


@dataclass(frozen=True, slots=True)
class RemovalOutcome:
    """The result of simulating the removal of some nodes.

    ``unplaced`` are the pods that do not fit; ``failure`` describes them.
    """

    placement: Placement
    failure: str | None = None
    unplaced: frozenset[str] = frozenset()


class Simulation:
    """The cluster as it will be after all decisions of the pass.

    ``spent`` counts the work in examined nodes, which is the same on every machine;
    ``simulations`` counts the simulations. Both are computed from ``effort``.
    """

    def __init__(
        self, placer: Placer, cluster: ClusterState, renew: Callable[[ClusterState, int], Placer]
    ) -> None:
        self.cluster = cluster
        self.spent = 0
        self.simulations = 0
        self.effort = SimulationEffort()
        self._placer = placer
        self._renew = renew
        self._renewals = 0
        self._renews = True
        self._moves = CommandMoves()
        self._companions: Sequence[Pod] = ()

    def place_with_removals(self, pods: Sequence[Pod]) -> None:
        """Place ``pods`` of nodes that are going together with those of each removal.

        Karpenter sorts both into one queue, so the latter may take a node that starts for the
        former, and a decision depends on where the latter are placed (``SimulateScheduling`` in
        ``disruption/helpers.go``).
        """
        self._companions = pods

    def simulate_removal(
        self,
        candidates: Sequence[Candidate],
        *,
        consolidating: bool,
        closed: Collection[str] = (),
        pod_values: Mapping[str, float] | None = None,
        bounded_drain: bool = False,
        freed_reservation: str | None = None,
    ) -> RemovalOutcome:
        """Simulate the removal of these nodes.

        Missing room for a CapacityBuffer does not retain a node: the room is requested again.
        ``consolidating`` keeps pods off nodes that changed recently, because they would be
        disrupted twice. A pod on a node that is still starting counts as unplaced: a decision must
        not depend on a node that may fail. ``closed`` nodes take no pods. With ``pod_values``, new
        nodes are packed for cost, and existing room goes to the pods with the highest value first.
        With a ``bounded_drain``, protected pods need another node as well: they end with the drain.
        With a ``freed_reservation``, the slot of the node in it is free, and pods that could use a
        reservation take no other capacity.
        """
        pods = [
            pod
            for candidate in candidates
            for pod in (candidate.leaving_pods if bounded_drain else candidate.moving_pods)
        ]
        if not pods:
            return RemovalOutcome(Placement())
        self._prepare(pods)
        self.count_effort(_removal_effort(pods, packed=pod_values is not None))
        placement = self._placer.place(
            Question(
                pods=[*pods, *self._companions],
                without=self._moves.excluded_nodes.union(
                    candidate.name for candidate in candidates
                ),
                closed=frozenset(closed),
                strict_reservations=freed_reservation is not None,
                freed_reservation=freed_reservation,
                consolidation_guard=consolidating,
                pod_values=pod_values,
            )
        )
        optional = {pod.key for candidate in candidates for pod in candidate.headroom}
        return self._outcome(placement, optional.union(pod.key for pod in self._companions))

    def placement_inputs(self, candidates: Sequence[Candidate]) -> PlacementInputs | None:
        """Return the inputs of simulations of removing any of these nodes, besides the nodes.

        None if it cannot be compared.
        """
        pods = [pod for candidate in candidates for pod in candidate.moving_pods]
        if not pods or self._companions:
            return None
        self._prepare(pods)
        gone = self._moves.excluded_nodes.union(candidate.name for candidate in candidates)
        return self._placer.placement_inputs(pods, gone)

    def cannot_share(self, candidates: Sequence[Candidate], price: float) -> bool:
        """Return whether the nodes certainly cannot be replaced by one that costs less.

        True counts as a simulation, because it replaces one. False proves nothing.
        """

        def cannot_share(placer: Placer, pods: Sequence[Pod], gone: frozenset[str]) -> bool:
            return placer.cannot_share(pods, gone, price)

        return self._is_proven(candidates, cannot_share)

    def exceeds_price(self, candidate: Candidate, *, spot: bool) -> bool:
        """Return whether counting shows that replacing a node saves nothing.

        It takes a quarter of the time of a simulation, and counts as one if it is true.
        """

        def exceeds(placer: Placer, pods: Sequence[Pod], gone: frozenset[str]) -> bool:
            return placer.exceeds_price(pods, gone, candidate.price, spot=spot)

        return self._is_proven([candidate], exceeds)

    def strands(self, candidate: Candidate) -> bool:
        """Return whether a node has a pod that no other node can ever take, so that it stays.

        A CapacityBuffer's room keeps no node.
        """
        return self._placer.strands(pod for pod in candidate.moving_pods if not pod.is_virtual)

    def _is_proven(
        self,
        candidates: Sequence[Candidate],
        proof: Callable[[Placer, Sequence[Pod], frozenset[str]], bool],
    ) -> bool:
        """Return whether a proof about the pods of these nodes holds and replaces a simulation."""
        pods = [pod for candidate in candidates for pod in candidate.moving_pods]
        if not pods:
            return False
        self._prepare(pods)
        gone = self._moves.excluded_nodes.union(candidate.name for candidate in candidates)
        if not proof(self._placer, pods, gone):
            return False
        self.count_effort(_removal_effort(pods))
        return True

    def count_effort(self, effort: SimulationEffort) -> None:
        """Count the work of simulations, including those whose results are reused."""
        self.effort = SimulationEffort(
            *(sum(both) for both in zip(self.effort, effort, strict=True))
        )
        self.simulations += effort.simulations
        self.spent += self.examined_nodes(effort)

    def examined_nodes(self, effort: SimulationEffort) -> int:
        """Return the number of examined nodes that the work amounts to."""
        return len(self.cluster.nodes) * effort.scans + _NODES_PER_PACKED_POD * effort.packed_pods

    @property
    def work(self) -> int:
        """The total work, including the fixed cost of simulations with few nodes."""
        return self.spent + self.simulations * _NODES_PER_SIMULATION

    def pod_values(self, pods: Sequence[Pod]) -> Mapping[str, float]:
        """Return each pod's share in the minimum cost of new nodes, USD an hour."""
        return self._placer.pod_values(pods)

    def on_cluster(self, cluster: ClusterState) -> Simulation:
        """Return a simulation of another state of the cluster, without the moves of this one."""
        return Simulation(self._renew(cluster, self._renewals + 1), cluster, self._renew)

    def stop_rebuilding(self) -> None:
        """Stop rebuilding schedulers: pods are counted where they were.

        Room is still never used twice. Only pods with rules about moved pods may be placed
        incorrectly, or rejected incorrectly: good enough for a price, not for a command.
        """
        self._renews = False

    def place(self, pods: Sequence[Pod], gone: Collection[str]) -> Placement:
        """Place pods that are pending, or whose nodes are removed forcefully."""
        return self._placer.place(Question(pods=pods, without=frozenset(gone)))

    def commit(self, gone: Collection[str], placement: Placement, moved: Iterable[Pod]) -> None:
        """Record nodes as removed and their pods as moved."""
        self.cluster = cluster_after_removal(self.cluster, gone, placement)
        self._moves.add(gone, placement, moved)

    def commit_before_commands(
        self, gone: Collection[str], placement: Placement, moved: Iterable[Pod]
    ) -> None:
        """Record moves that precede all commands; nodes that take their pods remain usable."""
        self.commit(gone, placement, moved)
        if placement.on_nodes:
            self._moves.force_rebuild()

    def _prepare(self, pods: Sequence[Pod]) -> None:
        """Build a new scheduler if the moves affect a simulation of ``pods``."""
        if not self._moves or not self._renews or not self._moves.affects(pods):
            return
        self._renewals += 1
        self.spent += len(self.cluster.nodes) * _SIMULATIONS_PER_REBUILD
        self._placer = self._renew(self.cluster, self._renewals)
        self._moves = CommandMoves()

    def _outcome(self, placement: Placement, optional: Collection[str]) -> RemovalOutcome:
        reasons = {
            pod: "; ".join(dict.fromkeys(r.message for r in rejections))
            for source in (placement.unschedulable, placement.deferred)
            for pod, rejections in source.items()
            if pod not in optional
        }
        for pod in placement.uninitialized_targets.difference(optional):
            reasons[pod] = self._uninitialized_message(placement.on_nodes[pod])
        if not reasons:
            return RemovalOutcome(placement)
        named = [f"{pod} => {reasons[pod]}" for pod in sorted(reasons)[:_NAMED_MAX]]
        more = len(reasons) - len(named)
        rest = f" and {more} other(s)" if more else ""
        failure = f"{PODS_WITHOUT_PLACE}{', '.join(named)}{rest}"
        return RemovalOutcome(placement, failure, frozenset(reasons))

    def _uninitialized_message(self, name: str) -> str:
        node = self.cluster.by_name.get(name)
        parts = []
        if node is not None and node.claim is not None:
            parts.append(f"nodeclaim/{node.claim.name}")
        if node is not None and node.node is not None:
            parts.append(f"node/{node.node.name}")
        return f"would schedule against uninitialized {', '.join(parts) or name}"


def cluster_after_removal(
    cluster: ClusterState, gone: Collection[str], placement: Placement
) -> ClusterState:
    """Return the cluster after removing ``gone``, with the pods as in ``placement``.

    Pods on nodes that are already being deleted move as well.
    """
    leaving = frozenset(gone)
    targets = dict(placement.on_nodes)
    targets.update((pod, claim.name) for claim in placement.claims for pod in claim.pods)
    arriving: dict[str, list[Pod]] = {}
    placed_pods: list[Pod] = []
    for pod in _movable_pods(cluster, leaving):
        target = targets.get(pod.key)
        if target is not None:
            moved = bind_pod(pod, target)
            arriving.setdefault(target, []).append(moved)
            if not pod.spec.node_name:
                placed_pods.append(moved)
    nodes = [
        _with_moved_pods(node, arriving.get(node.name, ()), targets)
        for node in cluster.nodes
        if node.name not in leaving
    ]
    nodes += [planned_node(claim, arriving.get(claim.name, ())) for claim in placement.claims]
    ordered = tuple(sorted(nodes, key=lambda n: n.name))
    placed = {pod.key for pod in placed_pods}
    remaining = (pod for pod in cluster.pods if pod.key not in placed)
    pods: tuple[Pod, ...] = cluster.pods
    if placed:
        pods = Pods.index_after((*remaining, *placed_pods), Pods.from_tuple(pods))
    return replace(cluster, nodes=ordered, pods=pods)


def _movable_pods(cluster: ClusterState, leaving: Collection[str]) -> Iterable[Pod]:
    for node in cluster.nodes:
        if node.name in leaving or node.is_deleting:
            yield from node.pods
    yield from cluster.pending


def _with_moved_pods(
    node: StateNode, arriving: Sequence[Pod], targets: Mapping[str, str]
) -> StateNode:
    """Return the node with the pods that it receives, and without those that leave it."""
    if node.is_deleting:
        return replace(node, pods=tuple(p for p in node.pods if p.key not in targets))
    return replace(node, pods=(*node.pods, *arriving)) if arriving else node


def bind_pod(pod: Pod, node: str) -> Pod:
    """Return the pod as bound to another node."""
    return msgspec.structs.replace(pod, spec=msgspec.structs.replace(pod.spec, node_name=node))


def planned_node(claim: PlannedClaim, pods: Iterable[Pod]) -> StateNode:
    """Return the expected node of a planned NodeClaim, before it is initialized.

    It counts towards its pool's limits with the largest capacity of any of its types.
    """
    kind, offering = claim.launch
    types = claim.types if claim.node_pool.spec.limits else (kind,)
    labels = {
        **claim.labels,
        **claim.requirements.fixed_labels(),
        INSTANCE_TYPE: kind.name,
        ZONE: offering.zone,
        CAPACITY_TYPE: offering.capacity_type,
    }
    provider_id = f"planned:///{claim.name}"
    capacity: Amounts = dict(format_resources(maximum_resources(t.capacity for t in types)))
    allocatable: Amounts = dict(format_resources(kind.allocatable))
    node = Node(
        metadata=Metadata(
            name=claim.name, labels={**labels, HOSTNAME: claim.name, REGISTERED: "true"}
        ),
        spec=NodeSpec(
            provider_id=provider_id, taints=(*claim.taints, *claim.startup_taints, _PLANNED_TAINT)
        ),
        status=NodeStatus(capacity=capacity, allocatable=allocatable),
    )
    node_claim = NodeClaim(
        metadata=Metadata(name=claim.name, labels=labels),
        spec=NodeClaimSpec(
            node_class_ref=claim.node_pool.spec.template.spec.node_class_ref,
            taints=claim.taints,
            startup_taints=claim.startup_taints,
        ),
        status=NodeClaimStatus(provider_id=provider_id, capacity=capacity, allocatable=allocatable),
    )
    return StateNode(node, node_claim, tuple(pods))


def examinable_nodes(work: int, nodes: int) -> int:
    """Return how many nodes a pass may examine within an amount of work."""
    return work * nodes // (nodes + _NODES_PER_SIMULATION)
