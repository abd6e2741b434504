"""The plan as one self-contained page: nothing is fetched, and it reads well by day and night."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Callable, Iterable, Sequence
from hashlib import sha256
from typing import Final

from reconciler.model.text.visible import html_text
from reconciler.plan.render.steps import ActionGroup, grouped, steps_of
from reconciler.plan.render.summary import summary_lines
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
    listed,
    moment,
    monthly,
    short_node,
    until,
)
from reconciler.plan.value.actions import Action, ActionKind
from reconciler.plan.value.changes import PlannedChange
from reconciler.plan.value.plan import Plan

# The order of a plan's actions as a drawing: a column for each wave, an edge for each wait.


ACTIONS_MAX: Final = 150
"""More boxes than this say nothing to anybody; then there is no drawing."""

_WIDTH: Final = 230
_HEIGHT: Final = 40
_GAP_X: Final = 60
_GAP_Y: Final = 12
_LETTERS: Final = 30


def render_svg(actions: Sequence[Action]) -> str:
    """Return the drawing as SVG, nothing where there are too many actions or no waits."""
    if len(actions) > ACTIONS_MAX or not any(action.depends_on for action in actions):
        return ""
    rows: dict[int, int] = {}
    corners: dict[str, tuple[int, int]] = {}
    for action in actions:
        row = rows[action.wave] = rows.get(action.wave, -1) + 1
        corners[action.id] = (action.wave * (_WIDTH + _GAP_X) + 1, row * (_HEIGHT + _GAP_Y) + 1)
    width = (max(rows) + 1) * (_WIDTH + _GAP_X) - _GAP_X + 2
    height = (max(rows.values()) + 1) * (_HEIGHT + _GAP_Y) - _GAP_Y + 2
    edges = [
        _edge(corners[before], corners[action.id])
        for action in actions
        for before in action.depends_on
    ]
    boxes = [_box(action, *corners[action.id]) for action in actions]
    size = f'viewBox="0 0 {width} {height}" width="{width}" height="{height}"'
    label = 'role="img" aria-label="the order of the actions"'
    return f"<svg {size} {label}>{''.join((*edges, *boxes))}</svg>"


def _edge(start: tuple[int, int], end: tuple[int, int]) -> str:
    x1, y1 = start[0] + _WIDTH, start[1] + _HEIGHT // 2
    x2, y2 = end[0], end[1] + _HEIGHT // 2
    bend = (x1 + x2) // 2
    return f'<path class="edge" d="M{x1} {y1}C{bend} {y1} {bend} {y2} {x2} {y2}"/>'


def _box(action: Action, x: int, y: int) -> str:
    verb = _ACTION_VERBS[action.kind]
    name = short_node(action.node or "") or action.node_claim or action.command or ""
    kind = " ".join(filter(None, (action.instance_type, action.capacity_type)))
    lines = (f"{verb} {name}", kind or action.reason)
    texts = "".join(
        f'<text x="{x + 10}" y="{y + 17 + 15 * i}">{html_text(_cut(line))}</text>'
        for i, line in enumerate(lines)
    )
    corner = f'x="{x}" y="{y}" width="{_WIDTH}" height="{_HEIGHT}" rx="6"'
    return f'<rect class="box {action.kind}" {corner}/>{texts}'


def _cut(text: str) -> str:
    return text if len(text) <= _LETTERS else text[: _LETTERS - 1] + "…"


ROWS_MAX: Final = 2000
"""A table on the page has at most so many rows and counts the rest."""

_STYLE: Final = """
:root{color-scheme:light dark;--ink:#1f2328;--soft:#59636e;--line:#d1d9e0;--paper:#fff;
--wash:#f6f8fa;--go:#1a7f37;--gone:#cf222e;--swap:#9a6700;--link:#0969da}
@media(prefers-color-scheme:dark){:root{--ink:#e6edf3;--soft:#9198a1;--line:#3d444d;
--paper:#0d1117;--wash:#151b23;--go:#3fb950;--gone:#f85149;--swap:#d29922;--link:#4493f8}}
*{box-sizing:border-box}
body{margin:0 auto;padding:2.5rem 1.5rem 4rem;max-width:72rem;background:var(--paper);
color:var(--ink);font:15px/1.55 system-ui,-apple-system,"Segoe UI",sans-serif}
h1{font-size:1.6rem;margin:0 0 .2rem}h2{font-size:1.1rem;margin:2.4rem 0 .6rem}
h2 small{font-weight:400;color:var(--soft);margin-left:.6rem}
p{margin:.3rem 0}.soft{color:var(--soft)}
.sum{font-size:1.05rem;margin:1.2rem 0;padding:.9rem 1.1rem;background:var(--wash);
border:1px solid var(--line);border-radius:8px}
code,.mono{font:13px/1.5 ui-monospace,SFMono-Regular,Menlo,Consolas,monospace}
.wide{overflow-x:auto}table{border-collapse:collapse;width:100%}
th{text-align:left;font-weight:600;color:var(--soft);font-size:.85rem}
th,td{padding:.4rem .7rem .4rem 0;border-bottom:1px solid var(--line);vertical-align:top}
td.n,th.n{text-align:right;font-variant-numeric:tabular-nums;white-space:nowrap}
.go{color:var(--go)}.gone{color:var(--gone)}.swap{color:var(--swap)}
.mark{font-weight:600;white-space:nowrap}.tag{border:1px solid currentColor;border-radius:1em;
padding:0 .5em;font-size:.8rem;white-space:nowrap}
summary{cursor:pointer;color:var(--link)}
svg{max-width:100%;height:auto}svg text{font:12px ui-monospace,Menlo,Consolas,monospace;
fill:var(--ink)}svg .box{fill:var(--wash);stroke:var(--line)}
svg .edge{fill:none;stroke:var(--soft)}
svg .provision{stroke:var(--go)}svg .replace{stroke:var(--swap)}svg .terminate{stroke:var(--gone)}
"""
_ACTION_VERBS: Final = {
    ActionKind.PROVISION: "launch",
    ActionKind.REPLACE: "validate",
    ActionKind.TERMINATE: "remove",
}
_VERBS: Final = {"launch": "go", "replace": "swap", "remove": "gone"}
_OPS: Final = {"create": "go", "update": "swap", "delete": "gone"}


def render_html(plan: Plan) -> str:
    """Return the page."""
    parts = [
        page_head(f"Plan for {plan.fleet}", _STYLE),
        _header(plan),
        *(section(plan) for section in _SECTIONS),
        "</body></html>",
    ]
    return "\n".join(filter(None, parts)) + "\n"


def page_head(title: str, style: str) -> str:
    """Return a page up to its first words.

    Its Content-Security-Policy allows this style sheet, known by its hash, and nothing else: no
    script, no handler, no style of an element, nothing that is fetched, no form and no base.
    """
    known = b64encode(sha256(style.encode()).digest()).decode()
    policy = f"default-src 'none'; style-src 'sha256-{known}'; base-uri 'none'; form-action 'none'"
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
        '<meta name="viewport" content="width=device-width,initial-scale=1">\n'
        f"<title>{html_text(title)}</title>\n<style>{style}</style></head><body>"
    )


def _header(plan: Plan) -> str:
    facts = [f"plan {plan.digest}", f"of {moment(plan.at)}", plan.revision.repo or ""]
    facts.append(format_observation(plan))
    lines = "".join(f"<p>{html_text(line)}</p>" for line in summary_lines(plan))
    return (
        f"<h1>{html_text(plan.fleet)} "
        f"<small class=soft>at {html_text(format_revision(plan))}</small></h1>"
        f"<p class=soft>{html_text(' '.join(filter(None, facts)))}</p><div class=sum>{lines}</div>"
    )


def _section(title: str, note: str, body: str) -> str:
    small = f"<small>{html_text(note)}</small>" if note else ""
    return f"<h2>{html_text(title)}{small}</h2>\n{body}"


def _table(head: Sequence[str], rows: Iterable[Sequence[str]], align: str) -> str:
    """Return a table of cells that are markup already; columns marked ``>`` hold numbers."""
    kinds = [" class=n" if side == ">" else "" for side in align]
    every = list(rows)
    lines = [
        "<tr>" + "".join(f"<td{k}>{c}</td>" for c, k in zip(row, kinds, strict=True)) + "</tr>"
        for row in every[:ROWS_MAX]
    ]
    rest = len(every) - ROWS_MAX
    if rest > 0:
        lines.append(f"<tr><td colspan={len(head)} class=soft>… and {rest:,} more</td></tr>")
    titles = "".join(f"<th{k}>{html_text(t)}</th>" for t, k in zip(head, kinds, strict=True))
    body = "\n".join(lines)
    return f"<div class=wide><table><tr>{titles}</tr>\n{body}</table></div>"


def _code(text: str) -> str:
    return f"<code>{html_text(text)}</code>" if text else ""


def _pools(plan: Plan) -> str:
    pools = sorted(plan.cost.by_node_pool.items())
    if not pools:
        return ""
    rows = []
    for name, pool in pools:
        change = pool.after - pool.before
        colour = "gone" if change > 0 else "go"
        shown = f"<span class={colour}>{hourly(change, signed=True)}</span>"
        rows.append(
            (
                _code(name) or "(no NodePool)",
                _moved(f"{pool.nodes_before:,}", f"{pool.nodes_after:,}"),
                _moved(hourly(pool.before), hourly(pool.after)),
                shown if hourly(pool.before) != hourly(pool.after) else "",
                html_text(monthly(pool.after)),
            )
        )
    head = ("NodePool", "nodes", "$/hour", "change", "$/month")
    return _section("NodePools", "", _table(head, rows, "<>>>>"))


def _moved(before: str, after: str) -> str:
    return after if before == after else f"{before} → {after}"


def _changes(plan: Plan) -> str:
    if not plan.changes:
        return ""
    rows = [
        (
            f"<span class='mark {_OPS[c.op]}'>{c.op}</span>",
            f"{html_text(c.kind)} {_code(c.name)}{_fields(c)}",
            _code(f"{c.file}:{c.line}" if c.file and c.line else c.file or ""),
            f"{counted(len(c.drifted), 'node')} drifted" if c.drifted else "",
        )
        for c in plan.changes
    ]
    return _section(
        "Git changes", compared(plan), _table(("", "object", "where", ""), rows, "<<<<")
    )


def _fields(change: PlannedChange) -> str:
    if change.op != "update":
        return ""
    lines = []
    for field in change.fields:
        lists = list_changes(field.old, field.new)
        old, new = lists if lists is not None else ([field.old], [field.new])
        tag = " <span class='tag swap'>causes drift</span>" if field.drifts else ""
        gone = "".join(
            f"<div class='mono gone'>- {html_text(format_value(v, 300))}</div>" for v in old
        )
        come = "".join(
            f"<div class='mono go'>+ {html_text(format_value(v, 300))}</div>" for v in new
        )
        lines.append(f"<div>{_code(field.path)}{tag}{gone}{come}</div>")
    summary = fields_summary(change)
    if summary is None:
        return "".join(lines)
    return f"<details><summary>{html_text(summary)}</summary>{''.join(lines)}</details>"


def _actions(plan: Plan) -> str:
    steps = steps_of(plan)
    if not steps:
        return ""
    head = ("", "nodes", "NodePool", "$/hour", "reason")
    table = _table(head, map(_step, steps), "<<<><")
    drawing = render_svg(plan.actions)
    folded = f"<details><summary>Order of actions</summary>{drawing}</details>" if drawing else ""
    return _section("Actions", "", table + folded)


def _step(step: ActionGroup) -> tuple[str, ...]:
    said = " with ".join(html_text(part) for part in (step.going, step.coming) if part)
    nodes = listed(map(short_node, step.nodes), 12) if step.verb != "launch" else ""
    force = " <span class='tag gone'>forceful</span>" if step.forceful else ""
    details = "".join(f"<div>{html_text(d)}</div>" for d in step.details)
    return (
        f"<span class='mark {_VERBS[step.verb]}'>{step.verb}</span>",
        f"{said}<div class=soft>{_code(nodes)}</div>",
        _code(step.node_pool),
        "?" if step.delta is None else hourly(step.delta, signed=True),
        f"<b>{html_text(step.reason)}</b>{force}{details}",
    )


def _deferred(plan: Plan) -> str:
    if not plan.deferred:
        return ""
    groups = grouped(
        plan.deferred, lambda d: (d.node_pool, d.reason, d.waits_for, d.not_before, d.message)
    )
    rows = [
        (
            _code(listed((short_node(d.node or d.node_claim) for d in group), 12)),
            _code(group[0].node_pool),
            html_text(group[0].reason),
            html_text(group[0].waits_for),
            html_text(until(group[0].not_before, plan.at)) if group[0].not_before else "",
            html_text(group[0].message),
        )
        for group in groups
    ]
    head = ("nodes", "NodePool", "reason", "waits for", "not before", "")
    note = f"{counted(len(plan.deferred), 'node')} to be disrupted later"
    return _section("Deferred", note, _table(head, rows, "<<<<<<"))


def _blocked(plan: Plan) -> str:
    if not plan.blocked:
        return ""
    groups = grouped(plan.blocked, lambda b: (b.reason, b.code, b.message, b.node_pool))
    rows = [
        (
            _code(listed((short_node(b.node) for b in group), 12)),
            _code(group[0].node_pool),
            html_text(group[0].reason),
            html_text(group[0].message),
        )
        for group in groups
    ]
    note = f"{counted(len({b.node for b in plan.blocked}), 'node')} cannot be disrupted"
    head = ("nodes", "NodePool", "reason", "blocked because")
    return _section("Blocked", note, _table(head, rows, "<<<<"))


def _blockers(plan: Plan) -> str:
    if not plan.blockers:
        return ""
    rows = [
        (
            html_text(blocker_title(one.kind, one.name)),
            _code(listed(map(short_node, one.nodes), 12)),
            html_text(moment(one.since)) if one.since else "",
            html_text(format_forgone_savings(one.forgone, one.unpriced)),
            html_text(f"{one.message} ({one.owner})" if one.owner else one.message),
        )
        for one in plan.blockers
    ]
    table = _table(("blocker", "nodes", "since", "savings forgone", ""), rows, "<<<><")
    return _section("Blockers", "savings forgone per month", table)


def _unschedulable(plan: Plan) -> str:
    if not plan.unschedulable:
        return ""
    rows = [
        (
            _code(format_pods(p.pod for p in group)),
            "".join(
                f"<div>{_code(r.node_pool or '')} {html_text(r.message)}</div>"
                for r in group[0].reasons
            ),
        )
        for group in grouped(plan.unschedulable, lambda p: p.reasons)
    ]
    note = f"{counted(len(plan.unschedulable), 'pod')} cannot be scheduled"
    return _section("Unschedulable", note, _table(("pods", "reasons"), rows, "<<"))


def _headroom(plan: Plan) -> str:
    if not plan.headroom:
        return ""
    rows = [
        (
            _code(room.buffer),
            f"<div>{html_text(room.message)}</div>"
            + "".join(
                f"<div>{_code(r.node_pool or '')} {html_text(r.message)}</div>"
                for r in room.reasons
            ),
        )
        for room in plan.headroom
    ]
    note = counted(len(rows), "CapacityBuffer")
    return _section("Headroom", note, _table(("buffer", "capacity"), rows, "<<"))


def _budgets(plan: Plan) -> str:
    if not plan.budgets:
        return ""
    rows = [
        (
            _code(b.node_pool),
            html_text(b.reason),
            f"{b.total:,}",
            f"{b.disrupting:,}",
            "no limit" if b.allowed >= b.total else f"{b.allowed:,}",
            html_text(until(b.next_change, plan.at)) if b.next_change else "",
        )
        for b in plan.budgets
    ]
    head = ("NodePool", "reason", "nodes", "disrupting", "allowed now", "next change")
    table = _table(head, rows, "<<>>><")
    return f"<details><summary>Budgets</summary>{table}</details>"


def _places(plan: Plan) -> str:
    if not plan.placements:
        return ""
    rows = [
        (
            _code(p.pod),
            _code(p.node or p.node_claim or ""),
            "new" if p.node_claim else "",
            html_text("; ".join(p.relaxed)),
        )
        for p in plan.placements
    ]
    table = _table(("pod", "node", "", "dropped preferences"), rows, "<<<<")
    title = f"Placement of {counted(len(plan.placements), 'pod')}"
    return f"<details><summary>{title}</summary>{table}</details>"


def _notes(plan: Plan) -> str:
    if not plan.diagnostics:
        return ""
    colours = {"error": "gone", "warning": "swap", "info": "soft"}
    rows = [
        (f"<span class={colours[severity]}>{severity}</span>", html_text(text))
        for severity, text in format_findings(plan.diagnostics)
    ]
    return _section("Notes", "", _table(("", ""), rows, "<<"))


_SECTIONS: Final[tuple[Callable[[Plan], str], ...]] = (
    _changes,
    _pools,
    _actions,
    _deferred,
    _blocked,
    _blockers,
    _unschedulable,
    _headroom,
    _notes,
    _budgets,
    _places,
)
