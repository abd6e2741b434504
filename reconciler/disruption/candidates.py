"""Determine which nodes can be disrupted, in which order, and why the others cannot.

The order follows from the disruption cost of a node and its price.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import cached_property
from types import MappingProxyType
from typing import Final, Protocol

from reconciler.disruption.command import Block, BlockCode
from reconciler.disruption.gates.pdb import PodDisruptionBudgets
from reconciler.model.decision.waiting import WaitRule
from reconciler.model.karpenter.instancetype import InstanceType
from reconciler.model.karpenter.labels import (
    CAPACITY_TYPE,
    DO_NOT_DISRUPT,
    INSTANCE_TYPE,
    NODEPOOL,
    UNREADABLE,
    ZONE,
)
from reconciler.model.karpenter.nodeclaim import NodeClaim
from reconciler.model.karpenter.nodepool import NodePool
from reconciler.model.kubernetes.pod import Pod
from reconciler.observed.state import StateNode
from reconciler.placement.question import LaunchPool

BASE_COST: Final = 1.0
"""The disruption cost of a node without pods."""


def is_empty(cost: float) -> bool:
    """Return whether a node with that cost has no pod with an eviction cost."""
    return cost <= BASE_COST


def savings_ratio(price: float, cost: float) -> float:
    """Return the savings in USD an hour for each unit of disruption cost."""
    return price / cost


def lifetime_remaining(expires_after: timedelta | None, age: timedelta) -> float:
    """Return the remaining share of a node's lifetime, from 0 to 1; 1 if it never expires."""
    if expires_after is None:
        return 1.0
    if expires_after <= timedelta(0):
        return 0.0
    return min(max((expires_after - age) / expires_after, 0.0), 1.0)


def scale_down_cost(pods: Iterable[Pod], claim: NodeClaim, now: datetime) -> float:
    """Return the cost by which a static pool chooses the nodes to remove.

    All pods count, and a node close to its expiry has a lower cost.
    """
    created = claim.metadata.creation_timestamp or now
    share = lifetime_remaining(claim.expires_after, now - created)
    return sum((pod.eviction_cost() for pod in pods), 0.0) * share


def node_price(node: StateNode, kind: InstanceType | None) -> float:
    """Return the price of a running node in USD an hour, 0 if it is not known.

    It is the first offering of its zone and capacity type, available or not; the part that a
    commitment has already paid for does not count.
    """
    if node.paid is not None:
        return node.paid
    if kind is None:
        return 0.0
    price = kind.price_of(node.labels.get(ZONE, ""), node.labels.get(CAPACITY_TYPE, ""))
    return known_price(price)


def known_price(price: float | None) -> float:
    """Return the price, or 0 if it is missing or not a number."""
    return 0.0 if price is None or math.isnan(price) else price


class Drifted(Protocol):
    """A NodeClaim that differs from the desired state (``diff.drift.Drift`` is one)."""

    @property
    def node_claim(self) -> str: ...
    @property
    def reason(self) -> str: ...


@dataclass(frozen=True, slots=True)
class CandidateRefusal:
    """A rejection of a node; it becomes a Block if some method selected the node.

    ``until`` is when the rejection ends by itself, if it does, and ``rule`` the reason of that.
    """

    code: BlockCode
    message: str
    until: datetime | None = None
    rule: WaitRule | None = None

    def block(self, node: str, reason: str) -> Block:
        """Return the rejection as a Block."""
        return Block(node, reason, self.code, self.message)


