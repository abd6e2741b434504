"""A file lock that the kernel releases when its holder dies, however it dies."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from reconciler.adapters.database.connection import translate_errors
from reconciler.adapters.nofollow import open_file
from reconciler.model.errors import LeaseHeldError, LockedError, StateError
from reconciler.model.text.times import format_time, timestamp

_POLL_S: Final = 0.05
_PATIENCE: Final = 20
"""How often a lock is retried whose holder has not written its name yet."""

REMEDY: Final = "stop it, or wait until it ends"


@dataclass(slots=True)
class FileLock:
    """A lock on ``path``; the file contains the holder's process id, start, command and ``note``.

    ``what`` completes the sentence "process 7 is using ...".
    """

    path: Path
    what: str = "this state directory"
    note: str = ""
    _descriptor: int | None = field(default=None, init=False)

    def acquire(self) -> None:
        """Take the lock; its holder may take it again.

        Raises:
            LeaseHeldError: another process holds it.
            StateError: the file cannot be locked.
        """
        if self._descriptor is not None:
            return
        with translate_errors(str(self.path)):
            descriptor = open_file(self.path, os.O_RDWR | os.O_CREAT)
        try:
            self._lock(descriptor)
            with translate_errors(str(self.path)):
                os.ftruncate(descriptor, 0)
                os.write(
                    descriptor, f"{os.getpid()}\n{_now()}\n{command_name()}\n{self.note}".encode()
                )
        except BaseException:
            os.close(descriptor)
            raise
        self._descriptor = descriptor

    def release(self) -> None:
        """Release the lock."""
        if self._descriptor is None:
            return
        descriptor, self._descriptor = self._descriptor, None
        with suppress(OSError):
            os.ftruncate(descriptor, 0)
        os.close(descriptor)

    def holder(self) -> str | None:
        """Return the holder of the lock, or None, without taking it."""
        import fcntl

        with translate_errors(str(self.path)):
            if not self.path.exists():
                return None
            descriptor = open_file(self.path, os.O_RDONLY)
        try:
            # A shared lock, so that two readers do not take each other for the holder.
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return _describe_holder(os.pread(descriptor, 4096, 0))
        finally:
            os.close(descriptor)
        return None

    @contextmanager
    def hold(self, wait_s: float) -> Iterator[None]:
        """Hold the lock for a moment, after waiting for it at most ``wait_s`` seconds."""
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

    def _lock(self, descriptor: int) -> None:
        try:
            import fcntl
        except ImportError as error:
            raise StateError(
                "this system has no file locks that end with their process",
                where=str(self.path),
                remedy="use a database URL as state",
            ) from error
        for attempt in range(_PATIENCE + 1):
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                content = os.pread(descriptor, 4096, 0)
                if not content and attempt < _PATIENCE:
                    # Another process is reading (see ``holder``), or has just taken the lock.
                    time.sleep(_POLL_S)
                    continue
                raise LeaseHeldError(
                    f"{_describe_holder(content)} is using {self.what}",
                    where=str(self.path.parent),
                    remedy=REMEDY,
                ) from None
            except OSError as error:
                raise StateError(
                    f"cannot lock {self.what}: {error.strerror}",
                    where=str(self.path),
                    remedy="use a folder on a local disk, or a database URL",
                ) from error
            return


def file_identity(path: Path) -> tuple[int, int] | None:
    """Return what tells a file from another one that takes its place, None if there is none."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino


def command_name() -> str:
    """Return the program and the command of this process as one printable line."""
    program = os.path.basename(sys.argv[0]) if sys.argv else ""
    words = " ".join([program or "python", *sys.argv[1:2]])
    return "".join(c if c.isprintable() else "?" for c in words)[:200]


def _now() -> str:
    return timestamp(datetime.now(UTC))


def _describe_holder(content: bytes) -> str:
    """Return the holder of a lock, as written into the file."""
    lines = content.decode("utf-8", "replace").splitlines()
    if len(lines) < 3:  # the holder has just taken it
        return "another process"
    note = f" for {lines[3]}" if len(lines) > 3 else ""
    return f"process {lines[0]} (`{lines[2]}`, since {_format_since(lines[1])}){note}"


def _format_since(written: str) -> str:
    """Return a time of the file for people; return anything else unchanged."""
    try:
        return format_time(datetime.fromisoformat(written))
    except ValueError:
        return written
