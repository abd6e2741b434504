"""Consistency checks of the recorded state."""

from __future__ import annotations

from enum import StrEnum
from typing import Final, NamedTuple

import msgspec
from sqlalchemy import ColumnElement, Connection, Table, func, inspect, select, text

from reconciler.adapters.database.connection import Database
from reconciler.adapters.database.migration import HEAD, revision_of
from reconciler.adapters.database.tables import (
    VERSION_TABLE,
    command,
    intent,
    metadata,
    node_claim,
    object_,
    obstacle,
    outcome,
    plan,
    rollout,
)
from reconciler.model.history import Obstacle, Rollout
from reconciler.model.karpenter.nodeclaim import NodeClaim
from reconciler.plan.value.plan import Plan
from reconciler.ports.journal import Intent
from reconciler.ports.state import RecordedObject, RunningCommand


class Gravity(StrEnum):
    """The severity of a problem: a note is information, an error must be fixed."""

    ERROR = "error"
    NOTE = "note"


class Inconsistency(NamedTuple):
    """A problem of the recorded state; ``code`` is stable."""

    gravity: Gravity
    code: str
    message: str


_BODIES: Final[tuple[tuple[Table, ColumnElement[str], type], ...]] = (
    (node_claim, node_claim.c.name, NodeClaim),
    (command, command.c.id, RunningCommand),
    (object_, object_.c.name, RecordedObject),
    (intent, intent.c.id, Intent),
    (plan, plan.c.digest, Plan),
    (rollout, rollout.c.node_pool, Rollout),
    (obstacle, obstacle.c.name, Obstacle),
)


def check(database: Database) -> list[Inconsistency]:
    """Return all problems of the state of a fleet, in a fixed order.

    Raises:
        StateError: the state cannot be read.
    """
    found = revision_of(database.engine, database.place)
    if found != HEAD:
        note = (
            f"the state is at migration {found}, but this release needs {HEAD}; run "
            "`reconciler state migrate`"
        )
        return [Inconsistency(Gravity.ERROR, "migration", note)]
    with database.reading() as connection:
        return [
            *_file(connection),
            *_tables(connection),
            *_orphans(connection),
            *_bodies(connection, database.fleet),
            *_outcomes(connection, database.fleet),
            *_instances(connection, database.fleet),
            *_doubts(connection, database.fleet),
        ]


def _file(connection: Connection) -> list[Inconsistency]:
    """Return the problems that SQLite finds when it reads every page of its file."""
    if connection.dialect.name != "sqlite":
        return []
    rows = connection.exec_driver_sql("PRAGMA integrity_check(20)").scalars().all()
    return [Inconsistency(Gravity.ERROR, "integrity", str(row)) for row in rows if row != "ok"]


def _tables(connection: Connection) -> list[Inconsistency]:
    names = set(inspect(connection).get_table_names())
    missing = sorted({*metadata.tables, VERSION_TABLE} - names)
    return [Inconsistency(Gravity.ERROR, "table", f"table {name} is missing") for name in missing]


def _orphans(connection: Connection) -> list[Inconsistency]:
    """Return rows whose fleet or intent is missing.

    A server rejects such rows. SQLite accepts them from tools that disable foreign keys.
    """
    if connection.dialect.name != "sqlite":
        return []
    rows = connection.exec_driver_sql(
        'SELECT "table", "parent", count(*) FROM pragma_foreign_key_check GROUP BY 1, 2 ORDER BY 1'
    )
    return [
        Inconsistency(Gravity.ERROR, "orphan", f"{count} rows of {table} have no {parent}")
        for table, parent, count in rows
    ]


def _bodies(connection: Connection, fleet: str) -> list[Inconsistency]:
    """Return the rows whose body cannot be decoded."""
    faults = []
    for table, name, kind in _BODIES:
        decoder: msgspec.json.Decoder[object] = msgspec.json.Decoder(kind)
        query = select(name.label("name"), table.c.body).where(table.c.fleet == fleet)
        for row in connection.execute(query.order_by(name)):
            try:
                decoder.decode(row.body)
            except msgspec.MsgspecError as error:
                what = f"{table.name} {row.name} is not a {kind.__name__}: {error}"
                faults.append(Inconsistency(Gravity.ERROR, "body", what))
    return faults


def _outcomes(connection: Connection, fleet: str) -> list[Inconsistency]:
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
        Inconsistency(Gravity.ERROR, "outcome", f"intent {name} does not point to its last outcome")
        for name in connection.execute(query).scalars()
    ]


def _instances(connection: Connection, fleet: str) -> list[Inconsistency]:
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
        Inconsistency(Gravity.ERROR, "instance", f"{count} claims share instance {name}")
        for name, count in connection.execute(query)
    ]


def _doubts(connection: Connection, fleet: str) -> list[Inconsistency]:
    query = (
        select(intent.c.id, intent.c.verb, intent.c.target, intent.c.at)
        .where(intent.c.fleet == fleet, intent.c.last_outcome.is_(None))
        .order_by(intent.c.sequence)
    )
    return [
        Inconsistency(
            Gravity.NOTE,
            "in-doubt",
            (
                f"{r.verb} of {r.target} started at {r.at} and has no outcome (intent {r.id}); the "
                "next pass checks it"
            ),
        )
        for r in connection.execute(query)
    ]
