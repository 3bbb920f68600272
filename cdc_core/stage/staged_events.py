"""The events of a staged file (cdc_core/history): read group by group, so that memory holds a few batches."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from cdc_core.history.events import event_schema, events, needed_columns
from cdc_core.history.rule import TableRule
from cdc_core.model.schema import ColumnType, TableSchema
from cdc_core.model.staged_columns import BEFORE, SEQ
from cdc_core.stage.intact import StagedBytes, open_intact
from cdc_core.stage.objects import ObjectStore

_FEWEST_ROWS, _MOST_ROWS, _BATCH_BYTES = 256, 1 << 16, 16 << 20
"""The bounds of a batch that is read before its size is known: a file may hold a long value once for many rows."""
_GATHERED_ROWS, _GATHERED_BYTES_A_ROW = 1 << 18, 1 << 7
"""The bounds of events that are given at once."""
_FILE_BYTES_A_ROW = 20
"""About, of staged files."""
_NUMBER_BYTES, _BYTES_OF_CHARACTER = 16, 4
SHARE_BYTES, MOST_SHARES = 4 << 20, 8
"""The least of a file that is read by a task of its own, and by how many tasks one is read: each of them fetches the
whole file, and compares it with its manifest."""


@dataclass(frozen=True, slots=True)
class FileOfEvents:
    """A staged file of a definition.

    key_changes: how many updates in it change the definition's own key. copied: its rows are of a copy. seqs: ranges of
    the order keys of the rows that count; () for all. begins: of a table without a key, where its batches begin; () if
    each row is where its batch begins, as copied ones are. emptied: as in history.events. share: of its row groups that
    are read: its number, and how many there are.
    """

    part: StagedBytes
    schema: TableSchema
    key_changes: int = 0
    copied: bool = False
    seqs: tuple[tuple[int, int], ...] = ()
    begins: tuple[int, ...] = ()
    emptied: Mapping[str, int] = field(default_factory=dict)
    share: tuple[int, int] = (0, 1)

    @property
    def about_rows(self) -> int:
        """About how many rows are read, to weigh files against what a file costs in any case."""
        return self.part.size_bytes // self.share[1] // _FILE_BYTES_A_ROW

    def shares(self, most: int) -> list[FileOfEvents]:
        """The file as several that have about as many rows each, or itself if it is small."""
        count = max(min(most, MOST_SHARES, self.part.size_bytes // SHARE_BYTES), 1)
        return [replace(self, share=(number, count)) for number in range(count)]


def file_events(
    store: ObjectStore,
    file: FileOfEvents,
    rule: TableRule,
    *,
    condition: pc.Expression | None = None,
    at_once: int = _GATHERED_ROWS,
) -> Iterator[pa.Table]:
    """Some events at a time; at least one table, if only an empty one. condition: of the changes that count. at_once:
    about so many events, or fewer with long values.

    Raises DataAtRisk (stage.damaged).
    """
    names, before = needed_columns(rule, file.schema, key_changes=may_change_key(file, rule))
    gathered: list[pa.Table] = []
    rows = size = 0
    with open_intact(store, file.part) as source, pq.ParquetFile(source) as parquet:
        for staged in counted_rows(parquet, file, names, before):
            if condition is not None:
                staged = staged.filter(condition)
            batches = None if rule.key else _begins(staged, file.begins)
            gathered.append(
                events(staged, file.schema, rule, renews=file.copied, emptied=file.emptied, batches=batches)
            )
            rows, size = rows + gathered[-1].num_rows, size + gathered[-1].nbytes
            if rows >= at_once or size >= at_once * _GATHERED_BYTES_A_ROW:
                yield _together(gathered)
                gathered, rows, size = [], 0, 0
    yield _together([*gathered, event_schema(rule).empty_table()])


def may_change_key(file: FileOfEvents, rule: TableRule) -> bool:
    """Whether the file may have updates that change the table's key."""
    own_key = [name.lower() for name in rule.key] == [name.lower() for name in file.schema.key]
    return file.key_changes > 0 or not own_key


def _together(tables: Sequence[pa.Table]) -> pa.Table:
    return pa.concat_tables(tables).unify_dictionaries()


def counted_rows(
    parquet: pq.ParquetFile, file: FileOfEvents, names: Sequence[str], before: Sequence[str] = ()
) -> Iterator[pa.Table]:
    """The rows of a file that count, some at a time. names: of their columns, SEQ among them. before: of those inside
    `_before`."""
    columns = [name for name in names if name != BEFORE] + [f"{BEFORE}.{name}" for name in before]
    number, shares = file.share
    groups = parquet.num_row_groups
    for group in range(groups * number // shares, groups * (number + 1) // shares):
        size = _batch_rows(parquet.metadata.row_group(group), file.schema, names)
        for batch in parquet.iter_batches(size, row_groups=[group], columns=columns, use_threads=False):
            rows = pa.Table.from_batches([batch])
            yield rows.filter(_in_ranges(rows.column(SEQ).to_numpy(), file.seqs)) if file.seqs else rows


def _begins(rows: pa.Table, begins: Sequence[int]) -> pa.Array:
    seqs = rows.column(SEQ).to_numpy()
    if not begins:
        return pa.array(seqs)
    ordered = np.array(begins, np.int64)
    return pa.array(ordered[np.maximum(np.searchsorted(ordered, seqs, "right") - 1, 0)])


def _in_ranges(seqs: npt.NDArray[np.int64], ranges: Sequence[tuple[int, int]]) -> pa.BooleanArray:
    """Which order keys are in one of the ranges (FileOfEvents.seqs)."""
    firsts, lasts = (np.array(side, np.int64) for side in zip(*ranges, strict=True))
    at = np.searchsorted(firsts, seqs, "right") - 1
    return pa.array((at >= 0) & (seqs <= lasts[at]))


def _batch_rows(group: pq.RowGroupMetaData, schema: TableSchema, names: Sequence[str]) -> int:
    """How many rows of a row group, of these columns, surely take no more than _BATCH_BYTES, within limits."""
    read = [column for column in schema.columns if column.logged and column.name in names]
    longest = sum(_longest_bytes(column.type) for column in read)
    both = 2 * max(min(longest, int(group.total_byte_size)), 1)
    return max(_FEWEST_ROWS, min(_MOST_ROWS, _BATCH_BYTES // both))


def _longest_bytes(kind: ColumnType) -> int:
    """The most bytes of a value in memory, as the type is declared."""
    if not is_long(kind):
        return _NUMBER_BYTES
    if kind.labels:
        return sum(len(label.encode()) + 1 for label in kind.labels)
    return _BATCH_BYTES if kind.length is None else _BYTES_OF_CHARACTER * kind.length


def is_long(kind: ColumnType) -> bool:
    """Whether the length of a value is its own."""
    return bool(pa.types.is_string(kind.arrow) or pa.types.is_binary(kind.arrow) or pa.types.is_nested(kind.arrow))
