"""Rewrites older spellings in the files of a fleet folder (`reconciler validate --fix`).

A file is replaced completely or not at all, and only as long as it still has the content that was
read. A file with a syntax error is not touched.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from reconciler.adapters.writing import refuse_links, write_file
from reconciler.desired.fleet import SourceFile
from reconciler.desired.spellings import accepted_spellings
from reconciler.model.diagnostics import Place
from reconciler.model.errors import UnreadableError
from reconciler.source.document import Document, parse_documents
from reconciler.source.finding import field_path
from reconciler.source.objects import Entry, entries
from reconciler.source.resource import CONFIG_FILES, LOCK_FILE
from reconciler.source.rewrite import Replacement, RewriteError, apply_replacements
from reconciler.source.schema import value_at

_BY_HAND: Final = "edit it by hand"
_WRITABLE: Final = "make the file and its folder writable"


@dataclass(frozen=True, slots=True)
class Fix:
    """A rewritten spelling: its place before the edit, its field, and both spellings."""

    place: Place
    path: str
    old: str
    new: str


@dataclass(frozen=True, slots=True)
class FixResult:
    """What was rewritten, and what could not be: each reason with the place or file it is about."""

    fixes: tuple[Fix, ...]
    failures: tuple[str, ...]


def fix_folder(path: str, files: Sequence[SourceFile]) -> FixResult:
    """Rewrite the older spellings in ``files``, which were read from the folder ``path``.

    Raises:
        UnreadableError: a file cannot be written; those before it are rewritten.
    """
    refuse_links(path)
    root = os.path.realpath(path)
    fixes: list[Fix] = []
    failures: list[str] = []
    for file in files:
        try:
            content, found = fix_content(file)
        except RewriteError as error:
            failures.append(f"{file.path}: {error}; {_BY_HAND}")
            continue
        if found:
            replace_file(root, file, content)
            fixes += found
    return FixResult(tuple(fixes), tuple(failures))


def fix_content(file: SourceFile) -> tuple[bytes, list[Fix]]:
    """Return the content of a file with its older spellings rewritten, and each rewritten one.

    Raises:
        RewriteError: it cannot be rewritten without changing something else.
    """
    if file.path in (*CONFIG_FILES, LOCK_FILE):
        return file.content, []
    documents, findings = parse_documents(file.path, file.content)
    found = list(_find_fixes(documents)) if not findings else []
    if not found:
        return file.content, []
    replacements = [replacement for replacement, _ in found]
    return apply_replacements(file.content, replacements), [fix for _, fix in found]


def _find_fixes(documents: Sequence[Document]) -> Iterator[tuple[Replacement, Fix]]:
    for document in documents:
        for entry, finding in entries(document):
            if finding is None or finding.code == "old-version":
                yield from _fixes_of_entry(document, entry)


def _fixes_of_entry(document: Document, entry: Entry) -> Iterator[tuple[Replacement, Fix]]:
    if not isinstance(entry.data, dict):
        return
    for old in accepted_spellings(entry.kind, entry.data):
        replacement = Replacement(document, (*entry.base, *old.pointer), old.value, old.key)
        written = value_at(entry.data, old.pointer)
        name = old.pointer[-1]
        before = f"{name}: {written}" if old.key else f"{written}"
        after = f"{old.key}: {old.value}" if old.key else old.value
        place = entry.place(old.pointer, of_key=bool(old.key))
        yield replacement, Fix(place, field_path(old.pointer), before, after)


def replace_file(root: str, file: SourceFile, content: bytes) -> None:
    """Replace a file of the folder ``root``, a real path.

    A symbolic link is kept: its target is replaced, if that is in the folder.

    Raises:
        UnreadableError: it leads out of the folder, has changed since, or cannot be written.
    """
    real = os.path.realpath(os.path.join(root, file.path))
    if not real.startswith(root + os.sep):
        raise _write_error(file, "the symbolic link leads out of the fleet folder", _BY_HAND)
    try:
        with open(real, "rb") as current:
            mode = stat.S_IMODE(os.fstat(current.fileno()).st_mode)
            if current.read(len(file.content) + 1) != file.content:
                raise _write_error(file, "has changed since it was read", "run the command again")
    except OSError as error:
        why = f"cannot be written: {error.strerror or error}"
        raise _write_error(file, why, _WRITABLE) from error
    try:
        write_file(real, content, mode=mode, remedy=_WRITABLE)
    except UnreadableError as error:  # it names the real path
        raise _write_error(file, error.message, error.remedy) from error


def _write_error(file: SourceFile, why: str, remedy: str) -> UnreadableError:
    return UnreadableError(why, where=file.path, remedy=remedy)
