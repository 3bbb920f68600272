"""Rows read back and compared by the client: what it finds as expected, the server finds `same`, and nothing else is.

Both ways judge the same rows, with faults planted in the target: each type, keys, versions, missing and surplus rows.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cdc_core.errors import DataAtRisk
from cdc_core.model.version import Version, encode
from cdc_core.mysql.connections import SafeConnection
from cdc_core.targets.reading import read_back
from cdc_core.targets.reading.table_facts import table_facts
from cdc_core.targets.tables import compare_columns as compare
from cdc_core.targets.writing.load import Layout, documents_of, open_session
from tests.lab.target_rows import Table, Winner, record_batch, target_table

UTC = dt.UTC
SERVERS = ["mysql9", pytest.param("mariadb_target", marks=pytest.mark.matrix)]


@dataclass(frozen=True)
class Typed:
    """values: at its edges. faults: SQL of other values, `{c}` is the column."""

    declared: str
    arrow: pa.DataType
    values: Sequence[Any]
    faults: Sequence[str]


TYPES: dict[str, Typed] = {
    "tiny": Typed("TINYINT", pa.int8(), [-128, 0, 127, None], ["COALESCE({c}, 5) ^ 1"]),
    "wider": Typed("BIGINT", pa.int32(), [-(2**31), 7, None], ["IF({c} = 7, 6, 7)"]),
    "ubig": Typed("BIGINT UNSIGNED", pa.decimal128(20, 0), [Decimal(2**64 - 1), Decimal(2)], ["{c} ^ 1"]),
    "dec": Typed("DECIMAL(14,2)", pa.decimal128(12, 2), [Decimal("-99.01"), Decimal("0.00"), None],
                 ["COALESCE({c}, 0) + 0.01"]),
    "flt": Typed("FLOAT", pa.float32(), [1.5, -16777215.0, 0.5], ["{c} * 1.0000002e0"]),
    "dbl": Typed("DOUBLE", pa.float64(), [0.1 + 0.2, 1.0, -5e-300], ["{c} * 1.0000000000000002e0"]),
    "day": Typed("DATE", pa.date32(), [dt.date(9999, 1, 1), dt.date(1970, 1, 1)], ["{c} + INTERVAL 1 DAY"]),
    "moment": Typed("DATETIME(6)", pa.timestamp("us"), [dt.datetime(1000, 1, 1, 0, 0, 0, 1), None],
                    ["COALESCE({c}, '2000-01-01') + INTERVAL 1 MICROSECOND"]),
    "stamp": Typed("TIMESTAMP(3) NULL", pa.timestamp("us", tz="UTC"), [dt.datetime(2026, 3, 29, 1, 30, tzinfo=UTC)],
                   ["{c} + INTERVAL 1 HOUR", "NULL"]),
    "yr": Typed("YEAR", pa.int16(), [0, 1901], ["2001"]),
    "flag": Typed("BIT(1)", pa.bool_(), [True, False, None], ["IF({c} = 1, 0, 1)"]),
    "bits": Typed("BIT(9)", pa.decimal128(20, 0), [Decimal(511), Decimal(0)], ["({c} + 0) ^ 256"]),
    "lab": Typed("ENUM('a','b''c','A x')", pa.string(), ["a", "b'c", None], ["'A x'", "0"]),
    "labs": Typed("SET('x','y','z')", pa.string(), ["", "x", "x,z", None], ["'y'", "''"]),
    "txt": Typed("VARCHAR(60)", pa.string(), ["", " a ", "tab\t nl\n nul\0 \\ ' \U0001f600", "NULL", None],
                 ["CONCAT(COALESCE({c}, ''), ' ')", "IF({c} = '', NULL, '')", "'\\\\N'"]),
    "folded": Typed("VARCHAR(60) COLLATE utf8mb4_general_ci", pa.string(), ["word", "straße"],
                    ["UPPER({c})", "CONCAT({c}, ' ')", "'wörd'"]),
    "fixed": Typed("CHAR(9)", pa.string(), ["", "ab"], ["'Ab'"]),
    "latin": Typed("VARCHAR(9) CHARACTER SET latin1", pa.string(), ["äöü€", None], ["'aou€'"]),
    "long": Typed("MEDIUMTEXT", pa.string(), ["x" * 70_000, ""], ["CONCAT({c}, 'x')"]),
    "bin": Typed("VARBINARY(300)", pa.binary(), [bytes(range(256)), b"", None], ["CONCAT(COALESCE({c}, ''), 0x00)"]),
    "pad": Typed("BINARY(4)", pa.binary(), [b"a\0\0\0"], ["0x61000020"]),
    "blobs": Typed("BLOB", pa.binary(), [b"\xff\0", None], ["0xFE00"]),
    "doc": Typed("JSON", pa.string(), ['{"a": [1, 2.5, null]}', '"1"', "[]"], ["'{\"a\": [1, 2.5, true]}'"]),
}  # fmt: skip
COLUMNS = {"id": pa.int64(), **{name: typed.arrow for name, typed in TYPES.items()}, "twice": pa.int32()}
FAULTS = [(name, fault) for name, typed in TYPES.items() for fault in typed.faults]
DEFINITION = (
    "CREATE TABLE {name} (id BIGINT PRIMARY KEY, "
    + ", ".join(f"`{name}` {typed.declared}" for name, typed in TYPES.items())
    + ", twice INT AS (tiny * 2), own INT DEFAULT 7) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin"
)


@pytest.fixture(scope="module", params=SERVERS)
def table(request: pytest.FixtureRequest) -> Iterator[Table]:
    with target_table(request.getfixturevalue(request.param), DEFINITION, COLUMNS) as made:
        made.query("SET sql_mode = 'ALLOW_INVALID_DATES', time_zone = '+00:00'")
        made.query("SET NAMES utf8mb4")
        yield made


@pytest.fixture(scope="module")
def session(table: Table) -> Iterator[SafeConnection]:
    with open_session(table.server, table.facts.database, where="test") as opened:
        yield opened


@pytest.fixture(autouse=True)
def read_back_always(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compare, "SMALL_ROWS", 0)
    monkeypatch.setattr(read_back, "KEYS_AT_ONCE", 7)


def row(at: int, seed: int = 0) -> dict[str, Any]:
    values = {name: typed.values[(at + seed) % len(typed.values)] for name, typed in TYPES.items()}
    return values | {"twice": None if values["tiny"] is None else 2 * values["tiny"]}


def layout(table: Table) -> Layout:
    return Layout(("id",), tuple(COLUMNS), documents=documents_of(table.facts, COLUMNS))


def winners(count: int, *, apart: int = 1, first: int = -3, seq: int = 10) -> list[Winner]:
    return [Winner("u", {"id": first + at * apart, **row(at, at // 5)}, (seq, seq, at, "a")) for at in range(count)]


def both(table: Table, session: SafeConnection, rows: Sequence[Winner], scratch: Path) -> tuple[list[str], list[bool]]:
    """What all rows are by the server, which is what `outcomes` must say; and what the client alone has found."""
    batch, columns = record_batch(rows, COLUMNS), layout(table)
    assert read_back.readable(table.facts, batch.schema, columns)
    found = read_back.as_expected(session, table.facts, batch, columns)
    words = compare.judged(session, table.facts, batch, columns, scratch=scratch)
    assert compare.outcomes(session, table.facts, batch, columns, scratch=scratch) == words
    assert {word for word, mine in zip(words, found, strict=True) if mine} <= {compare.SAME}
    return words, found.tolist()


def plant(table: Table, id: int, name: str, fault: str) -> bool:
    """Whether it changes the row's value."""
    value = f"SELECT {'CAST({c} AS DOUBLE)' if name in ('flt', 'dbl') else 'HEX({c}), {c} + 0'}"
    value = f"{value.replace('{c}', f'`{name}`')} FROM {table.facts.name} WHERE id = {id}"
    before = table.query(value)
    changed = fault.replace("{c}", f"`{name}`")
    table.query(f"UPDATE IGNORE {table.facts.name} SET `{name}` = {changed} WHERE id = {id}")
    return before != table.query(value)


