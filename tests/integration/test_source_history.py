"""Definitions as of each place of the log, whether it names the columns or not, with a restart before every change."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

import pytest

from cdc_core.errors import Refused, severity
from cdc_core.model.block import Block
from cdc_core.model.position import Checkpoint, Position
from cdc_core.model.windows import from_us
from cdc_core.source.host import source_server as server
from cdc_core.source.schemas.captured_definitions import table_schema
from cdc_core.source.transactions import source_stream as stream
from tests.lab.origin import Origin, changes_in, read_to
from tests.lab.refusals import refusal


@dataclass(frozen=True)
class Case:
    """create: tables. first: rows read before the restart. then: what happens while nobody reads.
    rows: (table, columns) in order."""

    create: tuple[str, ...]
    first: str
    then: tuple[str, ...]
    rows: tuple[tuple[str, dict[str, Any]], ...]


CASES = {
    "a column renamed": Case(
        ("CREATE TABLE t (id INT PRIMARY KEY, a INT, b INT)",),
        "INSERT INTO t VALUES (1, 10, 20)",
        ("INSERT INTO t VALUES (2, 11, 21)", "ALTER TABLE t RENAME COLUMN a TO c", "INSERT INTO t VALUES (3, 12, 22)"),
        (("t", {"id": 1, "a": 10, "b": 20}), ("t", {"id": 2, "a": 11, "b": 21}), ("t", {"id": 3, "c": 12, "b": 22})),
    ),
    "two columns that change their names": Case(
        ("CREATE TABLE t (id INT PRIMARY KEY, a INT, b INT)",),
        "INSERT INTO t VALUES (1, 10, 20)",
        (
            "INSERT INTO t VALUES (2, 11, 21)",
            "ALTER TABLE t CHANGE a b INT, CHANGE b a INT",
            "INSERT INTO t VALUES (3, 12, 22)",
        ),
        (("t", {"id": 1, "a": 10, "b": 20}), ("t", {"id": 2, "a": 11, "b": 21}), ("t", {"id": 3, "b": 12, "a": 22})),
    ),
    "a table renamed and made again under its old name": Case(
        ("CREATE TABLE t (id INT PRIMARY KEY, a INT)",),
        "INSERT INTO t VALUES (1, 10)",
        (
            "INSERT INTO t VALUES (2, 11)",
            "RENAME TABLE t TO old",
            "INSERT INTO old VALUES (3, 12)",
            "CREATE TABLE t (id INT PRIMARY KEY, z INT)",
            "INSERT INTO t VALUES (4, 13)",
        ),
        (
            ("t", {"id": 1, "a": 10}),
            ("t", {"id": 2, "a": 11}),
            ("old", {"id": 3, "a": 12}),
            ("t", {"id": 4, "z": 13}),
        ),
    ),
    "two tables that change their names": Case(
        ("CREATE TABLE t (id INT PRIMARY KEY, a INT)", "CREATE TABLE u (id INT PRIMARY KEY, b INT)"),
        "INSERT INTO t VALUES (1, 10)",
        (
            "INSERT INTO u VALUES (2, 11)",
            "RENAME TABLE t TO spare, u TO t, spare TO u",
            "INSERT INTO t VALUES (3, 12)",
            "INSERT INTO u VALUES (4, 13)",
        ),
        (("t", {"id": 1, "a": 10}), ("u", {"id": 2, "b": 11}), ("t", {"id": 3, "b": 12}), ("u", {"id": 4, "a": 13})),
    ),
    "members of an ENUM and a SET in another order": Case(
        ("CREATE TABLE t (id INT PRIMARY KEY, e ENUM('a','b'), s SET('x','y'))",),
        "INSERT INTO t VALUES (1, 'a', 'x')",
        (
            "INSERT INTO t VALUES (2, 'b', 'x,y')",
            "ALTER TABLE t MODIFY e ENUM('b','a'), MODIFY s SET('y','x')",
            "INSERT INTO t VALUES (3, 'b', 'x')",
        ),
        (
            ("t", {"id": 1, "e": "a", "s": "x"}),
            ("t", {"id": 2, "e": "b", "s": "x,y"}),
            ("t", {"id": 3, "e": "b", "s": "x"}),
        ),
    ),
    "partitions": Case(
        (
            "CREATE TABLE t (id INT PRIMARY KEY, a INT) PARTITION BY RANGE (id) "
            "(PARTITION p0 VALUES LESS THAN (10), PARTITION p1 VALUES LESS THAN (20))",
        ),
        "INSERT INTO t VALUES (1, 10)",
        (
            "INSERT INTO t VALUES (12, 11)",
            "ALTER TABLE t DROP PARTITION p0",
            "ALTER TABLE t ADD PARTITION (PARTITION p2 VALUES LESS THAN (30))",
            "INSERT INTO t VALUES (22, 12)",
        ),
        (("t", {"id": 1, "a": 10}), ("t", {"id": 12, "a": 11}), ("t", {"id": 22, "a": 12})),
    ),
    "a table made from a query": Case(
        ("CREATE TABLE t (id INT PRIMARY KEY, a INT)",),
        "INSERT INTO t VALUES (1, 10)",
        ("CREATE TABLE u (PRIMARY KEY (i)) SELECT id AS i, a AS n FROM t", "INSERT INTO u VALUES (2, 11)"),
        (("t", {"id": 1, "a": 10}), ("u", {"i": 1, "n": 10}), ("u", {"i": 2, "n": 11})),
    ),
    "a table dropped and made again": Case(
        ("CREATE TABLE t (id INT PRIMARY KEY, a INT)",),
        "INSERT INTO t VALUES (1, 10)",
        (
            "INSERT INTO t VALUES (2, 11)",
            "DROP TABLE t",
            "CREATE TABLE t (id INT PRIMARY KEY, b INT)",
            "INSERT INTO t VALUES (2, 12)",
        ),
        (("t", {"id": 1, "a": 10}), ("t", {"id": 2, "a": 11}), ("t", {"id": 2, "b": 12})),
    ),
    "columns that SELECT * does not show, and an index on an expression": Case(
        # MySQL keeps the expression in a hidden column; MariaDB takes that part for a comment.
        (
            "CREATE TABLE t (id INT PRIMARY KEY, a INT /*!80013 , KEY f ((a + 1)) */, h INT INVISIBLE, "
            "s INT AS (a + 2) STORED, z INT)",
        ),
        "INSERT INTO t (id, a, h, z) VALUES (1, 10, 5, 6)",
        (
            "INSERT INTO t (id, a, h, z) VALUES (2, 11, 6, 7)",
            "ALTER TABLE t ADD COLUMN i INT INVISIBLE AFTER id",
            "INSERT INTO t (id, i, a, z) VALUES (3, 1, 12, 8)",
        ),
        (
            ("t", {"id": 1, "a": 10, "h": 5, "s": 12, "z": 6}),
            ("t", {"id": 2, "a": 11, "h": 6, "s": 13, "z": 7}),
            ("t", {"id": 3, "i": 1, "a": 12, "h": None, "s": 14, "z": 8}),
        ),
    ),
    "a column added and one dropped": Case(
        ("CREATE TABLE t (id INT PRIMARY KEY, a INT)",),
        "INSERT INTO t VALUES (1, 10)",
        (
            "INSERT INTO t VALUES (2, 11)",
            "ALTER TABLE t ADD COLUMN b INT NULL FIRST, DROP COLUMN a",
            "INSERT INTO t VALUES (21, 3)",
        ),
        (("t", {"id": 1, "a": 10}), ("t", {"id": 2, "a": 11}), ("t", {"b": 21, "id": 3})),
    ),
}


@pytest.fixture(params=["FULL", "MINIMAL"])
def names(request: pytest.FixtureRequest, origin: Origin) -> Iterator[bool]:
    """Whether the log names the columns."""
    origin.execute(f"SET GLOBAL binlog_row_metadata = {request.param}")
    yield request.param == "FULL"
    origin.execute("SET GLOBAL binlog_row_metadata = FULL")


def read(origin: Origin, start: Checkpoint, *before: Block) -> list[Block]:
    known = [definition for block in before for definition in block.definitions]
    return origin.drain(start, history=known, on_unlogged_change="record")


def rows(blocks: list[Block]) -> list[tuple[str, dict[str, Any]]]:
    return [
        (schema.table, {column.name: row[column.name] for column in schema.columns})
        for schema, row in changes_in(blocks)
    ]


def numbered(statements: Iterable[str], number: int) -> list[str]:
    """The tables of the statements get the number: those of all cases are in one database."""
    return [re.sub(r"\b(t|u|old|spare)\b", rf"\g<1>{number}", sql) for sql in statements]


def test_rows_have_the_definition_of_their_place_after_a_restart_and_later_changes(origin: Origin, names: bool) -> None:
    def happens(statements: Callable[[Case], Iterable[str]]) -> None:
        for number, case in enumerate(CASES.values()):
            origin.execute(*numbered(statements(case), number))

    happens(lambda case: case.create)
    start = origin.end()
    happens(lambda case: [case.first])
    before = read(origin, start)
    happens(lambda case: case.then)
    after = read(origin, replace(start, position=before[-1].end), *before)
    origin.execute("CREATE TABLE elsewhere (id INT PRIMARY KEY)")
    again = read(origin, start, *before, *after)
    for number, (name, case) in enumerate(CASES.items()):
        for blocks in ([*before, *after], again):
            wanted = [(f"{table}{number}", row) for table, row in case.rows]
            assert [(table, row) for table, row in rows(blocks) if table.endswith(str(number))] == wanted, name
    assert [
        definition for block in again for definition in block.definitions if definition.schema.table != "elsewhere"
    ] == []


def test_what_a_table_was_is_never_guessed(origin: Origin, names: bool) -> None:
    origin.execute("CREATE TABLE t (id INT PRIMARY KEY, a INT, b INT)")
    start = origin.end()
    origin.execute(
        "INSERT INTO t VALUES (1, 2, 3)",
        "ALTER TABLE t CHANGE a b INT, CHANGE b a INT",
        "INSERT INTO t VALUES (2, 3, 4)",
    )
    if names:
        assert rows(read(origin, start)) == [("t", {"id": 1, "a": 2, "b": 3}), ("t", {"id": 2, "b": 3, "a": 4})]
        return
    error = refusal(lambda: read(origin, start))
    assert (severity(type(error)), error.code) == (Refused, "source.incomplete_rows")
    assert f"{origin.name}.t" in error.what
    assert "binlog_row_metadata = FULL" in error.remedy


def test_a_start_by_time_between_two_definitions_never_guesses_and_one_behind_them_reads_right(
    origin: Origin, names: bool
) -> None:
    swap = "ALTER TABLE t CHANGE a b INT, CHANGE b a INT"
    moments = []
    origin.execute("CREATE TABLE t (id INT PRIMARY KEY, a INT, b INT)", "INSERT INTO t VALUES (1, 10, 20)", swap)
    for number in (2, 3):
        time.sleep(1.1)  # MariaDB's log knows whole seconds
        moments.append(from_us(server.now_us(origin.control) // 1_000_000 * 1_000_000).isoformat())
        origin.execute(f"INSERT INTO t VALUES ({number}, 11, 21)", *([swap] if number == 2 else []))
    between, behind = (origin.start({"timestamp": moment}) for moment in moments)
    last = ("t", {"id": 3, "a": 11, "b": 21})
    if names:
        assert rows(read(origin, between)) == [("t", {"id": 2, "b": 11, "a": 21}), last]
    else:
        assert refusal(lambda: read(origin, between)).code == "source.incomplete_rows"
        left_out = origin.drain(between, on_unlogged_change="record", on_unreadable="isolate")
        assert rows(left_out) == []
        assert list(left_out[-1].isolated) == [f"{origin.name}.t"]
    assert rows(read(origin, behind)) == [last]


def test_a_definition_known_before_its_table_was_left_out_for_a_time_does_not_come_back(origin: Origin) -> None:
    origin.execute("SET GLOBAL binlog_row_metadata = MINIMAL")
    try:
        origin.execute("CREATE TABLE t (id INT PRIMARY KEY, a INT, b INT)", "CREATE TABLE u (id INT PRIMARY KEY)")
        start = origin.end()
        origin.execute("INSERT INTO t VALUES (1, 2, 3)")
        first = read(origin, start)
        origin.execute("ALTER TABLE t CHANGE a b INT, CHANGE b a INT", "INSERT INTO t VALUES (2, 3, 4)")
        known = [definition for block in first for definition in block.definitions]
        place = replace(start, position=first[-1].end)
        options = {"on_unlogged_change": "record"}
        without = origin.drain(place, include=[rf"{origin.name}\.u"], history=known, **options)
        assert rows(without) == []
        origin.execute("INSERT INTO t VALUES (3, 4, 5)")
        last = read(origin, replace(start, position=without[-1].end), *first, *without)
        assert rows(last) == [("t", {"id": 3, "b": 4, "a": 5})]
    finally:
        origin.execute("SET GLOBAL binlog_row_metadata = FULL")


UNLOGGED = ("SET sql_log_bin = 0", "ALTER TABLE t MODIFY a INT AFTER b", "SET sql_log_bin = 1")
SWAPPED = "INSERT INTO t (id, a, b) VALUES (3, 10, 20)"


def test_a_table_altered_past_the_log_is_read_right_or_refused_after_a_restart(origin: Origin, names: bool) -> None:
    origin.execute("CREATE TABLE t (id INT PRIMARY KEY, a INT, b INT)", "CREATE TABLE u (id INT PRIMARY KEY)")
    start = origin.end()
    origin.execute("INSERT INTO t VALUES (1, 2, 3)")
    first = read(origin, start)
    place = replace(start, position=first[-1].end)
    origin.execute(*UNLOGGED, SWAPPED, "INSERT INTO u VALUES (4)")
    if names:
        assert rows(read(origin, place, *first)) == [("t", {"id": 3, "b": 20, "a": 10}), ("u", {"id": 4})]
        return
    error = refusal(lambda: read(origin, place, *first))
    assert (severity(type(error)), error.code) == (Refused, "source.incomplete_rows")
    assert "sql_log_bin" in error.what
    assert "b int, a int" in error.what
    known = [definition for block in first for definition in block.definitions]
    left_out = origin.drain(place, history=known, on_unreadable="isolate")
    assert rows(left_out) == [("u", {"id": 4})]
    assert list(left_out[-1].isolated) == [f"{origin.name}.t"]


def test_a_table_altered_past_the_log_is_noticed_while_its_rows_are_read(
    origin: Origin, names: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream, "VERIFY_S", 0.0)
    origin.execute("CREATE TABLE t (id INT PRIMARY KEY, a INT, b INT)")
    with origin.stream(origin.end(), on_unlogged_change="record") as opened:
        origin.execute("INSERT INTO t VALUES (1, 2, 3)")
        blocks = read_to(opened, origin.end().position)
        # Logged changes, several at once, are none.
        origin.execute("ALTER TABLE t ADD c INT", "ALTER TABLE t DROP c", "INSERT INTO t VALUES (2, 2, 3)")
        blocks += read_to(opened, origin.end().position)
        origin.execute(*UNLOGGED, SWAPPED)
        if names:
            blocks += read_to(opened, origin.end().position)
            assert rows(blocks)[-1] == ("t", {"id": 3, "b": 20, "a": 10})
        else:
            error = refusal(lambda: read_to(opened, origin.end().position))
            assert error.code == "source.incomplete_rows"
        assert len(rows(blocks)) == 2 + names


def test_a_default_altered_past_the_log_is_refused(origin: Origin) -> None:
    origin.execute("CREATE TABLE t (id INT PRIMARY KEY, a INT DEFAULT 5)", "SET GLOBAL binlog_row_image = MINIMAL")
    try:
        start = origin.end()
        first = read(origin, start)
        origin.execute("CREATE TABLE elsewhere (id INT PRIMARY KEY)")
        first = [*first, *read(origin, start)]
        origin.execute("SET sql_log_bin = 0", "ALTER TABLE t ALTER a SET DEFAULT 7")
        origin.execute("SET binlog_row_image = MINIMAL", "INSERT INTO t (id) VALUES (1)")
        error = refusal(lambda: read(origin, replace(start, position=first[-1].end), *first))
        assert error.code == "source.incomplete_rows"
        assert "sql_log_bin" in error.what
    finally:
        origin.execute("SET GLOBAL binlog_row_image = FULL")


def test_what_a_server_shows_of_a_table_is_in_its_log_by_then(origin: Origin) -> None:
    """So an answer holds up to where the log ended after it was given."""
    origin.execute("CREATE TABLE t (id INT PRIMARY KEY AUTO_INCREMENT, c0 INT)")
    begin = origin.end().position

    def alter() -> None:
        with origin.session() as run:
            for n in range(80):
                kind, how = ("BIGINT", "COPY") if n % 4 == 1 else ("INT", "DEFAULT")
                run(f"ALTER TABLE t CHANGE c{n} c{n + 1} {kind}, ALGORITHM={how}")

    def insert() -> None:
        with origin.session() as run:
            while not altering.done():
                run("INSERT INTO t (id) VALUES (NULL)")

    shown: list[tuple[bytes, Position]] = []
    with ThreadPoolExecutor(3) as pool:
        altering = pool.submit(alter)
        inserting = [pool.submit(insert) for _ in range(2)]
        while not altering.done():
            now = table_schema(origin.control, origin.name, "t")
            assert now is not None
            shown.append((now.columns[1].name.encode(), server.end_position(origin.control, 0)))
        for future in (altering, *inserting):
            future.result()
    logged = {b"c0": begin}
    for event, end in origin.stream(origin.end())._glance.statements_after(begin):
        if event is not None and (found := re.search(rb"CHANGE c\d+ (c\d+)", event.body)) is not None:
            logged[found[1]] = end
    assert len(logged) == 81
    assert len({name for name, _ in shown}) > 10
    assert [(name, end) for name, end in shown if logged[name] > end] == []
