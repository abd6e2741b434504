"""Which nodes may be disrupted at all, and who says no to the others.

The checks and their order are Karpenter's (``StateNode.ValidateNodeDisruptable``,
``NewCandidate``); the messages are its stable texts.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property
from types import MappingProxyType
from typing import Protocol

from reconciler.disruption.command import Block, BlockCode
from reconciler.disruption.cost import is_empty, node_price, reschedule_cost, savings_ratio
from reconciler.disruption.gates.pdb import PodDisruptionBudgets
from reconciler.model.karpenter.instancetype import InstanceType
from reconciler.model.karpenter.labels import (
    CAPACITY_TYPE,
    DO_NOT_DISRUPT,
    INSTANCE_TYPE,
    NODEPOOL,
    ZONE,
)
from reconciler.model.karpenter.nodeclaim import NodeClaim
from reconciler.model.karpenter.nodepool import NodePool
from reconciler.model.kubernetes.pod import Pod
from reconciler.observed.state import StateNode
from reconciler.placement.question import LaunchPool


class Drifted(Protocol):
    """A NodeClaim that is not what is wanted any more (``diff.drift.Drift`` is one)."""

    @property
    def node_claim(self) -> str: ...
    @property
    def reason(self) -> str: ...


@dataclass(frozen=True, slots=True)
class CandidateRefusal:
    """One «no» to taking a node; becomes a Block when some method wanted the node.

    ``until`` is when time alone will have ended it, where it will.
    """

    code: BlockCode
    message: str
    until: datetime | None = None

    def block(self, node: str, reason: str) -> Block:
        """Return the «no» as it is reported."""
        return Block(node, reason, self.code, self.message)


@dataclass(eq=False, frozen=True)
class Candidate:
    """A node that may be disrupted, with what a method needs to choose among them.

    ``headroom`` are the virtual pods that have their room there: nobody evicts them, but the room
    has to be found elsewhere. ``pod_refusal`` is a pod's or PodDisruptionBudget's «no»: it keeps
    the node from graceful methods always, and from eventual ones unless the claim has a
    termination grace period.
    """

    node: StateNode
    claim: NodeClaim
    pool: NodePool
    kind: InstanceType | None
    drift: Drifted | None
    budgets: PodDisruptionBudgets = field(repr=False)
    now: datetime = field(repr=False)
    headroom: tuple[Pod, ...] = ()

    @property
    def name(self) -> str:
        return self.node.name

    @cached_property
    def pod_refusal(self) -> CandidateRefusal | None:
        return pod_refusal(self.node.pods, self.budgets, self.now)

    def refusal(self, *, eventual: bool) -> CandidateRefusal | None:
        """Return the pods' «no» to a method of that class."""
        if eventual and self.claim.spec.termination_grace_period is not None:
            return None
        return self.pod_refusal

    @cached_property
    def reschedulable(self) -> tuple[Pod, ...]:
        """The pods that need another place when the node goes."""
        return tuple(pod for pod in self.node.pods if pod.is_reschedulable)

    @cached_property
    def moving(self) -> tuple[Pod, ...]:
        """Those of them that really will come to need it, as nothing protects them for good.

        The room of CapacityBuffers is among them.
        """
        check = self.budgets.is_currently_reschedulable
        real = tuple(pod for pod in self.reschedulable if check(pod, self.now))
        return (*real, *self.headroom)

    @cached_property
    def cost(self) -> float:
        """What its disruption costs, 1 for a node without pods."""
        return reschedule_cost(self.reschedulable)

    @cached_property
    def price(self) -> float:
        """USD an hour, 0 where it is not known."""
        return node_price(self.node, self.kind)

    @cached_property
    def ratio(self) -> float:
        """Savings for each unit of disruption: the higher, the sooner it goes."""
        return savings_ratio(self.price, self.cost)

    @property
    def is_empty(self) -> bool:
        """Whether nothing on it, and no room kept on it, would be missed."""
        return self.is_without_pods and not self.headroom

    @property
    def is_without_pods(self) -> bool:
        """Whether it has no pod that it would hurt to move."""
        return is_empty(self.cost)

    @property
    def is_spot(self) -> bool:
        return self.node.labels.get(CAPACITY_TYPE) == "spot"


