"""Record which processes share the fleets of a server."""

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"

WHOLE = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    op.create_table(
        "replica",
        sa.Column("id", sa.Text, nullable=False),
        sa.Column("seen_ms", WHOLE, nullable=False),
        sa.Column("body", sa.Text, nullable=False),
        sa.PrimaryKeyConstraint("id"),
        sqlite_strict=True,
    )