@dataclass(eq=False, frozen=True)
class Candidate:
    """A node that may be disrupted, with the data that methods use to choose among candidates.

    ``headroom`` are the virtual pods that have their room there. They are not evicted, but the room
    must be found elsewhere. ``pod_refusal`` is the rejection by a pod or PodDisruptionBudget. It
    always applies to graceful methods, and to eventual ones unless the claim has a termination
    grace period.
    """

    node: StateNode
    claim: NodeClaim
    pool: NodePool
    kind: InstanceType | None
    drift: Drifted | None
    budgets: PodDisruptionBudgets = field(repr=False)
    now: datetime = field(repr=False)
    headroom: tuple[Pod, ...] = ()
    matching_prices: dict[str, tuple[InstanceType, float]] = field(default_factory=dict, repr=False)
    """The prices of offerings like the node's own, a cache of ``cheapest_matching_price``."""

    @property
    def name(self) -> str:
        return self.node.name

    @cached_property
    def pod_refusal(self) -> CandidateRefusal | None:
        node = self.node
        return pod_refusal(node.pods, self.budgets, self.now, annotated=node.has_annotated_pods)

    def refusal(self, *, eventual: bool) -> CandidateRefusal | None:
        """Return the rejection by the node's pods for an eventual or a graceful method."""
        if eventual and self.claim.spec.termination_grace_period is not None:
            return None
        return self.pod_refusal

    @property
    def reschedulable(self) -> tuple[Pod, ...]:
        """The pods that need another node when this one is removed."""
        return self.node.reschedulable

    @cached_property
    def moving_pods(self) -> tuple[Pod, ...]:
        """The pods that will actually move, because nothing protects them permanently.

        It includes the room of CapacityBuffers.
        """
        pods, now = self.reschedulable, self.now
        if self.node.has_annotated_pods:
            pods = tuple(pod for pod in pods if pod.is_disruptable(now))
        return (*self.budgets.without_fully_blocked(pods, now), *self.headroom)

    @property
    def leaving_pods(self) -> tuple[Pod, ...]:
        """The pods that need another node if the drain ends at a deadline, protected or not."""
        return (*self.reschedulable, *self.headroom)

    @cached_property
    def cost(self) -> float:
        """The disruption cost, 1 for a node without pods."""
        return BASE_COST + self.node.eviction_cost

    @cached_property
    def price(self) -> float:
        """The price in USD an hour, 0 if it is not known."""
        return node_price(self.node, self.kind)

    @cached_property
    def ratio(self) -> float:
        """Savings for each unit of disruption cost; higher values are disrupted first."""
        return savings_ratio(self.price, self.cost)

    @property
    def is_empty(self) -> bool:
        """Whether it has no pods to reschedule and holds no room for a buffer."""
        return self.is_without_pods and not self.headroom

    @property
    def is_without_pods(self) -> bool:
        """Whether it has no pods with a disruption cost."""
        return is_empty(self.cost)

    @property
    def is_spot(self) -> bool:
        return self.node.labels.get(CAPACITY_TYPE) == "spot"


class CandidateSet:
    """The candidates of a pass, and the rejections of the other nodes.

    ``removed`` are NodePools that were deleted from git and whose removal is allowed. Their nodes
    are in ``removals`` and are not candidates of any other method. ``headroom`` are the virtual
    pods by the node that has room for them. Repair also has candidates in ``protected``: nodes that
    only their annotation, or that they are not initialized, excludes from other methods.
    """

    def __init__(
        self,
        nodes: Iterable[StateNode],
        pools: Mapping[str, LaunchPool],
        budgets: PodDisruptionBudgets,
        drifted: Mapping[str, Drifted],
        now: datetime,
        removed: Mapping[str, NodePool] = MappingProxyType({}),
        nominated: Collection[str] = (),
        headroom: Mapping[str, Sequence[Pod]] = MappingProxyType({}),
    ) -> None:
        self.candidates: list[Candidate] = []
        self.removals: list[Candidate] = []
        self.protected: list[Candidate] = []
        self.refusals: list[tuple[StateNode, CandidateRefusal]] = []
        for node in nodes:
            pool = pools.get(node.node_pool)
            known = pool.node_pool if pool is not None and pool.types.types else None
            owner = known or removed.get(node.node_pool)
            refusal = node_refusal(node, nominated)
            if refusal is None and owner is None:
                text = f"nodepool not found (NodePool={node.node_pool})"
                refusal = CandidateRefusal(BlockCode.NODE_POOL_NOT_FOUND, text)
            if refusal is not None:
                self.refusals.append((node, refusal))
                if known is None or not _can_be_repaired(node, refusal):
                    continue
            assert node.claim is not None
            assert owner is not None
            name = node.labels.get(INSTANCE_TYPE, "")
            candidate = Candidate(
                node=node,
                claim=node.claim,
                pool=owner,
                kind=_find_instance_type(name, [pool] if pool is not None else pools.values()),
                drift=drifted.get(node.claim.name),
                budgets=budgets,
                now=now,
                headroom=tuple(headroom.get(node.name, ())),
            )
            if refusal is not None:
                self.protected.append(candidate)
            else:
                (self.removals if known is None else self.candidates).append(candidate)


