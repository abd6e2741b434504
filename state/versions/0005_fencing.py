"""Fence writes by an epoch, record who holds the lease on a server, and for which cluster."""

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"

WHOLE = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    # The defaults stay: a release from before may still write while this migration runs.
    op.add_column("fleet", sa.Column("epoch", WHOLE, nullable=False, server_default="0"))
    op.add_column("fleet", sa.Column("cluster", sa.Text, nullable=False, server_default=""))
    op.create_table(
        "lease",
        sa.Column("fleet", sa.Text, sa.ForeignKey("fleet.name"), nullable=False),
        sa.Column("epoch", WHOLE, nullable=False),
        sa.Column("holder", sa.Text, nullable=False),
        sa.Column("renewed_ms", WHOLE, nullable=False),
        sa.Column("lifetime_ms", WHOLE, nullable=False),
        sa.PrimaryKeyConstraint("fleet"),
        sqlite_strict=True,
    )
