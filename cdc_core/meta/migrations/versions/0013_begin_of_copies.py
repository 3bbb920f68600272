"""Where a copy began: changes from there on are not made up for by its chunks alone."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from cdc_core.meta.tables import long_text

revision = "0013"
down_revision = "0012"


def upgrade() -> None:
    """Safe to repeat: MySQL commits each statement. Copies that are under way begin again."""
    for table in ("copied_chunk", "table_copy"):
        op.execute(sa.delete(sa.table(table)))
    if "low" not in {column["name"] for column in sa.inspect(op.get_bind()).get_columns("table_copy")}:
        op.add_column("table_copy", sa.Column("low", long_text()))