@pytest.mark.parametrize("apart", [1, 3, 1000])
def test_a_fault_in_any_type_is_found_and_all_other_rows_need_no_server(
    table: Table, session: SafeConnection, apart: int, tmp_path: Path
) -> None:
    table.clear()
    rows = winners(2 * len(FAULTS), apart=apart)
    table.write(rows)
    assert both(table, session, rows, tmp_path) == (["same"] * len(rows), [True] * len(rows))
    table.query(f"UPDATE {table.facts.name} SET own = id")  # a column that the source lacks
    for at, (name, fault) in enumerate(FAULTS):
        ids = [winner.values["id"] for winner in rows[2 * at : 2 * at + 2]]
        assert any(plant(table, id, name, fault) for id in ids), (name, fault)
    words, found = both(table, session, rows, tmp_path)
    assert [word == "same" for word in words] == found
    assert sorted(set(words)) == ["differs", "same"]
    assert words.count("differs") == len(FAULTS)
    assert all("differs" in words[2 * at : 2 * at + 2] for at in range(len(FAULTS)))


def test_versions_missing_surplus_swapped_and_removed_rows(
    table: Table, session: SafeConnection, tmp_path: Path
) -> None:
    table.clear()
    rows = winners(40, apart=2)
    table.write(rows)
    ids = [winner.values["id"] for winner in rows]
    name = table.facts.name
    table.query(f"DELETE FROM {name} WHERE id = {ids[1]}")
    table.query(f"UPDATE {name} SET _cdc_version = NULL WHERE id = {ids[2]}")
    older, newer = (encode(Version(seq, seq, 0, "a")).hex() for seq in (9, 11))
    table.query(f"UPDATE {name} SET _cdc_version = X'{older}' WHERE id = {ids[3]}")
    table.query(f"UPDATE {name} SET _cdc_version = X'{newer}' WHERE id = {ids[4]}")
    table.query(f"INSERT INTO {name} (id) VALUES ({ids[5] + 1}), ({ids[10] - 1}), ({ids[0] - 5})")
    table.query(f"UPDATE {name} SET id = 9999 WHERE id = {ids[7]}")
    table.query(f"UPDATE {name} SET id = {ids[7]} WHERE id = {ids[8]}")
    table.query(f"UPDATE {name} SET id = {ids[8]} WHERE id = 9999")
    table.write([Winner("d", rows[9].values, (11, 11, 9, "a"))])
    gone = [Winner("d", rows[at].values, (12, 12, at, "a")) for at in (10, 11, 12)]
    table.write(gone[:1])
    table.query(f"UPDATE {name} SET _cdc_version = X'{encode(Version(12, 12, 12, 'a')).hex()}' WHERE id = {ids[12]}")
    truncate = Winner("t", {}, (9, 9, 0, "a"))
    words, found = both(table, session, [*rows[:10], *gone, *rows[13:], truncate], tmp_path)
    expected = dict.fromkeys(range(41), "same")
    expected |= {1: "missing", 2: "older", 3: "older", 4: "newer", 7: words[7], 8: words[8], 9: "newer"}
    assert {words[7], words[8]} == {"newer", "older"}
    assert words == list((expected | {11: "left behind"}).values())
    assert [at for at in range(41) if not found[at]] == [1, 2, 3, 4, 7, 8, 9, 11, 12, 40]


