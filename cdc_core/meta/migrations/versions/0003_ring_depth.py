"""How much the holder of a lease has in its ring, and the most that it had."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"


def upgrade() -> None:
    """MySQL commits each statement: a migration killed between two of them finds the columns that exist."""
    present = {column["name"] for column in sa.inspect(op.get_bind()).get_columns("lease")}
    for name in ("ring_items", "ring_bytes", "ring_most_items", "ring_most_bytes"):
        if name not in present:
            op.add_column("lease", sa.Column(name, sa.BigInteger(), nullable=False, server_default="0"))
