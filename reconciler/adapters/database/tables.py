"""The tables of the recorded state, as the newest migration leaves them.

Every row belongs to a fleet, so that several fleets can share a database. A value of the model
is kept whole, as JSON in ``body``; beside it stand as columns only what is looked for or counted.
Times are text, UTC with microseconds, which sorts as it reads and is the same in both databases.
``state/versions`` makes these tables; a test holds the two alike.
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
"""Where Alembic notes the migration that was done last."""

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
"""``epoch`` rises whenever the lease is acquired; ``cluster`` is what was acted for last, as
``account/region/name``, empty where EC2 was simulated."""

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
"""Who holds the lease of a fleet on a server, and when it was renewed by the server's clock.

It is not in the row of the fleet, which a long write locks: the lease is renewed meanwhile."""

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
"""The revisions that were carried out, one row each time another one was."""

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
"""Claims that are gone keep their row, with when and why."""

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
"""What we set out to do. Only ``last_outcome``, the sequence of the outcome that holds, moves on:
each pass asks for what is in doubt, and should not read all history for it."""

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
"""How intents ended; rows are only ever added, and the last one of an intent holds."""

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
"""Why something was not done, for each subject and pass."""

rollout: Final = Table(
    "rollout",
    metadata,
    _of_fleet(),
    _text("node_pool"),
    _text("body"),
    PrimaryKeyConstraint("fleet", "node_pool"),
    sqlite_strict=True,
)
"""How far the waves of each NodePool have come, and what has failed on the way."""

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
"""What keeps nodes from going, and since when."""
