"""Staged files without some of their changes: new files beside them, durable before a manifest names them.

A file keeps its name but for the number at its end. May assume that nobody else writes files of its batch, chunk or
range: whoever calls this holds their leases.
"""

from __future__ import annotations

import tempfile
from collections.abc import Collection, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from cdc_core.model.batch import Part
from cdc_core.model.schema import TableSchema
from cdc_core.model.staged_columns import ROW, SEQ
from cdc_core.stage.compacting import rows_of
from cdc_core.stage.layout import parse_compacted, parse_copied, parse_part
from cdc_core.stage.objects import ObjectStore
from cdc_core.stage.open_part import RowCounts, bounded, open_part
from cdc_core.stage.parquet import row_weights

Place = tuple[int, int]
"""`_cdc_seq` and `_cdc_row` of a change: unique in a file."""


def without(store: ObjectStore, part: Part, schema: TableSchema, gone: Collection[Place], *, level: int) -> Part:
    """The part without these changes; it may have no rows. level: of the compression.

    Raises DataAtRisk (stage.damaged).
    """
    name = parse_part(part.path) or parse_copied(part.path) or parse_compacted(part.path)
    assert name is not None  # manifests and records name no other files
    stem = part.path.rpartition("-")[0]
    with tempfile.TemporaryDirectory(prefix="lockstep-") as scratch:
        made = open_part(
            store,
            part.table,
            schema,
            name,
            lambda file: f"{stem}-{file.part:04d}.parquet",
            level=level,
            scratch=Path(scratch),
        )
        try:
            for rows in rows_of(store, part):
                kept = rows.filter(pa.array(~_among(rows, gone)))
                if kept.num_rows:
                    made.add(kept.cast(made.arrow))
            made.file.close()
            return bounded(made.listed(made.file.publish()), [part])
        except BaseException:
            made.file.discard()
            raise


def _among(rows: pa.RecordBatch, gone: Collection[Place]) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    """Which rows are among these changes, of which there are few."""
    seqs, numbers = (rows.column(name).to_numpy() for name in (SEQ, ROW))
    found = np.isin(seqs, np.array([seq for seq, _ in gone], np.int64))
    at = np.flatnonzero(found)
    found[at] = [(int(seqs[index]), int(numbers[index])) in gone for index in at]
    return found


def recounted(store: ObjectStore, file: Part, schema: TableSchema, parts: Sequence[Part]) -> list[Part]:
    """The parts of batches whose rows are in a compacted file, with the counts of what it has of them. Raises
    DataAtRisk (stage.damaged)."""
    counts = [RowCounts() for _ in parts]
    for rows in rows_of(store, file):
        seqs = rows.column(SEQ)
        for part, count in zip(parts, counts, strict=True):
            of_part = pc.and_(pc.greater_equal(seqs, part.min_seq), pc.less_equal(seqs, part.max_seq))
            if (mine := rows.filter(of_part)).num_rows:
                count.add(mine, schema.key, int(row_weights(mine).sum()))
    return [count.of(part) for part, count in zip(parts, counts, strict=True)]
