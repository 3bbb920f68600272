"""The first tables, as tables.py has them. Whoever adds the next migration writes them out here."""

from __future__ import annotations

from alembic import op

from cdc_core.meta.tables import metadata

revision = "0001"
down_revision = None


def upgrade() -> None:
    metadata.create_all(op.get_bind())
