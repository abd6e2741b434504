"""What prevents the disruption of nodes, by object or rule, and the savings that it prevents.

Blocks and deferrals name a node and the first rule that rejects it. Here they are grouped by rule:
every PodDisruptionBudget, protected pod or node, static NodePool, closed budget, window or policy
occurs once, with the nodes that it blocks. A node that several rules block occurs with each.

The savings come from consolidation itself, computed as if nothing blocked these nodes, one after
another and each as if the previous ones had been removed. So no free capacity is counted twice.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Final

from msgspec.structs import replace

from reconciler.disruption.calendar import protected_until
from reconciler.disruption.candidates import (
    Candidate,
    CandidateSet,
    describe_protection,
    price_refusal,
)
from reconciler.disruption.command import BlockCode
from reconciler.disruption.consolidation.proposal import (
    REASON,
    Proposal,
    propose_removal,
    score_proposal,
)
from reconciler.disruption.disruptionpass import DisruptionPass, with_claims
from reconciler.disruption.gates.pdb import BUDGETS_SHOWN, PodDisruptionBudgets
from reconciler.disruption.methods.emptiness import savings_ratio_key
from reconciler.disruption.podrules import NEEDS_REPLACEMENT, RetainingRules, RuleSearch
from reconciler.model.decision.waiting import Blocker, DeferredClaim, WaitRule, WaitsFor, merged
from reconciler.model.grouping import group_by, group_pairs
from reconciler.model.karpenter.budget import DisruptionReason
from reconciler.model.karpenter.labels import DO_NOT_DISRUPT
from reconciler.model.karpenter.nodepool import WHEN_EMPTY
from reconciler.model.kubernetes.pod import Pod
from reconciler.model.text.times import format_time
from reconciler.observed.state import StateNode
from reconciler.placement.explain.constraints import Constraint, ConstraintKind
from reconciler.placement.question import Placement

EVALUATED_MAX: Final = 32
WORK_MAX: Final = 20_000
"""The number of nodes whose savings are computed, and how many nodes that may examine.

The most expensive nodes come first; the others have no price.
"""

EXACT_MAX: Final = 300
"""The maximum number of nodes for an exact result; for a larger fleet it is an estimate.

