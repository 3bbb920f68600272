"""Drops tables that nothing ever wrote or read; databases created before this migration have them."""

from __future__ import annotations

from alembic import op

revision = "0005"
down_revision = "0004"


def upgrade() -> None:
    for name in ("snapshot_chunk", "check_report"):
        op.drop_table(name, if_exists=True)
