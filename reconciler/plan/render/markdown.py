"""The plan as a comment on a pull request: a summary, with the details folded below it.

Names, messages and values come from files that anybody may have written, so every one of them is
escaped: it cannot leave its cell, mention people, or become a link or an image.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from reconciler.model.text.visible import markdown_code, markdown_text
from reconciler.plan.render.layout import clipped
from reconciler.plan.render.mermaid import render_mermaid
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
    short_node,
    until,
)
from reconciler.plan.value.changes import PlannedChange
from reconciler.plan.value.plan import Plan

CHARACTERS_MAX: Final = 65_536
"""GitHub refuses a longer comment."""

_SUMMARY_MAX: Final = 2000
_ROWS: Final = ((400, 600), (100, 400), (30, 300), (10, 200), (3, 100), (3, 40))
"""How many rows a table may have and how long a cell may be, tried until the comment fits."""

_CHART_MAX: Final = 40
_SIGNS: Final = {"create": "+", "update": "~", "delete": "-"}
_VERBS: Final = {"launch": "launch", "replace": "replace", "remove": "remove"}


def render_markdown(plan: Plan) -> str:
    """Return the comment; where it would be too long, its tables are truncated with a note."""
    text = ""
    for rows, cell in _ROWS:
        text = _Comment(plan, rows, cell).text()
        if len(text) <= CHARACTERS_MAX:
            return text
    return _Comment(plan, *_ROWS[-1]).head()


class _Comment:
    """One attempt at the comment, with so many rows to a table and characters to a cell."""

    def __init__(self, plan: Plan, rows: int, cell: int) -> None:
        self._plan = plan
        self._rows = rows
        self._cell = cell

    def text(self) -> str:
        parts = [
            *self._title(),
            *self._pools(),
            *self._changes(),
            *self._actions(),
            *self._chart(),
            *self._deferred(),
            *self._blocked(),
            *self._blockers(),
            *self._unschedulable(),
            *self._headroom(),
            *self._notes(),
            self._foot(),
        ]
        return "\n\n".join(parts) + "\n"

    def head(self) -> str:
        """Return the comment without any table, which fits whatever the names are."""
        note = "The tables of this plan are too long for a comment. Use `-o html` to see them."
        return "\n\n".join([*self._title(), note, self._foot()]) + "\n"

    def _title(self) -> list[str]:
        summary = clipped(" ".join(summary_lines(self._plan)), _SUMMARY_MAX)
        return [f"### Plan for {self._say(self._plan.fleet)}", f"**{markdown_text(summary)}**"]

    def _say(self, text: str) -> str:
        return markdown_text(clipped(text, self._cell))

    def _code(self, text: str) -> str:
        return markdown_code(clipped(text, self._cell))

    def _table(self, head: Sequence[str], rows: Sequence[Sequence[str]], align: str) -> str:
        marks = {"<": ":--", ">": "--:"}
        lines = [f"| {' | '.join(head)} |", f"| {' | '.join(marks[a] for a in align)} |"]
        lines += [f"| {' | '.join(row)} |" for row in rows[: self._rows]]
        rest = len(rows) - self._rows
        if rest > 0:
            blanks = " |" * (len(head) - 1)
            lines.append(f"| … and {rest:,} more |{blanks}")
        return "\n".join(lines)

    def _pools(self) -> list[str]:
        pools = sorted(self._plan.cost.by_node_pool.items())
        if not pools:
            return []
        rows = [
            (
                self._code(name) or "(no NodePool)",
                _moved(f"{p.nodes_before:,}", f"{p.nodes_after:,}"),
                _moved(hourly(p.before), hourly(p.after)),
                hourly(p.after - p.before, signed=True)
                if hourly(p.after) != hourly(p.before)
                else "",
            )
            for name, p in pools
        ]
        return [self._table(("NodePool", "nodes", "$/hour", "change"), rows, "<>>>")]

    def _changes(self) -> list[str]:
        changes = self._plan.changes
        if not changes:
            return []
        rows = [(_SIGNS[c.op], self._object(c), self._place(c), self._drifts(c)) for c in changes]
        since = compared(self._plan)
        parts = [
            f"#### Git changes {markdown_text(since)}".rstrip(),
            self._table(("", "object", "where", "effect"), rows, "<<<<"),
        ]
        fields = [
            row for change in changes if change.op == "update" for row in self._fields(change)
        ]
        if fields:
            table = self._table(("object", "field", "from", "to", ""), fields, "<<<<<")
            parts.append(_folded(counted(len(fields), "field"), table))
        return parts

    def _object(self, change: PlannedChange) -> str:
        return f"{self._say(change.kind)} {self._code(change.name)}"

    def _place(self, change: PlannedChange) -> str:
        if not change.file:
            return ""
        return self._code(f"{change.file}:{change.line}" if change.line else change.file)

    @staticmethod
    def _drifts(change: PlannedChange) -> str:
        return f"{counted(len(change.drifted), 'node')} drifted" if change.drifted else ""

    def _fields(self, change: PlannedChange) -> Iterable[tuple[str, ...]]:
        summary = fields_summary(change)
        if summary is not None:
            name = self._code(change.name)
            yield (name, self._say(summary), "", "", "")
            return
        for field in change.fields:
            lists = list_changes(field.old, field.new)
            old, new = field.old, field.new
            if lists is not None:
                old, new = (list(side) or None for side in lists)
            yield (
                self._code(change.name),
                self._code(field.path),
                self._code(format_value(old, self._cell)),
                self._code(format_value(new, self._cell)),
                "causes drift" if field.drifts else "",
            )

    def _actions(self) -> list[str]:
        steps = steps_of(self._plan)
        if not steps:
            return []
        rows = [
            (
                _VERBS[step.verb],
                self._what(step),
                self._code(step.node_pool),
                "?" if step.delta is None else hourly(step.delta, signed=True),
                f"{self._say(step.reason)}{' (forceful)' if step.forceful else ''}<br>"
                + "<br>".join(map(self._say, step.details[: self._rows])),
            )
            for step in steps
        ]
        head = ("", "nodes", "NodePool", "$/hour", "reason")
        return ["#### Actions", self._table(head, rows, "<<<><")]

    def _what(self, step: ActionGroup) -> str:
        said = " with ".join(self._say(part) for part in (step.going, step.coming) if part)
        if step.verb == "launch":
            return said
        return f"{said}<br>{self._code(listed(map(short_node, step.nodes), 4))}"

    def _chart(self) -> list[str]:
        actions = self._plan.actions
        if len(actions) > _CHART_MAX or not any(action.depends_on for action in actions):
            return []
        return [_folded("Order of actions", f"```mermaid\n{render_mermaid(self._plan)}```")]

    def _deferred(self) -> list[str]:
        plan = self._plan
        if not plan.deferred:
            return []
        groups = grouped(
            plan.deferred,
            lambda d: (d.node_pool, d.reason, d.waits_for, d.not_before, d.message),
        )
        rows = [
            (
                self._code(listed((short_node(d.node or d.node_claim) for d in group), 4)),
                self._code(group[0].node_pool),
                self._say(group[0].reason),
                self._say(group[0].waits_for),
                until(group[0].not_before, plan.at) if group[0].not_before else "",
                self._say(group[0].message),
            )
            for group in groups
        ]
        head = ("nodes", "NodePool", "reason", "waits for", "not before", "")
        title = f"Deferred: {counted(len(plan.deferred), 'node')} to be disrupted later"
        return [_folded(title, self._table(head, rows, "<<<<<<"))]

    def _blocked(self) -> list[str]:
        plan = self._plan
        if not plan.blocked:
            return []
        groups = grouped(plan.blocked, lambda b: (b.reason, b.code, b.message, b.node_pool))
        rows = [
            (
                self._code(listed((short_node(b.node) for b in group), 4)),
                self._code(group[0].node_pool),
                self._say(group[0].reason),
                self._say(group[0].message),
            )
            for group in groups
        ]
        nodes = counted(len({b.node for b in plan.blocked}), "node")
        title = f"Blocked: {nodes} cannot be disrupted"
        table = self._table(("nodes", "NodePool", "reason", "blocked because"), rows, "<<<<")
        return [_folded(title, table)]

    def _blockers(self) -> list[str]:
        held = self._plan.blockers
        if not held:
            return []
        rows = [
            (
                self._say(blocker_title(one.kind, one.name)),
                self._code(listed(map(short_node, one.nodes), 4)),
                moment(one.since) if one.since else "",
                markdown_text(format_forgone_savings(one.forgone, one.unpriced)),
                self._say(f"{one.message} ({one.owner})" if one.owner else one.message),
            )
            for one in held
        ]
        head = ("blocker", "nodes", "since", "savings forgone", "")
        table = self._table(head, rows, "<<<><")
        return [_folded("Blockers (savings forgone per month)", table)]

    def _unschedulable(self) -> list[str]:
        pods = self._plan.unschedulable
        if not pods:
            return []
        rows = [
            (
                self._code(format_pods(p.pod for p in group)),
                "<br>".join(
                    f"{self._code(r.node_pool or '')} {self._say(r.message)}".strip()
                    for r in group[0].reasons[: self._rows]
                ),
            )
            for group in grouped(pods, lambda p: p.reasons)
        ]
        title = f"Unschedulable: {counted(len(pods), 'pod')} cannot be scheduled"
        return [_folded(title, self._table(("pods", "reasons"), rows, "<<"), opened=True)]

    def _headroom(self) -> list[str]:
        rooms = self._plan.headroom
        if not rooms:
            return []
        rows = [
            (
                self._code(room.buffer),
                "<br>".join(
                    [
                        self._say(room.message),
                        *(
                            f"{self._code(r.node_pool or '')} {self._say(r.message)}".strip()
                            for r in room.reasons[: self._rows]
                        ),
                    ]
                ),
            )
            for room in rooms
        ]
        missing = any(room.unschedulable for room in rooms)
        title = f"Headroom ({counted(len(rooms), 'CapacityBuffer')})"
        return [_folded(title, self._table(("buffer", "capacity"), rows, "<<"), opened=missing)]

    def _notes(self) -> list[str]:
        found = self._plan.diagnostics
        if not found:
            return []
        rows = [(severity, self._say(text)) for severity, text in format_findings(found)]
        loud = any(d.severity != "info" for d in found)
        table = self._table(("", "note"), rows, "<<")
        return [_folded(counted(len(rows), "note"), table, opened=loud)]

    def _foot(self) -> str:
        plan = self._plan
        of = markdown_code(clipped(format_revision(plan), _SUMMARY_MAX))
        seen = f"; {format_observation(plan)}" if format_observation(plan) else ""
        return f"<sub>Plan {markdown_code(plan.digest)} of {of}, {moment(plan.at)}{seen}</sub>"


def _moved(before: str, after: str) -> str:
    return after if before == after else f"{before} → {after}"


def _folded(title: str, body: str, *, opened: bool = False) -> str:
    mark = " open" if opened else ""
    return f"<details{mark}><summary>{title}</summary>\n\n{body}\n\n</details>"
