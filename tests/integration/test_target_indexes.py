"""Indexes that are dropped before a large first load are all there in the end, whoever is killed or refused."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pymysql
import pytest

from cdc_core.config import Pipeline
from cdc_core.errors import Refused, RetryLater
from cdc_core.mysql.connections import parse_url
from cdc_core.targets.bookkeeping import indexes
from cdc_core.targets.bookkeeping.indexes import IndexedTable, build_due, built_after, settle, with_due
from cdc_core.targets.bookkeeping.table_states import tables_locked
from cdc_core.targets.tables.make_tables import Actions
from cdc_core.targets.writing.load import altering_session
from tests.integration.test_target_create import Pair, pair_of
from tests.lab.refusals import raises
from tests.lab.target_rows import opened_destination
from tests.lab.waiting import wait_until
from tests.unit.binlog.reading import known_schema

ROOT = Path(__file__).parents[2]
COLUMNS = (
    "id BIGINT NOT NULL PRIMARY KEY, n INT, code VARCHAR(20) COLLATE utf8mb4_bin NOT NULL, note VARCHAR(40), body TEXT,"
    " UNIQUE KEY `code` (code), KEY `by_n` (n, id), KEY `the ``note` (note(5), n), KEY `hidden` (note, id) {hidden},"
    " FULLTEXT KEY `words` (body)"
)
WAIT = ["by_n", "hidden", "the `note"]
ALL = ["PRIMARY", "by_n", "code", "hidden", "the `note", "words"]


LINE_ENDS = ("\\n", "\x0b", "\x1c", "\x85", "\u2028")


class Killed(BaseException):
    """What no handler of an error takes."""


@dataclass(frozen=True)
class Made:
    """A table that Lockstep has made. url: of an account that runs use."""

    pair: Pair
    pipeline: Pipeline
    url: str

    @property
    def table(self) -> IndexedTable:
        return IndexedTable(parse_url(self.url, where="test"), "env:TARGET", self.pair.made, "t")

    @property
    def places(self) -> dict[str, list[tuple[str, str]]]:
        return {"env:TARGET": [(self.pair.made, "t")]}

    def on(self, *statements: str) -> list[tuple[Any, ...]]:
        return self.pair.on_target(*statements)

    @property
    def definition(self) -> str:
        return str(self.on(f"SHOW CREATE TABLE {self.pair.made}.t")[0][1])

    @property
    def names(self) -> list[str]:
        found = self.on(
            f"SELECT DISTINCT INDEX_NAME FROM information_schema.STATISTICS WHERE TABLE_SCHEMA = '{self.pair.made}' "
            "AND TABLE_NAME = 't'"
        )
        return sorted(name for (name,) in found)

    @property
    def noted(self) -> list[str]:
        return [due for (due,) in self.on(f"SELECT due FROM {self.pair.made}._lockstep_table WHERE due IS NOT NULL")]

    @property
    def due(self) -> list[IndexedTable]:
        return with_due(self.places)

    def load(self, *ids: int) -> None:
        rows = ", ".join(f"({id}, {id}, 'c{id}', 'a note', 'a body')" for id in ids)
        self.on(f"INSERT INTO {self.pair.made}.t (id, n, code, note, body) VALUES {rows}")

    def lose(self, *ids: int) -> None:
        """A load of these rows is killed: the indexes are due."""
        with suppress(Killed), built_after([self.table]):
            if ids:
                self.load(*ids)
            raise Killed

    def prepare(self) -> None:
        """As every job of a run does."""
        schema = known_schema(self.pair.source, self.pair.database, "t")
        opened_destination(self.pipeline.targets[0], f"{self.pair.database}.t", [schema])

    def create(self, *, dry: bool = False) -> Any:
        return self.pair.create(self.pipeline, Actions(dry=dry))[f"{self.pair.made}.t"]


ON_MYSQL = pytest.mark.parametrize("made", ["mysql9"], indirect=True)
"""For what does not depend on how a server defines and alters indexes."""


@pytest.fixture(params=("mysql9", "mariadb_target"))
def made(request: pytest.FixtureRequest) -> Iterator[Made]:
    server = request.getfixturevalue(request.param)
    with pair_of(server, server) as pair:
        hidden = "IGNORED" if server.mariadb else "INVISIBLE"
        pair.on_source(f"CREATE TABLE t ({COLUMNS.format(hidden=hidden)})")
        pipeline = pair.pipeline()
        found = Made(pair, pipeline, server.url)
        assert found.create().state == "created"
        assert (found.names, found.noted) == (ALL, ["[]"])
        yield found


def test_a_large_first_load_meets_no_ordinary_index_and_leaves_all(made: Made) -> None:
    before = made.definition
    with built_after([made.table]):
        assert made.names == [name for name in ALL if name not in WAIT]
        made.load(1, 2)
    assert (made.definition, made.noted, made.due) == (before, [], [])
    made.on(f"DELETE FROM {made.pair.made}.t")
    with built_after([made.table]):
        assert made.names == ALL, "only once"


def add_others(made: Made) -> None:
    """Indexes that are easily lost or changed: whose names are in another order than they are, that another one makes
    superfluous, of other kinds, and with comments that have line ends."""
    geometry = "ADD place POINT NOT NULL, ADD KEY first_of_all (n), ADD SPATIAL KEY `where` (place)"
    plain = "ADD KEY second_code (code), ADD KEY again (n), ADD KEY once_more (n DESC), ADD KEY `id` (id)"
    odd = ", ".join(f"ADD KEY `odd{at}` (note({at + 1})) COMMENT 'a{sign}b,'" for at, sign in enumerate(LINE_ENDS))
    made.on(f"ALTER TABLE {made.pair.made}.t {geometry}, {plain}, {odd}")
    if not made.pair.target.mariadb:
        made.on(
            f"ALTER TABLE {made.pair.made}.t ADD KEY computed ((n + 1))",
            f"ALTER TABLE {made.pair.made}.t ADD KEY z (n)",
        )


def test_a_table_is_defined_as_before_whatever_indexes_it_has(made: Made) -> None:
    add_others(made)
    before = made.definition
    with built_after([made.table]):
        stay = {"PRIMARY", "code", "words", "by_n", "the `note", "hidden", "first_of_all", "where"}
        assert set(made.names) - {"computed"} == stay, "up to the SPATIAL one they keep their places"
        made.on(f"INSERT INTO {made.pair.made}.t (id, n, code, place) VALUES (1, 1, 'c', POINT(1, 1))")
    assert (made.definition, made.noted) == (before, [])


@pytest.mark.parametrize("of", ["the child", "the parent"])
def test_indexes_stay_where_a_foreign_key_needs_one(made: Made, of: str) -> None:
    other = f"{made.pair.made}.other"
    if of == "the child":
        made.on(
            f"CREATE TABLE {other} (n INT PRIMARY KEY)",
            f"ALTER TABLE {made.pair.made}.t ADD FOREIGN KEY (n) REFERENCES {other} (n)",
        )
    else:
        allowed = [] if made.pair.target.mariadb else ["SET restrict_fk_on_non_standard_key = OFF"]
        made.on(*allowed, f"CREATE TABLE {other} (n INT, FOREIGN KEY (n) REFERENCES {made.pair.made}.t (n))")
    before = made.definition
    with built_after([made.table]):
        assert made.definition == before
        made.on("SET foreign_key_checks = 0", f"INSERT INTO {made.pair.made}.t (id, n, code) VALUES (1, 1, 'c')")
        if of == "the parent":
            made.on(f"INSERT INTO {other} VALUES (1)")
    assert (made.definition, made.noted) == (before, [])
    if of == "the parent":
        made.on(f"DROP TABLE {other}")


@ON_MYSQL
def test_a_table_that_has_rows_or_was_made_by_others_keeps_its_indexes(made: Made) -> None:
    made.load(1)
    with built_after([made.table]):
        assert made.names == ALL
    assert made.noted == ["[]"]
    made.on(f"DELETE FROM {made.pair.made}.t", f"UPDATE {made.pair.made}._lockstep_table SET due = NULL")
    with built_after([made.table]):
        assert made.names == ALL
    made.on(f"DROP TABLE {made.pair.made}._lockstep_table")
    with built_after([made.table]):
        assert made.names == ALL


@ON_MYSQL
@pytest.mark.parametrize(("by", "loaded"), [("a job of a run", (1, 2)), ("target create", (1, 2)), ("a cutover", ())])
def test_whoever_comes_after_a_kill_builds_what_is_due(made: Made, loaded: tuple[int, ...], by: str) -> None:
    before = made.definition
    made.lose(*loaded)
    assert (made.names, made.due) == ([name for name in ALL if name not in WAIT], [made.table])
    differences = [difference.what for difference, _ in made.create(dry=True).differences]
    assert any("are due" in what and all(name in what for name in WAIT) for what in differences)
    assert made.due == [made.table], "--dry-run has built them"
    if by == "a job of a run":
        made.prepare()
    elif by == "target create":
        assert made.create().differences == ()
    else:
        settle(made.places)
    assert (made.definition, made.noted) == (before, [])


@ON_MYSQL
def test_a_kill_between_the_note_and_the_drop_changes_nothing(made: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    before = made.definition
    with monkeypatch.context() as patched:

        def killed(connection: Any, database: str, table: str) -> None:
            raise Killed

        patched.setattr(indexes, "build", killed)
        patched.setattr(indexes, "DROP_WAIT_S", "1, no_such_variable = 1")  # the statement before the drop fails
        with suppress(Killed), built_after([made.table]):
            raise AssertionError
    assert (made.definition, made.due) == (before, [made.table])
    made.prepare()
    assert (made.definition, made.noted) == (before, [])


LOADING = """
import sys
from cdc_core.mysql.connections import parse_url
from cdc_core.targets.bookkeeping.indexes import IndexedTable, built_after
table = IndexedTable(parse_url(sys.argv[1], where="test"), "env:TARGET", sys.argv[2], "t")
with built_after([table]):
    print("loading", flush=True)
    sys.stdin.readline()
    print("loaded", flush=True)
