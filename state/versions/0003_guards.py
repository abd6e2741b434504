"""Keep what the guards of disruption have to remember: waves, and since when something is in the way.

How many nodes went within a day is counted over the commands, by when they began.
"""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"


def upgrade() -> None:
    op.create_index("command_by_start", "command", ["fleet", "started_at"])
    table_of_fleet("rollout", "node_pool")
    table_of_fleet("obstacle", "kind", "name")


def table_of_fleet(name: str, *key: str) -> None:
    """Make a table of values that are kept whole, each under a key of its own."""
    op.create_table(
        name,
        sa.Column("fleet", sa.Text, sa.ForeignKey("fleet.name"), nullable=False),
        *(sa.Column(column, sa.Text, nullable=False) for column in (*key, "body")),
        sa.PrimaryKeyConstraint("fleet", *key),
        sqlite_strict=True,
    )
