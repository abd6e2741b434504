"""Writes the files of a new fleet: all of them or none, nothing over an existing file.

A file is created with O_EXCL and O_NOFOLLOW in a folder whose real path is below the named one, so
a symbolic link in a checkout cannot redirect it.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from typing import Final, NamedTuple

from reconciler.adapters.writing import refuse_links
from reconciler.model.errors import UnreadableError

_NEW: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


class NewFile(NamedTuple):
    """A file to write: ``path`` is below ``root``, the folder that it must not leave."""

    root: str
    path: str
    content: bytes

    @property
    def full_path(self) -> str:
        return os.path.join(self.root, self.path)


def existing_files(files: Sequence[NewFile]) -> list[str]:
    """Return the files that already exist, of any type."""
    return [file.full_path for file in files if os.path.lexists(file.full_path)]


def write_new_files(files: Sequence[NewFile]) -> None:
    """Write the files.

    Raises:
        UnreadableError: a file exists, leads out of its folder, or cannot be written. What was
            written before it is removed again.
    """
    made: list[str] = []
    folders: list[str] = []
    try:
        for file in files:
            _make_folders(file, folders)
            descriptor = os.open(file.full_path, _NEW, 0o644)
            made.append(file.full_path)
            with os.fdopen(descriptor, "wb") as new:
                new.write(file.content)
    except BaseException as error:
        for path in reversed(made):
            with suppress(OSError):
                os.unlink(path)
        for path in reversed(folders):
            with suppress(OSError):
                os.rmdir(path)
        if not isinstance(error, OSError):
            raise
        why = f"cannot be written: {error.strerror or error}"
        where = str(error.filename or (made[-1] if made else ""))
        remedy = "nothing was written; make the folder writable, or name another one"
        raise UnreadableError(why, where=where, remedy=remedy) from error


def _make_folders(file: NewFile, made: list[str]) -> None:
    """Make the folders above a file, and refuse those that lead elsewhere."""
    refuse_links(file.root)
    if not os.path.isdir(file.root):
        missing = file.root
        above: list[str] = []
        while missing and not os.path.lexists(missing):
            above.append(missing)
            missing = os.path.dirname(missing)
        for path in reversed(above):
            os.mkdir(path)
            made.append(path)
    root = os.path.realpath(file.root)
    path = file.root
    for step in file.path.split("/")[:-1]:
        path = os.path.join(path, step)
        if not os.path.lexists(path):
            os.mkdir(path)
            made.append(path)
        real = os.path.realpath(path)
        if not real.startswith(root + os.sep) and root != os.sep:
            raise UnreadableError(
                f'"{path}" is a symbolic link that leads out of "{file.root}"',
                where=path,
                remedy="nothing was written; remove the link",
            )
