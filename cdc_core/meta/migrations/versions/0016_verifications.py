"""How far verifications are, and what the latest of each target have found."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from cdc_core.meta.tables import long_text, text

revision = "0016"
down_revision = "0015"


def upgrade() -> None:
    """Safe to repeat: MySQL commits each statement."""
    op.create_table(
        "verification",
        sa.Column("pipeline", text(64), primary_key=True),
        sa.Column("target", text(64), primary_key=True),
        sa.Column("progress", long_text()),
        sa.Column("evidence", long_text()),
        sa.Column("updated_us", sa.BigInteger(), nullable=False),
        comment="JSON: how far the verification of a target is, if one is under way; by mode, what the latest found",
        if_not_exists=True,
    )
