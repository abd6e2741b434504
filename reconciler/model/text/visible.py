r"""Filters for untrusted text: it is shown, and has no effect on the terminal.

Names, labels, messages and file names come from repositories, clusters and AWS. A terminal, a CI
log, a comment and a page each read some characters as commands. This module holds one filter for
each of these readers; ``notifications/stream.py`` applies the first one to all that a command
writes.

The escapes have the form of JSON (``\u001b``). So the filter of a terminal changes what JSON text
looks like and not what it means.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final

ZERO_WIDTH: Final = "&#8203;"
"""A zero-width space as Markdown and HTML spell it: it breaks a word for a parser, not the eye."""

DECEPTIVE: Final = re.compile(
    "["
    "\x00-\x09\x0b-\x1f\x7f-\x9f"  # control characters but the newline
    "\xad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u3164\uffa0"  # without a width
    "\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb"  # the same, and directions
    "\ufe00-\ufe0f\U0001bca0-\U0001bca3\U0001d173-\U0001d17a"  # variants of characters
    "\U000e0000-\U000e0fff"  # tags
    "\ud800-\udfff"  # halves of characters, which no encoding can write
    "]"
)
"""The characters that a reader does not see, or that change how other text is shown."""
_COMMAND_AT_START: Final = re.compile(r"\n(?:\x1b\[[0-9;]*m|[^\S\n])*::")
_COMMAND_ANYWHERE: Final = re.compile(r"##(?:\x1b\[[0-9;]*m|[A-Za-z])*\[")
_STYLE: Final = re.compile(r"(\x1b\[[0-9;]*m)")

_SPECIAL: Final = frozenset("&<>|`*_~[]\\@#$!^")
_REFERENCE: Final = re.compile(
    r"(?P<whole>\$(?=[0-9][0-9,]*(?:\.[0-9]+)?(?![\w$\\{^]))"  # an amount of money
    r"|(?<=\w)@(?=[\w-]+(?![\w.-])))"  # a version
    r"|(?P<sign>[@#!$%^&~*](?=[\w\"{]))"  # a person, a team, an issue, a merge request, a label, …
    r"|(?P<gh>\bGH-(?=[0-9]))|(?P<gl>\[(?=[a-z_]+:))"
    r"|(?P<scheme>:(?=//))|(?P<www>\bww(?=w\.))"
    r"|(?P<name>(?<![\w./-])(?!(?:i|ami|subnet|sg)-)"  # a name that ends with the suffix of one
    r"(?:\w{1,63}[./-]){1,20}[0-9a-f]{7,40}(?![\w]))"
    r"|(?<!\w)(?<!\bi-)(?<!\bami-)(?<!\bsubnet-)(?<!\bsg-)(?P<commit>[0-9a-f]{7,40})(?!\w)",
    re.ASCII | re.IGNORECASE,
)


class Painted(str):
    """Lines with our own colours: escape sequences that set a style are intended.

    Untrusted text must have been filtered before one is created.
    """

    __slots__ = ()


class Annotations(str):
    """Lines that are commands of a workflow on purpose; untrusted text in them is escaped."""

    __slots__ = ()


def escape_invisible(text: str) -> str:
    """Return text whose control, direction and zero-width characters are written as escapes.

    Newlines stay.
    """
    return DECEPTIVE.sub(lambda match: _escape(match[0]), text)


def encodable(path: str) -> str:
    """Return a path that can be written as UTF-8: bytes of a name that are not become U+FFFD."""
    return path.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


def one_line(text: str) -> str:
    """Return visible text on one line, its runs of white space as one space."""
    return escape_invisible(" ".join(text.split()))


def neutralize(text: str, line: str = "") -> str:
    """Return text that is safe in a terminal or a log: visible, and without workflow commands.

    ``line`` has already been written on the current line. GitHub Actions reads ``::name::`` at the
    start of a line and ``##[name]`` anywhere, Azure Pipelines ``##vso[name]``, TeamCity
    ``##teamcity[name]``. The last character of such a prefix is escaped.
    """
    if isinstance(text, Painted):
        pieces = _STYLE.split(text)
        pieces[::2] = map(escape_invisible, pieces[::2])
        safe = "".join(pieces)
    else:
        safe = escape_invisible(text)
    if isinstance(text, Annotations):
        return safe
    preceding = f"\n{line}"
    safe = preceding + safe
    for mark, pattern in (("::", _COMMAND_AT_START), ("##", _COMMAND_ANYWHERE)):
        if mark in safe:
            safe = pattern.sub(_last_character_escaper(len(preceding)), safe)
    return safe[len(preceding) :]


def _last_character_escaper(offset: int) -> Callable[[re.Match[str]], str]:
    """Return a function that escapes the last character of a match ending beyond ``offset``."""

    def escape_last(match: re.Match[str]) -> str:
        return match[0] if match.end() <= offset else f"{match[0][:-1]}{_escape(match[0][-1])}"

    return escape_last


def _escape(character: str) -> str:
    number = ord(character)
    if number < 0x10000:
        return f"\\u{number:04x}"
    high, low = divmod(number - 0x10000, 0x400)
    return f"\\u{0xD800 + high:04x}\\u{0xDC00 + low:04x}"


def html_text(text: str) -> str:
    """Return text that an HTML page shows unchanged, also within a quoted attribute."""
    from html import escape  # a table of all entities, which is not needed to start

    return escape(escape_invisible(text))


_BREAK, _CODE, _CODE_END = "\ue000", "\ue001", "\ue002"
"""Characters for private use that represent ``ZERO_WIDTH`` and tags until the rest is escaped."""
_ENTITIES: Final = {
    **{c: f"&#{ord(c)};" for c in _SPECIAL},
    _BREAK: ZERO_WIDTH,
    _CODE: "<code>",
    _CODE_END: "</code>",
}
_NO_MARKS: Final = str.maketrans(dict.fromkeys((_BREAK, _CODE, _CODE_END), "\ufffd"))


def markdown_text(text: str) -> str:
    """Return text that Markdown shows unchanged, on one line, also in a cell of a table.

    It is neither markup nor HTML, links nowhere, and mentions nobody: an entity alone would not
    hinder that, because GitHub and GitLab look for people, issues and commits in what it stands
    for. A zero-width space does. What is copied has none: no forge takes amounts and versions for
    anything else. A commit is shown as code, in which forges look for nothing, and so is a name
    with a part that looks like one.
    """
    line = one_line(text).translate(_NO_MARKS)
    broken = _REFERENCE.sub(_break_reference, line)
    shown = "".join(_ENTITIES.get(c, c) for c in broken)
    # at the start of a line, GitLab and many bots read a command, such as /approve
    return f"&#47;{shown[1:]}" if shown.startswith("/") else shown


def _break_reference(match: re.Match[str]) -> str:
    """Insert a break after the start of a reference; show a commit as code."""
    text = match[0]
    if match["whole"] is not None:
        return text
    if match["commit"] is None and match["name"] is None:
        return f"{text}{_BREAK}"
    return f"{_CODE}{text}{_CODE_END}"


def markdown_code(text: str) -> str:
    """Return a name as code, in which Markdown reads nothing, also in a cell of a table.

    A code span cannot hold every character: parsers do not agree on backticks, bars and
    backslashes in the cell of a table. A name with one of them is escaped as text.
    """
    line = one_line(text)
    if not line:
        return ""
    if any(c in line for c in "`|\\"):
        return f"<code>{markdown_text(line)}</code>"
    return f"`{line}`"


_MERMAID: Final = str.maketrans(
    {
        "&": "#amp;",
        '"': "#quot;",
        "<": "#lt;",
        ">": "#gt;",
        **{c: f"#{ord(c)};" for c in "#`\\[]{}()|%;:@"},
    }
)


def mermaid_text(text: str) -> str:
    """Return text that a quoted label of a Mermaid chart shows unchanged, on one line."""
    return one_line(text).translate(_MERMAID)


def annotation_text(text: str) -> str:
    """Return text as the message of a GitHub workflow command."""
    return escape_invisible(text).replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def annotation_property(text: str) -> str:
    """Return text as a property of a GitHub workflow command."""
    return annotation_text(text).replace(":", "%3A").replace(",", "%2C")
