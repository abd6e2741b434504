"""Let what is pruned be found: the outcomes of an intent, which go with it."""

from alembic import op

revision = "0004"
down_revision = "0003"


def upgrade() -> None:
    op.create_index("journal_outcome_by_intent", "journal_outcome", ["fleet", "intent"])
