"""Connections to the two databases, and transactions that behave alike on both.

SQLite's file is opened in WAL mode with every commit synced to the disk: what a method wrote
before it returned survives any crash. A transaction that writes says so when it begins, and so
waits for another writer instead of failing half way.
"""

from __future__ import annotations

import os
import re
import socket
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from sqlalchemy import Connection, Engine, create_engine, event, select, update
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError, NoSuchModuleError
from sqlalchemy.pool import QueuePool

from reconciler.adapters.database import tables
from reconciler.adapters.database.errors import translated
from reconciler.adapters.nofollow import refuse_link
from reconciler.model.errors import StateError
from reconciler.model.urls import taken_apart, without_secrets

FILE: Final = "state.db"

_WAIT_S: Final = 10
"""How long a writer waits for another one, and a client for a server."""

_SQLITE_MIN: Final = (3, 37)
"""The first SQLite with STRICT tables."""


@dataclass(frozen=True, slots=True)
class Database:
    """One fleet's share of a database.

    ``place`` is how messages name it: a file, or a URL without its password. ``folder`` is the
    state directory, None for a server.
    """

    engine: Engine
    fleet: str
    place: str
    folder: Path | None

    @contextmanager
    def reading(self) -> Iterator[Connection]:
        """Give a connection within a transaction that only reads."""
        with translated(self.place), self.engine.connect() as connection, connection.begin():
            yield connection

    @contextmanager
    def writing(self) -> Iterator[Connection]:
        """Give a connection within a transaction that is the only one to write for this fleet."""
        with translated(self.place), begin_writing(self.engine) as connection:
            connection.execute(
                insert(connection, tables.fleet)
                .values(name=self.fleet, serial=0)
                .on_conflict_do_nothing()
            )
            chosen = tables.fleet.c.name == self.fleet
            connection.execute(select(tables.fleet.c.serial).where(chosen).with_for_update())
            yield connection

    def raise_serial(self, connection: Connection) -> None:
        """Note that a belief changed; ``connection`` is one of ``writing``."""
        table = tables.fleet
        connection.execute(
            update(table).where(table.c.name == self.fleet).values(serial=table.c.serial + 1)
        )


def insert(connection: Connection, table: Any) -> sqlite.Insert | postgresql.Insert:
    """Return an INSERT that knows ON CONFLICT, in the dialect of the connection."""
    if connection.dialect.name == "sqlite":
        return sqlite.insert(table)
    return postgresql.insert(table)


@contextmanager
def begin_writing(engine: Engine) -> Iterator[Connection]:
    """Give a connection within a transaction that is allowed to write."""
    with engine.connect() as connection:
        writer = connection.execution_options(reconciler_writes=True)
        with writer.begin():
            yield writer


def is_url(location: str) -> bool:
    """Return whether ``location`` names a server rather than a folder."""
    return "://" in location


def connect_sqlite(folder: Path) -> Engine:
    """Return an engine for the file in ``folder``, which must exist; the file is made if needed.

    Raises:
        StateError: the SQLite of this Python is too old.
    """
    if sqlite3.sqlite_version_info < _SQLITE_MIN:
        raise StateError(
            f"this Python has SQLite {sqlite3.sqlite_version}; strict tables need 3.37",
            where=str(folder),
            remedy="use a newer Python build, or a PostgreSQL URL as state",
        )
    path = folder / FILE

    def connection() -> sqlite3.Connection:
        for ending in ("", "-wal", "-shm", "-journal"):
            refuse_link(f"{path}{ending}")
        raw = sqlite3.connect(path, timeout=_WAIT_S, isolation_level=None, check_same_thread=False)
        try:
            raw.execute("PRAGMA journal_mode = WAL")
            raw.execute("PRAGMA synchronous = FULL")
            raw.execute("PRAGMA foreign_keys = ON")
        except sqlite3.Error:
            raw.close()
            raise
        return raw

    # The pool must be named: for a URL without a file SQLAlchemy takes one that closes
    # connections which other threads still use.
    engine = create_engine("sqlite+pysqlite://", creator=connection, poolclass=QueuePool)
    event.listen(engine, "begin", _begin)
    return engine


def _begin(connection: Connection) -> None:
    writes = connection.get_execution_options().get("reconciler_writes")
    connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")


def _server_url(location: str, shown: str) -> URL:
    """Return the parts of a database URL.

    User and password are taken out before SQLAlchemy and the driver read the rest, so that no
    message of theirs can show a part of them.

    Raises:
        StateError: it is malformed.
    """
    remedy = (
        "use postgresql+psycopg://user@host:5432/database, and put the password into PGPASSWORD"
    )
    what = ""
    try:
        bare, user, password = taken_apart(location)
    except ValueError as error:
        raise StateError(str(error), where=shown, remedy=remedy) from error
    try:
        parts = urlsplit(bare)
        if parts.port == 0:
            what = "the port in the state URL must be from 1 to 65535"
    except ValueError:
        what = "the host or port in the state URL is malformed"
    try:
        url = make_url(bare)
    except (ArgumentError, ValueError):
        what = what or "the state location is not a URL"
    if what or re.search(r"\s", bare):
        # chained to nothing: what the parsers say shows parts of the URL
        what = what or "the state location is not a URL because it contains a space"
        raise StateError(what, where=shown, remedy=remedy)
    return url.set(username=user or url.username, password=password or url.password)


def connect_server(location: str, fleet: str) -> tuple[Engine, str]:
    """Return an engine for a database URL, and the URL as messages may show it.

    Raises:
        StateError: the URL is none, or of a database that we do not know.
    """
    remedy = "use postgresql+psycopg://user@host:5432/database, or the path of a folder"
    shown = without_secrets(location, is_value=True)
    url = _server_url(location, shown)
    if url.drivername in ("postgresql", "postgres"):
        url = url.set(drivername="postgresql+psycopg")
    if url.drivername != "postgresql+psycopg":
        raise StateError(f"unsupported database {url.drivername}", where=shown, remedy=remedy)
    name = f"reconciler {fleet} {os.getpid()}@{socket.gethostname()}"[:63]
    try:
        engine = create_engine(
            url,
            pool_pre_ping=True,
            connect_args={"connect_timeout": _WAIT_S, "application_name": name},
        )
    except (ImportError, NoSuchModuleError) as error:
        raise StateError(
            "PostgreSQL needs the package psycopg",
            where=shown,
            remedy="pip install 'reconciler[postgres]'",
        ) from error
    _expect_known_options(url, shown)
    return engine, shown


def _expect_known_options(url: URL, shown: str) -> None:
    """Refuse options that the driver would complain about by name: it may be half a password.

    Raises:
        StateError: the URL has one.
    """
    from psycopg.pq import Conninfo

    known = {option.keyword.decode() for option in Conninfo.get_defaults()}
    if not known.issuperset(url.query):
        raise StateError(
            "the state URL has an option that PostgreSQL does not know",
            where=shown,
            remedy="write & inside a value as %26",
        )
