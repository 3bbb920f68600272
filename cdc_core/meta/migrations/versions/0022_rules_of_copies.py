"""Under which rules the rows of a copy were read."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from cdc_core.meta.tables import text

revision = "0022"
down_revision = "0021"


def upgrade() -> None:
    """Safe to repeat: MySQL commits each statement."""
    known = {column["name"] for column in sa.inspect(op.get_bind()).get_columns("table_copy")}
    if "rules" not in known:
        op.add_column("table_copy", sa.Column("rules", text(64)))
