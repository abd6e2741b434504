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


def apply_replacements(content: bytes, replacements: Sequence[Replacement]) -> bytes:
    """Return the content of a file with ``replacements``, which are of documents parsed from it.

    Raises:
        RewriteError: a value is shared through an alias, or is not written as one word.
    """
    text = content.decode()
    bom = _BOM if text.startswith(_BOM) else ""
    body = text.removeprefix(_BOM)
    if any(replacement.document.text != body for replacement in replacements):
        raise RewriteError("it has characters beyond 16 bits as JSON escapes")
    for start, end, word in sorted(
        {e for replacement in replacements for e in _token_edits(replacement)}, reverse=True
    ):
        body = body[:start] + word + body[end:]
    result = (bom + body).encode()
    _check_result(content, result, replacements)
    return result


def _token_edits(replacement: Replacement) -> Iterator[tuple[int, int, str]]:
    """Yield the tokens to replace: their start and end in the text, and the new word."""
    if replacement.key:
        yield _token_edit(replacement, replacement.key, of_key=True)
    yield _token_edit(replacement, replacement.value, of_key=False)


def _token_edit(replacement: Replacement, word: str, *, of_key: bool) -> tuple[int, int, str]:
    start, line_end = replacement.document.token(replacement.pointer, of_key=of_key)
    match = _TOKEN.match(replacement.document.text, start, line_end)
    if match is None:
        raise RewriteError(f"{field_path(replacement.pointer)} is not written as one word")
    quote = match[0][0] if match[0][0] in "\"'" else ""
    return start, match.end(), f"{quote}{word}{quote}"


def _check_result(before: bytes, after: bytes, replacements: Sequence[Replacement]) -> None:
    """Check that the data of the two contents differs only by the replacements."""
    old, _ = parse_documents("", before)
    new, findings = parse_documents("", after)
    expected = [document.data for document in old]
    places = {document.mark[:2]: n for n, document in enumerate(old)}
    for replacement in replacements:
        number = places[replacement.document.mark[:2]]
        expected[number] = replace_value(
            expected[number], replacement.pointer, replacement.value, replacement.key
        )
    if findings or [document.data for document in new] != expected:
        raise RewriteError("a value is shared through an alias, or written in more than one word")


def replace_value(data: object, pointer: Pointer, value: object, key: str = "") -> object:
    """Return a copy of ``data`` with ``value`` at ``pointer``, in a field renamed to ``key``."""
    if not pointer:
        return value
    step, below = pointer[0], pointer[1:]
    if isinstance(data, list):
        return [replace_value(v, below, value, key) if i == step else v for i, v in enumerate(data)]
    assert isinstance(data, dict), "the pointer leads to a field"
    name = key if key and not below else step
    return {
        (name if k == step else k): (replace_value(v, below, value, key) if k == step else v)
        for k, v in data.items()
    }
