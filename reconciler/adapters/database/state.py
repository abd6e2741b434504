"""Opening the recorded state, in a folder or on a server."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from sqlalchemy import Engine

from reconciler.adapters.database.connection import (
    Database,
    connect_server,
    connect_sqlite,
    translated,
)
from reconciler.adapters.database.history import DatabaseHistory
from reconciler.adapters.database.journal import DatabaseJournal
from reconciler.adapters.database.leases.fence import Fence
from reconciler.adapters.database.leases.lease import LOCK, FileLease, ServerLease
from reconciler.adapters.database.leases.lock import FileLock
from reconciler.adapters.database.leases.renewal import LeaseRenewals
from reconciler.adapters.database.location import FILE, is_url
from reconciler.adapters.database.migration import HEAD, migrate, revision_of
from reconciler.adapters.database.store import DatabaseShelf, DatabaseStateStore
from reconciler.adapters.database.trace import DatabaseTrace
from reconciler.adapters.nofollow import open_file
from reconciler.model.errors import StateError

_HIDDEN: Final = ".reconciler"
"""The state directory in a fleet folder; it may contain a clone before it contains a state."""

_WAIT_S: Final = 30
"""How long a process waits for another one that migrates."""


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
    lease: FileLease | ServerLease
    is_shared: bool = False
    on_close: list[Callable[[], None]] = field(default_factory=list)

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

    With ``create`` it is made if it is not there, and migrated if an older release wrote it;
    without, as for a command that only reads, neither happens.

    Writing needs the lease. Where ``needs_lease`` is False it does not: for what a person records
    beside a running engine. In ``locks`` clusters are locked for all state directories.
    ``server`` has the connections to share where ``location`` is a URL.

    Raises:
        StateError: it cannot be used; the message says why and what to do.
        LockedError: it is to be migrated while another process holds it.
    """
    fence = Fence(required=needs_lease)
    if server is not None:
        database = Database(server.engine, fleet, server.place, None, fence)
    else:
        database = _connect(location, fleet, fence, create=create)
    try:
        _make_current(database, create=create)
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
        raise StateError(
            "no recorded state in this folder yet",
            where=str(folder),
            remedy=(
                "it is created by the first `reconciler apply` or `run`; to use another "
                "location, pass --state"
            ),
        )
    return Database(connect_sqlite(folder, writes=create), fleet, str(folder / FILE), folder, fence)


def _make_folder(folder: Path) -> None:
    """Make the state directory, for its owner only, and out of git's sight."""
    with translated(str(folder)):
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
            return  # somebody's own folder; what git sees of it is theirs to say
        ignore = folder / ".gitignore"
        if not ignore.exists():
            with os.fdopen(open_file(ignore, os.O_WRONLY | os.O_CREAT), "wb") as file:
                file.write(b"*\n")


def _make_current(database: Database, *, create: bool) -> None:
    """Migrate where that is needed and allowed; one starter at a time."""
    found = revision_of(database.engine, database.place)
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
    with FileLock(database.folder / LOCK).held(_WAIT_S):
        migrate(database.engine, database.place, database.folder)
        if os.name == "posix":
            with translated(database.place):
                (database.folder / FILE).chmod(0o600)
