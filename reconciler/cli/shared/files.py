"""Files that a command line names, and the folder that keeps clones."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from reconciler.model.errors import UnreadableError


BYTES_MAX: Final = 2**31
"""The maximum size of a file named on the command line, four times a snapshot of 100,000 pods."""


def clones_folder(state: str | None) -> str:
    """Return the folder that keeps clones: in the state directory, else in the user's cache."""
    place = state or os.environ.get("RECONCILER_STATE") or ""
    if place and "://" not in place:
        from reconciler.adapters.git.repository import find_tracked_path

        if find_tracked_path(place) is None:
            return os.path.join(place, "clones")
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return os.path.join(cache, "reconciler", "clones")


def read_bytes(path: str) -> bytes:
    """Return the content of a file, of stdin for ``-``.

    Raises:
        UnreadableError: it cannot be read.
    """
    from reconciler.model.errors import UnreadableError

    try:
        if path == "-":
            content = sys.stdin.buffer.read(BYTES_MAX + 1)
        else:
            with open(path, "rb") as file:
                if os.fstat(file.fileno()).st_size > BYTES_MAX:
                    raise _size_error(path)
                content = file.read(BYTES_MAX + 1)
    except OSError as error:
        why = error.strerror or str(error)
        raise UnreadableError(why, where=path, remedy="pass a readable file") from error
    if len(content) > BYTES_MAX:
        raise _size_error(path)
    return content


def _size_error(path: str) -> UnreadableError:
    from reconciler.model.errors import UnreadableError

    most = f"more than {BYTES_MAX >> 30} GiB"
    return UnreadableError(most, where=path, remedy="capture fewer objects")
