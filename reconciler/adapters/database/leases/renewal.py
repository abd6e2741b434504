"""The renewal of leases on a server: one thread and one connection for all leases of a process.

The connection is not one of the pool, whose connections writers may occupy. No statement on it
waits for a lock: a row that is locked is renewed a moment later.
"""

from __future__ import annotations

from contextlib import suppress
from threading import Event, Lock, Thread
from typing import Protocol

from sqlalchemy import Connection, Engine, Executable
from sqlalchemy.exc import DBAPIError

from reconciler.adapters.database.connection import translate_errors
from reconciler.model.errors import ReconcilerError


class Renewable(Protocol):
    """A lease that must be renewed from time to time."""

    def confirm(self) -> None:
        """Renew the lease if that is due.

        Raises:
            ReconcilerError: the lease is lost.
        """


class LeaseRenewals:
    """Renews the leases that are held on one server, on a separate connection.

    Thread-safe. The thread and the connection exist while there is a lease.
    """

    def __init__(self, engine: Engine, place: str) -> None:
        self._engine = engine
        self._place = place
        self._statement_lock = Lock()
        self._leases_lock = Lock()
        self._connection: Connection | None = None
        self._leases: list[Renewable] = []
        self._interval_s = 0.0
        self._ended = Event()
        self._thread: Thread | None = None

    def add(self, lease: Renewable, interval_s: float) -> None:
        """Confirm a lease every ``interval_s`` seconds until it is lost or removed."""
        with self._leases_lock:
            self._interval_s = min(self._interval_s, interval_s) if self._leases else interval_s
            self._leases.append(lease)
            if self._thread is None or not self._thread.is_alive():
                self._ended = Event()
                self._thread = Thread(
                    target=self._confirm_leases,
                    args=(self._ended,),
                    name="lease renewal",
                    daemon=True,
                )
                self._thread.start()

    def remove(self, lease: Renewable) -> None:
        """Stop renewing a lease; after the last one the connection is closed."""
        with self._leases_lock:
            self._leases = [other for other in self._leases if other is not lease]
            if self._leases:
                return
            thread, self._thread = self._thread, None
            self._ended.set()
        if thread is not None:
            thread.join()
        with self._leases_lock, self._statement_lock:
            if not self._leases:
                self._drop_connection()

    def close(self) -> None:
        """Close the pool of the connection, if it is not the pool of the writers."""
        self._engine.dispose()

    def execute(self, statement: Executable) -> int:
        """Execute a statement and return the number of rows that it changed or selected.

        A broken connection is opened again once.

        Raises:
            StateError: the server does not answer.
        """
        with self._statement_lock, translate_errors(self._place):
            for is_last in (self._connection is None, True):
                try:
                    result = self._ensure_connection().execute(statement)
                    return len(result.all()) if result.returns_rows else int(result.rowcount)
                except DBAPIError:
                    self._drop_connection()
                    if is_last:
                        raise
        raise AssertionError("the last attempt returns or raises")

    def _confirm_leases(self, ended: Event) -> None:
        """Confirm the leases until none is left."""
        while not ended.wait(self._interval_s):
            with self._leases_lock:
                leases = list(self._leases)
            for lease in leases:
                try:
                    lease.confirm()
                except ReconcilerError:
                    # The next effect reports it, and its holder removes it.
                    continue

    def _ensure_connection(self) -> Connection:
        if self._connection is None:
            engine = self._engine.execution_options(isolation_level="AUTOCOMMIT")
            connection = engine.connect()
            connection.detach()
            self._connection = connection
        return self._connection

    def _drop_connection(self) -> None:
        if self._connection is not None:
            connection, self._connection = self._connection, None
            with suppress(DBAPIError):
                connection.close()
