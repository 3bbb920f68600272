"""The columns of a merged row: what the tasks of a run hand to each other in files (the twin of
model/staged_columns.py).

    merge   writes merged/     one row for each key that the run touches (`merged_schema`)
    filter  reads them, writes filtered/ and rejected/: without FILTER_ONLY, and with `_cdc_shard`, `_cdc_class` or
            `_cdc_reason`
    write   reads filtered/, writes rejected/quarantine/ with `_cdc_reason`
    quality reads merged/ and filtered/

A row has the table's own columns under their names, typed as staged columns of several definitions are unified
(stage.unify), then bookkeeping. The columns that a staged row has too mean the same in both, but for `_cdc_op`
(MergedOp) and, in rows without a key, `_cdc_seq` and `_cdc_row`: such a row is one copy that comes (u) or goes (d),
`_cdc_seq` is where its batch begins, and `_cdc_row` numbers the copies.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
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


# In tables with a key, beside `_cdc_absent`: what no change of the run has.
BORN = "_cdc_born"
"""Whether a change of the run gave the key life: an insert, a copy, an arrival from another key."""

# In tables with a key whose shard key is not part of it.
FORMER_SHARD_KEYS = "_cdc_former_shard_keys"
"""A struct of lists: for each shard key, the values that the row had before."""
SHARD_UNKNOWN = "_cdc_shard_unknown"
"""Whether some change of the row did not have the former shard key."""

# In tables where rows without all values came under a new key.
KEY_CHAIN = "_cdc_key_chain"
"""Older keys of a row that still lacks values, newest first, each with the version of the departure from it."""

# In tables that several source tables feed.
ORIGIN = "_cdc_origin"
"""Which source table the row comes from (model.version)."""
ENDED_ORIGINS = "_cdc_ended_origins"
"""Origins, joined by commas, of source tables that ended the run without a row under the key; null: none."""
LIVE_ORIGINS = "_cdc_live_origins"
"""How many source tables ended the run with a row under the key; more than one is refused."""

# What filter and write add.
SHARD = "_cdc_shard"
"""The shard table that the row is for, by its number in the target's layout."""
CLASS = "_cdc_class"
"""In filtered/: what the row will do there (RowClass)."""
REASON = "_cdc_reason"
"""In rejected/: why the row is not written."""

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
    fields = [
        *row,
        (OP, pa.string()),
        (TS, pa.timestamp("us", tz="UTC")),
        (SOURCE, pa.string()),
        (SEQ, pa.int64()),
        (ROW, pa.int64()),
        (LITERAL, LITERAL_TYPE),
    ]
    if key:
        fields += [(ABSENT, pa.string()), (BORN, pa.bool_())]
    if key and moving:
        former = pa.struct([(name, pa.list_(by_name[name])) for name in moving])
        fields += [(FORMER_SHARD_KEYS, former), (SHARD_UNKNOWN, pa.bool_())]
    if chained:
        fields.append((KEY_CHAIN, key_chain_type(row, key)))
    if shared:
        fields += [(ORIGIN, pa.string()), (ENDED_ORIGINS, pa.string()), (LIVE_ORIGINS, pa.int64())]
    return pa.schema([field if isinstance(field, pa.Field) else pa.field(*field) for field in fields])
