"""Fencing: a write by a process that has lost the lease changes nothing.

Each acquisition of a lease increases the epoch in the row of its fleet. Every transaction that
writes locks this row first and compares the epoch with the one that its process acquired. The
next holder increases the epoch in the same row. So a write is either committed before the epoch
increases, or rejected.

A file can also be overwritten in place by an older copy of it, as a person does who restores a
backup. The serial of the fleet only grows, so that one below the last of this process shows it.
"""

from __future__ import annotations

from typing import Final

from sqlalchemy import Connection, text
from sqlalchemy.exc import DBAPIError

from reconciler.model.errors import LeaseLostError

IDLE_MAX: Final = {"idle": "8s"}
"""After this time the server ends a transaction that set ``LIMIT_IDLE`` and whose client is idle.

A frozen process would otherwise keep the lock on the row of its fleet, and nobody could raise
the epoch. It is shorter than the lifetime of a lease.
"""

LIMIT_IDLE: Final = "set_config('idle_in_transaction_session_timeout', :idle, true)"
"""Sets the limit for a transaction of PostgreSQL, with ``IDLE_MAX`` as parameters."""

_NOT_AVAILABLE: Final = "55P03"
"""PostgreSQL's code for a lock that was not granted within ``lock_timeout``."""

_ATTEMPTS: Final = 30
_SET_LOCK_TIMEOUT: Final = text("SELECT set_config('lock_timeout', :limit, true)")
# Without this, a transaction sees the activity of other sessions as it was the first time.
_LOOK_AGAIN: Final = text("SELECT pg_stat_clear_snapshot()")
_END_STALLED: Final = text(
    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity JOIN pg_locks USING (pid)"
    " WHERE locktype = 'transactionid' AND granted"
    " AND transactionid = (SELECT xmax FROM fleet WHERE name = :fleet)"
    " AND state = 'active' AND wait_event = 'ClientRead' AND query NOT LIKE 'COPY%'"
    " AND state_change < clock_timestamp() - CAST(:idle AS interval)"
    " AND usename = current_user AND pid <> pg_backend_pid()"
)

_CHECKED_ON_SERVER: Final = text(
    f"SELECT epoch, serial, {LIMIT_IDLE},"  # noqa: S608 - a constant
    # Committed writes survive a crash of the server, whatever its default is.
    " CASE current_setting('synchronous_commit') WHEN 'off'"
    " THEN set_config('synchronous_commit', 'on', true) END"
    " FROM fleet WHERE name = :fleet FOR UPDATE"
)
_CHECKED_IN_FILE: Final = text("SELECT epoch, serial FROM fleet WHERE name = :fleet")


def end_stalled_write(connection: Connection, fleet: str) -> None:
    """End the transaction that locks the row of ``fleet`` if its client sends half a request.

    A driver sends the statements of a batch one after another. If its process freezes in between,
    the session is not idle for PostgreSQL, and ``LIMIT_IDLE`` does not end it. Only sessions of the
    same role are ended: others are not visible, and not ours to end.
    """
    connection.execute(_LOOK_AGAIN)
    connection.execute(_END_STALLED, {"fleet": fleet, **IDLE_MAX})


def was_locked(error: DBAPIError) -> bool:
    """Return whether a statement failed because a lock was not granted in time."""
    return getattr(error.orig, "sqlstate", None) == _NOT_AVAILABLE


class Fence:
    """The epoch in which this process may write for one fleet.

    ``epoch`` is None while the process does not hold the lease. If ``required`` is False, it may
    write without one: for records that a person adds while an engine runs.
    """

    def __init__(self, *, required: bool = True) -> None:
        self.epoch: int | None = None
        self._required = required
        self._reason = ""
        self._serial = 0

    def enter(self, epoch: int) -> None:
        """Record that the lease was acquired in ``epoch``."""
        self.epoch, self._reason, self._serial = epoch, "", 0

    def committed(self, serial: int) -> None:
        """Record the serial of the fleet after a transaction of this process."""
        self._serial = max(self._serial, serial)

    def leave(self, reason: str = "") -> None:
        """Record that the lease was released, or the ``reason`` why it was lost."""
        self.epoch, self._reason = None, reason

    def lease_lost_error(self, fleet: str, place: str) -> LeaseLostError:
        """Return the error for acting for ``fleet`` without its lease."""
        return LeaseLostError(
            f"this process no longer holds the lease of fleet {fleet}"
            if self._reason
            else f"this process does not hold the lease of fleet {fleet}",
            why=self._reason,
            where=place,
        )

    def check(self, connection: Connection, fleet: str, place: str) -> None:
        """Lock the row of ``fleet`` until the transaction ends, and compare the epoch.

        Raises:
            LeaseLostError: this process does not hold the lease; nothing was written.
        """
        own_epoch = self.epoch  # read once: the thread that renews the lease may lose it meanwhile
        if own_epoch is None and self._required:
            raise self.lease_lost_error(fleet, place)
        lock = self._lock_epoch if own_epoch is not None else self._lock_epoch_when_free
        epoch, serial = lock(connection, fleet)
        if epoch is None and own_epoch is None:
            connection.execute(
                text(
                    "INSERT INTO fleet (name, serial, epoch, cluster) VALUES (:fleet, 0, 0, '')"
                    " ON CONFLICT DO NOTHING"
                ),
                {"fleet": fleet},
            )
            self._lock_epoch(connection, fleet)
        elif own_epoch is not None:
            why = self._why_lost(own_epoch, epoch, serial)
            if why:
                self.leave(why)
                raise self.lease_lost_error(fleet, place)
            self.committed(serial)

    def _why_lost(self, own_epoch: int, epoch: int | None, serial: int) -> str:
        """Return why this process may not write to what is recorded, empty if it may."""
        if epoch is not None and epoch > own_epoch:
            return f"another process acquired it (epoch {epoch}, ours was {own_epoch})"
        if epoch != own_epoch or serial < self._serial:
            return (
                f"the recorded state is older than what this process has written (serial {serial}, "
                f"ours was {self._serial}): a copy of it was restored while it was in use"
            )
        return ""

    def _lock_epoch_when_free(self, connection: Connection, fleet: str) -> tuple[int | None, int]:
        """Lock the row beside an engine that may be writing, or be frozen while it writes."""
        if connection.dialect.name == "sqlite":
            return self._lock_epoch(connection, fleet)
        attempts = 0
        while True:
            end_stalled_write(connection, fleet)
            attempts += 1
            try:
                with connection.begin_nested():
                    connection.execute(_SET_LOCK_TIMEOUT, {"limit": "1s"})
                    found = self._lock_epoch(connection, fleet)
                    connection.execute(_SET_LOCK_TIMEOUT, {"limit": "0"})
                    return found
            except DBAPIError as error:
                if not was_locked(error) or attempts == _ATTEMPTS:
                    raise

    def _lock_epoch(self, connection: Connection, fleet: str) -> tuple[int | None, int]:
        """Return the epoch and the serial of the fleet, None and 0 if it has no row."""
        if connection.dialect.name == "sqlite":
            row = connection.execute(_CHECKED_IN_FILE, {"fleet": fleet}).first()
        else:
            row = connection.execute(_CHECKED_ON_SERVER, {"fleet": fleet, **IDLE_MAX}).first()
        return (None, 0) if row is None else (row.epoch, row.serial)
