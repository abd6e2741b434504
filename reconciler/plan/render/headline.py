"""The first line of a plan: what it costs, how many nodes there are then, and what breaks."""

from __future__ import annotations

from collections import Counter
from typing import Final

import msgspec

from reconciler.disruption.command import ForcefulReason
from reconciler.model.billing import HOURS_A_MONTH
from reconciler.model.text.counting import format_count
from reconciler.model.text.money import (
    format_cost_change,
    format_hourly,
    format_monthly,
    monthly_difference,
)
from reconciler.model.text.quoting import without_backticks
from reconciler.plan.render.unknown import (
    AUTO_MODE_COST,
    AUTO_MODE_PODS,
    BUDGET,
    changed_offers_phrase,
    changes_nothing,
    has_invalid_base,
    has_unread_files,
    has_unread_workloads,
    is_cost_unknown,
    is_new_fleet,
    only_budgets_change,
    requests_phrase,
    unknown_cost_reason,
)
from reconciler.plan.render.unplaced import stranded_pods, unschedulable_pods
from reconciler.plan.render.verdicts import forbidding_phrase
from reconciler.plan.value.actions import ActionKind
from reconciler.plan.value.costs import DRAINING, AtRest, sum_pools
from reconciler.plan.value.plan import Plan
from reconciler.plan.value.ranges import CostDifference, NewFleets

CANNOT_SCHEDULE: Final = "cannot be scheduled"

_NO_EFFECT: Final = "This change has no effect on cost"
_NOTHING_CHANGES: Final = "This change has no effect: no object of the fleet changes"
"""That of a change of comments or documents."""
_NO_EFFECT_NOW: Final = "This change has no effect on the cost of the fleet as it is now"

_NEW_NODES: Final = "estimate, with new nodes for all pods at once"
"""What the cost after the next replacement is: nodes that are replaced one by one may cost less."""

_SHARE_MIN: Final = 0.01
"""The minimum share of the cost of the base from which the cost of later nodes is a fact."""

_WORK_LIMIT: Final = "the search reached its work limit"


def headline(plan: Plan) -> str:
    """Return the first line of a plan."""
    facts = _change_facts(plan) if plan.at_rest is not None else _plan_facts(plan)
    return f"{'; '.join(filter(None, (*facts, forbidding_phrase(plan))))}."


def _change_facts(plan: Plan) -> list[str]:
    """Return the cost of a change, the nodes before and after it, and the pods that it breaks."""
    change = plan.at_rest
    assert change is not None, "the caller has seen one"
    if is_cost_unknown(plan):
        return _unknown_facts(plan, change)
    if is_new_fleet(plan):
        return _new_fleet_facts(plan, change)
    if only_budgets_change(plan):
        return _budget_facts(plan)
    if plan.findings_of("region-changed"):
        return _region_facts(change)
    if deletes_every_pool(plan):
        return _emptied_facts(plan, change)
    return [
        _cost_fact(plan, change),
        _nodes_change(change),
        _kept_phrase(change),
        _pods_phrase(change),
        _stranded_phrase(plan),
        _stuck_phrase(change),
        _unknown_replacement(plan),
        _auto_mode_phrase(plan),
        "changed workloads not included" if has_unread_workloads(plan) else "",
        "changed files not included" if has_unread_files(plan) else "",
    ]


def _cost_fact(plan: Plan, change: AtRest) -> str:
    """Return the cost of a change of a fleet that both sides have, at each time that differs."""
    present = _cost_phrase(
        change,
        has_backtest=plan.backtest is not None,
        limit=_limit_phrase(plan),
        ends=bool(stranded_pods(plan)) and not change.newly_unschedulable,
    )
    cost = _with_later_cost(present, change)
    cost += _prices_phrase(plan, ends=cost != present)
    if cost == _NO_EFFECT and changes_nothing(plan) and not has_unread_files(plan):
        return _NOTHING_CHANGES
    if plan.findings_of("fleet-removed"):
        return cost.replace("This change: ", "This change removes the fleet: ", 1)
    return cost


def _unknown_facts(plan: Plan, change: AtRest) -> list[str]:
    """Return why the cost of a change is not known, and what is known of it."""
    if changes_nothing(plan):
        if has_unread_files(plan):
            return ["Effect of this change unknown: it only changes what a plan does not read"]
        return [_NOTHING_CHANGES]
    unknown = f"Cost unknown: {unknown_cost_reason(plan)}"
    if is_new_fleet(plan):
        unknown = f"New fleet of unknown cost: {unknown_cost_reason(plan)}"
    if plan.findings_of(AUTO_MODE_COST):
        return [unknown, requests_phrase(plan), *_karpenter_facts(plan, change)]
    more = requests_phrase(plan) if has_unread_workloads(plan) else changed_offers_phrase(plan)
    return [unknown, more]


