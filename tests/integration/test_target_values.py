"""Values arrive exactly: every type, its edges, and what its Arrow type cannot hold."""

from __future__ import annotations

import datetime as dt
import struct
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from cdc_core.targets.tables.compare_columns import outcomes
from cdc_core.targets.writing.load import Layout, open_session
from tests.integration.both_readers import both_readers  # noqa: F401
from tests.lab.target_rows import Winner, record_batch, target_table

UTC = dt.UTC
POINT = bytes(4) + struct.pack("<BIdd", 1, 1, 1.5, -2.5)

# declared type, Arrow type, value, what `SELECT` of the expression gives ({c} is the column), literal
CASES: dict[str, tuple[str, pa.DataType, Any, str, Any, str | None]] = {
    "tiny": ("TINYINT", pa.int8(), -128, "{c}", -128, None),
    "utiny": ("TINYINT UNSIGNED", pa.int16(), 255, "{c}", 255, None),
    "big": ("BIGINT", pa.int64(), -(2**63), "{c}", -(2**63), None),
    "ubig": ("BIGINT UNSIGNED", pa.decimal128(20, 0), Decimal(2**64 - 1), "{c}", 2**64 - 1, None),
    "dec": ("DECIMAL(38,20)", pa.decimal128(38, 20), Decimal("-123456789012345678.00000000000000000001"), "{c}",
            Decimal("-123456789012345678.00000000000000000001"), None),
    "tinydec": ("DECIMAL(38,20)", pa.decimal128(38, 20), Decimal("0.00000000000000000001"), "{c}",
                Decimal("0.00000000000000000001"), None),
    "hugedec": ("DECIMAL(65,30)", pa.string(), "1" * 35 + "." + "2" * 30, "{c}",
                Decimal("1" * 35 + "." + "2" * 30), None),
    "flt": ("FLOAT", pa.float32(), 0.1, "{c} + 0e0", 0.10000000149011612, None),
    "dbl": ("DOUBLE", pa.float64(), 1.7976931348623157e308, "{c}", 1.7976931348623157e308, None),
    "tinydbl": ("DOUBLE", pa.float64(), 0.1 + 0.2, "{c}", 0.1 + 0.2, None),
    "day": ("DATE", pa.date32(), dt.date(9999, 12, 31), "CAST({c} AS CHAR)", "9999-12-31", None),
    "firstday": ("DATE", pa.date32(), dt.date(1, 1, 1), "CAST({c} AS CHAR)", "0001-01-01", None),
    "noday": ("DATE", pa.date32(), None, "CAST({c} AS CHAR)", "0000-00-00", "0000-00-00"),
    "halfday": ("DATE", pa.date32(), None, "CAST({c} AS CHAR)", "2024-02-31", "2024-02-31"),
    "moment": ("DATETIME(6)", pa.timestamp("us"), dt.datetime(1000, 1, 1, 0, 0, 0, 1), "CAST({c} AS CHAR)",
               "1000-01-01 00:00:00.000001", None),
    "nomoment": ("DATETIME", pa.timestamp("us"), None, "CAST({c} AS CHAR)", "2024-00-00 01:02:03",
                 "2024-00-00 01:02:03"),
    "stamp": ("TIMESTAMP(6) NULL", pa.timestamp("us", tz="UTC"), dt.datetime(2026, 3, 29, 1, 30, 0, 5, tzinfo=UTC),
              "CAST(UNIX_TIMESTAMP({c}) AS CHAR)", "1774747800.000005", None),
    "nostamp": ("TIMESTAMP NULL", pa.timestamp("us", tz="UTC"), None, "CAST({c} AS CHAR)", "0000-00-00 00:00:00",
                "0000-00-00 00:00:00"),
    "span": ("TIME(6)", pa.string(), "-838:59:58.999999", "CAST({c} AS CHAR)", "-838:59:58.999999", None),
    "yr": ("YEAR", pa.int16(), 0, "{c}", 0, None),
    "bit1": ("BIT(1)", pa.bool_(), True, "{c} + 0", 1, None),
    "bit64": ("BIT(64)", pa.decimal128(20, 0), Decimal(2**64 - 1), "{c} + 0", 2**64 - 1, None),
    "lab": ("ENUM('a','b''c')", pa.string(), "b'c", "CAST({c} AS CHAR)", "b'c", None),
    "labs": ("SET('x','y','z')", pa.string(), "x,z", "CAST({c} AS CHAR)", "x,z", None),
    "emptyset": ("SET('x','y')", pa.string(), "", "CAST({c} AS CHAR)", "", None),
    "txt": ("VARCHAR(60)", pa.string(), "tab\t nl\n cr\r nul\0 back\\ quote' \\N \U0001f600", "HEX({c})",
            "tab\t nl\n cr\r nul\0 back\\ quote' \\N \U0001f600".encode().hex().upper(), None),
    "nulltext": ("VARCHAR(9)", pa.string(), "NULL", "{c}", "NULL", None),
    "slashn": ("VARCHAR(9)", pa.string(), "\\N", "{c}", "\\N", None),
    "empty": ("VARCHAR(9)", pa.string(), "", "{c}", "", None),
    "spaces": ("VARCHAR(9)", pa.string(), " a  ", "{c}", " a  ", None),
    "latin": ("VARCHAR(9) CHARACTER SET latin1", pa.string(), "äöü€", "HEX({c})", "E4F6FC80", None),
    "bin": ("VARBINARY(300)", pa.binary(), bytes(range(256)), "{c}", bytes(range(256)), None),
    "pad": ("BINARY(4)", pa.binary(), b"a\0\0\0", "{c}", b"a\0\0\0", None),
    "nobin": ("BLOB", pa.binary(), b"", "{c}", b"", None),
    "geo": ("POINT", pa.binary(), POINT, "HEX({c})", POINT.hex().upper(), None),
    "doc": ("JSON", pa.string(), '{"a": "\\"\\n\\\\", "b": [1, 2.5, null]}', "{c}",
            '{"a": "\\"\\n\\\\", "b": [1, 2.5, null]}', None),
    "nothing": ("VARCHAR(9)", pa.string(), None, "{c}", None, None),
}  # fmt: skip
TYPES = {"id": pa.int64(), **{name: case[1] for name, case in CASES.items()}}


