"""The Parquet files that a task of a step writes for the steps after it: made durable together as the task ends, found,
and removed before the step begins again.

A file has its final name from the start, and counts only once the driver has written the step's counts.json, which
names it: that is after all tasks. So a task that writes thousands of small files asks the disk once.
"""

from __future__ import annotations

import tempfile
import uuid
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from itertools import count
from pathlib import Path
from types import TracebackType
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from cdc_core.model.run_plan import MergeTable, table_folder
from cdc_core.stage.objects import ObjectStore, PartOutput
from spark_jobs.spark_failures import carried

_ALONE = 8
"""The first ones of a task are made durable each for itself: what makes many durable waits for all that the disk has to
write, whoever wrote it."""
_BUFFER = 1 << 20


class StepFiles:
    """The files of one task; its threads may share them. A context manager: a block that ends without an error leaves
    its files durable."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store
        self._paths: list[str] = []

    def __enter__(self) -> StepFiles:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            with carried():
                self._store.settle(self._paths[_ALONE:])

    def write_rows(self, folder: str, rows: pa.Table) -> str:
        """A file of rows; its path."""
        return self.write(folder, lambda file: pq.write_table(rows, file, **parquet_options(rows.schema)))

    def write(self, folder: str, write: Callable[[Any], None]) -> str:
        """A file with what `write` puts into the file object that it is given; its path."""
        names = (f"{folder}/part-{uuid.uuid4().hex}.parquet" for _ in count())
        output = self._store.open_output(names, Path(tempfile.gettempdir()))
        try:
            file = _StepFile(output)
            write(file)
            file.flush()
            path = output.publish(settled=len(self._paths) < _ALONE)
        except BaseException:
            output.discard()
            raise
        self._paths.append(path)
        return path


def parquet_options(rows: pa.Schema, *, skipped_by: Sequence[str] = ()) -> dict[str, Any]:
    """Parquet's options for a file that is written once and read once, mostly whole: to look for values that repeat
    would take a third of the time, and save no bytes; the steps between numbers save both, but for random ones.
    skipped_by: columns by which a reader skips row groups."""
    return {
        "compression": "zstd",
        "write_statistics": list(skipped_by),
        "use_dictionary": [field.name for field in rows if pa.types.is_dictionary(field.type)],
        "column_encoding": {
            field.name: "DELTA_BINARY_PACKED"
            for field in rows
            if pa.types.is_integer(field.type) or pa.types.is_timestamp(field.type)
        },
    }


class _StepFile:
    """What the Parquet writer writes to: it writes many small pieces."""

    def __init__(self, output: PartOutput) -> None:
        self._output = output
        self._buffer = bytearray()
        self._size_bytes = 0
        self.closed = False

    def write(self, data: Any) -> int:
        size = len(data)
        self._size_bytes += size
        self._buffer += data
        if len(self._buffer) >= _BUFFER:
            self.flush()
        return size

    def tell(self) -> int:
        return self._size_bytes

    def flush(self) -> None:
        if self._buffer:
            self._output.write(memoryview(self._buffer))
            self._buffer = bytearray()

    def close(self) -> None:
        self.closed = True


def clear_folder(store: ObjectStore, folder: str) -> None:
    for info in list(store.list(folder + "/")):
        store.delete(info.path)


def clear_tables(store: ObjectStore, root: str, tables: Sequence[MergeTable], *, kept: Collection[str] = ()) -> None:
    """Removes the files of the tables in their folders below `root`, but those that are kept. One listing for all
    tables."""
    folders = {table_folder(root, table.table) for table in tables}
    for info in list(store.list(root + "/")):
        name, _, rest = info.path.removeprefix(root + "/").partition("/")
        if rest and f"{root}/{name}" in folders and info.path not in kept:
            store.delete(info.path)


def folders_in(store: ObjectStore, root: str) -> set[str]:
    """The folders directly below `root` that have files."""
    names = (info.path.removeprefix(root + "/").partition("/") for info in store.list(root + "/"))
    return {f"{root}/{name}" for name, _, rest in names if rest}


def rows_of(store: ObjectStore, paths: Iterable[str]) -> Iterator[int]:
    """The number of rows in each Parquet file, from its footer."""
    for path in paths:
        with store.open_input(path) as file:
            yield pq.ParquetFile(file).metadata.num_rows


def files_in(store: ObjectStore, folder: str) -> list[str]:
    """The Parquet files directly in a folder."""
    names = (info.path.removeprefix(folder + "/") for info in store.list(folder + "/"))
    return [f"{folder}/{name}" for name in names if name.endswith(".parquet") and "/" not in name]