def test_all_rows_an_hour_later(table: Table, session: SafeConnection, tmp_path: Path) -> None:
    table.clear()
    rows = winners(30)
    table.write(rows)
    table.query(f"UPDATE {table.facts.name} SET stamp = stamp + INTERVAL 1 HOUR")
    assert both(table, session, rows, tmp_path) == (["differs"] * 30, [False] * 30)


def test_rows_that_lack_values_have_literals_or_share_a_key(
    table: Table, session: SafeConnection, tmp_path: Path
) -> None:
    table.clear()
    rows = winners(30)
    literal = replace(rows[3], values={**rows[3].values, "day": None}, literal={"day": "2024-00-00"})
    dateless = replace(rows[9], values={**rows[9].values, "day": None})
    rows = [*rows[:3], literal, *rows[4:9], dateless, *rows[10:]]
    table.write(rows)
    lacking = [
        replace(winner, values={**winner.values, "tiny": None, "txt": None}, absent=["tiny", "txt"])
        for winner in rows[:3]
    ]
    words, found = both(table, session, [*lacking, *rows[3:]], tmp_path)
    assert set(words) == {"same"}
    assert [at for at in range(30) if not found[at]] == [3]
    for at, day in ((3, "NULL"), (8, "'2024-00-00'"), (9, "'2024-00-00'")):
        table.query(f"UPDATE {table.facts.name} SET day = {day} WHERE id = {rows[at].values['id']}")
    words, found = both(table, session, [*lacking, *rows[3:]], tmp_path)
    assert [at for at in range(30) if words[at] == "differs"] == [3, 8, 9]
    assert [at for at in range(30) if not found[at]] == [3, 8, 9]
    gone = Winner("d", rows[5].values, (20, 20, 0, "a"))
    words, found = both(table, session, [*rows, gone], tmp_path)
    assert not any(found)
    assert words[-1] == "left behind"


