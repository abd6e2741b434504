"""The reply of a command in each format: a value for programs, and sections for people."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any, Final

import msgspec

from reconciler.model.text.times import timestamp
from reconciler.model.text.visible import Painted, markdown_text
from reconciler.render.cells import Column, Section, SectionRow, Text, Tone, text_of
from reconciler.render.listing import columns, format_document

PAGES: Final = ("markdown", "html")
"""The formats of a reply besides those of every command."""

_INDENT: Final = 2


def render_reply(
    reply: msgspec.Struct,
    sections: Sequence[Section],
    output: str,
    *,
    title: str,
    colour: bool = False,
) -> str:
    """Return a reply in the format ``output``; ``title`` is that of a page."""
    if output in ("json", "yaml"):
        return format_document(document_of(reply), output)
    if output in PAGES:
        return render_page(title, sections, output)
    return Painted("\n".join(_section_text(section, colour=colour) for section in sections))


def render_page(title: str, sections: Sequence[Section], output: str) -> str:
    """Return sections as one of ``PAGES``."""
    match output:
        case "html":
            from reconciler.render.html import render_section
            from reconciler.render.page import el, page

            return page(title, el("h1", title), *map(render_section, sections))
        case "markdown":
            from reconciler.render.markdown import MarkdownSections, SectionLimits

            paint = MarkdownSections(SectionLimits(rows=200, folded=200, cell=400, chart=False))
            parts = [part for section in sections for part in paint.parts(section)]
            return "\n\n".join([f"### {markdown_text(title)}", *parts]) + "\n"
    raise ValueError(output)


def table_section(key: str, header: Sequence[str], rows: Sequence[Sequence[str]]) -> Section:
    """Return a table of texts as a section."""
    cells = (SectionRow(cells=tuple(map(Text, row))) for row in rows)
    return Section(key=key, title="", columns=tuple(map(Column, header)), rows=tuple(cells))


def document_of(reply: msgspec.Struct) -> Any:
    """Return a reply as an object for programs, its times to the second."""
    return _with_stamps(msgspec.to_builtins(reply, builtin_types=(datetime,)))


def _with_stamps(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _with_stamps(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_with_stamps(item) for item in value]
    return timestamp(value) if isinstance(value, datetime) else value


def _section_text(section: Section, *, colour: bool) -> str:
    """Return a section as aligned columns, below its title and the titles of its columns."""
    rows = [[text_of(cell) for cell in row.cells] for row in section.rows]
    heads = [column.title.upper() for column in section.columns]
    tones: list[Tone] = [
        cell.tone if isinstance(cell := row.cells[0], Text) else "" for row in section.rows
    ]
    if any(heads):
        rows, tones = [heads, *rows], ["", *tones]
    title = f"{section.title}:\n" if section.title else ""
    end = f"{section.end}\n" if section.end else ""
    indent = _INDENT if title else 0
    return f"{title}{columns(rows, indent=indent, tones=tones if colour else ())}{end}"
