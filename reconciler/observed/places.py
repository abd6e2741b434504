"""Where in a snapshot something is wrong: worked out only when there is something to say."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    import msgspec

_BYTE: Final = re.compile(r" \(byte (\d+)\)")


@dataclass(frozen=True, slots=True)
class Place:
    """The object ``number`` (from 1) of a snapshot, ``content`` being its whole text."""

    source: str
    content: bytes
    number: int

    def of(self, raw: bytes | msgspec.Raw) -> str:
        """Return ``file:line:column`` of an object as it stands in the text, else the file alone.

        Of several that are equal it is the first. What was YAML has no place here: its text is not
        the JSON that it became.
        """
        at = self.content.find(bytes(raw))
        return self.source if at < 0 else at_byte(self.source, self.content, at)


def at_byte(source: str, content: bytes, at: int) -> str:
    """Return ``file:line:column`` of a byte, both from 1; columns count characters."""
    line = content.count(b"\n", 0, at) + 1
    start = content.rfind(b"\n", 0, at) + 1
    column = len(content[start:at].decode("utf-8", "replace")) + 1
    return f"{source}:{line}:{column}"


def json_place(source: str, content: bytes, error: Exception) -> tuple[str, str]:
    """Return where JSON is not JSON, and what is wrong there without the number of the byte.

    Text that ends too early is wrong at its end.
    """
    said = str(error)
    found = _BYTE.search(said)
    if found is not None:
        offset = len(content) - len(content.lstrip())
        return at_byte(source, content, offset + int(found[1])), _BYTE.sub("", said)
    if "truncated" in said:
        return at_byte(source, content, len(content.rstrip())), said
    return source, said


def yaml_place(source: str, error: Exception) -> tuple[str, str]:
    """Return where YAML is not YAML, and what is wrong there in one line."""
    mark: Any = getattr(error, "problem_mark", None)
    said = getattr(error, "problem", None) or str(error).splitlines()[0]
    if mark is None:
        return source, str(said)
    return f"{source}:{mark.line + 1}:{mark.column + 1}", str(said)