def test_the_error_value_of_an_enum_goes_to_the_server_which_refuses_to_load_it(
    table: Table, session: SafeConnection, tmp_path: Path
) -> None:
    table.clear()
    rows = winners(5)
    table.write(rows)
    assert plant(table, rows[2].values["id"], "lab", "0")
    rows[2] = replace(rows[2], values={**rows[2].values, "lab": ""})
    batch = record_batch(rows, COLUMNS)
    assert read_back.as_expected(session, table.facts, batch, layout(table)).tolist() == [at != 2 for at in range(5)]
    with pytest.raises(DataAtRisk, match="lab"):
        compare.outcomes(session, table.facts, batch, layout(table), scratch=tmp_path)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(st.tuples(st.integers(-300, 300), st.integers(0, 60), st.sampled_from("uuud")), min_size=1, max_size=25,
             unique_by=lambda drawn: drawn[0]),
    st.lists(st.tuples(st.integers(0, 24), st.sampled_from(FAULTS)), max_size=6),
    st.sets(st.integers(0, 24), max_size=3),
)  # fmt: skip
def test_both_ways_are_equal_on_random_rows_and_faults(
    table: Table,
    session: SafeConnection,
    tmp_path: Path,
    made: list[tuple[int, int, str]],
    faults: list[tuple[int, tuple[str, str]]],
    missing: set[int],
) -> None:
    table.clear()
    rows = [Winner(op, {"id": id, **row(seed, seed // 7)}, (10, 10, id + 300, "a")) for id, seed, op in made]
    table.write(rows)
    for at, (name, fault) in faults:
        if at < len(rows):
            plant(table, rows[at].values["id"], name, fault)
    for at in missing:
        if at < len(rows):
            table.query(f"DELETE FROM {table.facts.name} WHERE id = {rows[at].values['id']}")
    words, found = both(table, session, rows, tmp_path)
    # -0.0 and an ENUM's error value aside, the client finds all that the server does.
    assert [word == "same" for word in words] == found


OTHERS = {
    ("id INT PRIMARY KEY", "c INT"): pa.int32(),
    ("id VARCHAR(9) PRIMARY KEY", "c INT"): pa.int32(),
    ("id INT NOT NULL UNIQUE", "c INT"): pa.int32(),
    ("id INT NOT NULL UNIQUE, own INT AUTO_INCREMENT PRIMARY KEY", "c INT"): pa.int32(),
    ("id INT PRIMARY KEY", "c ENUM('', 'a')"): pa.string(),
    ("id INT PRIMARY KEY", "c FLOAT(7,3)"): pa.float32(),
    ("id INT PRIMARY KEY", "c DOUBLE"): pa.float32(),
    ("id INT PRIMARY KEY", "c TIME"): pa.string(),
    ("id INT PRIMARY KEY", "c DECIMAL(60,2)"): pa.string(),
    ("id INT PRIMARY KEY", "c VARCHAR(9) CHARACTER SET sjis"): pa.string(),
    ("id INT PRIMARY KEY", "c GEOMETRY"): pa.binary(),
    ("id INT PRIMARY KEY", "c DATETIME"): pa.date32(),
}
"""By definition: how the run has `c`. The first is not like the others."""


def test_other_tables_are_compared_by_the_server(table: Table) -> None:
    readable = []
    for number, ((key, column), kind) in enumerate(OTHERS.items()):
        table.query(f"CREATE TABLE {table.facts.database}.other{number} ({key}, {column})")
        facts = table_facts(table.connection, table.facts.database, [f"other{number}"])[f"other{number}"]
        columns = {"id": pa.string() if "VARCHAR" in key else pa.int32(), "c": kind}
        readable.append(read_back.readable(facts, record_batch([], columns).schema, Layout(("id",), tuple(columns))))
    assert readable == [True] + [False] * 11


def test_tables_whose_versions_are_elsewhere_are_compared_by_the_server(table: Table) -> None:
    schema = record_batch([], COLUMNS).schema
    assert read_back.readable(table.facts, schema, layout(table))
    assert not read_back.readable(replace(table.facts, beside=True), schema, layout(table))
    assert not read_back.readable(replace(table.facts, keyless=True), schema, replace(layout(table), key=()))
    assert not read_back.readable(table.facts, schema, replace(layout(table), key=("id", "tiny")))


@pytest.mark.parametrize("kind", [np.int64, np.uint64])
def test_a_range_never_has_room_for_many_other_rows(kind: type[np.integer]) -> None:
    top = int(np.iinfo(kind).max)
    for keys in ([top], [0, top], list(range(top - 20, top)), list(range(0, 40, 4)), list(range(0, 50, 5))):
        tails = list(read_back._conditions("k", np.array(keys, kind)))
        dense = keys[-1] - keys[0] < read_back.RANGE_ROWS * len(keys)
        assert tails[0].startswith(f"k BETWEEN {keys[0]} AND {keys[-1]}") == dense
        if not dense:
            asked = ",".join(tail.removeprefix("k IN (").removesuffix(")") for tail in tails)
            assert [int(text) for text in asked.split(",")] == keys
