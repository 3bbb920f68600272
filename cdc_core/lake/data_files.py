"""The files of a keyed table, as a worker writes and reads them: rows sorted by key, and positions of deleted rows.

May assume that the rows of a file that this module wrote are in the order of the key; files that others have compacted
may be in any. Columns are found by their field ids, so that a file has the columns of the table under whatever names
they had.
"""

from __future__ import annotations

import uuid
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyiceberg.io import FileIO
from pyiceberg.io.pyarrow import (
    compute_statistics_plan,
    data_file_statistics_from_parquet_metadata,
    parquet_path_to_id_mapping,
)
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
from pyiceberg.schema import Schema
from pyiceberg.typedef import Record
from pyroaring import BitMap

from cdc_core.history.codes import whole
from cdc_core.lake.lake_schema import DELETED, arrow_schema
from cdc_core.model.places import repeated
from cdc_core.stage.encodings import SAMPLE, repeats

GROUP_ROWS, GROUP_BYTES = 125_000, 32 << 20
"""A row group has about so much in memory at most."""
FILE_GROUPS, FILE_BYTES = 8, 64 << 20
"""A data file has so many row groups at most, and files that are written as one have about so many bytes: a worker has
their rows in memory."""
_FIELD_ID = b"PARQUET:field_id"
_PATH_ID, _POS_ID = 2147483546, 2147483545
"""Field ids of position deletes, which the specification reserves."""
_POSITIONS = pa.schema(
    [
        pa.field("file_path", pa.dictionary(pa.int32(), pa.string()), False, {_FIELD_ID: str(_PATH_ID).encode()}),
        pa.field("pos", pa.int64(), False, {_FIELD_ID: str(_POS_ID).encode()}),
    ]
)


@dataclass(frozen=True)
class KeyedFiles:
    """Where the files of a table go and what they have. key: its columns, which order the rows. io: with logins, so
    that it must not be shown."""

    io: FileIO
    location: str
    schema: Schema
    key: tuple[str, ...]

    @cached_property
    def columns(self) -> pa.Schema:
        return arrow_schema(self.schema)

    @property
    def flagged(self) -> bool:
        """Whether deleted rows stay, and say that they are deleted."""
        return DELETED in self.columns.names

    def __repr__(self) -> str:
        return f"KeyedFiles({self.location})"


@dataclass(frozen=True, slots=True)
class LiveFile:
    """A data file of a snapshot, and the files with positions of its deleted rows."""

    path: str
    rows: int
    size_bytes: int
    groups: int
    """Row groups: how much it is in memory, however well it compresses."""
    deleted: int
    deletes: tuple[str, ...]
    low: Any
    high: Any
    """Bounds of the first column of the key, where the manifest has them: not above and not below any value."""
    keyless: bool
    """Whether rows may have no key."""


@dataclass(frozen=True, slots=True)
class NewFile:
    """A file that was written for a snapshot. deletes_of: the data file whose positions it has; "" for rows."""

    path: str
    rows: int
    size_bytes: int
    statistics: Mapping[str, Any]
    deletes_of: str = ""

    def entry(self) -> DataFile:
        """As a manifest has it."""
        bounds: dict[str, Any] = dict(self.statistics)
        if self.deletes_of:
            path = self.deletes_of.encode()
            bounds = {"lower_bounds": {_PATH_ID: path}, "upper_bounds": {_PATH_ID: path}, "record_count": self.rows}
        return DataFile.from_args(
            content=DataFileContent.POSITION_DELETES if self.deletes_of else DataFileContent.DATA,
            file_path=self.path,
            file_format=FileFormat.PARQUET,
            partition=Record(),
            file_size_in_bytes=self.size_bytes,
            key_metadata=None,
            equality_ids=None,
            sort_order_id=None,
            spec_id=0,
            **bounds,
        )


def path_of_deletes(entry: DataFile) -> str:
    """The data file whose positions a file of deletes has; "" if it may be several."""
    low, high = (entry.lower_bounds or {}).get(_PATH_ID), (entry.upper_bounds or {}).get(_PATH_ID)
    return low.decode() if low is not None and low == high else ""


