"""Maintenance of the recorded state: consistency checks, export and import.

An export consists of lines of JSON, one fleet in each file.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable, Iterator
from enum import StrEnum
from typing import Final, NamedTuple

import msgspec
from sqlalchemy import ColumnElement, Connection, LargeBinary, Table, func, inspect, select, text

from reconciler.adapters.database.connection import Database
from reconciler.adapters.database.migration import HEAD, current_migration
from reconciler.adapters.database.tables import (
    VERSION_TABLE,
    command,
    fleet,
    intent,
    lease,
    metadata,
    node_claim,
    object_,
    obstacle,
    outcome,
    plan,
    replica,
    rollout,
)
from reconciler.model.decode import decode_json, describe_mismatch, expect_values
from reconciler.model.errors import StateError, UnreadableError
from reconciler.model.history import Obstacle, Rollout
from reconciler.model.json import JsonDict
from reconciler.model.karpenter.nodeclaim import NodeClaim
from reconciler.model.text.quoting import quote_value
from reconciler.plan.value.plan import Plan
from reconciler.ports.journal import Intent
from reconciler.ports.state import RecordedObject, RunningCommand

VALUES_OF_ROW_MAX: Final = 10_000_000
"""The maximum number of values in a line of an export, by its commas, as of a saved plan."""

_BODIES: Final[tuple[tuple[Table, ColumnElement[str], type], ...]] = (
    (node_claim, node_claim.c.name, NodeClaim),
    (command, command.c.id, RunningCommand),
    (object_, object_.c.name, RecordedObject),
    (intent, intent.c.id, Intent),
    (plan, plan.c.digest, Plan),
    (rollout, rollout.c.node_pool, Rollout),
    (obstacle, obstacle.c.name, Obstacle),
)

FORMAT: Final = "reconciler-state"
_BATCH: Final = 500


class ProblemSeverity(StrEnum):
    """The severity of a problem: a note is information, an error must be fixed."""

    ERROR = "error"
    NOTE = "note"


class Inconsistency(NamedTuple):
    """A problem of the recorded state; ``code`` is stable."""

    gravity: ProblemSeverity
    code: str
    message: str


def check(database: Database) -> list[Inconsistency]:
    """Return all problems of the state of a fleet, in a fixed order.

    Raises:
        StateError: the state cannot be read.
    """
    found = current_migration(database.engine, database.place)
    if found != HEAD:
        note = (
            f"the state is at migration {found}, but this release needs {HEAD}; run "
            "`reconciler state migrate`"
        )
        return [Inconsistency(ProblemSeverity.ERROR, "migration", note)]
    with database.read_transaction() as connection:
        return [
            *_file_problems(connection),
            *_missing_tables(connection),
            *_orphaned_rows(connection),
            *_undecodable_bodies(connection, database.fleet),
            *_wrong_outcomes(connection, database.fleet),
            *_shared_instances(connection, database.fleet),
            *_intents_in_doubt(connection, database.fleet),
        ]


def _file_problems(connection: Connection) -> list[Inconsistency]:
    """Return the problems that SQLite finds when it reads every page of its file."""
    if connection.dialect.name != "sqlite":
        return []
    rows = connection.exec_driver_sql("PRAGMA integrity_check(20)").scalars().all()
    return [
        Inconsistency(ProblemSeverity.ERROR, "integrity", str(row)) for row in rows if row != "ok"
    ]


def _missing_tables(connection: Connection) -> list[Inconsistency]:
    names = set(inspect(connection).get_table_names())
    missing = sorted({*metadata.tables, VERSION_TABLE} - names)
    return [
        Inconsistency(ProblemSeverity.ERROR, "table", f"table {name} is missing")
        for name in missing
    ]


def _orphaned_rows(connection: Connection) -> list[Inconsistency]:
    """Return rows whose fleet or intent is missing.

    A server rejects such rows. SQLite accepts them from tools that disable foreign keys.
    """
    if connection.dialect.name != "sqlite":
        return []
    rows = connection.exec_driver_sql(
        'SELECT "table", "parent", count(*) FROM pragma_foreign_key_check GROUP BY 1, 2 ORDER BY 1'
    )
    return [
        Inconsistency(ProblemSeverity.ERROR, "orphan", f"{count} rows of {table} have no {parent}")
        for table, parent, count in rows
    ]


def _undecodable_bodies(connection: Connection, fleet: str) -> list[Inconsistency]:
    """Return the rows whose body cannot be decoded."""
    faults = []
    for table, name, kind in _BODIES:
        query = select(name.label("name"), table.c.body).where(table.c.fleet == fleet)
        for row in connection.execute(query.order_by(name)):
            try:
                decode_json(row.body, kind)
            except msgspec.MsgspecError as error:
                what = (
                    f"{table.name} {row.name} is not a {kind.__name__}: {describe_mismatch(error)}"
                )
                faults.append(Inconsistency(ProblemSeverity.ERROR, "body", what))
    return faults


def _wrong_outcomes(connection: Connection, fleet: str) -> list[Inconsistency]:
    """Return the intents that do not refer to their last outcome."""
    last = (
        select(outcome.c.intent, func.max(outcome.c.sequence).label("sequence"))
        .where(outcome.c.fleet == fleet)
        .group_by(outcome.c.intent)
        .subquery()
    )
    query = (
        select(intent.c.id)
        .outerjoin(last, last.c.intent == intent.c.id)
        .where(
            intent.c.fleet == fleet,
            func.coalesce(intent.c.last_outcome, 0) != func.coalesce(last.c.sequence, 0),
        )
        .order_by(intent.c.sequence)
    )
    return [
        Inconsistency(
            ProblemSeverity.ERROR, "outcome", f"intent {name} does not point to its last outcome"
        )
        for name in connection.execute(query).scalars()
    ]


def _shared_instances(connection: Connection, fleet: str) -> list[Inconsistency]:
    """Return the instances that more than one existing claim has."""
    query = (
        select(node_claim.c.instance_id, func.count())
        .where(
            node_claim.c.fleet == fleet,
            node_claim.c.gone_at.is_(None),
            node_claim.c.instance_id != text("''"),
        )
        .group_by(node_claim.c.instance_id)
        .having(func.count() > 1)
        .order_by(node_claim.c.instance_id)
    )
    return [
        Inconsistency(ProblemSeverity.ERROR, "instance", f"{count} claims share instance {name}")
        for name, count in connection.execute(query)
    ]


def _intents_in_doubt(connection: Connection, fleet: str) -> list[Inconsistency]:
    query = (
        select(intent.c.id, intent.c.verb, intent.c.target, intent.c.at)
        .where(intent.c.fleet == fleet, intent.c.last_outcome.is_(None))
        .order_by(intent.c.sequence)
    )
    return [
        Inconsistency(
            ProblemSeverity.NOTE,
            "in-doubt",
            (
                f"{r.verb} of {r.target} started at {r.at} and has no outcome (intent {r.id}); the "
                "next pass checks it"
            ),
        )
        for r in connection.execute(query)
    ]


def export_lines(database: Database) -> Iterator[str]:
    """Yield the lines of a consistent export, each with a newline."""
    with database.read_transaction() as connection:
        if connection.dialect.name != "sqlite":
            connection.exec_driver_sql("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        serial = connection.execute(
            select(fleet.c.serial).where(fleet.c.name == database.fleet)
        ).scalar()
        head = {"format": FORMAT, "migration": HEAD, "fleet": database.fleet}
        yield _json_line({**head, "serial": serial or 0})
        count = 0
        for table in _exported_tables():
            query = select(table).where(table.c.fleet == database.fleet)
            for row in connection.execute(query.order_by(*table.primary_key)):
                values = {k: v for k, v in row._mapping.items() if k != "fleet"}  # noqa: SLF001 - its public name
                yield _json_line({"table": table.name, "row": _exportable_row(table, values)})
                count += 1
        yield _json_line({"rows": count})


def import_lines(database: Database, lines: Iterable[str], source: str) -> int:
    """Write exported rows into a fleet without records; return their number.

    Either all rows are written or none. The fleet may have another name than the exported one.

    Raises:
        StateError: the fleet already has records.
        UnreadableError: ``source`` is not an export, is truncated, or has another schema.
    """
    with database.write_transaction() as connection:
        _refuse_unless_empty(connection, database)
        numbered = enumerate(lines, start=1)
        serial = _parse_header(next(numbered, (1, ""))[1], source)
        count, stated_count = _import_rows(connection, database, numbered, source)
        if stated_count != count:
            detail = (
                "the end is missing" if stated_count is None else f"expected {stated_count} rows"
            )
            raise _unreadable_error(
                f"the file is truncated: {detail}, but {count} were read", source
            )
        connection.execute(
            fleet.update().where(fleet.c.name == database.fleet).values(serial=serial)
        )
        return count


def _exported_tables() -> list[Table]:
    """Return the exported tables: all except the lease, which belongs to this database.

    The replicas belong to no fleet.
    """
    return [table for table in metadata.sorted_tables if table not in (fleet, lease, replica)]


def _refuse_unless_empty(connection: Connection, database: Database) -> None:
    for table in _exported_tables():
        query = select(func.count()).select_from(table).where(table.c.fleet == database.fleet)
        count = connection.execute(query).scalar()
        if count:
            raise StateError(
                f"fleet {database.fleet} already has {count} rows of {table.name}",
                where=database.place,
                remedy="import into an empty state, or select another fleet with --set fleet=NAME",
            )


def _parse_header(line: str, source: str) -> int:
    head = _parse_object(line, 1, source)
    if head.get("format") != FORMAT:
        raise _unreadable_error("the first line is not an export header", source)
    if head.get("migration") != HEAD:
        raise _unreadable_error(
            f"it is at migration {head.get('migration')}, but this release writes {HEAD}",
            source,
            "import it with the release that wrote it, then migrate",
        )
    serial = head.get("serial")
    if not isinstance(serial, int):
        raise _unreadable_error("its first line has no serial", source)
    return serial


def _import_rows(
    connection: Connection, database: Database, lines: Iterable[tuple[int, str]], source: str
) -> tuple[int, int | None]:
    """Write rows until the last line; return their number, and the number in that line."""
    tables = {table.name: table for table in _exported_tables()}
    batch: list[JsonDict] = []
    current: Table | None = None
    count = 0
    for number, line in lines:
        entry = _parse_object(line, number, source)
        if "rows" in entry:
            _insert_rows(connection, current, batch)
            return count, entry["rows"]
        table = tables.get(entry.get("table", ""))
        if table is None:
            raise _unreadable_error(f"line {number}: unknown table {entry.get('table')}", source)
        if table is not current or len(batch) >= _BATCH:
            _insert_rows(connection, current, batch)
            batch, current = [], table
        batch.append({"fleet": database.fleet, **_parse_row(table, entry, number, source)})
        count += 1
    return count, None


def _insert_rows(
    connection: Connection, table: Table | None, rows: list[dict[str, object]]
) -> None:
    if table is not None and rows:
        connection.execute(table.insert(), rows)


def _parse_row(table: Table, entry: JsonDict, number: int, source: str) -> JsonDict:
    row = entry.get("row")
    columns = {c.name: c for c in table.columns if c.name != "fleet"}
    if not isinstance(row, dict) or row.keys() != columns.keys():
        raise _unreadable_error(f"line {number}: not a row of {table.name}", source)
    for name, column in columns.items():
        value = row[name]
        if isinstance(column.type, LargeBinary):
            try:
                row[name] = base64.b64decode(value, validate=True)
            except (ValueError, TypeError) as error:
                raise _unreadable_error(f"line {number}: {name} is not base64", source) from error
        elif not _is_valid_value(value, column.type.python_type, nullable=bool(column.nullable)):
            raise _unreadable_error(f"line {number}: {name} is {quote_value(value)}"[:200], source)
    return row


def _is_valid_value(value: object, kind: type, *, nullable: bool) -> bool:
    if value is None:
        return nullable
    return isinstance(value, kind) and not isinstance(value, bool)


def _exportable_row(table: Table, values: JsonDict) -> dict[str, object]:
    return {
        name: base64.b64encode(value).decode()
        if isinstance(table.c[name].type, LargeBinary)
        else value
        for name, value in values.items()
    }


def _json_line(value: dict[str, object]) -> str:
    return json.dumps(value, sort_keys=True, ensure_ascii=False) + "\n"


def _parse_object(line: str, number: int, source: str) -> JsonDict:
    remedy = "create one with `reconciler state export FILE`"
    where = f"{source}:{number}"
    expect_values(line.encode(), where, remedy=remedy, values_max=VALUES_OF_ROW_MAX)
    try:
        value = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise _unreadable_error(f"line {number} is not JSON", source) from error
    if not isinstance(value, dict):
        raise _unreadable_error(f"line {number} is not an object", source)
    return value


def _unreadable_error(what: str, source: str, remedy: str = "") -> UnreadableError:
    return UnreadableError(
        f"not a valid export: {what}",
        where=source,
        remedy=remedy or "create one with `reconciler state export FILE`",
    )
