"""`python -m cdc_core.binlog.warm_kernels`: compiles every kernel into numba's cache: no first run waits for it.

Kernels are compiled for the types they are called with. So this decodes one small row of every form of column, exactly
as the stream does: what it compiles is what a run uses. A test verifies that a later decode compiles nothing.
"""

from __future__ import annotations

import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pyarrow as pa

from cdc_core.binlog import framing, json_kernels, ordinary, scan
from cdc_core.binlog.event_headers import Event, EventType, Header
from cdc_core.binlog.row_columns import decode_rows
from cdc_core.binlog.row_images import RowImages
from cdc_core.binlog.rows_event import DELETE, INSERT, UPDATE, RowsEvent
from cdc_core.binlog.table_map import TableMap, TypeCode
from cdc_core.model.schema import Column, ColumnType, TableSchema

Kernels = Callable[[], Iterator[tuple[str, Any]]]
"""Compiled functions by name."""

_NOWHERE = Event(Header(0, EventType.WRITE_ROWS, 0, 19, 0, 0), b"")

# One of each kernel: type, code, metadata, row bytes.
_COLUMNS: tuple[tuple[ColumnType, int, int, bytes], ...] = (
    (ColumnType("int"), TypeCode.LONG, 0, bytes(4)),
    (ColumnType("bit", length=9), TypeCode.BIT, 9, bytes(2)),
    (ColumnType("decimal", precision=4, scale=2), TypeCode.DECIMAL, 4 << 8 | 2, b"\x80\x00"),
    (ColumnType("decimal", precision=40, scale=0), TypeCode.DECIMAL, 40 << 8, b"\x80" + bytes(17)),
    (ColumnType("date"), TypeCode.DATE, 0, bytes(3)),
    (ColumnType("datetime", fsp=6), TypeCode.DATETIME2, 6, b"\x80" + bytes(7)),
    (ColumnType("timestamp", fsp=6), TypeCode.TIMESTAMP2, 6, bytes(7)),
    (ColumnType("time", fsp=1), TypeCode.TIME2, 1, b"\x80" + bytes(3)),
    (ColumnType("varchar", length=5, charset="utf8mb4"), TypeCode.VARCHAR, 20, b"\x01a"),
    (ColumnType("varchar", length=5, charset="latin1"), TypeCode.VARCHAR, 5, b"\x01a"),
    (ColumnType("binary", length=2), TypeCode.STRING, 2, b"\x00"),
    (ColumnType("set", labels=("a", "b"), charset="utf8mb4"), TypeCode.SET, 1, b"\x03"),
    (ColumnType("uuid"), TypeCode.STRING, 16, b"\x00"),
    (ColumnType("json"), TypeCode.JSON, 4, b"\x02\x00\x00\x00\x04\x01"),
)


def warm() -> pa.StructArray:
    """Reads an empty stream, and decodes one row of each form, as an insert, update and delete; returns the rows."""
    columns = tuple(Column(f"c{i}", kind) for i, (kind, _, _, _) in enumerate(_COLUMNS))
    count = len(columns)
    schema = TableSchema("warm", "warm", columns)
    table = TableMap(
        1,
        0,
        "warm",
        "warm",
        tuple(code for _, code, _, _ in _COLUMNS),
        tuple(metadata for _, _, metadata, _ in _COLUMNS),
        (True,) * count,
    )
    bitmap = b"\xff" * ((count + 7) // 8)
    image = bytes(len(bitmap)) + b"".join(raw for _, _, _, raw in _COLUMNS)
    events = [
        RowsEvent(kind, 1, 0, count, bitmap, bitmap if kind == UPDATE else b"", False, images, _NOWHERE)
        for kind, images in ((INSERT, image), (UPDATE, image * 2), (DELETE, image))
    ]
    _warm_fast_path()
    rows = decode_rows(schema, table, RowImages.from_events(events))
    return pa.StructArray.from_arrays(list(rows.after), names=[column.name for column in columns])


def _warm_fast_path() -> None:
    """Runs the kernels that read events, on no events."""
    data, codes, numbers = np.zeros(64, np.uint8), np.zeros(1, np.uint8), np.zeros(1, np.int64)
    none = framing.FramedEvents(data, numbers, numbers, codes, numbers, 0, 0, 4)
    framing.frame(none, 0, 0, 4, framing.CRC_TABLES)
    maps = ordinary.KnownMaps(numbers, np.zeros(1, np.int32), numbers, data, numbers, numbers, numbers, numbers, 0)
    limits = ordinary.WeightLimits(1, 1, 1, 1)
    rows = ordinary.RowEvents(*[numbers] * 7)
    names = ordinary.GtidNames(np.zeros((1, 3), np.int64), numbers)
    entries = ordinary.EntryArrays(*[numbers] * len(ordinary.EntryArrays._fields))
    ordinary.take_transactions(none, maps, names, limits, entries, rows, 0, 0, 4, framing.CRC_TABLES)
    ordinary.take_row_events(none, maps, limits, rows, 0, 0, (0, 0), framing.CRC_TABLES)
    ordinary.pack(data, numbers, numbers, 0, data, 0)


def kernels() -> Iterator[tuple[str, Any]]:
    """Every compiled function of this package by name."""
    from cdc_core.binlog import addresses, code_tables, kernels, temporal

    yield from kernels_of(scan, kernels, temporal, addresses, code_tables, framing, ordinary, json_kernels)


def kernels_of(*modules: ModuleType) -> Iterator[tuple[str, Any]]:
    """Every compiled function of these modules by name."""
    for module in modules:
        for name, function in vars(module).items():
            if hasattr(function, "signatures") and function.__module__ == module.__name__:
                yield f"{module.__name__.rpartition('.')[2]}.{name}", function


def is_cold() -> bool:
    """Whether `warm` will have to compile, which takes a minute rather than a moment; a few small files are read.

    It checks one kernel of each module that every stream needs. Numba has no public API for this: its index of a
    function names what was compiled from the current source (numba/core/caching.py, 0.68).
    """
    for function in (framing.frame, ordinary.take_transactions, scan._walk, json_kernels.documents):
        cache = getattr(getattr(function, "_cache", None), "_cache_file", None)
        if not getattr(function, "signatures", ()) and cache is not None and not cache._load_index():
            return True
    return False


def _remove_outdated(kernels: Kernels) -> None:
    """Removes what was compiled from other sources. A process that still runs them has loaded it, or compiles again."""
    current: dict[Path, set[str]] = defaultdict(set)
    for _, function in kernels():
        if function.stats.cache_path is not None:
            current[Path(function.stats.cache_path)].add(function._cache._cache_file._index_name.removesuffix(".nbi"))
    for directory, bases in current.items():
        for file in [*directory.glob("*.nbi"), *directory.glob("*.nbc")]:
            if not any(file.name.startswith(f"{base}.") for base in bases):
                file.unlink(missing_ok=True)


def compile_all(name: str, warm: Callable[[], object], kernels: Kernels) -> None:
    """Compiles a package's kernels by running them, and says so on stderr. kernels: all of them; of nothing else, since
    what else is in their folders is removed."""
    started_s = time.monotonic()
    sys.stderr.write(f"compiling {name} (once; later runs take it from the cache)\n")
    warm()
    compiled = sum(len(function.stats.cache_misses) for _, function in kernels())
    _remove_outdated(kernels)
    sys.stderr.write(f"ready after {time.monotonic() - started_s:.1f} s; {compiled} kernels were new\n")


if __name__ == "__main__":
    compile_all("the binlog decoder", warm, kernels)