def _karpenter_facts(plan: Plan, change: AtRest) -> list[str]:
    """Return what a change costs beside the nodes of EKS Auto Mode, if there are others."""
    if not (change.before.nodes or change.after.nodes):
        return []
    cost = _cost_phrase(change).removeprefix("This change: ")
    return [
        f"other nodes: {'no effect on cost' if cost == _NO_EFFECT else cost}",
        _nodes_change(change),
        _pods_phrase(change),
        _stranded_phrase(plan),
        _stuck_phrase(change),
    ]


def _auto_mode_phrase(plan: Plan) -> str:
    """Return that the nodes of pods are not included, because AWS launches them."""
    is_left = plan.findings_of(AUTO_MODE_PODS)
    return "nodes of EKS Auto Mode not included" if is_left else ""


def _new_fleet_facts(plan: Plan, change: AtRest) -> list[str]:
    """Return what a fleet is in steady state that the base does not have."""
    nodes, pods = format_count(change.after.nodes, "node"), len(change.unschedulable)
    lost = f"{format_count(pods, 'pod')} cannot be scheduled" if pods else ""
    if change.bounds is not None:
        low, high = (format_monthly(bound) for bound in change.bounds)
        what = f"about {nodes}, {low} to {high}/month ({_limit_phrase(plan)})"
        return [f"New fleet: {what}", lost]
    runs = ""
    if change.range is not None:
        span = change.range.per_hour
        low, high = format_monthly(span.low), format_monthly(span.high)
        if low != high:
            runs = f" ({low} to {high} in {format_count(change.range.seeds, 'run')})"
    amount = format_monthly(change.after.per_hour)
    prices = _prices_phrase(plan)
    return [f"New fleet: {nodes}, {amount}/month in steady state{runs}{prices}", lost]


def _budget_facts(plan: Plan) -> list[str]:
    """Return that only evictions change, and the budgets that allow none any more."""
    closed = sum(f.code == "change-blocks-evictions" for f in plan.diagnostics)
    blocks = f"{format_count(closed, BUDGET)} then {'allows' if closed == 1 else 'allow'}"
    return [
        "This change only limits evictions, and launches and removes no node by itself",
        f"{blocks} no eviction" if closed else "",
    ]


def _prices_phrase(plan: Plan, *, ends: bool = False) -> str:
    """Return what AWS bills, if the change is one of NodeOverlays, which only value nodes.

    ``ends`` is whether that holds for the present nodes alone: new ones may be of other types.
    """
    if not plan.findings_of("change-of-overlay"):
        return ""
    known = plan.at_rest.list_costs if plan.at_rest is not None else None
    if known is None:
        return ", as valued by NodeOverlays and not as billed"
    difference = format_monthly(known.after - known.before, signed=True)
    billed = "no effect" if difference == format_monthly(0) else f"about {difference}/month"
    lasts = " while the present nodes last" if ends else ""
    return f", as valued by NodeOverlays; {billed} at list prices{lasts}"


def _region_facts(change: AtRest) -> list[str]:
    cost = _cost_phrase(change)
    cost = "the same cost" if cost == _NO_EFFECT else cost.removeprefix("This change: ")
    return [
        f"This change sets another region; new nodes for all pods there: {cost}",
        _nodes_change(change),
        _pods_phrase(change),
    ]


def deletes_every_pool(plan: Plan) -> bool:
    """Return whether the change deletes all NodePools of a fleet that stays in git."""
    return bool(plan.findings_of("fleet-emptied"))


def _emptied_facts(plan: Plan, change: AtRest) -> list[str]:
    """Return that all nodes go, what that saves then, and the pods that have no node then."""
    cost, nodes = format_monthly(-change.before.per_hour, signed=True), change.before.nodes
    pods = len({*change.newly_unschedulable, *stranded_pods(plan)})
    lost = f"{format_count(pods, 'pod')} then {'has' if pods == 1 else 'have'} no node"
    counts = {1: "its node is removed", 2: "both nodes are removed"}
    what = counts.get(nodes, f"all {format_count(nodes, 'node')} are removed")
    return [
        f"This change deletes every NodePool: {what}"
        if nodes
        else "This change deletes every NodePool",
        lost if pods else "",
        f"{cost}/month once the nodes are gone" if nodes else "",
    ]


