"""Replace scalars in the text of a YAML or JSON file; every other byte stays as it is.

The tokens are replaced where ruamel.yaml's parser reports them. Its round trip would write the
complete file again: it preserves comments and quotes, but not the layout of lines. The result is
parsed again, and counts only if it has the intended data and nothing else has changed.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from reconciler.source.document import Document, Pointer, parse_documents
from reconciler.source.finding import field_path

_TOKEN: Final = re.compile(r"\"(?:[^\"\\]|\\.)*\"|'(?:[^']|'')*'|[^\s,\[\]{}#:\"'&*!|>%@`]+")
_BOM: Final = "\ufeff"


class RewriteError(ValueError):
    """The text cannot be rewritten without changing something else; the message has the reason."""


class Replacement(NamedTuple):
    """A scalar value at ``pointer`` in a document that becomes ``value``.

    ``key`` is the new name of the field, empty to keep it. Both are plain words.
    """

    document: Document
    pointer: Pointer
    value: str
    key: str = ""


def rewritten(content: bytes, replacements: Sequence[Replacement]) -> bytes:
    """Return the content of a file with ``replacements``, which are of documents parsed from it.

    Raises:
        RewriteError: a value is shared through an alias, or is not written as one word.
    """
    text = content.decode()
    bom = _BOM if text.startswith(_BOM) else ""
    body = text.removeprefix(_BOM)
    if any(one.document.text != body for one in replacements):
        raise RewriteError("it has characters beyond 16 bits as JSON escapes")
    for start, end, word in sorted({e for one in replacements for e in _edits(one)}, reverse=True):
        body = body[:start] + word + body[end:]
    result = (bom + body).encode()
    _expect(content, result, replacements)
    return result


def _edits(one: Replacement) -> Iterator[tuple[int, int, str]]:
    """Yield the tokens to replace: their start and end in the text, and the new word."""
    if one.key:
        yield _edit(one, one.key, of_key=True)
    yield _edit(one, one.value, of_key=False)


def _edit(one: Replacement, word: str, *, of_key: bool) -> tuple[int, int, str]:
    start, line_end = one.document.token(one.pointer, of_key=of_key)
    match = _TOKEN.match(one.document.text, start, line_end)
    if match is None:
        raise RewriteError(f"{field_path(one.pointer)} is not written as one word")
    quote = match[0][0] if match[0][0] in "\"'" else ""
    return start, match.end(), f"{quote}{word}{quote}"


def _expect(before: bytes, after: bytes, replacements: Sequence[Replacement]) -> None:
    """Check that exactly the replacements separate the data of two contents."""
    old, _ = parse_documents("", before)
    new, findings = parse_documents("", after)
    wanted = [document.data for document in old]
    places = {document.mark[:2]: n for n, document in enumerate(old)}
    for one in replacements:
        number = places[one.document.mark[:2]]
        wanted[number] = _replaced(wanted[number], one.pointer, one)
    if findings or [document.data for document in new] != wanted:
        raise RewriteError("a value is shared through an alias, or written in more than one word")


def _replaced(data: object, pointer: Pointer, one: Replacement) -> object:
    step, *below = pointer
    if isinstance(data, list):
        return [_below(v, below, one) if i == step else v for i, v in enumerate(data)]
    assert isinstance(data, dict), "a replacement is at a field of the document"
    name = one.key if one.key and not below else step
    return {(name if k == step else k): (_below(v, below, one) if k == step else v)
            for k, v in data.items()}  # fmt: skip


def _below(value: object, pointer: list[str | int], one: Replacement) -> object:
    return _replaced(value, tuple(pointer), one) if pointer else one.value
