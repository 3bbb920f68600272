"""Every column type, decoded from the log of a real server, is what SELECT on that server says, and what is read of a
table is the same bytes.

Each case is a table `c<n>(id, n, v TYPE)`: its rows are inserted, updated (only `n`) and deleted, so that each value
comes as an after image, as both images of an update, and as the image of a delete. What the server says is read
before the update, as text and by `TableReader`.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from cdc_core.binlog.row_columns import DecodedRows, decode_rows
from cdc_core.binlog.row_definition import schema_of
from cdc_core.binlog.row_images import RowImages
from cdc_core.model.schema import ColumnType, TableSchema
from cdc_core.model.staged_columns import staged_schema
from examples.sandbox.mariadb import MariaDb
from examples.sandbox.mysql import MySql
from examples.sandbox.sql_server import SqlServer
from tests.integration.selected_rows import inserted, opened, require_equal
from tests.integration.selected_rows import read as selected_rows
from tests.unit.binlog.reading import events_since, known_schema, mark, row_groups

TEXT, HEX, NUMBER, DOUBLE = "CAST(v AS CHAR)", "HEX(v)", "v + 0", "v + 0e0"
LOOSE = "sql_mode = 'ALLOW_INVALID_DATES'"
MARIADB, MYSQL = "mariadb", "mysql"


@dataclass(frozen=True)
class Case:
    """type: DDL of the column. values: SQL expressions. shown: what SELECT reads. on: servers that have the type."""

    type: str
    values: tuple[str, ...]
    shown: str = TEXT
    on: tuple[str, ...] = (MARIADB, MYSQL)
    session: tuple[str, ...] = ()
    globals: tuple[str, ...] = ()
    since: tuple[int, ...] = ()
    """The version of the server that has it first."""


def _case(type_: str, *values: str, **options: Any) -> Case:
    return Case(type_, (*values, "NULL") if "NOT NULL" not in type_ else values, **options)


_FRACTION = ("0", ".1", ".12", ".123", ".1234", ".12345", ".123456")
_LABELS = ",".join(f"'m{i}'" for i in range(64))
_MANY = ",".join(f"'e{i}'" for i in range(300))
_JSON = (
    "'null'", "'true'", "'false'", "'0'", "'-1'", "'32767'", "'-32769'", "'65536'", "'2147483648'", "'-2147483649'",
    "'9223372036854775807'", "'-9223372036854775808'", "'18446744073709551615'", "'1.5'", "'-0.0'", "'0.1'", "'1e15'",
    "'1e16'", "'1.25e17'", "'123456789012345.6'", "'1e-14'", "'1e-15'", "'1e-16'", "'1.7976931348623157e308'",
    "'5e-324'", "'2.2250738585072014e-308'", "'100.0'", "'1e2'", "'123456789012345678901234567890'", "'0.00001234'",
    "'3.0e14'", "'-1.5e-7'", "'\"\"'", "'\"a\\\\\"b\\\\\\\\c\\\\/d\\\\b\\\\f\\\\n\\\\r\\\\t\\\\u0001\\\\u001f\"'",
    "'\"\\\\u00e9 \\\\ud83d\\\\ude00 \\\\u007f\"'", "'[]'", "'{}'", "'[1, [2, [3, {\"a\": []}]]]'",
    "'{\"bb\": 1, \"a\": 2, \"c\": {\"x\": null, \"\": true}}'",
    "JSON_ARRAY(CAST('12.340' AS DECIMAL(10,3)), CAST('-0.5' AS DECIMAL(5,5)), CAST(-123456789012 AS DECIMAL(65,30)))",
    "JSON_ARRAY(DATE '2024-02-29', TIME '-12:34:56.789', TIMESTAMP '2024-02-29 01:02:03.000004', TIME '100:00:00')",
    "JSON_OBJECT('b', X'00FF10', 'bit', b'101', 's', REPEAT('x', 70000), 'i', 100000, 'u', 4000000000)",
    "JSON_ARRAY(REPEAT('x', 127), REPEAT('y', 128), REPEAT('z', 16384), 70000, -70000, 1.5, NULL, TRUE)",
    "CAST(CAST('2024-01-01' AS DATE) AS JSON)", "CAST(CAST('00:00:00' AS TIME(6)) AS JSON)",
)  # fmt: skip

CASES = (
    _case("TINYINT", "-128", "127", "0"),
    _case("TINYINT(1)", "1", "-5"),
    _case("TINYINT UNSIGNED", "255"),
    _case("SMALLINT", "-32768", "32767"),
    _case("SMALLINT UNSIGNED", "65535"),
    _case("MEDIUMINT", "-8388608", "8388607", "-1"),
    _case("MEDIUMINT UNSIGNED", "16777215", "8388608"),
    _case("INT", "-2147483648", "2147483647"),
    _case("INT UNSIGNED", "4294967295"),
    _case("INT(6) ZEROFILL", "42", shown=NUMBER),
    _case("BIGINT", "-9223372036854775808", "9223372036854775807"),
    _case("BIGINT UNSIGNED NOT NULL", "18446744073709551615"),
    _case("FLOAT", "1.5", "-0.1", "3.4028234e38", "1e-45", "16777217", shown=DOUBLE),
    _case("DOUBLE", "1.5", "-0.1", "1.7976931348623157e308", "5e-324", shown=DOUBLE),
    _case("DECIMAL(14,4)", "-1234567890.1234", "0", "9999999999.9999", "-0.0001"),
    _case("DECIMAL(1,0)", "-9", "9"),
    _case("DECIMAL(5,5)", "0.99999", "-0.00001"),
    _case("DECIMAL(10,0) UNSIGNED", "4294967296"),
    _case("DECIMAL(18,9)", "-999999999.999999999", "1.000000001"),
    _case("DECIMAL(19,0)", "-9223372036854775809", "9999999999999999999"),
    _case("DECIMAL(38,10)", "-9999999999999999999999999999.9999999999", "1", "-1", "18446744073709551616"),
    _case("DECIMAL(38,0)", "-170141183460469231731", "99999999999999999999999999999999999999"),
    _case("DECIMAL(38,30)", "-12345678.123456789012345678901234567890", "0.000000000000000000000000000001"),
    _case("DECIMAL(39,0)", "-999999999999999999999999999999999999999", "0", "7"),
    _case(
        "DECIMAL(65,30)",
        "-99999999999999999999999999999999999.999999999999999999999999999999", "0", "0.5", "-0.25", "1000000000",
    ),
    _case("DECIMAL(65,0)", "9" * 65, "-1"),
    _case("BIT(1)", "b'0'", "b'1'", shown=NUMBER),
    _case("BIT(3)", "b'101'", shown=NUMBER),
    _case("BIT(9)", "b'100000001'", shown=NUMBER),
    _case("BIT(64)", "18446744073709551615", "1", shown=NUMBER),
    _case("DATE", "'1000-01-01'", "'9999-12-31'", "'2024-02-29'", "'1969-12-31'", "'0001-01-01'"),
    _case("DATE", "'0000-00-00'", "'2024-00-00'", "'2024-02-31'", "'2023-02-29'", "'0000-01-01'", session=(LOOSE,)),
    *(
        _case(
            f"DATETIME({fsp})", f"'2024-02-29 23:59:59{_FRACTION[fsp][1 if fsp == 0 else 0:]}'",
            "'1000-01-01 00:00:00'", "'9999-12-31 23:59:59'", "'0000-00-00 00:00:00'", "'2024-02-30 01:02:03.9'",
            "'1969-12-31 23:59:59.9'", session=(LOOSE,),
        )
        for fsp in range(7)
    ),
    *(
        _case(
            f"TIMESTAMP({fsp}) NULL", f"'2024-02-29 23:59:59{_FRACTION[fsp][1 if fsp == 0 else 0:]}'",
            "'1970-01-01 00:00:01'", "'2038-01-19 03:14:07.4'", "'0000-00-00 00:00:00'", session=(LOOSE,),
        )
        for fsp in range(7)
    ),
    *(
        _case(
            f"TIME({fsp})", "'00:00:00'", "'-00:00:00.9'", "'-838:59:59'", "'838:59:59'", "'-01:02:03.000009'",
            "'100:00:00.123456'", "'-00:00:01'", "'12:34:56.5'",
        )
        for fsp in range(7)
    ),
    _case("YEAR", "1901", "2155", "0", "'2024'"),
    _case("CHAR(5) CHARACTER SET utf8mb4", "'abc  '", "'éü😀'", "''"),
    _case("CHAR(0)", "''"),
    _case("CHAR(255) CHARACTER SET utf8mb4", "REPEAT('😀', 255)", "'x'"),
    _case("VARCHAR(10) CHARACTER SET utf8mb4", "'abc  '", "'😀é'", "''"),
    _case("VARCHAR(255) CHARACTER SET utf8mb3", "REPEAT('é', 255)"),
    _case("VARCHAR(64) CHARACTER SET latin1", "_latin1 X'41808D81E9FF7F00'", "'Ä€'"),
    _case("VARCHAR(256) CHARACTER SET ascii", "'plain'", "REPEAT('a', 256)"),
    _case("CHAR(10) CHARACTER SET cp1251", "'Привет'"),
    _case("VARCHAR(20) CHARACTER SET koi8r", "'Привет'"),
    _case("VARCHAR(20) CHARACTER SET ucs2", "'Приветé'"),
    _case("VARCHAR(20) CHARACTER SET utf16", "'é😀'"),
    _case("CHAR(20) CHARACTER SET utf32", "'é😀'"),
    _case("VARCHAR(20) CHARACTER SET utf16le", "'é😀'"),
    _case("CHAR(20) CHARACTER SET sjis", "'表\\\\ｱ~'"),
    _case("TEXT CHARACTER SET gbk", "'啊z'", "REPEAT('啊', 20000)", "''"),
    _case("VARCHAR(20) CHARACTER SET gb18030", "'é😀啊'", on=(MYSQL,)),
    _case("TINYTEXT CHARACTER SET latin1", "'Äöü'"),
    _case("TEXT CHARACTER SET utf8mb4", "''", "'line\\n😀'", "REPEAT('é', 20000)"),
    _case("MEDIUMTEXT", "REPEAT('ab', 70000)"),
    _case("LONGTEXT", "'x'"),
    _case("BINARY(5)", "X'0102'", "X'0000000000'", "X'FF00FF0000'", shown=HEX),
    _case("BINARY(255)", "X'01'", shown=HEX),
    _case("VARBINARY(300)", "X'00FF00'", "''", "REPEAT(X'FE00', 150)", shown=HEX),
    _case("TINYBLOB", "X'00'", shown=HEX),
    _case("BLOB", "X'FF00'", "''", shown=HEX),
    _case("MEDIUMBLOB", "REPEAT(X'0102', 40000)", shown=HEX),
    _case("LONGBLOB", "X'FF'", shown=HEX),
    _case("ENUM('a','b','it''s','é')", "'a'", "'it''s'", "'é'"),
    _case("ENUM('a','b')", "'nope'", session=("sql_mode = ''",)),
    _case("ENUM('ä','ö') CHARACTER SET latin1", "'ä'", "'ö'"),
    _case("ENUM('啊','表') CHARACTER SET gbk", "'啊'", "'表'"),
    _case("SET('表','ソ') CHARACTER SET sjis", "'ソ'", "'表,ソ'"),
    _case(f"ENUM({_MANY})", "'e0'", "'e255'", "'e299'"),
    _case("SET('a','b','é')", "''", "'a'", "'a,é'", "'a,b,é'"),
    _case("SET('ä','ö','ü') CHARACTER SET latin1", "'ä,ü'"),
    _case(f"SET({_LABELS})", "'m0,m63'", "'m8,m16,m24,m32'", "18446744073709551615"),
    _case("SET('','x')", "1", "2", "3"),
    _case("GEOMETRY", "ST_GeomFromText('POINT(1 2)')", "ST_GeomFromText('LINESTRING(0 0,1 1)', 4326)", shown=HEX),
    _case("POINT NOT NULL", "ST_GeomFromText('POINT(-1.5 2)')", shown=HEX),
    _case("JSON", *_JSON, on=(MYSQL,)),
    _case("JSON", "'{\"a\":  1, \"é\": [1.50]}'", on=(MARIADB,)),
    _case("VECTOR(3)", "TO_VECTOR('[1,2.5,-3e10]')", shown=HEX, on=(MYSQL,), since=(9,)),
    _case(
        "UUID", "'00000000-0000-0000-0000-000000000000'", "'ffffffff-ffff-ffff-ffff-ffffffffffff'",
        "'123e4567-e89b-12d3-a456-426614174000'", "'6ccd780c-baba-1026-9564-5b8c656024db'",
        "'f47ac10b-58cc-4372-a567-0e02b2c3d400'", "'01890a5d-ac96-774b-bcce-b302099a8057'",
        "'1ec9414c-232a-6b00-b3c8-9e6bdeced846'", "'6ba7b810-9dad-51d1-80b4-00c04fd43000'",
        "'00000000-0000-1000-8000-000000000000'", "'6ba7b810-9dad-31d1-40b4-00c04fd43000'",
        on=(MARIADB,), since=(10, 7),
    ),
    _case("INET4", "'0.0.0.0'", "'255.255.255.255'", "'192.168.1.0'", "'10.0.0.1'", on=(MARIADB,), since=(10, 10)),
    _case(
        "INET6", "'::'", "'::1'", "'2001:db8::ff00:42:8329'", "'::ffff:192.168.1.1'", "'::192.168.1.1'",
        "'1:0:0:2:0:0:0:3'", "'1::2:0:0:3'", "'fe80::'", "'1:2:3:4:5:6:7:8'", "'0:1:2:3:4:5:6:7'", "'::1:2'",
        "'1:0:3:4:5:6:7:8'", "'::ffff:0:1'", "'::0:2:0:0:0'", "'1:0:0:2:3:0:0:4'", "'::1.0.0.0'", on=(MARIADB,),
    ),
    _case("VARCHAR(2000) COMPRESSED", "REPEAT('abc', 500)", "'x'", "''", on=(MARIADB,)),
    _case("TEXT COMPRESSED CHARACTER SET latin1", "REPEAT('ä', 5000)", "'x'", "''", on=(MARIADB,)),
    _case("BLOB COMPRESSED", "REPEAT(X'00FF', 5000)", "X'00'", "''", shown=HEX, on=(MARIADB,)),
)  # fmt: skip


@dataclass
class Read:
    """What a case's server said, what was selected, and what the log gave."""

    case: Case
    said: list[Any] = field(default_factory=list)
    selected: pa.RecordBatch | None = None
    schema: TableSchema | None = None
    rows: DecodedRows | None = None


