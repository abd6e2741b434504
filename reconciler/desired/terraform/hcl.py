"""Reads as much of Terraform's language as is needed to find the text of Kubernetes objects.

The structure of blocks is read completely. Expressions are evaluated where they are literals,
references to variables and locals with known values, or calls of a few functions; what depends on
anything else stays as ``Unknown``, with its own text.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from reconciler.model.text.quoting import quote_value

DEPTH_MAX: Final = 60
BLOCKS_MAX: Final = 20_000

_SPACE: Final = re.compile(r"[ \t\r\n]+|#[^\n]*|//[^\n]*|/\*.*?\*/", re.DOTALL)
_COMMENT: Final = re.compile(r"/\*.*?(?:\*/|\Z)", re.DOTALL)
_COMMENTS: Final = ("#", "//", "/*")
_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_-]*")
_HEREDOC: Final = re.compile(r"<<(-?)([A-Za-z_][A-Za-z0-9_]*)[ \t]*\r?\n")

_PRECEDENCE: Final = {
    "||": 0,
    "&&": 1,
    "==": 2,
    "!=": 2,
    "<": 3,
    ">": 3,
    "<=": 3,
    ">=": 3,
    "+": 4,
    "-": 4,
    "*": 5,
    "/": 5,
    "%": 5,
}
_OPERATOR: Final = re.compile(r"\|\||&&|==|!=|<=|>=|<|>|\+|(?<=\s)-(?=\s)|\*|/(?![/*])|%")
_STEP: Final = re.compile(r"\.([A-Za-z_*][\w-]*)")
DIRECTIVE: Final = re.compile(r"%\{~?\s*+(if|else|endif|for|endfor)\b([^}%]*(?:%(?!\{)[^}%]*)*)\}")
"""A directive of a template: its name, and its condition or the header of its loop."""


class HclError(ValueError):
    """The text is not Terraform's language, or is nested too deeply."""


class Attribute(NamedTuple):
    """An expression as it is written, and the offset at which it starts."""

    text: str
    start: int


@dataclass
class HclBlock:
    """A block: its type, its labels, its attributes by name, and the blocks in it."""

    type: str = ""
    labels: tuple[str, ...] = ()
    attributes: dict[str, Attribute] = field(default_factory=dict)
    blocks: list[HclBlock] = field(default_factory=list)
    start: int = 0

    def text_of(self, name: str) -> str:
        """Return the expression of an attribute, empty if the block has no such attribute."""
        attribute = self.attributes.get(name)
        return attribute.text if attribute is not None else ""

    def inner(self, kind: str) -> Iterator[HclBlock]:
        """Yield the blocks of a type in this one."""
        return (block for block in self.blocks if block.type == kind)

    def every(self) -> Iterator[HclBlock]:
        """Yield this block and all blocks in it."""
        yield self
        for block in self.blocks:
            yield from block.every()


def parse_hcl(text: str) -> HclBlock:
    """Return the blocks of a file, in one block without a type.

    Raises:
        HclError: it cannot be read.
    """
    return _Parser(text).file()


class Heredoc(NamedTuple):
    """The lines of a heredoc and the offset of the first one; ``end`` is after its marker."""

    text: str
    start: int
    end: int


def heredoc_at(text: str, at: int) -> Heredoc | None:
    """Return the heredoc that starts at an offset; ``<<-`` removes the common indentation."""
    match = _HEREDOC.match(text, at)
    if match is None:
        return None
    close = re.compile(rf"^[ \t]*{re.escape(match[2])}[ \t]*\r?$", re.MULTILINE)
    end = close.search(text, match.end())
    if end is None:
        raise HclError(f"the heredoc {match[2]} has no end")
    body = text[match.end() : end.start()]
    return Heredoc(dedent(body) if match[1] else body, match.end(), end.end())


def dedent(text: str) -> str:
    """Return lines without their common indentation; empty lines do not count."""
    lines = text.split("\n")
    widths = [len(line) - len(line.lstrip(" \t")) for line in lines if line.strip()]
    least = min(widths, default=0)
    return "\n".join(line[least:] if line.strip() else line.strip() for line in lines)