The estimate assumes that pods moved by the plan do not affect where other pods can be placed.
"""

_RULE_KINDS: Final = {
    ConstraintKind.SPREAD: "TopologySpread",
    ConstraintKind.AFFINITY: "PodAffinity",
    ConstraintKind.ANTI_AFFINITY: "PodAntiAffinity",
    ConstraintKind.HOST_PORTS: "HostPorts",
    ConstraintKind.PREFERENCES: "Preferences",
}
"""The rules of pods that keep nodes."""

_KINDS: Final = {
    WaitsFor.BUDGET: "Budget",
    WaitsFor.SCHEDULE: "Schedule",
    WaitRule.SUSPENSION: "Suspension",
    WaitRule.MINIMUM_AGE: "MinimumAge",
    WaitRule.WAVE: "Wave",
    WaitRule.MAXIMUM_PER_DAY: "MaximumPerDay",
    WaitRule.EVICTION_COST: "EvictionCost",
    WaitRule.UNDO_PERIOD: "UndoPeriod",
    WaitRule.RETRY: "Retry",
    WaitsFor.APPROVAL: "Approval",
}


def blockers_of(work: DisruptionPass) -> tuple[Blocker, ...]:
    """Return what blocks nodes after all methods have decided, by kind and name."""
    annotated = {c.name: c for c in _annotated_nodes(work)}
    candidates = {**{c.name: c for c in work.candidate_set.candidates}, **annotated}
    found = list[Blocker]()
    removed = set(chain.from_iterable(command.nodes for command in work.commands))
    for name in sorted(candidates.keys() - removed):
        found += _candidate_blockers(candidates[name], annotated)
    found += filter(None, (_deferral_blocker(deferral, work) for deferral in work.deferrals))
    retaining = _retaining_rules(work)
    found += _retaining_blockers(work, retaining)
    blockers = _merge_blockers(found)
    if not blockers:
        return ()
    names = set(chain.from_iterable(blocker.nodes for blocker in blockers))
    blocked = names & candidates.keys() - retaining.keys()
    savings = _savings_of([candidates[name] for name in sorted(blocked)], retaining, work)
    return tuple(_with_savings(blocker, savings) for blocker in blockers)


def _savings_of(
    blocked: Sequence[Candidate], retaining: Mapping[str, RetainingRules], work: DisruptionPass
) -> dict[str, float | None]:
    """Return what the removal of each node would save, of those kept by rules without the rules."""
    savings = dict(_savings_by_node(blocked, work))
    for rules in group_by(retaining.values(), lambda rules: id(rules.work)).values():
        savings |= _savings_by_node([one.relaxed for one in rules], rules[0].work)
    return savings


def _retaining_rules(work: DisruptionPass) -> dict[str, RetainingRules]:
    """Return the rules of pods that keep nodes, by the name of the node.

    The labels that a pod selects are not among them: they say where it runs, not that it cannot
    share a node. The most expensive nodes come first; at the limit of work, the others are not
    evaluated.
    """
    names = {
        block.node
        for block in work.blocks
        if block.reason == REASON and block.code in NEEDS_REPLACEMENT
    }
    nodes = [c for c in work.candidate_set.candidates if c.name in names]
    found: dict[str, RetainingRules] = {}
    search = RuleSearch(work, ignored=(ConstraintKind.LABEL,))
    start = work.simulation.spent
    for candidate in sorted(nodes, key=savings_ratio_key)[:EVALUATED_MAX]:
        if work.simulation.spent - start >= WORK_MAX:
            break
        rules = search.retaining_rules(candidate)
        if rules is not None:
            found[candidate.name] = rules
    return found


def _retaining_blockers(
    work: DisruptionPass, retaining: Mapping[str, RetainingRules]
) -> Iterator[Blocker]:
    """Yield each rule that keeps a node, with the workload that has it."""
    for candidate in work.candidate_set.candidates:
        rules = retaining.get(candidate.name)
        if rules is None:
            continue
        for constraint in rules.constraints:
            for owner in rules.owners(candidate, constraint):
                yield _retaining_blocker(candidate, rules, constraint, owner)


def _retaining_blocker(
    candidate: Candidate, rules: RetainingRules, constraint: Constraint, owner: str
) -> Blocker:
    kind = _RULE_KINDS[constraint.kind]
    name = f"{owner.partition(' ')[2]} {constraint.key}".strip()
    verb = "keep" if constraint.is_plural else "keeps"
    text = f"{constraint} {verb} pods of {owner} {rules.effect}"
    return _blocker(kind, name, kind, text, candidate, REASON)


def _annotated_nodes(work: DisruptionPass) -> list[Candidate]:
    """Return the nodes that are not candidates because of their own annotation."""
    nodes = [
        _without_annotation(node)
        for node, refusal in work.candidate_set.refusals
        if refusal.code is BlockCode.NODE_DO_NOT_DISRUPT
    ]
    roster = CandidateSet(nodes, work.pools, PodDisruptionBudgets(()), {}, work.now)
    return roster.candidates


def _without_annotation(node: StateNode) -> StateNode:
    assert node.node is not None, "a protected node has a Node"
    metadata = node.node.metadata
    remaining = {key: value for key, value in metadata.annotations.items() if key != DO_NOT_DISRUPT}
    plain = replace(node.node, metadata=replace(metadata, annotations=remaining))
    return dataclasses.replace(node, node=plain)


def _candidate_blockers(candidate: Candidate, annotated: Collection[str]) -> Iterator[Blocker]:
    """Yield what blocks a node; ``annotated`` are the nodes protected by their own annotation."""
    pool = candidate.pool
    reason = DisruptionReason.DRIFTED if candidate.drift else DisruptionReason.UNDERUTILIZED
    if pool.is_static and candidate.drift is None:
        text = "a static NodePool has a fixed number of nodes and is not consolidated"
        yield _pool_blocker(candidate, "Static", text)
    elif pool.spec.disruption.consolidates_after is None and candidate.drift is None:
        text = "consolidateAfter is Never"
        yield _pool_blocker(candidate, BlockCode.CONSOLIDATION_DISABLED, text)
        return
    if candidate.name in annotated:
        code = BlockCode.NODE_DO_NOT_DISRUPT
        text = f"the node {describe_protection(candidate.node.annotations)}"
        yield _blocker("Node", candidate.name, code, text, candidate, reason)
    if candidate.pod_refusal is not None:
        yield from _pod_blockers(candidate, reason)
    by_policy = pool.spec.disruption.consolidation_policy == WHEN_EMPTY and not pool.is_static
    if by_policy and not candidate.is_empty and candidate.drift is None:
        yield _pool_blocker(candidate, BlockCode.WHEN_EMPTY, "consolidationPolicy is WhenEmpty")


def _pod_blockers(candidate: Candidate, reason: DisruptionReason) -> Iterator[Blocker]:
    for pod in candidate.node.pods:
        if not pod.is_disruptable(candidate.now):
            end = protected_until(pod)
            until = f" until {format_time(end)}" if end is not None else ""
            text = f"the pod {describe_protection(pod.metadata.annotations)}{until}"
            code = BlockCode.POD_DO_NOT_DISRUPT
            yield _blocker("Pod", pod.key, code, text, candidate, reason, owner=_owner(pod))
        message = candidate.budgets.refusal(pod, candidate.now)
        if message is not None:
            for budget in candidate.budgets.budgets_selecting(pod)[:BUDGETS_SHOWN]:
                name, code = budget.key, BlockCode.PDB
                yield _blocker("PodDisruptionBudget", name, code, message, candidate, reason)


def _pool_blocker(candidate: Candidate, code: str, text: str) -> Blocker:
    reason = DisruptionReason.UNDERUTILIZED
    return _blocker("NodePool", candidate.pool.name, code, text, candidate, reason)


def _blocker(
    kind: str,
    name: str,
    code: str,
    message: str,
    candidate: Candidate,
    reason: DisruptionReason,
    owner: str = "",
) -> Blocker:
    return Blocker(
        kind=kind,
        name=name,
        code=str(code),
        message=message,
        nodes=(candidate.name,),
        node_pools=(candidate.pool.name,),
        reasons=(reason.value,),
        owner=owner,
    )


def _owner(pod: Pod) -> str:
    owners = pod.metadata.owner_references
    return f"{owners[0].kind} {pod.namespace}/{owners[0].name}" if owners else ""


def _deferral_blocker(deferral: DeferredClaim, work: DisruptionPass) -> Blocker | None:
    """Return what a node waits for, unless it only waits its turn or for consolidateAfter.

    A node that is still tolerated as unhealthy is not blocked either.
    """
    rule = deferral.rule or deferral.waits_for
    kind = _KINDS.get(rule)
    if kind is None or deferral.node is None:
        return None
    if deferral.waits_for is WaitsFor.BUDGET and not _is_closed(deferral, work):
        return None
    return Blocker(
        kind=kind,
        name=f"{deferral.node_pool}/{deferral.reason}",
        code=rule,
        message=deferral.message,
        nodes=(deferral.node,),
        node_pools=(deferral.node_pool,),
        reasons=(deferral.reason,),
        until=deferral.not_before,
    )


def _is_closed(deferral: DeferredClaim, work: DisruptionPass) -> bool:
    """Return whether budgets allow no disruption at all, rather than a limited number at a time."""
    gates = (reason for reason in DisruptionReason if reason == deferral.reason)
    gate = next(gates, DisruptionReason.DRIFTED)
    return any(
        state.allowed + state.disrupting == 0
        for state in (*work.limits.states, *work.limits.fleet)
        if state.reason is gate and state.node_pool in ("", deferral.node_pool)
    )


def _merge_blockers(blockers: Iterable[Blocker]) -> list[Blocker]:
    """Return each blocker once, with all nodes that it blocks, sorted by kind and name."""
    same = group_pairs(((blocker.kind, blocker.name), blocker) for blocker in blockers)
    return [merged(same[key]) for key in sorted(same)]


def _savings_by_node(
    candidates: Iterable[Candidate], work: DisruptionPass
) -> Mapping[str, float | None]:
    """Return what consolidating each node would save in USD an hour, None if unknown."""
    simulation, start, evaluated = work.simulation, work.simulation.spent, 0
    if len(work.nodes) > EXACT_MAX:
        simulation.stop_rebuilding()
    used = set(work.excluded_nodes)
    savings: dict[str, float | None] = {}
    for candidate in sorted(map(without_pod_protection, candidates), key=savings_ratio_key):
        name = candidate.name
        if price_refusal(candidate) is not None:
            savings[name] = None
            continue
        if name in used:
            savings[name] = 0.0  # pods of other nodes would move here
            continue
        if evaluated >= EVALUATED_MAX or simulation.spent - start >= WORK_MAX:
            savings[name] = None
            continue
        evaluated += 1
        proposal = propose_removal([candidate], work)
        if isinstance(proposal, Proposal):
            proposal = score_proposal(proposal, work)
        if not isinstance(proposal, Proposal):
            savings[name] = 0.0
            continue
        savings[name] = proposal.savings
        moves = with_claims(proposal.placement or Placement(), proposal.replacements)
        used.update(moves.on_nodes.values())
        simulation.commit([name], moves, candidate.reschedulable)
    return savings


def without_pod_protection(candidate: Candidate) -> Candidate:
    """Return the candidate as if nothing protected its pods."""
    pods = tuple(
        replace(
            pod, metadata=replace(pod.metadata, annotations=_annotations_without_protection(pod))
        )
        for pod in candidate.node.pods
    )
    node = dataclasses.replace(candidate.node, pods=pods)
    return dataclasses.replace(candidate, node=node, budgets=PodDisruptionBudgets(()))


def _annotations_without_protection(pod: Pod) -> dict[str, str]:
    annotations = pod.metadata.annotations
    return {key: value for key, value in annotations.items() if key != DO_NOT_DISRUPT}


def _with_savings(blocker: Blocker, savings: Mapping[str, float | None]) -> Blocker:
    prices = [price for name in blocker.nodes if (price := savings.get(name)) is not None]
    return replace(
        blocker,
        forgone=round(sum(prices), 9) if prices else None,
        unpriced=len(blocker.nodes) - len(prices),
    )
