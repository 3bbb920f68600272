"""Which tables a survey looked for: another may have existed by then, although the survey did not find it."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from cdc_core.meta.tables import long_text

revision = "0014"
down_revision = "0013"


def upgrade() -> None:
    """Safe to repeat: MySQL commits each statement."""
    if "surveyed_captured" not in {one["name"] for one in sa.inspect(op.get_bind()).get_columns("ack_position")}:
        op.add_column("ack_position", sa.Column("surveyed_captured", long_text()))
