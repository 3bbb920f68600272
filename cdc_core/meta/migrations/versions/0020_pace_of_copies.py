"""How fast copies were lately."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from cdc_core.meta.tables import long_text

revision = "0020"
down_revision = "0019"


def upgrade() -> None:
    """Safe to repeat: MySQL commits each statement."""
    known = {column["name"] for column in sa.inspect(op.get_bind()).get_columns("table_copy")}
    if "bytes_estimated" not in known:
        op.add_column("table_copy", sa.Column("bytes_estimated", sa.BigInteger(), nullable=False, server_default="0"))
    if "pace" not in known:
        op.add_column("table_copy", sa.Column("pace", long_text()))
