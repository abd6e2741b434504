"""Opens our own files if no other user could have replaced or changed them.

Files of the operator are only warned about: some CI runners write the files of variables with a
mode that lets everybody change them, in a container without other users.
"""

from __future__ import annotations

import logging
import os
import stat
from functools import cache
from shlex import quote
from typing import Final

from reconciler.model.errors import StateError

_NO_FOLLOW: Final = getattr(os, "O_NOFOLLOW", 0)
_REMEDY: Final = "remove it, or pass another location with --state"
_LOG: Final = logging.getLogger(__name__)
_JOURNAL_MAGIC: Final = bytes.fromhex("d9d505f920a163d7")
"""The last bytes of a journal that names another file, in SQLite's format."""


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


def refuse_special_file(path: str | os.PathLike[str]) -> None:
    """Refuse a link, a pipe, a device and a folder in the place of a file that may exist.

    A file that every user may write is refused as well: the state decides what is terminated.

    Raises:
        StateError: it is one.
    """
    refuse_link(path)
    try:
        status = os.lstat(path)
    except OSError:  # there is none, or no longer: another connection has committed
        return
    if not stat.S_ISREG(status.st_mode):
        raise StateError("is not a regular file", where=os.fspath(path), remedy=_REMEDY)
    if may_be_written_by_all(status.st_mode):
        raise StateError(
            "every user of this machine can change the recorded state",
            where=os.fspath(path),
            remedy=f"check who did, then run `chmod o-w {quote(os.fspath(path))}`",
        )
    _refuse_file_of_another_user(path, status)


def _refuse_file_of_another_user(path: str | os.PathLike[str], status: os.stat_result) -> None:
    """Refuse a file of another user in a folder in which every user may create files.

    Such a folder is usual for a volume of a container, which has no other users.
    """
    folder = os.path.dirname(os.path.abspath(path))
    if not may_be_written_by_all(os.stat(folder).st_mode) or status.st_uid in (0, os.geteuid()):
        return
    raise StateError(
        "belongs to another user, and every user can create files in its folder",
        where=os.fspath(path),
        remedy=f"run `chmod o-w {quote(folder)}`, or pass another location with --state",
    )


def warn_of_other_writers(path: str | os.PathLike[str], what: str) -> None:
    """Warn once about a file of the operator that another user of this machine can change.

    ``what`` is what the file decides.
    """
    try:
        problem = _other_writers(os.path.realpath(path))
    except (OSError, ValueError):  # whoever reads it reports it
        return
    if problem:
        _warn_once(f"{os.fspath(path)}: {problem}, and it decides {what}")


@cache
def _warn_once(text: str) -> None:
    _LOG.warning("%s", text)


def _other_writers(real: str) -> str:
    """Return who else can change or has made a file, and what to do about it; "" if nobody can."""
    folder = os.path.dirname(real)
    if not _is_reachable_by_all(folder):
        return ""
    file, above = os.stat(real), os.stat(folder)
    if not stat.S_ISREG(file.st_mode):
        return ""
    if may_be_written_by_all(file.st_mode):
        return f"every user of this machine can change it (`chmod o-w {quote(real)}`)"
    if may_be_written_by_all(above.st_mode):
        if not above.st_mode & stat.S_ISVTX:
            return f"every user of this machine can replace it (`chmod o-w {quote(folder)}`)"
        if file.st_uid not in (0, os.geteuid()):
            return "another user has put it into a folder of all users (move it to your own)"
    return ""


def _is_reachable_by_all(folder: str) -> bool:
    """Return whether every user may enter a folder and all folders above it."""
    while os.stat(folder).st_mode & stat.S_IXOTH:
        above = os.path.dirname(folder)
        if above == folder:
            return True
        folder = above
    return False


def may_be_written_by_all(mode: int) -> bool:
    """Return whether every user may write a file or a folder of this mode; Windows has no modes."""
    return os.name == "posix" and bool(mode & stat.S_IWOTH)


def refuse_link(path: str | os.PathLike[str]) -> None:
    """Refuse a symbolic link.

    Raises:
        StateError: it is one.
    """
    if os.path.islink(path):
        what = "is a symbolic link, which may lead anywhere"
        raise StateError(what, where=os.fspath(path), remedy=_REMEDY)


def refuse_linked_journal(path: str) -> None:
    """Refuse a journal that ends with the name of another file.

    SQLite appends the name of the journal of a transaction over several databases, which we never
    make, and deletes that file once it has rolled back (``pager_delsuper`` in its ``pager.c``). In
    a state that somebody else has written, it could be any file of the user.

    Raises:
        StateError: it is one.
    """
    try:
        descriptor = open_file(path, os.O_RDONLY)
    except FileNotFoundError:  # also one of another connection that commits at this moment
        return
    with os.fdopen(descriptor, "rb") as file:
        file.seek(max(os.fstat(file.fileno()).st_size - len(_JOURNAL_MAGIC), 0))
        names_a_file = file.read() == _JOURNAL_MAGIC
    if names_a_file:
        what = "is the journal of another program, and names a file that SQLite would delete"
        raise StateError(what, where=path, remedy=_REMEDY)
