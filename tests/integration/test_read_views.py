"""A read view on a busy server: it shows everything that the log has before its `low` and, where it is exact, no more.

Sessions raise a counter each, in every way of committing. Each view is compared with the log, as the server lists it.
"""

from __future__ import annotations

import itertools
import os
import random
import re
import time
from bisect import bisect_right
from collections.abc import Generator, Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import replace
from functools import partial
from typing import Any

import pymysql
import pytest

from cdc_core.errors import RetryLater
from cdc_core.model.position import Checkpoint, Position
from cdc_core.operations.copy import watermarks
from cdc_core.operations.copy.mariadb import checkpoint_ends, events_from
from cdc_core.operations.copy.watermarks import high_of, read_view
from cdc_core.source.host import source_server as server
from cdc_core.source.host.server_facts import logged_gtids
from cdc_core.source.schemas.captured_definitions import table_schema
from examples.sandbox.mariadb import MariaDb
from tests.integration.beside import beside
from tests.lab.origin import Origin
from tests.lab.refusals import raises
from tests.lab.waiting import wait_until

COUNTERS = 6
VIEWS = int(os.environ.get("LOCKSTEP_VIEWS", "10000"))
KINDS = ("plain", "prepared", "one phase", "detached")
_COMMIT = re.compile(r"^XA COMMIT X'(\w+)',X'',1$")
_UPDATE = re.compile(r"UPDATE (?:keyed|keyless) SET v = (\d+) WHERE id = (\d+)")
Commits = dict[int, list[tuple[Position, int]]]


def count_up(origin: Origin, table: str, counter: int, kinds: tuple[str, ...]) -> Generator[None, None, None]:
    """Raises the counter by one transaction after the other, each time it is asked."""
    chance = random.Random(counter)
    with ExitStack() as opened:
        session = opened.enter_context(writer(origin))
        for number in itertools.count(1):
            kind, xid = chance.choice(kinds), f"'{counter}-{number}'"
            update = f"UPDATE {table} SET v = {number} WHERE id = {counter}"
            commit = [] if kind == "one phase" else [f"XA PREPARE {xid}"]
            commit += [] if kind == "detached" else [f"XA COMMIT {xid}" + " ONE PHASE" * (kind == "one phase")]
            statements = [update] if kind == "plain" else [f"XA START {xid}", update, f"XA END {xid}", *commit]
            with session.cursor() as cursor:
                for statement in statements:
                    cursor.execute(statement)
            if kind == "detached":
                former = session.thread_id()
                opened.close()
                session = opened.enter_context(writer(origin))
                with session.cursor() as cursor:
                    while cursor.execute(f"SELECT 1 FROM information_schema.processlist WHERE id = {former}"):
                        time.sleep(0.001)
                    cursor.execute(f"XA COMMIT {xid}")
            yield


@contextmanager
def writer(origin: Origin) -> Iterator[pymysql.Connection[Any]]:
    with closing(origin.sql.connect(origin.name, autocommit=True)) as session:
        log_statements(session)
        yield session


def log_statements(session: pymysql.Connection[Any]) -> None:
    """Beside the rows; MariaDB does so anyway."""
    with suppress(pymysql.err.MySQLError), session.cursor() as cursor:
        cursor.execute("SET SESSION binlog_rows_query_log_events = ON")


def ask_for_status(origin: Origin) -> Generator[None, None, None]:
    """As other copiers and programs that watch the server do: with a view, and without."""
    with origin.session() as run:
        while True:
            for begin in ("START TRANSACTION WITH CONSISTENT SNAPSHOT", "DO 0"):
                run(begin, "SHOW STATUS LIKE 'binlog_snapshot_%'", "ROLLBACK")
            yield


@contextmanager
def busy(origin: Origin, table: str, kinds: tuple[str, ...]) -> Iterator[None]:
    """Writers, and others who ask for the status, until the block ends."""
    with ExitStack() as opened:
        works = [count_up(origin, table, counter, kinds) for counter in range(COUNTERS)]
        works += [ask_for_status(origin) for _ in range(2)]
        for work in works:
            opened.callback(work.close)
        with beside(*(partial(next, work) for work in works)):
            yield