# What would change what a SELECT shows, if the reader let it.
_HOSTILE = (
    "time_zone = '+05:30'", "sql_mode = 'PAD_CHAR_TO_FULL_LENGTH,ANSI_QUOTES,NO_BACKSLASH_ESCAPES'",
    "sql_select_limit = 1", "character_set_results = latin1",
)  # fmt: skip


def _read_all(server: SqlServer, flavor: str) -> dict[int, Read]:
    """Runs every case on the server, then decodes its log once."""
    database = f"types_{flavor}"
    since = mark(server)
    known: dict[str, TableSchema] = {}
    with (
        opened(server, *_HOSTILE) as hostile,
        server.connect(autocommit=True, charset="utf8mb4") as connection,
        connection.cursor() as cursor,
    ):
        cursor.execute("SELECT VERSION()")
        version = tuple(int(part) for part in cursor.fetchone()[0].split("-")[0].split("."))
        found = {i: Read(case) for i, case in enumerate(CASES) if flavor in case.on and case.since <= version}
        cursor.execute(f"CREATE DATABASE {database} CHARACTER SET utf8mb4")
        cursor.execute(f"USE {database}")
        for i, read in found.items():
            for setting in read.case.globals:
                cursor.execute(f"SET GLOBAL {setting}")
            cursor.execute("SET SESSION time_zone = '+00:00', sql_mode = DEFAULT")
            cursor.execute(f"CREATE TABLE c{i} (id INT PRIMARY KEY, n INT NOT NULL DEFAULT 0, v {read.case.type})")
            for setting in read.case.globals:
                cursor.execute(f"SET GLOBAL {setting.split('=')[0]} = DEFAULT")
            for setting in read.case.session:
                cursor.execute(f"SET SESSION {setting}")
            if flavor == MYSQL:
                cursor.execute("SET SESSION explicit_defaults_for_timestamp = ON")
            rows = ",".join(f"({row}, {value})" for row, value in enumerate(read.case.values))
            # IGNORE makes warnings of what a strict server refuses in a statement; values go in as they are.
            cursor.execute(f"INSERT IGNORE INTO c{i} (id, v) VALUES {rows}")
            cursor.execute(f"SELECT {read.case.shown} FROM c{i} ORDER BY id")
            read.said = [row[0] for row in cursor.fetchall()]
            read.selected = selected_rows(server, database, f"c{i}", hostile)
            cursor.execute(f"UPDATE IGNORE c{i} SET n = 1, v = v ORDER BY id")
            cursor.execute(f"DELETE FROM c{i} ORDER BY id")
            known[f"c{i}"] = known_schema(server, database, f"c{i}")
        cursor.execute(f"DROP DATABASE {database}")
    for table, events in row_groups(events_since(server, since), mariadb=flavor == MARIADB):
        if table.database != database:
            continue
        read = found[int(table.table[1:])]
        read.schema = schema_of(table, known[table.table], mariadb=flavor == MARIADB)
        read.rows = decode_rows(read.schema, table, RowImages.from_events(events))
    return found