def string_end(text: str, at: int) -> int:
    """Return the offset after the quoted string at an offset, with its interpolations.

    Raises:
        HclError: it does not end.
    """
    position = at + 1
    while position < len(text):
        char = text[position]
        if char == "\\":
            position += 2
        elif char == '"':
            return position + 1
        elif text.startswith(("${", "%{"), position) and text[position - 1] != text[position]:
            position = closing_end(text, position + 1)
        elif char == "\n":
            break
        else:
            position += 1
    raise HclError("a string does not end")


def closing_end(text: str, at: int, depth: int = 0) -> int:
    """Return the offset after the bracket that closes the one at an offset.

    Raises:
        HclError: there is none.
    """
    if depth > DEPTH_MAX:
        raise HclError(f"nested more than {DEPTH_MAX} levels deep")
    position = at + 1
    while position < len(text):
        char = text[position]
        if char in ")]}":
            return position + 1
        if char in "([{":
            position = closing_end(text, position, depth + 1)
        elif char == '"':
            position = string_end(text, position)
        elif char == "<" and (heredoc := heredoc_at(text, position)) is not None:
            position = heredoc.end
        else:
            position = space_end(text, position) or position + 1
    raise HclError("a bracket is not closed")


def offsets_outside(text: str, start: int = 0) -> Iterator[int]:
    """Yield the offsets of characters outside strings, brackets, heredocs and comments.

    Raises:
        HclError: one of them does not end.
    """
    return (at for at, end in _pieces(text, start) if end == at)


def find_outside(text: str, operator: str | tuple[str, ...], start: int = 0) -> int:
    """Return the offset of an operator outside brackets and strings, -1 if it is not there.

    Of several operators, it is that of the first one that occurs.
    """
    return next((at for at in offsets_outside(text, start) if text.startswith(operator, at)), -1)


def _pieces(text: str, start: int = 0) -> Iterator[tuple[int, int]]:
    """Yield the start and the end of what is enclosed, and twice the offset of other characters."""
    position = start
    while position < len(text):
        end = _enclosed_end(text, position)
        yield position, end
        position = max(end, position + 1)


def _enclosed_end(text: str, at: int) -> int:
    """Return the offset after what is enclosed from an offset on, or that offset."""
    char = text[at]
    if char == '"':
        return string_end(text, at)
    if char in "([{":
        return closing_end(text, at)
    heredoc = heredoc_at(text, at) if char == "<" else None
    if heredoc is not None:
        return heredoc.end
    return space_end(text, at) if text.startswith(_COMMENTS, at) else at


def split_operation(text: str) -> tuple[str, str, str] | None:
    """Return an operation as its left side, its operator and its right side; None if it is none.

    It is split at the last of the operators that bind the least, since they bind to the left.
    """
    best: tuple[int, int, str] | None = None
    after, begin = 0, len(text) - len(text.lstrip())
    for at in offsets_outside(text):
        match = _OPERATOR.match(text, at) if at >= after else None
        if match is None:
            continue
        after = match.end()
        rank = _PRECEDENCE[match[0]]
        if at > begin and (best is None or rank <= best[0]):
            best = (rank, at, match[0])
    if best is None:
        return None
    _, at, operator = best
    return text[:at].strip(), operator, text[at + len(operator) :].strip()


def split_items(text: str) -> list[str]:
    """Return the items of a list, an object or a call, without comments.

    They are between commas and, outside brackets, new lines.
    """
    items: list[list[str]] = [[]]
    for at, end in _pieces(text):
        if end == at and text[at] in ",\n":
            items.append([])
        elif not text.startswith(_COMMENTS, at):
            items[-1].append(text[at : max(end, at + 1)])
    return [item for item in ("".join(parts).strip() for parts in items) if item]


