"""`python -m cdc_core.results.warm_reader`: compiles the kernels that read result sets, as warm_kernels does."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa

from cdc_core.binlog import warm_kernels
from cdc_core.binlog.table_map import TypeCode
from cdc_core.model.schema import Column, ColumnType
from cdc_core.results import row_packets, value_columns
from cdc_core.results.answer import Buffer
from cdc_core.results.result_columns import ResultColumn

# A value of each form: type, wire type, bytes in a row.
_COLUMNS: tuple[tuple[ColumnType, TypeCode, bytes], ...] = (
    (ColumnType("int"), TypeCode.LONG, bytes(4)),
    (ColumnType("bit", length=9), TypeCode.BIT, b"\x02\x00\x01"),
    (ColumnType("date"), TypeCode.DATE, b"\x00"),
    (ColumnType("datetime", fsp=6), TypeCode.DATETIME, b"\x00"),
    (ColumnType("timestamp"), TypeCode.TIMESTAMP, b"\x04\xe8\x07\x01\x01"),
    (ColumnType("time", fsp=1), TypeCode.TIME, b"\x00"),
    (ColumnType("varchar", length=5, charset="utf8mb4"), TypeCode.VAR_STRING, b"\x01a"),
    (ColumnType("varchar", length=5, charset="latin1"), TypeCode.VAR_STRING, b"\x01a"),
    (ColumnType("binary", length=2), TypeCode.STRING, b"\x02ab"),
    (ColumnType("enum", labels=("", "b"), charset="utf8mb4"), TypeCode.LONGLONG, b"\x01" + bytes(7)),
    (ColumnType("set", labels=("a", "b"), charset="binary"), TypeCode.LONGLONG, b"\x03" + bytes(7)),
)


def warm() -> list[pa.Array]:
    """Reads one row; returns its values."""
    count = len(_COLUMNS)
    row = bytes(1 + (count + 9) // 8) + b"".join(raw for _, _, raw in _COLUMNS)
    buffer = Buffer(count, 1, 1 << 10)
    packet = len(row).to_bytes(3, "little") + b"\x01" + row
    buffer.data[: len(packet)] = np.frombuffer(packet, np.uint8)
    columns = [ResultColumn("", code, False, 0, 0, 0) for _, code, _ in _COLUMNS]
    forms = np.array([column.form for column in columns], np.int8)
    _, _, located, _ = row_packets.locate(buffer.located(), 0, len(packet), 1, buffer.size_bytes, forms, 0)
    assert located == 1
    first_row = buffer.located(1)
    selection = [value_columns.selected(Column("c", kind)) for kind, _, _ in _COLUMNS]
    return [value_columns.decode(selected, first_row, at, "warm")[0] for at, selected in enumerate(selection)]


def kernels() -> Iterator[tuple[str, Any]]:
    """Every compiled function of this package by name."""
    yield from warm_kernels.kernels_of(row_packets)


if __name__ == "__main__":
    warm_kernels.compile_all("the reader of result sets", warm, kernels)