def logged_commits(origin: Origin, since: Position) -> Commits:
    """Which value each counter got, and where the log has the end of that commit."""
    commits: Commits = {counter: [(since, 0)] for counter in range(COUNTERS)}
    with origin.session() as run:
        files = [str(row[0]) for row in run("SHOW BINARY LOGS")]
        for file in files[files.index(since.file) :]:
            written: dict[int, int] = {}
            for _, _, kind, _, end, info in run(f"SHOW BINLOG EVENTS IN '{file}'"):
                place = Position(0, file, max(int(end), 4))
                if (kind in ("Annotate_rows", "Rows_query")) and (update := _UPDATE.search(info)):
                    written[int(update[2])] = int(update[1])
                elif kind == "XA_prepare" and "ONE PHASE" not in info:
                    written.clear()
                elif kind in ("Xid", "XA_prepare"):
                    for counter, number in written.items():
                        commits[counter].append((place, number))
                    written.clear()
                elif kind == "Query" and (commit := _COMMIT.match(info)):
                    counter, _, number = bytes.fromhex(commit[1]).decode().partition("-")
                    commits[int(counter)].append((place, int(number)))
    return commits


def counters_of(origin: Origin, table: str, index: str) -> None:
    rows = ", ".join(f"({counter}, 0)" for counter in range(COUNTERS))
    origin.execute(
        f"CREATE TABLE {table} (id INT NOT NULL, v INT, {index} (id))",
        f"INSERT INTO {table} VALUES {rows}",
        "FLUSH BINARY LOGS",
    )


def counted(reader: pymysql.Connection[Any], table: str) -> list[int]:
    with reader.cursor() as cursor:
        cursor.execute(f"SELECT v FROM {table} ORDER BY id")
        return [int(row[0]) for row in cursor.fetchall()]


def compare_views(origin: Origin, table: str, kinds: tuple[str, ...], views: int, *, exact: bool) -> None:
    counters_of(origin, table, "KEY" if exact else "PRIMARY KEY")
    facts, schema = server.facts(origin.control), table_schema(origin.control, origin.name, table)
    assert schema is not None
    since = server.end_position(origin.control, 0)
    seen: list[tuple[Position, Position, list[int]]] = []
    with closing(origin.sql.connect(autocommit=True)) as reader, busy(origin, table, kinds):
        for number in range(views):
            end = server.end_position(origin.control, 0)
            staged = Checkpoint(end, "" if facts.mariadb else logged_gtids(origin.control, mariadb=False))
            try:
                with read_view(reader, origin.control, facts, staged, schema, exact=exact) as view:
                    rows = counted(reader, f"{origin.name}.{table}")
                    high = high_of(origin.control, view)
            except RetryLater as error:
                # A MariaDB with many XA COMMITs has no moment without one for as long as a view waits, now and then.
                if (error.code, exact, facts.mariadb) != ("snapshot.blocked", True, True):
                    raise
                continue
            # One that need not be exact is, where a MariaDB that has just begun a log file was asked under a lock.
            assert view.exact or not exact
            assert end <= view.low <= high
            seen.append((view.low, high, rows))
            if number % 50 == 49:
                origin.execute("FLUSH BINARY LOGS")
    assert seen
    commits = logged_commits(origin, since)
    assert all(len(found) > 2 for found in commits.values()), "the writers did not write beside the views"
    for low, high, rows in seen:
        for counter, value in enumerate(rows):
            found = commits[counter]
            least, most = (found[bisect_right(found, (place, 1 << 60)) - 1][1] for place in (low, high))
            assert least <= value <= most, f"counter {counter} is {value} in a view of {low} to {high}"


def test_a_view_shows_all_that_was_logged_before_its_low(origin: Origin) -> None:
    compare_views(origin, "keyed", ("plain", "prepared", "one phase"), 100, exact=False)


@pytest.mark.parametrize(("kinds", "views"), [(("plain",), 60), (("plain", "prepared", "one phase"), 4)])
def test_an_exact_view_shows_the_table_at_one_place_of_the_log(
    origin: Origin, kinds: tuple[str, ...], views: int
) -> None:
    """A MariaDB gives one where no XA COMMIT is on its way, which takes a while with as many as here."""
    compare_views(origin, "keyless", kinds, views, exact=True)


