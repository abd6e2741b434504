"""Writes and reads the file of a saved plan."""

from __future__ import annotations

import os
import stat
from typing import Final

from reconciler.adapters.nofollow import warn_of_other_writers
from reconciler.adapters.writing import PRIVATE, write_file
from reconciler.assembly.inputs.files import read_start
from reconciler.plan.approval import SIZE_MAX, encode_saved_plan, read_saved_plan
from reconciler.plan.value.plan import Plan

_NEW: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


def save(plan: Plan, path: str) -> None:
    """Write the plan to a file that only its owner can read, completely or not at all.

    A symbolic link at ``path`` is replaced; what it points to is not touched.

    Raises:
        UnreadableError: it cannot be written; nothing is left behind.
    """
    write_file(path, encode_saved_plan(plan), mode=PRIVATE)


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
    if path != "-":
        warn_of_other_writers(path, "what counts as approved")
    return read_saved_plan(read_start(path, SIZE_MAX), "stdin" if path == "-" else path)
