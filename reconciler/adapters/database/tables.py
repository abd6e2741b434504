"""The tables of the recorded state after the newest migration.

Every row belongs to a fleet, so several fleets can share a database. A value of the model is stored
completely, as JSON in ``body``; only values that are searched or counted have separate columns.
Times are UTC text with microseconds, which sorts chronologically in both databases. The migrations
in ``state/versions`` create these tables; a test compares the two.
"""

from __future__ import annotations

from typing import Any, Final

from sqlalchemy import (
    BigInteger,
    Column,
    Constraint,
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


def _text_column(name: str, *, nullable: bool = False) -> Column[str]:
    return Column(name, Text, nullable=nullable)


def _number_column(name: str, *, nullable: bool = False) -> Column[int]:
    return Column(name, _whole, nullable=nullable)


def _fleet_table(name: str, *parts: Column[Any] | Constraint | Index) -> Table:
    """Return a table whose rows belong to a fleet."""
    owner: Column[str] = Column("fleet", Text, ForeignKey("fleet.name"), nullable=False)
    return Table(name, metadata, owner, *parts, sqlite_strict=True)


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

lease: Final = _fleet_table(
    "lease",
    _number_column("epoch"),
    _text_column("holder"),
    _number_column("renewed_ms"),
    _number_column("lifetime_ms"),
    PrimaryKeyConstraint("fleet"),
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

revision: Final = _fleet_table(
    "revision",
    _number_column("sequence"),
    _text_column("revision"),
    _text_column("at"),
    PrimaryKeyConstraint("fleet", "sequence"),
)
"""The applied revisions, with a row for each change."""

object_: Final = _fleet_table(
    "object",
    _text_column("kind"),
    _text_column("name"),
    _text_column("hash"),
    _text_column("revision"),
    _text_column("body"),
    PrimaryKeyConstraint("fleet", "kind", "name"),
)

plan: Final = _fleet_table(
    "plan",
    _text_column("digest"),
    _number_column("sequence"),
    _text_column("revision"),
    _text_column("at"),
    _number_column("serial"),
    _text_column("carried_out_at", nullable=True),
    Column("body", LargeBinary, nullable=False),
    PrimaryKeyConstraint("fleet", "digest"),
    Index("plan_by_time", "fleet", "at", "sequence"),
)

node_claim: Final = _fleet_table(
    "node_claim",
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
)
"""Removed claims keep their row, with the time and reason."""

command: Final = _fleet_table(
    "command",
    _text_column("id"),
    _text_column("phase"),
    _text_column("started_at"),
    _text_column("body"),
    PrimaryKeyConstraint("fleet", "id"),
    Index("command_by_phase", "fleet", "phase", "started_at"),
    Index("command_by_start", "fleet", "started_at"),
)

intent: Final = _fleet_table(
    "journal_intent",
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
)
"""The intended effects. Only ``last_outcome``, the sequence of the last outcome, is updated: each
pass asks for the intents in doubt, and must not read the whole history for that."""

outcome: Final = _fleet_table(
    "journal_outcome",
    _number_column("sequence"),
    _text_column("intent"),
    _text_column("outcome"),
    _text_column("at"),
    _text_column("message"),
    PrimaryKeyConstraint("fleet", "sequence"),
    ForeignKeyConstraint(["fleet", "intent"], ["journal_intent.fleet", "journal_intent.id"]),
    Index("journal_outcome_by_intent", "fleet", "intent"),
)
"""Outcomes of intents; rows are only added, and the last one of an intent counts."""

unavailable: Final = _fleet_table(
    "unavailable",
    _text_column("instance_type"),
    _text_column("zone"),
    _text_column("capacity_type"),
    _text_column("reservation_id"),
    _text_column("until"),
    _number_column("refusals"),
    _text_column("code"),
    PrimaryKeyConstraint("fleet", "instance_type", "zone", "capacity_type", "reservation_id"),
)

shelf: Final = _fleet_table(
    "shelf",
    _text_column("name"),
    Column("content", LargeBinary, nullable=False),
    PrimaryKeyConstraint("fleet", "name"),
)

decision: Final = _fleet_table(
    "decision",
    _number_column("sequence"),
    _text_column("at"),
    _text_column("plan"),
    _text_column("kind"),
    _text_column("name"),
    _text_column("code"),
    _text_column("message"),
    PrimaryKeyConstraint("fleet", "sequence"),
    Index("decision_by_subject", "fleet", "kind", "name", "sequence"),
)
"""The reasons why something was not done, by subject and pass."""

rollout: Final = _fleet_table(
    "rollout",
    _text_column("node_pool"),
    _text_column("body"),
    PrimaryKeyConstraint("fleet", "node_pool"),
)
"""The progress of each NodePool's waves, and their failures."""

obstacle: Final = _fleet_table(
    "obstacle",
    _text_column("kind"),
    _text_column("name"),
    _text_column("body"),
    PrimaryKeyConstraint("fleet", "kind", "name"),
)
"""The blockers of disruption, and since when they exist."""

trace: Final = _fleet_table(
    "trace",
    _number_column("sequence"),
    _text_column("at"),
    _number_column("is_whole"),
    Column("body", LargeBinary, nullable=False),
    PrimaryKeyConstraint("fleet", "sequence"),
)
"""How the workload changed: batches of changes as compressed JSON; 1 in ``is_whole`` marks a batch
that lists everything."""

prediction: Final = _fleet_table(
    "prediction",
    _number_column("sequence"),
    _text_column("at"),
    _text_column("body"),
    PrimaryKeyConstraint("fleet", "sequence"),
)
"""What Karpenter was expected to do next; a row for each change, written before it acts."""

score: Final = _fleet_table(
    "score",
    _number_column("sequence"),
    _text_column("at"),
    _text_column("body"),
    PrimaryKeyConstraint("fleet", "sequence"),
)
"""What Karpenter did instead, and the verdict; ``at`` is when the action began."""