def _find_instance_type(name: str, pools: Iterable[LaunchPool]) -> InstanceType | None:
    """Return the instance type from the first pool that has it."""
    return next((kind for pool in pools if (kind := pool.types.get(name)) is not None), None)


def node_refusal(
    node: StateNode, nominated: Collection[str] = frozenset()
) -> CandidateRefusal | None:
    """Return why a node cannot be disrupted regardless of its pods, or None.

    ``nominated`` are the nodes that will receive pods in this pass.
    """
    if node.claim is None:
        return CandidateRefusal(BlockCode.NO_NODE, "node isn't managed by karpenter")
    if node.node is None:
        text = "nodeclaim does not have an associated node"
        return CandidateRefusal(BlockCode.NO_NODE, text)
    if node.is_rebooting:
        return CandidateRefusal(BlockCode.REBOOTING, "node is rebooting")
    if not node.is_initialized:
        return CandidateRefusal(BlockCode.UNINITIALIZED, "node isn't initialized")
    if node.is_deleting:
        return CandidateRefusal(BlockCode.DELETING, "node is deleting or marked for deletion")
    if node.name in nominated:
        return CandidateRefusal(BlockCode.NOMINATED, "node is nominated for a pending pod")
    if node.annotations.get(DO_NOT_DISRUPT) == "true":
        text = f'disruption is blocked through the "{DO_NOT_DISRUPT}" annotation'
        if UNREADABLE in node.annotations:
            text = "node cannot be read"
        return CandidateRefusal(BlockCode.NODE_DO_NOT_DISRUPT, text)
    if NODEPOOL not in node.labels:
        text = f"node doesn't have required label (label={NODEPOOL})"
        return CandidateRefusal(BlockCode.NO_NODE_POOL_LABEL, text)
    return None


def _can_be_repaired(node: StateNode, refusal: CandidateRefusal) -> bool:
    """Return whether a node that cannot be disrupted otherwise is still repaired if unhealthy.

    Its annotation is not meant to keep a broken node, and nothing else replaces a node that never
    becomes ready (Karpenter 1.15 ``disruption/types.go``).
    """
    codes = (BlockCode.NODE_DO_NOT_DISRUPT, BlockCode.UNINITIALIZED)
    return refusal.code in codes and node.is_registered and NODEPOOL in node.labels


def describe_protection(annotations: Mapping[str, str]) -> str:
    """Return why a pod or Node with these annotations is protected, as a predicate."""
    return "cannot be read" if UNREADABLE in annotations else f"is annotated {DO_NOT_DISRUPT}"


def pod_refusal(
    pods: Iterable[Pod], budgets: PodDisruptionBudgets, now: datetime, *, annotated: bool = True
) -> CandidateRefusal | None:
    """Return the first rejection by the pods on a node: annotations of any, then budgets.

    Pods of DaemonSets and mirror pods count; finished and terminating ones do not. ``annotated`` is
    whether any of them may have an annotation.
    """
    on_node = tuple(pods)
    for pod in on_node if annotated else ():
        if DO_NOT_DISRUPT in pod.metadata.annotations and not pod.is_disruptable(now):
            text = f'pod has "{DO_NOT_DISRUPT}" annotation (Pod={pod.key})'
            if UNREADABLE in pod.metadata.annotations:
                text = f"pod cannot be read (Pod={pod.key})"
            return CandidateRefusal(BlockCode.POD_DO_NOT_DISRUPT, text)
    for pod in filter(budgets.budgets_selecting, on_node):
        text_or_none = budgets.refusal(pod, now)
        if text_or_none is not None:
            return CandidateRefusal(BlockCode.PDB, text_or_none)
    return None


def price_refusal(candidate: Candidate) -> CandidateRefusal | None:
    """Return why a node's price is unknown, so that savings cannot be computed, or None."""
    labels = candidate.node.labels
    if candidate.kind is None:
        text = f'instance type "{labels.get(INSTANCE_TYPE, "")}" not found'
        return CandidateRefusal(BlockCode.INSTANCE_TYPE_NOT_FOUND, text)
    for key in (CAPACITY_TYPE, ZONE):
        if key not in labels:
            return CandidateRefusal(BlockCode.MISSING_LABEL, f'node does not have label "{key}"')
    return None
