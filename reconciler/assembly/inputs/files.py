"""Files that a command line names, and the folder that keeps clones."""

from __future__ import annotations

import io
import os
import select
import stat
import sys
from typing import BinaryIO, Final

from reconciler.adapters.checkout import refuse_link_out
from reconciler.model.errors import UnreadableError
from reconciler.source.document import LIMITS

BYTES_MAX: Final = 2**30
"""The maximum size of a file named on the command line, twice a snapshot of 100,000 pods."""

CATALOG_BYTES_MAX: Final = 2**26
"""The maximum size of a catalog, six times that of all types in all regions of AWS."""

TEXT_BYTES_MAX: Final = 2**26
"""The maximum size of a document that is not JSON: of YAML, which takes minutes beyond it."""

_BLOCK: Final = 2**20
_HEAD: Final = 4096
_JSON: Final = (b"{", b"[", b"\xef\xbb\xbf")
"""How JSON begins, also with a mark of its byte order."""
_PIPE_WAIT_S: Final = 10.0
"""How long to wait for the first byte of a pipe that has a name in a folder."""
_DESCRIPTORS: Final = ("/dev/fd/", "/dev/stdin", "/proc/self/fd/")
"""The names of what a shell has opened for this process, such as ``<(command)``."""


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


def read_document(path: str, bytes_max: int = BYTES_MAX) -> bytes:
    """Return the content of a file of JSON or YAML, as ``read_bytes`` does.

    A large file that is something else takes no memory: a sparse file is large at no cost.

    Raises:
        UnreadableError: it cannot be read, is too large, or is large and not JSON.
    """
    is_large = path != "-" and os.path.isfile(path) and os.path.getsize(path) > TEXT_BYTES_MAX
    if is_large and not read_start(path, _HEAD).lstrip().startswith(_JSON):
        what = f"more than {_format_size(TEXT_BYTES_MAX)}, and not JSON"
        raise UnreadableError(what, where=path, remedy="pass it as JSON")
    return read_bytes(path, bytes_max)


def read_start(path: str, bytes_max: int) -> bytes:
    """Return the content of a file, of stdin for ``-``: at most ``bytes_max`` bytes and one more.

    Somebody else may have put the file there: a pipe without a writer ends soon, no device is read
    but the user's terminal and the empty one, and no link leads out of a checkout.

    Raises:
        UnreadableError: it cannot be read, is a device, a pipe to which nothing writes, or a link
            that leads out of a checkout.
    """
    try:
        if path == "-":
            return _read_blocks(sys.stdin.buffer, 0, bytes_max + 1)
        if not path.startswith(_DESCRIPTORS):
            refuse_link_out(path)
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        with open(descriptor, "rb") as file:
            status = os.fstat(descriptor)
            _expect_end(path, descriptor, status, bytes_max)
            os.set_blocking(descriptor, True)
            return _read_blocks(file, status.st_size, bytes_max + 1)
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or str(error)
        raise UnreadableError(why, where=path, remedy="pass a readable file") from error


def _expect_end(path: str, descriptor: int, status: os.stat_result, bytes_max: int) -> None:
    """Check that a file that was opened without waiting has an end, and wait for a pipe.

    Raises:
        UnreadableError: it is a device, a pipe to which nothing writes, or a file of the kernel.
    """
    mode = status.st_mode
    if stat.S_ISFIFO(mode) and not path.startswith(_DESCRIPTORS):
        ready = select.poll()
        ready.register(descriptor, select.POLLIN)
        if not ready.poll(_PIPE_WAIT_S * 1000):
            what = f"is a pipe to which nothing was written for {_PIPE_WAIT_S:.0f} seconds"
            raise UnreadableError(what, where=path, remedy="pass a regular file")
    if _is_endless_device(path, descriptor, mode):
        what = f"is a device, which may have more than {_format_size(bytes_max)}"
        raise UnreadableError(what, where=path, remedy="pass a regular file")
    if stat.S_ISREG(mode) and not status.st_size and _has_more(descriptor):
        # Such as /proc/kmsg, which blocks until the kernel has a message.
        what = "has content beyond its size of 0, like a file of the kernel, which may not end"
        raise UnreadableError(what, where=path, remedy="copy it, and pass the copy")


def _is_endless_device(path: str, descriptor: int, mode: int) -> bool:
    """Return whether a file is a device other than the user's terminal and the empty one.

    A terminal without a user, such as a new one of ``/dev/ptmx``, has no end.
    """
    if not (stat.S_ISCHR(mode) or stat.S_ISBLK(mode)):
        return False
    if os.isatty(descriptor):
        return path != "/dev/tty" and not path.startswith(_DESCRIPTORS)
    return not os.path.samestat(os.fstat(descriptor), os.stat(os.devnull))


def _has_more(descriptor: int) -> bool:
    """Return whether a file that was opened without waiting has a byte, or would wait for one."""
    try:
        return bool(os.read(descriptor, 1))
    except BlockingIOError:
        return True


def read_checkout_file(path: str | os.PathLike[str], top: str | os.PathLike[str]) -> bytes:
    """Return the content of a file that an author of the repository may have put there.

    It is cut behind the limit of a file, which the parsers report.

    Raises:
        UnreadableError: it is a link that leads out of the folder ``top``, or a device, a pipe or
            another file that may have no end.
        OSError: it cannot be opened.
    """
    real, folder = os.path.realpath(path), os.path.realpath(top)
    if not real.startswith(folder + os.sep):
        raise UnreadableError("the symbolic link leads out of the folder", where=os.fspath(path))
    descriptor = os.open(real, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise UnreadableError("is not a regular file", where=os.fspath(path))
    with open(descriptor, "rb") as file:
        return file.read(LIMITS.bytes_max + 1)


def _read_blocks(file: BinaryIO, size: int, bytes_max: int) -> bytes:
    """Return what is left of a file of ``size`` bytes, at most ``bytes_max`` bytes.

    ``read`` takes memory for as much as it is asked for: for the size, if that is known, and for
    one block after another otherwise. The blocks are kept once: joining them would take as much
    memory again.
    """
    wanted = min(size, bytes_max)
    first = file.read(wanted) if wanted else b""
    if len(first) == bytes_max or not (block := file.read(min(_BLOCK, bytes_max - len(first)))):
        return first
    content = io.BytesIO(first)
    content.seek(0, io.SEEK_END)
    while block:
        content.write(block)
        block = file.read(min(_BLOCK, bytes_max - content.tell()))
    return content.getvalue()


def _size_error(path: str, bytes_max: int) -> UnreadableError:
    what = f"more than {_format_size(bytes_max)}"
    return UnreadableError(what, where=path, remedy="capture fewer objects")


def _format_size(size: int) -> str:
    units = ((30, "GiB"), (20, "MiB"), (10, "KiB"))
    return next((f"{size >> n} {unit}" for n, unit in units if size >> n), "0 KiB")
