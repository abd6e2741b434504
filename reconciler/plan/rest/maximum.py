"""The fleet with every autoscaler at its maximum: how many nodes, and which pods are unschedulable.

Pods are added to the cluster as it is and placed as by a plan; nothing is disrupted. So the result
is what the next scale-up would launch, not the cheapest fleet for that many pods.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from msgspec.structs import replace

from reconciler.disruption.command import Decisions
from reconciler.model.decision.finding import PlanFinding
from reconciler.model.text.counting import format_count
from reconciler.placement.nodes.static import static_claims
from reconciler.placement.pods.pending import pods_to_place
from reconciler.placement.question import Question
from reconciler.plan.automode import left_to_auto_mode
from reconciler.plan.make.assemble import unschedulable_pods
from reconciler.plan.make.decide import lazy_scheduler
from reconciler.plan.make.facts import Facts
from reconciler.plan.make.gather import facts_of
from reconciler.plan.make.inputs import Inputs
from reconciler.plan.make.planner import outcome_of
from reconciler.plan.render.wording import format_pods
from reconciler.plan.value.costs import FleetAtMaximum, PlannedWorkload
from reconciler.plan.value.nodes import LIMIT_CODES, UnschedulablePod
from reconciler.plan.value.plan import Plan


def with_maximum(plan: Plan, inputs: Inputs) -> Plan:
    """Return the plan with its scaled workloads, and with the fleet at their maximum."""
    if not inputs.scaled:
        return plan
    rows = tuple(
        PlannedWorkload(
            kind=row.kind,
            namespace=row.namespace,
            name=row.name,
            min=row.minimum,
            present=row.present,
            max=row.maximum,
            by=row.by,
        )
        for row in inputs.scaled
    )
    if inputs.maximum is None:
        return replace(plan, workloads=rows)
    facts = facts_of(
        replace(inputs, cluster=inputs.maximum, against=None, base=None, lists_blockers=False)
    )
    fleet, unplaced = place_all(facts, "maximum")
    known = {pod.pod for pod in plan.unschedulable}
    more = [pod for pod in unplaced if pod.pod not in known]
    return replace(
        plan,
        workloads=rows,
        at_maximum=fleet,
        diagnostics=(*plan.diagnostics, *_limit_findings(more)),
    )


def place_all(facts: Facts, occasion: str) -> tuple[FleetAtMaximum, tuple[UnschedulablePod, ...]]:
    """Return the fleet with all pods of the facts placed, and the pods that cannot be scheduled.

    ``occasion`` distinguishes the names of new NodeClaims.
    """
    pending = pods_to_place(facts.cluster, facts.now)
    placement = None
    if pending:
        scheduler = lazy_scheduler(facts, f"{facts.salt}\n{occasion}")()
        placement = scheduler.place(Question(pods=pending))
    static = static_claims(facts.types.ready, facts.cluster, facts.settings, salt=facts.salt)
    cost = outcome_of(facts, Decisions(placement=placement), static).cost
    left = left_to_auto_mode(pending, facts.pools)
    unplaced = unschedulable_pods(placement, facts.virtual, facts.types.unready, left)
    fleet = FleetAtMaximum(
        nodes=sum(pool.nodes_after for pool in cost.by_node_pool.values()),
        per_hour=cost.after,
        unschedulable=tuple(pod.pod for pod in unplaced),
    )
    return fleet, unplaced


def _limit_findings(unplaced: Iterable[UnschedulablePod]) -> Iterator[PlanFinding]:
    """Yield one warning about the pods that the limits of NodePools keep from their maximum."""
    stopped = [pod.pod for pod in unplaced if any(r.code in LIMIT_CODES for r in pod.reasons)]
    if not stopped:
        return
    count = format_count(len(stopped), "pod")
    yield PlanFinding(
        severity="warning",
        code="maximum-limited",
        message=f"limits of NodePools stop autoscalers before their maximum: {count} cannot be "
        f"scheduled ({format_pods(stopped)})",
        hint="raise spec.limits, or lower the maximum",
    )
