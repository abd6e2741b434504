"""Keep how the workload changed, so that a backtest can replay it."""

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"

WHOLE = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    op.create_table(
        "trace",
        sa.Column("fleet", sa.Text, sa.ForeignKey("fleet.name"), nullable=False),
        sa.Column("sequence", WHOLE, nullable=False),
        sa.Column("at", sa.Text, nullable=False),
        sa.Column("is_whole", WHOLE, nullable=False),
        sa.Column("body", sa.LargeBinary, nullable=False),
        sa.PrimaryKeyConstraint("fleet", "sequence"),
        sqlite_strict=True,
    )
