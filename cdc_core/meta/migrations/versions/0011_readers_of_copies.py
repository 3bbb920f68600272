"""Several readers of a table: chunks are planned before they are read, and copies can be paused."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from cdc_core.meta.tables import long_text, text

revision = "0011"
down_revision = "0010"


def upgrade() -> None:
    """Copies that are under way begin again: nothing of them is staged, and what was read is swept."""
    for table in ("table_copy", "copied_chunk"):
        op.drop_table(table, if_exists=True)
    op.create_table(
        "table_copy",
        sa.Column("source", text(64), primary_key=True),
        sa.Column("source_table", text(192), primary_key=True),
        sa.Column("definition", long_text(), nullable=False),
        sa.Column("key_limit", long_text()),
        sa.Column("planned", long_text()),
        sa.Column("complete", sa.Boolean(), nullable=False),
        sa.Column("counted", sa.Boolean(), nullable=False),
        *(
            sa.Column(name, sa.BigInteger(), nullable=False)
            for name in ("rows_read", "bytes_read", "rows_estimated", "started_us", "updated_us")
        ),
        comment="a copy of a source table that is not staged yet: planned up to a key, until key_limit; keys as JSON",
    )
    op.create_table(
        "copied_chunk",
        sa.Column("source", text(64), primary_key=True),
        sa.Column("chunk", sa.BigInteger(), primary_key=True, autoincrement=False),
        sa.Column("source_table", text(192), nullable=False),
        sa.Column("state", text(16), nullable=False),
        sa.Column("epoch", sa.BigInteger(), nullable=False),
        sa.Column("attempts", sa.Integer(), nullable=False),
        *(sa.Column(name, long_text()) for name in ("error", "above", "through", "claim")),
        comment="a chunk of a copy that no manifest names yet; claim: what a manifest will say, once its files are "
        "durable",
    )
    if "held_seq" not in {column["name"] for column in sa.inspect(op.get_bind()).get_columns("copy_batch")}:
        op.add_column("copy_batch", sa.Column("held_seq", sa.BigInteger(), nullable=False, server_default="0"))
    op.create_table(
        "copy_pause",
        sa.Column("source", text(64), primary_key=True),
        sa.Column("since_us", sa.BigInteger(), nullable=False),
        sa.Column("holder", text(250), nullable=False),
        comment="a source of which no chunk is read until somebody resumes; holder: who paused it",
        if_not_exists=True,
    )