@pytest.mark.matrix
@pytest.mark.parametrize("exact", [False, True], ids=["between two places", "exact"])
@pytest.mark.parametrize("kinds", [("plain",), ("prepared",), ("one phase",), ("detached",), KINDS], ids=" or ".join)
def test_views_beside_every_way_of_committing(origin: Origin, kinds: tuple[str, ...], exact: bool) -> None:
    """LOCKSTEP_VIEWS: how many for each server."""
    rare = origin.mariadb and exact and kinds != ("plain",)
    compare_views(origin, "keyless" if exact else "keyed", kinds, VIEWS // (1000 if rare else 10), exact=exact)


def test_an_xa_transaction_that_stays_prepared_is_named(origin: Origin, monkeypatch: pytest.MonkeyPatch) -> None:
    """On MariaDB alone: MySQL says of each transaction whether it can be seen."""
    counters_of(origin, "keyed", "PRIMARY KEY")
    facts, schema = server.facts(origin.control), table_schema(origin.control, origin.name, "keyed")
    assert schema is not None
    monkeypatch.setattr(watermarks, "VISIBLE_WITHIN_S", 0.2)
    end = server.end_position(origin.control, 0)
    staged = Checkpoint(end, "" if facts.mariadb else logged_gtids(origin.control, mariadb=False))

    def read() -> Any:
        with (
            closing(origin.sql.connect(autocommit=True)) as reader,
            read_view(reader, origin.control, facts, staged, schema) as view,
        ):
            return view.low

    with origin.session() as run:
        run("XA START 'left', 'b', 7", "UPDATE keyed SET v = 1 WHERE id = 1", "XA END 'left', 'b', 7")
        run("XA PREPARE 'left', 'b', 7")
        try:
            if facts.mariadb:
                with raises(RetryLater, "snapshot.blocked", match=f"X'{b'left'.hex()}',X'62',7"):
                    read()
            else:
                assert read() == end
        finally:
            run("XA COMMIT 'left', 'b', 7")
    assert read() == end


def test_the_server_ends_the_lock_of_a_process_that_has_stopped_answering(
    origin: Origin, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A writer goes on, and what was read then is not taken for a view at one place."""
    engine = " ENGINE=MyISAM" if origin.mariadb else ""  # InnoDB needs no lock there
    origin.execute(f"CREATE TABLE keyed (id INT PRIMARY KEY, v INT){engine}", "INSERT INTO keyed VALUES (1, 0)")
    facts = replace(server.facts(origin.control), gtid_mode="OFF")
    schema = table_schema(origin.control, origin.name, "keyed")
    assert schema is not None
    staged, written = Checkpoint(server.end_position(origin.control, 0)), []
    run = watermarks.run

    def stopped(connection: Any, statement: str) -> None:
        if statement.startswith("START TRANSACTION") and not written:
            origin.execute("SET SESSION lock_wait_timeout = 60", "UPDATE keyed SET v = 1")
            written.append(statement)
        run(connection, statement)

    monkeypatch.setattr(watermarks, "run", stopped)
    with closing(origin.sql.connect(autocommit=True)) as reader:
        with raises(RetryLater, "snapshot.blocked"), read_view(reader, origin.control, facts, staged, schema):
            pass
        assert written
        with read_view(reader, origin.control, facts, staged, schema) as view:
            assert view.low > staged.position
    origin.execute("UPDATE keyed SET v = 2")


def test_an_event_about_log_files_is_known_by_its_end_also_where_it_names_one_with_a_shorter_name() -> None:
    """The number after 999999 has a digit more. The server writes of the former files once they are in the engine."""
    with MariaDb.start() as sql:
        insert = "INSERT INTO one.t VALUES ()", "FLUSH BINARY LOGS"
        sql.run("RESET MASTER TO 999998", "CREATE DATABASE one", "CREATE TABLE one.t (id SERIAL)")
        sql.run(*insert, *insert, insert[0], "FLUSH ENGINE LOGS")
        file = sql.run("SHOW MASTER STATUS")[0][0]
        wait_until(lambda: file in {info for *_, info in sql.run(f"SHOW BINLOG EVENTS IN '{file}'")})
        events = sql.run(f"SHOW BINLOG EVENTS IN '{file}'")
        ends = {end: end - begin for _, begin, kind, _, end, _ in events if kind == "Binlog_checkpoint"}
        assert len(set(ends.values())) == 2, events
        with sql.connect(autocommit=True) as session:
            found = {end for *_, end, _ in events if end and checkpoint_ends(session, Position(0, file, end))}
        assert found == set(ends)


def test_statements_that_are_no_utf_8_do_not_hide_the_events_of_a_file() -> None:
    with MariaDb.start() as sql:
        sql.run("CREATE DATABASE one", "CREATE TABLE one.t (v VARBINARY(9))")
        with closing(sql.connect("one", autocommit=True, charset="latin1")) as session, session.cursor() as cursor:
            cursor.execute("INSERT INTO t VALUES (_binary 'é')")
        file, end = sql.run("SHOW MASTER STATUS")[0][:2]
        with closing(sql.connect(autocommit=True, charset="utf8mb4")) as session:
            events = events_from(session, Position(0, file, end), 4, 20)
            assert {"Annotate_rows", "Write_rows_v1"} <= {kind for kind, _, _ in events}
            assert events[-1][2] == end
            with session.cursor() as cursor:
                cursor.execute("SELECT 'é'")
                assert cursor.fetchall() == (("é",),)
