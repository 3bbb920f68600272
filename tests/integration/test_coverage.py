"""Which tables are staged with every row: known from the stage alone, on both servers."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from cdc_core.errors import Refused
from cdc_core.model.coverage import How
from cdc_core.operations.copy.pending import pending
from cdc_core.source.host.table_survey import proven_empty
from cdc_core.stage.as_of import AsOf
from cdc_core.stage.sql_views import sql
from cdc_core.stage.staged_coverage import coverage_of
from tests.integration.one_server import FIRST_MARIADB, ON_MARIADB, ON_MYSQL
from tests.lab.copying import copy, pending_tables
from tests.lab.databases import fresh_name
from tests.lab.lab import Lab
from tests.lab.origin import Origin
from tests.lab.pipeline_file import JOINED
from tests.lab.refusals import raises
from tests.lab.staged_tables import changes, export

ROWS = "CREATE TABLE {} (id INT PRIMARY KEY, v INT)"


def test_rows_from_before_the_start_make_a_table_partial_and_its_state_is_refused(
    origin: Origin, make_line: Callable[..., Lab], tmp_path: Path
) -> None:
    origin.execute(ROWS.format("old"), ROWS.format("bare"), ROWS.format("quiet"), ROWS.format("emptied"))
    origin.execute(*(f"INSERT INTO {table} VALUES (1, 1), (2, 2)" for table in ("old", "quiet", "emptied")))
    line = make_line()
    origin.execute(
        "UPDATE old SET v = 9 WHERE id = 1", "INSERT INTO bare VALUES (7, 7)", ROWS.format("fresh"),
        "INSERT INTO fresh VALUES (3, 3)", "DELETE FROM emptied",
    )  # fmt: skip
    covered = line.drain()
    assert covered == {
        "old": How.EXISTING, "quiet": How.EXISTING, "bare": How.EXISTING, "fresh": How.CREATED, "emptied": How.EMPTY,
    }  # fmt: skip
    assert "from before" in line.refuses("old")
    assert "(source shop)" in line.refuses("quiet")  # nothing of it is staged
    assert line.ids("old", partial=True) == [1]
    assert line.ids("fresh") == [3]
    assert line.ids("emptied") == []
    assert changes(line.store, line.chain, "old").num_rows == 1
    with raises(Refused, "stage.partial") as caught:
        export(line.store, line.chain, "old", tmp_path / "old.parquet")
    assert not (tmp_path / "old.parquet").exists()
    by_source = {"shop": line.chain}
    for query in ("SELECT count(*) FROM old", "SELECT count(*) FROM bare WHERE id < 0", "SELECT id FROM old LIMIT 1"):
        with raises(Refused, "stage.partial") as caught:
            sql(line.store, by_source, query)
        assert "--partial" in caught.value.remedy
    assert sql(line.store, by_source, "SELECT count(*) n FROM old_changes").to_pylist() == [{"n": 1}]
    assert sql(line.store, by_source, "SELECT count(*) n FROM old", partial=True).to_pylist() == [{"n": 1}]


@ON_MYSQL
def test_a_table_that_is_empty_at_the_start_is_whole_and_stays_so_when_meta_is_rebuilt(
    origin: Origin, make_line: Callable[..., Lab]
) -> None:
    origin.execute(ROWS.format("bare"), ROWS.format("old"), "INSERT INTO old VALUES (1, 1)")
    line = make_line()
    with line.extractor():
        pass  # killed before anything was staged: what it saw is found out again
    line.drain()
    origin.execute("INSERT INTO bare VALUES (1, 1)", "UPDATE old SET v = 2")
    assert line.drain() == {"bare": How.EMPTY, "old": How.EXISTING}
    assert line.ids("bare") == [1]
    before = line.coverage
    line.lose_meta()
    line.rebuild()
    assert line.coverage == before
    origin.execute("INSERT INTO bare VALUES (2, 2)")
    assert line.drain() == before
    assert line.ids("bare") == [1, 2]


def test_what_happens_to_a_table_in_the_log_makes_it_whole_or_partial(
    origin: Origin, make_line: Callable[..., Lab]
) -> None:
    tables = ("cut", "dropped", "renamed", "kept", "truncated")
    origin.execute(*(ROWS.format(table) for table in tables))
    origin.execute(*(f"INSERT INTO {table} VALUES (1, 1)" for table in tables))
    line = make_line(tables="on_unlogged_change: record, on_truncate: stage")
    line.drain()
    origin.execute(
        "TRUNCATE cut", "INSERT INTO cut VALUES (5, 5)",
        "DROP TABLE dropped", ROWS.format("dropped"), "INSERT INTO dropped VALUES (6, 6)",
        "RENAME TABLE renamed TO other",
        "CREATE TABLE IF NOT EXISTS kept (id INT PRIMARY KEY, v INT)", "UPDATE kept SET v = 2",
        "CREATE TABLE IF NOT EXISTS late (id INT PRIMARY KEY, v INT)", "INSERT INTO late VALUES (8, 8)",
        "CREATE TABLE copied AS SELECT * FROM cut",
    )  # fmt: skip
    covered = line.drain()
    assert covered["cut"] is How.TRUNCATED
    assert covered["dropped"] is How.TRUNCATED  # its former rows are removed where the new table begins
    assert line.ids("dropped") == [6]
    assert covered["renamed"] is covered["other"] is How.UNLOGGED
    assert covered["kept"] is How.EXISTING
    assert covered["copied"] is How.CREATED
    assert line.ids("cut") == [5]
    assert line.ids("copied") == [5]
    # The account sees every table, so that `late` is known not to have existed before the statement.
    assert covered["late"] is How.CREATED
    assert line.ids("late") == [8]


@ON_MYSQL
def test_nothing_is_missing_of_a_name_that_a_table_had_only_on_its_way(
    origin: Origin, make_line: Callable[..., Lab]
) -> None:
    origin.execute(ROWS.format("a"), ROWS.format("b"), "INSERT INTO a VALUES (1, 1)")
    line = make_line(tables="on_unlogged_change: record")
    line.drain()
    origin.execute("RENAME TABLE a TO c, b TO a, c TO b")
    assert line.drain() == {"a": How.UNLOGGED, "b": How.UNLOGGED}
    origin.execute(ROWS.format("c"), "INSERT INTO c VALUES (1, 1)")  # the first table of that name
    assert line.drain()["c"] is How.CREATED


@ON_MARIADB
def test_no_copy_is_due_of_a_table_that_a_session_without_log_dropped_until_it_is_there_again(
    origin: Origin, make_line: Callable[..., Lab]
) -> None:
    tables = ("changed", "old")
    origin.execute(
        *(ROWS.format(table) for table in tables), *(f"INSERT INTO {table} VALUES (1, 1)" for table in tables)
    )
    line = make_line(tables="on_unlogged_change: resync")
    line.drain()
    origin.execute("ALTER TABLE changed ADD w INT NOT NULL DEFAULT 5")

    def due() -> list[str]:
        origin.execute("CREATE TABLE another (id INT)", "DROP TABLE another")  # a batch, which says what is known
        line.drain()
        return [table.name.rpartition(".")[2] for table in pending(line.meta, "shop")]

    assert due() == ["changed", "old"]
    origin.execute("SET sql_log_bin = 0", "DROP TABLE changed", "DROP TABLE old")
    assert due() == []
    coverage = coverage_of(line.store, "shop", line.chain)
    assert all(coverage[f"{origin.name}.{table}"].gone for table in tables)
    assert "without row events" in line.refuses("changed")
    origin.execute("SET sql_log_bin = 0", ROWS.format("changed"), "INSERT INTO changed VALUES (1, 1)")
    assert due() == ["changed"]
    origin.execute("CREATE TABLE IF NOT EXISTS old (id INT PRIMARY KEY, v INT)")
    assert due() == ["changed"]


RULES = "rows: [{match: '.*[.]t', where: v < 9}], columns: {exclude: ['.*[.]t[.]w'], mask: [], salt: env:SALT}"
EDITS = {
    "route": {"routes": r"[{match: '.*[.]t', to: moved}, {match: '.*[.](?!t$)(.*)', to: '\1'}]"},
    "wider condition": {"tables": RULES.replace("v < 9", "v < 99")},
    "narrower condition": {"tables": RULES.replace("v < 9", "v < 3")},
    "column": {"tables": RULES.replace("exclude: ['.*[.]t[.]w']", "exclude: []")},
    "mask": {"tables": RULES.replace("mask: []", "mask: ['.*[.]t[.]v']")},
}


@FIRST_MARIADB
@pytest.mark.parametrize("edit", EDITS)
def test_a_table_whose_rules_were_edited_is_partial_until_it_is_copied_again(
    origin: Origin, make_line: Callable[..., Lab], edit: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was staged before is not what the rules say now. Patterns that match nothing of it change nothing."""
    monkeypatch.setenv("SALT", "salt")
    line = make_line(tables=RULES)
    origin.execute("CREATE TABLE t (id INT PRIMARY KEY, v INT, w INT)", ROWS.format("other"))
    origin.execute("INSERT INTO t VALUES (1, 1, 1), (5, 5, 5), (9, 9, 9)", "INSERT INTO other VALUES (1, 1)")
    assert line.drain() == {"t": How.CREATED, "other": How.CREATED}
    line.change(tables=f"include: ['none[.]none', '{origin.name}[.].*']")
    assert line.drain() == {"t": How.CREATED, "other": How.CREATED}
    assert line.ids("t") == [1, 5]
    line.change(**EDITS[edit])
    origin.execute("INSERT INTO t VALUES (0, 0, 0)", "DELETE FROM t WHERE id = 5")
    assert line.drain() == {"t": How.OTHER_RULES, "other": How.CREATED}
    assert line.drain() == {"t": How.OTHER_RULES, "other": How.CREATED}
    now = "moved" if edit == "route" else "t"
    assert "under other rules" in line.refuses(now)
    assert line.ids("other") == [1]
    assert line.ids("t", as_of=AsOf(position=line.chain[0].end.position)) == [1, 5]
    assert pending_tables(line) == [f"{origin.name}.t"]
    copy(line)
    assert line.coverage == {"t": How.COPIED, "other": How.CREATED}
    assert line.ids(now) == ([0, 1, 9] if edit == "wider condition" else [0, 1])
    if edit == "route":
        assert "routed elsewhere" in line.refuses("t")
    assert line.drain() == {"t": How.COPIED, "other": How.CREATED}


