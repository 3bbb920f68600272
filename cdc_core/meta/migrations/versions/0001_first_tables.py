"""The first tables, as meta_schema.py has them. The next migration must come with a copy of them, written out here."""

from __future__ import annotations

from alembic import op

from cdc_core.meta.meta_schema import metadata

revision = "0001"
down_revision = None


def upgrade() -> None:
    metadata.create_all(op.get_bind())
