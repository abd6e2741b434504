"""Sections as parts of a self-contained page, for a large screen and for a phone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from reconciler.model.text.counting import format_count
from reconciler.model.text.quoting import code_spans
from reconciler.model.text.times import format_time
from reconciler.render.cells import (
    VERBS,
    Cell,
    Column,
    Dollars,
    Edit,
    Flow,
    Line,
    Moment,
    Name,
    NameList,
    Section,
    SectionRow,
    Text,
    ValueChange,
    Verbatim,
    shown_columns,
    sort_value,
    text_of,
)
from reconciler.render.charts import flow, timeline
from reconciler.render.page import Markup, el, join_markup

ROWS_MAX: Final = 5000
"""The maximum number of rows of a table on the page; `-o json` has all."""


_NAMES_SHOWN: Final = 8


def sentence(text: str) -> Markup:
    """Return a sentence as a paragraph, with its code as such."""
    return el("p", _with_code(text))


def _with_code(text: str) -> Markup:
    """Return words, with what is between backticks as code."""
    return join_markup(
        *(el("code", part) if is_code else part for part, is_code in code_spans(text))
    )


def render_section(section: Section) -> Markup:
    """Return a section of a page."""
    note = el("small", f" {section.note}") if section.note else ""
    title, body = section.title.rstrip(":"), _body(section)
    if section.end:
        body = join_markup(body, sentence(section.end))
    if section.folded:
        shown = el("details", el("summary", title, note), body)
    else:
        head = el("h2", title, note, cls=section.tone or None) if title else ""
        shown = join_markup(head, body)
    return el("section", shown, id=section.key)


def _body(section: Section) -> Markup:
    figure = section.figure
    table = _table(section.columns, section.rows, section.lines_title)
    match figure:
        case None:
            return table
        case Verbatim(text=text):
            return join_markup(table, el("pre", text, cls="wide"))
        case Flow():
            return join_markup(flow(figure), table)
    return join_markup(timeline(figure), table)


def _table(columns: Sequence[Column], rows: Sequence[SectionRow], lines_title: str) -> Markup:
    if not rows:
        return Markup("")
    shown = shown_columns(columns, rows, lines_title, on_page=True)
    head = el(
        "tr", *(el("th", c.title, cls="n" if c.numeric else None, scope="col") for c in shown.heads)
    )

    def body(row: SectionRow) -> Markup:
        unfolds = not row.more
        cells = [
            _td(row.cells[number], columns[number], unfolds=unfolds) for number in shown.numbers
        ]
        if shown.verbs:
            cells.insert(0, el("td", _verb(row.verb)))
        if shown.lines:
            cells.append(_lines(row.lines, lines_title, unfolds=unfolds))
        return _tbody(row, cells, columns, lines_title)

    rest = len(rows) - ROWS_MAX
    more = el("p", f"and {rest:,} more (`-o json` lists all)", cls="soft") if rest > 0 else ""
    heading = el("thead", head) if any(column.title for column in shown.heads) else ""
    return join_markup(el("table", heading, *map(body, rows[:ROWS_MAX]), cls="cards"), more)


def _tbody(
    row: SectionRow, cells: Sequence[Markup], columns: Sequence[Column], lines_title: str
) -> Markup:
    """Return a row and, below it, the rows that it represents."""
    first = el("tr", *cells)
    if not row.more:
        return el("tbody", first)
    label = el("summary", f"show all {len(row.more):,}")
    inner = el("details", label, _table(columns, row.more, lines_title))
    return el("tbody", first, el("tr", el("td", inner, colspan=len(cells))), cls="with")


def _td(cell: Cell, column: Column, *, unfolds: bool) -> Markup:
    return el(
        "td",
        _cell(cell, unfolds=unfolds),
        cls="n" if column.numeric else None,
        data_sort=sort_value(cell) or None,
        data_label=column.title,
    )


def _verb(verb: str) -> Markup:
    return el("span", verb, cls=f"verb {VERBS[verb].tone}".strip()) if verb else Markup("")


def _lines(lines: Sequence[Line], title: str, *, unfolds: bool) -> Markup:
    return el("td", *(_line(line, unfolds=unfolds) for line in lines), data_label=title)


def _line(line: Line, *, unfolds: bool) -> Markup:
    content = Markup(" ".join(_cell(cell, unfolds=unfolds) for cell in line.cells))
    match line.head:
        case NameList(names=names, noun=noun):
            many = format_count(len(names), noun)
            which = el("details", el("summary", "which"), _codes(names))
            return join_markup(el("div", el("b", many), ": ", content), which)
        case Name() as head:
            return el("div", _cell(head), ": ", content)
    return el("div", content)


def _cell(cell: Cell, *, unfolds: bool = True) -> Markup:
    match cell:
        case Text(text=text, tone=tone):
            words = _with_code(text)
            return el("span", words, cls=tone) if tone and text else words
        case Name(text=text, kind=kind):
            return join_markup(f"{kind} " if kind else "", el("code", text) if text else "")
        case NameList():
            return _names(cell, unfolds=unfolds)
        case Moment(at=at):
            return el("time", format_time(at), datetime=at.isoformat())
        case Dollars(amount=amount, signed=True) if amount:
            return el("span", text_of(cell), cls="bad" if amount > 0 else "good")
        case ValueChange():
            return join_markup(text_of(cell))
        case Edit():
            return _edit(cell)
    return join_markup(text_of(cell))


def _names(cell: NameList, *, unfolds: bool) -> Markup:
    kind = f"{cell.kind} " if cell.kind else ""
    if len(cell.names) <= _NAMES_SHOWN and unfolds:
        return join_markup(kind, _codes(cell.names))
    shown, rest = cell.names[: cell.most], cell.names[cell.most :]
    more = f"and {format_count(len(rest), f'more {cell.noun}')}" if rest else ""
    if rest and unfolds:
        return join_markup(
            kind, _codes(shown), " ", el("details", el("summary", more), _codes(rest))
        )
    return join_markup(kind, _codes(shown), f" {more}")


def _codes(names: Sequence[str]) -> Markup:
    return Markup(", ".join(el("code", name) for name in names))


def _edit(edit: Edit) -> Markup:
    tag = el("span", "causes drift", cls="tag warn") if edit.drifts else ""
    old = [el("div", f"- {value}", cls="mono bad") for value in edit.old]
    new = [el("div", f"+ {value}", cls="mono good") for value in edit.new]
    return el("div", el("code", edit.path), " ", tag, *old, *new)
