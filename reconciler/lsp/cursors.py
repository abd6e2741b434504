"""What a position in a text stands for: a field of an object, also in a text that is unfinished.

A text is rarely valid YAML while somebody types. For completion, the word at the cursor is replaced
by a marker, and the line is completed in a few ways until a parser finds the marker in it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from reconciler.lsp.positions import TextLines
from reconciler.model.json import as_mapping, as_text
from reconciler.source.document import Document, Mark, Pointer, parse_documents
from reconciler.source.objects import Entry, entries
from reconciler.source.resource import CONFIG_FILES, is_ours, schema_name
from reconciler.source.schema import Schema, load_schema, resolve_reference, value_at

TEXT_MAX: Final = 64 * 1024
"""Characters of a document in which words are completed: it is parsed up to ten times."""
_MARKER: Final = "reconcilercursor0"
_SEPARATOR: Final = re.compile(r"^---", re.MULTILINE)
_DELIMITERS: Final = " \t,[]{}\"'"
_CLOSINGS: Final = ("", "]", "}", "}]")


class Cursor(NamedTuple):
    """The field at a cursor: its object, its pointer there, and whether a key is being written.

    ``pointer`` of a key is that of its mapping. ``start`` and ``end`` are the offsets of the word
    that a completion replaces. ``has_value`` is whether a value follows the key.
    """

    entry: Entry
    pointer: Pointer
    is_key: bool
    start: int
    end: int
    has_value: bool = False


def find_cursor(path: str, lines: TextLines, offset: int) -> Cursor | None:
    """Return what is being written at an offset, None if that is not known."""
    text = lines.text
    begin, line_end = lines.line_start(offset), lines.line_end(offset)
    first, last = _document_bounds(text, begin, line_end)
    if last - first > TEXT_MAX:
        return None
    start, end = _word(text, begin, offset, line_end)
    above, below = text[first:begin], text[line_end:last]
    has_value = text[end:line_end].startswith(":")
    for line in _completed_lines(text[begin:start], text[end:line_end], has_value=has_value):
        for body in (above + line + below, above + line):
            found = _find_in(path, body)
            if found is not None:
                entry, pointer, is_key = found
                return Cursor(entry, pointer, is_key, start, end, has_value)
    return None


def _document_bounds(text: str, begin: int, line_end: int) -> tuple[int, int]:
    starts = [0, *(match.start() for match in _SEPARATOR.finditer(text)), len(text)]
    first = max(at for at in starts if at <= begin)
    return first, min(at for at in starts if at >= line_end)


def _word(text: str, begin: int, offset: int, line_end: int) -> tuple[int, int]:
    """Return where the word at the cursor starts and ends."""
    start = offset
    while start > begin and text[start - 1] not in _DELIMITERS:
        start -= 1
    end = offset
    while end < line_end and text[end] not in _DELIMITERS and not _is_colon(text, end, line_end):
        end += 1
    return start, end


def _is_colon(text: str, at: int, line_end: int) -> bool:
    return text[at] == ":" and (at + 1 >= line_end or text[at + 1] in " \t")


def _completed_lines(before: str, after: str, *, has_value: bool) -> Iterator[str]:
    """Yield the line with the marker, in the ways in which it may be meant."""
    quote = before[-1:]
    if quote in ("'", '"') and before.count(quote) % 2:
        before, after = before[:-1], after.removeprefix(quote)
    if not before.strip(" \t-"):
        yield f"{before}{_MARKER}{after}" if has_value else f"{before}{_MARKER}:"
        yield f"{before}{_MARKER}"
        return
    yield f"{before}{_MARKER}{after}"
    for closing in _CLOSINGS:
        yield f"{before}{_MARKER}{closing}"


def _find_in(path: str, body: str) -> tuple[Entry, Pointer, bool] | None:
    if "\t" in body[: len(body) - len(body.lstrip())]:
        return None
    documents, _ = parse_documents(path, body.encode("utf-8", "surrogatepass"))
    for document in documents:
        found = _find_marker(document.data, ())
        if found is not None:
            pointer, is_key = found
            entry = entry_at(document, pointer)
            return entry, pointer[len(entry.base) :], is_key
    return None


def _find_marker(data: object, above: Pointer) -> tuple[Pointer, bool] | None:
    if data == _MARKER:
        return above, False
    items: Sequence[tuple[str | int, object]] = ()
    if isinstance(data, dict):
        if _MARKER in data:
            return above, True
        items = list(data.items())
    elif isinstance(data, list):
        items = list(enumerate(data))
    for step, value in items:
        found = _find_marker(value, (*above, step))
        if found is not None:
            return found
    return None


def entry_at(document: Document, pointer: Pointer) -> Entry:
    """Return the object of a document that a pointer leads into; a List has several."""
    whole = Entry(document, (), document.data, *_header(document.data))
    if document.file in CONFIG_FILES:
        return Entry(document, (), document.data)
    inside = [e for e, _ in entries(document) if pointer[: len(e.base)] == e.base]
    best = max(inside, key=lambda e: len(e.base), default=whole)
    return best if best.kind else Entry(document, best.base, best.data, *_header(best.data))


def _header(data: object) -> tuple[str, str]:
    texts = [data.get(field) if isinstance(data, dict) else "" for field in ("kind", "apiVersion")]
    kind, version = (as_text(text) for text in texts)
    return kind, version


def field_at(documents: Sequence[Document], lines: TextLines, offset: int) -> Cursor | None:
    """Return the field whose key or value is at an offset of a valid text."""
    best: tuple[int, int] | None = None
    found: tuple[Document, Pointer, bool] | None = None
    begin = lines.line_start(offset)
    for document in documents:
        for pointer, line, column, is_key in _starts(document.mark, ()):
            start = lines.offset(line, column)
            rank = (start, len(pointer))
            if begin <= start <= offset and (best is None or rank > best):
                best, found = rank, (document, pointer, is_key)
    if best is None or found is None:
        return None
    document, pointer, is_key = found
    entry, word = entry_at(document, pointer), lines.token(best[0])
    return Cursor(entry, pointer[len(entry.base) :], is_key, word.start, word.end)


def _starts(mark: Mark, above: Pointer) -> Iterator[tuple[Pointer, int, int, bool]]:
    """Yield each key and each value with its place; both have the pointer of the value."""
    line, column, parts = mark
    yield above, line, column, False
    if isinstance(parts, dict):
        for key, (at, below) in parts.items():
            yield (*above, key), *at, True
            yield from _starts(below, (*above, key))
    elif isinstance(parts, list):
        for index, below in enumerate(parts):
            yield from _starts(below, (*above, index))


def schema_of(entry: Entry) -> str | None:
    """Return the name of the schema of an object, None if it has none."""
    if entry.document.file in CONFIG_FILES:
        return "reconciler.v1"
    return schema_name(entry.kind) if is_ours(entry.api_version, entry.kind) else None


def node_at(name: str, pointer: Pointer) -> Schema:
    """Return the part of a schema for the value at a pointer, empty if it has none."""
    root = load_schema(name)
    node = resolve_reference(root, root)
    for step in pointer:
        if isinstance(step, int):
            below = node.get("items")
        else:
            below = node.get("properties", {}).get(step, node.get("additionalProperties"))
        if not isinstance(below, dict):
            return {}
        described = below
        node = resolve_reference(root, below)
        if "description" in described:
            node = {**node, "description": described["description"]}
    return node


def data_at(cursor: Cursor) -> Mapping[str, object]:
    """Return the mapping at the cursor, empty if there is none."""
    return as_mapping(value_at(cursor.entry.data, cursor.pointer))
