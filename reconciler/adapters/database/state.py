"""Opening the recorded state, in a folder or on a server.

The fleets of one process share their connections to a server.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from threading import Lock
from types import TracebackType
from typing import Final, Self

from sqlalchemy import Engine

from reconciler.adapters.database.connection import (
    Database,
    connect_server,
    connect_sqlite,
    translate_errors,
)
from reconciler.adapters.database.history import DatabaseHistory, DatabaseTrace
from reconciler.adapters.database.journal import DatabaseJournal
from reconciler.adapters.database.leases.fence import Fence
from reconciler.adapters.database.leases.lease import LOCK, FileLease, ServerLease, recorded_cluster
from reconciler.adapters.database.leases.lock import FileLock
from reconciler.adapters.database.leases.renewal import LeaseRenewals
from reconciler.adapters.database.location import FILE, SIMULATED, is_url
from reconciler.adapters.database.migration import HEAD, current_migration, migrate
from reconciler.adapters.database.predictions import DatabasePredictions
from reconciler.adapters.database.store import DatabaseShelf, DatabaseStateStore
from reconciler.adapters.nofollow import open_file
from reconciler.model.errors import FleetConflictError, StateError
from reconciler.model.ownership import ClusterId

_HIDDEN: Final = ".reconciler"
"""The state directory in a fleet folder; it may contain a clone before it contains a state."""

_WAIT_S: Final = 30
"""How long a process waits for another one that migrates."""

CONNECTIONS_MAX: Final = 3
"""How many connections the fleets of a process share, besides the one that renews leases.

