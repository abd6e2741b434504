"""Opens our own files without following a symbolic link that replaced them."""

from __future__ import annotations

import os
import stat
from typing import Final

from reconciler.model.errors import StateError

_NO_FOLLOW: Final = getattr(os, "O_NOFOLLOW", 0)
_REMEDY: Final = "remove it, or pass another location with --state"


def open_file(path: str | os.PathLike[str], flags: int, mode: int = 0o600) -> int:
    """Open a regular file and return its descriptor; it is not inherited by other programs.

    Raises:
        StateError: a link or something else than a file is in its place.
        OSError: it cannot be opened for another reason.
    """
    refuse_link(path)
    descriptor = os.open(path, flags | _NO_FOLLOW | os.O_CLOEXEC | os.O_NONBLOCK, mode)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise StateError("is not a regular file", where=os.fspath(path), remedy=_REMEDY)
    return descriptor


def refuse_link(path: str | os.PathLike[str]) -> None:
    """Refuse a symbolic link.

    Raises:
        StateError: it is one.
    """
    if os.path.islink(path):
        what = "is a symbolic link, which may lead anywhere"
        raise StateError(what, where=os.fspath(path), remedy=_REMEDY)
