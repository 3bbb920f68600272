"""Blocks made by hand for tests of the packages after `source`: entries with positions and rows."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from cdc_core.model.block import Block, Entries, EntryGtids, EntryKind, TableRows
from cdc_core.model.position import Position
from cdc_core.model.schema import TableSchema
from cdc_core.model.staged_columns import absent_text, staged_schema
from cdc_core.ring import AckPoint

ENTRY_BYTES = 100
"""Bytes of log that each made entry covers."""


def at(entries: int, file: str = "binlog.000001") -> Position:
    """The position after so many made entries."""
    return Position(0, file, 4 + ENTRY_BYTES * entries)


@dataclass(frozen=True)
class Change:
    """One row image: `after` is the row (for a delete the row before), `before` an update's row before.

    absent: names as in `_cdc_absent`.
    """

    schema: TableSchema
    op: str
    after: dict[str, Any]
    before: dict[str, Any] | None = None
    literal: dict[str, str] | None = None
    logical: str | None = None
    absent: Sequence[str] = ()


@dataclass(frozen=True)
class Made:
    """One entry: its kind, its changes (or only their number, for the ring), its commit time."""

    changes: Sequence[Change] = ()
    kind: EntryKind = EntryKind.TRANSACTION
    ts: int = 0
    rows: int | None = None
    size_bytes: int = 1000
    seq: int | None = None
    first_row: int = 0
    gtid: str = ""


def block(
    made: Sequence[Made],
    begin: Position,
    *,
    source: str = "shop",
    end: Position | None = None,
    left_out: dict[str, int] | None = None,
    notes: tuple[str, ...] = (),
) -> Block:
    """Entries of ENTRY_BYTES each, one after the other from `begin`; `end` names another file after a rotation."""
    count = len(made)
    starts = begin.offset + ENTRY_BYTES * np.arange(count, dtype=np.int64)
    seqs = []
    for index, transaction in enumerate(made):
        own = Position(begin.timeline, begin.file, int(starts[index])).seq
        seqs.append(own if transaction.seq is None else transaction.seq)
    entries = Entries(
        kind=np.array([transaction.kind for transaction in made], np.uint8),
        begin=starts,
        end=starts + ENTRY_BYTES,
        seq=np.array(seqs, np.int64),
        commit_ts_us=np.array([transaction.ts for transaction in made], np.int64),
        events=np.full(count, 3, np.int64),
        rows=np.array(
            [len(transaction.changes) if transaction.rows is None else transaction.rows for transaction in made],
            np.int64,
        ),
        size_bytes=np.array([transaction.size_bytes for transaction in made], np.int64),
        gtids=gtids_of([transaction.gtid for transaction in made]),
        trace=starts,
        trace_crc=np.arange(count, dtype=np.int64) + 1,
    )
    natural = Position(begin.timeline, begin.file, begin.offset + ENTRY_BYTES * count)
    return Block(source, begin, end or natural, entries, _tables(made, source, begin, seqs), left_out or {}, notes)


def gtids_of(texts: Sequence[str]) -> EntryGtids:
    parts = [re.fullmatch(r"(.*[:-])([0-9]+)|", text) for text in texts]
    prefixes = list(dict.fromkeys(part[1] for part in parts if part and part[1]))
    names = [prefixes.index(part[1]) if part and part[1] else -1 for part in parts]
    numbers = [int(part[2]) if part and part[1] else 0 for part in parts]
    return EntryGtids(prefixes, np.array(names, np.int64), np.array(numbers, np.int64))


def _tables(made: Sequence[Made], source: str, begin: Position, seqs: Sequence[int]) -> tuple[TableRows, ...]:
    rows: dict[tuple[str, str], tuple[TableSchema, list[dict[str, Any]], list[int]]] = {}
    for index, transaction in enumerate(made):
        for ordinal, change in enumerate(transaction.changes):
            logical = change.logical or change.schema.name
            _, records, entry = rows.setdefault((logical, change.schema.id), (change.schema, [], []))
            entry.append(index)
            records.append(
                {
                    **change.after,
                    "_before": change.before,
                    "_cdc_op": change.op,
                    "_cdc_ts": transaction.ts,
                    "_cdc_source": source,
                    "_cdc_file": begin.file,
                    "_cdc_pos": begin.offset + ENTRY_BYTES * index + 50,
                    "_cdc_row": transaction.first_row + ordinal,
                    "_cdc_seq": seqs[index],
                    "_cdc_gtid": transaction.gtid or None,
                    "_cdc_literal": list(change.literal.items()) if change.literal else None,
                    "_cdc_absent": absent_text(change.absent),
                }
            )
    return tuple(
        TableRows(
            schema,
            logical,
            pa.RecordBatch.from_pylist(records, schema=staged_schema(schema)),
            np.array(entry, np.int32),
        )
        for (logical, _), (schema, records, entry) in rows.items()
    )


def last_of(blocks: Sequence[Block]) -> AckPoint:
    """The boundary that acks all of a take."""
    end = blocks[-1].end
    return AckPoint(end.file, end.offset, int(blocks[-1].entries.commit_ts_us[-1]))
