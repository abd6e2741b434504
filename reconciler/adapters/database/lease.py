"""The right to act for a fleet, held by one process at a time.

In a state directory it is a lock on a file, on a server an advisory lock of a session: both are
taken back by the kernel or the server when the holder dies, however it dies, so that nothing
stale is ever to be cleaned up.
"""

from __future__ import annotations

import hashlib
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from sqlalchemy import Connection, text

from reconciler.adapters.database.connection import Database, translated
from reconciler.adapters.nofollow import open_file
from reconciler.model.errors import LockedError, StateError

LOCK: Final = "lock"

_POLL_S: Final = 0.05
_PATIENCE: Final = 20
"""How many more times a lock is tried that somebody has who does not say who he is."""


@dataclass(slots=True)
class FileLease:
    """The lock on ``<state>/lock``; inside stand the holder's process id, start and command."""

    folder: Path
    _descriptor: int | None = field(default=None, init=False)

    def acquire(self) -> None:
        if self._descriptor is not None:
            return
        path = self.folder / LOCK
        with translated(str(path)):
            descriptor = open_file(path, os.O_RDWR | os.O_CREAT)
        try:
            _lock(descriptor, path)
            started = datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
            with translated(str(path)):
                os.ftruncate(descriptor, 0)
                os.write(descriptor, f"{os.getpid()}\n{started}\n{_command_line()}\n".encode())
        except BaseException:
            os.close(descriptor)
            raise
        self._descriptor = descriptor

    def release(self) -> None:
        if self._descriptor is None:
            return
        descriptor, self._descriptor = self._descriptor, None
        with suppress(OSError):
            os.ftruncate(descriptor, 0)
        os.close(descriptor)

    def holder(self) -> str | None:
        """Return who holds the lease, None where nobody does, without taking it."""
        import fcntl

        path = self.folder / LOCK
        with translated(str(path)):
            if not path.exists():
                return None
            descriptor = open_file(path, os.O_RDONLY)
        try:
            # A shared lock, so that two who ask at once do not take each other for the holder.
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return _told(os.pread(descriptor, 4096, 0))
        finally:
            os.close(descriptor)
        return None

    @contextmanager
    def held(self, wait_s: float) -> Iterator[None]:
        """Hold the lease for a moment, after waiting for it at most ``wait_s`` seconds."""
        give_up_at = time.monotonic() + wait_s
        while True:
            try:
                self.acquire()
                break
            except LockedError:
                if time.monotonic() >= give_up_at:
                    raise
                time.sleep(_POLL_S)
        try:
            yield
        finally:
            self.release()


@dataclass(slots=True)
class ServerLease:
    """An advisory lock of a session on the server, one for each fleet."""

    database: Database
    _connection: Connection | None = field(default=None, init=False)

    def acquire(self) -> None:
        if self._connection is not None:
            return
        database, key = self.database, _key(self.database.fleet)
        with translated(database.place):
            connection = database.engine.connect()
            try:
                connection = connection.execution_options(isolation_level="AUTOCOMMIT")
                taken = connection.execute(
                    text("SELECT pg_try_advisory_lock(:key)"), {"key": key}
                ).scalar()
                holder = "" if taken else _holder(connection, key)
            except BaseException:
                connection.close()
                raise
        if not taken:
            connection.close()
            raise LockedError(
                f"{holder or 'another process'} is running for fleet {database.fleet}",
                where=database.place,
                remedy="stop it, or wait until it ends",
            )
        self._connection = connection

    def holder(self) -> str | None:
        """Return which session holds the lease, None where none does, without taking it."""
        with self.database.reading() as connection:
            return _holder(connection, _key(self.database.fleet)) or None

    def release(self) -> None:
        if self._connection is None:
            return
        connection, self._connection = self._connection, None
        # Closing the session itself gives the lock back even when the server no longer answers.
        connection.invalidate()
        connection.close()


def _lock(descriptor: int, path: Path) -> None:
    try:
        import fcntl
    except ImportError as error:
        raise StateError(
            "this system has no file locks that end with their process",
            where=str(path),
            remedy="use a database URL as state",
        ) from error
    for attempt in range(_PATIENCE + 1):
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.pread(descriptor, 4096, 0)
            if not holder and attempt < _PATIENCE:
                # Somebody only looks (see ``holder``), or has taken it in this moment.
                time.sleep(_POLL_S)
                continue
            raise LockedError(
                f"{_told(holder)} is using this state directory",
                where=str(path.parent),
                remedy="stop it, or wait until it ends",
            ) from None
        except OSError as error:
            raise StateError(
                f"cannot lock the state directory: {error.strerror}",
                where=str(path),
                remedy="use a folder on a local disk, or a database URL",
            ) from error
        return


def _told(content: bytes) -> str:
    """Return who holds a lock, from what its holder wrote into the file."""
    lines = content.decode("utf-8", "replace").splitlines()
    if len(lines) < 3:  # the holder has only just taken it
        return "another process"
    return f"process {lines[0]} (`{lines[2]}`, since {lines[1]})"


def _command_line() -> str:
    program = os.path.basename(sys.argv[0]) if sys.argv else ""  # noqa: PTH119 - text, not a path
    words = [program or "python", *sys.argv[1:2]]
    return plain_words(words)


def plain_words(words: list[str]) -> str:
    """Return a command line as one printable line."""
    return "".join(c if c.isprintable() else "?" for c in " ".join(words))[:200]


def _key(fleet: str) -> int:
    """Return the number of a fleet's lock: 63 bits, the same in every process and release."""
    digest = hashlib.sha256(f"reconciler lease {fleet}".encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1


def _holder(connection: Connection, key: int) -> str:
    """Return the session that holds a lock as its server tells it, or an empty text."""
    row = connection.execute(
        text(
            "SELECT a.application_name, a.backend_start FROM pg_locks l"
            " JOIN pg_stat_activity a ON a.pid = l.pid"
            " WHERE l.locktype = 'advisory' AND l.granted AND l.objsubid = 1"
            " AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())"
            " AND l.classid::bigint = :high AND l.objid::bigint = :low"
        ),
        {"high": key >> 32, "low": key & 0xFFFFFFFF},
    ).first()
    if row is None:
        return ""
    return f"`{row.application_name}` (since {row.backend_start:%Y-%m-%dT%H:%M:%SZ})"
