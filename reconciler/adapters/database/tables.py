"""The tables of the recorded state after the newest migration.

Every row belongs to a fleet, so several fleets can share a database. A value of the model is stored
completely, as JSON in ``body``; only values that are searched or counted have separate columns.
Times are UTC text with microseconds, which sorts chronologically in both databases. The migrations
in ``state/versions`` create these tables; a test compares the two.
"""

from __future__ import annotations

from typing import Final

from sqlalchemy import (
    BigInteger,
    Column,
    ForeignKey,
    ForeignKeyConstraint,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    PrimaryKeyConstraint,
    Table,
    Text,
    text,
)

VERSION_TABLE: Final = "schema_revision"
"""The table in which Alembic records the last migration."""

metadata: Final = MetaData()

_whole = BigInteger().with_variant(Integer(), "sqlite")


def _of_fleet() -> Column[str]:
    return Column("fleet", Text, ForeignKey("fleet.name"), nullable=False)


def _text(name: str, *, nullable: bool = False) -> Column[str]:
    return Column(name, Text, nullable=nullable)


def _number(name: str, *, nullable: bool = False) -> Column[int]:
    return Column(name, _whole, nullable=nullable)


fleet: Final = Table(
    "fleet",
    metadata,
    Column("name", Text, primary_key=True),
    _number("serial"),
    _number("epoch"),
    _text("cluster"),
    sqlite_strict=True,
)
"""``epoch`` increases with each acquisition of the lease. ``cluster`` is the last cluster as
``account/region/name``, empty if EC2 was simulated."""

lease: Final = Table(
    "lease",
    metadata,
    _of_fleet(),
    _number("epoch"),
    _text("holder"),
    _number("renewed_ms"),
    _number("lifetime_ms"),
    PrimaryKeyConstraint("fleet"),
    sqlite_strict=True,
)
"""The holder of a fleet's lease on a server, and its last renewal by the server's clock.

It is separate from the row of the fleet, which long writes lock: the lease is renewed meanwhile."""

replica: Final = Table(
    "replica",
    metadata,
    Column("id", Text, primary_key=True),
    _number("seen_ms"),
    _text("body"),
    sqlite_strict=True,
)
"""The processes that share fleets on a server: when each was last seen, and its fleets.

It is the only table whose rows belong to no fleet."""

revision: Final = Table(
    "revision",
    metadata,
    _of_fleet(),
    _number("sequence"),
    _text("revision"),
    _text("at"),
    PrimaryKeyConstraint("fleet", "sequence"),
    sqlite_strict=True,
)
"""The applied revisions, with a row for each change."""

object_: Final = Table(
    "object",
    metadata,
    _of_fleet(),
    _text("kind"),
    _text("name"),
    _text("hash"),
    _text("revision"),
    _text("body"),
    PrimaryKeyConstraint("fleet", "kind", "name"),
    sqlite_strict=True,
)

plan: Final = Table(
    "plan",
    metadata,
    _of_fleet(),
    _text("digest"),
    _number("sequence"),
    _text("revision"),
    _text("at"),
    _number("serial"),
    _text("carried_out_at", nullable=True),
    Column("body", LargeBinary, nullable=False),
    PrimaryKeyConstraint("fleet", "digest"),
    Index("plan_by_time", "fleet", "at", "sequence"),
    sqlite_strict=True,
)

node_claim: Final = Table(
    "node_claim",
    metadata,
    _of_fleet(),
    _text("name"),
    _text("node_pool"),
    _text("provider_id"),
    _text("instance_id"),
    _text("body"),
    _text("gone_at", nullable=True),
    _text("gone_reason"),
    PrimaryKeyConstraint("fleet", "name"),
    Index("node_claim_by_pool", "fleet", "gone_at", "node_pool"),
    Index("node_claim_by_instance", "fleet", "instance_id"),
    sqlite_strict=True,
)
"""Removed claims keep their row, with the time and reason."""

