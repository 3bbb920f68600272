"""Keys of the rows that a staged file changes, also those that rows had before."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from cdc_core.errors import LockstepError
from cdc_core.meta import FileRow
from cdc_core.model.schema import Column, TableSchema
from cdc_core.model.staged import BEFORE, LITERAL, OP, SEQ, TRUNCATE, TS, UPDATE
from cdc_core.stage.intact import open_intact
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
    """The columns of the key, `_cdc_literal` and `_cdc_seq`; not of truncates. before_us: only of changes that were
    committed before this time, µs UTC. on_truncate: raised for a change that removes all rows.

    Raises DataAtRisk (stage.missing, stage.damaged).
    """
    columns = [*schema.key, OP, TS, SEQ, LITERAL, *([BEFORE] if file.key_changes else [])]
    with open_intact(store, file) as opened:
        for batch in pq.ParquetFile(opened).iter_batches(_ROWS, columns=columns):
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


def key_columns(schema: TableSchema) -> list[Column]:
    """In the order of the key."""
    by_name = {column.name: column for column in schema.columns}
    return [by_name[name] for name in schema.key]
