"""The parts of a closed range of batches, written as few files: the same rows in the same order.

The rows of one table that its source table had under one definition come into one file, in stream order; it ends where
another definition takes effect, or when it is large. Parts that are large, or alone, are left as they are. A file
counts only after it was read back from the stage and has the rows of its parts, value by value; until the record of the
range names it (`stage.compactions`), nobody reads it.
"""

from __future__ import annotations

import logging
import tempfile
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from cdc_core.errors import DataAtRisk
from cdc_core.model.batch import Manifest, Part
from cdc_core.model.compacted import BatchCounts, Compaction, bare
from cdc_core.model.schema import TableSchema
from cdc_core.stage.intact import open_intact
from cdc_core.stage.layout import CompactedName, compacted_path
from cdc_core.stage.objects import ObjectStore
from cdc_core.stage.open_part import bounded, open_part
from cdc_core.stage.parquet import read_rows

log = logging.getLogger(__name__)

LARGE_BYTES = 32 << 20
"""Parts of this size or more are left as they are: readers gain nothing by a copy."""
FULL_BYTES = 256 << 20
"""Size of the parts of a file at which the next file begins."""
_ROWS = 32_768


@dataclass(frozen=True, slots=True)
class FileOf:
    """Parts that become one file; one that stays as it is, if there is only one."""

    table: str
    schema: TableSchema
    parts: tuple[Part, ...]

    @property
    def rows(self) -> int:
        return sum(part.rows for part in self.parts)

    @property
    def size_bytes(self) -> int:
        return sum(part.size_bytes for part in self.parts)


def files_of(batches: Sequence[Manifest]) -> list[FileOf]:
    """What the parts of a range become; in the order of their tables, those of a source table in stream order."""
    by_table: dict[tuple[str, str], list[tuple[Part, TableSchema]]] = defaultdict(list)
    for batch in batches:
        for part in sorted(batch.parts, key=lambda part: part.max_seq):
            schema = batch.schemas[part.schema_id]
            by_table[part.table, schema.name].append((part, schema))
    files = []
    for (table, _), parts in sorted(by_table.items()):
        some: list[Part] = []
        for number, (part, schema) in enumerate(parts):
            some.append(part)
            after = parts[number + 1] if number + 1 < len(parts) else None
            if after is None or after[1].id != schema.id or _full(some, after[0]):
                files.append(FileOf(table, schema, tuple(some)))
                some = []
    return files


def _full(some: Sequence[Part], after: Part) -> bool:
    large = max(some[-1].size_bytes, after.size_bytes) >= LARGE_BYTES
    return large or sum(part.size_bytes for part in some) >= FULL_BYTES


def compact(store: ObjectStore, batches: Sequence[Manifest], *, epoch: int, created_us: int, level: int) -> Compaction:
    """Writes the files of a range, durably and proven; the record to put.

    batches: of the log, one after the other. epoch: of the right to compact.
    Raises DataAtRisk (stage.damaged); what was written then is not named by any record, and a sweep removes it.
    """
    wanted = files_of(batches)
    begin, end = batches[0].begin.position.seq, batches[-1].end.position.seq
    parts = []
    with tempfile.TemporaryDirectory(prefix="lockstep-") as scratch:
        for number, file in enumerate(wanted):
            if len(file.parts) == 1:
                parts.append(file.parts[0])
            else:
                name = CompactedName(batches[0].source, begin, end, epoch, number)
                parts.append(_written(store, file, name, batches[0].window_start_us, level, Path(scratch)))
    return Compaction(
        epoch=epoch,
        created_us=created_us,
        batches=tuple(bare(batch) for batch in batches),
        counts=tuple(BatchCounts.of(batch) for batch in batches),
        parts=tuple(parts),
        schemas={file.schema.id: file.schema for file in wanted},
    )


def _written(
    store: ObjectStore, file: FileOf, name: CompactedName, window_start_us: int, level: int, scratch: Path
) -> Part:
    """The file, durable and proven."""
    made = open_part(
        store,
        file.table,
        file.schema,
        name,
        lambda name: compacted_path(file.table, window_start_us, name),
        level=level,
        scratch=scratch,
    )
    try:
        for part in file.parts:
            for batch in rows_of(store, part):
                made.add(batch.cast(made.arrow))
        made.file.close()
        path = made.file.publish()
    except BaseException:
        made.file.discard()
        raise
    written = bounded(made.listed(path), file.parts)
    _require_sums(file, written)
    _require_rows(store, file, written, made.arrow)
    return written


def _require_rows(store: ObjectStore, file: FileOf, written: Part, arrow: pa.Schema) -> None:
    """The file has the rows of the parts in their order, as both are on the stage."""
    # Dictionaries are equal only if their values have the same numbers.
    plain = pa.schema(
        [field.with_type(field.type.value_type) if pa.types.is_dictionary(field.type) else field for field in arrow]
    )
    bits = pa.schema([field.with_type(_bits(field.type)) for field in plain])

    def comparable(batch: pa.RecordBatch) -> pa.Table:
        columns = batch.cast(plain).columns
        same = zip(columns, bits.types, strict=True)
        viewed = [column if column.type == kind else column.view(kind) for column, kind in same]
        return pa.Table.from_arrays(viewed, schema=bits)

    there, read = bits.empty_table(), rows_of(store, written)
    for part in file.parts:
        for batch in rows_of(store, part):
            while there.num_rows < batch.num_rows and (more := next(read, None)) is not None:
                there = pa.concat_tables([there, comparable(more)])
            if not there.slice(0, batch.num_rows).equals(comparable(batch)):
                raise differs(written.path, f"rows of {part.path} were not read back")
            there = there.slice(batch.num_rows)
    if there.num_rows or next(read, None) is not None:
        raise differs(written.path, "it has more rows")


def _bits(kind: pa.DataType) -> pa.DataType:
    """With floats as whole numbers: a NaN is equal to itself then, and zeros of both signs are two values."""
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(_bits(field.type)) for field in kind])
    if pa.types.is_list(kind):
        return pa.list_(kind.value_field.with_type(_bits(kind.value_type)))
    return {pa.float32(): pa.int32(), pa.float64(): pa.int64()}.get(kind, kind)


def rows_of(store: ObjectStore, part: Part) -> Iterator[pa.RecordBatch]:
    """The rows of a file as they are on the stage. Raises DataAtRisk (stage.damaged)."""
    with open_intact(store, part) as file:
        yield from read_rows(file, _ROWS)


def _require_sums(file: FileOf, written: Part) -> None:
    """What was counted again is what the manifests say."""
    sums = {
        "rows": file.rows,
        "key_changes": sum(part.key_changes for part in file.parts),
        "absent_rows": sum(part.absent_rows for part in file.parts),
    }
    ops: dict[str, int] = defaultdict(int)
    for part in file.parts:
        for op, number in part.ops.items():
            ops[op] += number
    wrong = {name: value for name, value in sums.items() if getattr(written, name) != value}
    if wrong or dict(ops) != dict(written.ops):
        raise differs(written.path, f"{written} was written, of which the manifests say {sums | {'ops': dict(ops)}}")


def differs(path: str, what: str) -> DataAtRisk:
    """The error for a compacted file that has not the rows of its parts."""
    return DataAtRisk(
        f"The compacted file {path} does not have the rows of its parts: {what}.",
        where=path,
        code="stage.damaged",
        remedy="nothing refers to the file, and all parts are as they were: run `lockstep stage verify --deep`; if "
        "it finds nothing, report this",
    )
