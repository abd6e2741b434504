"""Lines of the fields of the files that hold no objects: the lock, and our own config."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

from reconciler.desired.document import Document, Pointer

_KEY: Final = re.compile(r'( *)"((?:[^"\\]|\\.)*)":')


def lines_of_lock(content: bytes) -> dict[str, int]:
    """Return the line of each field of a lock by its dotted path.

    They are read off the layout that `reconciler lock` writes. Of a file in another layout few
    are found; who asks for the others takes the first line.
    """
    found: dict[str, int] = {}
    above: list[str] = []
    for number, line in enumerate(content.decode("utf-8", "replace").splitlines(), 1):
        match = _KEY.match(line)
        if match is not None:
            depth = max(len(match[1]) // 2 - 1, 0)
            above = [*above[:depth], match[2]]
            found.setdefault(".".join(above), number)
    return found


def lines_of_document(document: Document) -> dict[str, int]:
    """Return the line of each key of a document by its dotted path."""
    return {
        ".".join(map(str, pointer)): document.place(pointer, of_key=True).line
        for pointer in _keys(document.data, ())
    }


def _keys(data: Any, above: Pointer) -> Iterator[Pointer]:
    if isinstance(data, Mapping):
        for key, value in data.items():
            yield (*above, str(key))
            yield from _keys(value, (*above, str(key)))
