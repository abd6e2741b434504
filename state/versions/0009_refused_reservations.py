"""Record for which capacity reservation EC2 has no capacity, so that others stay available."""

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"

WHOLE = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
KEY = ("fleet", "instance_type", "zone", "capacity_type")


def upgrade() -> None:
    # SQLite cannot change a primary key, so the rows move to a new table.
    op.create_table(
        "refused",
        sa.Column("fleet", sa.Text, sa.ForeignKey("fleet.name"), nullable=False),
        *(sa.Column(name, sa.Text, nullable=False) for name in (*KEY[1:], "reservation_id")),
        sa.Column("until", sa.Text, nullable=False),
        sa.Column("refusals", WHOLE, nullable=False),
        sa.Column("code", sa.Text, nullable=False),
        sa.PrimaryKeyConstraint(*KEY, "reservation_id"),
        sqlite_strict=True,
    )
    columns = ", ".join((*KEY, "until", "refusals", "code"))
    op.execute(
        f"INSERT INTO refused ({columns}, reservation_id) SELECT {columns}, '' FROM unavailable"
    )
    op.drop_table("unavailable")
    op.rename_table("refused", "unavailable")
