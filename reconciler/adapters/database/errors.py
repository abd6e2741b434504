"""The border where the errors of a database or a disk become ours.

Whatever stops the store is the state's fault in our sense, and its operator can fix it: the
message says which file or server, what it said, and what to do.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from sqlalchemy.exc import DBAPIError, IntegrityError
from sqlalchemy.exc import TimeoutError as PoolTimeout

from reconciler.model.errors import StateError
from reconciler.model.urls import without_secrets

RESTORE: Final = (
    "stop the engine and restore a backup (`state.db.before-*`), or start with an empty "
    "folder and `reconciler state import` an export"
)

_REMEDIES: Final = (
    ("not a database", RESTORE),
    ("malformed", RESTORE),
    ("disk i/o error", "check the disk and the system log, then start again"),
    ("full", "free some space on this disk, then start again; no partial data was written"),
    (
        "no space left",
        ("free some space on this disk, then start again; no partial data was written"),
    ),
    ("quota", "free some space on this disk, then start again; no partial data was written"),
    ("readonly", "give this user write permission for the folder and its files"),
    ("read-only", "give this user write permission for the folder and its files"),
    ("permission denied", "give this user read and write permission for the folder"),
    ("unable to open", "give this user read and write permission for the folder"),
    (
        "is locked",
        ("another process is writing for a long time; `reconciler status` shows which one"),
    ),
    ("no such table", "run `reconciler state check`"),
    ("password", "correct the user and the password in the URL, or set PGPASSWORD"),
    ("does not exist", "create it on the server, or correct the URL"),
    ("refused", "start the server, or correct the host and port in the URL"),
    ("could not translate", "correct the host in the URL"),
    ("resolve", "correct the host in the URL"),
    ("timeout", "check whether the server is running and a firewall lets the connection through"),
    ("closed", "the server closed the connection; start again once it is back"),
)


@contextmanager
def translated(place: str) -> Iterator[None]:
    """Raise a StateError about ``place`` in place of a database's or a disk's own error.

    A violated constraint is a mistake of ours and passes unchanged.
    """
    try:
        yield
    except IntegrityError:
        raise
    except (DBAPIError, PoolTimeout, OSError) as error:
        raise state_error(place, error) from error


def state_error(place: str, error: Exception) -> StateError:
    """Return the StateError that tells ``error``, in one line."""
    said = without_secrets(_first_line(error))
    lower = said.lower()
    remedy = next((advice for sign, advice in _REMEDIES if sign in lower), "")
    return StateError(
        f"cannot use the recorded state: {said}",
        where=place,
        remedy=remedy or "run `reconciler state check`",
    )


def _first_line(error: Exception) -> str:
    cause: BaseException | None = error
    if isinstance(error, DBAPIError):
        cause = error.orig
    if isinstance(cause, OSError) and cause.strerror:
        return cause.strerror
    lines = str(cause).strip().splitlines()
    return lines[0].rstrip(": ") if lines else type(cause).__name__
