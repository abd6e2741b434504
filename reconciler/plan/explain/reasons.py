"""Why a pod has no node, and why a node is or is not disrupted: read from one plan.

A plan keeps each rejection where it arose. Here they are gathered for one name, so that the
answer is the reason of the decision itself and is not computed a second time.
"""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Set as AbstractSet
from datetime import datetime
from typing import Final

from msgspec.structs import replace

from reconciler.disruption.command import ForcefulReason
from reconciler.disruption.gates.consolidatable import consolidatable_at
from reconciler.model.decision.waiting import PoolBudget
from reconciler.model.karpenter.budget import DisruptionReason
from reconciler.model.karpenter.nodeclaim import NodeClaim
from reconciler.model.karpenter.nodepool import NodePool
from reconciler.model.text.counting import format_count, format_list
from reconciler.model.text.money import format_dollars, format_rate
from reconciler.model.text.times import format_time
from reconciler.plan.explain.answer import Decision, Explanation, Subject, decisions_of
from reconciler.plan.render.wording import (
    cause_of,
    format_drain_limit,
    format_drift,
    format_reason,
    format_value,
    format_words,
)
from reconciler.plan.value.actions import PlannedCommand
from reconciler.plan.value.nodes import LaunchReason, PlannedNodeClaim
from reconciler.plan.value.plan import Plan

_PURPOSES: Final = {
    LaunchReason.UNSCHEDULABLE.value: "for pending pods",
    LaunchReason.HEADROOM.value: "as headroom for CapacityBuffers",
    LaunchReason.STATIC.value: "because the NodePool has a fixed number of replicas",
    "NotLaunched": "because the NodeClaim exists but has no instance yet",
}


_NO_REASON: Final = "there is no reason to disrupt it"


def pod_names(plan: Plan) -> list[str]:
    """Return every pod in the plan, in order and once."""
    placed = (p.pod for p in plan.placements)
    return list(dict.fromkeys([*(u.pod for u in plan.unschedulable), *placed]))


def matching_pods(plan: Plan, name: str) -> list[str]:
    """Return the pods that ``name`` may mean.

    It is a pod, a pod name without its namespace, or the workload that pods are named after.
    """
    every = pod_names(plan)
    if name in every:
        return [name]
    namesakes = [p for p in every if p.rpartition("/")[2] == name]
    return namesakes or [
        p for p in every if p.startswith(f"{name}-") or p.rpartition("/")[2].startswith(f"{name}-")
    ]


def _reasons_of(plan: Plan, names: AbstractSet[str], *kinds: str) -> tuple[Decision, ...]:
    return tuple(d for d in decisions_of(plan) if d.kind in kinds and d.name in names)


def _planned_claim(plan: Plan, name: str | None) -> PlannedNodeClaim | None:
    return next((claim for claim in plan.node_claims if claim.name == name), None)


def explain_pod(plan: Plan, name: str) -> Explanation | None:
    """Return what the plan decides for a pod (``namespace/name``), None if the pod is not in it.

    Pods that run and stay where they are do not occur in a plan.
    """
    reasons = _reasons_of(plan, {name}, "Pod")
    if any(u.pod == name for u in plan.unschedulable):
        verdict = "no existing node fits it, and no NodePool can launch one that does"
        return Explanation(kind="Pod", name=name, verdict=verdict, reasons=reasons)
    placed = next((p for p in plan.placements if p.pod == name), None)
    if placed is None:
        return None
    expensive = placed.given_up
    facts = [_format_preference(p, too_expensive=p in expensive) for p in placed.relaxed]
    if placed.node:
        verdict = f"it fits on the existing node {placed.node}"
    else:
        verdict = f"it waits for {placed.node_claim}, a node to be launched"
        planned = _planned_claim(plan, placed.node_claim)
        if planned is not None:
            facts.insert(0, _format_launch(plan, planned))
    return Explanation(kind="Pod", name=name, verdict=verdict, facts=tuple(facts))


def _format_preference(preference: str, *, too_expensive: bool) -> str:
    if not too_expensive:
        return f"dropped preference: {preference}"
    return (
        f"dropped preference: {preference} (honouring it costs more than "
        "maximumPreferenceCostPercent allows)"
    )


