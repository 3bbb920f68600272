"""The layouts under which rows were written to the shards of targets."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from cdc_core.meta.tables import long_text, text

revision = "0018"
down_revision = "0017"


def upgrade() -> None:
    """Safe to repeat: MySQL commits each statement."""
    op.create_table(
        "target_layout",
        sa.Column("target", text(64), primary_key=True),
        sa.Column("table_name", text(192), primary_key=True),
        sa.Column("layout", long_text(), nullable=False),
        sa.Column("since_us", sa.BigInteger(), nullable=False),
        comment="how a logical table is distributed over the shards that rows were written to",
        if_not_exists=True,
    )
