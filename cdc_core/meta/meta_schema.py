"""The tables of the meta database, as SQLAlchemy Core sees them. Migrations create them; a test proves both equal.

Their keys begin with the pipeline (scope.py). Two pipelines meet in `cutover` alone, and in `lease`, which has the
lease of the two.

All times are int64 microseconds UTC by the database's own clock, except windows and watermarks, which come from the
log. Text compares byte by byte on every database, so that `Orders` and `orders` are two tables.
"""

from __future__ import annotations

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    ForeignKeyConstraint,
    Index,
    Integer,
    MetaData,
    String,
    Table,
    Text,
    UniqueConstraint,
)
from sqlalchemy.dialects import mysql
from sqlalchemy.schema import SchemaItem
from sqlalchemy.types import TypeEngine

from cdc_core.meta import scope
from cdc_core.model.paths import LONGEST_NAME

metadata = MetaData()


def text(length: int) -> TypeEngine[str]:
    exact = mysql.VARCHAR(length, charset="utf8mb4", collation="utf8mb4_bin")
    return String(length).with_variant(exact, "mysql", "mariadb")


def long_text() -> TypeEngine[str]:
    exact = mysql.LONGTEXT(charset="utf8mb4", collation="utf8mb4_bin")
    return Text().with_variant(exact, "mysql", "mariadb")


NAME, BATCH_ID, TABLE_NAME, RUN_ID, PATH, HOLDER = 64, 128, LONGEST_NAME, 250, 512, 250
"""Lengths of text columns, in characters."""


def _needed(name: str, kind: TypeEngine[int] | TypeEngine[str] | TypeEngine[bool]) -> Column[object]:
    return Column(name, kind, nullable=False)


def _table(name: str, *columns: SchemaItem, comment: str) -> Table:
    """A table of one pipeline's rows (scope.py)."""
    pipeline = Column(scope.COLUMN, text(NAME), primary_key=True, default=scope.own_pipeline)
    return Table(name, metadata, pipeline, *columns, comment=comment)


def _position(prefix: str) -> tuple[Column[object], ...]:
    """A position in columns; `seq` is its order key, which sorts as the log does."""
    return (
        _needed(f"{prefix}timeline", Integer()),
        _needed(f"{prefix}file", text(PATH)),
        _needed(f"{prefix}pos", BigInteger()),
        _needed(f"{prefix}seq", BigInteger()),
    )


lease = Table(
    "lease",
    metadata,
    Column("pipeline", text(NAME), primary_key=True),
    Column("source", text(NAME), primary_key=True),
    _needed("holder", text(HOLDER)),
    _needed("epoch", BigInteger()),
    _needed("expires_us", BigInteger()),
    *(
        Column(name, BigInteger(), nullable=False, server_default="0")
        for name in ("ring_items", "ring_bytes", "ring_most_items", "ring_most_bytes", "retention_s")
    ),
    Column("identity", text(NAME), nullable=False, server_default=""),
    info={scope.SHARED: True},
    comment="who may extract a source; epoch is the fencing token and never falls",
)

ack_position = _table(
    "ack_position",
    Column("source", text(NAME), primary_key=True),
    *_position(""),
    _needed("gtid_set", long_text()),
    _needed("server", text(NAME)),
    _needed("watermark_us", BigInteger()),
    _needed("epoch", BigInteger()),
    _needed("updated_us", BigInteger()),
    Column("fingerprint", long_text()),
    Column("floor_us", BigInteger(), nullable=False, server_default="0"),
    Column("surveyed_seq", BigInteger(), nullable=False, server_default="0"),
    Column("surveyed_captured", long_text()),
    Column("chunks", BigInteger(), nullable=False, server_default="0"),  # numbers of copied chunks given out
    Column("purged_seq", BigInteger(), nullable=False, server_default="0"),  # what begins before it is purged
    Column("read_ahead", long_text()),  # of the log after the position: statements, and between which places, JSON
    comment="up to where a source is staged, durably",
)

batch = _table(
    "batch",
    Column("batch_id", text(BATCH_ID), primary_key=True),
    _needed("source", text(NAME)),
    _needed("epoch", BigInteger()),
    *_position("begin_"),
    *_position("end_"),
    _needed("window_start_us", BigInteger()),
    _needed("window_end_us", BigInteger()),
    _needed("row_count", BigInteger()),
    _needed("event_count", BigInteger()),
    _needed("transaction_count", BigInteger()),
    _needed("size_bytes", BigInteger()),
    _needed("manifest", text(PATH)),
    _needed("notes", long_text()),
    _needed("created_us", BigInteger()),
    Column("chunk", BigInteger(), nullable=False, server_default="0"),  # the first one of copied rows, else 0
    UniqueConstraint("pipeline", "source", "begin_seq", "chunk", name="batch_order"),
    comment="one row per manifest",
)