def space_end(text: str, at: int) -> int:
    """Return the offset after the white space or the comment at an offset, 0 if there is none.

    Raises:
        HclError: the comment does not end.
    """
    space = _SPACE.match(text, at)
    if space is not None:
        return space.end()
    if text.startswith("/*", at):
        raise HclError("a comment is not closed")
    return 0


class _Parser:
    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0
        self.blocks = 0

    def file(self) -> HclBlock:
        block = HclBlock()
        self._body(block, 0)
        if self.at < len(self.text):
            raise HclError("a bracket is not open")
        return block

    def _skip(self) -> None:
        while end := space_end(self.text, self.at):
            self.at = end

    def _body(self, block: HclBlock, depth: int) -> None:
        if depth > DEPTH_MAX:
            raise HclError(f"nested more than {DEPTH_MAX} levels deep")
        while True:
            self._skip()
            if self.at >= len(self.text) or self.text[self.at] == "}":
                return
            name = self._word()
            self._skip()
            if self.text.startswith("=", self.at):
                self.at += 1
                block.attributes[name] = self._expression()
                continue
            block.blocks.append(self._block(name, depth))

    def _block(self, name: str, depth: int) -> HclBlock:
        self.blocks += 1
        if self.blocks > BLOCKS_MAX:
            raise HclError(f"more than {BLOCKS_MAX} blocks")
        block = HclBlock(name, start=self.at)
        labels = []
        while self.at < len(self.text) and self.text[self.at] != "{":
            labels.append(self._word())
            self._skip()
        block.labels = tuple(labels)
        if self.at >= len(self.text):
            raise HclError("a block does not start")
        self.at += 1
        self._body(block, depth + 1)
        if self.at >= len(self.text):
            raise HclError("a block does not end")
        self.at += 1
        return block

    def _word(self) -> str:
        if self.text.startswith('"', self.at):
            end = string_end(self.text, self.at)
            word = self.text[self.at + 1 : end - 1]
            self.at = end
            return word
        match = _NAME.match(self.text, self.at)
        if match is None:
            raise HclError(f"{quote_value(self.text[self.at : self.at + 10])} is not a name")
        self.at = match.end()
        return match[0]

    def _expression(self) -> Attribute:
        while self.text[self.at : self.at + 1] in (" ", "\t"):
            self.at += 1
        start = self.at
        while self.at < len(self.text):
            char = self.text[self.at]
            if char in ("\n", "}"):
                break
            if char in "([{":
                self.at = closing_end(self.text, self.at)
            elif char == '"':
                self.at = string_end(self.text, self.at)
            elif char == "<" and (heredoc := heredoc_at(self.text, self.at)) is not None:
                self.at = heredoc.end
            elif char == "#" or self.text.startswith("//", self.at):
                break
            elif self.text.startswith("/*", self.at):
                self.at = space_end(self.text, self.at)
            else:
                self.at += 1
        text = self.text[start : self.at].strip()
        return Attribute(_COMMENT.sub("", text).strip() if '"' not in text else text, start)


def split_steps(text: str, at: int) -> list[str] | None:
    """Return the steps from an offset on, ``name`` or ``[index]``, None if there is anything else.

    Raises:
        HclError: a bracket is not closed.
    """
    steps: list[str] = []
    while at < len(text):
        name = _STEP.match(text, at)
        if name is None and text[at] != "[":
            return None
        end = closing_end(text, at) if name is None else name.end()
        steps.append(text[at:end] if name is None else name[1])
        at = end
    return steps


def directive_body(text: str, start: re.Match[str]) -> tuple[str, str, int]:
    """Return the text of a directive, that of its ``else``, and the offset after its end."""
    level, other = 0, None
    for match in DIRECTIVE.finditer(text, start.end()):
        if match[1] in ("if", "for"):
            level += 1
        elif match[1] == "else" and level == 0:
            other = match
        elif match[1] in ("endif", "endfor"):
            if level == 0:
                middle = other or match
                rest = text[other.end() : match.start()] if other else ""
                return text[start.end() : middle.start()], rest, match.end()
            level -= 1
    raise HclError("a directive does not end")
