"""The plan for a terminal: what a person has to see before approving it, in a fixed order.

First the source of the plan and the changes in git, then the effect on nodes and cost, then what
is deferred or blocked and why; last the summary and the next command.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from enum import Enum
from typing import Any, Final, TypeVar

import msgspec

from reconciler.model.text.visible import DECEIVING, one_line, visible
from reconciler.plan.render.layout import Canvas, clipped, fitting, table
from reconciler.plan.render.steps import ActionGroup, grouped, steps_of
from reconciler.plan.render.summary import summary_lines, summed
from reconciler.plan.render.wording import (
    blocker_title,
    compared,
    counted,
    fields_summary,
    format_findings,
    format_forgone_savings,
    format_observation,
    format_pods,
    format_revision,
    format_value,
    hourly,
    list_changes,
    moment,
    short_node,
    until,
)
from reconciler.plan.value.actions import DeferredClaim
from reconciler.plan.value.changes import PlannedChange, PlannedFieldChange
from reconciler.plan.value.costs import PoolCost
from reconciler.plan.value.disruption import BlockedNode, PlannedBlocker
from reconciler.plan.value.nodes import LaunchReason
from reconciler.plan.value.plan import Plan

# A plan whose texts can be shown as they stand.


_ESCAPED: Final = re.compile(r"\\(?:u00[01]|[bfrt])")

T = TypeVar("T")


def all_visible(value: T) -> T:
    """Return a Struct in which every text is visible; itself where nothing has to be changed."""
    try:
        text = msgspec.json.encode(value).decode()
    except UnicodeEncodeError:
        return _filtered(value)  # type: ignore[no-any-return]
    if DECEIVING.search(text) is None and _ESCAPED.search(text) is None:
        return value
    return _filtered(value)  # type: ignore[no-any-return]


def _filtered(value: object) -> Any:
    if isinstance(value, Enum):
        return value
    if isinstance(value, str):
        return visible(value)
    if isinstance(value, msgspec.Struct):
        fields = {name: _filtered(getattr(value, name)) for name in value.__struct_fields__}
        return msgspec.structs.replace(value, **fields)
    if isinstance(value, (list, tuple)):
        return type(value)(map(_filtered, value))
    if isinstance(value, Mapping):
        return {_filtered(key): _filtered(item) for key, item in value.items()}
    return value


GROUPS_MAX: Final = 12
"""How many groups a section lists before it counts the rest."""

POOLS_MAX: Final = 24
"""How many NodePools have a line of their own."""

_CHANGE_SIGNS: Final = {"create": "+", "update": "~", "delete": "-"}
_COLOURS: Final = {"+": "green", "-": "red", "±": "yellow", "~": "yellow"}
_SEVERITIES: Final = {"error": "red", "warning": "yellow", "info": "cyan"}


def render_text(
    plan: Plan, *, width: int = 80, colour: bool = False, next_command: str = ""
) -> str:
    """Return the plan for a terminal of ``width`` columns."""
    plan = all_visible(plan)
    paper = Canvas(width, colour=colour)
    _header(paper, plan)
    _changes(paper, plan)
    _pools(paper, plan)
    _steps(paper, plan)
    _deferred(paper, plan)
    _blocked(paper, plan)
    _blockers(paper, plan)
    _unschedulable(paper, plan)
    _headroom(paper, plan)
    _findings(paper, plan)
    _sum(paper, plan, next_command)
    return paper.text()


def _header(paper: Canvas, plan: Plan) -> None:
    where = format_revision(plan)
    if plan.revision.dirty:
        commit, _, note = where.partition(" ")
        where = f"{paper.paint(commit, 'bold')} {paper.paint(note, 'yellow')}"
    else:
        where = paper.paint(where, "bold")
    at = plan.revision
    place = ", ".join(part for part in (at.repo, at.path) if part and part != ".")
    title = f"{plan.fleet} at {format_revision(plan)}"
    beside = place and len(title) + 2 + len(place) <= paper.width
    source = f"  {paper.paint(place, 'dim')}" if beside else ""
    paper.line(f"{paper.paint(plan.fleet, 'bold')} at {where}{source}")
    if place and not beside:
        paper.wrapped(place, 0, "dim")
    seen = f"; {format_observation(plan)}" if format_observation(plan) else ""
    paper.wrapped(f"plan {plan.digest} of {moment(plan.at)}{seen}", 0, "dim")


def _changes(paper: Canvas, plan: Plan) -> None:
    if not plan.changes:
        return
    paper.heading("Git changes", compared(plan))
    for change in plan.changes:
        _change(paper, change)


def _change(paper: Canvas, change: PlannedChange) -> None:
    sign = _CHANGE_SIGNS[change.op]
    place = f"{change.file}:{change.line}" if change.file and change.line else change.file or ""
    drifted = len(change.drifted)
    effect = f"{counted(drifted, 'node')} drifted" if drifted else ""
    right = "  ".join(filter(None, (effect, place)))
    left = f"{sign} {change.kind} {change.name}"
    paper.row(left, right, 2, _edge(paper), _COLOURS[sign])
    if change.op == "update":
        summary = fields_summary(change)
        if summary is not None:
            paper.line(f"      {summary} (`-o json` lists all)")
            return
        for field in change.fields:
            _field(paper, field)


def _field(paper: Canvas, field: PlannedFieldChange) -> None:
    mark = "  causes drift" if field.drifts else ""
    lists = list_changes(field.old, field.new)
    if lists is not None:
        paper.line(f"      {field.path}{paper.paint(mark, 'yellow')}")
        for sign, entries in zip("-+", lists, strict=True):
            for entry in entries:
                text = f"{sign} {format_value(entry, 400)}"
                paper.wrapped(text, 8, _COLOURS[sign], hanging=2)
        return
    values = f"{format_value(field.old)} → {format_value(field.new)}"
    if 6 + len(field.path) + 2 + len(values) + len(mark) <= paper.width:
        paper.line(f"      {field.path}  {values}{paper.paint(mark, 'yellow')}")
    else:
        paper.line(f"      {field.path}{paper.paint(mark, 'yellow')}")
        paper.wrapped(values, 8, hanging=2)


def _pools(paper: Canvas, plan: Plan) -> None:
    if not plan.cost.by_node_pool:
        return
    rows: list[tuple[str, ...]] = [("NodePool", "nodes", "", "", "$/hour", "", "", "")]
    rows += [_pool(clipped(name, paper.width - 46), pool) for name, pool in _shown(plan)]
    lines = table([(r[0], *_span(r[1:4]), *_span(r[4:7]), r[7]) for r in _aligned(rows)], "<>>>")
    paper.heading(lines[0])
    for line in lines[1:]:
        paper.line(line)


def _shown(plan: Plan) -> list[tuple[str, PoolCost]]:
    """Return the pools that change and some others; one line sums up the rest."""
    pools = sorted(plan.cost.by_node_pool.items())
    moved = [name for name, p in pools if (p.nodes_before, p.before) != (p.nodes_after, p.after)]
    still = [name for name, _ in pools if name not in moved]
    kept = {*moved[:POOLS_MAX], *still[: max(POOLS_MAX - len(moved), 0)]}
    shown = [(name or "(no NodePool)", pool) for name, pool in pools if name in kept]
    others = [pool for name, pool in pools if name not in kept]
    if others:
        shown.append((counted(len(others), "other NodePool"), summed(others)))
    return shown


def _pool(name: str, pool: PoolCost) -> tuple[str, ...]:
    moved = pool.nodes_before != pool.nodes_after
    dearer = hourly(pool.before) != hourly(pool.after)
    return (
        name,
        f"{pool.nodes_before:,}" if moved else "",
        "→" if moved else "",
        f"{pool.nodes_after:,}",
        hourly(pool.before) if dearer else "",
        "→" if dearer else "",
        hourly(pool.after),
        hourly(pool.after - pool.before, signed=True) if dearer else "",
    )


def _aligned(rows: Sequence[tuple[str, ...]]) -> list[tuple[str, ...]]:
    """Give the parts of ``before → after`` one width each, so that the arrows align."""
    widths = [max(len(row[i]) for row in rows[1:]) for i in range(8)]
    return [
        rows[0],
        *((row[0], *(f"{row[i]:>{widths[i]}}" for i in range(1, 8))) for row in rows[1:]),
    ]


def _span(parts: tuple[str, ...]) -> tuple[str]:
    return (" ".join(parts).strip() if parts[1:] == ("", "") else " ".join(parts),)


def _steps(paper: Canvas, plan: Plan) -> None:
    steps = steps_of(plan)
    if not steps:
        return
    paper.heading("Actions", "(cost change, $/hour)")
    heads = [_subject(step) for step in steps]
    rights = table([(step.node_pool, _delta(step)) for step in steps], "<>")
    subjects = max(map(len, heads))
    for step, head, right in zip(steps, heads, rights, strict=True):
        paper.row(head, right, 2, min(4 + subjects + len(right), paper.width), _COLOURS[head[0]])
        _reasons(paper, step)


def _subject(step: ActionGroup) -> str:
    if step.verb == "launch":
        return f"+ launch {step.coming}"
    if step.verb == "replace":
        return f"± replace {step.going} with {step.coming}"
    return f"- remove {step.going}"


def _delta(step: ActionGroup) -> str:
    return "no price" if step.delta is None else hourly(step.delta, signed=True)


def _reasons(paper: Canvas, step: ActionGroup) -> None:
    force = " (forceful)" if step.forceful else ""
    why = "" if step.reason == LaunchReason.UNSCHEDULABLE else f"{step.reason}{force}: "
    paper.wrapped(f"{why}{step.details[0]}", 6)
    for detail in step.details[1:]:
        paper.wrapped(detail, 6)
    if step.verb != "launch":
        nodes = map(short_node, step.nodes)
        paper.line(f"      {paper.paint(fitting(nodes, paper.width - 6), 'dim')}")


def _deferred(paper: Canvas, plan: Plan) -> None:
    if not plan.deferred:
        return
    paper.heading("Deferred:", f"{counted(len(plan.deferred), 'node')} to be disrupted later")

    def key(item: DeferredClaim) -> object:
        return (item.node_pool, item.reason, item.waits_for, item.not_before, item.message)

    groups = grouped(plan.deferred, key)
    for group in groups[:GROUPS_MAX]:
        first = group[0]
        when = f", not before {until(first.not_before, plan.at)}" if first.not_before else ""
        _nodes(paper, [item.node or item.node_claim for item in group], first)
        paper.wrapped(f"waits for {_wait(first.waits_for)}{when}", 6)
        if first.message:
            paper.wrapped(first.message, 6, "dim")
    _rest(paper, sum(map(len, groups[GROUPS_MAX:])), "node")


def _wait(waits_for: str) -> str:
    return {
        "budget": "its disruption budget",
        "schedule": "its disruption window",
        "consolidateAfter": "consolidateAfter",
        "validation": "validation",
        "policy": "a disruption policy",
        "approval": "approval",
    }.get(waits_for, waits_for)


def _nodes(paper: Canvas, names: Sequence[str], of: DeferredClaim | BlockedNode) -> None:
    right = "  ".join(filter(None, (of.reason, of.node_pool)))
    edge = _edge(paper)
    left = fitting(map(short_node, names), edge - 4 - len(right))
    paper.row(left, right, 2, edge)


def _edge(paper: Canvas) -> int:
    """Return the column where right-aligned parts end, which wide terminals do not move."""
    return min(paper.width, 100)


def _blocked(paper: Canvas, plan: Plan) -> None:
    if not plan.blocked:
        return
    nodes = len({item.node for item in plan.blocked})
    paper.heading("Blocked:", f"{counted(nodes, 'node')} cannot be disrupted")

    def key(item: BlockedNode) -> object:
        return (item.reason, item.code, item.message, item.node_pool)

    groups = grouped(plan.blocked, key)
    for group in groups[:GROUPS_MAX]:
        first = group[0]
        _nodes(paper, [item.node for item in group], first)
        paper.wrapped(first.message, 6)
    _rest(paper, sum(map(len, groups[GROUPS_MAX:])), "node")


def _blockers(paper: Canvas, plan: Plan) -> None:
    held = plan.blockers
    if not held:
        return
    paper.heading("Blockers", "(savings forgone per month)")
    for one in held[:GROUPS_MAX]:
        forgone = format_forgone_savings(one.forgone, one.unpriced)
        right = f"{counted(len(one.nodes), 'node')}  {forgone}"
        left = clipped(blocker_title(one.kind, one.name), _edge(paper) - 4 - len(right))
        paper.row(left, right, 2, _edge(paper))
        owner = f" ({one.owner})" if one.owner else ""
        times = _times(one, plan.at)
        paper.wrapped("; ".join(filter(None, (f"{one.message}{owner}", times))), 6, "dim")
    _rest(paper, len(held) - GROUPS_MAX, "blocker")


def _times(one: PlannedBlocker, now: datetime) -> str:
    """Return since when a blocker holds nodes, and when that ends, where it is known."""
    is_window = one.kind == "Schedule"
    since = f"{'closed ' if is_window else ''}since {until(one.since, now)}" if one.since else ""
    ends = "next opens" if is_window else "not before"
    return ", ".join(filter(None, (since, f"{ends} {until(one.until, now)}" if one.until else "")))


def _unschedulable(paper: Canvas, plan: Plan) -> None:
    if not plan.unschedulable:
        return
    number = counted(len(plan.unschedulable), "pod")
    paper.heading("Unschedulable:", f"{number} cannot be scheduled")
    groups = grouped(plan.unschedulable, lambda item: item.reasons)
    for group in groups[:GROUPS_MAX]:
        paper.wrapped(format_pods(item.pod for item in group), 2, "red", hanging=2)
        reasons = group[0].reasons
        pools = max((len(r.node_pool or "") for r in reasons), default=0)
        for reason in reasons:
            pool = f"{reason.node_pool or '':<{pools}}  " if pools else ""
            paper.wrapped(reason.message, 6, before=pool)
    _rest(paper, sum(map(len, groups[GROUPS_MAX:])), "pod")


def _headroom(paper: Canvas, plan: Plan) -> None:
    if not plan.headroom:
        return
    paper.heading("Headroom", f"({counted(len(plan.headroom), 'CapacityBuffer')})")
    for room in plan.headroom[:GROUPS_MAX]:
        paper.wrapped(room.buffer, 2)
        paper.wrapped(room.message, 6, *(() if room.replicas else ("dim",)))
        pools = max((len(r.node_pool or "") for r in room.reasons), default=0)
        for reason in room.reasons:
            pool = f"{reason.node_pool or '':<{pools}}  " if pools else ""
            paper.wrapped(reason.message, 6, before=pool)
    _rest(paper, len(plan.headroom) - GROUPS_MAX, "buffer")


def _findings(paper: Canvas, plan: Plan) -> None:
    if not plan.diagnostics:
        return
    paper.heading("Notes")
    said = format_findings(plan.diagnostics)
    for severity, text in said[: 2 * GROUPS_MAX]:
        paper.wrapped(f"{severity}: {text}", 2, *_tint(severity), hanging=2)
    _rest(paper, len(said) - 2 * GROUPS_MAX, "note")


def _tint(severity: str) -> Iterable[str]:
    return () if severity == "info" else (_SEVERITIES[severity],)


def _rest(paper: Canvas, number: int, noun: str) -> None:
    if number > 0:
        paper.line(f"  … and {counted(number, 'more ' + noun)} (`-o json` lists all)")


def _sum(paper: Canvas, plan: Plan, next_command: str) -> None:
    paper.line()
    for line in summary_lines(plan):
        paper.wrapped(line, 0, "bold")
    if next_command:
        paper.line(f"Next: {paper.paint(one_line(next_command), 'cyan')}")
