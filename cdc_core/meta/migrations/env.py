"""Run by Alembic. The connection, inside the caller's transaction, comes in the config's attributes."""

from __future__ import annotations

from alembic import context

from cdc_core.meta.meta_schema import metadata
from cdc_core.meta.migrate import VERSION_TABLE

context.configure(
    connection=context.config.attributes["connection"], target_metadata=metadata, version_table=VERSION_TABLE
)
with context.begin_transaction():
    context.run_migrations()