def write_rows(files: KeyedFiles, rows: pa.Table) -> Iterator[NewFile]:
    """The rows, which are in the order of the key, in as many files as they need."""
    groups = max(-(-rows.num_rows // GROUP_ROWS), -(-rows.nbytes // GROUP_BYTES)) if rows.num_rows else 0
    count = -(-groups // FILE_GROUPS)
    for at in range(count):
        low, high = rows.num_rows * at // count, rows.num_rows * (at + 1) // count
        yield _write_file(files, rows.slice(low, high - low), -(-rows.num_rows // groups))


def _write_file(files: KeyedFiles, rows: pa.Table, group_rows: int) -> NewFile:
    path = f"{files.location}/{uuid.uuid4().hex}.parquet"
    columns = [pc.cast(rows.column(column.name), column.type) for column in files.columns]
    table = pa.table(columns, schema=files.columns)
    # Dictionaries of values that hardly repeat would take twice the time, and more space.
    coded = [name for name in table.column_names if repeats(table.column(name).slice(0, SAMPLE))]
    output = files.io.new_output(path)
    with (
        output.create() as sink,
        pq.ParquetWriter(sink, files.columns, compression="zstd", use_dictionary=coded) as writer,
    ):
        writer.write_table(table, row_group_size=group_rows)
    return NewFile(path, rows.num_rows, len(output), _statistics(files, writer.writer.metadata))


def _statistics(files: KeyedFiles, metadata: pq.FileMetaData) -> dict[str, Any]:
    """As manifests have them. PyIceberg takes the bounds of those row groups that have some, but Parquet's writer keeps
    none of long values: a column that lacks them somewhere has none, or readers would miss its rows."""
    ids = parquet_path_to_id_mapping(files.schema)
    found = data_file_statistics_from_parquet_metadata(metadata, compute_statistics_plan(files.schema, {}), ids)
    for group in range(metadata.num_row_groups):
        for at in range(metadata.num_columns):
            column = metadata.row_group(group).column(at)
            known = column.statistics
            if known is None or not (known.has_min_max or known.null_count == column.num_values):
                found.column_aggregates.pop(ids[column.path_in_schema], None)
    for number, bounds in list(found.column_aggregates.items()):
        try:
            bounds.max_as_bytes()
        except UnicodeEncodeError:  # PyIceberg takes the character after the last one, which after U+D7FF is none
            del found.column_aggregates[number]
    return dict(found.to_serialized_dict())


def write_deletes(files: KeyedFiles, path: str, positions: BitMap) -> NewFile:
    """The positions of the deleted rows of a data file."""
    own = f"{files.location}/{uuid.uuid4().hex}-deletes.parquet"
    found = pa.array(numbers_of(positions))
    paths = repeated(path, len(found))
    output = files.io.new_output(own)
    with output.create() as sink:
        pq.write_table(
            pa.table([paths, found], schema=_POSITIONS),
            sink,
            compression="zstd",
            use_dictionary=["file_path"],
            store_schema=False,  # Arrow's readers would take the paths for texts by number
        )
    return NewFile(own, len(found), len(output), {}, deletes_of=path)


def deleted_rows(files: KeyedFiles, file: LiveFile) -> BitMap:
    """The positions of the rows of a data file that are deleted."""
    deleted = BitMap()
    for path in file.deletes:
        with (
            files.io.new_input(path).open() as source,
            pq.ParquetFile(source, read_dictionary=["file_path"]) as parquet,
        ):
            rows = parquet.read(["file_path", "pos"])
        paths = whole(rows.column("file_path"))
        mine = np.asarray(paths.indices) == pc.index(paths.dictionary, file.path).as_py()
        deleted |= bitmap(np.asarray(whole(rows.column("pos")))[mine])
    return deleted


def flagged_rows(files: KeyedFiles, file: LiveFile) -> BitMap:
    """The positions of the rows of a data file that say that they are deleted."""
    flagged = BitMap()
    with OpenFile(files, file.path) as opened:
        for group in opened.groups:
            flags = np.asarray(opened.read(group, [DELETED]).column(0))
            flagged |= bitmap(np.flatnonzero(flags) + int(opened.starts[group]))
    return flagged


class OpenFile:
    """A data file that is read."""

    def __init__(self, files: KeyedFiles, path: str) -> None:
        self._files = files
        self._source = files.io.new_input(path).open()
        self._parquet = pq.ParquetFile(self._source)
        self._names = {
            int(field.metadata[_FIELD_ID]): field.name
            for field in self._parquet.schema_arrow
            if field.metadata and _FIELD_ID in field.metadata
        }
        groups = range(self._parquet.num_row_groups)
        sizes = [self._parquet.metadata.row_group(at).num_rows for at in groups]
        self.starts: npt.NDArray[np.int64] = np.cumsum([0, *sizes])

    def __enter__(self) -> OpenFile:
        return self

    def __exit__(self, *_: object) -> None:
        self._parquet.close()
        self._source.close()

    @property
    def groups(self) -> range:
        return range(len(self.starts) - 1)

    def read(self, group: int, names: Iterable[str]) -> pa.Table:
        """Columns of a row group, by their names and with their types in the table."""
        wanted = [self._files.columns.field(name) for name in names]
        here = {field.name: self._names.get(int(field.metadata[_FIELD_ID])) for field in wanted}
        present = [name for name in here.values() if name is not None]
        rows = self._parquet.read_row_group(group, present, use_threads=False)  # a quarter less CPU
        count = int(self.starts[group + 1] - self.starts[group])
        columns = {}
        for field in wanted:
            own = here[field.name]
            columns[field.name] = pa.nulls(count, field.type) if own is None else rows.column(own).cast(field.type)
        return pa.table(columns)

    def span(self, group: int, name: str) -> tuple[Any, Any] | None:
        """The least and the greatest value of a column in a row group, if its statistics have them."""
        own = self._names.get(int(self._files.columns.field(name).metadata[_FIELD_ID]))
        metadata = self._parquet.metadata.row_group(group)
        for at in range(metadata.num_columns):
            column = metadata.column(at)
            if column.path_in_schema == own and column.statistics is not None and column.statistics.has_min_max:
                return column.statistics.min, column.statistics.max
        return None


def live_rows(files: KeyedFiles, file: LiveFile, gone: BitMap, names: Sequence[str] = ()) -> Iterator[pa.Table]:
    """The rows of a file without those at these positions. names: of columns; () for all."""
    with OpenFile(files, file.path) as opened:
        for group in opened.groups:
            start, end = int(opened.starts[group]), int(opened.starts[group + 1])
            if len(positions_in(gone, start, end)) < end - start:
                yield without(opened.read(group, names or files.columns.names), start, gone)


def gathered(rows: Iterable[pa.Table]) -> Iterator[pa.Table]:
    """Rows of files together, as many as a file of ours may have: those of others may be of any size."""
    parts: list[pa.Table] = []
    size_bytes = 0
    for part in rows:
        size_bytes += part.nbytes
        if parts and size_bytes > FILE_GROUPS * GROUP_BYTES:
            yield pa.concat_tables(parts)
            parts, size_bytes = [], part.nbytes
        parts.append(part)
    if parts:
        yield pa.concat_tables(parts)


def without(rows: pa.Table, start: int, gone: BitMap) -> pa.Table:
    """Rows of a file, of which the first is at the position `start`, without those at the positions that are gone."""
    here = positions_in(gone, start, start + rows.num_rows)
    if not len(here):
        return rows
    kept = np.ones(rows.num_rows, bool)
    kept[here - start] = False
    return rows.filter(pa.array(kept))


def positions_in(gone: BitMap, start: int, end: int) -> npt.NDArray[np.int64]:
    """Those of the positions from start to end, without the end."""
    return numbers_of(gone & BitMap(range(start, end))) if gone else np.zeros(0, np.int64)


def bitmap(positions: npt.NDArray[np.int64]) -> BitMap:
    """Of numbers below 2**32, without making a Python int of each."""
    return BitMap(array("I", positions.astype(np.uint32).tobytes()))


def numbers_of(positions: BitMap) -> npt.NDArray[np.int64]:
    return np.asarray(positions.to_array()).astype(np.int64)