A transaction of the state lasts for milliseconds, and holds one connection at a time."""


@dataclass(frozen=True, slots=True)
class Server:
    """The connections of a process to one server, which its fleets share.

    ``place`` is the URL without secrets.
    """

    engine: Engine
    place: str
    renewals: LeaseRenewals


@dataclass(frozen=True, slots=True)
class DatabaseState:
    """The recorded state of one fleet. Close it, or use it in a ``with`` statement.

    Its parts are thread-safe. ``on_close`` is called when it has been closed.
    """

    database: Database
    store: DatabaseStateStore
    journal: DatabaseJournal
    shelf: DatabaseShelf
    history: DatabaseHistory
    trace: DatabaseTrace
    predictions: DatabasePredictions
    lease: FileLease | ServerLease
    is_shared: bool = False
    on_close: list[Callable[[], None]] = field(default_factory=list)

    def cluster(self) -> ClusterId:
        """Return the cluster that the fleet acted for last, none if EC2 was simulated."""
        with self.database.read_transaction() as connection:
            return recorded_cluster(connection, self.database.fleet)

    def close(self) -> None:
        """Release the lease, and close all connections that are not shared."""
        self.lease.release()
        if not self.is_shared:
            self.database.engine.dispose()
        while self.on_close:
            self.on_close.pop()()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def open_state(
    location: str,
    fleet: str,
    *,
    create: bool = True,
    needs_lease: bool = True,
    locks: Path | None = None,
    server: Server | None = None,
) -> DatabaseState:
    """Open the state at ``location`` (a folder or a database URL) for the fleet of that name.

    With ``create`` it is created if it does not exist, and migrated if an older release wrote it.
    Without it, as for commands that only read, it is neither created nor migrated.

    Writing needs the lease, unless ``needs_lease`` is False: for records that a person adds while
    an engine runs. In ``locks`` clusters are locked for all state directories. ``server`` has the
    connections to share where ``location`` is a URL.

    Raises:
        StateError: it cannot be used; the message states the reason and the remedy.
        LockedError: it needs a migration while another process holds it.
    """
    fence = Fence(required=needs_lease)
    if server is not None:
        database = Database(server.engine, fleet, server.place, None, fence)
    else:
        database = _connect(location, fleet, fence, create=create)
    try:
        _migrate_if_needed(database, create=create)
    except BaseException:
        if server is None:
            database.engine.dispose()
        raise
    return DatabaseState(
        database=database,
        store=DatabaseStateStore(database),
        journal=DatabaseJournal(database),
        shelf=DatabaseShelf(database),
        history=DatabaseHistory(database),
        trace=DatabaseTrace(database),
        predictions=DatabasePredictions(database),
        lease=ServerLease(database, renewals=server.renewals if server is not None else None)
        if database.folder is None
        else FileLease(database, database.folder, locks),
        is_shared=server is not None,
    )


def _connect(location: str, fleet: str, fence: Fence, *, create: bool) -> Database:
    if is_url(location):
        engine, place = connect_server(location, f"reconciler {fleet}")
        return Database(engine, fleet, place, None, fence)
    folder = Path(location).absolute()
    if create:
        _make_folder(folder)
    elif not (folder / FILE).exists():
        simulated = folder / SIMULATED
        elsewhere = (
            f"that of --simulated is read with --state {simulated}"
            if (simulated / FILE).exists()
            else "to use another location, pass --state"
        )
        raise StateError(
            "no recorded state in this folder yet",
            where=str(folder),
            remedy=f"it is created by the first `reconciler apply` or `run`; {elsewhere}",
        )
    return Database(connect_sqlite(folder, writes=create), fleet, str(folder / FILE), folder, fence)


def _make_folder(folder: Path) -> None:
    """Create the state directory, readable only by its owner and ignored by git."""
    with translate_errors(str(folder)):
        nearest = next(place for place in (folder, *folder.parents) if place.exists())
        if not nearest.is_dir():
            raise StateError(
                "this is a file, but the state needs a folder",
                where=str(nearest),
                remedy="pass a folder",
            )
        if nearest != folder:
            folder.parent.mkdir(parents=True, exist_ok=True)
            with suppress(FileExistsError):  # another process was faster
                folder.mkdir(mode=0o700)
        elif folder.name != _HIDDEN:
            return  # a folder of the user, who decides what git tracks in it
        ignore = folder / ".gitignore"
        if not ignore.exists():
            with os.fdopen(open_file(ignore, os.O_WRONLY | os.O_CREAT), "wb") as file:
                file.write(b"*\n")


def _migrate_if_needed(database: Database, *, create: bool) -> None:
    """Migrate if that is needed and allowed; one process at a time."""
    found = current_migration(database.engine, database.place)
    if found == HEAD:
        return
    if not create:
        if found is None:
            raise StateError(
                "no recorded state in this folder yet",
                where=database.place,
                remedy="it is created by the first `reconciler apply` or `run`",
            )
        raise StateError(
            (
                f"the state was written by an older release (migration {found}, this release needs "
                f"{HEAD})"
            ),
            where=database.place,
            remedy="run `reconciler state migrate`",
        )
    if database.folder is None:
        migrate(database.engine, database.place, None)
        return
    with FileLock(database.folder / LOCK).hold(_WAIT_S):
        migrate(database.engine, database.place, database.folder)
        if os.name == "posix":
            with translate_errors(database.place):
                (database.folder / FILE).chmod(0o600)


@dataclass
class SharedStates:
    """Opens the states of several fleets with one pool of connections for each server.

    Thread-safe. Each fleet is open once: a second folder with the same name, or the same state
    directory, is refused instead of waiting for a lease that this process holds itself.
    """

    application: str
    _mutex: Lock = field(default_factory=Lock, init=False)
    _servers: dict[str, Server] = field(default_factory=dict, init=False)
    _open: dict[tuple[str, str], str] = field(default_factory=dict, init=False)
    _clusters: dict[str, str] = field(default_factory=dict, init=False)
    _states: list[DatabaseState] = field(default_factory=list, init=False)

    def open(self, location: str, fleet: str, locks: Path | None = None) -> DatabaseState:
        """Open a state as ``open_state`` does; closing it keeps the connections open.

        Raises:
            StateError: it cannot be used, or another fleet of this process uses it.
        """
        key = (location, fleet) if is_url(location) else (str(Path(location).resolve()), "")
        with self._mutex:
            other = self._open.get(key)
            if other is not None:
                raise _in_use_error(location, fleet, other)
            self._open[key] = fleet
        try:
            server = self.server(location) if is_url(location) else None
            state = open_state(location, fleet, locks=locks, server=server)
        except BaseException:
            self._forget(key)
            raise
        with self._mutex:
            self._states.append(state)
        state.on_close.append(lambda: self._forget(key, state))
        return state

    def states_by_server(self) -> dict[str, tuple[Server, list[DatabaseState]]]:
        """Return the servers by their places, with the states that are open there."""
        with self._mutex:
            found = {s.place: (s, list[DatabaseState]()) for s in self._servers.values()}
            for state in self._states:
                if state.database.place in found:
                    found[state.database.place][1].append(state)
            return found

    def server(self, location: str) -> Server:
        """Return the connections to the server with this URL; they connect at the first query.

        Raises:
            StateError: the URL is malformed, or its database is not supported.
        """
        with self._mutex:
            server = self._servers.get(location)
            if server is None:
                engine, place = connect_server(location, self.application, CONNECTIONS_MAX)
                # Leases have a separate pool: writers may occupy the other one.
                renewing, _ = connect_server(location, self.application, 1)
                server = Server(engine, place, LeaseRenewals(renewing, place))
                self._servers[location] = server
            return server

    @contextmanager
    def reserve_cluster(self, cluster: str, fleet: str) -> Iterator[None]:
        """Reserve a cluster for one fleet of this process while the block runs.

        ``cluster`` is the address of its API: a kubeconfig may lead two fleets to the same one.

        Raises:
            FleetConflictError: another fleet acts for it.
        """
        with self._mutex:
            other = self._clusters.setdefault(cluster, fleet)
        if other != fleet:
            raise FleetConflictError(
                f"fleet {other} of this process already acts for the cluster of fleet {fleet}",
                where=cluster,
                remedy="name a context for each fleet in a folder of files for --config",
            )
        try:
            yield
        finally:
            with self._mutex:
                self._clusters.pop(cluster, None)

    def close(self) -> None:
        """Close all connections; every state has been closed before."""
        with self._mutex:
            servers, self._servers = list(self._servers.values()), {}
        for server in servers:
            server.engine.dispose()
            server.renewals.close()

    def _forget(self, key: tuple[str, str], state: DatabaseState | None = None) -> None:
        with self._mutex:
            self._open.pop(key, None)
            self._states = [other for other in self._states if other is not state]


def _in_use_error(location: str, fleet: str, other: str) -> StateError:
    if is_url(location):
        return StateError(
            f"two folders of this process have a fleet of the name {fleet}",
            remedy="set `fleet` in the reconciler.yaml of one of them",
        )
    return StateError(
        f"fleet {other} of this process already uses this state directory",
        where=location,
        remedy="use a PostgreSQL URL, or let each fleet have a state in its own folder",
    )
