"""The reasons that are recorded about a node: those of the newest plan, and earlier ones."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from reconciler.assembly.inputs.records import newest_plan
from reconciler.inspection.explanation import explanation_sections
from reconciler.model.decode import decode
from reconciler.model.errors import StateError
from reconciler.model.karpenter.nodepool import NodePool
from reconciler.plan.explain.reasons import explain_node, with_times
from reconciler.plan.value.plan import Plan
from reconciler.render.reply import render_sections

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime

    from reconciler.adapters.database.history import GivenReason
    from reconciler.assembly.inputs.records import RecordedFleet
    from reconciler.plan.explain.answer import Explanation


class PlanSource(NamedTuple):
    """The plan to answer from, its name in messages, and the earlier reasons."""

    plan: Plan
    digest: str
    name: str
    earlier: Sequence[GivenReason] = ()


def newest_source(recorded: RecordedFleet) -> PlanSource:
    """Return the newest recorded plan.

    Raises:
        StateError: none is.
    """
    found = newest_plan(recorded.state)
    if found is None:
        raise StateError(
            f"no plan is recorded for fleet {recorded.fleet}",
            where=recorded.where,
            remedy="run `reconciler plan --out plan.json`, then explain with --plan plan.json",
        )
    newest, plan = found
    return PlanSource(plan, newest.digest, f"plan {newest.digest}")


def with_recorded_times(
    recorded: RecordedFleet, answer: Explanation, node_claim: str, plan_at: datetime
) -> Explanation:
    """Return the answer about a recorded node with the times of its consolidation and expiry."""
    store = recorded.state.store
    claim = next((c for c in store.node_claims() if c.name == node_claim), None)
    pools = (o for o in store.objects() if o.kind == "NodePool")
    pool = next((o for o in pools if claim is not None and o.name == claim.node_pool), None)
    if claim is None or pool is None:
        return answer
    return with_times(answer, claim, decode(pool.data, NodePool), plan_at)


def earlier_reasons(
    recorded: RecordedFleet, answer: Explanation, source: PlanSource, pair: tuple[str, str] | None
) -> list[GivenReason]:
    """Return earlier reasons that no longer apply, newest first."""
    now = {(r.code, r.message) for r in answer.reasons}
    about: list[tuple[str, str]] = [(answer.kind, answer.name)]
    if pair is not None:
        about = [("Node", pair[0]), ("NodeClaim", pair[1])]
    earlier = [g for who in about for g in recorded.state.history.decisions(*who, limit=10)]
    earlier.sort(key=lambda g: g.at, reverse=True)
    return [
        g
        for g in earlier
        if g.at < source.plan.at and (g.decision.code, g.decision.message) not in now
    ]


def explain_recorded_node(recorded: RecordedFleet, node: str, node_claim: str) -> str:
    """Return why a recorded node is disrupted, or not, as text.

    Raises:
        StateError: no plan is recorded.
    """
    source = newest_source(recorded)
    answer = explain_node(source.plan, node, node_claim, "Node" if node else "NodeClaim")
    answer = with_recorded_times(recorded, answer, node_claim, source.plan.at)
    earlier = earlier_reasons(recorded, answer, source, (node, node_claim))
    sections = explanation_sections(answer, source.plan, source.digest, earlier, recorded.now)
    return render_sections(list(sections))
