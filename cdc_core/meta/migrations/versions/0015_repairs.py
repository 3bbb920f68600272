"""What repairs have staged, of which there is a limit a day."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from cdc_core.meta.tables import text

revision = "0015"
down_revision = "0014"


def upgrade() -> None:
    """Safe to repeat: MySQL commits each statement, so a migration may be killed between two."""
    op.create_table(
        "repaired_batch",
        sa.Column("batch_id", text(128), primary_key=True),
        sa.Column("source", text(64), nullable=False),
        sa.Column("row_count", sa.BigInteger(), nullable=False),
        sa.Column("decided_us", sa.BigInteger(), nullable=False),
        comment="a batch of single rows that a repair looked up in the source: repairs have a limit a day",
        if_not_exists=True,
    )
