"""Sections as parts of a self-contained page, for a large screen and for a phone."""

from __future__ import annotations

import re
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


_TIME: Final = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d(:\d\d)? UTC")
_TIMES: Final = re.compile(r"(?<=\d) × ")
"""Between a number and what it counts, a line is not broken."""
_NAME_WHOLE: Final = 40
"""The length up to which a name in a table is not broken at its hyphens."""
_NAMES_SHOWN: Final = 8


def sentence(text: str) -> Markup:
    """Return a sentence as a paragraph, with its code as such."""
    return el("p", _with_code(text))


def _with_code(text: str) -> Markup:
    """Return words, with what is between backticks as code."""
    return join_markup(
        *(
            el("code", part) if is_code else _TIMES.sub("\xa0×\xa0", part)
            for part, is_code in code_spans(text)
        )
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


def render_lead(section: Section) -> list[Markup]:
    """Return the sentences that a page begins with."""
    return [_cell(cell) for row in section.rows for cell in row.cells]


def _body(section: Section) -> Markup:
    figure = section.figure
    if section.is_plain_list:
        table = _list(section.rows)
    elif section.is_facts:
        table = _facts(section.rows)
    else:
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

    heading = el("thead", head) if any(column.title for column in shown.heads) else ""
    table = el("table", heading, *map(body, rows[:ROWS_MAX]), cls="cards")
    return join_markup(el("div", table, cls="wide"), _rest(rows))


def _facts(rows: Sequence[SectionRow]) -> Markup:
    """Return names and values, a line for each."""
    lines = (
        el(
            "tr",
            el("td", text_of(name).removesuffix(":"), cls="name"),
            el("td", _cell(value) or "-"),
        )
        for name, value in (row.cells for row in rows[:ROWS_MAX])
    )
    return join_markup(el("div", el("table", *lines, cls="facts"), cls="wide"), _rest(rows))


def _list(rows: Sequence[SectionRow]) -> Markup:
    if len(rows) <= 1:
        return join_markup(*(el("p", _cell(row.cells[0])) for row in rows))
    items = (el("li", _cell(row.cells[0])) for row in rows[:ROWS_MAX])
    return join_markup(el("ul", *items), _rest(rows))


def _rest(rows: Sequence[SectionRow]) -> Markup:
    """Return how many rows are left out."""
    rest = len(rows) - ROWS_MAX
    if rest <= 0:
        return Markup("")
    return el("p", _with_code(f"and {rest:,} more (`-o json` lists all)"), cls="soft")


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
        cls="n" if column.numeric else "t" if _stays_whole(cell) else None,
        data_sort=sort_value(cell) or None,
        data_label=column.title,
    )


def _stays_whole(cell: Cell) -> bool:
    """Return whether a cell is better on one line: a time, a name that is not long."""
    text = text_of(cell)
    is_name = not isinstance(cell, Edit | NameList) and " " not in text
    return bool(_TIME.fullmatch(text)) or (is_name and len(text) <= _NAME_WHOLE)


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