@pytest.fixture(scope="module")
def on_mariadb(mariadb: MariaDb) -> Iterator[dict[int, Read]]:
    return _read_all(mariadb, MARIADB)


@pytest.fixture(scope="module")
def on_mysql(mysql9: MySql) -> Iterator[dict[int, Read]]:
    return _read_all(mysql9, MYSQL)


def _as_said(kind: ColumnType, value: Any, shown: str) -> Any:
    """A decoded value in the form in which the server was asked for it."""
    if value is None:
        return None
    if shown == HEX:
        raw = _floats(value) if kind.base == "vector" else value
        return raw.hex().upper()
    if shown == DOUBLE:
        return float(value)
    if shown == NUMBER:
        return int(value)
    if isinstance(value, Decimal):
        return f"{value:f}"
    if kind.base in ("datetime", "timestamp"):
        text = value.strftime("%Y-%m-%d %H:%M:%S.%f")
        text = text.rjust(26, "0")
        return text[:19] if kind.fsp == 0 else text[: 20 + kind.fsp]
    if isinstance(value, dt.date):
        return value.isoformat()
    if kind.base == "year":
        return f"{value:04d}"
    return str(value)


def _floats(values: list[float]) -> bytes:
    import struct

    return struct.pack(f"<{len(values)}f", *values)