command: Final = Table(
    "command",
    metadata,
    _of_fleet(),
    _text("id"),
    _text("phase"),
    _text("started_at"),
    _text("body"),
    PrimaryKeyConstraint("fleet", "id"),
    Index("command_by_phase", "fleet", "phase", "started_at"),
    Index("command_by_start", "fleet", "started_at"),
    sqlite_strict=True,
)

intent: Final = Table(
    "journal_intent",
    metadata,
    _of_fleet(),
    _number("sequence"),
    _text("id"),
    _text("verb"),
    _text("target"),
    _text("at"),
    _text("body"),
    _number("last_outcome", nullable=True),
    PrimaryKeyConstraint("fleet", "id"),
    Index("journal_intent_by_sequence", "fleet", "sequence", unique=True),
    Index("journal_intent_by_target", "fleet", "target", "sequence"),
    Index(
        "journal_intent_in_doubt",
        "fleet",
        "sequence",
        sqlite_where=text("last_outcome IS NULL"),
        postgresql_where=text("last_outcome IS NULL"),
    ),
    sqlite_strict=True,
)
"""The intended effects. Only ``last_outcome``, the sequence of the last outcome, is updated: each
pass asks for the intents in doubt, and must not read the whole history for that."""

outcome: Final = Table(
    "journal_outcome",
    metadata,
    _of_fleet(),
    _number("sequence"),
    _text("intent"),
    _text("outcome"),
    _text("at"),
    _text("message"),
    PrimaryKeyConstraint("fleet", "sequence"),
    ForeignKeyConstraint(["fleet", "intent"], ["journal_intent.fleet", "journal_intent.id"]),
    Index("journal_outcome_by_intent", "fleet", "intent"),
    sqlite_strict=True,
)
"""Outcomes of intents; rows are only added, and the last one of an intent counts."""

unavailable: Final = Table(
    "unavailable",
    metadata,
    _of_fleet(),
    _text("instance_type"),
    _text("zone"),
    _text("capacity_type"),
    _text("until"),
    _number("refusals"),
    _text("code"),
    PrimaryKeyConstraint("fleet", "instance_type", "zone", "capacity_type"),
    sqlite_strict=True,
)

shelf: Final = Table(
    "shelf",
    metadata,
    _of_fleet(),
    _text("name"),
    Column("content", LargeBinary, nullable=False),
    PrimaryKeyConstraint("fleet", "name"),
    sqlite_strict=True,
)

decision: Final = Table(
    "decision",
    metadata,
    _of_fleet(),
    _number("sequence"),
    _text("at"),
    _text("plan"),
    _text("kind"),
    _text("name"),
    _text("code"),
    _text("message"),
    PrimaryKeyConstraint("fleet", "sequence"),
    Index("decision_by_subject", "fleet", "kind", "name", "sequence"),
    sqlite_strict=True,
)
"""The reasons why something was not done, by subject and pass."""

rollout: Final = Table(
    "rollout",
    metadata,
    _of_fleet(),
    _text("node_pool"),
    _text("body"),
    PrimaryKeyConstraint("fleet", "node_pool"),
    sqlite_strict=True,
)
"""The progress of each NodePool's waves, and their failures."""

obstacle: Final = Table(
    "obstacle",
    metadata,
    _of_fleet(),
    _text("kind"),
    _text("name"),
    _text("body"),
    PrimaryKeyConstraint("fleet", "kind", "name"),
    sqlite_strict=True,
)
"""The blockers of disruption, and since when they exist."""

trace: Final = Table(
    "trace",
    metadata,
    _of_fleet(),
    _number("sequence"),
    _text("at"),
    _number("is_whole"),
    Column("body", LargeBinary, nullable=False),
    PrimaryKeyConstraint("fleet", "sequence"),
    sqlite_strict=True,
)
"""How the workload changed: batches of changes as compressed JSON; 1 in ``is_whole`` marks a batch
that lists everything."""
