"""The headline of a plan, the same in every rendering: pods, dollars, nodes, and what is stuck."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Final

import msgspec

from reconciler.model.duration import iso_duration
from reconciler.plan.render.spans import fleet_phrase
from reconciler.plan.render.verdicts import policy_lines
from reconciler.plan.render.wording import (
    format_count,
    format_dollars,
    format_duration,
    format_hourly,
    format_list,
    format_monthly,
    format_pods,
    format_time,
    group_messages,
    short_node_name,
    without_backticks,
)
from reconciler.plan.value.actions import ActionKind
from reconciler.plan.value.costs import (
    BASE,
    HEAD,
    AtRest,
    Backtest,
    CostDifference,
    FleetAtRest,
    PoolCost,
    StuckNode,
)
from reconciler.plan.value.plan import Plan


def backtest_sentence(backtest: Backtest) -> str:
    """Return the difference of two sides in one sentence, for a comment on a pull request."""
    change = backtest.difference
    assert change is not None, "a backtest of one side has no difference"
    head, other = backtest.sides[HEAD], backtest.sides[change.against]
    if not change.dollars:
        cost = "the same"
    else:
        share = "" if change.percent is None else f" ({change.percent:+.0f}%)".replace("-", "−")
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


_GAP_EXPLAINED_MIN: Final = 0.1
"""The share above the bound from which the reason is shown."""

_GAP_REASONS: Final[dict[object, str]] = {
    "NodePoolWeights": " because of the weights of the NodePools",
    "Preferences": " because soft preferences are honoured (limit them with "
    "`maximumPreferenceCostPercent`)",
    "PodRules": " because of topology spread and (anti-)affinity",
    "WholeNodes": " because nodes are bought whole",
}
_NO_EFFECT: Final = "This change does not affect cost."
_LEFT_REGION: Final = (
    "This change sets another region; `apply` and `run` refuse it while the fleet has nodes (see "
    "the warning)."
)
_NO_MOVE: Final = "Not included: the move of nodes and pods to the other region."
_STUCK_NAMED: Final = 3
_STUCK_WIDTH: Final = 200
_PODS_WIDTH: Final = 300
"""The maximum characters of a name from elsewhere, so that the headline stays short."""


class ActionCounts(msgspec.Struct, frozen=True):
    """How many nodes this plan launches and removes."""

    launch: int
    remove: int


class Summary(msgspec.Struct, frozen=True, rename="camel", kw_only=True, omit_defaults=True):
    """The headline of a plan: the sentences that every rendering begins with, and their numbers.

    ``per_month`` is what the change costs in USD a month, and ``replaced``, ``launched``,
    ``removed`` count its nodes, all of the fleet at rest; they are omitted without a base. ``now``
    is what this plan does.
    """

    text: tuple[str, ...]
    unschedulable: int
    now: ActionCounts
    per_month: float | None = None
    replaced: int | None = None
    launched: int | None = None
    removed: int | None = None
    rollout: str | None = None
    stuck: int | None = None


def summary_of(plan: Plan) -> Summary:
    """Return the headline of a plan."""
    change, now, pods = plan.at_rest, _count_actions(plan), len(unschedulable_pods(plan))
    if change is None:
        return Summary(text=tuple(summary_lines(plan)), unschedulable=pods, now=now)
    return Summary(
        text=tuple(summary_lines(plan)),
        unschedulable=pods,
        now=now,
        per_month=change.per_month,
        replaced=change.replaced,
        launched=change.launched,
        removed=change.removed,
        rollout=change.rollout,
        stuck=len(change.stuck),
    )


def unschedulable_pods(plan: Plan) -> list[str]:
    """Return the pods that cannot be scheduled, by this plan or by those that follow it."""
    now = {pod.pod for pod in plan.unschedulable}
    if plan.at_rest is not None:
        found = plan.at_rest.unschedulable
        return sorted({*found, *now} if plan.at_rest.bounds is not None else found)
    if plan.steady_state is not None:
        return list(plan.steady_state.unschedulable)
    return sorted(now)


def pods_placed_later(plan: Plan) -> list[str]:
    """Return the pods that this plan does not place, and a later one does."""
    final = set(unschedulable_pods(plan))
    return [pod.pod for pod in plan.unschedulable if pod.pod not in final]


def _count_actions(plan: Plan) -> ActionCounts:
    return ActionCounts(
        sum(1 for action in plan.actions if action.kind == ActionKind.PROVISION),
        sum(1 for action in plan.actions if action.kind == ActionKind.TERMINATE),
    )


def summary_lines(plan: Plan) -> list[str]:
    """Return the headline: unschedulable pods, the cost of the change, what happens now."""
    now = [_action_line(plan), _cost_line(plan)]
    if plan.at_rest is not None or plan.steady_state is not None:
        now[0] = f"Now: {now[0][0].lower()}{now[0][1:]}".replace(" to do now:", " to do:")
    change = [*_unschedulable_lines(plan), *_change_lines(plan), *_steady_state_lines(plan)]
    return [
        *policy_lines(plan),
        *change,
        *now,
        *_maximum_line(plan),
        *_peak_line(plan),
        *_bound_line(plan),
    ]


def _maximum_line(plan: Plan) -> list[str]:
    """Return what the fleet would be with every autoscaler at its maximum."""
    most = plan.at_maximum
    if most is None:
        return []
    nodes, dollars = format_count(most.nodes, "node"), format_dollars(most.per_hour)
    text = f"If every autoscaler is at its maximum: {nodes}, {dollars} an hour"
    pods = len(most.unschedulable)
    limited = any(finding.code == "maximum-limited" for finding in plan.diagnostics)
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
        f"{format_time(peak.at)} ({pods}{each}): {nodes}, {format_dollars(peak.per_hour)} an hour"
    )
    left = len(peak.unschedulable)
    return [f"{text}, and {format_count(left, 'pod')} cannot be scheduled." if left else f"{text}."]


def _unschedulable_lines(plan: Plan) -> list[str]:
    found = []
    for pods, what in (
        (unschedulable_pods(plan), "cannot be scheduled"),
        (pods_placed_later(plan), "placed in a later pass"),
    ):
        if pods:
            pod_text = _truncate(without_backticks(format_pods(pods)), _PODS_WIDTH)
            found.append(f"{format_count(len(pods), 'pod')} {what}: {pod_text}.")
    return found


def _steady_state_lines(plan: Plan) -> list[str]:
    """Return what this plan and later ones lead to, if this one is not the result."""
    steady_state = plan.steady_state
    if steady_state is None or plan.at_rest is not None:
        return []
    before, cost = sum(p.nodes_before for p in plan.cost.by_node_pool.values()), plan.cost.before
    final = (
        f"Steady state: {before:,} → {format_count(steady_state.nodes, 'node')}, "
        f"{_cost_change(cost, steady_state.per_hour)}."
    )
    return [final, *_stuck_line(steady_state.stuck)]


def _change_lines(plan: Plan) -> list[str]:
    """Return what the change since the base costs and does, until the fleet is at rest.

    What it would have cost with a recorded workload is added.
    """
    change = plan.at_rest
    backtest = plan.backtest
    replayed = []
    if backtest is not None and backtest.difference is not None:
        replayed.append(backtest_sentence(backtest))
    if change is None:
        return replayed
    price = _cost_sentence(change)
    if replayed and price == _NO_EFFECT:
        price = "This change does not affect the cost of the fleet as it is now."
    codes = {finding.code for finding in plan.diagnostics}
    if "region-changed" in codes:
        price = "New nodes for all pods cost the same there." if price == _NO_EFFECT else price
        return [_LEFT_REGION, price, *replayed, _NO_MOVE]
    return [
        price,
        *replayed,
        _nodes_sentence(change),
        *_exclusion_lines(codes),
        *_stuck_line(change.stuck),
    ]


def _exclusion_lines(codes: Collection[str]) -> list[str]:
    """Return what the comparison cannot know, because selectors were not looked up."""
    if "selection-unknown" not in codes:
        return []
    what = "nodes to be replaced because they no longer match a changed selector"
    return [f"Not included: {what} of their EC2NodeClass (see the warning)."]


def _cost_sentence(change: AtRest) -> str:
    if change.bounds is not None:
        low, high = (format_monthly(bound, signed=True) for bound in change.bounds)
        return (
            f"This change: about {format_monthly(change.per_hour, signed=True)}/month, "
            f"between {low} and {high} (the search reached its work limit)."
        )
    before, found = change.before, change.difference
    without = f"without it: {format_count(before.nodes, 'node')}, {_hourly(before)}"
    if change.range is None or found is None:
        if format_hourly(before.per_hour) == format_hourly(change.after.per_hour):
            return _NO_EFFECT
        after = change.after
        both = f"{without}; with it: {format_count(after.nodes, 'node')}, {_hourly(after)}"
        return f"This change: {format_monthly(change.per_hour, signed=True)}/month ({both})."
    if format_hourly(found.low) == format_hourly(found.high) == format_hourly(0):
        return _NO_EFFECT
    with_it = f"with it: {fleet_phrase(change.range, per='/hour')}"
    runs = format_count(change.range.seeds, "run")
    return f"This change: {_difference(found)} ({without}; {with_it}; {runs})."


def _hourly(side: FleetAtRest) -> str:
    return f"{format_dollars(side.per_hour)}/hour"


def _difference(found: CostDifference) -> str:
    """Return the mean of a difference and its interval, and whether it may be chance."""
    mean = f"{format_monthly(found.mean, signed=True)}/month"
    if format_hourly(found.low) == format_hourly(found.high):
        return mean
    low, high = (format_monthly(amount, signed=True) for amount in (found.low, found.high))
    if found.beyond_chance:
        return f"{mean}, between {low} and {high}"
    return f"no difference beyond chance: {mean} on average, between {low} and {high}"


def _nodes_sentence(change: AtRest) -> str:
    counts = ((change.replaced, "replaced"), (change.launched, "launched"))
    done = [f"{number:,} {what}" for number, what in (*counts, (change.removed, "removed"))]
    if not (change.replaced or change.launched or change.removed):
        moved = "No nodes are replaced, launched or removed"
    else:
        moved = f"Nodes: {', '.join(done)}"
    return f"{moved}{_format_rollout(change)}."


def _format_rollout(change: AtRest) -> str:
    """Return how long the rollout takes, empty without one."""
    if change.rollout == "PT0S":
        return ""
    if change.rollout is not None:
        return f"; the rollout takes {format_duration(change.rollout)}"
    if change.bounds is not None:
        return "; how long the rollout takes is not known"
    return "; the rollout does not end within 30 days"


def _stuck_line(stuck: Sequence[StuckNode]) -> list[str]:
    if not stuck:
        return []
    names = (short_node_name(without_backticks(s.node or s.node_claim)) for s in stuck)
    alike = group_messages(((), s.message, name) for s, name in zip(stuck, names, strict=True))
    shown = [(group.message, group.names) for group in alike[:_STUCK_NAMED]]
    named = [
        f"{format_list(nodes, _STUCK_NAMED)} ({_truncate(message, _STUCK_WIDTH)})"
        for message, nodes in shown
    ]
    more = len(stuck) - sum(len(nodes) for _, nodes in shown)
    rest = f"; and {more:,} more" if more else ""
    line = f"{format_count(len(stuck), 'node')} stuck: {'; '.join(named)}{rest}."
    is_cut = more or any(len(nodes) > _STUCK_NAMED + 1 for _, nodes in shown)
    is_cut = is_cut or any(len(message) > _STUCK_WIDTH for message, _ in shown)
    return [f"{line} `-o json` lists everything." if is_cut else line]


def _truncate(text: str, width: int) -> str:
    return text if len(text) <= width else text[: width - 1] + "…"


def _action_line(plan: Plan) -> str:
    """Return what this plan does, in nodes."""
    now, pools = _count_actions(plan), plan.cost.by_node_pool.values()
    before, after = sum(p.nodes_before for p in pools), sum(p.nodes_after for p in pools)
    if plan.is_empty:
        later = len({item.node_claim for item in plan.deferred})
        waiting = (
            f"; {format_count(later, 'node')} {'waits' if later == 1 else 'wait'}" if later else ""
        )
        return f"Nothing to do now: {format_count(after, 'node')}{waiting}."
    nodes = f"{before:,} → {after:,} nodes"
    return f"{format_count(now.launch, 'node')} to launch, {now.remove:,} to remove: {nodes}."


def _bound_line(plan: Plan) -> list[str]:
    """Return how far the new nodes are above their theoretical minimum cost, and why."""
    bound, gap, cause = plan.cost.lower_bound, plan.cost.bound_gap, plan.cost.bound_held_by
    if bound is None or gap is None:
        return []
    if format_hourly(bound * (1 + gap)) == format_hourly(bound):
        return ["This is already the cheapest possible set of nodes."]
    if gap >= _GAP_EXPLAINED_MIN and cause in _GAP_REASONS:
        return [f"{gap:.0%} above the theoretical minimum{_GAP_REASONS[cause]}."]
    much = f"{1 + gap:.1f}×" if gap >= 1 else f"{gap:.0%} more"
    advice = ""
    if gap >= _GAP_EXPLAINED_MIN and cause == "Packing":
        advice = " Try `--set packing=cheapest`."
    least = f"Theoretical minimum for these pods: {format_dollars(bound)}/hour."
    return [f"{least} This plan costs {much}.{advice}"]


def _cost_line(plan: Plan) -> str:
    cost = plan.cost
    unpriced = (
        f" ({format_count(cost.unpriced, 'node')} without a price not counted)"
        if cost.unpriced
        else ""
    )
    if format_hourly(cost.before) == format_hourly(cost.after):
        return (
            f"{format_dollars(cost.after)} an hour, {format_monthly(cost.after)} a month{unpriced}."
        )
    return f"{_cost_change(cost.before, cost.after)}{unpriced}."


def _cost_change(before: float, after: float) -> str:
    """Return a change of the cost in USD an hour, also for a month."""
    change = after - before
    if format_hourly(before) == format_hourly(after):
        return f"{format_dollars(after)} an hour, {format_monthly(after)} a month"
    return (
        f"{format_dollars(before)} → {format_dollars(after)} an hour "
        f"({format_dollars(change, signed=True)}), "
        f"{format_monthly(before)} → {format_monthly(after)} a month "
        f"({format_monthly(change, signed=True)})"
    )


def sum_pools(pools: Iterable[PoolCost]) -> PoolCost:
    """Return several NodePools as if they were one."""
    every = list(pools)
    return PoolCost(
        nodes_before=sum(p.nodes_before for p in every),
        nodes_after=sum(p.nodes_after for p in every),
        before=round(sum(p.before for p in every), 9),
        after=round(sum(p.after for p in every), 9),
    )
