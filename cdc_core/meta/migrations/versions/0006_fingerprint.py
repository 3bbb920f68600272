"""The fingerprint that tells the log that was read from another one, and the floor of a watermark taken back."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from cdc_core.meta.tables import long_text

revision = "0006"
down_revision = "0005"


def upgrade() -> None:
    """MySQL commits each statement: a migration killed between two of them finds the columns that exist."""
    present = {column["name"] for column in sa.inspect(op.get_bind()).get_columns("ack_position")}
    if "fingerprint" not in present:
        op.add_column("ack_position", sa.Column("fingerprint", long_text()))
    if "floor_us" not in present:
        op.add_column("ack_position", sa.Column("floor_us", sa.BigInteger(), nullable=False, server_default="0"))
