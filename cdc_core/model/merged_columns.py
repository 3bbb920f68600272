"""The columns of a merged row: what the tasks of a run hand to each other in files (the twin of
model/staged_columns.py).

    merge   writes merged/     one row for each key that the run touches; MERGED_COLUMNS
    filter  reads them, writes filtered/ and rejected/: without the columns that only the filter needs, and with
            FILTERED_COLUMNS
    write   reads filtered/, writes rejected/quarantine/ with `_cdc_reason`
    quality reads merged/ and filtered/

A row has the table's own columns under their names, typed as staged columns of several definitions are unified
(stage.unify), then bookkeeping. The columns that a staged row has too mean the same in both, but for `_cdc_op`
(MergedOp) and, in rows without a key, `_cdc_seq` and `_cdc_row`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum

import pyarrow as pa

from cdc_core.model.staged_columns import ABSENT, LITERAL, LITERAL_TYPE, OP, ROW, SEQ, SOURCE, TS


class MergedOp(StrEnum):
    """`_cdc_op` of a merged row. A staged `u` is an update; a merged `u` is whatever leaves a row under the key."""

    UPSERT = "u"
    DELETE = "d"
    TRUNCATE = "t"
    LEFT_SHARD = "x"
    """From filter: the row left this shard for another, where its change counts. A delete that is not counted."""
    TRUNCATE_UNCOUNTED = "e"
    """From filter: a truncate that is counted in another shard."""


WINNER_OPS = (MergedOp.UPSERT, MergedOp.DELETE, MergedOp.TRUNCATE)
"""What merge writes. The other two mark rows that filter adds, which count nowhere."""


class RowClass(StrEnum):
    """`_cdc_class`: what a row will do at the target. The names of FilterCounts, which counts all but the last."""

    INSERT = "insert"
    UPDATE = "update"
    DELETE = "delete"
    REVIVED = "revived"
    ABSENT = "absent"
    STALE = "stale"
    UNCOUNTED = "uncounted"
    """For the operations LEFT_SHARD and TRUNCATE_UNCOUNTED: their winner is counted elsewhere."""


BORN = "_cdc_born"
FORMER_SHARD_KEYS = "_cdc_former_shard_keys"
SHARD_UNKNOWN = "_cdc_shard_unknown"
KEY_CHAIN = "_cdc_key_chain"
ORIGIN = "_cdc_origin"
ENDED_ORIGINS = "_cdc_ended_origins"
LIVE_ORIGINS = "_cdc_live_origins"
SHARD = "_cdc_shard"
CLASS = "_cdc_class"
REASON = "_cdc_reason"


@dataclass(frozen=True, slots=True)
class MergedColumn:
    """A column of bookkeeping.

    type:    None where it depends on the table: see `merged_schema`.
    written: modules that fill it. read: modules that use it by name; others hand it on.
    where:   in which rows it is.
    """

    name: str
    type: pa.DataType | None
    meaning: str
    written: tuple[str, ...]
    read: tuple[str, ...]
    where: str = "all"


_KEYED = "tables with a key"
_MOVING = "tables with a key whose shard key is not part of it"
_SHARED = "tables that several source tables feed"
_CHAINED = "tables where rows without all values came under a new key"

MERGED_COLUMNS: tuple[MergedColumn, ...] = (
    MergedColumn(
        BORN,
        pa.bool_(),
        "a change of the run gave the key life: an insert, a copy, an arrival from another key",
        ("cdc_core.history.winners",),
        ("spark_jobs.filter",),
        _KEYED,
    ),
    MergedColumn(
        FORMER_SHARD_KEYS,
        None,
        "by shard key, a struct of lists: the values that the row had before",
        ("cdc_core.history.winners",),
        ("cdc_core.targets.writing.row_lookup", "spark_jobs.filter"),
        _MOVING,
    ),
    MergedColumn(
        SHARD_UNKNOWN,
        pa.bool_(),
        "some change of the row did not have the former shard key",
        ("cdc_core.history.events", "cdc_core.history.winners"),
        ("cdc_core.targets.writing.row_lookup",),
        _MOVING,
    ),
    MergedColumn(
        KEY_CHAIN,
        None,
        "older keys of a row that still lacks values, newest first, each with the version of the departure from it",
        ("cdc_core.history.winners",),
        ("cdc_core.targets.writing.row_lookup", "spark_jobs.quality_rows"),
        _CHAINED,
    ),
    MergedColumn(
        ORIGIN,
        pa.string(),
        "which source table the row comes from (model.version)",
        ("cdc_core.history.winners",),
        ("cdc_core.targets.tables.text_columns", "spark_jobs.quality_rows", "spark_jobs.quarantine"),
        _SHARED,
    ),
    MergedColumn(
        ENDED_ORIGINS,
        pa.string(),
        "origins, joined by commas, of source tables that ended the run without a row under the key; null: none",
        ("cdc_core.history.winners",),
        ("cdc_core.targets.writing.load",),
        _SHARED,
    ),
    MergedColumn(
        LIVE_ORIGINS,
        pa.int64(),
        "how many source tables ended the run with a row under the key; more than one is refused",
        ("cdc_core.history.winners",),
        ("spark_jobs.filter",),
        _SHARED,
    ),
)
"""What a merged row has beside `_cdc_op _cdc_ts _cdc_source _cdc_seq _cdc_row _cdc_literal`, and with a key
`_cdc_absent` (what no change of the run has).