def explain_buffer(plan: Plan, name: str) -> Explanation | None:
    """Return what the plan decides for a CapacityBuffer (``namespace/name``), None if nothing.

    The namespace can be omitted where only one buffer has the name.
    """
    every = {room.buffer: room for room in plan.headroom}
    names = [name] if name in every else [b for b in every if b.rpartition("/")[2] == name]
    if len(names) != 1:
        return None
    room = every[names[0]]
    facts = [f"{format_count(count, 'pod')} on node {n}" for n, count in room.nodes.items()]
    for claim, count in room.node_claims.items():
        facts.append(f"{format_count(count, 'pod')} on {claim}, a node to be launched")
    verdict = (
        room.message if room.replicas else f"it reserves no capacity ({room.code}): {room.message}"
    )
    return Explanation(
        kind="CapacityBuffer",
        name=names[0],
        verdict=verdict,
        facts=tuple(facts),
        reasons=_reasons_of(plan, set(names), "CapacityBuffer"),
    )


def explain_node(plan: Plan, node: str, claim: str, kind: Subject = "Node") -> Explanation:
    """Return what the plan decides for a node and its claim; either name may be empty.

    ``kind`` is the requested one of the two.
    """
    names = set(filter(None, (node, claim)))
    reasons = _reasons_of(plan, names, "Node", "NodeClaim")
    commands = [c for c in plan.commands if names & {*c.nodes, *c.node_claims}]
    planned = _planned_claim(plan, claim)
    facts = _format_drift(plan, names)
    if commands:
        reason = commands[0].reason
        verdict = f"to be disrupted for {cause_of(reason)} ({format_reason(reason)})"
        facts += map(_format_command, commands)
    elif reasons:
        verdict = _blocked_verdict(plan, names, reasons)
        facts += _format_budgets(plan, names)
    elif planned is not None and not node:
        verdict = f"to be launched {_launch_purpose(plan, planned)}"
    else:
        verdict = _NO_REASON
    if planned is not None:
        launched = f"launched by this plan {_launch_purpose(plan, planned)}"
        facts.append(launched if node else _format_launch(plan, planned))
    name = claim if kind == "NodeClaim" else node
    return Explanation(kind=kind, name=name, verdict=verdict, facts=tuple(facts), reasons=reasons)


def with_times(
    answer: Explanation, claim: NodeClaim, pool: NodePool, plan_at: datetime
) -> Explanation:
    """Return an answer without a reason for disruption with the times from which there is one.

    ``plan_at`` is when the plan was made that the answer is from.
    """
    if answer.verdict != _NO_REASON:
        return answer
    facts = [*answer.facts]
    wait = _consolidation_wait(claim, pool, plan_at)
    if wait:
        facts.append(wait)
    if claim.expires_at is not None:
        facts.append(f"it expires at {format_time(claim.expires_at)}")
    verdict = f"{_NO_REASON} yet" if wait else _NO_REASON
    return replace(answer, verdict=verdict, facts=tuple(facts))


def _consolidation_wait(claim: NodeClaim, pool: NodePool, plan_at: datetime) -> str:
    """Return until when ``consolidateAfter`` keeps a node, empty if it does not."""
    at = consolidatable_at(claim, pool)
    if at is None or plan_at >= at:
        return ""
    after = pool.spec.disruption.consolidate_after
    return (
        f"consolidation considers it from {format_time(at)} on: consolidateAfter of NodePool "
        f"{pool.name} is {after}, counted from the last change of its pods"
    )


def _blocked_verdict(plan: Plan, names: set[str], found: Iterable[Decision]) -> str:
    """Return that a node cannot be disrupted now, and why if there is one reason."""
    reasons = {b.reason for b in plan.blocked if b.node in names}
    reasons |= {d.reason for d in plan.deferred if names & {d.node_claim, d.node or ""}}
    messages = {decision.detail for decision in found}
    why = f": {messages.pop()}" if len(messages) == 1 else ""
    if reasons <= {DisruptionReason.UNDERUTILIZED, DisruptionReason.EMPTY}:
        return f"kept by consolidation{why}"
    causes = " or ".join(map(cause_of, sorted(filter(None, reasons))))
    return f"cannot be disrupted now{f' for {causes}' if causes else ''}{why}"


def node_of_claim(plan: Plan, claim: str) -> str:
    """Return the node of a claim if the plan names it, otherwise an empty text."""
    return next((node for name, node in _claims_and_nodes(plan) if name == claim and node), "")


def claim_of_node(plan: Plan, node: str) -> str:
    """Return the claim of a node if the plan names it, otherwise an empty text."""
    return next((claim for claim, name in _claims_and_nodes(plan) if name == node and claim), "")


