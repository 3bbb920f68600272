"""Cutovers of pipelines."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from cdc_core.meta.tables import long_text, text

revision = "0019"
down_revision = "0018"


def upgrade() -> None:
    """Safe to repeat: MySQL commits each statement."""
    op.create_table(
        "cutover",
        sa.Column("cutover_id", text(64), primary_key=True),
        sa.Column("pipeline", text(64), nullable=False),
        sa.Column("way_back", text(64), nullable=False),
        sa.Column("state", text(16), nullable=False),
        sa.Column("steps", long_text(), nullable=False),
        sa.Column("details", long_text(), nullable=False),
        sa.Column("last_error", long_text()),
        sa.Column("created_us", sa.BigInteger(), nullable=False),
        sa.Column("updated_us", sa.BigInteger(), nullable=False),
        comment="a switch of an application from a pipeline's sources to its target; steps: states and times, JSON",
        if_not_exists=True,
    )
