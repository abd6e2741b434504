"""What is wrong with the text of a snapshot, and where; computed only if something is."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from reconciler.model.decode import describe_mismatch
from reconciler.model.errors import UnreadableError
from reconciler.model.text.quoting import quote_value

CAPTURE: Final = "capture it with `reconciler snapshot` or `kubectl get … -A -o json`"
_BYTE: Final = re.compile(r" \(byte (\d+)\)")

_UTF16: Final = ("UTF-16, as PowerShell writes it", "save it as UTF-8")
_FORMS: Final = {
    b"\x1f\x8b": ("compressed with gzip", "decompress it with gunzip"),
    b"\xff\xfe": _UTF16,
    b"\xfe\xff": _UTF16,
}
"""The first bytes of files that are not text in UTF-8, what they are, and what to do."""


class SnapshotText:
    """The text of a snapshot, in which objects are located in their order.

    Each is searched from the one before it: from the beginning, many objects that cannot be read
    would take the square of their number. A text that is not JSON has no positions, because the
    objects in it were converted.
    """

    def __init__(self, source: str, content: bytes) -> None:
        self.source = source
        self._content = content if content.lstrip().startswith(b"{") else b""
        self._at, self._line, self._column = 0, 1, 1

    def place(self, number: int) -> SnapshotPlace:
        """Return the object ``number``, from 1."""
        return SnapshotPlace(number, self)

    def locate(self, raw: bytes | msgspec.Raw) -> str:
        """Return ``file:line:column`` of an object, otherwise the file alone.

        If several objects in a row are equal, it is the position of the first.
        """
        at = self._content.find(bytes(raw), self._at)
        if at < 0:
            return self.source
        self._line += self._content.count(b"\n", self._at, at)
        start = self._content.rfind(b"\n", self._at, at) + 1
        before = self._content[start or self._at : at].decode("utf-8", "replace")
        self._column = len(before) + (1 if start else self._column)
        self._at = at
        return f"{self.source}:{self._line}:{self._column}"


@dataclass(frozen=True, slots=True)
class SnapshotPlace:
    """The object ``number`` (from 1) of a snapshot."""

    number: int
    text: SnapshotText

    def locate(self, raw: bytes | msgspec.Raw) -> str:
        """Return ``file:line:column`` of the object in the text, otherwise the file alone."""
        return self.text.locate(raw)


def format_position(source: str, content: bytes, at: int) -> str:
    """Return ``file:line:column`` of a byte, both from 1; columns count characters."""
    line = content.count(b"\n", 0, at) + 1
    start = content.rfind(b"\n", 0, at) + 1
    column = len(content[start:at].decode("utf-8", "replace")) + 1
    return f"{source}:{line}:{column}"


def expect_utf8(source: str, content: bytes) -> None:
    """Refuse JSON that is not UTF-8: a decoder finds that out only where it reads the text.

    Raises:
        UnreadableError: a byte is none of UTF-8.
    """
    try:
        content.decode()
    except UnicodeDecodeError as error:
        at = error.start
        raise UnreadableError(
            f"not a snapshot: byte 0x{content[at]:02x} is not UTF-8",
            where=format_position(source, content, at),
            remedy="save it as UTF-8",
        ) from error


def json_error_position(source: str, content: bytes, error: Exception) -> tuple[str, str]:
    """Return the position of an error in JSON, and the error without the number of the byte.

    For text that ends too early, the position is its end.
    """
    message = str(error)
    found = _BYTE.search(message)
    if found is not None:
        offset = len(content) - len(content.lstrip())
        return format_position(source, content, offset + int(found[1])), _BYTE.sub("", message)
    if "truncated" in message:
        return format_position(source, content, len(content.rstrip())), message
    return source, describe_mismatch(error)


def yaml_error_position(source: str, error: Exception) -> tuple[str, str]:
    """Return the position of an error in YAML, and the error in one line."""
    mark: Any = getattr(error, "problem_mark", None)
    message = getattr(error, "problem", None) or str(error).splitlines()[0]
    if mark is None:
        return source, str(message)
    return f"{source}:{mark.line + 1}:{mark.column + 1}", str(message)


def expect_plain(text: bytes, source: str) -> None:
    """Refuse what is compressed, or text in another encoding than UTF-8.

    Raises:
        UnreadableError: it is one of these.
    """
    for start, (form, remedy) in _FORMS.items():
        if text.startswith(start):
            raise UnreadableError(f"the snapshot is {form}", where=source, remedy=remedy)


def no_list_error(kind: str, source: str) -> UnreadableError:
    """Return the error of a text without a List of objects; ``kind`` is that of its only one."""
    found = f"a single object of kind {quote_value(kind)}" if kind else "no Kubernetes object"
    if kind == "List":
        found = "a List without items"
    return UnreadableError(
        f"not a snapshot: expected a List of objects, found {found}",
        where=source,
        remedy=CAPTURE,
    )
