"""What ``explain`` answers about a pod, node or claim, with the reasons, as values."""

from __future__ import annotations

from typing import ClassVar, Literal

import msgspec

from reconciler.model.decision.part import Part
from reconciler.model.decision.waiting import DeferredClaim
from reconciler.model.karpenter.budget import DisruptionReason
from reconciler.model.text.times import format_time
from reconciler.plan.render.refusals import refusal_in_words
from reconciler.plan.render.wording import cause_of
from reconciler.plan.value.actions import BlockedNode
from reconciler.plan.value.nodes import LaunchOffering, Reason
from reconciler.plan.value.plan import Plan


class _Part(Part, frozen=True, kw_only=True, omit_defaults=True):
    pass


class FilterCount(_Part, frozen=True):
    """How many instance types were left after a filter."""

    filter: str
    types: int


class PoolAnswer(_Part, frozen=True):
    """The result of a NodePool for a pod if it were the only pending one.

    Either ``launch`` is the cheapest possible launch, or ``code`` and ``message`` are the first
    reason against one. ``nearest_type`` is the type that is closest to the pod's requests, and
    ``lacks`` are the missing resources.
    """

    node_pool: str
    filters: tuple[FilterCount, ...] = ()
    code: str = ""
    message: str = ""
    nearest_type: str = ""
    lacks: str = ""
    launch: LaunchOffering | None = None

    parts: ClassVar = ("launch",)


class NodesAnswer(_Part, frozen=True):
    """The existing nodes: how many, how many match the pod, and which could run it."""

    total: int
    suited: int
    takers: tuple[str, ...] = ()


class ConstraintCost(_Part, frozen=True):
    """The savings without a constraint, computed by placing the same pods again.

    ``saves`` is USD an hour, ``nodes`` how many fewer there would be, ``placed`` how many more
    pods would have a place.
    """

    constraint: str
    saves: float
    nodes: int = 0
    placed: int = 0


class Explanation(Part, frozen=True, kw_only=True):
    """What a plan decides about one object, and why.

    ``verdict`` is one sentence; ``facts`` describe what will be done with it, and ``reasons``
    what prevents more. The rest is known only if the inputs are available: ``nodes`` and ``pools``
    are the alternatives of a pod; ``filters`` show how the types of a NodeClaim were selected,
    ``offerings`` are the cheapest of them, and ``constraints`` the cost of each constraint.
    """

    kind: Subject
    name: str
    verdict: str
    facts: tuple[str, ...] = ()
    reasons: tuple[Decision, ...] = ()
    nodes: NodesAnswer | None = None
    pools: tuple[PoolAnswer, ...] = ()
    filters: tuple[FilterCount, ...] = ()
    offerings: tuple[LaunchOffering, ...] = ()
    constraints: tuple[ConstraintCost, ...] = ()

    parts: ClassVar = ("pools", "offerings")

    @property
    def other_reasons(self) -> tuple[Decision, ...]:
        """The reasons that the verdict does not contain yet."""
        return tuple(r for r in self.reasons if not self.verdict.endswith(f": {r.detail}"))


Subject = Literal["Pod", "Node", "NodeClaim", "NodePool", "CapacityBuffer"]


class Decision(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """One reason. ``name`` of a pod is ``namespace/name``; ``code`` is stable, for programs."""

    kind: Subject
    name: str
    code: str
    message: str

    @property
    def detail(self) -> str:
        """The message without the kind of disruption that it is about."""
        cause, _, rest = self.message.partition(": ")
        return rest if cause in {reason.cause for reason in DisruptionReason} else self.message


def decisions_of(plan: Plan) -> list[Decision]:
    """Return every reason of the plan, in its order: of pods, nodes, claims and buffers."""
    return [
        *_pod_decisions(plan),
        *_node_decisions(plan),
        *_claim_decisions(plan),
        *_buffer_decisions(plan),
    ]


def _pod_decisions(plan: Plan) -> list[Decision]:
    return [
        _unschedulable_decision("Pod", pod.pod, reason)
        for pod in plan.unschedulable
        for reason in pod.reasons
    ]


def _node_decisions(plan: Plan) -> list[Decision]:
    return [
        Decision(
            kind="Node",
            name=blocked.node,
            code=blocked.code or "Blocked",
            message=_format_blocked(blocked),
        )
        for blocked in plan.blocked
    ]


def _format_blocked(blocked: BlockedNode) -> str:
    cause = f"{cause_of(blocked.reason)}: " if blocked.reason else ""
    return f"{cause}{refusal_in_words(blocked.message)}"


def _claim_decisions(plan: Plan) -> list[Decision]:
    return [
        Decision(
            kind="NodeClaim",
            name=deferred.node_claim,
            code=f"WaitsFor{deferred.waits_for[:1].upper()}{deferred.waits_for[1:]}",
            message=_format_deferral(deferred),
        )
        for deferred in plan.deferred
    ]


def _buffer_decisions(plan: Plan) -> list[Decision]:
    return [
        _unschedulable_decision("CapacityBuffer", room.buffer, reason)
        for room in plan.headroom
        for reason in room.reasons
    ]


def _unschedulable_decision(kind: Subject, name: str, reason: Reason) -> Decision:
    message = f"{reason.node_pool}: {reason.message}" if reason.node_pool else reason.message
    return Decision(kind=kind, name=name, code=reason.code or "Unschedulable", message=message)


def _format_deferral(deferred: DeferredClaim) -> str:
    what = f"{cause_of(deferred.reason)} is deferred"
    why = f": {deferred.message}" if deferred.message else ""
    when = f", not before {format_time(deferred.not_before)}" if deferred.not_before else ""
    return f"{what}{why}{when}"