batch_file = _table(
    "batch_file",
    Column("batch_id", text(BATCH_ID), primary_key=True),
    Column("part", Integer(), primary_key=True, autoincrement=False),
    _needed("table_name", text(TABLE_NAME)),
    _needed("path", text(PATH)),
    _needed("schema_id", text(NAME)),
    _needed("row_count", BigInteger()),
    _needed("key_changes", BigInteger()),
    _needed("size_bytes", BigInteger()),
    _needed("plain_bytes", BigInteger()),
    _needed("sha256", text(NAME)),
    _needed("min_seq", BigInteger()),
    _needed("max_seq", BigInteger()),
    Column("absent_rows", BigInteger(), nullable=False, server_default="0"),
    ForeignKeyConstraint(["pipeline", "batch_id"], ["batch.pipeline", "batch.batch_id"], name="batch_file_batch"),
    comment="one row per Parquet file of a batch, in the manifest's order",
)

schema_version = _table(
    "schema_version",
    Column("source", text(NAME), primary_key=True),
    Column("source_table", text(TABLE_NAME), primary_key=True),
    Column("first_seq", BigInteger(), primary_key=True, autoincrement=False),
    _needed("schema_id", text(NAME)),
    _needed("definition", long_text()),
    Index("schema_version_id", "pipeline", "schema_id"),
    comment="a source table's definition, in force from the order key first_seq to the next one's",
)

table_definition = _table(
    "table_definition",
    Column("source", text(NAME), primary_key=True),
    Column("source_table", text(TABLE_NAME), primary_key=True),
    Column("since_seq", BigInteger(), primary_key=True, autoincrement=False),
    _needed("definition", long_text()),
    comment="what a source table was from the order key since_seq on, where the log does not name its columns",
)

table_coverage = _table(
    "table_coverage",
    Column("source", text(NAME), primary_key=True),
    Column("source_table", text(TABLE_NAME), primary_key=True),
    _needed("coverage", long_text()),
    _needed("staged", Boolean()),
    comment="whether the staged history of a source table has every row; staged: a manifest says so",
)

table_copy = _table(
    "table_copy",
    Column("source", text(NAME), primary_key=True),
    Column("source_table", text(TABLE_NAME), primary_key=True),
    _needed("definition", long_text()),
    Column("key_limit", long_text()),
    Column("planned", long_text()),
    Column("low", long_text()),
    _needed("complete", Boolean()),
    _needed("rows_read", BigInteger()),
    _needed("bytes_read", BigInteger()),
    _needed("rows_estimated", BigInteger()),
    _needed("started_us", BigInteger()),
    _needed("updated_us", BigInteger()),
    Column("rules", text(64)),
    comment="a copy of a source table that is not staged yet: planned up to a key, until key_limit; keys as JSON",
)

copied_chunk = _table(
    "copied_chunk",
    Column("source", text(NAME), primary_key=True),
    Column("chunk", BigInteger(), primary_key=True, autoincrement=False),
    _needed("source_table", text(TABLE_NAME)),
    _needed("state", text(16)),
    _needed("epoch", BigInteger()),
    Column("above", long_text()),
    Column("through", long_text()),
    Column("claim", long_text()),
    comment="a chunk of a copy that no manifest names yet; claim: what a manifest will say, once its files are durable",
)

copy_pause = _table(
    "copy_pause",
    Column("source", text(NAME), primary_key=True),
    _needed("since_us", BigInteger()),
    _needed("holder", text(HOLDER)),
    comment="a source of which no chunk is read until somebody resumes; holder: who paused it",
)

copy_batch = _table(
    "copy_batch",
    Column("batch_id", text(BATCH_ID), primary_key=True),
    _needed("source", text(NAME)),
    _needed("manifest", long_text()),
    Column("held_seq", BigInteger(), nullable=False, server_default="0"),  # runs take no batch from there on
    comment="a manifest of copied rows that is about to be written: decided once, whoever writes it",
)

repaired_batch = _table(
    "repaired_batch",
    Column("batch_id", text(BATCH_ID), primary_key=True),
    _needed("source", text(NAME)),
    _needed("row_count", BigInteger()),
    _needed("decided_us", BigInteger()),
    comment="a batch of single rows that a repair looked up in the source: repairs have a limit a day",
)

verification = _table(
    "verification",
    Column("target", text(NAME), primary_key=True),
    Column("progress", long_text()),
    Column("evidence", long_text()),
    _needed("updated_us", BigInteger()),
    comment="JSON: how far the verification of a target is, if one is under way; by mode, what the latest found",
)

