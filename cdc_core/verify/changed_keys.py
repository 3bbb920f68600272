"""Keys of the rows that a staged file changes, also those that rows had before."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from cdc_core.errors import LockstepError
from cdc_core.meta import FileRow
from cdc_core.model.schema import Column, TableSchema
from cdc_core.model.staged import BEFORE, LITERAL, OP, SEQ, TRUNCATE, TS, UPDATE
from cdc_core.stage import compaction
from cdc_core.stage.intact import open_intact
from cdc_core.stage.layout import parse_part
from cdc_core.stage.objects import ObjectStore
from cdc_core.verify.history import before_images

_ROWS = 65_536


def changed_keys(
    store: ObjectStore,
    file: FileRow,
    schema: TableSchema,
    *,
    before_us: int | None = None,
    on_truncate: LockstepError | None = None,
) -> Iterator[pa.RecordBatch]:
    """The columns of the key, `_cdc_literal` and `_cdc_seq`; not of truncates. file: as `as_read` has it.
    before_us: only of changes that were committed before this time, µs UTC. on_truncate: raised for a change that
    removes all rows.

    Raises DataAtRisk (stage.missing, stage.damaged).
    """
    columns = [*schema.key, OP, TS, SEQ, LITERAL, *([BEFORE] if file.key_changes else [])]
    with open_intact(store, file) as opened:
        for batch in pq.ParquetFile(opened).iter_batches(_ROWS, columns=columns):
            seqs = batch.column(SEQ)
            batch = batch.filter(pc.and_(pc.greater_equal(seqs, file.min_seq), pc.less_equal(seqs, file.max_seq)))
            chosen = pc.not_equal(batch.column(OP).cast(pa.string()), TRUNCATE)
            if on_truncate is not None and not pc.all(chosen).as_py():
                raise on_truncate
            if before_us is not None:
                moment = pa.scalar(before_us, pa.timestamp("us", tz="UTC"))
                chosen = pc.and_(chosen, pc.less(batch.column(TS), moment))
            some = batch.filter(chosen)
            if not some.num_rows:
                continue
            wanted = [*schema.key, LITERAL, SEQ]
            yield some.select(wanted)
            if file.key_changes:
                updates = some.filter(pc.equal(some.column(OP).cast(pa.string()), UPDATE))
                if updates.num_rows:
                    before = before_images(updates)
                    yield pa.RecordBatch.from_arrays(
                        [*(before.column(name) for name in [*schema.key, LITERAL]), updates.column(SEQ)], names=wanted
                    )


def as_read(store: ObjectStore, files: Iterable[FileRow]) -> list[FileRow]:
    """The files in which the rows of these parts are now. Of a file that has those of several parts, its rows from the
    first `min_seq` to the last `max_seq` count, rows of batches in between among them.

    files: in stream order. Raises what `compaction.read` does.
    """
    listed = list(files)
    sources = {name.source for file in listed if (name := parse_part(file.path)) is not None}
    ranges = compaction.read(store, sorted(sources))
    found: dict[str, FileRow] = {}
    for file in listed:
        other = ranges.instead_of(file.path, file.table, file.schema_id, file.max_seq)
        path, mine = file.path, file
        if other is not None:
            path = other.path
            mine = replace(file, path=path, size_bytes=other.size_bytes, sha256=other.sha256)
        known = found.get(path)
        if known is not None:
            mine = replace(
                mine,
                rows=known.rows + file.rows,
                key_changes=known.key_changes + file.key_changes,
                absent_rows=known.absent_rows + file.absent_rows,
                min_seq=min(known.min_seq, file.min_seq),
                max_seq=max(known.max_seq, file.max_seq),
            )
        found[path] = mine
    return list(found.values())


def key_columns(schema: TableSchema) -> list[Column]:
    """In the order of the key."""
    by_name = {column.name: column for column in schema.columns}
    return [by_name[name] for name in schema.key]