In rows without a key, a row is one copy that comes (u) or goes (d): `_cdc_seq` is where its batch begins, `_cdc_row`
numbers the copies."""

FILTERED_COLUMNS: tuple[MergedColumn, ...] = (
    MergedColumn(
        SHARD,
        pa.int32(),
        "the shard table that the row is for, by its number in the target's layout",
        ("spark_jobs.filter",),
        ("cdc_core.operations.apply.set_aside", "spark_jobs.filtered_files", "spark_jobs.quality_rows"),
    ),
    MergedColumn(
        CLASS,
        pa.string(),
        "what the row will do there (RowClass)",
        ("spark_jobs.filter",),
        ("spark_jobs.filter",),
        "filtered/",
    ),
    MergedColumn(
        REASON,
        pa.string(),
        "why the row is not written",
        ("spark_jobs.filter", "spark_jobs.quarantine"),
        ("spark_jobs.filter",),
        "rejected/",
    ),
)

FILTER_ONLY = frozenset({FORMER_SHARD_KEYS, SHARD_UNKNOWN, KEY_CHAIN, LIVE_ORIGINS})
"""What merge passes to filter alone: filtered/ and rejected/ are without it."""


_WIDER: dict[pa.DataType, pa.DataType] = {
    pa.uint8(): pa.int16(), pa.uint16(): pa.int32(), pa.uint32(): pa.int64(), pa.uint64(): pa.decimal128(20, 0),
}  # fmt: skip


def merged_type(staged: pa.DataType) -> pa.DataType:
    """The type of a staged column in merged rows: Spark, which may read them, has no unsigned types."""
    if pa.types.is_dictionary(staged):
        return merged_type(staged.value_type)
    return _WIDER.get(staged, staged)


def key_chain_type(row: Iterable[pa.Field], key: Sequence[str]) -> pa.DataType:
    """The type of `_cdc_key_chain`: an older key, its literals, and the version of the departure from it."""
    by_name = {field.name: field.type for field in row}
    return pa.list_(
        pa.struct(
            [
                *((name, by_name[name]) for name in key),
                (LITERAL, LITERAL_TYPE),
                (TS, pa.timestamp("us", tz="UTC")),
                (SOURCE, pa.string()),
                (SEQ, pa.int64()),
                (ROW, pa.int64()),
            ]
        )
    )


def merged_schema(
    row: Sequence[pa.Field],
    key: Sequence[str],
    *,
    moving: Sequence[str] = (),
    chained: bool = False,
    shared: bool = False,
) -> pa.Schema:
    """The Arrow schema of the merged rows of a table.

    row: its own columns. moving: shard keys that are not part of the key. chained: rows without all values came under a
    new key. shared: several source tables feed the table.
    """
    by_name = {field.name: field.type for field in row}
    types = {
        FORMER_SHARD_KEYS: pa.struct([(name, pa.list_(by_name[name])) for name in moving]),
        KEY_CHAIN: key_chain_type(row, key),
    }
    here = {_KEYED: bool(key), _MOVING: bool(key and moving), _CHAINED: chained, _SHARED: shared}
    fields = [
        *row,
        (OP, pa.string()),
        (TS, pa.timestamp("us", tz="UTC")),
        (SOURCE, pa.string()),
        (SEQ, pa.int64()),
        (ROW, pa.int64()),
        (LITERAL, LITERAL_TYPE),
        *([(ABSENT, pa.string())] if key else []),
        *[(one.name, one.type or types[one.name]) for one in MERGED_COLUMNS if here[one.where]],
    ]
    return pa.schema([field if isinstance(field, pa.Field) else pa.field(*field) for field in fields])