class Roster:
    """The candidates of a pass, and the refusals of the other nodes.

    ``removed`` are NodePools that git no longer has and whose removal is allowed: their nodes are
    in ``removals`` and no candidates of any other method. ``headroom`` are the virtual pods by the
    node that has room for them.
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
                continue
            assert node.claim is not None
            assert owner is not None
            name = node.labels.get(INSTANCE_TYPE, "")
            candidate = Candidate(
                node=node,
                claim=node.claim,
                pool=owner,
                kind=_kind(name, [pool] if pool is not None else pools.values()),
                drift=drifted.get(node.claim.name),
                budgets=budgets,
                now=now,
                headroom=tuple(headroom.get(node.name, ())),
            )
            (self.removals if known is None else self.candidates).append(candidate)


def _kind(name: str, pools: Iterable[LaunchPool]) -> InstanceType | None:
    """Return the type as the first of the pools knows it."""
    return next((kind for pool in pools if (kind := pool.types.get(name)) is not None), None)


def node_refusal(
    node: StateNode, nominated: Collection[str] = frozenset()
) -> CandidateRefusal | None:
    """Return why a node may not be disrupted whatever runs on it, or None.

    ``nominated`` are the nodes to which pods of this pass are going.
    """
    if node.claim is None:
        return CandidateRefusal(BlockCode.NO_NODE, "node isn't managed by karpenter")
    if node.node is None:
        text = "nodeclaim does not have an associated node"
        return CandidateRefusal(BlockCode.NO_NODE, text)
    if not node.is_initialized:
        return CandidateRefusal(BlockCode.UNINITIALIZED, "node isn't initialized")
    if node.is_deleting:
        return CandidateRefusal(BlockCode.DELETING, "node is deleting or marked for deletion")
    if node.name in nominated:
        return CandidateRefusal(BlockCode.NOMINATED, "node is nominated for a pending pod")
    if node.annotations.get(DO_NOT_DISRUPT) == "true":
        text = f'disruption is blocked through the "{DO_NOT_DISRUPT}" annotation'
        return CandidateRefusal(BlockCode.NODE_DO_NOT_DISRUPT, text)
    if NODEPOOL not in node.labels:
        text = f"node doesn't have required label (label={NODEPOOL})"
        return CandidateRefusal(BlockCode.NO_NODE_POOL_LABEL, text)
    return None


def pod_refusal(
    pods: Iterable[Pod], budgets: PodDisruptionBudgets, now: datetime
) -> CandidateRefusal | None:
    """Return the first «no» of the pods on a node: annotations of any, then budgets.

    Pods of DaemonSets and mirror pods count; finished and terminating ones do not.
    """
    on_node = tuple(pods)
    for pod in on_node:
        if DO_NOT_DISRUPT in pod.metadata.annotations and not pod.is_disruptable(now):
            text = f'pod has "{DO_NOT_DISRUPT}" annotation (Pod={pod.key})'
            return CandidateRefusal(BlockCode.POD_DO_NOT_DISRUPT, text)
    for pod in on_node:
        text_or_none = budgets.refusal(pod, now)
        if text_or_none is not None:
            return CandidateRefusal(BlockCode.PDB, text_or_none)
    return None


def price_refusal(candidate: Candidate) -> CandidateRefusal | None:
    """Return why the price of a node cannot be known, and so not be beaten, or None."""
    labels = candidate.node.labels
    if candidate.kind is None:
        text = f'instance type "{labels.get(INSTANCE_TYPE, "")}" not found'
        return CandidateRefusal(BlockCode.INSTANCE_TYPE_NOT_FOUND, text)
    for key in (CAPACITY_TYPE, ZONE):
        if key not in labels:
            return CandidateRefusal(BlockCode.MISSING_LABEL, f'node does not have label "{key}"')
    return None
