"""Files that a command line names, and the folder that keeps clones."""

from __future__ import annotations

import os
import stat
import sys
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from typing import BinaryIO

    from reconciler.model.errors import UnreadableError


BYTES_MAX: Final = 2**31
"""The maximum size of a file named on the command line, four times a snapshot of 100,000 pods."""

_BLOCK: Final = 2**20


def clones_folder(state: str | None) -> str:
    """Return the folder that keeps clones: in the state directory, else in the user's cache."""
    place = state or os.environ.get("RECONCILER_STATE") or ""
    if place and "://" not in place:
        from reconciler.adapters.git.repository import find_tracked_path

        if find_tracked_path(place) is None:
            return os.path.join(place, "clones")
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return os.path.join(cache, "reconciler", "clones")


def read_bytes(path: str, bytes_max: int = BYTES_MAX) -> bytes:
    """Return the content of a file, of stdin for ``-``. Memory is needed for the content only.

    Raises:
        UnreadableError: it cannot be read, or has more than ``bytes_max`` bytes.
    """
    if path != "-" and os.path.isfile(path) and os.path.getsize(path) > bytes_max:
        raise _size_error(path, bytes_max)
    content = read_start(path, bytes_max)
    if len(content) > bytes_max:
        raise _size_error(path, bytes_max)
    return content


def read_start(path: str, bytes_max: int) -> bytes:
    """Return the content of a file, of stdin for ``-``: at most ``bytes_max`` bytes and one more.

    Raises:
        UnreadableError: it cannot be read.
    """
    from reconciler.model.errors import UnreadableError

    try:
        if path == "-":
            return _read_blocks(sys.stdin.buffer, 0, bytes_max + 1)
        with open(path, "rb") as file:
            return _read_blocks(file, os.fstat(file.fileno()).st_size, bytes_max + 1)
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or str(error)
        raise UnreadableError(why, where=path, remedy="pass a readable file") from error


def read_checkout_file(path: str | os.PathLike[str]) -> bytes:
    """Return the content of a file that an author of the repository may have put there.

    It is cut behind the limit of a file, which the parsers report.

    Raises:
        UnreadableError: it is a device, a pipe or another file that may have no end.
        OSError: it cannot be opened.
    """
    from reconciler.model.errors import UnreadableError
    from reconciler.source.document import LIMITS

    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise UnreadableError("is not a regular file", where=os.fspath(path))
    with open(descriptor, "rb") as file:
        return file.read(LIMITS.bytes_max + 1)


def _read_blocks(file: BinaryIO, size: int, bytes_max: int) -> bytes:
    """Return what is left of a file of ``size`` bytes, at most ``bytes_max`` bytes.

    ``read`` takes memory for as much as it is asked for: for the size, if that is known, and for
    one block after another otherwise.
    """
    blocks: list[bytes] = []
    total, wanted = 0, min(size, bytes_max) or _BLOCK
    while total < bytes_max and (block := file.read(min(wanted, bytes_max - total))):
        blocks.append(block)
        total, wanted = total + len(block), _BLOCK
    return blocks[0] if len(blocks) == 1 else b"".join(blocks)


def _size_error(path: str, bytes_max: int) -> UnreadableError:
    from reconciler.model.errors import UnreadableError

    units = ((30, "GiB"), (20, "MiB"), (10, "KiB"))
    most = next((f"{bytes_max >> n} {unit}" for n, unit in units if bytes_max >> n), "0 KiB")
    return UnreadableError(f"more than {most}", where=path, remedy="capture fewer objects")
