"""Rows that are too many for memory, in parts that fit: rows that are alike in some columns are in one part."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa

from spark_jobs.arrow_parts import parts_of_keys, spread

_CUT_ROWS = 1 << 18
"""What is cut at once, about: each part then has enough of it for a stream of its own."""
_COMPRESSION = pa.ipc.IpcWriteOptions(compression="lz4")


def in_parts(directory: Path, rows: Iterable[pa.Table], columns: Sequence[str], parts: int) -> Iterator[pa.Table]:
    """Reads all of the rows, keeps them in files of a new directory, and gives the parts, one after the other, without
    those that have no row. columns: rows that have equal values in all of them are in one part.

    Raises OSError where the directory has no space.
    """
    directory.mkdir()
    paths = [directory / str(number) for number in range(parts)]
    sinks = [pa.OSFile(str(path), "wb") for path in paths]
    try:
        for some in _gathered(rows):
            part = parts_of_keys([some.column(name).combine_chunks() for name in columns], parts)
            for number, mine in spread(some, np.arange(some.num_rows), part, parts):
                if mine.num_rows:
                    with pa.ipc.new_stream(sinks[number], mine.schema, options=_COMPRESSION) as stream:
                        stream.write_table(mine)
    finally:
        for sink in sinks:
            sink.close()
    return (_read(path) for path in paths if path.stat().st_size)


def _gathered(rows: Iterable[pa.Table]) -> Iterator[pa.Table]:
    some: list[pa.Table] = []
    for one in rows:
        some.append(one)
        if sum(part.num_rows for part in some) >= _CUT_ROWS:
            yield pa.concat_tables(some).unify_dictionaries()
            some = []
    if some:
        yield pa.concat_tables(some).unify_dictionaries()


def _read(path: Path) -> pa.Table:
    """The streams of a file, which follow each other."""
    found = []
    with pa.OSFile(str(path), "rb") as source:
        while source.tell() < source.size():
            found.append(pa.ipc.open_stream(source).read_all())
    return pa.concat_tables(found).unify_dictionaries()
