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


def _fleet_column() -> Column[str]:
    return Column("fleet", Text, ForeignKey("fleet.name"), nullable=False)


def _text_column(name: str, *, nullable: bool = False) -> Column[str]:
    return Column(name, Text, nullable=nullable)


def _number_column(name: str, *, nullable: bool = False) -> Column[int]:
    return Column(name, _whole, nullable=nullable)


fleet: Final = Table(
    "fleet",
    metadata,
    Column("name", Text, primary_key=True),
    _number_column("serial"),
    _number_column("epoch"),
    _text_column("cluster"),
    sqlite_strict=True,
)
"""``epoch`` increases with each acquisition of the lease. ``cluster`` is the last cluster as
``account/region/name``, empty if EC2 was simulated."""

lease: Final = Table(
    "lease",
    metadata,
    _fleet_column(),
    _number_column("epoch"),
    _text_column("holder"),
    _number_column("renewed_ms"),
    _number_column("lifetime_ms"),
    PrimaryKeyConstraint("fleet"),
    sqlite_strict=True,
)
"""The holder of a fleet's lease on a server, and its last renewal by the server's clock.

It is separate from the row of the fleet, which long writes lock: the lease is renewed meanwhile."""

replica: Final = Table(
    "replica",
    metadata,
    Column("id", Text, primary_key=True),
    _number_column("seen_ms"),
    _text_column("body"),
    sqlite_strict=True,
)
"""The processes that share fleets on a server: when each was last seen, and its fleets.

It is the only table whose rows belong to no fleet."""

revision: Final = Table(
    "revision",
    metadata,
    _fleet_column(),
    _number_column("sequence"),
    _text_column("revision"),
    _text_column("at"),
    PrimaryKeyConstraint("fleet", "sequence"),
    sqlite_strict=True,
)
"""The applied revisions, with a row for each change."""

object_: Final = Table(
    "object",
    metadata,
    _fleet_column(),
    _text_column("kind"),
    _text_column("name"),
    _text_column("hash"),
    _text_column("revision"),
    _text_column("body"),
    PrimaryKeyConstraint("fleet", "kind", "name"),
    sqlite_strict=True,
)

plan: Final = Table(
    "plan",
    metadata,
    _fleet_column(),
    _text_column("digest"),
    _number_column("sequence"),
    _text_column("revision"),
    _text_column("at"),
    _number_column("serial"),
    _text_column("carried_out_at", nullable=True),
    Column("body", LargeBinary, nullable=False),
    PrimaryKeyConstraint("fleet", "digest"),
    Index("plan_by_time", "fleet", "at", "sequence"),
    sqlite_strict=True,
)

node_claim: Final = Table(
    "node_claim",
    metadata,
    _fleet_column(),
    _text_column("name"),
    _text_column("node_pool"),
    _text_column("provider_id"),
    _text_column("instance_id"),
    _text_column("body"),
    _text_column("gone_at", nullable=True),
    _text_column("gone_reason"),
    PrimaryKeyConstraint("fleet", "name"),
    Index("node_claim_by_pool", "fleet", "gone_at", "node_pool"),
    Index("node_claim_by_instance", "fleet", "instance_id"),
    sqlite_strict=True,
)
"""Removed claims keep their row, with the time and reason."""

command: Final = Table(
    "command",
    metadata,
    _fleet_column(),
    _text_column("id"),
    _text_column("phase"),
    _text_column("started_at"),
    _text_column("body"),
    PrimaryKeyConstraint("fleet", "id"),
    Index("command_by_phase", "fleet", "phase", "started_at"),
    Index("command_by_start", "fleet", "started_at"),
    sqlite_strict=True,
)

intent: Final = Table(
    "journal_intent",
    metadata,
    _fleet_column(),
    _number_column("sequence"),
    _text_column("id"),
    _text_column("verb"),
    _text_column("target"),
    _text_column("at"),
    _text_column("body"),
    _number_column("last_outcome", nullable=True),
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
    _fleet_column(),
    _number_column("sequence"),
    _text_column("intent"),
    _text_column("outcome"),
    _text_column("at"),
    _text_column("message"),
    PrimaryKeyConstraint("fleet", "sequence"),
    ForeignKeyConstraint(["fleet", "intent"], ["journal_intent.fleet", "journal_intent.id"]),
    Index("journal_outcome_by_intent", "fleet", "intent"),
    sqlite_strict=True,
)
"""Outcomes of intents; rows are only added, and the last one of an intent counts."""

unavailable: Final = Table(
    "unavailable",
    metadata,
    _fleet_column(),
    _text_column("instance_type"),
    _text_column("zone"),
    _text_column("capacity_type"),
    _text_column("reservation_id"),
    _text_column("until"),
    _number_column("refusals"),
    _text_column("code"),
    PrimaryKeyConstraint("fleet", "instance_type", "zone", "capacity_type", "reservation_id"),
    sqlite_strict=True,
)

shelf: Final = Table(
    "shelf",
    metadata,
    _fleet_column(),
    _text_column("name"),
    Column("content", LargeBinary, nullable=False),
    PrimaryKeyConstraint("fleet", "name"),
    sqlite_strict=True,
)

decision: Final = Table(
    "decision",
    metadata,
    _fleet_column(),
    _number_column("sequence"),
    _text_column("at"),
    _text_column("plan"),
    _text_column("kind"),
    _text_column("name"),
    _text_column("code"),
    _text_column("message"),
    PrimaryKeyConstraint("fleet", "sequence"),
    Index("decision_by_subject", "fleet", "kind", "name", "sequence"),
    sqlite_strict=True,
)
"""The reasons why something was not done, by subject and pass."""

rollout: Final = Table(
    "rollout",
    metadata,
    _fleet_column(),
    _text_column("node_pool"),
    _text_column("body"),
    PrimaryKeyConstraint("fleet", "node_pool"),
    sqlite_strict=True,
)
"""The progress of each NodePool's waves, and their failures."""

obstacle: Final = Table(
    "obstacle",
    metadata,
    _fleet_column(),
    _text_column("kind"),
    _text_column("name"),
    _text_column("body"),
    PrimaryKeyConstraint("fleet", "kind", "name"),
    sqlite_strict=True,
)
"""The blockers of disruption, and since when they exist."""

trace: Final = Table(
    "trace",
    metadata,
    _fleet_column(),
    _number_column("sequence"),
    _text_column("at"),
    _number_column("is_whole"),
    Column("body", LargeBinary, nullable=False),
    PrimaryKeyConstraint("fleet", "sequence"),
    sqlite_strict=True,
)
"""How the workload changed: batches of changes as compressed JSON; 1 in ``is_whole`` marks a batch
that lists everything."""

prediction: Final = Table(
    "prediction",
    metadata,
    _fleet_column(),
    _number_column("sequence"),
    _text_column("at"),
    _text_column("body"),
    PrimaryKeyConstraint("fleet", "sequence"),
    sqlite_strict=True,
)
"""What Karpenter was expected to do next; a row for each change, written before it acts."""

score: Final = Table(
    "score",
    metadata,
    _fleet_column(),
    _number_column("sequence"),
    _text_column("at"),
    _text_column("body"),
    PrimaryKeyConstraint("fleet", "sequence"),
    sqlite_strict=True,
)
"""What Karpenter did instead, and the verdict; ``at`` is when the action began."""
