"""Keep why something was not done, so that ``explain`` can look back further than one plan."""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    op.create_table(
        "decision",
        sa.Column("fleet", sa.Text, sa.ForeignKey("fleet.name"), nullable=False),
        sa.Column("sequence", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        *(
            sa.Column(name, sa.Text, nullable=False)
            for name in ("at", "plan", "kind", "name", "code", "message")
        ),
        sa.PrimaryKeyConstraint("fleet", "sequence"),
        sqlite_strict=True,
    )
    op.create_index("decision_by_subject", "decision", ["fleet", "kind", "name", "sequence"])
