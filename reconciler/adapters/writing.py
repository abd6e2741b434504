"""Writes the files that users name, without following a symbolic link of a checkout.

A pull request can contain links in the place of an output file, or of a folder above it. So every
folder from the top of the checkout down is opened by itself and must not be a link, and a file is
written beside its place under a name of its own and then renamed. Links above the checkout are the
user's. A link in place of the file itself is replaced; what it points to is not touched.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import Final, NamedTuple

from reconciler.adapters.checkout import checkout_of
from reconciler.model.errors import UnreadableError

_FOLDER: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_NEW: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
REMEDY: Final = "pass a file in an existing folder"
PRIVATE: Final = 0o600
_SPACE: Final = "free some space on this disk, or pass a file on another one"
_REMEDIES: Final[dict[int | None, str]] = {
    errno.ENOSPC: _SPACE,
    errno.EDQUOT: _SPACE,
    errno.EFBIG: _SPACE,
    errno.EROFS: "pass a file on a disk that can be written",
}


class _Place(NamedTuple):
    """A path, as the folder up to which links are the user's, and the names below it."""

    anchor: str
    names: tuple[str, ...]


def write_file(
    path: str,
    content: bytes | Iterable[bytes],
    *,
    mode: int | None = None,
    remedy: str = REMEDY,
) -> None:
    """Write a file completely or not at all.

    Without a ``mode``, an existing file keeps its permissions, and a new one gets the usual ones.

    Raises:
        UnreadableError: a folder above it is a link of the checkout, something other than a file is
            in its place, or it cannot be written. Nothing is left behind.
    """
    place = _place_of(path)
    if not place.names:
        raise UnreadableError("is a folder", where=path, remedy=remedy)
    try:
        with _open_folder(place.anchor, place.names[:-1]) as folder:
            _replace(folder, place.names[-1], content, mode, path)
    except (OSError, ValueError) as error:
        why = f"cannot be written: {getattr(error, 'strerror', None) or error}"
        advice = _REMEDIES.get(getattr(error, "errno", None), remedy)
        raise UnreadableError(why, where=path, remedy=advice) from error


def make_folder(path: str, *, remedy: str = "pass another folder") -> None:
    """Make a folder, and those above it, if they do not exist.

    Raises:
        UnreadableError: one is a link of the checkout, or cannot be made.
    """
    place = _place_of(path)
    try:
        with _open_folder(place.anchor, place.names, make=True):
            pass
    except (OSError, ValueError) as error:
        why = f"cannot be made: {getattr(error, 'strerror', None) or error}"
        raise UnreadableError(why, where=path, remedy=remedy) from error


def refuse_links(path: str) -> None:
    """Refuse a path that contains a symbolic link of the checkout.

    Raises:
        UnreadableError: it contains one.
    """
    place = _place_of(path)
    above = place.anchor
    for name in place.names:
        above = os.path.join(above, name)
        if os.path.islink(above):
            raise _link_error(above)


def _link_error(path: str) -> UnreadableError:
    return UnreadableError(
        "is a symbolic link in the checkout, which may lead anywhere",
        where=path,
        remedy="nothing was written there; remove the link, or name another place",
    )


def _place_of(path: str) -> _Place:
    """Return a path below the outermost folder with a ``.git``, or below the current folder.

    A path elsewhere is the user's up to its last folder.
    """
    whole = os.path.abspath(path)
    anchor = checkout_of(whole)
    here = os.getcwd()
    if not anchor:
        is_here = whole == here or whole.startswith(here.rstrip(os.sep) + os.sep)
        anchor = here if is_here else os.path.dirname(whole)
    below = os.path.relpath(whole, anchor)
    return _Place(anchor, () if below == os.curdir else tuple(below.split(os.sep)))


@contextmanager
def _open_folder(anchor: str, names: Iterable[str], *, make: bool = False) -> Iterator[int]:
    """Open a folder below ``anchor`` step by step, and yield its descriptor."""
    if make:
        os.makedirs(anchor, exist_ok=True)
    folder = os.open(anchor, _FOLDER)
    try:
        at = anchor
        for name in names:
            at = os.path.join(at, name)
            if make:
                with suppress(FileExistsError):
                    os.mkdir(name, dir_fd=folder)
            if stat.S_ISLNK(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode):
                raise _link_error(at)
            inner = os.open(name, _FOLDER | os.O_NOFOLLOW, dir_fd=folder)
            os.close(folder)
            folder = inner
        yield folder
    finally:
        os.close(folder)


def _leads_to_a_device(folder: int, name: str) -> bool:
    """Return whether a link leads to a device, a pipe or what a process has open."""
    if os.readlink(name, dir_fd=folder).startswith(("/dev/", "/proc/")):
        return True
    try:
        found = os.stat(name, dir_fd=folder).st_mode
    except OSError:
        return False
    return not stat.S_ISREG(found) and not stat.S_ISDIR(found)


def _replace(
    folder: int, name: str, content: bytes | Iterable[bytes], mode: int | None, path: str
) -> None:
    with suppress(FileNotFoundError):
        found = os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode
        is_link = stat.S_ISLNK(found)
        # A link is replaced, but not /dev/stdout, which root could replace.
        if _leads_to_a_device(folder, name) if is_link else not stat.S_ISREG(found):
            raise UnreadableError("is not a regular file", where=path, remedy=REMEDY)
        if mode is None and not is_link:
            mode = stat.S_IMODE(found)
    draft = f".{os.urandom(8).hex()}.tmp"
    descriptor = os.open(draft, _NEW, 0o666 if mode is None else mode, dir_fd=folder)
    try:
        with os.fdopen(descriptor, "wb") as file:
            if mode is not None:
                os.fchmod(file.fileno(), mode)
            for part in (content,) if isinstance(content, bytes) else content:
                file.write(part)
            file.flush()
            os.fsync(file.fileno())
        os.replace(draft, name, src_dir_fd=folder, dst_dir_fd=folder)
    finally:
        with suppress(OSError):  # it became the file
            os.unlink(draft, dir_fd=folder)
    with suppress(OSError):  # not every file system makes a new name durable
        os.fsync(folder)
