"""Where the staged history of a source begins: a copied row that was read earlier is not staged."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0021"
down_revision = "0020"


def upgrade() -> None:
    """Safe to repeat: MySQL commits each statement."""
    known = {column["name"] for column in sa.inspect(op.get_bind()).get_columns("ack_position")}
    if "purged_seq" not in known:
        op.add_column("ack_position", sa.Column("purged_seq", sa.BigInteger(), nullable=False, server_default="0"))
