"""What an INSERT leaves to its defaults is staged as the server stored it, or refused: as of its place in the log."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from cdc_core.errors import Refused, severity
from cdc_core.model.block import Block
from cdc_core.model.position import Checkpoint
from cdc_core.source.schemas.captured_definitions import table_schema
from cdc_core.source.schemas.column_defaults import column_defaults
from tests.lab.databases import is_newest
from tests.lab.origin import Origin, own_origin
from tests.lab.refusals import refusal

LITERALS = {
    "BIGINT UNSIGNED": ("18446744073709551615", "0"),
    "INT": ("-5",),
    "INT(5) ZEROFILL": ("7",),
    "BOOL": ("TRUE",),
    "DECIMAL(8,3)": ("1.5",),
    "DECIMAL(65,30)": ("12345678901234567890.5",),
    "VARCHAR(60) CHARACTER SET utf8mb4": ("'it''s \\\\ \"ü\" 😀'", "''", "'NULL'", "'0x41'"),
    "VARCHAR(9) CHARACTER SET latin1": ("'ü€'",),
    "VARCHAR(9) CHARACTER SET sjis": ("'表'",),
    "VARCHAR(9) CHARACTER SET utf16": ("'ab😀'",),
    "CHAR(4)": ("'a  '",),
    "ENUM('a', 'b''é')": ("'b''é'",),
    "SET('x', 'y')": ("'x,y'", "''"),
    "DATETIME(3)": ("'2020-01-02 03:04:05.678'", "'2020-02-31'"),
    "DATE": ("'0000-00-00'", "'2020-01-02'"),
    "TIMESTAMP(2)": ("'2020-10-25 02:30:00.67'", "0"),
    "TIME(2)": ("'-01:02:03.45'",),
    "YEAR": ("2020",),
    "BIT(1)": ("b'1'",),
    "BIT(5)": ("b'101'",),
    "BIT(64)": ("18446744073709551615",),
    "BINARY(4)": ("'ab'",),
    "VARBINARY(4)": ("X'00FF'",),
    "FLOAT": ("1.1", "16777216", "1.1000001"),
    "DOUBLE": ("0.1234567890123456789", "1.7976931348623157e308"),
}
WITHOUT = (*LITERALS, "TEXT", "BLOB")
UNTOLD = ("ENUM", "TIMESTAMP")
"""Without a default MariaDB stores what depends on triggers."""
EXPRESSIONS = (
    "INT NOT NULL DEFAULT (1 + 2)", "VARCHAR(40) DEFAULT (CONCAT('a', 'b'))",
    "DATETIME(6) DEFAULT CURRENT_TIMESTAMP(6)",
    "TIMESTAMP NOT NULL DEFAULT CURRENT_TIMESTAMP ON UPDATE CURRENT_TIMESTAMP", "INT AS (id + 1) STORED",
    "INT AS (id + 2) VIRTUAL", "VARCHAR(40) DEFAULT (UUID())", "TEXT DEFAULT ('long')",
)  # fmt: skip
"""Columns that are logged whether or not the INSERT names them."""


@pytest.fixture(autouse=True)
def minimal(request: pytest.FixtureRequest, any_server: Any) -> Iterator[None]:
    with any_server.connect(autocommit=True) as connection, connection.cursor() as cursor:
        cursor.execute("SET GLOBAL binlog_row_image = MINIMAL")
        yield
        cursor.execute("SET GLOBAL binlog_row_image = FULL")


FREE = ("SET sql_mode = 'ALLOW_INVALID_DATES'", "SET time_zone = '+05:30'")
"""Neither strict nor without zero dates; a zone in which texts of TIMESTAMP are others."""


def insert(key: int, image: str = "MINIMAL", values: Sequence[tuple[str, str]] = ()) -> tuple[str, ...]:
    """An INSERT, and an update that logs the whole row that it made."""
    names, texts = zip(("id", str(key)), *values, strict=True)
    return (
        f"SET binlog_row_image = {image}",
        f"INSERT INTO t ({', '.join(names)}) VALUES ({', '.join(texts)})",
        "SET binlog_row_image = FULL",
        f"UPDATE t SET changed = -1 WHERE id = {key}",
    )


def require_equal(blocks: Sequence[Block]) -> int:
    """Every inserted row is what the update behind it says that it was; the number of rows."""
    inserted: dict[int, dict[str, Any]] = {}
    compared = 0
    for block in blocks:
        for part in block.tables:
            for row in sorted(part.rows.to_pylist(), key=lambda row: (row["_cdc_seq"], row["_cdc_row"])):
                literal = dict(row["_cdc_literal"] or [])
                names = [column.name for column in part.schema.columns]
                absent = row["_cdc_absent"] or "[]"
                if row["_cdc_op"] == "c":
                    inserted[row["id"]] = {
                        name: literal.get(name, row[name]) for name in names if f'"{name}"' not in absent
                    }
                elif row["_cdc_op"] == "u":
                    was = {name: literal.get(f"_before.{name}", row["_before"][name]) for name in names}
                    found = inserted.pop(row["id"])
                    unlogged = {column.name for column in part.schema.columns if not column.logged}
                    lacking = {name for name in unlogged if f'"_before.{name}"' in absent}
                    assert found.keys() <= was.keys()
                    assert {name: value for name, value in found.items() if name not in lacking} == {
                        name: was[name] for name in found if name not in lacking
                    }
                    compared += 1
    assert not inserted
    return compared


def drain(origin: Origin, start: Checkpoint, before: Sequence[Block] = ()) -> list[Block]:
    known = [defined for block in before for defined in block.definitions]
    place = replace(start, position=before[-1].end) if before else start
    return [*before, *origin.drain(place, history=known, on_unlogged_change="record")]


def definition(null: str, mariadb: bool) -> str:
    columns = ["id INT PRIMARY KEY", "changed INT"]
    for kind, values in LITERALS.items():
        for value in values:
            columns.append(f"c{len(columns)} {kind} {null} DEFAULT {value}")
    for kind in (*WITHOUT, *([] if mariadb else ["JSON"])):  # MariaDB checks that its text, '', is JSON
        if mariadb and kind.startswith(UNTOLD) and null == "NOT NULL":
            continue  # see below
        columns.append(f"c{len(columns)} {kind} {null}")
    columns += [f"c{len(columns)}e{number} {kind}" for number, kind in enumerate(EXPRESSIONS)]
    return f"CREATE TABLE t ({', '.join(columns)}) CHARACTER SET utf8mb4"


@pytest.mark.parametrize("null", ["NOT NULL", "NULL"])
@pytest.mark.parametrize("image", ["MINIMAL", "NOBLOB", "MINIMAL, with a trigger"])
def test_every_kind_of_default_that_an_insert_leaves_out_is_exact(origin: Origin, null: str, image: str) -> None:
    start = origin.end()
    image, _, trigger = image.partition(",")
    with origin.session() as run:
        run(*FREE, definition(null, origin.mariadb))
        if trigger:
            run("CREATE TRIGGER b BEFORE INSERT ON t FOR EACH ROW SET @x = 1")
        run(*insert(1, image), *insert(2, image, [("c2", "8")]))
    assert require_equal(drain(origin, start)) == 2


def test_defaults_are_found_without_a_row_and_of_columns_that_select_does_not_show(origin: Origin) -> None:
    origin.execute(
        "CREATE TABLE t (id INT PRIMARY KEY, changed INT, f FLOAT NOT NULL DEFAULT 1.1000001, g FLOAT DEFAULT 16777216,"
        " h INT NOT NULL DEFAULT 7 INVISIBLE, i FLOAT NOT NULL DEFAULT 16777216 INVISIBLE, j INT DEFAULT (1 + id))"
    )
    schema = table_schema(origin.control, origin.name, "t")
    assert schema is not None
    defaults = column_defaults(origin.control, schema)
    assert {name: float(defaults[name] or 0) for name in "fghi"} == {
        "f": 1.1000001430511475, "g": 16777216.0, "h": 7, "i": 16777216.0,
    }  # fmt: skip
    assert "j" not in defaults
    assert column_defaults(origin.control, replace(schema, table="gone")) == {}


OTHERS = {
    "a default altered in the same second": ("ALTER TABLE t ALTER c SET DEFAULT 7",),
    "a table dropped and created again in the same second": (
        "DROP TABLE t", "CREATE TABLE t (id INT PRIMARY KEY, changed INT, c INT NOT NULL DEFAULT 9)",
    ),
    "a session in the past": ("SET TIMESTAMP = 1000000000", "ALTER TABLE t MODIFY c INT NOT NULL DEFAULT 7"),
    "a table renamed away": (
        "RENAME TABLE t TO u", "CREATE TABLE t (id INT PRIMARY KEY, changed INT, c INT NOT NULL DEFAULT 9)",
    ),
}  # fmt: skip


@pytest.mark.parametrize("change", OTHERS.values(), ids=OTHERS)
def test_a_default_is_that_of_the_moment_where_somebody_read_in_time_and_refused_elsewhere(
    origin: Origin, change: tuple[str, ...]
) -> None:
    start = origin.end()
    with origin.session() as run:
        run("CREATE TABLE t (id INT PRIMARY KEY, changed INT, c INT NOT NULL DEFAULT 5)", *insert(1))
        read = drain(origin, start)
        run(*insert(2), *change, *insert(3))
    assert require_equal(drain(origin, start, read)) == 3
    error = refusal(lambda: drain(origin, start))
    assert (severity(type(error)), error.code) == (Refused, "source.incomplete_rows")
    assert "redefines the table" in error.what
    assert "isolate" in error.remedy


WAYS = (
    "INSERT INTO t (id) VALUES (1)",
    "INSERT INTO t (id, c) VALUES (2, DEFAULT)",
    "INSERT INTO t (id, c) VALUES (3, 8), (4, DEFAULT)",
    "INSERT INTO t (id) SELECT 5",
    "REPLACE INTO t (id) VALUES (6)",
    "INSERT INTO t (id) VALUES (7) ON DUPLICATE KEY UPDATE c = 1",
    "INSERT IGNORE INTO t (id, n) VALUES (8, NULL), (9, 'far too long')",
    "INSERT INTO t SET id = 10, c = c + 1",
)


@pytest.mark.parametrize("trigger", ["", "SET NEW.c = NEW.c + 100, NEW.n = CONCAT(COALESCE(NEW.n, ''), 'x')"])
def test_every_way_to_insert_leaves_the_same_defaults(origin: Origin, trigger: str) -> None:
    start = origin.end()
    with origin.session() as run:
        run(
            *FREE, "CREATE TABLE t (id INT PRIMARY KEY, changed INT, c INT NOT NULL DEFAULT 5, n CHAR(4) NOT NULL, "
            "a BIGINT NOT NULL AUTO_INCREMENT UNIQUE, e ENUM('p', 'q') NOT NULL DEFAULT 'q', u TIMESTAMP NULL DEFAULT "
            "NULL ON UPDATE CURRENT_TIMESTAMP)",
        )  # fmt: skip
        if trigger:
            run(f"CREATE TRIGGER b BEFORE INSERT ON t FOR EACH ROW {trigger}")
        run("SET binlog_row_image = MINIMAL", *WAYS, "SET binlog_row_image = FULL", "UPDATE t SET changed = -1")
    assert require_equal(drain(origin, start)) == 10


@pytest.mark.parametrize("kind", ["ENUM('p', 'q') NOT NULL", "TIMESTAMP NOT NULL"])
def test_what_mariadb_stores_otherwise_under_a_trigger_is_refused(origin: Origin, kind: str) -> None:
    start = origin.end()
    with origin.session() as run:
        run(*FREE, f"CREATE TABLE t (id INT PRIMARY KEY, changed INT, x DATE, y TIMESTAMP NULL, e {kind})")
        run("CREATE TRIGGER b BEFORE INSERT ON t FOR EACH ROW SET @x = 1", *insert(1))
    if origin.mariadb:
        assert refusal(lambda: drain(origin, start)).code == "source.incomplete_rows"
        stores_the_default = is_newest(origin.sql)
        assert origin.rows("t")[0]["e"] not in ((None,) if stores_the_default else ("p", None))
    else:
        assert require_equal(drain(origin, start)) == 1


def test_a_table_made_from_a_query_has_the_defaults_of_its_other_columns(origin: Origin) -> None:
    start = origin.end()
    with origin.session() as run:
        run("SET binlog_row_image = MINIMAL")
        run("CREATE TABLE t (id INT PRIMARY KEY, changed INT, c INT NOT NULL DEFAULT 5) SELECT 1 AS id, 'x' AS more")
        run("SET binlog_row_image = FULL", "UPDATE t SET changed = -1")
    assert require_equal(drain(origin, start)) == 1


def test_a_table_is_left_out_from_the_transaction_that_cannot_be_read_and_not_before(origin: Origin) -> None:
    start = origin.end()
    with origin.session() as run:
        run("CREATE TABLE t (id INT PRIMARY KEY, changed INT, c INT NOT NULL DEFAULT 5)", *insert(1, "FULL"))
        run("CREATE TABLE u (id INT PRIMARY KEY)", "INSERT INTO u VALUES (7)", *insert(2, "FULL"))
        here = origin.end().position
        run(*insert(3), *insert(4, "FULL"), "INSERT INTO u VALUES (8)", "ALTER TABLE t ALTER c SET DEFAULT 7")
    blocks = origin.drain(start, on_unreadable="isolate")
    found = [
        (row["_cdc_op"], row["id"])
        for block in blocks for part in block.tables for row in part.rows.to_pylist()
    ]  # fmt: skip
    assert sorted(found) == [("c", 1), ("c", 2), ("c", 7), ("c", 8), ("u", 1), ("u", 2)]
    assert sum(block.left_out.get("table isolated", 0) for block in blocks) == 4
    assert blocks[-1].isolated[f"{origin.name}.t"].startswith(f"since {here}: ")


def test_a_clock_that_stepped_back_keeps_no_default_from_being_known(origin: Origin) -> None:
    start = origin.end()
    with origin.session() as run:
        run("CREATE TABLE t (id INT PRIMARY KEY, changed INT, c INT NOT NULL DEFAULT 5)")
        run("SET TIMESTAMP = 1000000000", *insert(1))
    assert require_equal(drain(origin, start)) == 1


def test_a_session_of_its_own_image_is_read_where_no_statement_lies_behind(origin: Origin) -> None:
    origin.execute("SET GLOBAL binlog_row_image = FULL")
    start = origin.end()
    with origin.session() as run:
        run("CREATE TABLE t (id INT PRIMARY KEY, changed INT, c INT NOT NULL DEFAULT 5)", *insert(1))
        read = drain(origin, start)
        run("ALTER TABLE t ALTER c SET DEFAULT 7", *insert(2))
        read = drain(origin, start, read)
    assert require_equal(read) == 2


@st.composite
def columns(draw: st.DrawFn) -> str:
    kind = draw(st.sampled_from(sorted(LITERALS)))
    null = draw(st.sampled_from(["", " NOT NULL"]))
    default = draw(st.sampled_from([*([] if kind.startswith(UNTOLD) else [""]), *LITERALS[kind]]))
    return f"{kind}{null}{default and ' DEFAULT ' + default}".replace(
        "TIMESTAMP(2) DEFAULT", "TIMESTAMP(2) NULL DEFAULT"
    )


STEPS = st.one_of(
    st.tuples(st.just("insert"), st.sampled_from(["MINIMAL", "NOBLOB", "FULL"]), st.integers(0, 3)),
    st.tuples(st.just("alter"), st.integers(0, 3), columns()),
    st.tuples(st.just("again"), st.lists(columns(), min_size=4, max_size=4)),
    st.tuples(st.just("restart")),
)


def _untold(kinds: Sequence[str]) -> bool:
    """Whether an INSERT lies between two definitions, of which nobody saw the first in time."""
    defined = [number for number, kind in enumerate(kinds) if kind == "define"]
    return bool(defined) and "insert" in kinds[defined[0] : defined[-1]]


def _play(server: Any, first: list[str], steps: list[tuple[Any, ...]]) -> None:
    """Plays the steps; each time that the log is read, its rows are right, or it is refused where it must be."""
    create = "CREATE TABLE t (id INT PRIMARY KEY, changed INT, {})"
    with own_origin(server) as origin:
        start, read, unread, inserted = origin.end(), list[Block](), ["define"], 0
        with origin.session() as run:
            run(*FREE, create.format(", ".join(f"c{n} {kind}" for n, kind in enumerate(first))))
            for key, (what, *rest) in enumerate((*steps, ("restart",))):
                if what == "insert":
                    run(*insert(key, rest[0], [("changed", str(rest[1]))] if rest[1] else []))
                    unread.append("insert" if rest[0] == "MINIMAL" else "whole")  # NOBLOB leaves out TEXT and BLOB only
                    inserted += 1
                    continue
                if what == "alter":
                    # A column that is added again has no value that the conversion of another could lose.
                    run(f"ALTER TABLE t DROP c{rest[0]}, ADD c{rest[0]} {rest[1]}")
                elif what == "again":
                    run("DROP TABLE t", create.format(", ".join(f"c{n} {kind}" for n, kind in enumerate(rest[0]))))
                if what != "restart":
                    unread.append("define")
                    continue
                if _untold(unread):
                    assert refusal(partial(drain, origin, start, read)).code == "source.incomplete_rows"
                    return
                read, unread = drain(origin, start, read), []
                assert require_equal(read) == inserted


ONCE = {
    "deadline": None, "derandomize": True, "phases": [Phase.generate], "database": None,
    "suppress_health_check": [HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
}  # fmt: skip
GAMES = given(st.lists(columns(), min_size=4, max_size=4), st.lists(STEPS, min_size=2, max_size=8))


@settings(max_examples=12, **ONCE)  # type: ignore[arg-type]
@GAMES
def test_any_defaults_images_changes_and_restarts_give_the_rows_of_the_server_or_a_refusal(
    any_server: Any, first: list[str], steps: list[tuple[Any, ...]]
) -> None:
    _play(any_server, first, steps)


@pytest.mark.matrix
@settings(max_examples=150, **ONCE)  # type: ignore[arg-type]
@GAMES
def test_many_defaults_images_changes_and_restarts_give_the_rows_of_the_server_or_a_refusal(
    any_server: Any, first: list[str], steps: list[tuple[Any, ...]]
) -> None:
    _play(any_server, first, steps)
