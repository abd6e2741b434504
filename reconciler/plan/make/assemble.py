"""From the decisions of placement and disruption to the parts of a plan.

Every new NodeClaim gets its final name here, and every pod is listed once, with the first part that
places it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Final, cast

import msgspec
from msgspec.structs import replace

from reconciler.model.duration import format_duration
from reconciler.model.grouping import group_pairs
from reconciler.model.karpenter.budget import DisruptionReason
from reconciler.model.kubernetes.pod import Pod
from reconciler.model.resources import add_resources, format_resources
from reconciler.model.text.counting import format_count
from reconciler.observed.state import ClusterState
from reconciler.placement.explain.reasons import NO_NODE_POOLS
from reconciler.placement.question import LaunchPool, Placement, PlannedClaim, Rejection
from reconciler.plan.make.actions import Namer, planned_node_claim
from reconciler.plan.value.actions import BlockedNode, Decision, PlannedCommand
from reconciler.plan.value.nodes import (
    LaunchReason,
    PlacedPod,
    PlannedHeadroom,
    PlannedNodeClaim,
    Reason,
    UnschedulablePod,
)

if TYPE_CHECKING:
    from reconciler.disruption.command import Block, Command, Decisions
    from reconciler.placement.pods.headroom import Headroom


FITS: Final = "FitsExistingCapacity"
GROWS: Final = "RequiresNewCapacity"


class _PodPlace(msgspec.Struct, frozen=True):
    """The placement of a pod, and its preferences that were dropped or are too expensive."""

    where: str
    relaxed: tuple[str, ...]
    given_up: tuple[str, ...]


class PlanPlacements:
    """The new NodeClaims with their final names, and the placement of each pod.

    ``virtual`` pods are placed but not listed, because they do not exist.
    """

    def __init__(
        self,
        namer: Namer,
        pools: Mapping[str, LaunchPool],
        virtual: Collection[str] = frozenset(),
    ) -> None:
        self._namer = namer
        self._pools = pools
        self._virtual = virtual
        self._names: dict[str, str] = {}
        self._claims: list[tuple[PlannedClaim, str]] = []
        self._places: dict[str, _PodPlace] = {}

    def add(self, placement: Placement, reason: str) -> None:
        """Add the claims and placements of one part.

        A pod that is already placed stays there; only pods of CapacityBuffers may move.
        """
        for claim in placement.claims:
            self.add_claim(claim, reason)
        for pod, node in placement.on_nodes.items():
            self._place_pod(pod, node, placement)
        for claim in placement.claims:
            for pod in claim.pods:
                self._place_pod(pod, claim.name, placement)

    def add_claim(self, claim: PlannedClaim, reason: str) -> None:
        """Give a planned claim its name, once."""
        if claim.name not in self._names:
            self._names[claim.name] = self._namer.name(claim.name)
            self._claims.append((claim, reason))

    def _place_pod(self, pod: str, where: str, placement: Placement) -> None:
        if pod in self._virtual or pod not in self._places:
            expensive = placement.given_up.preferences.get(pod, ()) if placement.given_up else ()
            self._places[pod] = _PodPlace(where, placement.relaxed.get(pod, ()), expensive)

    @property
    def nodes_by_pod(self) -> Mapping[str, str]:
        """The placement of each pod: an existing node, or the final name of a new claim."""
        return {pod: self._names.get(s.where, s.where) for pod, s in self._places.items()}

    @property
    def new_claim_names(self) -> Collection[str]:
        """The final names of the new claims."""
        return self._names.values()

    def name_of(self, planned: str) -> str:
        """Return the final name of a planned claim."""
        return self._names[planned]

    def node_claims(self, pods: Iterable[Pod]) -> tuple[PlannedNodeClaim, ...]:
        """Return the claims by name, each with all pods placed on it."""
        if not self._claims:
            return ()
        pods_by_claim = group_pairs((place.where, pod) for pod, place in self._places.items())
        have_more = any(
            not set(claim.pods).issuperset(pods_by_claim.get(claim.name, ()))
            for claim, _ in self._claims
        )
        by_key = {pod.key: pod for pod in pods} if have_more else {}
        made = [
            self._node_claim(c, r, pods_by_claim.get(c.name, []), by_key) for c, r in self._claims
        ]
        return tuple(sorted(made, key=lambda claim: claim.name))

    def _node_claim(
        self, claim: PlannedClaim, reason: str, pods: list[str], by_key: Mapping[str, Pod]
    ) -> PlannedNodeClaim:
        types = self._pools[claim.node_pool.name].types
        name = self._names[claim.name]
        own = sorted(pod for pod in pods if pod not in self._virtual)
        if pods and not own and reason == LaunchReason.UNSCHEDULABLE:
            reason = LaunchReason.HEADROOM.value
        made = planned_node_claim(claim, name, reason, types, own)
        known = set(claim.pods)
        later = [by_key[pod].requests() for pod in pods if pod not in known and pod in by_key]
        if not later:
            return made
        return replace(made, requests=format_resources(add_resources(claim.requests, *later)))

    def placed_pods(self) -> tuple[PlacedPod, ...]:
        """Return the placement of each pod, sorted by pod."""
        return tuple(
            PlacedPod(
                pod=pod,
                node=None if place.where in self._names else place.where,
                node_claim=self._names.get(place.where),
                relaxed=place.relaxed,
                given_up=place.given_up,
            )
            for pod, place in sorted(self._places.items())
            if pod not in self._virtual
        )


def collect_placements(
    decisions: Decisions,
    static: Iterable[PlannedClaim],
    namer: Namer,
    pools: Mapping[str, LaunchPool],
    virtual: Collection[str] = frozenset(),
) -> PlanPlacements:
    """Return all new claims and placements: pending pods first, then pods that commands move."""
    placements = PlanPlacements(namer, pools, virtual)
    for claim in static:
        placements.add_claim(claim, LaunchReason.STATIC.value)
    if decisions.placement is not None:
        placements.add(decisions.placement, LaunchReason.UNSCHEDULABLE.value)
    for command in decisions.commands:
        for claim in command.replacements:
            placements.add_claim(claim, command.reason.value)
        if command.placement is not None:
            placements.add(command.placement, command.reason.value)
    return placements


def planned_command(command: Command, placements: PlanPlacements) -> PlannedCommand:
    """Return a command as the plan lists it."""
    return PlannedCommand(
        id=command.id,
        reason=command.reason.value,
        decision=cast("Decision", command.decision),
        nodes=command.nodes,
        node_claims=command.node_claims,
        replacements=tuple(sorted(placements.name_of(c.name) for c in command.replacements)),
        savings=None if command.savings is None else round(command.savings, 9),
        score=command.score,
        pods_evicted=command.pods_evicted,
        savings_per_eviction=_savings_per_eviction(command),
        forceful=command.is_forceful,
        message=command.message,
        termination_grace_period=(
            "" if command.drain_limit is None else format_duration(command.drain_limit)
        ),
        equal_candidates=command.equals,
    )


def _savings_per_eviction(command: Command) -> float | None:
    """Return the savings of a consolidation per pod that it moves."""
    saved = command.savings_per_eviction
    is_consolidation = command.reason is DisruptionReason.UNDERUTILIZED
    if not is_consolidation or not command.pods_evicted or saved is None:
        return None
    return round(saved, 9)


def unschedulable_pods(
    placement: Placement | None,
    virtual: Collection[str] = frozenset(),
    unready: Sequence[Rejection] = (),
    others: Collection[str] = frozenset(),
) -> tuple[UnschedulablePod, ...]:
    """Return the unschedulable pods by name, each with the reasons of every pool.

    They include pods that wait for reserved capacity, which the next pass tries again. ``unready``
    are the reasons why NodePools launch nothing for any pod. ``others`` get their nodes from
    somebody else.
    """
    if placement is None:
        return ()
    unplaced = {**placement.deferred, **placement.unschedulable}
    return tuple(
        UnschedulablePod(pod=pod, reasons=tuple(map(_reason, _with_unready(rejections, unready))))
        for pod, rejections in sorted(unplaced.items())
        if pod not in virtual and pod not in others
    )


def unplaced_pods(placement: Placement | None) -> frozenset[str]:
    """Return the pods that are not placed, whatever the reason."""
    if placement is None:
        return frozenset()
    return frozenset({*placement.deferred, *placement.unschedulable})


def _with_unready(
    rejections: Sequence[Rejection], unready: Sequence[Rejection]
) -> Sequence[Rejection]:
    """Return the reasons of a pod with those of NodePools that are not ready, if a node helps."""
    if unready and tuple(rejections) == (NO_NODE_POOLS,):
        return unready
    is_for_pools = any(rejection.node_pool is not None for rejection in rejections)
    return (*rejections, *unready) if is_for_pools else rejections


def _reason(rejection: Rejection) -> Reason:
    return Reason(node_pool=rejection.node_pool, code=rejection.code, message=rejection.message)


def blocked_node(block: Block, cluster: ClusterState) -> BlockedNode:
    """Return a block as the plan lists it."""
    node = cluster.by_name.get(block.node)
    return BlockedNode(
        node=block.node,
        node_pool=node.node_pool if node is not None else "",
        reason=block.reason,
        code=block.code.value,
        message=block.message,
    )


def planned_headroom(
    rooms: Sequence[Headroom],
    nodes_by_pod: Mapping[str, str],
    new_claims: Iterable[str],
    placement: Placement | None,
) -> tuple[PlannedHeadroom, ...]:
    """Return the capacity of each buffer.

    ``nodes_by_pod`` is the node or new claim of each pod; ``new_claims`` are the new ones.
    """
    claims = frozenset(new_claims)
    unplaced: dict[str, tuple[Rejection, ...]] = {}
    if placement is not None:
        unplaced = {**placement.deferred, **placement.unschedulable}
    return tuple(_planned_buffer(room, nodes_by_pod, claims, unplaced) for room in rooms)


def _planned_buffer(
    room: Headroom,
    nodes_by_pod: Mapping[str, str],
    new_claims: frozenset[str],
    unplaced: Mapping[str, tuple[Rejection, ...]],
) -> PlannedHeadroom:
    if not room.pods:
        return PlannedHeadroom(buffer=room.buffer, code=room.code, message=room.message)
    nodes: dict[str, int] = {}
    claims: dict[str, int] = {}
    left = [pod.key for pod in room.pods if pod.key not in nodes_by_pod]
    for pod in room.pods:
        where = nodes_by_pod.get(pod.key)
        if where is not None:
            counts = claims if where in new_claims else nodes
            counts[where] = counts.get(where, 0) + 1
    reasons = unplaced.get(left[0], ()) if left else ()
    return PlannedHeadroom(
        buffer=room.buffer,
        replicas=len(room.pods),
        nodes=dict(sorted(nodes.items())),
        node_claims=dict(sorted(claims.items())),
        unschedulable=len(left),
        code=GROWS if left or claims else FITS,
        message=_headroom_message(
            len(room.pods), sum(nodes.values()), sum(claims.values()), len(left)
        ),
        reasons=tuple(map(_reason, reasons)),
    )


def _headroom_message(total: int, existing: int, new: int, unplaced: int) -> str:
    pods = format_count(total, "pod")
    if existing == total:
        return f"capacity for {pods} on existing nodes"
    parts = [
        f"{existing} on existing nodes" if existing else "",
        f"{new} on nodes to be launched" if new else "",
        f"{unplaced} unschedulable" if unplaced else "",
    ]
    return f"capacity for {pods}: {', '.join(filter(None, parts))}"
