"""The reply of a command in each format: a value for programs, and sections for people."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, Final

import msgspec
from msgspec.structs import replace

from reconciler.model.text.times import format_time, timestamp
from reconciler.model.text.visible import Painted, escape_invisible, markdown_text, one_line
from reconciler.render.cells import Column, Section, SectionRow, Text, Tone, Verbatim, text_of
from reconciler.render.listing import columns, format_document, heading_words, json_to_yaml

PAGES: Final = ("markdown", "html")
"""The formats of a reply besides those of every command."""

_INDENT: Final = 2
_NUMBER: Final = re.compile(r"[+−-]?\$?[\d,]{1,12}(\.\d+)?%?(/month|/hour)?")
"""An amount, a count or a share; more digits are an identifier, such as a hash."""


def render_reply(
    reply: msgspec.Struct | Sequence[msgspec.Struct] | Mapping[str, msgspec.Struct],
    sections: Sequence[Section],
    output: str,
    *,
    title: str,
    text: str | None = None,
    colour: bool = False,
    sort_keys: bool = True,
    compact: bool = False,
) -> str:
    """Return a reply in the format ``output``; ``title`` is that of a page.

    ``text`` is the reply for a terminal, by default its sections. With ``compact``, JSON is one
    line, and its times have all their digits.
    """
    if output in ("json", "yaml") and compact:
        line = msgspec.json.encode(reply, order="sorted").decode() + "\n"
        return line if output == "json" else json_to_yaml(line)
    if output in ("json", "yaml"):
        return format_document(document_of(reply), output, sort_keys=sort_keys)
    if output in PAGES:
        return render_page(title, sections, output)
    return render_sections(sections, colour=colour) if text is None else text


def render_sections(sections: Sequence[Section], *, colour: bool = False) -> str:
    """Return sections for a terminal."""
    return Painted("\n".join(_section_text(section, colour=colour) for section in sections))


def sections_of(reply: msgspec.Struct) -> tuple[Section, ...]:
    """Return the fields of a reply as a table, and a table for each list in it."""
    plain: list[tuple[str, str]] = []
    lists: list[Section] = []
    for field in msgspec.structs.fields(type(reply)):
        value = getattr(reply, field.name)
        if field.name in ("api_version", "kind") or value is msgspec.UNSET:
            continue
        if isinstance(value, (list, tuple)):
            if value:
                lists.append(list_section(field.name, value, title=_words(field.name)))
        elif isinstance(value, dict):
            rows = [(str(key), _format_value(item)) for key, item in value.items()]
            if rows:
                title = _words(field.name)
                lists.append(table_section(field.name, ("", ""), rows, title=title))
        else:
            plain.append((_words(field.name), _format_value(value)))
    facts = [table_section("facts", ("", ""), plain)] if plain else []
    return (*facts, *lists)


def list_section(name: str, values: Sequence[object], *, title: str = "") -> Section:
    """Return values of one type as a table, Structs with a column for each field."""
    if isinstance(values[0], msgspec.Struct):
        names = type(values[0]).__struct_fields__
        rows = [[_format_value(getattr(value, n)) for n in names] for value in values]
        return table_section(name, [heading_words(n) for n in names], rows, title=title)
    return table_section(name, ("",), [(_format_value(value),) for value in values], title=title)


def _words(name: str) -> str:
    """Return the name of a field as words: ``Node pool``."""
    return name.replace("_", " ").capitalize()


def _format_fields(value: msgspec.Struct) -> str:
    shown = ((name, _format_value(getattr(value, name))) for name in value.__struct_fields__)
    return ", ".join(f"{_words(name).lower()} {text}" for name, text in shown if text)


def _format_value(value: object) -> str:
    """Return a value of a field as text, a Struct by its fields."""
    match value:
        case None | msgspec.UNSET:
            return ""
        case bool():
            return "yes" if value else "no"
        case float():
            return f"{value:g}"
        case datetime():
            return format_time(value)
        case msgspec.Struct():
            return _format_fields(value)
        case list() | tuple():
            return ", ".join(map(_format_value, value))
    return str(value)


def render_page(title: str, sections: Sequence[Section], output: str) -> str:
    """Return sections as one of ``PAGES``.

    The first one is what the page begins with if it has no other title than the page.
    """
    sections = [_with_page_titles(section) for section in _with_lead(title, sections)]
    match output:
        case "html":
            from reconciler.render.html import render_lead, render_section
            from reconciler.render.page import el, page, report_page

            if sections and sections[0].is_lead:
                body = map(render_section, sections[1:])
                return report_page(title, "", render_lead(sections[0]), *body)
            return page(title, el("h1", title), *map(render_section, sections))
        case "markdown":
            from reconciler.render.markdown import MarkdownSections, SectionLimits

            paint = MarkdownSections(SectionLimits(rows=200, folded=200, cell=400, chart=False))
            parts = [part for section in sections for part in paint.parts(section)]
            return "\n\n".join([f"### {markdown_text(title)}", *parts]) + "\n"
    raise ValueError(output)


def _with_lead(title: str, sections: Iterable[Section]) -> Iterator[Section]:
    """Yield the sections, the first one without the title or name that the page has already."""
    for number, section in enumerate(sections):
        if not number and section.is_facts and section.rows and _repeats(title, section.rows[0]):
            yield replace(section, rows=section.rows[1:])
            continue
        if number or section.title != title or not section.is_plain_list:
            yield section
            continue
        note = section.note[:1].upper() + section.note[1:]
        texts = (note, *(text_of(row.cells[0]) for row in section.rows))
        yield text_section(section.key, "", filter(None, texts))


def _repeats(title: str, row: SectionRow) -> bool:
    """Return whether a title ends with the value of this row."""
    return title.endswith(f" {text_of(row.cells[1])}")


def _with_page_titles(section: Section) -> Section:
    """Return a section with the titles of its columns as a page shows them."""
    heads = (
        replace(c, title=heading_words(c.title)) if c.title.isupper() else c
        for c in section.columns
    )
    return replace(section, columns=tuple(heads))


def table_section(
    key: str,
    header: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    title: str = "",
    end: str = "",
) -> Section:
    """Return a table of texts as a section, with a line below it in ``end``.

    A column with nothing but amounts, counts and shares is numeric.
    """
    cells = (SectionRow(cells=tuple(map(Text, row))) for row in rows)
    columns = (
        Column(head, numeric=is_numeric([row[place] for row in rows]))
        for place, head in enumerate(header)
    )
    return Section(key=key, title=title, columns=tuple(columns), rows=tuple(cells), end=end)


def is_numeric(texts: Sequence[str]) -> bool:
    """Return whether texts are amounts, counts and shares, such as those of a column."""
    return any(texts) and all(not text or _NUMBER.fullmatch(text) for text in texts)


def text_section(key: str, title: str, texts: Iterable[str], note: str = "") -> Section:
    """Return texts as a section, a line for each."""
    rows = tuple(SectionRow(cells=(Text(text),)) for text in texts)
    return Section(key=key, title=title, note=note, columns=(Column(""),), rows=rows)


def document_of(reply: object) -> Any:
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
    note = f" {one_line(section.note)}" if section.note else ""
    title = f"{one_line(section.title)}:{note}\n" if section.title else ""
    end = f"{section.end}\n" if section.end else ""
    indent = _INDENT if title else 0
    if isinstance(section.figure, Verbatim):
        lines = escape_invisible(section.figure.text).split("\n")
        end = "".join(f"{' ' * indent}{line}\n" for line in lines) + end
    if section.is_list:
        return f"{title}{_list_text(section.rows, indent)}{end}"
    return f"{title}{_columns_text(section, indent, colour=colour)}{end}"


def _columns_text(section: Section, indent: int, *, colour: bool) -> str:
    rows = [[text_of(cell) for cell in row.cells] for row in section.rows]
    heads = [column.title.upper() for column in section.columns]
    tones: list[Tone] = [
        cell.tone if isinstance(cell := row.cells[0], Text) else "" for row in section.rows
    ]
    if any(heads):
        rows, tones = [heads, *rows], ["", *tones]
    align = "".join(">" if column.numeric else "<" for column in section.columns)
    return columns(rows, indent=indent, tones=tones if colour else (), align=align)


def _list_text(rows: Iterable[SectionRow], indent: int) -> str:
    """Return rows of one cell, each with its lines below it; the spaces in them stay."""
    texts: list[tuple[int, str]] = []
    for row in rows:
        texts.append((indent, text_of(row.cells[0])))
        texts += [(indent + _INDENT, " ".join(map(text_of, line.cells))) for line in row.lines]
    return "".join(
        f"{' ' * room}{escape_invisible(' '.join(text.splitlines())) or '-'}\n"
        for room, text in texts
    )
