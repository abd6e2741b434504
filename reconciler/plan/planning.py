"""From inputs to a plan: the one path of previews, of the engine and of simulations."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec.structs import replace

from reconciler.plan.automode import is_auto_mode
from reconciler.plan.make.costs import offer_changes, offers_of
from reconciler.plan.make.decide import Phase, ignore_phase
from reconciler.plan.make.facts import BaseCost, Facts
from reconciler.plan.make.factscache import FactsCache
from reconciler.plan.make.gather import facts_of, launch_types
from reconciler.plan.make.inputs import Inputs, RevisionPair
from reconciler.plan.make.planner import make_plan
from reconciler.plan.rest.maximum import with_maximum
from reconciler.plan.rest.peak import with_peak
from reconciler.plan.value.costs import AtRest
from reconciler.plan.value.nodes import OffersChange
from reconciler.plan.value.plan import Plan


def plan_of(inputs: Inputs, phase: Phase = ignore_phase, cache: FactsCache | None = None) -> Plan:
    """Return the plan for ``inputs``: the same inputs give the same plan.

    ``cache`` only saves time: it has the results for the last inputs of the same loop.
    """
    facts = gather_facts(inputs, phase, cache)
    plan = make_plan(facts, phase, cache)
    if inputs.scaled:
        with phase("placement"):
            plan = with_maximum(plan, inputs)
    if not inputs.finds_steady_state or inputs.withheld:
        return plan
    with phase("placement"):
        plan = with_peak(plan, inputs)
    if inputs.against is None:
        from reconciler.plan.rest.steadystate import with_prospect

        with phase("disruption"):
            plan = with_prospect(plan, inputs, facts.cluster)
    from reconciler.plan.rest.gap import with_gap

    with phase("placement"):
        return with_gap(plan, facts, inputs)


def gather_facts(
    inputs: Inputs, phase: Phase = ignore_phase, cache: FactsCache | None = None
) -> Facts:
    """Return the facts of a plan, with the cost of the change if there is a base."""
    facts = facts_of(inputs, phase, cache)
    if inputs.against is None:
        return facts
    from reconciler.plan.rest.compare import compare_with_base
    from reconciler.plan.rest.offers import offer_risks
    from reconciler.plan.rest.requested import auto_mode_change
    from reconciler.plan.rest.risks import risks_of, with_list_costs

    pair = RevisionPair(base=inputs.against, head=inputs)
    with phase("disruption"):
        at_rest, base = compare_with_base(pair)
    at_rest = _with_new_nodes(with_list_costs(at_rest, pair, facts.changes), inputs)
    offers: Mapping[str, OffersChange] = {}
    risks = (*auto_mode_change(pair, facts.changes), *risks_of(pair, facts.changes, at_rest))
    if facts.changes:
        before, after = launch_types(inputs.against).every, facts.types.every
        before, after = (
            tuple(pool for pool in side if not is_auto_mode(pool.node_pool))
            for side in (before, after)
        )
        offers = offer_changes(offers_of(before), offers_of(after))
        risks += tuple(offer_risks(inputs, facts.changes, before, after))
    return replace(
        facts, base_cost=BaseCost(at_rest, base, offers), findings=(*risks, *facts.findings)
    )


def _with_new_nodes(change: AtRest, inputs: Inputs) -> AtRest:
    """Return a change whose stuck nodes are marked if they do not exist yet."""
    names = {node.claim.name for node in inputs.cluster.nodes if node.claim is not None}
    marked = (replace(node, is_new=node.node_claim not in names) for node in change.stuck)
    return replace(change, stuck=tuple(marked))
