"""Copies of existing rows: what is read and not staged yet, and batches of copied rows, any number at one place."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from cdc_core.meta.tables import long_text, text

revision = "0010"
down_revision = "0009"


def upgrade() -> None:
    """MySQL commits each statement: a migration killed between two of them finds what exists."""
    seen = sa.inspect(op.get_bind())
    for table, name in (("ack_position", "chunks"), ("batch", "chunk")):
        if name not in {column["name"] for column in seen.get_columns(table)}:
            op.add_column(table, sa.Column(name, sa.BigInteger(), nullable=False, server_default="0"))
    _replace_constraints()
    op.create_table(
        "table_copy",
        sa.Column("source", text(64), primary_key=True),
        sa.Column("source_table", text(192), primary_key=True),
        sa.Column("definition", long_text(), nullable=False),
        sa.Column("key_limit", long_text()),
        sa.Column("reached", long_text()),
        sa.Column("complete", sa.Boolean(), nullable=False),
        *(
            sa.Column(name, sa.BigInteger(), nullable=False)
            for name in ("rows_read", "rows_estimated", "started_us", "updated_us")
        ),
        comment="a copy of a source table that is not staged yet: read up to the key reached, until key_limit; as JSON",
        if_not_exists=True,
    )
    op.create_table(
        "copied_chunk",
        sa.Column("source", text(64), primary_key=True),
        sa.Column("chunk", sa.BigInteger(), primary_key=True, autoincrement=False),
        sa.Column("source_table", text(192), nullable=False),
        sa.Column("claim", long_text(), nullable=False),
        comment="a chunk whose files are durable and which no manifest names yet",
        if_not_exists=True,
    )
    op.create_table(
        "copy_batch",
        sa.Column("batch_id", text(128), primary_key=True),
        sa.Column("source", text(64), nullable=False),
        sa.Column("manifest", long_text(), nullable=False),
        comment="a manifest of copied rows that is about to be written: decided once, whoever writes it",
        if_not_exists=True,
    )


def _replace_constraints() -> None:
    """Several batches may begin at one place: one of the log, and any number of copied rows."""
    seen = sa.inspect(op.get_bind())
    unique = {one["name"]: one["column_names"] for one in seen.get_unique_constraints("batch")}
    if unique.get("batch_order") != ["source", "begin_seq", "chunk"]:
        with op.batch_alter_table("batch") as batch:
            if "batch_order" in unique:
                batch.drop_constraint("batch_order", type_="unique")
            batch.create_unique_constraint("batch_order", ["source", "begin_seq", "chunk"])
    records = {one["name"] for one in seen.get_unique_constraints("consume_record")}
    indexes = {one["name"] for one in seen.get_indexes("consume_record")}
    with op.batch_alter_table("consume_record") as record:
        if "consume_record_place" not in indexes:
            record.create_index("consume_record_place", ["target", "source", "begin_seq"])
        if "consume_record_order" in records:
            record.drop_constraint("consume_record_order", type_="unique")
