"""The headline of a plan, the same in every rendering: pods, dollars, nodes, and what is stuck."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

import msgspec

from reconciler.model.billing import HOURS_A_MONTH
from reconciler.model.duration import iso_duration
from reconciler.model.text.counting import format_count
from reconciler.model.text.money import (
    format_cost_change,
    format_dollars,
    format_hourly,
    format_monthly,
    format_monthly_parts,
    format_percent_change,
    format_rate,
    monthly_difference,
)
from reconciler.model.text.quoting import without_backticks
from reconciler.model.text.times import format_time
from reconciler.plan.render.headline import (
    CANNOT_SCHEDULE,
    ActionCounts,
    count_actions,
    deletes_every_pool,
    first_pass,
    headline,
    shown_change,
)
from reconciler.plan.render.risks import risk_lines
from reconciler.plan.render.rollout import drifting_lines, rollout_lines
from reconciler.plan.render.stuck import stuck_lines
from reconciler.plan.render.unknown import (
    changes_nothing,
    has_invalid_base,
    is_cost_unknown,
    is_new_fleet,
    offers_phrase,
)
from reconciler.plan.render.unplaced import (
    has_nodes,
    pods_placed_later,
    stranded_pods,
    unschedulable_pods,
)
from reconciler.plan.render.verdicts import policy_lines
from reconciler.plan.render.wording import format_duration, format_pods
from reconciler.plan.value.costs import BASE, HEAD, AtRest, Backtest, PlannedGap, sum_pools
from reconciler.plan.value.plan import Plan
from reconciler.render.layout import truncate

_GAP_EXPLAINED_MIN: Final = 0.1
"""The share above the bound from which the reason is shown."""

_GAP_REASONS: Final[dict[object, str]] = {
    "NodePoolWeights": " because of the weights of the NodePools",
    "Preferences": " because soft preferences are honoured (limit them with "
    "`maximumPreferenceCostPercent`)",
    "PodRules": " because of topology spread and (anti-)affinity",
    "WholeNodes": " because nodes are bought whole",
}
_PODS_WIDTH: Final = 300
"""The maximum characters of a name from elsewhere, so that the headline stays short."""

_LEFT_REGION: Final = (
    "`apply` and `run` refuse another region while the fleet has nodes (see the warning)."
)
_NO_MOVE: Final = "Not included: the move of nodes and pods to the other region."

_PAYERS_SHOWN: Final = 4

_BELOW_BOUND: Final = ("capacity type",)
"""The lower bound is for the present capacity types."""
_NO_CHANGE: Final = ("none", "nothing")
"""How the change of a part begins that nothing saves."""


def backtest_sentence(backtest: Backtest) -> str:
    """Return the difference of two sides in one sentence, for a comment on a pull request."""
    change = backtest.difference
    assert change is not None, "a backtest of one side has no difference"
    head, other = backtest.sides[HEAD], backtest.sides[change.against]
    if not change.dollars:
        cost = "the same"
    else:
        share = "" if change.percent is None else f" ({format_percent_change(change.percent)})"
        direction = "less" if change.dollars < 0 else "more"
        cost = f"{format_dollars(abs(change.dollars))} {direction}{share}"
    what = "this change" if change.against == BASE else "this fleet"
    against = "" if change.against == BASE else f" compared with {change.against}"
    waits = (
        f"{format_seconds(other.waiting_seconds.p99)} → {format_seconds(head.waiting_seconds.p99)}"
    )
    less = "fewer" if change.evictions < 0 else "more"
    evictions = format_count(abs(change.evictions), f"{less} eviction")
    period = f"Over {backtest_length(backtest)}"
    return f"{period}, {what} would have cost {cost}{against}; p99 waiting {waits}, {evictions}."


def backtest_length(backtest: Backtest) -> str:
    """Return how long a backtest is."""
    return format_duration(iso_duration(backtest.until - backtest.begin))


def format_seconds(value: float) -> str:
    """Return whole seconds for people."""
    return f"{value:,.0f} s"


class Summary(msgspec.Struct, frozen=True, rename="camel", kw_only=True, omit_defaults=True):
    """The headline of a plan: the sentences that every rendering begins with, and their numbers.

    ``per_month`` is what the change costs in USD a month, and ``replaced``, ``launched``,
    ``removed`` count its nodes, all of the fleet at rest; they are omitted without a base, and
    ``per_month`` also without workloads, because it is not known then. ``now`` is what this plan
    does. ``kept_per_month`` is what the change costs if the present nodes stay that it keeps from
    being consolidated, omitted if it does not.
    """

    text: tuple[str, ...]
    unschedulable: int
    now: ActionCounts
    per_month: float | None = None
    kept_per_month: float | None = None
    replaced: int | None = None
    launched: int | None = None
    removed: int | None = None
    rollout: str | None = None
    stuck: int | None = None


def summary_of(plan: Plan) -> Summary:
    """Return the headline of a plan."""
    change, now, pods = plan.at_rest, count_actions(plan), len(unschedulable_pods(plan))
    if change is None:
        return Summary(text=tuple(summary_lines(plan)), unschedulable=pods, now=now)
    return Summary(
        text=tuple(summary_lines(plan)),
        unschedulable=pods,
        now=now,
        per_month=_monthly_change(plan, change),
        kept_per_month=_kept_monthly_change(change),
        replaced=change.replaced,
        launched=change.launched,
        removed=change.removed,
        rollout=change.rollout,
        stuck=len(change.stuck),
    )


def summary_lines(plan: Plan) -> list[str]:
    """Return the headline, then what else decides whether to merge or to apply."""
    return [
        headline(plan),
        *_first_pass_line(plan),
        *policy_lines(plan),
        *_unschedulable_lines(plan),
        *_change_lines(plan),
        *_steady_state_lines(plan),
        *_maximum_line(plan),
        *_peak_line(plan),
        *_bound_line(plan),
    ]


def _first_pass_line(plan: Plan) -> list[str]:
    """Return what the first pass does, where that is all there is to say of a change."""
    if not has_invalid_base(plan) or is_cost_unknown(plan):
        return []
    return [f"{first_pass(plan)}."]


def _maximum_line(plan: Plan) -> list[str]:
    """Return what the fleet would be with every autoscaler at its maximum."""
    most = plan.at_maximum
    if most is None or deletes_every_pool(plan):
        return []
    nodes, dollars = format_count(most.nodes, "node"), format_monthly(most.per_hour)
    text = f"If every autoscaler is at its maximum: {nodes} at first, {dollars}/month"
    pods = len(most.unschedulable)
    limited = plan.findings_of("maximum-limited")
    if pods and limited:
        verb = "does" if pods == 1 else "do"
        where = f"{verb} not fit into the NodePools' limits"
        return [f"{text}, and {format_count(pods, 'pod')} {where}."]
    return [f"{text}, and {format_count(pods, 'pod')} cannot be scheduled." if pods else f"{text}."]


def _peak_line(plan: Plan) -> list[str]:
    """Return what the fleet is in the worst hour of the day, with the pods of CronJobs."""
    peak = plan.at_peak
    if peak is None:
        return []
    pods, nodes = format_count(peak.pods, "pod"), format_count(peak.nodes, "node")
    each = ", if each runs 10 minutes" if peak.assumed else ""
    text = (
        f"Pods of CronJobs are not planned. In their worst hour of the day, from "
        f"{format_time(peak.at)} ({pods}{each}): {nodes}, {format_rate(peak.per_hour)}"
    )
    left = len(peak.unschedulable)
    return [f"{text}, and {format_count(left, 'pod')} cannot be scheduled." if left else f"{text}."]


def _monthly_change(plan: Plan, change: AtRest) -> float | None:
    """Return what a change costs in USD a month, None if that is not known.

    Without any NodePool all nodes are gone at last, however long their pods hold them.
    """
    if is_cost_unknown(plan):
        return 0.0 if changes_nothing(plan) else None
    if deletes_every_pool(plan):
        return round(-change.before.per_hour * HOURS_A_MONTH, 9)
    return change.per_month


def _kept_monthly_change(change: AtRest) -> float | None:
    """Return what a change costs in USD a month with the present nodes, if it keeps them."""
    per_hour = change.kept_per_hour
    return None if per_hour is None else round(per_hour * HOURS_A_MONTH, 9)


def shown_per_month(plan: Plan) -> float | None:
    """Return the whole dollars a month that the headline names, None if it names none."""
    change = plan.at_rest
    if change is None or is_cost_unknown(plan) or deletes_every_pool(plan):
        return None if change is None else _monthly_change(plan, change)
    return round(shown_change(change) * HOURS_A_MONTH, 9)


def _unschedulable_lines(plan: Plan) -> list[str]:
    change = plan.at_rest
    new = list(change.newly_unschedulable) if change is not None else []
    others = [pod for pod in unschedulable_pods(plan) if pod not in set(new)]
    if change is None:
        later = _pods_line(pods_placed_later(plan), "placed in a later pass")
        return [*filter(None, [_unscheduled_line(plan, others), later])]
    stays = "cannot be scheduled, with or without this change"
    lines = [
        _pods_line(new, "cannot be scheduled because of this change", _sole_reason(plan, new)),
        _pods_line(others, stays, _sole_reason(plan, others)),
        *_stranded_lines(plan, change),
    ]
    return [*filter(None, lines)]


def _unscheduled_line(plan: Plan, pods: Sequence[str]) -> str:
    """Return the names of the pods that cannot be scheduled, whose number the headline has."""
    line = _pods_line(pods, CANNOT_SCHEDULE)
    counted = f"{format_count(len(pods), 'pod')} {CANNOT_SCHEDULE}"
    return line.replace(counted, "Unschedulable", 1) if counted in headline(plan) else line


def _stranded_lines(plan: Plan, change: AtRest) -> Iterator[str]:
    """Yield the pods that run only until their present nodes are gone, with the reason."""
    limited = set(change.new_nodes.limited) if change.new_nodes is not None else set()
    pods = stranded_pods(plan)
    for late, one, several in (
        (False, "because no new node can take it", "because no new node can take them"),
        (True, "because of the limits of NodePools", "because of the limits of NodePools"),
    ):
        found = [pod for pod in pods if (pod in limited) is late]
        until = "runs only until its present node is gone"
        if len(found) != 1:
            until = "run only until their present nodes are gone"
        yield _pods_line(found, f"{until}, {one if len(found) == 1 else several}")


def _pods_line(pods: Sequence[str], what: str, why: str = "") -> str:
    if not pods:
        return ""
    names = truncate(without_backticks(format_pods(pods)), _PODS_WIDTH)
    reason = f" Reason: {truncate(without_backticks(why), _PODS_WIDTH)}." if why else ""
    return f"{format_count(len(pods), 'pod')} {what}: {names}.{reason}"


def _sole_reason(plan: Plan, pods: Sequence[str]) -> str:
    """Return why the pods cannot be scheduled, empty if there are several reasons.

    It is that of the first pass, or else that of the steady state. Both may know other replicas of
    the same workloads.
    """
    first = [(pod.pod, reason.message) for pod in plan.unschedulable for reason in pod.reasons]
    groups = plan.at_rest.unschedulable_reasons if plan.at_rest is not None else ()
    later = [(pod, group.message) for group in groups for pod in group.pods]
    return _reason_of(pods, first) or _reason_of(pods, later)


def _reason_of(pods: Sequence[str], reasons: Iterable[tuple[str, str]]) -> str:
    """Return the only reason of the workloads of pods, empty if there is another number of them."""
    workloads = {pod.rpartition("-")[0] for pod in pods}
    found = [(pod.rpartition("-")[0], message) for pod, message in reasons]
    messages = {message for workload, message in found if workload in workloads}
    is_known = workloads <= {workload for workload, _ in found}
    return messages.pop() if is_known and len(messages) == 1 else ""


def _steady_state_lines(plan: Plan) -> list[str]:
    """Return what this plan and later ones lead to, if this one is not the result."""
    steady_state = plan.steady_state
    if steady_state is None or plan.at_rest is not None:
        return []
    if steady_state.is_estimate:
        # Without its range: without latencies it is narrower than that of what will happen.
        cost = f"about {format_monthly(steady_state.per_hour)}/month"
        is_less = steady_state.per_hour < plan.cost.after
        later = "have consolidated these nodes" if is_less else "have ended"
        exact = "a fast estimate; `reconciler simulate` is more exact"
        return [f"Steady state: {cost}, once later passes {later} ({exact})."]
    before = sum_pools(plan.cost.by_node_pool.values()).nodes_before
    final = (
        f"Steady state: {before:,} → {format_count(steady_state.nodes, 'node')}, "
        f"{format_cost_change(plan.cost.before, steady_state.per_hour)}."
    )
    return [final, *stuck_lines(steady_state.stuck, plan.observation)]


def _shares_line(change: AtRest) -> list[str]:
    """Return who pays for a change, and who saves, if its cost is more than chance."""
    shares, found = change.shares, change.difference
    if shares is None or len(shares.groups) < 2 or (found is not None and not found.beyond_chance):
        return []
    changes = shares.changes()
    if len(changes) < 2:  # a single one has the amount of the headline
        return []
    shown = [
        f"{truncate(without_backticks(name), _PODS_WIDTH) or 'idle'} "
        f"{format_monthly(monthly_difference(group.before, group.after), signed=True)}"
        for name, group in changes[:_PAYERS_SHOWN]
    ]
    more = len(changes) - _PAYERS_SHOWN
    tail = f" and {more} more" if more > 0 else ""
    by = shares.by.replace("label=", "label ")
    return [f"By {by} ($/month): {', '.join(shown)}{tail}."]


def _change_lines(plan: Plan) -> list[str]:
    """Return what the rollout of a change does, and what it cannot do.

    What the change would have cost with a recorded workload comes first.
    """
    change = plan.at_rest
    backtest = plan.backtest
    replayed = []
    if backtest is not None and backtest.difference is not None:
        replayed.append(backtest_sentence(backtest))
    if change is None or is_cost_unknown(plan):
        drifting = drifting_lines(plan) if change is not None else []
        lines = [*drifting, *risk_lines(plan)]
        return [*replayed, *lines]
    codes = {finding.code for finding in plan.diagnostics}
    if "region-changed" in codes:
        return [_LEFT_REGION, *replayed, _NO_MOVE]
    return [
        *replayed,
        *rollout_lines(plan, change),
        *_unused_pools_line(plan, change),
        *([] if deletes_every_pool(plan) else _shares_line(change)),
        *([] if deletes_every_pool(plan) else stuck_lines(change.stuck, plan.observation)),
        *risk_lines(plan),
    ]


def _pools_with_nodes(plan: Plan, change: AtRest) -> set[str]:
    both = {n for n, pool in change.by_node_pool.items() if pool.before.nodes or pool.after.nodes}
    return both | {name for name, pool in plan.cost.by_node_pool.items() if pool.nodes_after}


def _unused_pools_line(plan: Plan, change: AtRest) -> list[str]:
    """Return what a change does to NodePools that none of the known pods runs on.

    Without a cluster only the pods of files are known, so the cost of these is unknown, not zero.
    """
    if plan.observation != "workloads" or deletes_every_pool(plan):
        return []
    used = _pools_with_nodes(plan, change)
    unused = {name: offers for name, offers in plan.offers.items() if name not in used}
    if not unused or is_new_fleet(plan):
        return []
    return [
        f"{offers_phrase(plan, unused)}; no pod of the files runs there, so its cost is unknown."
    ]


def _bound_line(plan: Plan) -> list[str]:
    """Return how far the new nodes are above the cost of the cheapest ones, and why.

    With a change, this is about its steady state, and only if all nodes are new ones.
    """
    bound = plan.cost.lower_bound
    gap = None if bound is None else _bound_gap(plan, bound)
    if bound is None or gap is None:
        return []
    what = "this plan" if plan.at_rest is None else "the steady state"
    if format_hourly(bound * (1 + gap)) == format_hourly(bound):
        if plan.at_rest is not None:
            return ["No cheaper nodes are allowed for these pods in steady state."]
        return ["This is already the cheapest possible set of nodes."]
    least = f"Lower bound for these pods: {format_monthly(bound)}/month; {what}:"
    much = f"{_format_gap(gap)}{_later_gap(plan, bound)}"
    return [f"{least} {much}{_gap_reason(plan, gap)}"]


def _bound_gap(plan: Plan, bound: float) -> float | None:
    """Return the share by which new nodes cost more than the bound; None if it says nothing."""
    if plan.cost.bound_gap is None or is_cost_unknown(plan):
        return None
    if plan.at_rest is None:
        return plan.cost.bound_gap
    if has_nodes(plan) or plan.unschedulable or not bound:
        return None
    gap = plan.at_rest.after.per_hour / bound - 1
    if gap < 0 and format_hourly(bound * (1 + gap)) != format_hourly(bound):
        return None  # nodes of the base stay that could not be launched again
    return gap


def _gap_reason(plan: Plan, gap: float) -> str:
    """Return the end of the sentence: why the nodes cost so much more, and what would lower it."""
    cause = plan.cost.bound_held_by
    if gap < _GAP_EXPLAINED_MIN:
        return "."
    if cause in _GAP_REASONS:
        return f"{_GAP_REASONS[cause]}."
    advice = " `reconciler advise` finds what would lower it." if cause == "Packing" else ""
    if plan.at_rest is None and plan.gap is not None:
        advice = f"{_largest_part(plan.gap)}{advice}"
    return f".{advice}"


def _format_gap(gap: float) -> str:
    return f"{1 + gap:.1f} times that" if gap >= 1 else f"{gap:.0%} more"


def _later_gap(plan: Plan, bound: float) -> str:
    """Return how far the fleet is above the bound once these nodes have been consolidated."""
    state = plan.steady_state
    if state is None or not state.is_estimate or not bound:
        return ""
    return f", the steady state: {_format_gap(max(0.0, state.per_hour / bound - 1))}"


def _largest_part(gap: PlannedGap) -> str:
    """Return the constraint above the lower bound that costs most, if a change would save it."""
    prices = [part.price_per_hour for part in gap.costs]
    amounts = format_monthly_parts(prices, gap.price_per_hour, gap.minimum)
    found = [
        (part, amount)
        for part, amount in zip(gap.costs, amounts[:-1], strict=True)
        if part.constraint not in _BELOW_BOUND and not part.change.startswith(_NO_CHANGE)
    ]
    if not found:
        return ""
    part, cost = max(found, key=lambda row: row[0].price_per_hour)
    owner = f" of {without_backticks(part.owner)}" if part.owner else ""
    what = f"{part.constraint}{owner}, {cost}/month (`reconciler explain gap`)"
    return f" Largest avoidable part: {what}."
