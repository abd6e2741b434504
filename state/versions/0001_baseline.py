"""The first form of the recorded state.

A migration is history: it names columns itself, and never imports the tables of the package,
which move on. There is no way back: before a migration SQLite's file is copied.
"""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None

WHOLE = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def text(name: str, nullable: bool = False) -> sa.Column:
    return sa.Column(name, sa.Text, nullable=nullable)


def number(name: str) -> sa.Column:
    return sa.Column(name, WHOLE, nullable=False)


def content(name: str) -> sa.Column:
    return sa.Column(name, sa.LargeBinary, nullable=False)


def table_of_fleet(name: str, *parts: sa.schema.SchemaItem, key: tuple[str, ...]) -> None:
    """Make a table whose rows belong to a fleet."""
    op.create_table(
        name,
        sa.Column("fleet", sa.Text, sa.ForeignKey("fleet.name"), nullable=False),
        *parts,
        sa.PrimaryKeyConstraint("fleet", *key),
        sqlite_strict=True,
    )


def upgrade() -> None:
    op.create_table(
        "fleet", sa.Column("name", sa.Text, primary_key=True), number("serial"), sqlite_strict=True
    )
    desired()
    claims()
    journal()


def desired() -> None:
    """What was wanted, and the plans that were made for it."""
    table_of_fleet("revision", number("sequence"), text("revision"), text("at"), key=("sequence",))
    table_of_fleet(
        "object",
        text("kind"),
        text("name"),
        text("hash"),
        text("revision"),
        text("body"),
        key=("kind", "name"),
    )
    table_of_fleet(
        "plan",
        text("digest"),
        number("sequence"),
        text("revision"),
        text("at"),
        number("serial"),
        text("carried_out_at", nullable=True),
        content("body"),
        key=("digest",),
    )
    op.create_index("plan_by_time", "plan", ["fleet", "at", "sequence"])


def claims() -> None:
    """What we hold and what is being done to it."""
    table_of_fleet(
        "node_claim",
        text("name"),
        text("node_pool"),
        text("provider_id"),
        text("instance_id"),
        text("body"),
        text("gone_at", nullable=True),
        text("gone_reason"),
        key=("name",),
    )
    op.create_index("node_claim_by_pool", "node_claim", ["fleet", "gone_at", "node_pool"])
    op.create_index("node_claim_by_instance", "node_claim", ["fleet", "instance_id"])
    table_of_fleet(
        "command", text("id"), text("phase"), text("started_at"), text("body"), key=("id",)
    )
    op.create_index("command_by_phase", "command", ["fleet", "phase", "started_at"])
    table_of_fleet(
        "unavailable",
        text("instance_type"),
        text("zone"),
        text("capacity_type"),
        text("until"),
        number("refusals"),
        text("code"),
        key=("instance_type", "zone", "capacity_type"),
    )
    table_of_fleet("shelf", text("name"), content("content"), key=("name",))


def journal() -> None:
    """What we set out to do to the world, and what came of it; rows are only ever added."""
    table_of_fleet(
        "journal_intent",
        number("sequence"),
        text("id"),
        text("verb"),
        text("target"),
        text("at"),
        text("body"),
        sa.Column("last_outcome", WHOLE, nullable=True),
        key=("id",),
    )
    op.create_index(
        "journal_intent_by_sequence", "journal_intent", ["fleet", "sequence"], unique=True
    )
    op.create_index("journal_intent_by_target", "journal_intent", ["fleet", "target", "sequence"])
    open_ones = sa.text("last_outcome IS NULL")
    op.create_index(
        "journal_intent_in_doubt",
        "journal_intent",
        ["fleet", "sequence"],
        sqlite_where=open_ones,
        postgresql_where=open_ones,
    )
    table_of_fleet(
        "journal_outcome",
        number("sequence"),
        text("intent"),
        text("outcome"),
        text("at"),
        text("message"),
        sa.ForeignKeyConstraint(["fleet", "intent"], ["journal_intent.fleet", "journal_intent.id"]),
        key=("sequence",),
    )