def test_edited_rules_are_noticed_by_an_account_that_may_read_the_captured_database_alone(
    origin: Origin, make_line: Callable[..., Lab]
) -> None:
    """It cannot tell whether it sees every table; also from the stage alone."""
    user = fresh_name()
    origin.execute_on_server(
        f"CREATE USER {user}@'%' IDENTIFIED BY 'Reader-1x'",
        f"GRANT REPLICATION SLAVE, REPLICATION CLIENT ON *.* TO {user}@'%'",
        f"GRANT SELECT ON {origin.name}.* TO {user}@'%'",
    )
    line = make_line(tables="rows: [{match: '.*[.]t', where: v < 9}]")
    line.environ["SOURCE"] = f"mysql://{user}:Reader-1x@{origin.sql.host}:{origin.sql.port}"

    def drain(expected: How) -> None:
        with line.extractor() as extractor:
            extractor.drain()
        assert line.meta.coverages.find("shop").surveyed.seq == 0
        assert line.coverage == {"t": expected}

    try:
        origin.execute(ROWS.format("t"), "INSERT INTO t VALUES (1, 1), (9, 9)")
        drain(How.CREATED)
        drain(How.CREATED)
        line.lose_meta()
        line.rebuild()
        line.change(tables="rows: [{match: '.*[.]t', where: v < 99}]")
        origin.execute("INSERT INTO t VALUES (2, 2)")
        drain(How.OTHER_RULES)
        drain(How.OTHER_RULES)
        line.refuses("t")
    finally:
        origin.execute_on_server(f"DROP USER {user}@'%'")


