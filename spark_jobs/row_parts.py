"""Rows that are too many for memory, in parts that fit: rows that are alike in some columns are in one part."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa

from spark_jobs.arrow_parts import CUT_ROWS, PartStreams, parts_of_keys, spread


def in_parts(directory: Path, rows: Iterable[pa.Table], columns: Sequence[str], parts: int) -> Iterator[pa.Table]:
    """Reads all of the rows, keeps them in files of a new directory, and gives the parts, one after the other, without
    those that have no row. columns: rows that have equal values in all of them are in one part.

    Raises OSError where the directory has no space.
    """
    directory.mkdir()
    with PartStreams(directory, parts) as files:
        for some in _gathered(rows):
            part = parts_of_keys([some.column(name).combine_chunks() for name in columns], parts)
            for number, mine in spread(some, np.arange(some.num_rows), part, parts):
                if mine.num_rows:
                    files.append(number, mine)
    read = ([stream.read_all() for stream in files.streams_of(number)] for number in range(parts))
    return (whole(found) for found in read if found)


def whole(parts: Sequence[pa.Table]) -> pa.Table:
    """One table of one or more."""
    return pa.concat_tables(parts).unify_dictionaries()


def _gathered(rows: Iterable[pa.Table]) -> Iterator[pa.Table]:
    """About as many rows as are cut at once."""
    some: list[pa.Table] = []
    for one in rows:
        some.append(one)
        if sum(part.num_rows for part in some) >= CUT_ROWS:
            yield whole(some)
            some = []
    if some:
        yield whole(some)
