"""Keep what Karpenter was expected to do, and how that compares with what it did."""

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"

WHOLE = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    for name in ("prediction", "score"):
        op.create_table(
            name,
            sa.Column("fleet", sa.Text, sa.ForeignKey("fleet.name"), nullable=False),
            sa.Column("sequence", WHOLE, nullable=False),
            sa.Column("at", sa.Text, nullable=False),
            sa.Column("body", sa.Text, nullable=False),
            sa.PrimaryKeyConstraint("fleet", "sequence"),
            sqlite_strict=True,
        )
