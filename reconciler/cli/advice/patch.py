"""The difference that a proposal makes to the files, as a patch for git or ``patch -p1``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from difflib import unified_diff
from typing import Final

from reconciler.cli.advice.changes import Files
from reconciler.desired.fleet import SourceFile

_NO_NEWLINE: Final = "\\ No newline at end of file\n"


def changed(before: Files, after: Files) -> tuple[tuple[SourceFile | None, SourceFile], ...]:
    """Return each file that differs, as it was (None where there was none) and as it will be."""
    known = {file.path: file for file in before}
    return tuple(
        (known.get(file.path), file)
        for file in after
        if file.path not in known or known[file.path].content != file.content
    )


def patch(before: Files, after: Files) -> str:
    """Return the unified diff; its paths start at the fleet folder."""
    return "".join(line for old, new in changed(before, after) for line in _file_patch(old, new))


def _file_patch(old: SourceFile | None, new: SourceFile) -> Iterator[str]:
    yield from map(
        _ended,
        unified_diff(
            _lines(old.content) if old is not None else (),
            _lines(new.content),
            f"a/{old.path}" if old is not None else "/dev/null",
            f"b/{new.path}",
        ),
    )


def _lines(content: bytes) -> Sequence[str]:
    """Return the lines with their ends; only a line feed ends one, as for git."""
    text = content.decode()
    lines = text.split("\n")
    return [*(f"{line}\n" for line in lines[:-1]), *lines[-1:]] if lines[-1] else [
        f"{line}\n" for line in lines[:-1]
    ]  # fmt: skip


def _ended(line: str) -> str:
    return line if line.endswith("\n") else f"{line}\n{_NO_NEWLINE}"
