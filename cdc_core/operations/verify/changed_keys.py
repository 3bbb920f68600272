"""Keys of the rows that a staged file changes, also those that rows had before."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

import pyarrow as pa
import pyarrow.compute as pc

from cdc_core.errors import LockstepError
from cdc_core.history.codes import whole
from cdc_core.history.rule import TableRule
from cdc_core.meta.meta_rows import FileRow
from cdc_core.model.schema import Column, TableSchema
from cdc_core.model.staged_columns import LITERAL, OP, SEQ, TRUNCATE, TS
from cdc_core.stage import compactions
from cdc_core.stage.layout import parse_part
from cdc_core.stage.objects import ObjectStore
from cdc_core.stage.staged_events import FileOfEvents, file_events


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

    Raises DataAtRisk (stage.damaged).
    """
    rule = TableRule(pa.schema([(column.name, column.type.arrow) for column in key_columns(schema)]), schema.key)
    read = FileOfEvents(file, schema, file.key_changes, seqs=((file.min_seq, file.max_seq),))
    moment = None if before_us is None else pa.scalar(before_us, pa.timestamp("us", tz="UTC"))
    condition = None if moment is None else pc.field(TS) < moment
    for events in file_events(store, read, rule, condition=condition):
        truncates = pc.equal(events.column(OP), TRUNCATE)
        if on_truncate is not None and pc.any(truncates).as_py():
            raise on_truncate
        some = events.filter(pc.invert(truncates)).select([*schema.key, LITERAL, SEQ])
        if some.num_rows:
            yield pa.RecordBatch.from_arrays([whole(column) for column in some.columns], schema=some.schema)


def as_read(store: ObjectStore, files: Iterable[FileRow]) -> list[FileRow]:
    """The files in which the rows of these parts are now. Of a file that has those of several parts, its rows from the
    first `min_seq` to the last `max_seq` count, rows of batches in between among them.

    files: in stream order. Raises what `compaction.read` does.
    """
    listed = list(files)
    sources = {name.source for file in listed if (name := parse_part(file.path)) is not None}
    ranges = compactions.read(store, sorted(sources))
    by_path: dict[str, FileRow] = {}
    for file in listed:
        other = ranges.instead_of(file.path, file.table, file.schema_id, file.max_seq)
        path, mine = file.path, file
        if other is not None:
            path = other.path
            mine = replace(file, path=path, size_bytes=other.size_bytes, sha256=other.sha256)
        former = by_path.get(path)
        if former is not None:
            mine = replace(
                mine,
                rows=former.rows + file.rows,
                key_changes=former.key_changes + file.key_changes,
                absent_rows=former.absent_rows + file.absent_rows,
                min_seq=min(former.min_seq, file.min_seq),
                max_seq=max(former.max_seq, file.max_seq),
            )
        by_path[path] = mine
    return list(by_path.values())


def key_columns(schema: TableSchema) -> list[Column]:
    """In the order of the key."""
    by_name = {column.name: column for column in schema.columns}
    return [by_name[name] for name in schema.key]