def _with_later_cost(phrase: str, change: AtRest) -> str:
    """Return the cost of a change with that of the nodes that are launched after its rollout."""
    new = change.new_nodes
    if new is None or not _is_changed_by_new_nodes(change, new):
        return phrase
    later = new.difference
    if format_hourly(later.low) == format_hourly(later.high) == format_hourly(0):
        return f"{phrase} until the nodes are next replaced, then no effect"
    least, most = (format_monthly(end, signed=True) for end in (later.low, later.high))
    runs = "" if least == most else f": {least} to {most} in {format_count(new.seeds, 'run')}"
    amount = f"{format_monthly(later.mean, signed=True)}/month ({_NEW_NODES}{runs})"
    if not later.beyond_chance:
        runs = f"by chance, in {format_count(new.seeds, 'run')}"
        amount = f"{least} to {most}/month ({_NEW_NODES}; {runs})"
    if phrase.startswith(_NO_EFFECT) and not change.replaced:
        return f"{phrase} until nodes are replaced, then {amount}"
    return f"{phrase} until the nodes are next replaced, then {amount}"


def _is_changed_by_new_nodes(change: AtRest, new: NewFleets) -> bool:
    """Return whether every pod has a node, and no run costs what one with new nodes costs."""
    if new.unschedulable or change.unschedulable or change.bounds is not None:
        return False
    found, later = change.difference, new.difference
    low, high = (found.low, found.high) if found is not None else (change.per_hour,) * 2
    if low <= later.high and later.low <= high:
        return False
    least = max(_SHARE_MIN * change.before.per_hour, 0.5 / HOURS_A_MONTH)
    return abs(later.mean - change.per_hour) >= least


def _interval(found: CostDifference, runs: int, *, is_estimate: bool = False) -> str:
    """Return the range of a difference over several runs, empty if all are equal."""
    low, high = (format_monthly(end, signed=True) for end in (found.low, found.high))
    kind = "estimate: " if is_estimate else ""
    return "" if low == high else f" ({kind}{low} to {high} in {format_count(runs, 'run')})"


def _limit_phrase(plan: Plan) -> str:
    """Return why only bounds of a cost are known."""
    if plan.findings_of("short-expiry"):
        return "nodes expire before the fleet settles"
    return _WORK_LIMIT


def shown_change(change: AtRest) -> float:
    """Return what a change costs in USD an hour, the difference of the months that are shown."""
    if change.bounds is not None:
        return change.per_hour
    return monthly_difference(change.before.per_hour, change.after.per_hour)


def _cost_phrase(
    change: AtRest, *, has_backtest: bool = False, ends: bool = False, limit: str = _WORK_LIMIT
) -> str:
    """Return what the change costs a month in steady state, with its interval.

    ``limit`` is why only bounds are known, if that is so.
    ``ends`` is whether pods lose their place with their present nodes.
    """
    amount = f"{format_monthly(shown_change(change), signed=True)}/month"
    if change.bounds is not None:
        low, high = (format_monthly(bound, signed=True) for bound in change.bounds)
        return f"This change: about {amount}, between {low} and {high} ({limit})"
    mean = f"This change: {amount}"
    none = _NO_EFFECT_NOW if has_backtest else _NO_EFFECT
    lasts = " while the present nodes last" if ends else ""
    found = change.difference
    if found is None or change.range is None:
        same = format_hourly(change.before.per_hour) == format_hourly(change.after.per_hour)
        return f"{none}{lasts}" if same else f"{mean} in steady state"
    if format_hourly(found.low) == format_hourly(found.high):
        none = f"{none}{lasts}"
        return none if format_hourly(found.mean) == format_hourly(0) else f"{mean} in steady state"
    if not found.beyond_chance:
        between = _interval(found, change.range.seeds, is_estimate=change.is_estimate)
        return f"{none} beyond chance{between}{lasts}"
    shown = shown_change(change)  # which rounding must not put outside of the interval
    found = msgspec.structs.replace(found, low=min(found.low, shown), high=max(found.high, shown))
    between = _interval(found, change.range.seeds, is_estimate=change.is_estimate)
    return f"{mean} in steady state{between}"


def _nodes_change(change: AtRest) -> str:
    before, after = change.before.nodes, format_count(change.after.nodes, "node")
    return after if before == change.after.nodes else f"{before:,} → {after}"


def _kept_phrase(change: AtRest) -> str:
    """Return what the present nodes cost that a change keeps from being consolidated."""
    if change.kept is None:
        return ""
    more = format_monthly(
        monthly_difference(change.before.per_hour, change.kept.per_hour), signed=True
    )
    nodes = format_count(change.kept.nodes, "node")
    return f"but the present nodes are no longer consolidated to that: {more}/month, {nodes}"


