"""What a cutover does to tables, on real servers: locks, gates, counters of ids, and what it finds beforehand."""

from __future__ import annotations

import re
import threading
import time
import uuid
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pymysql
import pytest

from cdc_core.errors import DataAtRisk, Refused, RetryLater
from cdc_core.mysql.session_settings import OWN_WRITES
from cdc_core.operations.cutover.locks import locked
from cdc_core.operations.cutover.readiness import HEADROOM, TablePair, failed, look, raise_ids
from cdc_core.source.host import server_facts as facts
from cdc_core.targets.bookkeeping.gates import (
    Places,
    close_gates,
    drop_gates,
    gates_of,
    make_gates,
    open_gates,
    require_gates,
    require_not_left,
)
from examples.sandbox.mariadb import MariaDb
from examples.sandbox.mysql import MySql
from tests.lab.databases import is_newest, own_database
from tests.lab.refusals import raises
from tests.lab.waiting import wait_until

MOVED = "moved by Lockstep (shop): write to the new tables"
TABLES = ("a", "b", "with a blank", "x" * 64)


@pytest.fixture(params=["mariadb", "mysql9"])
def server(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Any:
    found = request.getfixturevalue(request.param)
    monkeypatch.setenv("MOVED", found.url)
    return found


@pytest.fixture
def database(server: Any) -> Iterator[str]:
    with own_database(server) as name:
        server.run(*(f"CREATE TABLE {name}.`{table}` (id INT PRIMARY KEY, n INT)" for table in TABLES))
        yield name


def places_in(database: str, tables: Sequence[str] = TABLES) -> Places:
    return {"env:MOVED": [(database, table) for table in tables]}


def pair_in(database: str, old: str = "a", new: Sequence[str] = ("b",)) -> TablePair:
    place = ("env:MOVED", database)
    return TablePair("t", ((*place, old),), tuple((*place, table) for table in new))


def test_writers_wait_while_tables_are_locked_and_readers_do_not(server: Any, database: str) -> None:
    with ThreadPoolExecutor(1) as pool, locked(places_in(database), patience_s=5, held_s=30) as locks:
        writer = pool.submit(server.run, f"INSERT INTO {database}.a VALUES (1, 1)")
        time.sleep(0.5)
        assert not writer.done()
        assert server.run(f"SELECT * FROM {database}.a") == []
        locks.release()
        locks.release()
        writer.result(10)
    assert server.run(f"SELECT * FROM {database}.a") == [(1, 1)]


def test_a_lock_is_freed_when_its_process_says_nothing(server: Any, database: str) -> None:
    with locked(places_in(database), patience_s=5, held_s=1):
        server.run(f"INSERT INTO {database}.a VALUES (1, 1)")  # waits for the server to end the session


@pytest.mark.parametrize("prepared", [False, True])
def test_tables_are_locked_only_after_transactions_that_have_written_to_them(
    server: Any, database: str, prepared: bool
) -> None:
    if prepared:
        server.run("XA START 'm'", f"INSERT INTO {database}.b VALUES (1, 1)", "XA END 'm'", "XA PREPARE 'm'")
        with raises(RetryLater, "cutover.locked"), locked(places_in(database), patience_s=1, held_s=30):
            pass
        server.run("XA COMMIT 'm'")
    else:
        with server.connect(autocommit=False) as session, session.cursor() as cursor:
            cursor.execute(f"INSERT INTO {database}.b VALUES (1, 1)")
            committing = threading.Event()

            def commit() -> None:
                committing.set()
                session.commit()

            timer = threading.Timer(1, commit)
            timer.start()
            with locked(places_in(database), patience_s=30, held_s=30):
                assert committing.is_set()  # its answer may be on its way still
            timer.join()
    with locked(places_in(database), patience_s=1, held_s=30):
        assert server.run(f"SELECT * FROM {database}.b") == [(1, 1)]


def closed_gates(places: Places) -> set[str]:
    return {gate.table for gate in gates_of(places) if gate.closed}


def closed(places: Places, token: str = "t1") -> None:
    make_gates(places)
    close_gates(places, "shop", token)


def test_gates_close_before_the_writes_that_wait_for_the_lock(server: Any, database: str) -> None:
    places = places_in(database)
    make_gates(places)

    def write(number: int) -> str:
        try:
            server.run(f"INSERT INTO {database}.`{TABLES[number % len(TABLES)]}` VALUES ({number}, 1)")
        except pymysql.err.MySQLError as error:
            return str(error.args[1])
        return "written"

    assert write(1000) == "written"  # they are open
    with server.connect(autocommit=False) as old, old.cursor() as cursor, ThreadPoolExecutor(24) as pool:
        cursor.execute("SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        cursor.execute(f"SELECT * FROM {database}._lockstep_gate")
        with locked(places, patience_s=5, held_s=30) as locks:
            before = [pool.submit(write, number) for number in range(12)]
            time.sleep(0.3)
            close_gates(places, "shop", "t1")
            after = [pool.submit(write, number) for number in range(12, 24)]
            time.sleep(0.3)
            locks.release()
        assert {future.result(10) for future in [*before, *after]} == {MOVED}
        # Its snapshot shows an open gate. MariaDB 11.8 does not write on from what is no longer so.
        refusal = "has changed since" if is_newest(server) else "moved by Lockstep"
        with pytest.raises(pymysql.err.MySQLError, match=refusal):
            cursor.execute(f"INSERT INTO {database}.b VALUES (500, 1)")
    assert closed_gates(places) == {f"{database}.{table}" for table in TABLES}
    closed(places)  # safe to repeat
    server.run(f"SET {OWN_WRITES} = 1", f"INSERT INTO {database}.a VALUES (99, 1)")
    open_gates(places)
    open_gates(places)
    assert closed_gates(places) == set()
    assert write(1) == "written"
    drop_gates(places)
    assert server.run(f"SELECT * FROM information_schema.TRIGGERS WHERE TRIGGER_SCHEMA = '{database}'") == []


def test_no_lock_of_a_backup_keeps_gates_from_closing_and_opening(server: Any, database: str) -> None:
    """Nor a dump that reads, whose transaction is open; and what open gates have left goes when nothing is in its
    way."""
    places = places_in(database)
    make_gates(places)
    mariadb = server.mariadb
    backup = ["BACKUP STAGE START", "BACKUP STAGE FLUSH", "BACKUP STAGE BLOCK_DDL"]

    def write(number: int) -> None:
        server.run(*(f"INSERT INTO {database}.{table} VALUES ({number}, 1)" for table in ("a", "b")))

    with server.connect(autocommit=False) as session, session.cursor() as cursor:
        for table in ("a", "b"):
            cursor.execute(f"SELECT * FROM {database}.{table}")
        for statement in backup if mariadb else ["LOCK INSTANCE FOR BACKUP"]:
            cursor.execute(statement)
        close_gates(places, "shop", "t1")
        for table in ("a", "b"):
            with pytest.raises(pymysql.err.MySQLError, match="moved by Lockstep"):
                server.run(f"INSERT INTO {database}.{table} VALUES (1, 1)")
        open_gates(places)
        write(1)
        with raises(RetryLater, "cutover.locked"):
            drop_gates(places)
        write(2)
        cursor.execute("BACKUP STAGE END" if mariadb else "UNLOCK INSTANCE")
    drop_gates(places)
    write(3)


def test_open_gates_leave_the_statements_of_an_application_as_they_are(server: Any, database: str) -> None:
    """A MariaDB refuses several rows by one INSERT ... SELECT if a BEFORE trigger is there."""
    server.run(
        f"CREATE TABLE {database}.strict (id INT PRIMARY KEY, n INT NOT NULL, s VARCHAR(9) NOT NULL)",
        f"INSERT INTO {database}.a VALUES (1, 1), (2, 2), (3, 3)",
    )
    make_gates(places_in(database, ["strict"]))
    some = f"(id, n, s) SELECT a.id, a.n, 'x' FROM {database}.a LEFT JOIN (SELECT 5 AS five) q ON TRUE"
    for statement in (f"INSERT INTO {{}} {some}", f"INSERT INTO {{}} {some} ON DUPLICATE KEY UPDATE n = {{}}.n + 1",
                      f"UPDATE {{}} JOIN {database}.a ON a.id = {{}}.id SET {{}}.n = a.n + 7"):  # fmt: skip
        server.run(statement.replace("{}", f"{database}.strict"))
    assert server.run(f"SELECT n FROM {database}.strict ORDER BY id") == [(8,), (9,), (10,)]


@pytest.mark.parametrize("loss", ["a swap", "a dropped trigger"])
def test_gates_that_are_gone_are_found_and_closed_again(server: Any, database: str, loss: str) -> None:
    places = places_in(database, ["a", "b"])
    closed(places)
    require_gates(places)
    if loss == "a swap":
        server.run(
            f"CREATE TABLE {database}.new LIKE {database}.a",
            f"RENAME TABLE {database}.a TO {database}.former, {database}.new TO {database}.a",
        )
    else:
        server.run(f"DROP TRIGGER {database}._lockstep_gate_a_insert")
    server.run(f"INSERT INTO {database}.a VALUES (1, 1)")
    with pytest.raises(DataAtRisk) as caught:
        require_gates(places)
    assert (caught.value.code, f"away from {database}.a, and" in caught.value.what) == ("cutover.gates_gone", True)
    assert "`lockstep cutover resume shop` closes the gates again" in caught.value.remedy
    assert closed_gates(places) == {f"{database}.b"}
    with pytest.raises(Refused, match="2 tables"):  # the application has left both
        require_not_left(places)
    closed(places)
    require_gates(places)
    for table in ("a", "b"):
        with pytest.raises(pymysql.err.MySQLError, match="moved by Lockstep"):
            server.run(f"INSERT INTO {database}.{table} VALUES (7, 7)")
    server.run(f"DROP TABLE {database}.a")  # nobody goes back
    require_gates(places)


def test_tables_whose_names_differ_in_case_or_accents_alone_are_all_closed(server: Any, database: str) -> None:
    names = ("a", "A", "résumé", "resume", "Resume")
    for name in names[1:]:
        server.run(f"CREATE TABLE {database}.`{name}` (id INT PRIMARY KEY, n INT)")
    places = places_in(database, names)
    closed(places)
    for name in names:
        with pytest.raises(pymysql.err.MySQLError, match="moved"):
            server.run(f"INSERT INTO {database}.`{name}` VALUES (1, 1)")
    open_gates(places)
    assert closed_gates(places) == set()


def test_a_process_that_undoes_late_does_not_open_the_gates_of_another_one(server: Any, database: str) -> None:
    places = places_in(database)
    for token in ("before", "after"):
        closed(places, token)
    open_gates(places, token="before")
    open_gates(places, sparing=["after", "never"])
    assert len(closed_gates(places)) == len(TABLES)
    require_not_left(places, but="after")
    with pytest.raises(Refused) as caught:
        require_not_left(places, but="before")
    assert (caught.value.code, f"4 tables with closed gates: {database}.a" in caught.value.what) == (
        "cutover.left_before", True,
    )  # fmt: skip
    with pytest.raises(pymysql.err.MySQLError, match="moved by Lockstep"):
        server.run(f"INSERT INTO {database}.a VALUES (1, 1)")
    open_gates(places, token="after")
    server.run(f"INSERT INTO {database}.a VALUES (1, 1)")


WRITES = (
    "INSERT IGNORE INTO {} VALUES (2, 2)", "REPLACE INTO {} VALUES (1, 3)", "UPDATE IGNORE {} SET n = 4",
    "DELETE IGNORE FROM {}", "INSERT INTO {} VALUES (1, 5) ON DUPLICATE KEY UPDATE n = 5",
)  # fmt: skip


def test_no_kind_of_write_passes_a_gate(server: Any, database: str) -> None:
    server.run(f"INSERT INTO {database}.a VALUES (1, 1)")
    closed(places_in(database))
    for statement in WRITES:
        with pytest.raises(pymysql.err.MySQLError, match="moved"):
            server.run(statement.format(f"{database}.a"))
        assert server.run(f"SELECT * FROM {database}.a") == [(1, 1)], statement


def test_locks_that_a_server_has_ended_are_noticed_when_the_gates_are_closed(server: Any, database: str) -> None:
    """Who wrote meanwhile may have prepared an XA transaction, whose commit comes after the log was looked at."""
    with locked(places_in(database), patience_s=5, held_s=1) as locks:
        assert locks.held()
        server.run(f"INSERT INTO {database}.a VALUES (1, 1)")  # waits for the server to end the session
        assert not locks.held()


def test_gates_that_were_half_closed_are_closed_and_opened(server: Any, database: str) -> None:
    places = places_in(database)
    closed(places)
    names = f"SELECT TRIGGER_NAME FROM information_schema.TRIGGERS WHERE TRIGGER_SCHEMA = '{database}'"
    for half in (1, 2):
        server.run(*(f"DROP TRIGGER {database}.`{name}`" for (name,) in server.run(names)[::half]))
        closed(places)
        assert len(closed_gates(places)) == len(TABLES)
    open_gates(places)
    assert closed_gates(places) == set()
    drop_gates(places)
    assert server.run(f"SELECT * FROM information_schema.TRIGGERS WHERE TRIGGER_SCHEMA = '{database}'") == []


def test_counters_of_new_tables_are_raised_above_those_of_the_old_one(server: Any, database: str) -> None:
    server.run(
        f"CREATE TABLE {database}.old (id INT AUTO_INCREMENT PRIMARY KEY, n INT)",
        *(f"CREATE TABLE {database}.new_{t} (id INT AUTO_INCREMENT PRIMARY KEY, n INT)" for t in range(2)),
        f"CREATE TABLE {database}.plain_0 (id INT PRIMARY KEY, n INT)",
        f"INSERT INTO {database}.old (n) VALUES (1), (2), (3)",
        f"DELETE FROM {database}.old WHERE id = 3",
        f"INSERT INTO {database}.new_0 VALUES (1, 1)",
        f"INSERT INTO {database}.new_1 VALUES (2, 2)",
    )
    pairs = [pair_in(database, "old", ["new_0", "new_1", "plain_0"])]
    assert sorted(raise_ids(pairs)) == [f"{database}.new_0", f"{database}.new_1"]
    assert raise_ids(pairs) == []
    server.run(f"INSERT INTO {database}.new_0 (n) VALUES (9)")
    ((highest,),) = server.run(f"SELECT MAX(id) FROM {database}.new_0")
    assert highest == 4 + HEADROOM

    # The application goes on, as during a chase: the headroom is renewed once half of it is used up.
    server.run(f"INSERT INTO {database}.old VALUES ({HEADROOM // 3}, 1)")
    assert raise_ids(pairs) == []
    server.run(f"INSERT INTO {database}.old VALUES ({4 + HEADROOM - 1}, 1)")
    assert sorted(raise_ids(pairs)) == [f"{database}.new_0", f"{database}.new_1"]
    server.run(f"INSERT INTO {database}.new_1 (n) VALUES (9)")
    assert server.run(f"SELECT MAX(id) FROM {database}.new_1") == [(4 + 2 * HEADROOM,)]


def test_counters_of_narrow_columns_leave_the_application_ids(server: Any, database: str) -> None:
    for number, declared in enumerate(("TINYINT UNSIGNED", "SMALLINT", "MEDIUMINT", "INT", "BIGINT UNSIGNED")):
        old, new = f"old{number}", f"new{number}"
        for name in (old, new):
            server.run(
                f"CREATE TABLE {database}.{name} (id {declared} AUTO_INCREMENT PRIMARY KEY, n INT)",
                f"INSERT INTO {database}.{name} VALUES (100, 1)",
            )
        pairs = [pair_in(database, old, [new])]
        assert raise_ids(pairs) == [f"{database}.{new}"]
        assert raise_ids(pairs) == []
        server.run(*[f"INSERT INTO {database}.{new} (n) VALUES (2)"] * 100)
        ((lowest, count),) = server.run(f"SELECT MIN(id), COUNT(*) FROM {database}.{new} WHERE n = 2")
        assert (lowest > 100, count) == (True, 100), declared


@pytest.fixture
def new_database(server: Any) -> Iterator[str]:
    with own_database(server) as name:
        yield name


def test_what_new_tables_lack_is_found_beforehand(server: Any, database: str, new_database: str) -> None:
    sequence = [f"CREATE SEQUENCE {database}.numbers"] if server.mariadb else []
    server.run(
        *sequence,
        f"CREATE VIEW {database}.shown AS SELECT * FROM {database}.a",
        f"CREATE PROCEDURE {database}.cleaned() DELETE FROM {database}.a",
        f"CREATE TABLE {database}.old (id INT AUTO_INCREMENT PRIMARY KEY, n INT DEFAULT 5, "
        "at TIMESTAMP NOT NULL DEFAULT CURRENT_TIMESTAMP ON UPDATE CURRENT_TIMESTAMP, CONSTRAINT few CHECK (n < 10), "
        "twice INT AS (n * 2) STORED, code VARCHAR(20), UNIQUE KEY begins (code(5)), UNIQUE KEY moments (n, at))",
        f"CREATE TRIGGER {database}.copied BEFORE INSERT ON {database}.old FOR EACH ROW SET NEW.n = NEW.n",
        f"CREATE TABLE {new_database}.new_0 (id INT PRIMARY KEY, n INT, at TIMESTAMP NULL, twice INT, "
        "code VARCHAR(20), KEY begins (code(5)), UNIQUE KEY moment (at))",
        f"CREATE TABLE {new_database}.new_1 LIKE {new_database}.new_0",
    )
    pair = TablePair("t", pair_in(database, "old").old, pair_in(new_database, new=["new_0", "new_1"]).new)
    with server.connect(autocommit=False) as session, session.cursor() as cursor:
        cursor.execute(f"INSERT INTO {database}.a VALUES (1, 1)")
        wait_until(lambda: any("has had a transaction open" in finding.what for finding in look([pair])))
        found = {finding.what.partition(": ")[2] for finding in look([pair]) if finding.subject == "table t"}
        session.rollback()
    assert {"id is not AUTO_INCREMENT", "at is not set ON UPDATE", "n has no default", "at has no default"} <= found
    assert {"it has none of the CHECK constraints few", "it has none of the triggers copied"} <= found
    assert {"twice is not generated", "it has no unique key like begins"} <= found
    assert not [text for text in found if "moments" in text or "PRIMARY" in text]
    assert failed(look([pair])) is None
    (beside,) = [finding.what for finding in look([pair]) if finding.subject == "the old databases"]
    for name in ("view {}.shown", "procedure {}.cleaned", *(["sequence {}.numbers"] if sequence else [])):
        assert name.format(database) in beside

    server.run(f"ALTER TABLE {new_database}.new_1 MODIFY twice INT AFTER id")
    stopped = failed(look([pair]))
    assert stopped is not None
    assert (stopped.code, "new_1: its columns are in another order: twice is where n was" in stopped.what) == (
        "target.definition", True,
    )  # fmt: skip


@pytest.mark.parametrize("kind", ["mariadb", pytest.param("mysql9", marks=pytest.mark.matrix)])
def test_how_long_transactions_have_been_open_is_known_whatever_the_servers_time_zone(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    request.getfixturevalue(kind)
    place = ("env:MOVED", "zones", "a")

    def ages_s() -> list[int]:
        findings = look([TablePair("t", (place,), (place,))])
        return [int(age) for finding in findings for age in re.findall("open for ([0-9]+) s", finding.what)]

    with {"mariadb": MariaDb, "mysql9": MySql}[kind].start(env={"TZ": "EST5"}) as server:
        monkeypatch.setenv("MOVED", server.url)
        server.run("CREATE DATABASE zones", "CREATE TABLE zones.a (id INT PRIMARY KEY)")
        with server.connect(autocommit=False) as session, session.cursor() as cursor:
            cursor.execute("INSERT INTO zones.a VALUES (1)")
            wait_until(lambda: ages_s() != [])
            assert all(age < 3_000 for age in ages_s())


def test_transactions_that_a_cutover_would_wait_for_are_named_beforehand(
    server: Any, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those that have only read, too: no gate closes before they end."""
    pair, user = pair_in(database), f"u{uuid.uuid4().hex[:10]}"

    def said() -> list[str]:
        return [finding.what for finding in look([pair]) if "transaction" in finding.what]

    assert said() == []
    named = "'left', X'FF'"  # which is no UTF-8
    server.run(f"XA START {named}", f"INSERT INTO {database}.a VALUES (5, 5)", f"XA END {named}", f"XA PREPARE {named}")
    server.run(f"CREATE USER {user}@'%' IDENTIFIED BY 'secret'", f"GRANT ALL ON {database}.* TO {user}@'%'")
    try:
        with server.connect(autocommit=False) as reader, reader.cursor() as cursor:
            cursor.execute(f"SELECT * FROM {database}.b")
            cursor.execute("SELECT CONNECTION_ID()")
            number = cursor.fetchone()[0]
            wait_until(
                lambda: any(text.startswith(f"connection {number} has had a transaction open") for text in said())
            )
            assert any("which has changed nothing" in text for text in said())
            assert "the XA transaction 'left\ufffd' is prepared" in said()

            # An account that may not see them says so.
            monkeypatch.setenv("MOVED", f"mysql://{user}:secret@{server.url.rpartition('@')[2]}")
            blind = said()
            assert sum("may not see the transactions of others (PROCESS)" in text for text in blind) == 1
            mariadb = server.mariadb  # needs no privilege for XA RECOVER
            assert any("(XA_RECOVER_ADMIN)" in text for text in blind) != mariadb
            assert ("the XA transaction 'left\ufffd' is prepared" in blind) == mariadb
            reader.rollback()
    finally:
        server.run(f"XA ROLLBACK {named}", f"DROP USER {user}@'%'")


def test_privileges_that_lack_are_found_beforehand(server: Any, database: str, monkeypatch: pytest.MonkeyPatch) -> None:
    user = f"u{uuid.uuid4().hex[:10]}"
    server.run(f"CREATE USER {user}@'%' IDENTIFIED BY 'secret'", f"GRANT SELECT ON {database}.* TO {user}@'%'")
    try:
        host = server.url.rpartition("@")[2]
        monkeypatch.setenv("MOVED", f"mysql://{user}:secret@{host}")
        pair = pair_in(database)
        findings = look([pair])
        assert {finding.error.code for finding in findings if finding.error} == {"connection.grant"}
        assert any("may not know whether the server is a replica" in finding.what for finding in findings)
        assert any("may not see the scheduled events" in finding.what for finding in findings)
        # A cutover back needs them at the new tables, and may get them after the switch.
        assert [finding.status for finding in findings if "cutover back" in finding.subject] == ["warn", "warn"]
        server.run(f"GRANT TRIGGER ON other.* TO {user}@'%'", f"GRANT LOCK TABLES ON {database}.* TO {user}@'%'")
        assert {finding.error.code for finding in look([pair]) if finding.error} == {"connection.grant"}
        server.run(f"GRANT TRIGGER ON {database}.* TO {user}@'%'")
        trusts = server.run("SELECT @@GLOBAL.log_bin_trust_function_creators")[0][0]
        assert {finding.error.code for finding in look([pair]) if finding.error} == (
            set() if trusts else {"connection.grant"}
        )
    finally:
        server.run(f"DROP USER {user}@'%'")


def test_a_foreign_key_between_tables_that_are_not_switched_together_is_found(server: Any, database: str) -> None:
    child, parent = pair_in(database, "child"), pair_in(database)
    for rule in ("ON DELETE CASCADE", "ON UPDATE SET NULL", ""):
        server.run(f"CREATE TABLE {database}.child (id INT PRIMARY KEY, a INT, "
                f"CONSTRAINT tie FOREIGN KEY (a) REFERENCES {database}.a (id) {rule})")  # fmt: skip
        for alone, left in ((child, "a"), (parent, "child")):
            findings = [finding for finding in look([alone]) if "foreign key tie" in finding.what]
            assert [finding.status for finding in findings] == ["fail" if rule else "warn"]
            assert f"{database}.{left} is not switched" in findings[0].what
            assert [finding.error.code for finding in findings if finding.error] == ["cutover.tied"] * bool(rule)
        assert not [finding for finding in look([child, parent]) if "foreign key tie" in finding.what]
        server.run(f"DROP TABLE {database}.child")


def test_scheduled_events_are_named(server: Any, database: str) -> None:
    server.run(
        f"CREATE EVENT {database}.purge ON SCHEDULE EVERY 1 DAY DO DELETE FROM {database}.a",
        f"CREATE EVENT {database}.off ON SCHEDULE EVERY 1 DAY DISABLE DO DELETE FROM {database}.a",
    )
    found = [finding.what for finding in look([pair_in(database)]) if "event" in finding.what]
    assert found == [f"the server runs 1 scheduled event: {database}.purge"]


def test_triggers_that_fire_for_what_lockstep_writes_are_named(server: Any, database: str) -> None:
    server.run(
        f"CREATE TRIGGER {database}.counted AFTER INSERT ON {database}.a FOR EACH ROW UPDATE {database}.c SET n = 1",
        f"CREATE TRIGGER {database}.other AFTER INSERT ON {database}.`with a blank` FOR EACH ROW SET @n = 1",
        f"CREATE TRIGGER {database}.spared AFTER INSERT ON {database}.b FOR EACH ROW BEGIN "
        f"IF {OWN_WRITES} IS NULL THEN UPDATE {database}.c SET n = n + 1; END IF; END",
        f"CREATE TRIGGER {database}.made BEFORE UPDATE ON {database}.b FOR EACH ROW SET NEW.n = 1",
    )
    closed(places_in(database, ["a"]))
    found = [finding.what for finding in look([pair_in(database)]) if "fire for" in finding.what]
    open_gates(places_in(database))
    assert found == [
        f"triggers of the old tables fire for what Lockstep writes there, too: {database}.counted",
        f"triggers of the new tables fire for what Lockstep writes there, too: {database}.made",
    ]


def test_settings_by_which_the_new_server_would_write_other_rows_are_named(
    mariadb: Any, mariadb_target: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OLD", mariadb.url)
    monkeypatch.setenv("MOVED", mariadb_target.url)
    pair = TablePair("t", (("env:OLD", "shop", "a"),), (("env:MOVED", "shop", "b"),))

    def found() -> list[str]:
        findings = look([pair])
        return [finding.what for finding in findings if "has another" in finding.what]

    ((modes, zone),) = mariadb_target.run("SELECT @@GLOBAL.sql_mode, @@GLOBAL.time_zone")
    assert found() == []
    try:
        mariadb_target.run("SET GLOBAL sql_mode = 'NO_AUTO_VALUE_ON_ZERO,ERROR_FOR_DIVISION_BY_ZERO'")
        assert found() == [
            "the server has another sql_mode (+NO_AUTO_VALUE_ON_ZERO, -STRICT_TRANS_TABLES) than env:OLD"
        ]
        mariadb_target.run(f"SET GLOBAL sql_mode = '{modes}'", "SET GLOBAL time_zone = '+02:00'")
        assert found() == ["the server has another time_zone than env:OLD"]
    finally:
        mariadb_target.run(f"SET GLOBAL sql_mode = '{modes}'", f"SET GLOBAL time_zone = '{zone}'")


def test_a_replica_is_refused(server: Any, database: str) -> None:
    """The application may write to its primary, where no lock would stop it."""
    pair = pair_in(database)
    follow, leave = (
        ("CHANGE MASTER TO MASTER_HOST = '127.0.0.1', MASTER_PORT = 1", "RESET SLAVE ALL")
        if server.mariadb
        else ("CHANGE REPLICATION SOURCE TO SOURCE_HOST = '127.0.0.1', SOURCE_PORT = 1", "RESET REPLICA ALL")
    )
    server.run(follow)
    try:
        assert "cutover.replica" in {finding.error.code for finding in look([pair]) if finding.error}
    finally:
        server.run(leave)
    assert not [finding for finding in look([pair]) if finding.error]


def test_a_server_beside_which_others_take_writes_is_named(
    server: Any, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No lock stops writes at another server of a cluster."""

    def warned() -> list[str]:
        findings = look([pair_in(database)])
        return [
            finding.what
            for finding in findings
            if finding.status == "warn" and "writes at its other servers" in finding.what
        ]

    assert warned() == []
    if not server.mariadb:
        server.run("INSTALL PLUGIN group_replication SONAME 'group_replication.so'")
        try:
            assert warned() == []
            server.run("SET GLOBAL group_replication_single_primary_mode = OFF")
            (group,) = warned()
            assert "a group with several primaries" in group
        finally:
            server.run("UNINSTALL PLUGIN group_replication")
    else:
        assert server.run("SHOW GLOBAL VARIABLES LIKE 'wsrep_on'") == [("wsrep_on", "OFF")]
    monkeypatch.setattr(facts, "query", lambda *_: (("wsrep_on", "ON"),))
    (cluster,) = warned()
    assert "a Galera cluster" in cluster
