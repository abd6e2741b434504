"""The reasons why something is not done, by pod, node or claim.

A plan keeps every rejection where it arose. Here they are one list, which ``explain`` searches and
which the recorded state keeps after the plan itself has been superseded.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from reconciler.plan.render.wording import format_reason, moment
from reconciler.plan.value.actions import DeferredClaim
from reconciler.plan.value.nodes import Reason
from reconciler.plan.value.plan import Plan

Subject = Literal["Pod", "Node", "NodeClaim", "NodePool", "CapacityBuffer"]


class Decision(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """One reason. ``name`` of a pod is ``namespace/name``; ``code`` is stable, for programs."""

    kind: Subject
    name: str
    code: str
    message: str


def decisions_of(plan: Plan) -> list[Decision]:
    """Return every reason of the plan, in its order: of pods, nodes, claims and buffers."""
    return [*_of_pods(plan), *_of_nodes(plan), *_of_claims(plan), *_of_buffers(plan)]


def _of_pods(plan: Plan) -> list[Decision]:
    return [
        _without_place("Pod", pod.pod, reason)
        for pod in plan.unschedulable
        for reason in pod.reasons
    ]


def _of_nodes(plan: Plan) -> list[Decision]:
    return [
        Decision(
            kind="Node",
            name=blocked.node,
            code=blocked.code or "Blocked",
            message=f"{blocked.reason}: {blocked.message}" if blocked.reason else blocked.message,
        )
        for blocked in plan.blocked
    ]


def _of_claims(plan: Plan) -> list[Decision]:
    return [
        Decision(
            kind="NodeClaim",
            name=deferred.node_claim,
            code=f"WaitsFor{deferred.waits_for[:1].upper()}{deferred.waits_for[1:]}",
            message=_waiting(deferred),
        )
        for deferred in plan.deferred
    ]


def _of_buffers(plan: Plan) -> list[Decision]:
    return [
        _without_place("CapacityBuffer", room.buffer, reason)
        for room in plan.headroom
        for reason in room.reasons
    ]


def _without_place(kind: Subject, name: str, reason: Reason) -> Decision:
    message = f"{reason.node_pool}: {reason.message}" if reason.node_pool else reason.message
    return Decision(kind=kind, name=name, code=reason.code or "Unschedulable", message=message)


def _waiting(deferred: DeferredClaim) -> str:
    what = f"{deferred.reason} ({format_reason(deferred.reason)}) waits for {deferred.waits_for}"
    why = f": {deferred.message}" if deferred.message else ""
    when = f", not before {moment(deferred.not_before)}" if deferred.not_before else ""
    return f"{what}{why}{when}"