@pytest.mark.parametrize("fixture", ["mariadb_target", "mysql9"])
def test_every_type_arrives_exactly_and_reads_back_the_same(
    fixture: str, request: pytest.FixtureRequest, tmp_path: Any
) -> None:
    server = request.getfixturevalue(fixture)
    declared = ", ".join(f"`{name}` {case[0]}" for name, case in CASES.items())
    definition = f"CREATE TABLE {{name}} (id BIGINT PRIMARY KEY, {declared}) CHARACTER SET utf8mb4"
    row = {"id": 1, **{name: case[2] for name, case in CASES.items()}}
    literal = {name: case[5] for name, case in CASES.items() if case[5] is not None}
    with target_table(server, definition, TYPES) as table:
        winner = Winner("u", row, (5, 5, 0, "one"), literal)
        table.write([winner])
        table.query("SET time_zone = '+00:00'")
        picked = ", ".join(case[3].format(c=f"`{name}`") for name, case in CASES.items())
        found = dict(zip(CASES, table.rows(picked)[0], strict=True))
        wrong = {name: (found[name], case[4]) for name, case in CASES.items() if found[name] != case[4]}
        assert wrong == {}
        before = table.everything()
        table.write([winner])
        assert table.everything() == before
        connection = open_session(table.server, table.facts.database, where="test")
        with connection:
            layout = Layout(("id",), tuple(TYPES))
            batch = record_batch([winner], TYPES)
            assert outcomes(connection, table.facts, batch, layout, scratch=tmp_path) == ["same"]


@pytest.mark.parametrize("fixture", ["mariadb_target", "mysql9"])
@pytest.mark.parametrize(
    ("declared", "kind", "values"),
    [
        ("VARCHAR(30) COLLATE utf8mb4_bin", pa.string(), ["a,b", "a\\,b", "", "ä" * 30]),
        ("VARCHAR(600) COLLATE utf8mb4_bin", pa.string(), ["k" * 513, "k" * 514, "k"]),
        ("VARBINARY(30)", pa.binary(), [b"", b"\0", b"\0\0", b"\xff"]),
        ("DATETIME(6)", pa.timestamp("us"), [dt.datetime(2020, 1, 1), dt.datetime(2020, 1, 1, 0, 0, 0, 1)]),
        ("DECIMAL(10,2)", pa.decimal128(10, 2), [Decimal("1.00"), Decimal("-1.00")]),
    ],
)
def test_keys_of_any_type_find_their_rows_and_tombstones(
    fixture: str, declared: str, kind: pa.DataType, values: list[Any], request: pytest.FixtureRequest
) -> None:
    server = request.getfixturevalue(fixture)
    columns = {"k": kind, "part": pa.int32()}
    definition = f"CREATE TABLE {{name}} (k {declared} NOT NULL, part INT NOT NULL, PRIMARY KEY (k, part))"
    with target_table(server, definition, columns, ("k", "part")) as table:
        rows = [{"k": value, "part": part} for value in values for part in (1, 2)]
        assert table.write([Winner("u", row, (1, 10, at, "a")) for at, row in enumerate(rows)]).written == len(rows)
        gone = [Winner("d", row, (1, 20, at, "a")) for at, row in enumerate(rows) if row["part"] == 1]
        assert table.write(gone).written == len(values)
        assert table.write([Winner("u", row, (1, 15, at, "a")) for at, row in enumerate(rows)]).stale == len(values)
        assert len(table.rows("k")) == len(values)
