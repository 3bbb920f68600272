"""The last transactions that closed ledgers count, which a target must have, and the batches of each ledger."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from cdc_core.meta.tables import long_text, text

revision = "0012"
down_revision = "0011"


def upgrade() -> None:
    """Safe to repeat: MySQL commits each statement, so a migration may be killed between two."""
    if "spans" not in {column["name"] for column in sa.inspect(op.get_bind()).get_columns("apply_ledger")}:
        op.add_column("apply_ledger", sa.Column("spans", long_text()))
    op.create_table(
        "last_write",
        sa.Column("target", text(64), primary_key=True),
        sa.Column("table_name", text(192), primary_key=True),
        sa.Column("shards", long_text(), nullable=False),
        sa.Column("updated_us", sa.BigInteger(), nullable=False),
        comment="what a target must have: by shard, the last transaction that a closed ledger counts, JSON",
        if_not_exists=True,
    )
