"""Nodes that wait, nodes that cannot be disrupted, what blocks them, and what budgets allow."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from datetime import datetime, timedelta
from itertools import chain
from typing import Final

from msgspec.structs import replace

from reconciler.model.decision.waiting import Blocker, DeferredClaim, PoolBudget
from reconciler.model.grouping import group_by
from reconciler.model.text.counting import format_count
from reconciler.plan.render.refusals import refusal_in_words
from reconciler.plan.render.sections.actions import pool_cell
from reconciler.plan.render.wording import blocker_title, format_near_time, short_node_name
from reconciler.plan.value.actions import BlockedNode
from reconciler.plan.value.plan import Plan
from reconciler.render.cells import (
    Bar,
    Cell,
    Column,
    Dollars,
    Lane,
    Line,
    Moment,
    NameList,
    Number,
    Section,
    SectionRow,
    Text,
    Timeline,
    group_similar,
    rows_of,
    summarize_texts,
    text_lines,
    without_pool,
)

_WAITS: Final = {
    "budget": "its disruption budget",
    "schedule": "its disruption window",
    "consolidateAfter": "consolidateAfter",
    "validation": "validation",
    "suspension": "the end of a suspension",
    "minimumAge": "its minimum age",
    "wave": "the next wave",
    "maximumPerDay": "the daily limit",
    "evictionCost": "a time at which a move is worth its cost",
    "undoPeriod": "the end of its undo period",
    "retry": "the next attempt",
    "repair": "its condition to last for longer",
    "policy": "a disruption policy",
    "approval": "approval",
}
_NODES: Final = (Column("nodes"), Column("reason"), Column("NodePool"))

_HORIZON: Final = timedelta(days=7)
_LANES_MAX: Final = 24


def deferred_nodes(plan: Plan) -> Section | None:
    """Return the nodes that are disrupted later, and what they wait for."""
    if not plan.deferred:
        return None

    def row_key(item: DeferredClaim) -> Hashable:
        return (item.node_pool, item.reason, *_rule_key(item), item.message)

    def key_without_pool(item: DeferredClaim) -> Hashable:
        message = without_pool(item.message, item.node_pool)
        return (item.reason, *_rule_key(item), message)

    def wait_key(item: DeferredClaim) -> Hashable:
        return (item.reason, item.waits_for, item.rule)

    clusters = group_similar(plan.deferred, row_key, key_without_pool, wait_key)
    return Section(
        key="deferred",
        title="Deferred:",
        note=f"{format_count(len(plan.deferred), 'node')} to be disrupted later",
        columns=_NODES,
        rows=rows_of(clusters, lambda group: _deferred_row(group, plan.at), "node"),
        lines_title="wait",
        folded=True,
    )


def _rule_key(item: DeferredClaim) -> tuple[Hashable, ...]:
    return item.waits_for, item.rule, item.not_before


def wait_in_words(item: DeferredClaim) -> str:
    """Return what a node waits for, to follow "waits for"."""
    rule = item.rule or item.waits_for
    return _WAITS.get(rule, rule)


def _deferred_row(group: Sequence[DeferredClaim], now: datetime) -> SectionRow:
    first = group[0]
    starts = {item.not_before for item in group}
    soonest = min((start for start in starts if start is not None), default=None)
    wait = f"waits for {wait_in_words(first)}"
    if soonest is not None:
        some = "" if len(starts) == 1 else "the first "
        wait += f", {some}not before {format_near_time(soonest, now)}"
    names = tuple(short_node_name(item.node or item.node_claim) for item in group)
    pools = tuple(sorted({item.node_pool for item in group}))
    message = summarize_texts(
        _message_for_pools(item.message, item.node_pool, pools) for item in group
    )
    lines = (*text_lines(wait), *text_lines(message, tone="soft"))
    return SectionRow(cells=(NameList(names), Text(first.reason), pool_cell(pools)), lines=lines)


def _message_for_pools(message: str, pool: str, pools: Sequence[str]) -> str:
    """Return a message as it is for one NodePool, and without its name for several."""
    return message if len(pools) == 1 else without_pool(message, pool)


def blocked_nodes(plan: Plan) -> Section | None:
    """Return the nodes that cannot be disrupted, and the reason."""
    if not plan.blocked:
        return None
    blocked = _joined_by_node(
        [replace(item, message=refusal_in_words(item.message)) for item in plan.blocked]
    )

    def row_key(item: BlockedNode) -> Hashable:
        return (item.reason, item.code, item.message, item.node_pool)

    def key_without_pool(item: BlockedNode) -> Hashable:
        return (item.reason, item.code, without_pool(item.message, item.node_pool))

    clusters = group_similar(
        blocked, row_key, key_without_pool, lambda item: (item.reason, item.code)
    )
    nodes = len({item.node for item in blocked})
    return Section(
        key="blocked",
        title="Blocked:",
        note=f"{format_count(nodes, 'node')} cannot be disrupted",
        columns=_NODES,
        rows=rows_of(clusters, _blocked_row, "node"),
        lines_title="blocked because",
        folded=True,
    )


def _joined_by_node(items: Sequence[BlockedNode]) -> list[BlockedNode]:
    """Return each node once for all kinds of disruption that the same message is about."""
    groups = group_by(items, lambda item: (item.node, item.node_pool, item.code, item.message))
    return [
        replace(group[0], reason=", ".join(dict.fromkeys(item.reason for item in group)))
        for group in groups.values()
    ]


def _blocked_row(group: Sequence[BlockedNode]) -> SectionRow:
    pools = tuple(sorted({item.node_pool for item in group}))
    names = tuple(dict.fromkeys(short_node_name(item.node) for item in group))
    message = summarize_texts(
        _message_for_pools(item.message, item.node_pool, pools) for item in group
    )
    cells: tuple[Cell, ...] = (NameList(names), Text(group[0].reason), pool_cell(pools))
    return SectionRow(cells=cells, lines=(Line((Text(message),)),))


def blockers(plan: Plan) -> Section | None:
    """Return what blocks nodes, and the savings that this prevents."""
    if not plan.blockers:
        return None
    clusters = group_similar(
        plan.blockers,
        lambda b: (b.kind, b.name),
        lambda b: (b.kind, b.code, b.message),
        lambda b: b.kind,
    )
    return Section(
        key="blockers",
        title="Blockers",
        note="(potential savings)",
        columns=(Column("blocker"), Column("nodes", numeric=True), Column("savings", numeric=True)),
        rows=rows_of(clusters, lambda group: _blocker_row(group, plan.at), "blocker"),
        lines_title="reason",
        folded=True,
    )


def _blocker_row(group: Sequence[Blocker], now: datetime) -> SectionRow:
    first = group[0]
    nodes = dict.fromkeys(map(short_node_name, chain.from_iterable(b.nodes for b in group)))
    priced = [b.forgone for b in group if b.forgone is not None]
    title = blocker_title(first.kind, first.name)
    text = summarize_texts(refusal_in_words(b.message) for b in group)
    if len(group) > 1:
        title = f"{title} and {format_count(len(group) - 1, 'other')}"
    else:
        owner = f" ({first.owner})" if first.owner else ""
        text = "; ".join(filter(None, (f"{text}{owner}", _format_blocking_times(first, now))))
    lines = [Line((Text(text, "soft"),))]
    if nodes:
        lines.append(Line((NameList(tuple(nodes)),)))
    return SectionRow(
        cells=(
            Text(title),
            Number(len(nodes), "node"),
            Dollars(
                sum(priced) if priced else None,
                per_month=True,
                unpriced=sum(b.unpriced for b in group),
            ),
        ),
        lines=tuple(lines),
    )


def _format_blocking_times(blocker: Blocker, now: datetime) -> str:
    """Return since when a blocker blocks nodes, and when that ends, if known."""
    is_window = blocker.kind == "Schedule"
    since = (
        f"{'closed ' if is_window else ''}since {format_near_time(blocker.since, now)}"
        if blocker.since
        else ""
    )
    ends = "next opens" if is_window else "not before"
    return ", ".join(
        filter(
            None, (since, f"{ends} {format_near_time(blocker.until, now)}" if blocker.until else "")
        )
    )


def budgets(plan: Plan) -> Section | None:
    """Return what the disruption budgets allow now; equal ones are one row."""
    if not plan.budgets:
        return None

    def row_key(b: PoolBudget) -> Hashable:
        return (b.reason, b.total, b.disrupting, b.allowed, b.next_change)

    columns = ("NodePool", "reason", "nodes", "disrupting", "allowed now", "next change")
    numeric = ("nodes", "disrupting", "allowed now")
    return Section(
        key="budgets",
        title="Budgets",
        columns=tuple(Column(title, numeric=title in numeric) for title in columns),
        rows=tuple(map(_budget_row, group_by(plan.budgets, row_key).values())),
        table=True,
        folded=True,
    )


def _budget_row(group: Sequence[PoolBudget]) -> SectionRow:
    first = group[0]
    unlimited = first.allowed >= first.total
    pools = tuple(dict.fromkeys(b.node_pool for b in group))
    return SectionRow(
        cells=(
            NameList(pools, "NodePool", most=3),
            Text(first.reason),
            Number(first.total),
            Number(first.disrupting),
            Text("no limit") if unlimited else Number(first.allowed),
            Moment(first.next_change) if first.next_change else Text(""),
        )
    )


# The known part of the rollout over time: what starts now, what waits and until when, and when a
# window is closed or a budget limits.


def rollout(plan: Plan) -> Section | None:
    """Return a chart of what waits until when; nothing if no future time is known."""
    begin = plan.at
    moments = [*(d.not_before for d in plan.deferred), *(b.until for b in plan.blockers)]
    waits = bool(plan.deferred or plan.blockers)
    moments += [b.next_change for b in plan.budgets] if waits else []
    future = [m for m in filter(None, moments) if begin < m <= begin + _HORIZON]
    if not future:
        return None
    span = max(max(future) - begin, timedelta(hours=1))
    end = begin + span * 1.15
    lanes = [
        *_starting_lanes(plan, begin + span / 40),
        *_waiting_lanes(plan, end),
        *_closed_window_lanes(plan, end),
    ]
    lanes += _limited_budget_lanes(plan, end)
    rest = len(lanes) - _LANES_MAX
    more = f" ({format_count(rest, 'more line')} not drawn)" if rest > 0 else ""
    return Section(
        key="rollout",
        title="Rollout",
        note=f"what starts now, what waits, and until when{more}",
        figure=Timeline(begin, end, tuple(lanes[:_LANES_MAX])),
    )


def _starting_lanes(plan: Plan, end: datetime) -> Iterator[Lane]:
    verbs = {"provision": "launch", "terminate": "remove"}
    for kind, verb in verbs.items():
        acting = [action for action in plan.actions if action.kind == kind]
        if acting:
            message = f"{verb} {format_count(len(acting), 'node')} now"
            yield Lane(message, (Bar(plan.at, end, verb, message),))  # type: ignore[arg-type]


def _waiting_lanes(plan: Plan, end: datetime) -> Iterator[Lane]:
    def row_key(item: DeferredClaim) -> Hashable:
        return (item.reason, *_rule_key(item))

    for group in group_by(plan.deferred, row_key).values():
        first = group[0]
        stop = min(first.not_before or end, end)
        when = (
            f", not before {format_near_time(first.not_before, plan.at)}"
            if first.not_before
            else ""
        )
        wait = wait_in_words(first)
        label = f"{first.reason}: {format_count(len(group), 'node')}"
        about = f"{label}, {'waits' if len(group) == 1 else 'wait'} for {wait}{when}"
        yield Lane(label, (Bar(plan.at, stop, "wait", about),))


def _closed_window_lanes(plan: Plan, end: datetime) -> Iterator[Lane]:
    for blocker in plan.blockers:
        if blocker.kind == "Schedule" and blocker.until is not None:
            pool, _, reason = blocker.name.rpartition("/")
            title = f"{pool}: {reason} window"
            about = f"{title}: closed, next opens {format_near_time(blocker.until, plan.at)}"
            yield Lane(title, (Bar(plan.at, min(blocker.until, end), "closed", about),))


def _limited_budget_lanes(plan: Plan, end: datetime) -> Iterator[Lane]:
    limited = {(d.node_pool, d.reason) for d in plan.deferred if d.waits_for == "budget"}
    for b in plan.budgets:
        if b.next_change is not None and (b.node_pool, b.reason) in limited:
            title = f"{b.node_pool}: {b.reason} budget"
            changes = format_near_time(b.next_change, plan.at)
            about = f"{title}: {b.allowed} of {b.total} nodes at a time, next change {changes}"
            yield Lane(title, (Bar(plan.at, min(b.next_change, end), "limited", about),))
