"""The lines of the fields of a document."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from reconciler.source.document import Document, Pointer


def lines_of_document(document: Document) -> dict[str, int]:
    """Return the line of each key of a document by its dotted path."""
    return {
        ".".join(map(str, pointer)): document.place(pointer, of_key=True).line
        for pointer in _keys(document.data, ())
    }


def _keys(data: object, above: Pointer) -> Iterator[Pointer]:
    if isinstance(data, Mapping):
        for key, value in data.items():
            yield (*above, str(key))
            yield from _keys(value, (*above, str(key)))
