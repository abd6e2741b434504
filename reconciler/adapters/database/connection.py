"""Connections to SQLite and PostgreSQL, and transactions that behave alike on both.

SQLite's file is opened in WAL mode with every commit synced to disk: what a method wrote before it
returned survives any crash. A writing transaction declares that when it begins, so it waits for
another writer instead of failing halfway.

Errors of a database or a disk become StateErrors here. The message names the file or server, the
original error, and what the operator can do.
"""

from __future__ import annotations

import os
import re
import socket
import sqlite3
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import Enum
from pathlib import Path
from typing import Final, TypeVar
from urllib.parse import urlsplit

import msgspec
from sqlalchemy import Connection, Engine, Table, create_engine, event, update
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError, DBAPIError, IntegrityError, NoSuchModuleError
from sqlalchemy.exc import TimeoutError as PoolTimeout
from sqlalchemy.pool import QueuePool

from reconciler.adapters.database import tables
from reconciler.adapters.database.leases.fence import Fence
from reconciler.adapters.database.location import FILE
from reconciler.adapters.nofollow import refuse_linked_journal, refuse_special_file
from reconciler.model.decode import decode_json, describe_mismatch
from reconciler.model.errors import StateError
from reconciler.model.text.quoting import quote_value
from reconciler.model.text.urls import is_loopback, split_credentials, without_secrets

RESTORE: Final = (
    "stop the engine and restore a backup (`state.db.before-*`), or start with an empty "
    "folder and `reconciler state import` an export"
)

_FREE_SPACE: Final = "free some space on this disk, then start again; no partial data was written"
_REMEDIES: Final = (
    ("not a database", RESTORE),
    ("malformed", RESTORE),
    (
        "disk i/o error",
        "free some space on this disk, or check it and the system log; then start again",
    ),
    ("full", _FREE_SPACE),
    ("no space left", _FREE_SPACE),
    ("quota", _FREE_SPACE),
    ("readonly", "give this user write permission for the folder and its files"),
    ("read-only", "give this user write permission for the folder and its files"),
    ("permission denied", "give this user read and write permission for the folder"),
    ("unable to open", "give this user read and write permission for the folder"),
    (
        "is locked",
        ("another process is writing for a long time; `reconciler status` shows which one"),
    ),
    ("no such table", "run `reconciler state check`"),
    (
        "does not support ssl",
        (
            "enable TLS on the server; to send the password and the state in clear text, add "
            "?sslmode=disable to the URL"
        ),
    ),
    ("password", "correct the user and the password in the URL, or set PGPASSWORD"),
    ("does not exist", "create it on the server, or correct the URL"),
    ("refused", "start the server, or correct the host and port in the URL"),
    ("could not translate", "correct the host in the URL"),
    ("resolve", "correct the host in the URL"),
    ("timeout", "check whether the server is running and a firewall lets the connection through"),
    ("closed", "the server closed the connection; start again once it is back"),
)

_WAIT_S: Final = 10
"""How long a writer waits for another writer, and a client for a server."""

_SERIAL: Final = "serial of the fleet"
_PAUSE_S: Final = 0.01

_NOT_WRITABLE: Final = (sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN)

_LIVENESS: Final = {
    "connect_timeout": _WAIT_S,
    "keepalives": 1,
    "keepalives_idle": 3,
    "keepalives_interval": 1,
    "keepalives_count": 3,
    "tcp_user_timeout": 6000,
}
"""Parameters of libpq that make a connection to a vanished server fail within seconds.

The timeout is in milliseconds. Without it a write would wait for minutes, far beyond the lease.
"""

VALUE_BYTES_MAX: Final = 1 << 29
"""Bytes of the largest row that SQLite reads or writes, twenty times the plan of 10,000 nodes.

Its own limit is a gigabyte for each value, of which several copies are needed to decode it."""
_SQLITE_MIN: Final = (3, 37)
"""The first version of SQLite with STRICT tables."""


@contextmanager
def translate_errors(place: str) -> Iterator[None]:
    """Raise a StateError about ``place`` instead of a database's or a disk's own error.

    A violated constraint is a defect of this program and passes unchanged.
    """
    try:
        yield
    except IntegrityError:
        raise
    except (DBAPIError, PoolTimeout, OSError, UnicodeDecodeError, msgspec.MsgspecError) as error:
        raise state_error(place, error) from error