def node_names(plan: Plan) -> list[str]:
    """Return every node and claim in the plan, sorted."""
    names = {b.node for b in plan.blocked} | {c.name for c in plan.node_claims}
    for pair in _claims_and_nodes(plan):
        names |= {*pair}
    for command in plan.commands:
        names |= {*command.nodes, *command.node_claims}
    return sorted(names - {""})


def _claims_and_nodes(plan: Plan) -> list[tuple[str, str]]:
    """Return claim and node wherever the plan names both of one machine, or one of them."""
    return [
        *((d.node_claim, d.node or "") for d in plan.drift),
        *((d.node_claim, d.node or "") for d in plan.deferred),
        *((a.node_claim or "", a.node or "") for a in plan.actions),
    ]


def _launch_purpose(plan: Plan, planned: PlannedNodeClaim) -> str:
    """Return what a NodeClaim is launched for: pods, or the nodes that it replaces."""
    command = next((c for c in plan.commands if planned.name in c.replacements), None)
    if command is not None:
        replaced = format_list(command.nodes or command.node_claims)
        return f"to replace {replaced} ({cause_of(command.reason)})"
    return _PURPOSES.get(planned.reason, f"because of {cause_of(planned.reason)}")


def _format_launch(plan: Plan, planned: PlannedNodeClaim) -> str:
    launch = planned.launch
    offering = f"{launch.instance_type} {launch.capacity_type} in {launch.zone}"
    types = format_count(
        planned.instance_types_total or len(planned.instance_types), "instance type"
    )
    purpose = _launch_purpose(plan, planned)
    return (
        f"NodePool {planned.node_pool} launches it {purpose}, most likely as {offering}; "
        f"{types} allowed"
    )


def _format_command(command: PlannedCommand) -> str:
    with_others = format_list(command.nodes or command.node_claims)
    after = f" once {format_list(command.replacements)} is ready" if command.replacements else ""
    saved = (
        f", saving {format_rate(command.savings)}"
        if command.savings is not None and command.savings > 0
        else ""
    )
    if saved and command.savings_per_eviction is not None:
        saved += f" ({format_dollars(command.savings_per_eviction)} per pod moved)"
    forceful = ", regardless of disruption budgets" if command.forceful else ""
    by = "interrupted by " if command.reason == ForcefulReason.INTERRUPTED else ""
    why = f" ({by}{command.message})" if command.message else ""
    if command.termination_grace_period:
        why += f", {format_drain_limit(command.termination_grace_period)}"
    does = f"command {command.id}: {command.decision} {with_others}"
    return f"{does}{after}{saved}{forceful}{why}"


def _format_drift(plan: Plan, names: set[str]) -> list[str]:
    lines = []
    for drifted in plan.drift:
        if not names & {drifted.node_claim, drifted.node or ""}:
            continue
        lines.append(f"drifted: {format_drift(drifted.reason, drifted.side)}")
        lines += [
            f"  {f.path}: {format_value(f.old)} → {format_value(f.new)}" for f in drifted.fields
        ]
    return lines


def _format_budgets(plan: Plan, names: set[str]) -> list[str]:
    """Return what the budgets of its NodePool allow, by reason."""
    pools = {b.node_pool for b in plan.blocked if b.node in names}
    pools |= {d.node_pool for d in plan.deferred if names & {d.node_claim, d.node or ""}}
    return format_budgets(budget for budget in plan.budgets if budget.node_pool in pools)


def format_budgets(budgets: Iterable[PoolBudget]) -> list[str]:
    """Return what budgets allow now: ``budget of web: 1 of 9 nodes ...``.

    Reasons for which a NodePool allows the same are in one line.
    """
    alike: dict[PoolBudget, list[str]] = {}
    for budget in budgets:
        causes = alike.setdefault(replace(budget, reason=DisruptionReason.DRIFTED), [])
        causes.append(budget.reason.cause)
    return [_format_budget(budget, format_words(causes)) for budget, causes in alike.items()]


def _format_budget(budget: PoolBudget, causes: str) -> str:
    until = f"; next change {format_time(budget.next_change)}" if budget.next_change else ""
    allowed = min(budget.allowed, budget.total)  # without a limit, more than there are
    return (
        f"budget of {budget.node_pool}: {allowed} of {format_count(budget.total, 'node')}"
        f" may be disrupted for {causes} now"
        f" ({budget.disrupting} in progress or not ready){until}"
    )
