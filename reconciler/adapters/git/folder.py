"""A folder of a working tree, read as the content of a fleet.

The content is untrusted: a symbolic link must not lead out of the folder, loops end, and sizes and
counts are limited. Rejected files become diagnostics; hidden files, and files that are not YAML or
JSON by name, are skipped.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final, NamedTuple

from reconciler.adapters.checkout import refuse_link_out
from reconciler.desired.fleet import SourceFile
from reconciler.model.diagnostics import Diagnostic, Place, Severity
from reconciler.model.errors import UnreadableError
from reconciler.model.text.visible import encodable
from reconciler.source.document import LIMITS
from reconciler.source.resource import LOCK_FILE

if TYPE_CHECKING:
    from pathlib import Path

SUFFIXES: Final = (".yaml", ".yml", ".json")
FILES_MAX: Final = 20_000
BYTES_MAX: Final = 64 * 1024 * 1024
ENTRIES_MAX: Final = 200_000
DEPTH_MAX: Final = 32


class FolderLimits(NamedTuple):
    """How many files and bytes of a folder are read, and how many entries are listed."""

    files_max: int
    bytes_max: int
    entries_max: int


def is_fleet_file(path: str) -> bool:
    """Return whether a file of that relative path belongs to a fleet, by its name alone."""
    parts = path.split("/")
    if path == LOCK_FILE:
        return True
    return path.endswith(SUFFIXES) and not any(part.startswith(".") for part in parts)


def read_folder(
    path: Path | str, limits: FolderLimits | None = None
) -> tuple[list[SourceFile], list[Diagnostic]]:
    """Return the YAML and JSON files under ``path`` in order of their paths, and diagnostics.

    Raises:
        UnreadableError: ``path`` is not a folder, cannot be listed, or is a link out of a checkout.
    """
    refuse_link_out(os.fspath(path))
    root = os.path.realpath(path)
    if not os.path.isdir(root):
        is_file = os.path.exists(root)
        what = f'"{path}" is a file' if is_file else f'folder "{path}" does not exist'
        raise UnreadableError(what, remedy="pass the fleet folder as PATH")
    reading = _FolderReader(root, limits or FolderLimits(FILES_MAX, BYTES_MAX, ENTRIES_MAX))
    try:
        reading.walk()
    except OSError as error:
        raise UnreadableError(str(error.strerror), where=str(error.filename or path)) from error
    return reading.files, reading.findings


def read_once(path: str) -> Diagnostic:
    """Return the warning on a folder that symbolic links give several paths."""
    message = "the folder has several paths by symbolic links, and is read once"
    return Diagnostic(Severity.WARNING, "directory-loop", message, Place(path, 1, 1))


class _FolderReader:
    def __init__(self, root: str, limits: FolderLimits) -> None:
        self.root = root
        self.limits = limits
        self.files: list[SourceFile] = []
        self.findings: list[Diagnostic] = []
        self.bytes = 0

    def walk(self) -> None:
        for relative, real in self._candidates():
            files_max, bytes_max, _ = self.limits
            if len(self.files) >= files_max or self.bytes >= bytes_max:
                limit = f"{files_max} files or {bytes_max // 2**20} MiB"
                self._refuse("too-large", relative, f"the folder holds more than {limit}")
                return
            self._read_file(relative, real)

    def _candidates(self) -> Iterator[tuple[str, str]]:
        """Yield (relative path, real path) of the fleet files, in order; loops end."""
        seen = {self.root}
        stack = [(self.root, "", 0)]
        entries = 0
        while stack:
            folder, prefix, depth = stack.pop()
            below: list[tuple[str, str, int]] = []
            with os.scandir(folder) as listing:
                names = sorted(listing, key=lambda e: e.name)
            for entry in names:
                entries += 1
                relative = f"{prefix}{entry.name}"
                if entries > self.limits.entries_max:
                    message = f"more than {self.limits.entries_max} entries"
                    self._refuse("too-large", relative, message)
                    return
                if entry.name.startswith("."):
                    continue
                real = self._resolve_entry(entry, relative)
                if real is None:
                    continue
                if entry.is_dir():
                    if real in seen:
                        self.findings.append(read_once(encodable(relative)))
                    elif depth >= DEPTH_MAX:
                        self._refuse("too-deep", relative, f"more than {DEPTH_MAX} folders deep")
                    else:
                        seen.add(real)
                        below.append((entry.path, f"{relative}/", depth + 1))
                elif is_fleet_file(relative):
                    yield relative, real
            stack.extend(reversed(below))

    def _resolve_entry(self, entry: os.DirEntry[str], relative: str) -> str | None:
        """Return the real path of an entry; None, with a finding, if it must not be read."""
        if not entry.is_symlink():
            return entry.path
        try:
            real = os.path.realpath(entry.path, strict=True)
        except OSError:
            if is_fleet_file(relative):
                self._refuse(
                    "broken-link", relative, ("the target of the symbolic link does not exist")
                )
            return None
        if real != self.root and not real.startswith(self.root + os.sep):
            if entry.is_dir() or is_fleet_file(relative):
                self._refuse("outside-link", relative, "the symbolic link leads out of the folder")
            return None
        return real

    def _read_file(self, relative: str, real: str) -> None:
        if not os.path.isfile(real):
            self._refuse("not-a-file", relative, "is not a regular file")
            return
        try:
            with open(real, "rb") as file:
                content = file.read(LIMITS.bytes_max + 1)
        except OSError as error:
            self._refuse("unreadable", relative, f"cannot be read: {error.strerror}")
            return
        self.bytes += len(content)
        self.files.append(SourceFile(encodable(relative), content))

    def _refuse(self, code: str, relative: str, message: str) -> None:
        place = Place(encodable(relative), 1, 1)
        self.findings.append(Diagnostic(Severity.ERROR, code, message, place))