def state_error(place: str, error: Exception) -> StateError:
    """Return ``error`` as a StateError, in one line."""
    message = without_secrets(_first_line(error))
    lower = message.lower()
    remedy = next((advice for sign, advice in _REMEDIES if sign in lower), "")
    return StateError(
        f"cannot use the recorded state: {message}",
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


# Conversions between values and rows: times, JSON, and text that both databases can store.


T = TypeVar("T")
E = TypeVar("E", bound=Enum)


def format_time(at: datetime) -> str:
    """Return a time as UTC text with microseconds, which sorts chronologically."""
    assert at.tzinfo is not None, "a time has no time zone"
    moment = at.astimezone(UTC).replace(tzinfo=None)
    return moment.isoformat(timespec="microseconds") + "Z"


def parse_time(text: str) -> datetime:
    """Return the time that ``format_time`` wrote.

    Raises:
        StateError: another program changed the row.
    """
    with suppress(ValueError):
        found = datetime.fromisoformat(text)
        if found.tzinfo is not None:
            return found
    raise _value_error(text, "a time")


def parse_member(text: str, kind: type[E]) -> E:
    """Return the member of an enumeration with a value.

    Raises:
        StateError: another program changed the row.
    """
    try:
        return kind(text)
    except ValueError:
        raise _value_error(text, f"a value of {kind.__name__}") from None


def _value_error(text: str, wanted: str) -> StateError:
    what = f"the recorded state contains {quote_value(text, 40)} in place of {wanted}"
    return StateError(what, remedy="run `reconciler state check`")


def storable_text(text: str) -> str:
    """Return ``text`` without characters that PostgreSQL or UTF-8 cannot store."""
    return text.replace("\0", "\N{REPLACEMENT CHARACTER}").encode("utf-8", "replace").decode()


def encode_body(value: object) -> str:
    """Return a value as JSON; equal values give equal bytes."""
    return msgspec.json.encode(value, order="deterministic").decode()


def decode_body(body: str, kind: type[T], *, name: str, place: str) -> T:
    """Return the value that ``encode_body`` wrote.

    Raises:
        StateError: another program changed the row.
    """
    try:
        return decode_json(body, kind)
    except msgspec.MsgspecError as error:
        raise StateError(
            f"the record of {name} is not a {kind.__name__}: {describe_mismatch(error)}",
            where=place,
            remedy="run `reconciler state check`",
        ) from error


@dataclass(frozen=True, slots=True)
class Database:
    """One fleet's share of a database.

    ``place`` names it in messages: a file, or a URL without its password. ``folder`` is the state
    directory, None for a server. ``fence`` decides whether this process may write.
    """

    engine: Engine
    fleet: str
    place: str
    folder: Path | None
    fence: Fence = field(default_factory=Fence)

    @contextmanager
    def read_transaction(self) -> Iterator[Connection]:
        """Yield a connection within a read-only transaction."""
        with translate_errors(self.place), self.engine.connect() as connection, connection.begin():
            yield connection

    @contextmanager
    def write_transaction(self) -> Iterator[Connection]:
        """Yield a connection within the only transaction that writes for this fleet.

        Raises:
            LeaseLostError: this process does not hold the lease of the fleet.
        """
        with translate_errors(self.place), begin_writing(self.engine) as connection:
            self.fence.check(connection, self.fleet, self.place)
            connection.info.pop(_SERIAL, None)
            yield connection
            serial = connection.info.get(_SERIAL)
        if serial is not None:
            self.fence.committed(serial)

    def increment_serial(self, connection: Connection) -> None:
        """Increase the serial of the fleet; ``connection`` comes from ``write_transaction``."""
        table = tables.fleet
        grown = update(table).where(table.c.name == self.fleet).values(serial=table.c.serial + 1)
        connection.info[_SERIAL] = connection.execute(grown.returning(table.c.serial)).scalar()


def insert(connection: Connection, table: Table) -> sqlite.Insert | postgresql.Insert:
    """Return an INSERT with support for ON CONFLICT, in the dialect of the connection."""
    if connection.dialect.name == "sqlite":
        return sqlite.insert(table)
    return postgresql.insert(table)


@contextmanager
def begin_writing(engine: Engine) -> Iterator[Connection]:
    """Yield a connection within a transaction that may write."""
    with engine.connect() as connection:
        writer = connection.execution_options(reconciler_writes=True)
        with writer.begin():
            yield writer


def connect_sqlite(folder: Path, *, writes: bool = True) -> Engine:
    """Return an engine for the file in ``folder``, which must exist; the file is created if needed.

    Unless it ``writes``, a read-only file system is sufficient.

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
            refuse_special_file(f"{path}{ending}")
        refuse_linked_journal(f"{path}-journal")
        raw = sqlite3.connect(path, timeout=_WAIT_S, isolation_level=None, check_same_thread=False)
        try:
            raw.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, VALUE_BYTES_MAX)
            _write_ahead(raw)
            raw.execute("PRAGMA synchronous = FULL")
            raw.execute("PRAGMA foreign_keys = ON")
            raw.execute("PRAGMA trusted_schema = OFF")
        except sqlite3.Error as error:
            raw.close()
            if writes or error.sqlite_errorcode & 0xFF not in _NOT_WRITABLE:
                raise
            return _connect_read_only(path)
        return raw

    # The pool must be set: for a URL without a file, SQLAlchemy uses one that closes connections
    # which other threads still use.
    engine = create_engine("sqlite+pysqlite://", creator=connection, poolclass=QueuePool)
    event.listen(engine, "begin", _begin_transaction)
    return engine


def _write_ahead(raw: sqlite3.Connection) -> None:
    """Let the file have a write-ahead log.

    While another connection creates the file, SQLite refuses this at once, whatever its timeout is.
    """
    deadline = time.monotonic() + _WAIT_S
    while True:
        try:
            raw.execute("PRAGMA journal_mode = WAL")
        except sqlite3.OperationalError as error:
            is_locked = error.sqlite_errorcode & 0xFF == sqlite3.SQLITE_BUSY
            if not is_locked or time.monotonic() > deadline:
                raise
            time.sleep(_PAUSE_S)
        else:
            return


def _connect_read_only(path: Path) -> sqlite3.Connection:
    """Return a connection to a file on a read-only file system.

    To read a file in WAL mode SQLite creates another one beside it, unless the file is declared
    immutable. It is immutable while it has no log, because every writer creates one first.
    """
    log = path.with_name(f"{path.name}-wal")
    url = f"{path.as_uri()}?mode=ro" + ("" if log.exists() else "&immutable=1")
    raw = sqlite3.connect(
        url, uri=True, timeout=_WAIT_S, isolation_level=None, check_same_thread=False
    )
    raw.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, VALUE_BYTES_MAX)
    return raw


def _begin_transaction(connection: Connection) -> None:
    writes = connection.get_execution_options().get("reconciler_writes")
    if writes:
        # Pages in memory would hide that another program has changed or truncated the file.
        connection.exec_driver_sql("PRAGMA shrink_memory")
    connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")


def _server_url(location: str, safe_url: str) -> URL:
    """Return the parts of a database URL.

    User and password are removed before SQLAlchemy and the driver parse the rest, so that none of
    their messages can show a part of them.

    Raises:
        StateError: it is malformed.
    """
    remedy = (
        "use postgresql+psycopg://user@host:5432/database, and put the password into PGPASSWORD"
    )
    what = ""
    try:
        bare, user, password = split_credentials(location)
    except ValueError as error:
        raise StateError(str(error), where=safe_url, remedy=remedy) from error
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
        # not chained: the messages of the parsers show parts of the URL
        what = what or "the state location is not a URL because it contains a space"
        raise StateError(what, where=safe_url, remedy=remedy)
    return url.set(username=user or url.username, password=password or url.password)


def connect_server(
    location: str, application: str, pool_max: int | None = None
) -> tuple[Engine, str]:
    """Return an engine for a database URL, and the URL without secrets for messages.

    ``application`` names this process to the server, which adds where it runs. The pool of the
    engine has at most ``pool_max`` connections, by default as many as SQLAlchemy's.

    Raises:
        StateError: the URL is malformed, or its database is not supported.
    """
    remedy = "use postgresql+psycopg://user@host:5432/database, or the path of a folder"
    safe_url = without_secrets(location, is_value=True)
    url = _server_url(location, safe_url)
    if url.drivername in ("postgresql", "postgres"):
        url = url.set(drivername="postgresql+psycopg")
    if url.drivername != "postgresql+psycopg":
        raise StateError(f"unsupported database {url.drivername}", where=safe_url, remedy=remedy)
    name = f"{application} {os.getpid()}@{socket.gethostname()}"[:63]
    try:
        arguments = {"application_name": name, **_LIVENESS, **required_encryption(url)}
        engine = create_engine(
            url,
            pool_pre_ping=True,
            **({} if pool_max is None else {"pool_size": pool_max, "max_overflow": 0}),
            # Options of the URL take precedence. A proxy that pools transactions uses different
            # sessions, in which prepared statements would be unknown.
            connect_args={
                "prepare_threshold": None,
                **{key: value for key, value in arguments.items() if key not in url.query},
            },
        )
    except (ImportError, NoSuchModuleError) as error:
        from reconciler.installation import install_remedy

        raise StateError(
            "PostgreSQL needs the package psycopg",
            where=safe_url,
            remedy=install_remedy("postgres"),
        ) from error
    _expect_known_options(url, safe_url)
    return engine, safe_url


def required_encryption(url: URL) -> dict[str, str]:
    """Return the parameter that requires TLS, unless the operator has chosen or there is no need.

    By default libpq sends password and data in clear text to a server that declines TLS
    (``sslmode=prefer``). A mode in the URL or in PGSSLMODE is the operator's choice, whatever it
    is, and so is a stricter one of a service: a parameter would replace ``verify-full`` of its
    file. Connections within this machine need no encryption.

    Raises:
        ImportError: psycopg is not installed, which reads the file of services.
    """
    if url.query.get("sslmode") or os.environ.get("PGSSLMODE"):
        return {}
    service = _listed(url, "service") or os.environ.get("PGSERVICE", "")
    if service:  # the server is named in a file
        return {} if _mode_of_service(service).startswith("verify-") else {"sslmode": "require"}
    is_local = all(host.startswith(("/", "@")) or is_loopback(host) for host in _hosts(url))
    return {} if is_local else {"sslmode": "require"}


def _hosts(url: URL) -> Iterator[str]:
    """Return where libpq connects to: ``hostaddr`` counts, whatever the name of the host is."""
    names = ",".join(filter(None, (url.host, _listed(url, "host")))) or os.environ.get("PGHOST", "")
    addresses = _listed(url, "hostaddr") or os.environ.get("PGHOSTADDR", "")
    return filter(None, f"{names},{addresses}".split(","))


def _mode_of_service(name: str) -> str:
    """Return the ``sslmode`` that libpq finds in its files for a service, by default ``prefer``."""
    from psycopg.pq import Conninfo

    before = os.environ.get("PGSERVICE")
    os.environ["PGSERVICE"] = name  # libpq has no other way to ask
    try:
        options = Conninfo.get_defaults()
    finally:
        del os.environ["PGSERVICE"]
        if before is not None:
            os.environ["PGSERVICE"] = before
    found = {option.keyword: option.val for option in options}
    return (found.get(b"sslmode") or b"").decode("ascii", "replace")


def _listed(url: URL, key: str) -> str:
    value = url.query.get(key, "")
    return value if isinstance(value, str) else ",".join(value)


def _expect_known_options(url: URL, safe_url: str) -> None:
    """Reject options that the driver would name in an error: one may be half a password.

    Raises:
        StateError: the URL has one.
    """
    from psycopg.pq import Conninfo

    known = {option.keyword.decode() for option in Conninfo.get_defaults()}
    if not known.issuperset(url.query):
        raise StateError(
            "the state URL has an option that PostgreSQL does not know",
            where=safe_url,
            remedy="write & inside a value as %26",
        )
