"""The first tables."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import mysql
from sqlalchemy.types import TypeEngine

revision = "0001"
down_revision = None


def _text(length: int) -> TypeEngine[str]:
    exact = mysql.VARCHAR(length, charset="utf8mb4", collation="utf8mb4_bin")
    return sa.String(length).with_variant(exact, "mysql", "mariadb")


def _long() -> TypeEngine[str]:
    exact = mysql.LONGTEXT(charset="utf8mb4", collation="utf8mb4_bin")
    return sa.Text().with_variant(exact, "mysql", "mariadb")


def _index(name: str, table: str, column: str) -> None:
    """MySQL commits each statement: a migration killed half-way finds its own index when it runs again."""
    if name not in {index["name"] for index in sa.inspect(op.get_bind()).get_indexes(table)}:
        op.create_index(name, table, [column])


def upgrade() -> None:
    op.create_table(
        "ack_position",
        sa.Column("source", _text(64), primary_key=True),
        sa.Column("pipeline", _text(64), nullable=False),
        sa.Column("timeline", sa.Integer(), nullable=False),
        sa.Column("file", _text(512), nullable=False),
        sa.Column("pos", sa.BigInteger(), nullable=False),
        sa.Column("seq", sa.BigInteger(), nullable=False),
        sa.Column("gtid_set", _long(), nullable=False),
        sa.Column("server", _text(64), nullable=False),
        sa.Column("watermark_us", sa.BigInteger(), nullable=False),
        sa.Column("epoch", sa.BigInteger(), nullable=False),
        sa.Column("updated_us", sa.BigInteger(), nullable=False),
        comment="up to where a source is staged, durably",
        if_not_exists=True,
    )
    op.create_table(
        "batch",
        sa.Column("batch_id", _text(128), primary_key=True),
        sa.Column("pipeline", _text(64), nullable=False),
        sa.Column("source", _text(64), nullable=False),
        sa.Column("epoch", sa.BigInteger(), nullable=False),
        sa.Column("begin_timeline", sa.Integer(), nullable=False),
        sa.Column("begin_file", _text(512), nullable=False),
        sa.Column("begin_pos", sa.BigInteger(), nullable=False),
        sa.Column("begin_seq", sa.BigInteger(), nullable=False),
        sa.Column("end_timeline", sa.Integer(), nullable=False),
        sa.Column("end_file", _text(512), nullable=False),
        sa.Column("end_pos", sa.BigInteger(), nullable=False),
        sa.Column("end_seq", sa.BigInteger(), nullable=False),
        sa.Column("window_start_us", sa.BigInteger(), nullable=False),
        sa.Column("window_end_us", sa.BigInteger(), nullable=False),
        sa.Column("row_count", sa.BigInteger(), nullable=False),
        sa.Column("event_count", sa.BigInteger(), nullable=False),
        sa.Column("transaction_count", sa.BigInteger(), nullable=False),
        sa.Column("size_bytes", sa.BigInteger(), nullable=False),
        sa.Column("manifest", _text(512), nullable=False),
        sa.Column("notes", _long(), nullable=False),
        sa.Column("created_us", sa.BigInteger(), nullable=False),
        sa.UniqueConstraint("source", "begin_seq", name="batch_order"),
        comment="one row per manifest",
        if_not_exists=True,
    )
    op.create_table(
        "lease",
        sa.Column("source", _text(64), primary_key=True),
        sa.Column("pipeline", _text(64), nullable=False),
        sa.Column("holder", _text(250), nullable=False),
        sa.Column("epoch", sa.BigInteger(), nullable=False),
        sa.Column("expires_us", sa.BigInteger(), nullable=False),
        comment="who may extract a source; epoch is the fencing token and never falls",
        if_not_exists=True,
    )
    op.create_table(
        "run",
        sa.Column("run_id", _text(250), primary_key=True),
        sa.Column("pipeline", _text(64), nullable=False),
        sa.Column("window_start_us", sa.BigInteger()),
        sa.Column("window_end_us", sa.BigInteger()),
        sa.Column("state", _text(16), nullable=False),
        sa.Column("plan_path", _text(512), nullable=False),
        sa.Column("plan_sha256", _text(64), nullable=False),
        sa.Column("airflow_run_id", _text(250)),
        sa.Column("last_error", _long()),
        sa.Column("created_us", sa.BigInteger(), nullable=False),
        sa.Column("updated_us", sa.BigInteger(), nullable=False),
        comment="a pass of staged batches to the targets; no window: everything staged",
        if_not_exists=True,
    )
    op.create_table(
        "schema_version",
        sa.Column("source", _text(64), primary_key=True),
        sa.Column("source_table", _text(192), primary_key=True),
        sa.Column("first_seq", sa.BigInteger(), primary_key=True, autoincrement=False),
        sa.Column("schema_id", _text(64), nullable=False),
        sa.Column("definition", _long(), nullable=False),
        comment="a source table's definition, in force from the order key first_seq to the next one's",
        if_not_exists=True,
    )
    op.create_table(
        "apply_ledger",
        sa.Column("run_id", _text(250), sa.ForeignKey("run.run_id", name="apply_ledger_run"), primary_key=True),
        sa.Column("target", _text(64), primary_key=True),
        sa.Column("table_name", _text(192), primary_key=True),
        sa.Column("staged_rows", sa.BigInteger(), nullable=False),
        sa.Column("key_changes", sa.BigInteger(), nullable=False),
        sa.Column("winners", sa.BigInteger(), nullable=False),
        sa.Column("superseded", sa.BigInteger(), nullable=False),
        sa.Column("written", sa.BigInteger(), nullable=False),
        sa.Column("stale", sa.BigInteger(), nullable=False),
        sa.Column("absent", sa.BigInteger(), nullable=False),
        sa.Column("shards", _long(), nullable=False),
        sa.Column("closed_us", sa.BigInteger(), nullable=False),
        comment="the account of one table and target in a run; shards: counts per shard, JSON",
        if_not_exists=True,
    )
    op.create_table(
        "batch_file",
        sa.Column("batch_id", _text(128), sa.ForeignKey("batch.batch_id", name="batch_file_batch"), primary_key=True),
        sa.Column("part", sa.Integer(), primary_key=True, autoincrement=False),
        sa.Column("table_name", _text(192), nullable=False),
        sa.Column("path", _text(512), nullable=False),
        sa.Column("schema_id", _text(64), nullable=False),
        sa.Column("row_count", sa.BigInteger(), nullable=False),
        sa.Column("key_changes", sa.BigInteger(), nullable=False),
        sa.Column("size_bytes", sa.BigInteger(), nullable=False),
        sa.Column("sha256", _text(64), nullable=False),
        sa.Column("min_seq", sa.BigInteger(), nullable=False),
        sa.Column("max_seq", sa.BigInteger(), nullable=False),
        comment="one row per Parquet file of a batch, in the manifest's order",
        if_not_exists=True,
    )
    op.create_table(
        "consume_record",
        sa.Column("target", _text(64), primary_key=True),
        sa.Column(
            "batch_id", _text(128), sa.ForeignKey("batch.batch_id", name="consume_record_batch"), primary_key=True
        ),
        sa.Column("table_name", _text(192), primary_key=True),
        sa.Column("pipeline", _text(64), nullable=False),
        sa.Column("source", _text(64), nullable=False),
        sa.Column("begin_seq", sa.BigInteger(), nullable=False),
        sa.Column("row_count", sa.BigInteger(), nullable=False),
        sa.Column("taken", sa.Boolean(), nullable=False),
        sa.Column("state", _text(16), nullable=False),
        sa.Column("run_id", _text(250), nullable=False),
        sa.Column("attempts", sa.Integer(), nullable=False),
        sa.Column("last_error", _long()),
        sa.Column("created_us", sa.BigInteger(), nullable=False),
        sa.Column("updated_us", sa.BigInteger(), nullable=False),
        sa.UniqueConstraint("target", "source", "begin_seq", "table_name", name="consume_record_order"),
        comment="how far a target is with a batch's table ('' for a batch without rows), and whether it takes it",
        if_not_exists=True,
    )
    _index("schema_version_id", "schema_version", "schema_id")
    _index("consume_record_run", "consume_record", "run_id")
