"""Rows and values of a table or a column that was dropped are never silently taken for those of the present one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import pytest

from cdc_core.errors import DataAtRisk, severity
from cdc_core.model.block import Block
from cdc_core.model.position import Checkpoint
from examples.sandbox.sql_server import SqlServer
from tests.lab.origin import Origin, changes_in, read_to, rows_in
from tests.lab.refusals import refusal

CREATE = "CREATE TABLE t (id INT PRIMARY KEY, c INT)"


WAYS = [("mariadb", "FULL", False), ("mariadb", "FULL", True), ("mysql9", "FULL", False), ("mysql9", "MINIMAL", True)]
"""Kind of server, metadata in the log, and whether each step is read by a process of its own. Without names in the log
every definition must be seen."""


@pytest.fixture(scope="module", params=WAYS, ids=lambda way: f"{way[0]}-{way[1]}{'-restarts' * way[2]}")
def way(request: pytest.FixtureRequest) -> Iterator[tuple[SqlServer, bool]]:
    kind, metadata, restarts = request.param
    server: SqlServer = request.getfixturevalue(kind)
    server.run(f"SET GLOBAL binlog_row_metadata = {metadata}")
    yield server, restarts
    server.run("SET GLOBAL binlog_row_metadata = FULL")


@pytest.fixture(scope="module")
def any_server(way: tuple[SqlServer, bool]) -> SqlServer:
    return way[0]


@pytest.fixture
def restarts(way: tuple[SqlServer, bool]) -> bool:
    return way[1]


def drain(origin: Origin, start: Checkpoint, before: Sequence[Block] = (), **options: Any) -> list[Block]:
    known = [definition for block in before for definition in block.definitions]
    place = replace(start, position=before[-1].end) if before else start
    return [*before, *origin.drain(place, history=known, **options)]


def played(
    origin: Origin, steps: Sequence[str], restarts: bool, before: Sequence[Block] = (), **options: Any
) -> list[Block]:
    start, read = origin.end(), list(before)
    for step in steps:
        if "DATABASE" in step:
            origin.execute_on_server(f"{step} {origin.name}")
        else:
            origin.execute(*step.split("; "))
        if restarts:
            read = drain(origin, start, read, **options)
    return drain(origin, start, read, **options)


def changes(blocks: Sequence[Block]) -> list[tuple[str, int | None]]:
    return [(row["_cdc_op"], row.get("id")) for _, row in changes_in(blocks)]


def notes(blocks: Sequence[Block]) -> list[str]:
    return [note for block in blocks for note in block.notes]


FORMER = {
    "dropped": ("DROP TABLE t", CREATE),
    "dropped if it exists": ("DROP TABLE IF EXISTS t", CREATE),
    "dropped with its database": ("DROP DATABASE", "CREATE DATABASE", CREATE.replace("TABLE", "TABLE IF NOT EXISTS")),
    "dropped out of the log": ("SET sql_log_bin = 0; DROP TABLE t", CREATE),
}


@pytest.mark.parametrize("again", FORMER.values(), ids=FORMER)
def test_a_table_that_is_created_again_never_silently_keeps_the_rows_of_its_former_life(
    origin: Origin, again: tuple[str, ...], restarts: bool
) -> None:
    steps = (CREATE, "INSERT INTO t VALUES (1, 1)", *again)
    start = origin.end()
    error = refusal(lambda: played(origin, steps, restarts))
    assert (severity(type(error)), error.code) == (DataAtRisk, "source.unlogged_change")
    assert "an earlier table of that name" in error.what
    origin.execute_on_server(f"DROP DATABASE {origin.name}", f"CREATE DATABASE {origin.name}")
    start = origin.end()
    steps = (*(step.replace(" t", " u") for step in steps), "INSERT INTO u VALUES (3, 3)")
    recorded = played(origin, steps, restarts, on_unlogged_change="record")
    assert [note for note in notes(recorded) if f"needs re-sync of table {origin.name}.u" in note]
    assert bool([note for note in notes(recorded) if f"{origin.name}.u dropped on" in note]) == (
        "sql_log" not in again[0]
    )
    if restarts:
        origin.execute_on_server(f"DROP DATABASE {origin.name}", f"CREATE DATABASE {origin.name}")
        steps = tuple(step.replace(" u", " v") for step in steps)
        assert changes(played(origin, steps, restarts, on_truncate="stage")) == [("c", 1), ("t", None), ("c", 3)]
    else:
        assert changes(drain(origin, start, on_truncate="stage")) == [("c", 1), ("t", None), ("c", 3)]


def test_a_table_that_is_created_for_the_first_time_is_no_reason_to_stop(origin: Origin, restarts: bool) -> None:
    steps = (
        "DROP TABLE IF EXISTS t", CREATE, "CREATE TABLE IF NOT EXISTS t (id INT PRIMARY KEY)",
        "INSERT INTO t VALUES (1, 1)", "CREATE TABLE IF NOT EXISTS t (id INT PRIMARY KEY)",
        "CREATE TABLE u (id INT PRIMARY KEY)", "DROP DATABASE", "CREATE DATABASE",
        "CREATE TABLE v (id INT PRIMARY KEY)", "INSERT INTO v VALUES (2)",
    )  # fmt: skip
    assert changes(played(origin, steps, restarts)) == [("c", 1), ("c", 2)]


WITHOUT_ROWS = {
    "dropped again and again": (CREATE, "DROP TABLE t", CREATE, "DROP TABLE t", CREATE),
    "altered before": (CREATE, "ALTER TABLE t ADD d INT", "CREATE INDEX x ON t (c)", "DROP TABLE IF EXISTS t", CREATE),
    "with its database": (CREATE, "DROP DATABASE", "CREATE DATABASE", CREATE),
    "if it is not there": (
        CREATE,
        "DROP TABLE t",
        CREATE.replace("TABLE", "TABLE IF NOT EXISTS"),
        "DROP TABLE t",
        CREATE,
    ),
}


@pytest.mark.parametrize("steps", WITHOUT_ROWS.values(), ids=WITHOUT_ROWS)
def test_a_table_that_never_had_a_row_may_be_created_again(
    origin: Origin, restarts: bool, steps: tuple[str, ...]
) -> None:
    read = played(origin, (*steps, "INSERT INTO t (id) VALUES (1)"), restarts)
    assert (changes(read), [note for note in notes(read) if "re-sync" in note]) == ([("c", 1)], [])
    error = refusal(lambda: played(origin, ("DROP TABLE t", CREATE), restarts=False, before=read))
    assert error.code == "source.unlogged_change"


ROWS = {
    "inserted and deleted": (CREATE, "INSERT INTO t VALUES (1, 1)", "DELETE FROM t"),
    "from another table": ("CREATE TABLE o (id INT PRIMARY KEY, c INT)", "INSERT INTO o VALUES (1, 1)",
                           "RENAME TABLE o TO t"),
    "by a query": ("CREATE TABLE t (PRIMARY KEY (id)) SELECT 1 AS id, 1 AS c",),
}  # fmt: skip


@pytest.mark.parametrize("how", ROWS)
def test_one_that_had_rows_in_any_way_may_not(origin: Origin, restarts: bool, how: str) -> None:
    read = played(origin, ROWS[how], restarts, on_unlogged_change="record")
    error = refusal(lambda: played(origin, ("DROP TABLE t", CREATE), restarts, before=read))
    assert (error.code, "earlier table" in error.what) == ("source.unlogged_change", True)


def test_a_database_that_is_dropped_with_captured_tables_nobody_has_seen_is_noted(
    origin: Origin, restarts: bool
) -> None:
    if restarts:
        return  # what is asked at the start of each process sees them
    origin.execute(CREATE)
    start = origin.end()
    origin.execute_on_server(f"DROP DATABASE {origin.name}", f"CREATE DATABASE {origin.name}")
    for include in (rf"{origin.name}\..*", rf"{origin.name}\.t"):
        (note,) = notes(origin.drain(start, include=[include]))
        assert f"DROP DATABASE {origin.name}" in note
        assert "no table in it is known" in note
    for include in (r"another\..*", rf"x{origin.name}_\d+\.t", rf"{origin.name}_\.t"):
        assert notes(origin.drain(start, include=[include])) == []


def test_a_table_that_was_there_before_reading_began_has_a_former_life_without_a_row(
    origin: Origin, restarts: bool
) -> None:
    origin.execute(CREATE, "INSERT INTO t VALUES (1, 1)")
    steps = ("CREATE TABLE u (id INT PRIMARY KEY)", "DROP DATABASE", "CREATE DATABASE", CREATE)
    if restarts:  # the others see the table no more when they begin
        assert refusal(lambda: played(origin, steps, restarts)).code == "source.unlogged_change"


def test_a_statement_that_begins_where_reading_began_defines_its_table(origin: Origin) -> None:
    origin.execute("CREATE TABLE t (id INT PRIMARY KEY, a INT, b INT)")
    with origin.stream(origin.end(), on_unlogged_change="record") as stream:
        list(stream.blocks(lambda: True))
        origin.execute("ALTER TABLE t CHANGE a b INT, CHANGE b a INT", "INSERT INTO t VALUES (1, 2, 3)")
        read = read_to(stream, origin.end().position)
    (row,) = rows_in(read)
    assert {name: row[name] for name in ("id", "a", "b")} == {"id": 1, "b": 2, "a": 3}


COLUMNS = {
    "dropped, then added": ("ALTER TABLE t DROP COLUMN c", "ALTER TABLE t ADD COLUMN C INT NULL"),
    "dropped and added at once": ("ALTER TABLE t DROP c, ADD (d INT, c INT)",),
    "renamed, then added": ("ALTER TABLE t CHANGE c x INT", "ALTER TABLE t ADD c INT"),
    "dropped, and another one renamed": (
        "ALTER TABLE t ADD x INT", "ALTER TABLE t DROP c", "ALTER TABLE t RENAME COLUMN x TO c",
    ),
}  # fmt: skip


@pytest.mark.parametrize("steps", COLUMNS.values(), ids=COLUMNS)
def test_a_column_that_is_added_again_is_an_unlogged_change_and_its_old_values_are_past(
    origin: Origin, steps: tuple[str, ...], restarts: bool
) -> None:
    steps = (CREATE, "INSERT INTO t VALUES (1, 5)", *steps)
    assert refusal(lambda: played(origin, steps, restarts)).code == "source.unlogged_change"
    read = played(origin, [step.replace(" t", " u") for step in steps], restarts, on_unlogged_change="record")
    marks = [definition for block in read for definition in block.definitions if definition.emptied]
    assert [(mark.schema.table, mark.emptied[0].lower()) for mark in marks] == [("u", "c")]
    assert marks[0].ts_us > 0
    assert len([note for note in notes(read) if "needs re-sync" in note]) == 1 + ("CHANGE" in steps[2])


def test_columns_that_were_never_dropped_are_added_without_a_stop(origin: Origin, restarts: bool) -> None:
    steps = (
        CREATE, "INSERT INTO t VALUES (1, 5)", "ALTER TABLE t ADD d INT", "ALTER TABLE t DROP c",
        "ALTER TABLE t ADD e INT, ADD INDEX c (e)", "ALTER TABLE t DROP INDEX c, DROP d",
        "INSERT INTO t VALUES (2, 5)",
    )  # fmt: skip
    assert changes(played(origin, steps, restarts)) == [("c", 1), ("c", 2)]
