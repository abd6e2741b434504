"""Sections as Markdown, with details folded below the rows, and charts as Mermaid flowcharts."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final, Literal, NamedTuple

from reconciler.model.text.counting import format_count
from reconciler.model.text.quoting import code_spans
from reconciler.model.text.visible import (
    escape_invisible,
    markdown_code,
    markdown_text,
    mermaid_text,
)
from reconciler.render.cells import (
    BOXES_MAX,
    Box,
    Cell,
    Edit,
    Flow,
    Line,
    Name,
    NameList,
    Section,
    SectionRow,
    ShownColumns,
    Verbatim,
    shown_columns,
    text_of,
)
from reconciler.render.layout import truncate

_LABEL_MAX: Final = 80


_HEAD: Final = (
    "flowchart LR",
    "  classDef provision fill:#dafbe1,stroke:#1a7f37,color:#0b3d1a",
    "  classDef replace fill:#fff8c5,stroke:#9a6700,color:#4d3800",
    "  classDef terminate fill:#ffebe9,stroke:#cf222e,color:#5c0f14",
)

_BOXES_MAX: Final = 40

_BLOCK_START: Final = re.compile(r"(\d+(?=[.)])|(?=[-+=]))(.)")
"""What begins a list, a heading or a rule at the start of a line, and is not escaped elsewhere."""

_COMMIT: Final = re.compile(r"[0-9a-f]{7,40}")


def render_flowchart(flow: Flow) -> str:
    """Return the order of actions as a flowchart."""
    lines = list(_HEAD)
    shown = flow.boxes[:BOXES_MAX]
    numbers = {box.id: f"a{number}" for number, box in enumerate(shown)}
    lines += [f'  {numbers[b.id]}["{_label(b)}"]:::{b.kind}' for b in shown]
    for box in shown:
        lines += [f"  {numbers[b]} --> {numbers[box.id]}" for b in box.after if b in numbers]
    rest = len(flow.boxes) - len(shown)
    if rest:
        lines.append(f'  rest["and {format_count(rest, "more action")} (-o json lists all)"]')
    if not shown:
        lines.append('  none["nothing to do"]')
    return "\n".join(lines) + "\n"


def _label(box: Box) -> str:
    return "<br/>".join(escape_label(part) for part in (box.title, box.detail) if part)


def escape_label(text: str) -> str:
    """Return text that a quoted Mermaid label shows unchanged."""
    line = " ".join(text.split())
    return mermaid_text(line if len(line) <= _LABEL_MAX else line[: _LABEL_MAX - 1] + "…")


class SectionLimits(NamedTuple):
    """The limits of one attempt: rows of a table and behind a fold, and characters of a cell."""

    rows: int
    folded: int
    cell: int
    chart: bool


def sentence_markdown(text: str) -> str:
    """Return a sentence, with code as such; ``markdown_text`` strips the spaces around it."""
    parts = []
    for part, is_code in code_spans(text):
        plain = part.strip()
        written = (markdown_code if is_code else markdown_text)(plain)
        parts.append(part.replace(plain, written) if plain else part)
    return "".join(parts)


def _heading(text: str) -> str:
    """Return a heading, with commits as code, which forges do not link."""
    words = text.split()
    return " ".join((markdown_code if _COMMIT.fullmatch(w) else markdown_text)(w) for w in words)


def _fold_title(section: Section) -> str:
    """Return the title of a fold, without commits: it is HTML, where backticks are not code."""
    has_commits = any(map(_COMMIT.fullmatch, section.note.split()))
    return markdown_text(section.title if has_commits else section.heading)


def _fold(title: str, body: str) -> str:
    return f"<details><summary>{title}</summary>\n\n{body}\n\n</details>"


def code_block(text: str) -> str:
    """Return lines as a block of code, behind a fence that is longer than any in them."""
    runs = re.findall(r"`{3,}", text)
    fence = "`" * max(3, *(len(run) + 1 for run in runs), 3)
    return f"{fence}\n{escape_invisible(text).strip(chr(10))}\n{fence}"


def _at_line_start(text: str) -> str:
    """Return the Markdown of a text so that its first characters begin no list and no rule."""
    found = _BLOCK_START.match(text)
    return text if found is None else f"{found[1]}&#{ord(found[2])};{text[found.end() :]}"


_Rest = Literal["fold", "list", "cut"]
"""What becomes of the names of a long list: folded, listed as well, or only counted."""


class MarkdownSections:
    """Sections as Markdown, each cut to the limits."""

    def __init__(self, limits: SectionLimits) -> None:
        self._limits = limits

    def parts(self, section: Section) -> list[str]:
        """Return the paragraphs of a section, none for a chart that is not shown."""
        if isinstance(section.figure, Flow):
            if len(section.figure.boxes) > _BOXES_MAX or not self._limits.chart:
                return []
            chart = f"```mermaid\n{render_flowchart(section.figure)}```"
            return [_fold(_fold_title(section), chart)]
        body = self._rows(section) if section.rows else []
        if isinstance(section.figure, Verbatim):
            body.append(code_block(section.figure.text))
        if section.end:
            body.append(sentence_markdown(section.end))
        if section.folded:
            return [_fold(_fold_title(section), "\n\n".join(body))]
        heading = [f"#### {_heading(section.heading)}"] if section.heading else []
        return [*heading, *body]

    def _rows(self, section: Section) -> list[str]:
        """Return the paragraphs of the rows: sentences, a list or a table."""
        if not (section.is_plain_list or section.is_facts):
            return [self._table(section)]
        shown = section.rows[: self._limits.rows]
        texts = [_at_line_start(self._text_row(row)) for row in shown]
        rest = len(section.rows) - len(shown)
        texts += [f"and {rest:,} more (`-o html` lists all)"] if rest else []
        return (
            texts
            if section.is_lead or len(texts) == 1
            else ["\n".join(f"- {text}" for text in texts)]
        )

    def _text_row(self, row: SectionRow) -> str:
        """Return a text, or a name and its value."""
        first, *values = row.cells
        if not values:
            return self._cell(first)
        return f"{self._cell(first).removesuffix(':')}: {self._cell(values[0]) or '-'}"

    def _table(self, section: Section) -> str:
        columns = shown_columns(section.columns, section.rows, section.lines_title)
        heads = [column.title for column in columns.heads]
        marks = ["--:" if column.numeric else ":--" for column in columns.heads]
        shown = section.rows[: self._limits.rows]
        rows = [self._row(row, columns) for row in shown]
        if len(section.rows) > len(shown):
            rest = f"and {len(section.rows) - len(shown):,} more (`-o html` lists all)"
            rows.append([rest, *[""] * (len(heads) - 1)])
        return "\n".join(f"| {' | '.join(cells)} |" for cells in (heads, marks, *rows))

    def _row(self, row: SectionRow, columns: ShownColumns) -> list[str]:
        rest: _Rest = "cut" if row.more else "fold"
        cells = [self._cell(row.cells[n], rest) for n in columns.numbers]
        if row.more:
            cells[0] += self._folded_rows(row, columns.numbers)
        text = "<br>".join(self._lines(row.lines, "fold" if len(cells) == 1 else rest))
        return [*([row.verb] if columns.verbs else []), *cells, *([text] if columns.lines else [])]

    def _folded_rows(self, row: SectionRow, columns_shown: Sequence[int]) -> str:
        """Return the rows behind a row, a line for each, behind a fold in its first cell."""
        shown = [
            self._one_line_row(part, row, columns_shown) for part in row.more[: self._limits.folded]
        ]
        cells = (cell for part in row.more for cell in part.cells)
        several = any(isinstance(cell, NameList) and len(cell.names) > 1 for cell in cells)
        title = "all" if several else f"all {len(row.more):,}"
        return self._unfold(title, shown, "<br>", len(row.more))

    def _one_line_row(
        self, row: SectionRow, above: SectionRow, columns_shown: Sequence[int]
    ) -> str:
        """Return a row on one line, without what the row above it has as well."""
        own = [row.cells[n] for n in columns_shown if not n or row.cells[n] != above.cells[n]]
        cells = [self._cell(cell, "list") for cell in own]
        parts = [line for line in row.lines if line not in above.lines]
        lines = self._lines(parts, "list")
        return ", ".join(filter(None, [*cells, *lines]))

    @staticmethod
    def _unfold(title: str, shown: Sequence[str], between: str, total: int) -> str:
        if total > len(shown):
            shown = [*shown, f"and {total - len(shown):,} more (`-o html` lists all)"]
        return f"<details><summary>{title}</summary>{between.join(shown)}</details>"

    def _lines(self, lines: Sequence[Line], rest: _Rest) -> list[str]:
        shown = [self._line(line, rest) for line in lines[: self._limits.rows]]
        more = len(lines) - len(shown)
        return [*shown, f"and {more:,} more (`-o html` lists all)"] if more > 0 else shown

    def _line(self, line: Line, rest: _Rest) -> str:
        text = " ".join(self._cell(cell, rest) for cell in line.cells)
        match line.head:
            case NameList(names=names, noun=noun):
                codes = [self._code(name) for name in names[: self._limits.folded]]
                which = self._unfold("which", codes, ", ", len(names)) if rest == "fold" else ""
                return f"**{format_count(len(names), noun)}**: {text}{which}"
            case Name() as head:
                return f"{self._cell(head)}: {text}"
        return text

    def _cell(self, cell: Cell, rest: _Rest = "fold") -> str:
        match cell:
            case Name(text=text, kind=kind):
                return f"{self.text(kind)} {self._code(text)}".strip()
            case NameList():
                return self._names(cell, rest)
            case Edit():
                return self._edit(cell)
        return self.text(text_of(cell))

    def _names(self, cell: NameList, rest: _Rest) -> str:
        kind = f"{self.text(cell.kind)} " if cell.kind else ""
        most = self._limits.folded if rest == "list" else cell.most
        others = cell.names[most:]
        if len(others) <= 1:
            return kind + ", ".join(map(self._code, cell.names))
        shown = kind + ", ".join(map(self._code, cell.names[:most]))
        more = f"and {len(others):,} more"
        if rest != "fold":
            return f"{shown} {more}"
        codes = [self._code(name) for name in others[: self._limits.folded]]
        return f"{shown} {self._unfold(more, codes, ', ', len(others))}"

    def _edit(self, edit: Edit) -> str:
        mark = " (causes drift)" if edit.drifts else ""
        path = self._code(edit.path)
        if not edit.is_list:
            return f"{path} {self._code(edit.old[0])} → {self._code(edit.new[0])}{mark}"
        lost = [f"− {self._code(entry)}" for entry in edit.old]
        gained = [f"+ {self._code(entry)}" for entry in edit.new]
        return "<br>".join([f"{path}{mark}", *lost, *gained])

    def text(self, text: str) -> str:
        """Return the text of a cell, with code as such, as on a page."""
        return sentence_markdown(truncate(text, self._limits.cell))

    def _code(self, text: str) -> str:
        return markdown_code(truncate(text, self._limits.cell))
