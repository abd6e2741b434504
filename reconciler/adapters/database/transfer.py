"""Export and import of a fleet's state as lines of JSON.

The first line identifies the file, and the last one has the number of rows, so a truncated file is
not mistaken for a smaller state. Rows are in an order in which they can be inserted.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable, Iterator
from typing import Final

from sqlalchemy import Connection, LargeBinary, Table, func, select

from reconciler.adapters.database.connection import Database
from reconciler.adapters.database.migration import HEAD
from reconciler.adapters.database.tables import fleet, lease, metadata, replica
from reconciler.model.errors import StateError, UnreadableError
from reconciler.model.json import JsonDict

FORMAT: Final = "reconciler-state"
_BATCH: Final = 500


def export_lines(database: Database) -> Iterator[str]:
    """Yield the lines of a consistent export, each with a newline."""
    with database.reading() as connection:
        if connection.dialect.name != "sqlite":
            connection.exec_driver_sql("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        serial = connection.execute(
            select(fleet.c.serial).where(fleet.c.name == database.fleet)
        ).scalar()
        head = {"format": FORMAT, "migration": HEAD, "fleet": database.fleet}
        yield _line({**head, "serial": serial or 0})
        count = 0
        for table in _tables():
            query = select(table).where(table.c.fleet == database.fleet)
            for row in connection.execute(query.order_by(*table.primary_key)):
                values = {k: v for k, v in row._mapping.items() if k != "fleet"}  # noqa: SLF001 - its public name
                yield _line({"table": table.name, "row": _plain(table, values)})
                count += 1
        yield _line({"rows": count})


def import_lines(database: Database, lines: Iterable[str], source: str) -> int:
    """Write exported rows into a fleet without records; return their number.

    Either all rows are written or none. The fleet may have another name than the exported one.

    Raises:
        StateError: the fleet already has records.
        UnreadableError: ``source`` is not an export, is truncated, or has another schema.
    """
    with database.writing() as connection:
        _refuse_unless_empty(connection, database)
        numbered = enumerate(lines, start=1)
        serial = _head(next(numbered, (1, ""))[1], source)
        count, ended = _rows(connection, database, numbered, source)
        if ended != count:
            told = "the end is missing" if ended is None else f"expected {ended} rows"
            raise _unreadable(f"the file is truncated: {told}, but {count} were read", source)
        connection.execute(
            fleet.update().where(fleet.c.name == database.fleet).values(serial=serial)
        )
        return count


def _tables() -> list[Table]:
    """Return the exported tables: all except the lease, which belongs to this database.

    The replicas belong to no fleet.
    """
    return [table for table in metadata.sorted_tables if table not in (fleet, lease, replica)]


def _refuse_unless_empty(connection: Connection, database: Database) -> None:
    for table in _tables():
        query = select(func.count()).select_from(table).where(table.c.fleet == database.fleet)
        count = connection.execute(query).scalar()
        if count:
            raise StateError(
                f"fleet {database.fleet} already has {count} rows of {table.name}",
                where=database.place,
                remedy="import into an empty state, or select another fleet with --set fleet=NAME",
            )


def _head(line: str, source: str) -> int:
    head = _object(line, 1, source)
    if head.get("format") != FORMAT:
        raise _unreadable("the first line is not an export header", source)
    if head.get("migration") != HEAD:
        raise _unreadable(
            f"it is at migration {head.get('migration')}, but this release writes {HEAD}",
            source,
            "import it with the release that wrote it, then migrate",
        )
    serial = head.get("serial")
    if not isinstance(serial, int):
        raise _unreadable("its first line has no serial", source)
    return serial


def _rows(
    connection: Connection, database: Database, lines: Iterable[tuple[int, str]], source: str
) -> tuple[int, int | None]:
    """Write rows until the last line; return their number, and the number in that line."""
    tables = {table.name: table for table in _tables()}
    batch: list[JsonDict] = []
    current: Table | None = None
    count = 0
    for number, line in lines:
        entry = _object(line, number, source)
        if "rows" in entry:
            _write(connection, current, batch)
            return count, entry["rows"]
        table = tables.get(entry.get("table", ""))
        if table is None:
            raise _unreadable(f"line {number}: unknown table {entry.get('table')}", source)
        if table is not current or len(batch) >= _BATCH:
            _write(connection, current, batch)
            batch, current = [], table
        batch.append({"fleet": database.fleet, **_row(table, entry, number, source)})
        count += 1
    return count, None


def _write(connection: Connection, table: Table | None, rows: list[dict[str, object]]) -> None:
    if table is not None and rows:
        connection.execute(table.insert(), rows)


def _row(table: Table, entry: JsonDict, number: int, source: str) -> JsonDict:
    row = entry.get("row")
    wanted = {c.name: c for c in table.columns if c.name != "fleet"}
    if not isinstance(row, dict) or row.keys() != wanted.keys():
        raise _unreadable(f"line {number}: not a row of {table.name}", source)
    for name, column in wanted.items():
        value = row[name]
        if isinstance(column.type, LargeBinary):
            try:
                row[name] = base64.b64decode(value, validate=True)
            except (ValueError, TypeError) as error:
                raise _unreadable(f"line {number}: {name} is not base64", source) from error
        elif not _fits(value, column.type.python_type, nullable=bool(column.nullable)):
            raise _unreadable(f"line {number}: {name} is {value!r}"[:200], source)
    return row


def _fits(value: object, kind: type, *, nullable: bool) -> bool:
    if value is None:
        return nullable
    return isinstance(value, kind) and not isinstance(value, bool)


def _plain(table: Table, values: JsonDict) -> dict[str, object]:
    return {
        name: base64.b64encode(value).decode()
        if isinstance(table.c[name].type, LargeBinary)
        else value
        for name, value in values.items()
    }


def _line(value: dict[str, object]) -> str:
    return json.dumps(value, sort_keys=True, ensure_ascii=False) + "\n"


def _object(line: str, number: int, source: str) -> JsonDict:
    try:
        value = json.loads(line)
    except ValueError as error:
        raise _unreadable(f"line {number} is not JSON", source) from error
    if not isinstance(value, dict):
        raise _unreadable(f"line {number} is not an object", source)
    return value


def _unreadable(what: str, source: str, remedy: str = "") -> UnreadableError:
    return UnreadableError(
        f"not a valid export: {what}",
        where=source,
        remedy=remedy or "create one with `reconciler state export FILE`",
    )
