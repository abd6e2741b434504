"""Why one node is not disrupted, or why it will be: asked of the rules themselves.

A plan says what it decided and which «no» it met on the way. Here one node is asked about by
itself: what protects it and whose that is, what it could be replaced by and for how much, which
budgets stand before it, and what would have to change. The same rules answer that decide.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from msgspec.structs import replace

from reconciler.disruption.blockers import unprotected
from reconciler.disruption.candidates import Candidate, Refusal, price_refusal
from reconciler.disruption.command import BlockCode
from reconciler.disruption.consolidation import Proposal, compute, scored
from reconciler.disruption.deliberation import Deliberation
from reconciler.disruption.memory import in_memory
from reconciler.disruption.pricing import expected_price, ordered
from reconciler.disruption.situation import open_pass
from reconciler.model.budget import DisruptionReason
from reconciler.model.labels import CAPACITY_TYPE, DO_NOT_DISRUPT, INSTANCE_TYPE, ZONE
from reconciler.model.nodeclaim import NodeClaim
from reconciler.model.pod import Pod
from reconciler.observed.state import StateNode
from reconciler.plan.answer import Answer
from reconciler.plan.deciding import Facts, situation_of
from reconciler.plan.inputs import Inputs
from reconciler.plan.moves import drift_of
from reconciler.plan.plan import Plan
from reconciler.plan.wording import counted, dollars, listed, moment, monthly

_REMEDIES: Final = {
    BlockCode.NO_NODE: "its instance has to join the cluster first",
    BlockCode.UNINITIALIZED: "it has to become initialized: ready, with its resources, and without"
    " startup taints",
    BlockCode.NODE_DO_NOT_DISRUPT: f"the node has to lose the annotation {DO_NOT_DISRUPT}",
    BlockCode.NO_NODE_POOL_LABEL: "the node has to bear the label of its NodePool again",
    BlockCode.NODE_POOL_NOT_FOUND: "its NodePool has to come back, or `--allow-removal` to name it",
    BlockCode.PDB: "the PodDisruptionBudget has to allow one more disruption",
    BlockCode.INSTANCE_TYPE_NOT_FOUND: "the catalogue has to know its instance type",
    BlockCode.MISSING_LABEL: "the node has to bear its labels again",
    BlockCode.SEVERAL_REPLACEMENTS: "its pods have to fit on the other nodes and one new one",
    BlockCode.NOT_CHEAPER: "a cheaper type has to suit its pods and its NodePool, or its pods to"
    " request less",
    BlockCode.MIN_VALUES: "minValues has to leave room for the cheaper types alone",
    BlockCode.SPOT_TO_SPOT: "the NodePool has to allow more instance types, with the feature gate"
    " SpotToSpotConsolidation on",
    BlockCode.SCORE: "it has to save more for each pod that moves, or its NodePool not be Balanced",
    BlockCode.MINIMUM_SAVINGS: "the setting has to ask for less, or the move to save more",
    BlockCode.UNDOES: "undoPeriod has to pass, or to be shorter",
    BlockCode.CONSOLIDATION_DISABLED: "its NodePool has to set consolidateAfter to a duration",
    BlockCode.WHEN_EMPTY: "its pods have to go, or its NodePool to be WhenEmptyOrUnderutilized",
}
"""What would have to change, by the rule that said no."""

_UNDERUTILIZED: Final = DisruptionReason.UNDERUTILIZED.value


def explain_fully(answer: Answer, inputs: Inputs, facts: Facts, plan: Plan) -> Answer:
    """Return the answer about a node with what the rules say about it alone.

    A node that is not there, or that nothing here manages, gets its answer back as it was.
    """
    node = facts.cluster.by_name.get(answer.name)
    if node is None or node.claim is None:
        return answer
    drift = drift_of(inputs, facts.types, facts.classes)
    work = open_pass(situation_of(inputs, facts, drift)).work
    candidate = next((c for c in work.roster.candidates if c.name == node.name), None)
    if candidate is None:
        refusal = next((r for n, r in work.roster.refusals if n.name == node.name), None)
        said, may_go = [*_refused(refusal)], False
    else:
        blocked = [*_blocker_said(candidate)]
        cheaper, may_go = _replacement_said(candidate, work, told=bool(blocked))
        said = blocked + cheaper
    verdict = answer.verdict
    if may_go and not answer.reasons and (turn := _turn_said(node, plan)) is not None:
        verdict = "it may go, in a later pass"
        said.append(turn)
    told = [fact for fact in answer.facts if not fact.startswith("the budgets of ")]
    memory = _memory_said(node.claim, inputs)
    facts_said = (_node_said(node, candidate), *told, *said, *memory, *_budgets(node, plan))
    return replace(answer, verdict=verdict, facts=facts_said)


def _node_said(node: StateNode, candidate: Candidate | None) -> str:
    labels = node.labels
    kind = labels.get(INSTANCE_TYPE, "a node of no known type")
    where = f" in {labels[ZONE]}" if ZONE in labels else ""
    capacity = f" {labels[CAPACITY_TYPE]}" if CAPACITY_TYPE in labels else ""
    price = ""
    if candidate is not None and candidate.price:
        price = f", {dollars(candidate.price)} an hour"
    pods = sum(pod.is_reschedulable for pod in node.pods)
    return f"it is {kind}{capacity}{where}{price}, with {counted(pods, 'pod')} to move"


def _memory_said(claim: NodeClaim, inputs: Inputs) -> Iterator[str]:
    """Yield what consolidation gave up for the node and does not take back yet."""
    for one, ends in in_memory(claim, inputs.settings):
        if inputs.now < ends:
            yield (
                f"consolidation gave up {one} for it at {moment(one.at)}, and takes nothing of"
                f" that kind back before {moment(ends)} (undoPeriod)"
            )


def _refused(refusal: Refusal | None) -> Iterator[str]:
    if refusal is not None:
        yield f"the first that says no: {refusal.message} ({refusal.code})"
        yield from _remedy(refusal.code)


def _remedy(code: BlockCode) -> Iterator[str]:
    text = _REMEDIES.get(code)
    if text is not None:
        yield f"for it to go, {text}"


def _blocker_said(candidate: Candidate) -> Iterator[str]:
    """Yield the first «no» in the order in which it is asked, and what would end it."""
    refusal = candidate.pod_refusal
    if refusal is not None:
        yield f"the first that says no: {refusal.message} ({refusal.code})"
        yield from _protected(candidate, refusal)
    else:
        yield from _refused(price_refusal(candidate))


def _protected(candidate: Candidate, refusal: Refusal) -> Iterator[str]:
    """Yield what would end the protection, and whose it is."""
    if refusal.code is not BlockCode.POD_DO_NOT_DISRUPT:
        yield from _remedy(refusal.code)
        return
    pods = [pod for pod in candidate.node.pods if not pod.is_disruptable(candidate.now)]
    owners = list(dict.fromkeys(_owner(pod) for pod in pods))
    yield f"for it to go, {listed(owners)} must do without the annotation {DO_NOT_DISRUPT}"


def _owner(pod: Pod) -> str:
    owners = pod.metadata.owner_references
    return f"{owners[0].kind} {pod.namespace}/{owners[0].name}" if owners else f"pod {pod.key}"


def _replacement_said(
    candidate: Candidate, work: Deliberation, *, told: bool
) -> tuple[list[str], bool]:
    """Return where its pods would go were they not protected, and whether that lets it go.

    ``told`` is whether a «no» has been said already: then only money is of interest.
    """
    if candidate.kind is None or candidate.pool.is_static or not candidate.reschedulable:
        return [], False
    asked = unprotected(candidate)
    outcome = work.simulation.without([asked], consolidating=True)
    claims, said = outcome.placement.claims, []
    if outcome.failure is None and len(claims) == 1:
        claim = ordered(claims[0])
        said.append(
            f"the cheapest replacement considered is {claim.types[0].name}"
            f" for {dollars(expected_price(claim))} an hour, beside {dollars(candidate.price)} now"
        )
    elif outcome.failure is None and not claims:
        said.append("its pods fit on the other nodes, with no new one")
    answer = compute([asked], work)
    if isinstance(answer, Proposal):
        answer = scored(answer, work)
    if isinstance(answer, Proposal):
        verb = "the fleet forgoes" if told else "consolidation would save"
        return [*said, f"{verb} {monthly(answer.savings)} a month"], not told
    if not told:
        said += [f"consolidation says no: {answer.message} ({answer.code})", *_remedy(answer.code)]
    return said, False


def _turn_said(node: StateNode, plan: Plan) -> str | None:
    """Return why a node that could be consolidated is in no command of the plan, None if it is."""
    if any(node.name in command.nodes for command in plan.commands):
        return None
    arriving = {placed.node for placed in plan.placements}
    if node.name in arriving:
        return "pods of this plan go there, so it is left alone until they have settled"
    budget = next(
        (b for b in plan.budgets if (b.node_pool, b.reason) == (node.node_pool, _UNDERUTILIZED)),
        None,
    )
    taken = [c for c in plan.commands if not c.forceful]
    if budget is not None and budget.allowed == 0:
        return "its budget leaves nothing for it now"
    if taken:
        ids = listed([command.id for command in taken])
        return f"other commands of this plan come first: {ids}; the next pass asks again"
    return None


def _budgets(node: StateNode, plan: Plan) -> Iterator[str]:
    for budget in plan.budgets:
        if budget.node_pool == node.node_pool:
            until = f"; changes {moment(budget.next_change)}" if budget.next_change else ""
            yield (
                f"the budgets of {budget.node_pool} let {budget.allowed} more of its"
                f" {budget.total} nodes go as {budget.reason}{until}"
            )
