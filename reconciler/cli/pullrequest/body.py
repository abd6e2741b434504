"""The text of a comment: a hidden marker that identifies the fleet, and what fits below it."""

from __future__ import annotations

import re
from hashlib import sha256
from typing import Final, NamedTuple

from reconciler.plan.value.plan import Plan

_RESERVE: Final = 600
"""Room for the notice and the tags that are closed."""

_FENCE: Final = re.compile(r"^\s*(```+|~~~+)")
_OPEN: Final = re.compile(r"<details(?:\s[^>]*)?>|</details>", re.IGNORECASE)
_BLOB: Final = re.compile(r"[^A-Za-z0-9._-]+")


class Draft(NamedTuple):
    """A comment before it is posted: its marker, and its Markdown."""

    marker: str
    text: str

    def body(self, characters_max: int, more: str) -> str:
        """Return the comment; where the text is too long, ``more`` says where all of it is."""
        return f"{self.marker}\n{shortened(self.text, characters_max - len(self.marker), more)}"


def marker_of(fleet: str, folder: str = "") -> str:
    """Return the hidden first line of a fleet's comment.

    The name is readable, and a digest of name and folder separates fleets whose names only differ
    in characters that a comment of HTML cannot hold.
    """
    digest = sha256(f"{fleet}\0{folder}".encode()).hexdigest()[:16]
    return f"<!-- reconciler {_BLOB.sub('-', fleet)[:63].replace('--', '-')} {digest} -->"


def draft_of_plan(plan: Plan) -> Draft:
    """Return the comment of a plan; every name in it is escaped by the renderer."""
    from reconciler.plan.render.markdown import render_markdown

    folder = plan.revision.path or ""
    return Draft(marker_of(plan.fleet, "" if folder == "." else folder), render_markdown(plan))


def shortened(text: str, characters_max: int, more: str) -> str:
    """Return at most ``characters_max`` characters, cut after a line, with what is open closed."""
    if _length(text) <= characters_max:
        return text
    kept: list[str] = []
    room = characters_max - _RESERVE
    for line in text.splitlines():
        room -= _length(line) + 1
        if room < 0:
            break
        kept.append(line)
    notice = "This comment is shortened: the complete plan has too many characters."
    tail = f"\n\n---\n{notice} {more}".rstrip() + "\n"
    return "\n".join(kept) + _closing(kept) + tail


def _closing(lines: list[str]) -> str:
    """Return what closes the code fence and the folds that lines leave open."""
    fence, folds = "", 0
    for line in lines:
        found = _FENCE.match(line)
        if found is not None:
            mark = found[1]
            if not fence:
                fence = mark
            elif mark.startswith(fence):
                fence = ""
        elif not fence:
            for tag in _OPEN.findall(line):
                folds += -1 if tag.startswith("</") else 1
    return (f"\n{fence}" if fence else "") + "\n\n</details>" * max(folds, 0)


def _length(text: str) -> int:
    """Return the number of characters as forges count them: a character beyond 16 bits is two."""
    return len(text) + sum(1 for c in text if ord(c) > 0xFFFF)
