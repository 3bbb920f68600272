"""The identity by which an extractor knows its own streams on a source; the next lease draws it."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from cdc_core.meta.tables import NAME, text

revision = "0008"
down_revision = "0007"


def upgrade() -> None:
    """Safe to repeat: MySQL commits each statement, so a migration may be killed between two."""
    if "identity" not in {column["name"] for column in sa.inspect(op.get_bind()).get_columns("lease")}:
        op.add_column("lease", sa.Column("identity", text(NAME), nullable=False, server_default=""))