def _stranded_phrase(plan: Plan) -> str:
    pods = len(stranded_pods(plan))
    if not pods:
        return ""
    verb, whose = ("becomes", "its node is") if pods == 1 else ("become", "their nodes are")
    return f"{format_count(pods, 'pod')} {verb} unschedulable once {whose} gone"


def _unknown_replacement(plan: Plan) -> str:
    """Return that nodes may be replaced, because a changed selector was not looked up."""
    unknown = plan.findings_of("selection-unknown")
    return "which nodes it replaces is unknown" if unknown else ""


def _stuck_phrase(change: AtRest) -> str:
    deleted = ForcefulReason.NODE_POOL_DELETED
    kept = [node.node_pool for node in change.stuck if node.reason == deleted]
    stuck = len(change.stuck) - len(kept)
    pools = sorted({*filter(None, kept)})
    name = without_backticks(pools[0]) if len(pools) == 1 else ""
    of = f"deleted NodePool {name}" if name else "deleted NodePools"
    verb, whose = ("stays", "its") if len(kept) == 1 else ("stay", "their")
    stays = f"{format_count(len(kept), 'node')} of {of} {verb} until {whose} removal is allowed"
    phrases = [
        f"{format_count(stuck, 'node')} cannot be replaced" if stuck else "",
        stays if kept else "",
    ]
    return "; ".join(filter(None, phrases))


def _pods_phrase(change: AtRest) -> str:
    """Return how many pods become unschedulable, or stay so."""
    more, after = len(change.newly_unschedulable), len(change.unschedulable)
    before = len(change.unschedulable_before)
    if more:
        become = format_count(more, "pod becomes", "pods become")
        return f"{become} unschedulable ({before:,} → {after:,})"
    if after < before:
        become = format_count(before - after, "pod becomes", "pods become")
        return f"{become} schedulable ({before:,} → {after:,})"
    return f"{format_count(after, 'pod stays', 'pods stay')} unschedulable" if after else ""


def _plan_facts(plan: Plan) -> list[str]:
    """Return what the first pass does and costs."""
    if is_cost_unknown(plan):
        return [f"Cost unknown: {unknown_cost_reason(plan)}"]
    if has_invalid_base(plan):
        return ["Cost of this change unknown: its base has no plan"]
    pods = len(unschedulable_pods(plan))
    done = f"New fleet. {first_pass(plan)}" if is_new_fleet(plan) else first_pass(plan)
    lost = f"{format_count(pods, 'pod')} {CANNOT_SCHEDULE}" if pods else ""
    return [done, lost, _auto_mode_phrase(plan)]


def first_pass(plan: Plan) -> str:
    """Return what the first pass does to the nodes and to the bill."""
    cost = plan.cost
    pool = sum_pools(cost.by_node_pool.values())
    before, after = pool.nodes_before, pool.nodes_after
    rest = plan.steady_state
    endless = sum(node.reason == DRAINING for node in rest.stuck) if rest is not None else 0
    stays = f", {endless:,} cannot be drained" if endless else ""
    price = format_cost_change(cost.before, cost.after)
    if cost.unpriced:
        price = f"{price} ({format_count(cost.unpriced, 'node')} without a price not counted)"
    if plan.is_empty:
        later = len({item.node_claim for item in plan.deferred})
        waiting = f", {format_count(later, 'node waits', 'nodes wait')}" if later else ""
        idle = "Karpenter has nothing to do now" if plan.actor else "Nothing to do now"
        return f"{idle}: {format_count(after, 'node')}{stays}{waiting}; {price}"
    begin = "Karpenter will" if plan.actor else "First pass:"
    return f"{begin} {count_actions(plan).phrase} ({before:,} → {after:,}){stays}; {price}"


class ActionCounts(msgspec.Struct, frozen=True, omit_defaults=True):
    """How many nodes this plan launches, removes and reboots."""

    launch: int
    remove: int
    reboot: int = 0

    @property
    def phrase(self) -> str:
        """What is done: ``launch 3 and remove 1 node``."""
        verbs = ("launch", self.launch), ("remove", self.remove), ("reboot", self.reboot)
        *first, (verb, number) = [step for step in verbs if step[1]] or [("remove", 0)]
        counted = [f"{verb} {number:,}" for verb, number in first]
        return " and ".join([*counted, f"{verb} {format_count(number, 'node')}"])


def count_actions(plan: Plan) -> ActionCounts:
    """Return how many nodes this plan launches, removes and reboots."""
    kinds = Counter(action.kind for action in plan.actions)
    return ActionCounts(
        kinds[ActionKind.PROVISION], kinds[ActionKind.TERMINATE], kinds[ActionKind.REBOOT]
    )
