"""What prevents the disruption of nodes, by object or rule, and the savings that it prevents.

Blocks and deferrals name a node and the first rule that rejects it. Here they are grouped by rule:
every PodDisruptionBudget, protected pod or node, static NodePool, closed budget, window or policy
occurs once, with the nodes that it blocks. A node that several rules block occurs with each.

The savings come from consolidation itself, computed as if nothing blocked these nodes, one after
another and each as if those before were gone. So no free capacity is counted twice.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Final

from msgspec.structs import replace

from reconciler.disruption.candidates import Candidate, Roster, price_refusal
from reconciler.disruption.command import BlockCode, Blocker, Deferral, WaitsFor
from reconciler.disruption.consolidation.proposal import Proposal, compute, scored
from reconciler.disruption.deliberation import Deliberation, with_claims
from reconciler.disruption.gates.pdb import PodDisruptionBudgets
from reconciler.disruption.methods.emptiness import by_ratio
from reconciler.model.karpenter.budget import DisruptionReason
from reconciler.model.karpenter.labels import DO_NOT_DISRUPT
from reconciler.model.karpenter.nodepool import WHEN_EMPTY
from reconciler.model.kubernetes.pod import Pod
from reconciler.observed.state import StateNode
from reconciler.placement.question import Placement

ASKED_MAX: Final = 32
WORK_MAX: Final = 20_000
"""The number of nodes whose savings are computed, and how many nodes that may examine.

The most expensive nodes come first; the others have no price.
"""

EXACT_MAX: Final = 300
"""The maximum number of nodes for an exact result; for a larger fleet it is an estimate.