@ON_MARIADB
def test_a_table_that_existed_before_the_pipeline_captured_it_is_partial_although_the_log_seems_to_create_it(
    origin: Origin, make_line: Callable[..., Lab]
) -> None:
    only, every = f"include: ['{origin.name}[.]a']", f"include: ['{origin.name}[.].*']"
    line = make_line(tables=only)
    origin.execute(ROWS.format("a"), *(ROWS.format(table) for table in "bcd"))
    origin.execute(*(f"INSERT INTO {table} VALUES (1, 1)" for table in "abcd"))
    assert line.drain() == {"a": How.CREATED}
    guarded = "CREATE TABLE IF NOT EXISTS {} (id INT PRIMARY KEY, v INT)"
    origin.execute(guarded.format("b"), "INSERT INTO b VALUES (2, 2)", guarded.format("c"))
    line.change(tables=every)
    assert line.drain() == {"a": How.CREATED, "b": How.EXISTING, "c": How.EXISTING, "d": How.EXISTING}
    # From here on every table is known, and so is a new one.
    origin.execute(guarded.format("b"), guarded.format("d"), guarded.format("e"), "INSERT INTO e VALUES (5, 5)")
    expected = dict.fromkeys("bcd", How.EXISTING) | {"a": How.CREATED, "e": How.CREATED}
    line.change(tables="exclude: []")
    assert line.drain() == expected