failure = _table(
    "failure",
    Column("task", text(16), primary_key=True),
    Column("subject", text(RUN_ID), primary_key=True),
    _needed("code", text(NAME)),
    _needed("exit_class", text(16)),
    _needed("what", long_text()),
    _needed("place", long_text()),
    _needed("remedy", long_text()),
    _needed("first_us", BigInteger()),
    _needed("failed_us", BigInteger()),
    _needed("times", Integer()),
    comment="the latest error of a task that has not succeeded since; subject: a source, a run",
)

told_problem = _table(
    "told_problem",
    Column("problem", text(NAME), primary_key=True),
    _needed("document", long_text()),
    comment="JSON: a problem that people were told of, until they are told that it is solved",
)

run = _table(
    "run",
    Column("run_id", text(RUN_ID), primary_key=True),
    Column("window_start_us", BigInteger()),
    Column("window_end_us", BigInteger()),
    _needed("state", text(16)),
    _needed("plan_path", text(PATH)),
    _needed("plan_sha256", text(NAME)),
    Column("airflow_run_id", text(RUN_ID)),
    _needed("by_driver", Boolean()),
    Column("last_error", long_text()),
    _needed("created_us", BigInteger()),
    _needed("updated_us", BigInteger()),
    comment="a pass of staged batches to the targets; no window: everything staged",
)

consume_record = _table(
    "consume_record",
    Column("target", text(NAME), primary_key=True),
    Column("batch_id", text(BATCH_ID), primary_key=True),
    Column("table_name", text(TABLE_NAME), primary_key=True),
    _needed("source", text(NAME)),
    _needed("begin_seq", BigInteger()),
    _needed("row_count", BigInteger()),
    _needed("taken", Boolean()),
    _needed("state", text(16)),
    _needed("run_id", text(RUN_ID)),
    Column("last_error", long_text()),
    _needed("created_us", BigInteger()),
    _needed("updated_us", BigInteger()),
    Index("consume_record_place", "pipeline", "target", "source", "begin_seq"),
    Index("consume_record_run", "pipeline", "run_id"),
    Index("consume_record_of_batch", "pipeline", "batch_id", "state"),
    ForeignKeyConstraint(["pipeline", "batch_id"], ["batch.pipeline", "batch.batch_id"], name="consume_record_batch"),
    comment="how far a target is with a batch's table ('' for a batch without rows), and whether it takes it",
)

apply_ledger = _table(
    "apply_ledger",
    Column("run_id", text(RUN_ID), primary_key=True),
    Column("target", text(NAME), primary_key=True),
    Column("table_name", text(TABLE_NAME), primary_key=True),
    *(
        _needed(name, BigInteger())
        for name in ("staged_rows", "key_changes", "winners", "superseded", "written", "stale", "absent")
    ),
    _needed("shards", long_text()),
    _needed("closed_us", BigInteger()),
    Column("spans", long_text()),  # by source, the first and the last batch, JSON
    _needed("set_aside", BigInteger()),  # rows that the target rejected, as long as it lacks them
    ForeignKeyConstraint(["pipeline", "run_id"], ["run.pipeline", "run.run_id"], name="apply_ledger_run"),
    comment="the account of one table and target in a run; shards: counts per shard, JSON",
)

last_write = _table(
    "last_write",
    Column("target", text(NAME), primary_key=True),
    Column("table_name", text(TABLE_NAME), primary_key=True),
    _needed("shards", long_text()),
    _needed("updated_us", BigInteger()),
    comment="what a target must have: by shard, the last transaction that a closed ledger counts, JSON",
)

ddl_rollout = _table(
    "ddl_rollout",
    Column("rollout_id", text(NAME), primary_key=True),
    _needed("target", text(NAME)),
    _needed("name", text(PATH)),
    _needed("direction", text(16)),
    _needed("script", long_text()),
    _needed("decided", long_text()),
    _needed("state", text(16)),
    _needed("created_us", BigInteger()),
    _needed("updated_us", BigInteger()),
    comment="a change of definitions over all shards of a target; decided: JSON, which these are, and what "
    "each statement makes of them",
)

cutover = Table(
    "cutover",
    metadata,
    Column("cutover_id", text(NAME), primary_key=True),
    _needed("pipeline", text(NAME)),
    _needed("way_back", text(NAME)),
    _needed("state", text(16)),
    _needed("steps", long_text()),
    _needed("details", long_text()),
    Column("last_error", long_text()),
    _needed("created_us", BigInteger()),
    _needed("updated_us", BigInteger()),
    info={scope.SHARED: True},
    comment="a switch of an application from a pipeline's sources to its target; steps: states and times, JSON",
)
