"""Sections on a terminal: a row and its lines, or a table of aligned columns."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from reconciler.model.text.counting import format_count
from reconciler.model.text.visible import escape_invisible
from reconciler.render.cells import (
    VERBS,
    Cell,
    Column,
    Edit,
    Line,
    NameList,
    Section,
    SectionRow,
    Text,
    ValueChange,
    columns_to_show,
    text_of,
)
from reconciler.render.layout import Canvas, table, truncate

_EDGE_MAX: Final = 100
"""The last column of right-aligned facts: a wide terminal does not move them further."""


_TONES: Final = {"": (), "soft": ("dim",), "good": ("green",), "bad": ("red",), "warn": ("yellow",)}


_NAME_MIN: Final = 12


_ROWS_MAX: Final = 24


def write_section(canvas: Canvas, section: Section) -> None:
    rows = section.rows[:_ROWS_MAX]
    canvas.cut = False
    if section.table:
        head, *lines = _table(section.columns, rows, canvas.width)
        if section.note:  # what its numbers are of
            _write_title(canvas, escape_invisible(section.title), escape_invisible(section.note))
            canvas.line(head)
        else:
            canvas.heading(head)
        for line in lines:
            canvas.line(line)
    else:
        canvas.heading(escape_invisible(section.title), escape_invisible(section.note))
        _write_list(canvas, rows)
    if len(section.rows) > len(rows):
        canvas.line(f"  and {len(section.rows) - len(rows):,} more")
    if canvas.cut or any(row.more for row in section.rows) or len(section.rows) > len(rows):
        canvas.paragraph("(`-o html` and `-o json` list everything)", 2, "dim")


def _write_title(canvas: Canvas, title: str, note: str) -> None:
    """Write a title with its note, on a line of its own if both do not fit."""
    if len(f"{title} {note}") <= canvas.width:
        canvas.heading(title, note)
        return
    canvas.heading(title)
    canvas.paragraph(note, 0, "dim")


def _write_list(canvas: Canvas, rows: Sequence[SectionRow]) -> None:
    facts = table([[_plain_text(cell) for cell in row.cells[1:]] for row in rows], _alignment(rows))
    wide = max(map(len, facts))
    rights = [f"{fact:<{wide}}" if fact else "" for fact in facts]
    widest = max(
        len(_row_subject(canvas, row, canvas.width)) + len(right) + 4
        for row, right in zip(rows, rights, strict=True)
    )
    canvas.cut = False
    edge = min(canvas.width, _EDGE_MAX, widest)
    for row, right in zip(rows, rights, strict=True):
        colours = _TONES[VERBS[row.verb].tone] if row.verb else ()
        colours = colours or _styles(row.cells[0])
        canvas.row(_row_subject(canvas, row, edge - 4 - len(right)), right, 2, edge, *colours)
        _write_lines(canvas, row.lines)


def _alignment(rows: Sequence[SectionRow]) -> str:
    return "".join(">" if text_of(cell)[-1:].isdigit() else "<" for cell in rows[0].cells[1:])


def _row_subject(canvas: Canvas, row: SectionRow, room: int) -> str:
    lead = row.cells[0]
    verb = VERBS.get(row.verb)
    mark = "" if verb is None else f"{verb.sign} {row.verb} " if verb.has_word else f"{verb.sign} "
    if verb is not None and not verb.sign:
        mark = f"{row.verb}: "
    if isinstance(lead, NameList):
        kind = f"{lead.kind} " if lead.kind else ""
        names = map(escape_invisible, lead.names)
        return f"{mark}{kind}{canvas.fit(names, room - len(mark) - len(kind), lead.noun)}"
    if isinstance(lead, Edit):
        return f"{mark}{escape_invisible(lead.path)}"
    return f"{mark}{_plain_text(lead)}"


def _plain_text(cell: Cell) -> str:
    return escape_invisible(text_of(cell))


def _styles(cell: Cell) -> tuple[str, ...]:
    return _TONES[cell.tone] if isinstance(cell, Text) else ()


def _write_lines(canvas: Canvas, lines: Sequence[Line]) -> None:
    heads = [_line_subject(line) for line in lines]
    most = min(max(map(len, heads), default=0), canvas.width // 3)
    for line, head in zip(lines, heads, strict=True):
        cell = line.cells[0]
        if isinstance(cell, Edit):
            _write_edit(canvas, cell)
        elif isinstance(cell, NameList):
            canvas.line(
                " " * 6
                + canvas.paint(
                    canvas.fit(map(escape_invisible, cell.names), canvas.width - 6, cell.noun),
                    "dim",
                )
            )
        else:
            before = f"{head:<{most}}  " if head else ""
            canvas.paragraph(
                " ".join(map(_plain_text, line.cells)), 6, *_styles(cell), before=before
            )


def _line_subject(line: Line) -> str:
    """Return the subject of a line: a name, or the number of several."""
    head = line.head
    if isinstance(head, NameList):
        return format_count(len(head.names), head.noun)
    return _plain_text(head) if head is not None else ""


def _write_edit(canvas: Canvas, edit: Edit) -> None:
    path = escape_invisible(edit.path)
    mark = "  causes drift" if edit.drifts else ""
    if edit.is_list:
        canvas.paragraph(f"{path}{mark}", 6)
        for sign, entries in zip("-+", (edit.old, edit.new), strict=True):
            for entry in entries:
                colour = "red" if sign == "-" else "green"
                canvas.paragraph(f"{sign} {escape_invisible(entry)}", 8, colour, hanging=2)
        return
    values = escape_invisible(f"{edit.old[0]} → {edit.new[0]}")
    if 6 + len(path) + 2 + len(values) + len(mark) <= canvas.width:
        canvas.line(f"      {path}  {values}{canvas.paint(mark, 'yellow')}")
    else:
        canvas.line(f"      {path}{canvas.paint(mark, 'yellow')}")
        canvas.paragraph(values, 8, hanging=2)


def _table(columns: Sequence[Column], rows: Sequence[SectionRow], width: int) -> list[str]:
    columns_shown = columns_to_show(columns, rows)
    texts = [_align_arrows([row.cells[number] for row in rows]) for number in columns_shown[1:]]
    heads = [columns[number].title for number in columns_shown]
    used = sum(
        2 + max(map(len, (head, *column))) for head, column in zip(heads[1:], texts, strict=True)
    )
    room = max(width - used, _NAME_MIN)
    names = [truncate(_plain_text(row.cells[0]), room) for row in rows]
    sides = "".join(">" if columns[number].numeric else "<" for number in columns_shown)
    return table([heads, *map(list, zip(names, *texts, strict=True))], sides)


def _align_arrows(cells: Sequence[Cell]) -> list[str]:
    """Return a column of which ``before → after`` have their arrows below each other."""
    texts = [
        _plain_text(cell).partition(" → ")
        if isinstance(cell, ValueChange)
        else (_plain_text(cell), "", "")
        for cell in cells
    ]
    before = max((len(first) for first, arrow, _ in texts if arrow), default=0)
    after = max((len(last) for _, arrow, last in texts if arrow), default=0)
    return [
        f"{first:>{before}} → {last:>{after}}" if arrow else first for first, arrow, last in texts
    ]