@FIRST_MARIADB
def test_a_logical_table_is_whole_only_if_all_that_is_routed_to_it_is(
    origin: Origin, make_line: Callable[..., Lab]
) -> None:
    origin.execute(ROWS.format("part_1"), "INSERT INTO part_1 VALUES (1, 1)")
    line = make_line(routes=JOINED)
    names = ("part_2", "all_1", "all_2")
    origin.execute(*(ROWS.format(name) for name in names))
    origin.execute(*(f"INSERT INTO {name} VALUES ({number}, 1)" for number, name in enumerate(names, 2)))
    line.drain()
    assert "part_1" in line.refuses("part")  # which has no staged change at all
    assert line.ids("all") == [3, 4]


@FIRST_MARIADB
def test_the_state_before_a_table_became_whole_is_refused(origin: Origin, make_line: Callable[..., Lab]) -> None:
    origin.execute(ROWS.format("cut"), "INSERT INTO cut VALUES (1, 1), (2, 2)")
    line = make_line(tables="on_truncate: stage")
    origin.execute("UPDATE cut SET v = 3 WHERE id = 1")
    line.drain()
    early = line.chain[-1].end.position
    origin.execute("TRUNCATE cut", "INSERT INTO cut VALUES (5, 5)")
    line.drain()
    late = line.chain[-1].end.position
    assert line.ids("cut", as_of=AsOf(position=late)) == [5]
    line.refuses("cut", as_of=AsOf(position=early))
    # MariaDB's commit times are whole seconds: those of this test may all be one second.
    line.refuses("cut", as_of=AsOf(time_us=line.chain[0].begin.watermark_us - 1_000_000))


def test_a_row_that_is_logged_but_not_visible_yet_is_not_taken_for_an_empty_table(origin: Origin) -> None:
    """A transaction is written to the log before a plain read can see its rows."""
    origin.execute(ROWS.format("t"), ROWS.format("u"))
    with origin.control.cursor() as cursor:
        cursor.execute("SET SESSION innodb_lock_wait_timeout = 1")
    with closing(origin.sql.connect(origin.name)) as writer, writer.cursor() as cursor:
        cursor.execute("INSERT INTO t VALUES (1, 1)")  # not committed: held, as one that is being committed is
        assert not proven_empty(origin.control, origin.name, "t")
        assert proven_empty(origin.control, origin.name, "u")
        writer.rollback()
    assert proven_empty(origin.control, origin.name, "t")
    assert not proven_empty(origin.control, origin.name, "none")


def test_a_busy_table_is_never_called_empty_while_one_of_its_rows_is_missing(
    origin: Origin, make_line: Callable[..., Lab]
) -> None:
    """Rows come and go while pipelines begin: what is called whole must equal the source."""
    origin.execute(ROWS.format("busy"))
    stop = threading.Event()

    def work() -> None:
        with closing(origin.sql.connect(origin.name, autocommit=True)) as writer, writer.cursor() as cursor:
            number = 0
            while not stop.is_set():
                number += 1
                cursor.execute(f"INSERT INTO busy VALUES ({number}, 1)")
                cursor.execute("DELETE FROM busy WHERE id < %s", (number - number % 2,))

    thread = threading.Thread(target=work)
    thread.start()
    seen: list[How] = []
    try:
        for attempt in range(2):
            folder = make_line().folder / str(attempt)
            folder.mkdir()
            line = Lab(folder, origin)
            line.drain()
            seen.append(line.coverage.get("busy", How.EXISTING))
            end = line.chain[-1].end.position
            assert line.chain
            if seen[-1].whole:
                lowest = min(line.ids("busy", as_of=AsOf(position=end)), default=0)
                assert len(line.ids("busy")) <= 2, lowest
    finally:
        stop.set()
        thread.join()
    line.drain()
    with closing(origin.sql.connect(origin.name)) as connection, connection.cursor() as cursor:
        cursor.execute("SELECT id FROM busy ORDER BY id")
        there = [row[0] for row in cursor.fetchall()]
    if line.coverage["busy"].whole:
        assert line.ids("busy") == there
