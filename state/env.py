# ruff: noqa: INP001 - Alembic runs this file by its path; it belongs to no package
"""Run the migrations on the connection that ``adapters/database/migration.py`` hands over.

The caller begins and ends the transaction, so that a migration is there whole or not at all.
"""

from alembic import context

from reconciler.adapters.database.tables import VERSION_TABLE, metadata

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=metadata,
    version_table=VERSION_TABLE,
)
context.run_migrations()
