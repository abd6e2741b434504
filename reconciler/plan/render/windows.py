"""The budgets and windows of a NodePool in words."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from typing import Final

from reconciler.disruption.gates.budgets import budget_reasons
from reconciler.model.duration import parse_duration
from reconciler.model.karpenter.budget import Budget, DisruptionReason
from reconciler.model.karpenter.nodepool import NodePool
from reconciler.model.schedule import parse_schedule
from reconciler.model.settings import Settings
from reconciler.model.text.quoting import quote_value
from reconciler.model.windows import Window
from reconciler.plan.render.wording import format_words

_NONE: Final = ("0", "0%")

_CAUSES: Final = frozenset(DisruptionReason)
_WEEK: Final = (1, 2, 3, 4, 5, 6, 0)
"""The days of the week from Monday, as a schedule numbers them."""
_DAY_NAMES: Final = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
_DAY: Final = timedelta(days=1)
_ANY_MONTH: Final = frozenset(range(1, 13))


def disruption_rules(pool: NodePool, settings: Settings) -> list[str]:
    """Return the budgets and windows of the NodePool in words."""
    own = [_format_budget(budget, "nodes") for budget in pool.spec.disruption.budgets]
    whole = [_format_budget(budget, "nodes of the fleet") for budget in settings.fleet_budgets]
    windows = (_format_opening(window) for window in _windows_of(pool, settings))
    return list(dict.fromkeys([*own, *whole, *_no_limit(pool, settings), *windows]))


def _no_limit(pool: NodePool, settings: Settings) -> list[str]:
    """Return that no budget limits how many nodes are disrupted, at some times or for some reasons.

    A budget with a schedule ends with it, and one with reasons is not about others. Nobody who
    reads "at most 1 node Mon–Fri 09:00–17:00" expects that all may be disrupted on Saturday.
    """
    budgets = (*pool.spec.disruption.budgets, *settings.fleet_budgets)
    always = [b for b in budgets if b.schedule is None or b.never_ends]
    free = [r for r in budget_reasons(settings) if not any(b.applies_to(r) for b in always)]
    if not free:
        return []
    reasons = free if len(free) < len(budget_reasons(settings)) else []
    return [f"otherwise any number of nodes at once{_format_reasons(reasons)}"]


def closed_times(pool: NodePool, settings: Settings, reason: DisruptionReason) -> list[str]:
    """Return in words when no node of the NodePool may be disrupted for a reason."""
    budgets = (*pool.spec.disruption.budgets, *settings.fleet_budgets)
    closed = [
        _format_budget(budget, "nodes")
        for budget in budgets
        if budget.nodes in _NONE and budget.schedule is not None and budget.applies_to(reason)
    ]
    windows = [
        _format_opening(window)
        for window in _windows_of(pool, settings)
        if window.covers(pool.name, reason)
    ]
    return list(dict.fromkeys([*closed, *windows]))


def _windows_of(pool: NodePool, settings: Settings) -> Iterator[Window]:
    return (w for w in settings.windows if not w.node_pools or pool.name in w.node_pools)


def _format_opening(window: Window) -> str:
    when = _format_window(window.schedule, str(window.duration), window.time_zone)
    return f"open only {when}{_format_reasons(window.reasons)}"


def _format_budget(budget: Budget, noun: str) -> str:
    """Return a budget in words: ``at most 2 nodes``, ``closed Mon–Fri 07:00–20:00 UTC``."""
    when = ""
    if budget.schedule is not None and budget.duration is not None and not budget.never_ends:
        when = _format_window(budget.schedule, budget.duration, budget.time_zone)
    if budget.nodes in _NONE:
        text = f"closed {when}" if when else f"never any {noun}"
    else:
        noun = noun.replace("nodes", "node", 1) if budget.nodes == "1" else noun
        share = " of the" if budget.nodes.endswith("%") else ""
        text = f"at most {budget.nodes}{share} {noun} {when}".rstrip()
    return text + _format_reasons(budget.reasons or ())


def _format_reasons(reasons: Sequence[str]) -> str:
    causes = [DisruptionReason(r).cause if r in _CAUSES else r for r in reasons]
    return f" for {format_words(causes)}" if causes else ""


def _format_window(schedule: str, duration: str, zone: str | None) -> str:
    """Return when a window is open: ``Mon–Fri 07:00–20:00 America/New_York``.

    A schedule that is not one time on some days of the week or month stays as it is written.
    """
    where = zone or "UTC"
    try:
        parsed, length = parse_schedule(schedule), parse_duration(duration)
    except ValueError:
        return f"{quote_value(schedule)} for {duration} {where}"
    is_regular = (parsed.any_day or parsed.any_weekday) and parsed.months == _ANY_MONTH
    if not (is_regular and len(parsed.minutes) == len(parsed.hours) == 1):
        return f"{quote_value(schedule)} for {duration} {where}"
    start = datetime.min.replace(tzinfo=UTC) + timedelta(
        hours=min(parsed.hours), minutes=min(parsed.minutes)
    )
    if not parsed.any_day:
        days = ", ".join(map(str, sorted(parsed.days)))
        return f"from day {days} of each month {start:%H:%M} for {duration} {where}"
    days = _format_weekdays(parsed.weekdays)
    if length > _DAY:
        return f"{days} from {start:%H:%M} for {duration} {where}"
    return f"{days} {start:%H:%M}–{start + length:%H:%M} {where}"


def _format_weekdays(days: Collection[int]) -> str:
    """Return days of the week in words, three or more in a row as a range."""
    if len(days) == len(_WEEK):
        return "daily"
    runs: list[list[int]] = []
    for place, day in enumerate(_WEEK):
        if day in days and runs and runs[-1][-1] == place - 1:
            runs[-1].append(place)
        elif day in days:
            runs.append([place])
    parts = []
    for run in runs:
        if len(run) > 2:
            parts.append(f"{_DAY_NAMES[run[0]]}–{_DAY_NAMES[run[-1]]}")
        else:
            parts += [_DAY_NAMES[place] for place in run]
    return ", ".join(parts)
