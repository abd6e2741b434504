"""The fleets of one editor: its open texts, and what it asks about them.

A session knows no protocol and is used by one thread at a time. Paths are real and absolute, and
positions are those of the editor: a line from 0, and a column in units of ``encoding``.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from reconciler.assembly.inputs.checking import CheckContext
from reconciler.assembly.inputs.fixing import fix_content
from reconciler.desired.fleet import SourceFile
from reconciler.lsp.completion import WordProposal, propose
from reconciler.lsp.cursors import Cursor, field_at, find_cursor
from reconciler.lsp.editedfleet import CheckedFleet, EditedFile, EditedFleet, fleet_root
from reconciler.lsp.hovering import describe
from reconciler.lsp.positions import TextLines, TextRange
from reconciler.model.diagnostics import Diagnostic
from reconciler.source.document import Document
from reconciler.source.resource import LOCK_FILE
from reconciler.source.rewrite import RewriteError

Span = tuple[tuple[int, int], tuple[int, int]]
"""The start and the end of a part of a text, each a line and a column of the editor."""

_FLEETS_MAX: Final = 100


class LocatedFinding(NamedTuple):
    """A finding, and the part of its file that it is about."""

    finding: Diagnostic
    span: Span


class TextChange(NamedTuple):
    """A part of a text, and the text to put in its place."""

    span: Span
    text: str


class Hover(NamedTuple):
    """What is known about a part of a text, as Markdown."""

    text: str
    span: Span


class Completions(NamedTuple):
    """What may be written in place of a part of a text."""

    proposals: Sequence[WordProposal]
    span: Span
    is_quoted: bool


@dataclass
class EditorSession:
    """See the module. ``workspaces`` are the folders that the editor has opened."""

    context: CheckContext
    workspaces: tuple[str, ...] = ()
    encoding: str = "utf-16"
    texts: dict[str, str] = field(default_factory=dict)
    _fleets: dict[str, EditedFleet] = field(default_factory=dict)
    _checked: dict[str, CheckedFleet] = field(default_factory=dict)
    _reported: dict[str, set[str]] = field(default_factory=dict)

    def check(self, path: str) -> dict[str, list[LocatedFinding]]:
        """Return the findings on the fleet of a file, by path.

        A file whose findings are gone since the last check has an empty list.

        Raises:
            UnreadableError: the folder of the fleet cannot be listed.
        """
        root = self._root(path)
        checked = self._check_fleet(root)
        found = {
            os.path.join(root, name): self._located(checked, name, findings)
            for name, findings in checked.findings.items()
        }
        gone = self._reported.get(root, set()) - found.keys()
        self._reported[root] = set(found)
        return {**{name: [] for name in sorted(gone)}, **found}

    def _root(self, path: str) -> str:
        return fleet_root(path, self.workspaces)[0]

    def _check_fleet(self, root: str) -> CheckedFleet:
        fleet = self._fleets.get(root)
        has_config = fleet_root(os.path.join(root, LOCK_FILE), (root,))[1]
        if fleet is None or fleet.has_config != has_config:
            if len(self._fleets) >= _FLEETS_MAX:
                self._fleets.clear()
                self._checked.clear()
            fleet = self._fleets[root] = EditedFleet(root, self.context, has_config)
        inside = {
            os.path.relpath(path, root).replace(os.sep, "/"): text
            for path, text in self.texts.items()
            if self._root(path) == root
        }
        checked = self._checked[root] = fleet.check(inside)
        return checked

    def _located(
        self, checked: CheckedFleet, name: str, findings: Sequence[Diagnostic]
    ) -> list[LocatedFinding]:
        file = checked.files.get(name)
        text = "" if file is None else file.content.decode(errors="replace").removeprefix("\ufeff")
        lines = TextLines(text)
        found = []
        for one in findings:
            assert one.place is not None, "findings are grouped by their files"
            token = lines.token(lines.offset(one.place.line, one.place.column))
            found.append(LocatedFinding(one, self._span(lines, token)))
        return found

    def complete(self, path: str, line: int, column: int) -> Completions | None:
        """Return what may be written at a position, None if nothing is known there."""
        lines = TextLines(self.texts.get(path, ""))
        root, offset = self._root(path), lines.offset_of_position(line, column, self.encoding)
        cursor = find_cursor(self._name(path), lines, offset)
        if cursor is None:
            return None
        proposals = propose(cursor, self._known(root))
        is_quoted = lines.text[cursor.start - 1 : cursor.start] in ("'", '"') and cursor.start > 0
        return Completions(proposals, self._span(lines, _range(cursor)), is_quoted)

    def hover(self, path: str, line: int, column: int) -> Hover | None:
        """Return what is known about the field at a position, None if nothing is."""
        lines = TextLines(self.texts.get(path, ""))
        name, checked = self._name(path), self._known(self._root(path))
        offset = lines.offset_of_position(line, column, self.encoding)
        cursor = field_at(self._documents(name, lines.text, checked), lines, offset)
        if cursor is None:
            return None
        found = [d for d in checked.findings.get(name, ()) if _is_at(d, lines, cursor)]
        text = describe(cursor, checked, found, self.context.settings)
        return Hover(text, self._span(lines, _range(cursor))) if text else None

    def fix(self, path: str) -> list[TextChange]:
        """Return the changes of `validate --fix` to an open text, line by line."""
        text = self.texts.get(path, "")
        content = text.encode("utf-8", "surrogatepass")
        try:
            fixed, fixes = fix_content(SourceFile(self._name(path), content))
        except RewriteError:
            return []
        return list(self._changes(text, fixed.decode())) if fixes else []

    def _changes(self, text: str, fixed: str) -> Iterator[TextChange]:
        """Yield the lines that differ; a fix replaces words and keeps their lines."""
        lines, offset = TextLines(text), 0
        for before, after in zip(text.split("\n"), fixed.split("\n"), strict=True):
            if before != after:
                yield TextChange(self._span(lines, TextRange(offset, offset + len(before))), after)
            offset += len(before) + 1

    def _name(self, path: str) -> str:
        return os.path.relpath(path, self._root(path)).replace(os.sep, "/")

    def _known(self, root: str) -> CheckedFleet:
        """Return the fleet as it was last checked."""
        return self._checked.get(root) or self._check_fleet(root)

    def _documents(self, name: str, text: str, checked: CheckedFleet) -> list[Document]:
        file = checked.files.get(name)
        if file is None or file.content != text.encode("utf-8", "surrogatepass"):
            file = EditedFile(name, text.encode("utf-8", "surrogatepass"))
        return file.documents()[0]

    def _span(self, lines: TextLines, part: TextRange) -> Span:
        start = lines.position(part.start, self.encoding)
        return start, lines.position(part.end, self.encoding)


def _range(cursor: Cursor) -> TextRange:
    return TextRange(cursor.start, cursor.end)


def _is_at(finding: Diagnostic, lines: TextLines, cursor: Cursor) -> bool:
    """Return whether a finding is about the word at a cursor."""
    place = finding.place
    return place is not None and lines.offset(place.line, place.column) == cursor.start
