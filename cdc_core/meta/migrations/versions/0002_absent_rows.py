"""How many rows of a file lack values that the log did not carry."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    """MySQL commits each statement: a migration killed after it finds its own column when it runs again."""
    if "absent_rows" not in {column["name"] for column in sa.inspect(op.get_bind()).get_columns("batch_file")}:
        op.add_column("batch_file", sa.Column("absent_rows", sa.BigInteger(), nullable=False, server_default="0"))
