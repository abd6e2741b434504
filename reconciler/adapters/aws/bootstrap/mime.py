"""Multi-part user data in the format of cloud-init."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from reconciler.model.errors import CloudError

NODE_CONFIG: Final = "application/node.eks.aws"
_EMPTY_LINE: Final = re.compile(r"^\r?\n", re.MULTILINE)
SHELL: Final = 'text/x-shellscript; charset="us-ascii"'


@dataclass(frozen=True, slots=True)
class MimePart:
    """One part: its content type and its text."""

    content_type: str
    body: str


def is_mime(text: str) -> bool:
    """Return whether user data is already multi-part, whichever header comes first."""
    return text.lstrip().startswith(("MIME-Version:", "Content-Type:"))


def parts_of(text: str) -> list[MimePart]:
    """Return the parts of multi-part user data, in order.

    They are cut as Go's ``mime/multipart`` cuts them, with which Karpenter reads user data: the
    first delimiter says how lines end, a line after the final delimiter does not count, and a part
    that is multi-part itself stays whole. Only ``quoted-printable`` is decoded.

    Raises:
        CloudError: a part has no end, or something else stands where a part should begin.
    """
    import quopri
    from email.parser import HeaderParser

    text = text.lstrip()
    message = HeaderParser().parsestr(text)
    boundary = message.get_param("boundary")
    if not message.get_content_type().startswith("multipart/") or not isinstance(boundary, str):
        return [MimePart(message.get("Content-Type", "text/plain"), str(message.get_payload()))]
    parts = []
    for part in _cut(_body(text), f"--{boundary}"):
        header = HeaderParser().parsestr(part)
        body = _body(part)
        if header.get("Content-Transfer-Encoding", "").lower() == "quoted-printable":
            body = quopri.decodestring(body.encode()).decode("utf-8", "replace")
        parts.append(MimePart(header.get("Content-Type", ""), body))
    return parts


def _body(text: str) -> str:
    """Return what follows the first empty line."""
    empty = _EMPTY_LINE.search(text)
    return text[empty.end() :] if empty else ""


def _cut(text: str, dashes: str) -> Iterator[str]:
    """Yield the parts of a multi-part body, each with its header."""
    delimiter = re.compile(rf"{re.escape(dashes)}[ \t]*(\r?\n)")
    begin = next((found for found in delimiter.finditer(text) if _begins_line(text, found)), None)
    if begin is None:
        if not re.search(rf"^{re.escape(dashes)}--[ \t]*\r?$", text, re.MULTILINE):
            raise _unreadable("it has no part")
        return
    line_end = begin[1]
    ending = re.compile(rf"{line_end}{re.escape(dashes)}(?=[ \t\r\n]|--|\Z)")
    following = re.compile(rf"{re.escape(dashes)}(?:(--)[ \t]*(?:{line_end}|\Z)|[ \t]*{line_end})")
    at = begin.end()
    while True:
        header = re.compile(r"\r?\n").match(text, at - 1) or re.compile(r"\r?\n\r?\n").search(
            text, at
        )
        first = header.end() if header else at
        if text.startswith(dashes, first):  # an empty body needs no line of its own
            end, resume = first, first
        else:
            found = ending.search(text, first)
            if found is None:
                raise _unreadable(f"the part in line {text.count(chr(10), 0, at) + 1} has no end")
            end, resume = found.start(), found.start() + len(line_end)
        yield text[at:end]
        next_one = following.match(text, resume)
        if next_one is None and "\n" not in text[resume:]:
            return  # what is left of a line does not count
        if next_one is None:
            raise _unreadable(f"a part should begin at {text[resume : resume + 40]!r}")
        if next_one[1]:
            return
        at = next_one.end()


def _begins_line(text: str, found: re.Match[str]) -> bool:
    return found.start() == 0 or text[found.start() - 1] == "\n"


def _unreadable(why: str) -> CloudError:
    return CloudError(
        f"the multi-part user data cannot be read: {why}",
        where="spec.userData",
    )


def compose(parts: list[MimePart]) -> str:
    """Return the multi-part text; the boundary is ``//``, as in EKS' own tools."""
    head = 'MIME-Version: 1.0\nContent-Type: multipart/mixed; boundary="//"\n\n'
    body = "".join(
        f"--//\nContent-Type: {part.content_type}\n\n{part.body.rstrip()}\n\n" for part in parts
    )
    return f"{head}{body}--//--\n".replace("\r", "")
