"""Any definition with any values: what is read is what the log says, on both servers and with any session."""

from __future__ import annotations

import itertools
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from examples.sandbox.sql_server import SqlServer
from tests.integration.selected_rows import logged, opened, read, require_equal
from tests.unit.binlog.reading import mark

_NUMBER = itertools.count()
_CHARSETS = (
    "utf8mb4",
    "utf8mb3",
    "latin1",
    "ascii",
    "cp1251",
    "ucs2",
    "utf16",
    "utf32",
    "gbk",
    "sjis",
    "koi8r",
    "big5",
)
_SESSIONS = (
    "time_zone = '-11:00'", "time_zone = 'SYSTEM'", "sql_mode = 'PAD_CHAR_TO_FULL_LENGTH'", "sql_mode = 'ANSI'",
    "sql_mode = 'NO_BACKSLASH_ESCAPES,NO_ZERO_DATE,STRICT_ALL_TABLES'", "character_set_results = binary",
    "sql_select_limit = 2", "collation_connection = latin1_bin", "lc_time_names = 'de_DE'",
)  # fmt: skip


def _integers(bits: int, unsigned: bool) -> st.SearchStrategy[str]:
    low, high = (0, 2**bits - 1) if unsigned else (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
    return (st.integers(low, high) | st.sampled_from([low, high, 0])).map(str)


@st.composite
def _dates(draw: st.DrawFn) -> str:
    """In the calendar or not."""
    year, month, day = draw(st.integers(0, 9999)), draw(st.integers(0, 12)), draw(st.integers(0, 31))
    return f"{year:04d}-{month:02d}-{day:02d}"


@st.composite
def _clocks(draw: st.DrawFn) -> str:
    parts = (draw(st.integers(0, most)) for most in (23, 59, 59, 999_999))
    hour, minute, second, micro = parts
    return f"{hour:02d}:{minute:02d}:{second:02d}.{micro:06d}"


_TEXTS = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=12)


def _quoted(text: str) -> str:
    return f"CONVERT(X'{text.encode().hex()}' USING utf8mb4)"


@st.composite
def _columns(draw: st.DrawFn) -> tuple[str, st.SearchStrategy[str]]:
    """A type, and its values as SQL."""
    family = draw(st.integers(0, 13))
    fsp = draw(st.integers(0, 6))
    charset = draw(st.sampled_from(_CHARSETS))
    if family == 0:
        name, bits = draw(
            st.sampled_from([("TINYINT", 8), ("SMALLINT", 16), ("MEDIUMINT", 24), ("INT", 32), ("BIGINT", 64)])
        )
        unsigned = draw(st.booleans())
        kind = f"{name} UNSIGNED" + (" ZEROFILL" if unsigned and draw(st.booleans()) else "") if unsigned else name
        return kind, _integers(bits, unsigned)
    if family == 1:
        precision = draw(st.integers(1, 65))
        scale = draw(st.integers(0, min(30, precision)))
        units = st.integers(-(10**precision) + 1, 10**precision - 1)
        return f"DECIMAL({precision},{scale})", units.map(lambda unit: f"{unit}e-{scale}" if precision < 15 else
                                                          _fixed(unit, scale))  # fmt: skip
    if family == 2:
        return draw(st.sampled_from(["DOUBLE", "DOUBLE(20,5)"])), st.floats(-1e14, 1e14).map(repr)
    if family == 3:
        return draw(st.sampled_from(["FLOAT", "FLOAT(9,3)"])), st.floats(-(2.0**18), 2.0**18, width=32).map(repr)
    if family == 4:
        size = draw(st.integers(1, 64))
        return f"BIT({size})", st.integers(0, 2**size - 1).map(str)
    if family == 5:
        return "DATE", _dates().map(lambda date: f"'{date}'")
    if family == 6:
        return f"DATETIME({fsp})", st.tuples(_dates(), _clocks()).map(lambda moment: f"'{moment[0]} {moment[1]}'")
    if family == 7:
        moments = st.integers(1, 2**31 - 2).map(lambda second: f"FROM_UNIXTIME({second}.{second % 1000000:06d})")
        return f"TIMESTAMP({fsp}) NULL", moments | st.just("'0000-00-00 00:00:00'")
    if family == 8:
        times = st.tuples(st.sampled_from(["", "-"]), st.integers(0, 838), _clocks())
        return f"TIME({fsp})", times.map(lambda time: f"'{time[0]}{time[1]}{time[2][2:]}'")
    if family == 9:
        return "YEAR", st.integers(1901, 2155).map(str) | st.just("0")
    if family == 10:
        name = draw(st.sampled_from(["VARCHAR(12)", "CHAR(12)", "TEXT", "TINYTEXT", "LONGTEXT"]))
        spaced = st.tuples(_TEXTS, st.sampled_from(["", " ", "   "])).map(lambda texts: "".join(texts)[:12])
        return f"{name} CHARACTER SET {charset}", spaced.map(_quoted)
    if family == 11:
        name = draw(st.sampled_from(["VARBINARY(9)", "BINARY(9)", "BLOB", "LONGBLOB"]))
        return name, st.binary(max_size=9).map(lambda raw: f"X'{raw.hex()}'")
    labels = draw(st.lists(st.sampled_from(["a", "B", "c c", "it''s", "é", "0", ""]), min_size=1, unique=True))
    if family == 12:
        return f"ENUM({','.join(map(repr_, labels))})", st.integers(0, len(labels)).map(str)
    return f"SET({','.join(map(repr_, labels))})", st.integers(0, 2 ** len(labels) - 1).map(str)


def repr_(label: str) -> str:
    return f"'{label}'"


def _fixed(units: int, scale: int) -> str:
    digits = f"{abs(units):0{scale + 1}d}"
    return ("-" if units < 0 else "") + (f"{digits[:-scale]}.{digits[-scale:]}" if scale else digits)


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(st.data())
def test_any_table_is_read_as_it_is_streamed(any_server: SqlServer, data: st.DataObject) -> None:
    columns = data.draw(st.lists(_columns(), min_size=1, max_size=10))
    rows = data.draw(st.lists(st.tuples(*(st.just("NULL") | values for _, values in columns)), min_size=1, max_size=12))
    sessions = data.draw(st.lists(st.sampled_from(_SESSIONS), max_size=3, unique=True))
    database = f"any_{next(_NUMBER)}"
    definition = ", ".join(f"`c {n}` {kind}" for n, (kind, _) in enumerate(columns))
    values = ", ".join(f"({n}, {', '.join(row)})" for n, row in enumerate(rows))
    statements: list[str] = [
        "SET SESSION sql_mode = 'ALLOW_INVALID_DATES'",
        f"CREATE DATABASE {database}",
        f"CREATE TABLE {database}.t (id INT PRIMARY KEY, {definition}) CHARACTER SET utf8mb4",
    ]
    since: Any = mark(any_server)
    with any_server.connect(autocommit=True, charset="utf8mb4") as connection, connection.cursor() as cursor:
        for statement in statements:
            cursor.execute(statement)
        reading = opened(any_server, *sessions)
        try:
            cursor.execute(f"INSERT IGNORE INTO {database}.t VALUES {values}")
            wanted = logged(any_server, since, database)["t"]
            require_equal(read(any_server, database, "t", reading), wanted)
        finally:
            reading.close()
            cursor.execute(f"DROP DATABASE {database}")