The estimate assumes that pods moved by the plan do not affect where other pods can be placed.
"""

_KINDS: Final = {
    WaitsFor.BUDGET: "Budget",
    WaitsFor.SCHEDULE: "Schedule",
    WaitsFor.POLICY: "Policy",
    WaitsFor.APPROVAL: "Approval",
}


def blockers_of(work: Deliberation) -> tuple[Blocker, ...]:
    """Return what blocks nodes after all methods have decided, by kind and name."""
    own = {c.name: c for c in _protected(work)}
    candidates = {**{c.name: c for c in work.roster.candidates}, **own}
    going = {name for command in work.commands for name in command.nodes}
    held = [
        blocker
        for name in sorted(candidates.keys() - going)
        for blocker in _of_candidate(candidates[name], own)
    ]
    held += (blocker for d in work.deferrals if (blocker := _of_deferral(d, work)) is not None)
    joined = _joined(held)
    if not joined:
        return ()
    wanted = {name for blocker in joined for name in blocker.nodes}
    saved = _saved([candidates[name] for name in sorted(wanted & candidates.keys())], work)
    return tuple(_priced(blocker, saved) for blocker in joined)


def _protected(work: Deliberation) -> list[Candidate]:
    """Return the nodes that are not candidates because of their own annotation."""
    nodes = [
        _without_annotation(node)
        for node, refusal in work.roster.refusals
        if refusal.code is BlockCode.NODE_DO_NOT_DISRUPT
    ]
    roster = Roster(nodes, work.pools, PodDisruptionBudgets(()), {}, work.now)
    return roster.candidates


def _without_annotation(node: StateNode) -> StateNode:
    assert node.node is not None, "a protected node has a Node"
    metadata = node.node.metadata
    kept = {key: value for key, value in metadata.annotations.items() if key != DO_NOT_DISRUPT}
    plain = replace(node.node, metadata=replace(metadata, annotations=kept))
    return dataclasses.replace(node, node=plain)


def _of_candidate(candidate: Candidate, own: Collection[str]) -> Iterator[Blocker]:
    """Yield what blocks a node; ``own`` are the nodes protected by their own annotation."""
    pool = candidate.pool
    reason = DisruptionReason.DRIFTED if candidate.drift else DisruptionReason.UNDERUTILIZED
    if pool.is_static and candidate.drift is None:
        text = "a static NodePool has a fixed number of nodes and is not consolidated"
        yield _of_pool(candidate, "Static", text)
    elif pool.spec.disruption.consolidates_after is None and candidate.drift is None:
        text = "consolidateAfter is Never"
        yield _of_pool(candidate, BlockCode.CONSOLIDATION_DISABLED, text)
        return
    if candidate.name in own:
        code, text = BlockCode.NODE_DO_NOT_DISRUPT, f"the node is annotated {DO_NOT_DISRUPT}"
        yield _blocker("Node", candidate.name, code, text, candidate, reason)
    if candidate.pod_refusal is not None:
        yield from _of_pods(candidate, reason)
    by_policy = pool.spec.disruption.consolidation_policy == WHEN_EMPTY and not pool.is_static
    if by_policy and not candidate.is_empty and candidate.drift is None:
        yield _of_pool(candidate, BlockCode.WHEN_EMPTY, "consolidationPolicy is WhenEmpty")


def _of_pods(candidate: Candidate, reason: DisruptionReason) -> Iterator[Blocker]:
    for pod in candidate.node.pods:
        if not pod.is_disruptable(candidate.now):
            text = f"the pod is annotated {DO_NOT_DISRUPT}"
            code = BlockCode.POD_DO_NOT_DISRUPT
            yield _blocker("Pod", pod.key, code, text, candidate, reason, owner=_owner(pod))
        said = candidate.budgets.refusal(pod, candidate.now)
        if said is not None:
            for budget in candidate.budgets.selecting(pod):
                name, code = budget.key, BlockCode.PDB
                yield _blocker("PodDisruptionBudget", name, code, said, candidate, reason)


def _of_pool(candidate: Candidate, code: str, text: str) -> Blocker:
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
        kind,
        name,
        str(code),
        message,
        nodes=(candidate.name,),
        node_pools=(candidate.pool.name,),
        reasons=(reason.value,),
        owner=owner,
    )


def _owner(pod: Pod) -> str:
    owners = pod.metadata.owner_references
    return f"{owners[0].kind} {pod.namespace}/{owners[0].name}" if owners else ""


def _of_deferral(deferral: Deferral, work: Deliberation) -> Blocker | None:
    """Return what a node waits for, unless it only waits its turn or for consolidateAfter."""
    kind = _KINDS.get(deferral.waits_for)
    if kind is None or deferral.node is None:
        return None
    if deferral.waits_for is WaitsFor.BUDGET and not _is_closed(deferral, work):
        return None
    return Blocker(
        kind,
        f"{deferral.node_pool}/{deferral.reason}",
        deferral.waits_for.value,
        deferral.message,
        nodes=(deferral.node,),
        node_pools=(deferral.node_pool,),
        reasons=(deferral.reason.value,),
        until=deferral.not_before,
    )


def _is_closed(deferral: Deferral, work: Deliberation) -> bool:
    """Return whether budgets allow no disruption at all, rather than a limited number at a time."""
    reason = deferral.reason
    gate = reason if isinstance(reason, DisruptionReason) else DisruptionReason.DRIFTED
    return any(
        state.allowed + state.disrupting == 0
        for state in (*work.states, *work.fleet)
        if state.reason is gate and state.node_pool in ("", deferral.node_pool)
    )


def _joined(held: Iterable[Blocker]) -> list[Blocker]:
    """Return the blockers by kind and name, each once with all nodes that it blocks."""
    found: dict[tuple[str, str], Blocker] = {}
    for one in held:
        known = found.get((one.kind, one.name))
        found[one.kind, one.name] = one if known is None else known.joined(one)
    return [found[key] for key in sorted(found)]


def _saved(candidates: Iterable[Candidate], work: Deliberation) -> Mapping[str, float | None]:
    """Return what consolidating each node would save in USD an hour, None if unknown."""
    simulation, start, asked = work.simulation, work.simulation.spent, 0
    if len(work.nodes) > EXACT_MAX:
        simulation.estimate()
    taken = set(work.untouchable)
    saved: dict[str, float | None] = {}
    for candidate in sorted(map(unprotected, candidates), key=by_ratio):
        name = candidate.name
        if price_refusal(candidate) is not None:
            saved[name] = None
            continue
        if name in taken:
            saved[name] = 0.0  # pods of other nodes would move here
            continue
        if asked >= ASKED_MAX or simulation.spent - start >= WORK_MAX:
            saved[name] = None
            continue
        asked += 1
        answer = compute([candidate], work)
        if isinstance(answer, Proposal):
            answer = scored(answer, work)
        if not isinstance(answer, Proposal):
            saved[name] = 0.0
            continue
        saved[name] = answer.savings
        moves = with_claims(answer.placement or Placement(), answer.replacements)
        taken.update(moves.on_nodes.values())
        simulation.commit([name], moves, candidate.reschedulable)
    return saved


def unprotected(candidate: Candidate) -> Candidate:
    """Return the candidate as if nothing protected its pods."""
    pods = tuple(
        replace(pod, metadata=replace(pod.metadata, annotations=_plain(pod)))
        for pod in candidate.node.pods
    )
    node = dataclasses.replace(candidate.node, pods=pods)
    return dataclasses.replace(candidate, node=node, budgets=PodDisruptionBudgets(()))


def _plain(pod: Pod) -> dict[str, str]:
    annotations = pod.metadata.annotations
    return {key: value for key, value in annotations.items() if key != DO_NOT_DISRUPT}


def _priced(blocker: Blocker, saved: Mapping[str, float | None]) -> Blocker:
    known = [price for name in blocker.nodes if (price := saved.get(name)) is not None]
    return dataclasses.replace(
        blocker,
        forgone=round(sum(known), 9) if known else None,
        unpriced=len(blocker.nodes) - len(known),
    )
