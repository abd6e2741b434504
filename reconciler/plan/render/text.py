"""The sections of a plan on a terminal: a row and its lines, or a table of aligned columns."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from reconciler.model.text.visible import one_line, visible
from reconciler.plan.render.layout import Canvas, clipped, table
from reconciler.plan.render.sections.cells import (
    VERBS,
    Cell,
    Column,
    Edit,
    Line,
    Moved,
    NameList,
    PlanDocument,
    Section,
    SectionRow,
    Text,
    columns_to_show,
    text_of,
)
from reconciler.plan.render.sections.document import document_of
from reconciler.plan.render.wording import counted, moment
from reconciler.plan.value.plan import Plan

_EDGE_MAX: Final = 100
"""The last column of right-aligned facts: a wide terminal does not move them further."""

_TONES: Final = {"": (), "soft": ("dim",), "good": ("green",), "bad": ("red",), "warn": ("yellow",)}
_NAME_MIN: Final = 12
_ROWS_MAX: Final = 24


def render_text(
    plan: Plan, *, width: int = 80, colour: bool = False, next_command: str = ""
) -> str:
    """Return the plan for a terminal of ``width`` columns."""
    return paint(
        document_of(plan, for_page=False), width=width, colour=colour, next_command=next_command
    )


def paint(
    document: PlanDocument, *, width: int = 80, colour: bool = False, next_command: str = ""
) -> str:
    """Return a document for a terminal of ``width`` columns."""
    paper = Canvas(width, colour=colour)
    _header(paper, document)
    for section in document.sections:
        if section.rows:
            _section(paper, section)
    paper.line()
    for line in document.headline:
        paper.wrapped(visible(line), 0, "bold")
    if next_command:
        paper.line(f"Next: {paper.paint(one_line(next_command), 'cyan')}")  # one line, to copy
    return paper.text()


def _header(paper: Canvas, document: PlanDocument) -> None:
    fleet, revision, place = map(visible, (document.fleet, document.revision, document.place))
    commit, _, note = revision.partition(" ") if document.dirty else (revision, "", "")
    changed = f" {paper.paint(note, 'yellow')}" if note else ""
    beside = place and len(f"{fleet} at {revision}  {place}") <= paper.width
    source = f"  {paper.paint(place, 'dim')}" if beside else ""
    title = f"{paper.paint(fleet, 'bold')} at {paper.paint(commit, 'bold')}{changed}"
    paper.line(f"{title}{source}")
    if place and not beside:
        paper.wrapped(place, 0, "dim")
    seen = f"; {document.observation}" if document.observation else ""
    paper.wrapped(f"plan {document.digest} of {moment(document.at)}{seen}", 0, "dim")


def _section(paper: Canvas, section: Section) -> None:
    rows = section.rows[:_ROWS_MAX]
    paper.cut = False
    if section.table:
        head, *lines = _table(section.columns, rows, paper.width)
        paper.heading(head)
        for line in lines:
            paper.line(line)
    else:
        paper.heading(visible(section.title), visible(section.note))
        _list(paper, rows)
    if len(section.rows) > len(rows):
        paper.line(f"  and {len(section.rows) - len(rows):,} more")
    if paper.cut or any(row.more for row in section.rows) or len(section.rows) > len(rows):
        paper.wrapped("(`-o html` and `-o json` list everything)", 2, "dim")


# A list: the subject of a row on the left, its facts on the right, and its lines below.


def _list(paper: Canvas, rows: Sequence[SectionRow]) -> None:
    facts = table([[_plain(cell) for cell in row.cells[1:]] for row in rows], _aligned(rows))
    wide = max(map(len, facts))
    rights = [f"{fact:<{wide}}" if fact else "" for fact in facts]
    widest = max(
        len(_left(paper, row, paper.width)) + len(right) + 4
        for row, right in zip(rows, rights, strict=True)
    )
    paper.cut = False
    edge = min(paper.width, _EDGE_MAX, widest)
    for row, right in zip(rows, rights, strict=True):
        colours = _TONES[VERBS[row.verb].tone] if row.verb else ()
        colours = colours or _tone(row.cells[0])
        paper.row(_left(paper, row, edge - 4 - len(right)), right, 2, edge, *colours)
        _lines(paper, row.lines)


def _aligned(rows: Sequence[SectionRow]) -> str:
    return "".join(">" if text_of(cell)[-1:].isdigit() else "<" for cell in rows[0].cells[1:])


def _left(paper: Canvas, row: SectionRow, room: int) -> str:
    lead = row.cells[0]
    verb = VERBS.get(row.verb)
    mark = "" if verb is None else f"{verb.sign} {row.verb} " if verb.spoken else f"{verb.sign} "
    if verb is not None and not verb.sign:
        mark = f"{row.verb}: "
    if isinstance(lead, NameList):
        kind = f"{lead.kind} " if lead.kind else ""
        names = map(visible, lead.names)
        return f"{mark}{kind}{paper.fit(names, room - len(mark) - len(kind), lead.noun)}"
    if isinstance(lead, Edit):
        return f"{mark}{visible(lead.path)}"
    return f"{mark}{_plain(lead)}"


def _plain(cell: Cell) -> str:
    return visible(text_of(cell))


def _tone(cell: Cell) -> tuple[str, ...]:
    return _TONES[cell.tone] if isinstance(cell, Text) else ()


def _lines(paper: Canvas, lines: Sequence[Line]) -> None:
    heads = [_head(line) for line in lines]
    most = min(max(map(len, heads), default=0), paper.width // 3)
    for line, head in zip(lines, heads, strict=True):
        cell = line.cells[0]
        if isinstance(cell, Edit):
            _edit(paper, cell)
        elif isinstance(cell, NameList):
            paper.line(
                " " * 6
                + paper.paint(
                    paper.fit(map(visible, cell.names), paper.width - 6, cell.noun), "dim"
                )
            )
        else:
            before = f"{head:<{most}}  " if head else ""
            paper.wrapped(" ".join(map(_plain, line.cells)), 6, *_tone(cell), before=before)


def _head(line: Line) -> str:
    """Return the subject of a line: a name, or the number of several."""
    head = line.head
    if isinstance(head, NameList):
        return counted(len(head.names), head.noun)
    return _plain(head) if head is not None else ""


def _edit(paper: Canvas, edit: Edit) -> None:
    path = visible(edit.path)
    mark = "  causes drift" if edit.drifts else ""
    if edit.of_list:
        paper.wrapped(f"{path}{mark}", 6)
        for sign, entries in zip("-+", (edit.old, edit.new), strict=True):
            for entry in entries:
                colour = "red" if sign == "-" else "green"
                paper.wrapped(f"{sign} {visible(entry)}", 8, colour, hanging=2)
        return
    values = visible(f"{edit.old[0]} → {edit.new[0]}")
    if 6 + len(path) + 2 + len(values) + len(mark) <= paper.width:
        paper.line(f"      {path}  {values}{paper.paint(mark, 'yellow')}")
    else:
        paper.line(f"      {path}{paper.paint(mark, 'yellow')}")
        paper.wrapped(values, 8, hanging=2)


# A table: every column aligned, the parts of a change among themselves.


def _table(columns: Sequence[Column], rows: Sequence[SectionRow], width: int) -> list[str]:
    kept = columns_to_show(columns, rows)
    texts = [_parts([row.cells[number] for row in rows]) for number in kept[1:]]
    heads = [columns[number].title for number in kept]
    taken = sum(
        2 + max(map(len, (head, *column))) for head, column in zip(heads[1:], texts, strict=True)
    )
    room = max(width - taken, _NAME_MIN)
    names = [clipped(_plain(row.cells[0]), room) for row in rows]
    sides = "".join(">" if columns[number].numeric else "<" for number in kept)
    return table([heads, *map(list, zip(names, *texts, strict=True))], sides)


def _parts(cells: Sequence[Cell]) -> list[str]:
    """Return a column of which ``before → after`` have their arrows below each other."""
    texts = [
        _plain(cell).partition(" → ") if isinstance(cell, Moved) else (_plain(cell), "", "")
        for cell in cells
    ]
    before = max((len(first) for first, arrow, _ in texts if arrow), default=0)
    after = max((len(last) for _, arrow, last in texts if arrow), default=0)
    return [
        f"{first:>{before}} → {last:>{after}}" if arrow else first for first, arrow, last in texts
    ]