"""


def test_a_process_that_is_killed_while_it_builds_leaves_a_table_that_is_completed(made: Made) -> None:
    before = made.definition
    process = subprocess.Popen(
        [sys.executable, "-c", LOADING, made.url, made.pair.made], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        text=True, cwd=ROOT,
    )  # fmt: skip
    assert process.stdin
    assert process.stdout
    with process:
        assert process.stdout.readline() == "loading\n"
        made.load(1, 2)
        with reading(made):
            process.stdin.write("\n")
            process.stdin.flush()
            assert process.stdout.readline() == "loaded\n"
            wait_until(lambda: waits_for_the_table(made))
            os.kill(process.pid, signal.SIGKILL)
            process.wait(30)
            assert made.due == [made.table]
    # The server may still be executing the statement of the process that is gone.
    wait_until(lambda: made.prepare() or not made.noted)
    assert made.definition == before
    assert made.on(f"SELECT id FROM {made.pair.made}.t ORDER BY id") == [(1,), (2,)]


@contextmanager
def reading(made: Made) -> Iterator[None]:
    """A transaction that has read the table, so that it cannot be altered."""
    with made.pair.target.connect() as connection, connection.cursor() as cursor:
        connection.begin()
        cursor.execute(f"SELECT * FROM {made.pair.made}.t")
        yield
        connection.rollback()


def waits_for_the_table(made: Made) -> bool:
    return any(
        "metadata lock" in str(state)
        for (state,) in made.on(
            f"SELECT STATE FROM information_schema.PROCESSLIST WHERE INFO LIKE 'ALTER%{made.pair.made}%'"
        )
    )


def test_a_table_that_somebody_reads_keeps_its_indexes_or_gets_them_later(
    made: Made, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(indexes, "DROP_WAIT_S", 1)
    monkeypatch.setattr(indexes, "BUILD_TRIES", 1)
    before = made.definition
    with built_after([made.table]):
        made.load(1)
        with reading(made):
            build_due([made.table])  # gives up
        assert made.due == [made.table]
    assert (made.definition, made.noted) == (before, [])
    made.on(f"DELETE FROM {made.pair.made}.t", f"UPDATE {made.pair.made}._lockstep_table SET due = '[]'")
    with reading(made), built_after([made.table]):
        assert made.names == ALL
    assert made.definition == before


@ON_MYSQL
def test_who_reads_the_table_hardly_waits_for_indexes_that_wait_for_others(
    made: Made, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(indexes, "BUILD_TRIES", 4)
    before = made.definition
    made.lose(1)
    building = threading.Thread(target=build_due, args=([made.table],))
    with reading(made):
        building.start()
        wait_until(lambda: waits_for_the_table(made))
        assert made.on("SET SESSION lock_wait_timeout = 30", f"SELECT id FROM {made.pair.made}.t") == [(1,)]
        building.join()
        assert made.due == [made.table]
    made.prepare()
    assert (made.definition, made.noted) == (before, [])


@ON_MYSQL
def test_while_another_run_writes_the_table_nothing_is_dropped_or_built(made: Made) -> None:
    with altering_session(made.table.server, "test") as session, session.cursor() as cursor:
        with tables_locked(cursor, [made.table.name]), built_after([made.table]):
            assert (made.names, made.noted) == (ALL, ["[]"])
        made.lose()
        with tables_locked(cursor, [made.table.name]):
            made.prepare()
            assert made.due == [made.table]
    made.prepare()
    assert (made.names, made.noted) == (ALL, [])


@ON_MYSQL
@pytest.mark.parametrize("at", ["drop", "build", "cutover"])
def test_a_process_that_is_stopped_keeps_nobody_from_the_table(
    made: Made, monkeypatch: pytest.MonkeyPatch, at: str
) -> None:
    before = made.definition
    if at != "drop":
        made.lose()
    others: list[int] = []

    def stopped(*arguments: Any, of: Any = indexes.read_definitions) -> Any:
        """Until another process has got the lock that this one has."""
        with (
            altering_session(made.table.server, "test") as session,
            session.cursor() as cursor,
            tables_locked(cursor, [made.table.name]),
        ):
            others.append(1)
        return of(*arguments)

    with monkeypatch.context() as patched:
        patched.setattr(indexes, "IDLE_S", 1)
        patched.setattr(indexes, "read_definitions", stopped)
        if at == "drop":
            with built_after([made.table]):
                assert (others, made.definition) == ([1], before)
        else:
            with pytest.raises(RetryLater):
                build_due([made.table]) if at == "build" else settle(made.places)
            assert (others, made.due) == ([1], [made.table])
    settle(made.places)
    assert (made.definition, made.noted) == (before, [])


@ON_MYSQL
def test_what_is_there_already_is_not_added_again(made: Made) -> None:
    made.lose()
    made.on(f"ALTER TABLE {made.pair.made}.t ADD KEY BY_N (id, code), ADD KEY other (note(5), n)")
    made.prepare()
    assert (made.names, made.noted) == (["BY_N", "PRIMARY", "code", "hidden", "other", "words"], [])


@ON_MYSQL
def test_another_index_that_has_the_name_is_left_alone_and_is_said(
    made: Made, caplog: pytest.LogCaptureFixture
) -> None:
    made.lose()
    made.on(f"ALTER TABLE {made.pair.made}.t ADD KEY by_n (id, code)")
    made.prepare()
    assert "its index is not built, since another one has its name: KEY `by_n` (`n`,`id`)" in caplog.text
    assert "hidden" not in caplog.text


@ON_MYSQL
def test_an_index_that_the_table_does_not_take_is_named_and_stays_due_until_it_is_altered(made: Made) -> None:
    made.lose()
    made.on(f"ALTER TABLE {made.pair.made}.t MODIFY note LONGTEXT")
    for build in (lambda: build_due([made.table]), lambda: settle(made.places)):
        with pytest.raises(Refused) as refused:
            build()
        assert (refused.value.code, refused.value.where) == ("target.definition", made.table.name)
    assert made.due == [made.table]
    made.on(f"ALTER TABLE {made.pair.made}.t ADD KEY hidden (note(9), id)")
    build_due([made.table])
    assert (made.names, made.noted) == (ALL, [])


@ON_MYSQL
def test_no_type_is_altered_while_indexes_are_due(made: Made) -> None:
    made.pair.on_source("ALTER TABLE t DROP KEY hidden, MODIFY note TEXT, ADD more INT")
    made.lose()
    with (
        altering_session(made.table.server, "test") as session,
        session.cursor() as cursor,
        tables_locked(cursor, [made.table.name]),
    ):
        done = made.pair.create(made.pipeline, Actions(alter=True))[made.table.name]
    assert [statement for statement in done.statements if "note" in statement] == []
    assert any("note" in sql for _, sql in done.differences)
    assert "`more` int" in made.definition
    assert "`note` varchar(40)" in made.definition
    build_due([made.table])
    assert (made.names, made.noted) == (ALL, [])


@ON_MYSQL
def test_an_index_whose_column_is_gone_stops_nothing(made: Made) -> None:
    made.lose()
    made.on(f"ALTER TABLE {made.pair.made}.t RENAME COLUMN n TO m")
    settle(made.places)
    assert (made.names, made.noted) == (["PRIMARY", "code", "hidden", "words"], [])


@ON_MYSQL
def test_an_index_that_somebody_adds_at_the_same_moment_is_found(made: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    made.lose()
    found = indexes.read_definitions

    def late(*arguments: Any) -> Any:
        there = found(*arguments)
        if "by_n" not in made.names:
            made.on(f"ALTER TABLE {made.pair.made}.t ADD KEY by_n (n, id)")
        return there

    monkeypatch.setattr(indexes, "read_definitions", late)
    made.prepare()
    assert (made.names, made.noted) == (ALL, [])


@ON_MYSQL
def test_without_space_for_temporary_files_the_table_is_copied(made: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    before, statements = made.definition, []

    def execute(cursor: Any, sql: str, arguments: Any = None, of: Any = pymysql.cursors.Cursor.execute) -> Any:
        if sql.startswith("ALTER TABLE") and " ADD KEY " in sql:
            statements.append(sql)
            if "ALGORITHM=COPY" not in sql:
                raise pymysql.err.OperationalError(1878, "Temporary file write failure.")
        return of(cursor, sql, arguments)

    monkeypatch.setattr(pymysql.cursors.Cursor, "execute", execute)
    with built_after([made.table]):
        made.load(1, 2)
    assert len(statements) == 2
    assert (made.definition, made.noted) == (before, [])


@ON_MYSQL
def test_two_at_once_build_once(made: Made) -> None:
    made.lose()
    threads = [threading.Thread(target=settle, args=(made.places,)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (made.names, made.noted) == (ALL, [])


@ON_MYSQL
def test_an_account_that_may_not_alter_keeps_the_indexes_and_is_told_what_it_lacks_if_they_are_due(made: Made) -> None:
    name = f"u{made.pair.made[2:12]}"
    made.on(
        f"CREATE USER {name}@'%' IDENTIFIED BY 'secret'",
        f"GRANT SELECT, INSERT, UPDATE, DELETE ON {made.pair.made}.* TO {name}@'%'",
    )
    try:
        server = made.pair.target
        url = f"mysql://{name}:secret@{server.host}:{server.port}"
        limited = IndexedTable(parse_url(url, where="test"), "env:TARGET", made.pair.made, "t")
        with built_after([limited]):
            assert made.names == ALL
        assert made.noted == []
        made.on(f"UPDATE {made.pair.made}._lockstep_table SET due = '[]'")
        made.lose()
        with raises(Refused, "connection.grant"):
            build_due([limited])
        assert made.due == [made.table]
    finally:
        made.on(f"DROP USER {name}@'%'")
    made.prepare()
    assert made.names == ALL


@ON_MYSQL
def test_a_table_that_is_dropped_and_created_again_begins_again(made: Made) -> None:
    before = made.definition
    made.lose()
    made.on(f"DROP TABLE {made.pair.made}.t")
    settle(made.places)
    assert made.noted == []
    assert made.create().state == "created"
    assert (made.definition, made.noted) == (before, ["[]"])


@ON_MYSQL
def test_a_cutover_begins_once_no_other_process_writes_the_table_and_no_index_waits_from_then_on(
    made: Made, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(indexes, "SETTLE_WAIT_S", 1)
    with (
        altering_session(made.table.server, "test") as session,
        session.cursor() as cursor,
        tables_locked(cursor, [made.table.name]),
        raises(RetryLater, "target.busy"),
    ):
        settle(made.places)
    assert made.noted == ["[]"]
    settle(made.places)
    with built_after([made.table]):
        assert made.names == ALL
