"""Why one node is not disrupted, or why it will be, answered by the rules that decide.

A plan records its decisions and the rejections on the way. Here one node is considered alone: what
protects it and who owns that, what could replace it at which price, which budgets apply, and what
would have to change.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from msgspec.structs import replace

from reconciler.disruption.blockers import without_pod_protection
from reconciler.disruption.candidates import Candidate, CandidateRefusal, price_refusal
from reconciler.disruption.command import BlockCode
from reconciler.disruption.consolidation.flapdamping import avoided_offerings
from reconciler.disruption.consolidation.pricing import expected_price
from reconciler.disruption.consolidation.proposal import Proposal, propose_removal, score_proposal
from reconciler.disruption.disruptionpass import DisruptionPass
from reconciler.disruption.inputs import open_pass
from reconciler.disruption.podrules import RuleSearch
from reconciler.model.karpenter.budget import DisruptionReason
from reconciler.model.karpenter.labels import CAPACITY_TYPE, DO_NOT_DISRUPT, INSTANCE_TYPE, ZONE
from reconciler.model.karpenter.nodeclaim import NodeClaim
from reconciler.model.kubernetes.pod import Pod
from reconciler.model.text.counting import format_count, format_list
from reconciler.model.text.money import format_dollars, format_monthly
from reconciler.model.text.times import format_time
from reconciler.observed.state import StateNode
from reconciler.plan.explain.answer import Explanation
from reconciler.plan.explain.reasons import format_budgets, with_times
from reconciler.plan.make.decide import disruption_inputs
from reconciler.plan.make.facts import Facts
from reconciler.plan.render.refusals import refusal_in_words
from reconciler.plan.value.plan import Plan

_REMEDIES: Final = {
    BlockCode.NO_NODE: "wait until its instance joins the cluster",
    BlockCode.UNINITIALIZED: "wait until it is initialized: ready, with its resources registered"
    " and its startup taints removed",
    BlockCode.NODE_DO_NOT_DISRUPT: f"remove the annotation {DO_NOT_DISRUPT} from the node",
    BlockCode.NO_NODE_POOL_LABEL: "restore the NodePool label of the node",
    BlockCode.NODE_POOL_NOT_FOUND: "restore its NodePool, or name it in `--allow-removal`",
    BlockCode.PDB: "the PodDisruptionBudget must allow one more disruption",
    BlockCode.INSTANCE_TYPE_NOT_FOUND: "use a catalog that contains its instance type",
    BlockCode.MISSING_LABEL: "restore the labels of the node",
    BlockCode.SEVERAL_REPLACEMENTS: "its pods must fit on the other nodes and one new node",
    BlockCode.NOT_CHEAPER: "allow a cheaper instance type that its pods fit on, or lower the"
    " requests of its pods",
    BlockCode.MIN_VALUES: "lower minValues, so that only cheaper types satisfy it",
    BlockCode.SPOT_TO_SPOT: "allow more instance types in the NodePool, and enable the feature gate"
    " SpotToSpotConsolidation",
    BlockCode.SCORE: "it must save more per pod moved, or its NodePool must not be Balanced",
    BlockCode.MINIMUM_SAVINGS: "lower the setting, or save more",
    BlockCode.EVICTION_COST: "lower the setting, or wait until the savings are larger",
    BlockCode.UNDOES: "wait until undoPeriod has passed, or shorten it",
    BlockCode.CONSOLIDATION_DISABLED: "set consolidateAfter of its NodePool to a duration",
    BlockCode.WHEN_EMPTY: "its pods must be gone, or its NodePool must set consolidationPolicy:"
    " WhenEmptyOrUnderutilized",
}
"""What would have to change, by the rule that rejected the node."""

_UNDERUTILIZED: Final = DisruptionReason.UNDERUTILIZED.value


def explain_node_in_detail(answer: Explanation, facts: Facts, plan: Plan) -> Explanation:
    """Return the answer about a node, with what the rules decide about it alone.

    The answer about a node that does not exist or is not managed is returned unchanged.
    """
    node = facts.cluster.by_name.get(answer.name)
    if node is None or node.claim is None:
        return answer
    work = open_pass(disruption_inputs(facts)).work
    candidate = next((c for c in work.candidate_set.candidates if c.name == node.name), None)
    if candidate is None:
        refusal = next((r for n, r in work.candidate_set.refusals if n.name == node.name), None)
        lines, can_disrupt = [*_format_rejection(refusal)], False
    else:
        blocked = [*_format_blocker(candidate)]
        cheaper, can_disrupt = _format_replacement(candidate, work, is_rejected=bool(blocked))
        lines = blocked + cheaper
    answer = (
        answer if candidate is None else with_times(answer, node.claim, candidate.pool, facts.now)
    )
    verdict = answer.verdict
    if (
        can_disrupt
        and not answer.reasons
        and (wait := _format_postponement(node, plan)) is not None
    ):
        verdict = "it can be consolidated, in a later pass"
        lines.append(wait)
    others = [fact for fact in answer.facts if not fact.startswith("budget of ")]
    memory = _format_flap_damping(node.claim, facts)
    answers = (
        _format_node(node, candidate),
        *lines,
        *others,
        *memory,
        *format_budgets(b for b in plan.budgets if b.node_pool == node.node_pool),
    )
    return replace(answer, verdict=verdict, facts=answers)


def _format_node(node: StateNode, candidate: Candidate | None) -> str:
    labels = node.labels
    kind = labels.get(INSTANCE_TYPE, "a node of unknown type")
    where = f" in {labels[ZONE]}" if ZONE in labels else ""
    capacity = f" {labels[CAPACITY_TYPE]}" if CAPACITY_TYPE in labels else ""
    price = ""
    if candidate is not None and candidate.price:
        price = f", {format_dollars(candidate.price)}/hour"
    pods = len(node.reschedulable)
    return f"{kind}{capacity}{where}{price}; {format_count(pods, 'pod')} to reschedule"


def _format_flap_damping(claim: NodeClaim, facts: Facts) -> Iterator[str]:
    """Yield the offerings that consolidation replaced and that flap damping still excludes."""
    for offering, ends in avoided_offerings(claim, facts.settings):
        if facts.now < ends:
            yield (
                f"consolidation replaced {offering} with this node at {format_time(offering.at)};"
                f" that offering is excluded until {format_time(ends)} (undoPeriod)"
            )


def _format_rejection(refusal: CandidateRefusal | None) -> Iterator[str]:
    if refusal is not None:
        yield f"blocked: {refusal_in_words(refusal.message)}"
        yield from _format_remedy(refusal.code)


def _format_remedy(code: BlockCode) -> Iterator[str]:
    text = _REMEDIES.get(code)
    if text is not None:
        yield f"to allow disruption: {text}"


def _format_blocker(candidate: Candidate) -> Iterator[str]:
    """Yield the first rule that rejects the node, and what would change that."""
    refusal = candidate.pod_refusal
    if refusal is not None:
        yield f"blocked: {refusal_in_words(refusal.message)}"
        yield from _format_protection(candidate, refusal)
    else:
        yield from _format_rejection(price_refusal(candidate))


def _format_protection(candidate: Candidate, refusal: CandidateRefusal) -> Iterator[str]:
    """Yield what would end the protection, and who owns it."""
    if refusal.code is not BlockCode.POD_DO_NOT_DISRUPT:
        yield from _format_remedy(refusal.code)
        return
    pods = [pod for pod in candidate.node.pods if not pod.is_disruptable(candidate.now)]
    owners = list(dict.fromkeys(_owner(pod) for pod in pods))
    yield f"to allow disruption: remove the annotation {DO_NOT_DISRUPT} from {format_list(owners)}"


def _owner(pod: Pod) -> str:
    owners = pod.metadata.owner_references
    return f"{owners[0].kind} {pod.namespace}/{owners[0].name}" if owners else f"pod {pod.key}"


def _format_replacement(
    candidate: Candidate, work: DisruptionPass, *, is_rejected: bool
) -> tuple[list[str], bool]:
    """Return where its pods would go without protection, and whether it could be disrupted.

    ``is_rejected`` is whether a rejection is already among the facts; then only costs are added.
    """
    if candidate.kind is None or candidate.pool.is_static or not candidate.reschedulable:
        return [], False
    target = without_pod_protection(candidate)
    lines = list(_format_new_place(target, work))
    answer = propose_removal([target], work)
    if isinstance(answer, Proposal):
        answer = score_proposal(answer, work)
    if isinstance(answer, Proposal):
        verb = "potential savings:" if is_rejected else "consolidation would save"
        return [*lines, f"{verb} {format_monthly(answer.savings)}/month"], not is_rejected
    if not is_rejected:
        lines.append(f"consolidation blocked: {refusal_in_words(answer.message)}")
        lines += [*_format_rules(target, work)] or [*_format_remedy(answer.code)]
    return lines, False


def _format_rules(candidate: Candidate, work: DisruptionPass) -> Iterator[str]:
    """Yield the rules of its pods that keep the node, if it could be consolidated without them."""
    rules = RuleSearch(work).retaining_rules(candidate)
    if rules is None:
        return
    for rule in rules.constraints:
        verb = "keep" if rule.is_plural else "keeps"
        owners = format_list(rules.owners(candidate, rule))
        yield f"{rule} {verb} pods of {owners} {rules.effect}"
    those = "that rule" if len(rules.constraints) == 1 else "those rules"
    saved = format_monthly(rules.proposal.savings)
    yield f"to allow disruption: relax {those}, which would save {saved}/month"


def _format_new_place(target: Candidate, work: DisruptionPass) -> Iterator[str]:
    """Yield where the pods of a node would go, if one node at most is launched for them."""
    outcome = work.simulation.simulate_removal([target], consolidating=True)
    claims = outcome.placement.claims
    if outcome.failure is not None or len(claims) > 1:
        return
    if not claims:
        yield "its pods fit on the other nodes, without a new one"
        return
    yield (
        f"cheapest replacement considered: {claims[0].types[0].name}"
        f" for {format_dollars(expected_price(claims[0]))}/hour"
        f" ({format_dollars(target.price)} now)"
    )


def _format_postponement(node: StateNode, plan: Plan) -> str | None:
    """Return why a node that could be consolidated is in no command of the plan, None if it is."""
    if any(node.name in command.nodes for command in plan.commands):
        return None
    arriving = {placed.node for placed in plan.placements}
    if node.name in arriving:
        return "this plan schedules pods to it, so it is not disrupted before they run"
    budget = next(
        (b for b in plan.budgets if (b.node_pool, b.reason) == (node.node_pool, _UNDERUTILIZED)),
        None,
    )
    voluntary = [c for c in plan.commands if not c.forceful]
    if budget is not None and budget.allowed == 0:
        return "its disruption budget is used up now"
    if voluntary:
        ids = format_list([command.id for command in voluntary])
        return f"other commands of this plan come first: {ids}; the next pass considers it again"
    return None