def _check(reads: dict[int, Read], number: int) -> None:
    if number not in reads:
        pytest.skip(f"came with version {CASES[number].since} of the server")
    read = reads[number]
    assert read.rows is not None, "no row event came"
    assert read.schema is not None
    rows, kind, count = read.rows, read.schema.column("v").type, len(read.case.values)
    assert read.rows.op.to_pylist() == ["c"] * count + ["u"] * count + ["d"] * count
    at = [column.name for column in read.schema.columns].index("v")
    assert [array.type for array in rows.after] == [column.type.arrow for column in read.schema.columns]
    for array in (*rows.after, rows.before, rows.literal):
        array.validate(full=True)
    expected_types = staged_schema(read.schema)
    assert rows.before.type == expected_types.field("_before").type
    assert rows.literal.type == expected_types.field("_cdc_literal").type
    after, before, literals = rows.after[at].to_pylist(), rows.before.to_pylist(), rows.literal.to_pylist()

    def image(value: Any, literal: str | None) -> Any:
        assert value is None or literal is None
        return literal if literal is not None else _as_said(kind, value, read.case.shown)

    said = [_plain(value, read.case.shown) for value in read.said]
    assert [n for n, value in enumerate(said) if value is None] == [
        n for n in range(count) if read.case.values[n] == "NULL"
    ]
    for n in range(3 * count):
        literal = dict(literals[n] or [])
        assert image(after[n], literal.pop("v", None)) == said[n % count], (n, read.case.values[n % count])
        if count <= n < 2 * count:
            assert image(before[n]["v"], literal.pop("_before.v", None)) == said[n % count]
            assert (before[n]["n"], rows.after[1][n].as_py()) == (0, 1)
        else:
            assert before[n] is None
        assert not literal
    assert read.selected is not None
    assert read.selected.num_rows == count
    require_equal(read.selected, inserted(read.schema, rows))


def _plain(value: Any, shown: str) -> Any:
    if value is None or shown in (HEX, TEXT):
        return value.decode() if isinstance(value, bytes) else value
    return float(value) if shown == DOUBLE else int(value)


_IDS = [f"{case.type[:40]}" for case in CASES]


@pytest.mark.parametrize("number", [i for i, case in enumerate(CASES) if MARIADB in case.on], ids=lambda i: _IDS[i])
def test_a_value_in_the_log_of_mariadb_is_what_select_says(on_mariadb: dict[int, Read], number: int) -> None:
    _check(on_mariadb, number)


@pytest.mark.parametrize("number", [i for i, case in enumerate(CASES) if MYSQL in case.on], ids=lambda i: _IDS[i])
def test_a_value_in_the_log_of_mysql_is_what_select_says(on_mysql: dict[int, Read], number: int) -> None:
    _check(on_mysql, number)
