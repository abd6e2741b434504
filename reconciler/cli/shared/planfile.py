"""Writes and reads the file of a saved plan."""

from __future__ import annotations

import os
import stat
from contextlib import suppress
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from reconciler.model.errors import UnreadableError
    from reconciler.plan.value.plan import Plan

_MODE: Final = 0o600
_NEW: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


def save(plan: Plan, path: str) -> None:
    """Write the plan to a file that only its owner can read, completely or not at all.

    A symbolic link at ``path`` is replaced; what it points to is not touched.

    Raises:
        UnreadableError: it cannot be written; nothing is left behind.
    """
    from secrets import token_hex

    from reconciler.plan.approval import encode_saved_plan

    content = encode_saved_plan(plan)
    draft = f"{path}.{token_hex(8)}.tmp"
    try:
        _write(draft, content)
        os.replace(draft, path)
        _sync_folder(path)
    except (OSError, ValueError) as error:
        raise _write_error(path, error) from error
    finally:
        _remove(draft)


def _write(draft: str, content: bytes) -> None:
    descriptor = os.open(draft, _NEW, _MODE)
    with os.fdopen(descriptor, "wb") as file:
        os.fchmod(descriptor, _MODE)
        file.write(content)
        file.flush()
        os.fsync(descriptor)


def _sync_folder(path: str) -> None:
    """Make the new name durable; not every file system can."""
    descriptor = os.open(os.path.dirname(path) or ".", os.O_RDONLY | os.O_CLOEXEC)
    try:
        with suppress(OSError):
            os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _remove(draft: str) -> None:
    with suppress(OSError, ValueError):  # it became the plan, or it was never made
        os.unlink(draft)


def _write_error(path: str, error: Exception) -> UnreadableError:
    from reconciler.model.errors import UnreadableError

    why = getattr(error, "strerror", None) or str(error)
    return UnreadableError(
        f"cannot be written: {why}", where=path, remedy="pass a file in an existing folder"
    )


def is_plan_file(path: str) -> bool:
    """Return whether an argument names a saved plan: a regular file, or ``-`` for stdin."""
    if path == "-":
        return True
    try:
        return stat.S_ISREG(os.stat(path).st_mode)
    except (OSError, ValueError):
        return False


def load(path: str) -> Plan:
    """Return the plan that a file holds.

    Raises:
        UnreadableError: it cannot be read, or is not a plan as ``save`` wrote it.
    """
    from reconciler.cli.shared.files import read_start
    from reconciler.plan.approval import SIZE_MAX, read_saved_plan

    return read_saved_plan(read_start(path, SIZE_MAX), "stdin" if path == "-" else path)
