"""Migrations of the recorded state to the schema of this release; forward only.

An older release never reads what a newer one wrote. A SQLite file is copied before it is migrated;
a server is backed up by its operator. Alembic is imported only for a migration: at a normal start
one row shows that the schema is current.
"""

from __future__ import annotations

import os
import re
import sqlite3
from contextlib import closing
from pathlib import Path
from threading import Lock
from typing import Final

from sqlalchemy import Connection, Engine, inspect, text

from reconciler._resources import resource_path
from reconciler.adapters.database.connection import RESTORE, begin_writing, translate_errors
from reconciler.adapters.database.location import FILE
from reconciler.adapters.database.tables import VERSION_TABLE
from reconciler.model.errors import StateError
from reconciler.model.text.quoting import quote_value

HEAD: Final = "0009"
"""The newest migration in ``state/versions``; a test compares the two."""

_ADVISORY_KEY: Final = 0x7265636F6E
""""recon" as a number: the advisory lock on a server under which one process migrates."""


_FOREIGN: Final = """
SELECT name FROM sqlite_schema
 WHERE type NOT IN ('table', 'index') OR (type = 'table' AND rootpage = 0)
UNION ALL
SELECT t.name FROM sqlite_schema AS t JOIN pragma_table_xinfo(t.name) AS c
 WHERE t.type = 'table' AND c.hidden <> 0
 LIMIT 1
"""
"""The name of something in a SQLite file that is computed when it is read."""

_NUMBER: Final = re.compile(r"[0-9]{4}", re.ASCII)
_SHOWN_MAX: Final = 40

_UPGRADING: Final = Lock()
"""Alembic keeps the environment of a migration in the process: one thread at a time upgrades."""


def current_migration(engine: Engine, place: str) -> str | None:
    """Return the migration of a database, or None if it is empty.

    Raises:
        StateError: it cannot be read, is not a recorded state, or is newer than this release.
    """
    with translate_errors(place), engine.connect() as connection:
        return _read_migration(connection, place)


def migrate(engine: Engine, place: str, folder: Path | None) -> list[str]:
    """Run the missing migrations in one transaction and return their numbers.

    ``folder`` contains SQLite's file; it is None for a server.
    """
    with translate_errors(place), begin_writing(engine) as connection:
        if folder is None:
            connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": _ADVISORY_KEY})
        before = _read_migration(connection, place)
        if before == HEAD:
            return []
        if folder is not None and before is not None:
            _back_up(folder)
        _upgrade(connection)
        return [f"{n:04}" for n in range(int(before or "0") + 1, int(HEAD) + 1)]


def _read_migration(connection: Connection, place: str) -> str | None:
    if connection.dialect.name == "sqlite":
        _refuse_foreign_schema(connection, place)
    names = set(inspect(connection).get_table_names())
    if VERSION_TABLE not in names:
        if "node_claim" in names or (names and connection.dialect.name == "sqlite"):
            raise StateError(
                "a database, but not a state of reconciler", where=place, remedy=RESTORE
            )
        return None
    query = f"SELECT version_num FROM {VERSION_TABLE}"  # noqa: S608 - the name is ours
    found: str | None = connection.execute(text(query)).scalar()
    if found is not None and not (_NUMBER.fullmatch(found) and "0001" <= found <= HEAD):
        shown = found[:_SHOWN_MAX]
        raise StateError(
            f"the state is at migration {shown}, but this release supports at most {HEAD}",
            where=place,
            remedy="use the newer release that wrote it",
        )
    return found


def _refuse_foreign_schema(connection: Connection, place: str) -> None:
    """Refuse a file in which reading could evaluate expressions, which a state never contains.

    A view that takes the place of a table can be a query without an end.

    Raises:
        StateError: it contains a view, a trigger, a virtual table or a generated column.
    """
    found = connection.execute(text(_FOREIGN)).scalar()
    if found is not None:
        what = f"a database, but not a state of reconciler: it contains {quote_value(found, 80)}"
        raise StateError(what, where=place, remedy=RESTORE)


def _back_up(folder: Path) -> None:
    """Copy SQLite's file to ``state.db.before-NNNN`` atomically."""
    target = folder / f"{FILE}.before-{HEAD}"
    unfinished = target.with_name(target.name + ".part")
    unfinished.unlink(missing_ok=True)
    with (
        closing(sqlite3.connect(folder / FILE)) as source,
        closing(sqlite3.connect(unfinished)) as copy,
    ):
        source.backup(copy)
    os.replace(unfinished, target)


def _upgrade(connection: Connection) -> None:
    from alembic import command
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", resource_path("state").replace("%", "%%"))
    config.attributes["connection"] = connection
    with _UPGRADING:
        command.upgrade(config, "head")
