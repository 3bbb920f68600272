"""What a target table must leave to us, and what its server's errors mean, on real servers: known before anything is
written, and never an error of a server as it is."""

from __future__ import annotations

import resource
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pymysql
import pytest

from cdc_core.config import MysqlTarget
from cdc_core.errors import DataAtRisk, LockstepError, Refused, RetryLater, parts_of, severity
from cdc_core.model.schema import Column, TableSchema, parse_column_type
from cdc_core.targets.bookkeeping import table_states as bookkeeping
from cdc_core.targets.reading.destination import Destination, TableUse
from cdc_core.targets.reading.target_faults import translating
from cdc_core.targets.writing.load import Layout, LoadFile
from spark_jobs.spark_failures import CarriedError, carried, found
from tests.lab.databases import own_database
from tests.lab.refusals import raises, refusal
from tests.lab.target_rows import COLUMNS, Table, Winner, opened_destination, record_batch, shop


@dataclass(frozen=True)
class Place:
    """A database of one test."""

    server: Any
    name: str
    connection: pymysql.Connection[Any]

    def query(self, sql: str) -> list[tuple[Any, ...]]:
        with self.connection.cursor() as cursor:
            cursor.execute(sql)
            return list(cursor.fetchall())

    def opened(
        self,
        columns: dict[str, str],
        definition: str,
        *,
        key: str | None = "id",
        store: str = "row",
        ready: bool = False,
    ) -> Destination:
        """The table `t`, made anew by the definition, as a target of a source table with these columns."""
        self.query("DROP VIEW IF EXISTS t")
        self.query("DROP TABLE IF EXISTS t")
        self.query(definition)
        rule: dict[str, Any] = {"table": "t", "database": self.name, "guard": {"store": store}}
        if key is None:
            rule["no_key"] = "rows"
        target = MysqlTarget.model_validate({"name": "one", "connections": ["env:TARGET"], "tables": {"*": rule}})
        made = [
            Column(name, parse_column_type(kind, charset="utf8mb4" if "char" in kind else ""), nullable=name != key,
                   key_part=1 if name == key else None)
            for name, kind in columns.items()
        ]  # fmt: skip
        schema = TableSchema("shop", "t", tuple(made))
        environ = {"TARGET": self.server.url}
        return opened_destination(target, "shop.t", [schema], TableUse(key=schema.key), ready=ready, environ=environ)


@pytest.fixture
def place(server: Any) -> Iterator[Place]:
    server.run("SET GLOBAL local_infile = ON")
    with own_database(server) as name, server.connect(name, autocommit=True) as connection:
        yield Place(server, name, connection)


ID = {"id": "int", "v": "int"}


def test_tables_that_cannot_roll_back_are_refused_with_a_key_and_without(place: Place) -> None:
    engines = {row[0] for row in place.query("SELECT ENGINE FROM information_schema.ENGINES WHERE SUPPORT <> 'NO'")}
    assert {"MyISAM", "MEMORY", "CSV"} <= engines
    for engine in sorted({"MyISAM", "MEMORY", "CSV", "Aria", "ARCHIVE"} & engines):
        for ready in (False, True):
            with raises(Refused, "target.definition", match=engine) as caught:
                place.opened(
                    ID, f"CREATE TABLE t (id INT NOT NULL, v INT NOT NULL) ENGINE={engine}", key=None, ready=ready
                )
            if engine not in ("CSV", "ARCHIVE"):
                with raises(Refused, "target.definition", match=engine) as caught:
                    place.opened(ID, f"CREATE TABLE t (id INT PRIMARY KEY, v INT) ENGINE={engine}", ready=ready)
                assert "ENGINE=InnoDB" in caught.value.remedy
    assert place.opened(
        ID, "CREATE TABLE t (id INT PRIMARY KEY, v INT) ENGINE=InnoDB PARTITION BY HASH(id) PARTITIONS 2"
    )


def test_a_table_that_lacks_a_column_of_the_key_is_refused_for_nothing_else(place: Place) -> None:
    for own in ("old INT PRIMARY KEY", "old INT"):
        error = refusal(lambda own=own: place.opened(ID, f"CREATE TABLE t ({own}, v INT)"))
        codes = {part.code for part in parts_of(error)}
        assert codes == {"target.definition"}


def test_a_view_is_refused(place: Place) -> None:
    place.query("CREATE TABLE base (id INT PRIMARY KEY, v INT)")
    with raises(Refused, "target.definition"):
        place.opened(ID, "CREATE VIEW t AS SELECT * FROM base", key=None)


WIDE = {"id": "int", **{f"c{n}": "tinyint" for n in range(1016)}}
LONG = {"id": "int", "a": "varchar(16000)", "b": "varchar(380)"}


def definition(columns: dict[str, str]) -> str:
    return f"CREATE TABLE t ({', '.join(f'{name} {kind}' for name, kind in columns.items())}, PRIMARY KEY (id))"


@pytest.mark.parametrize("columns", [WIDE, LONG], ids=["columns", "row size"])
def test_a_table_that_leaves_no_space_for_what_we_add_is_refused_before_anything_is_written(
    place: Place, columns: dict[str, str]
) -> None:
    with pytest.raises(Refused) as caught:
        place.opened(columns, definition(columns), ready=True)
    assert (caught.value.code, caught.value.where) == ("target.limit", f"{place.name}.t")
    assert place.query("SHOW COLUMNS FROM t LIKE '\\_cdc%'") == []


@pytest.mark.parametrize("name", ["_v", "FTS_DOC_ID"])
def test_a_table_with_a_column_that_no_table_of_loaded_rows_can_have_is_refused(place: Place, name: str) -> None:
    columns = ID | {name: "bigint unsigned"}
    made = place.opened(
        columns,
        f"CREATE TABLE t (id INT PRIMARY KEY, v INT, {name} BIGINT UNSIGNED NOT NULL)",
        store="table",
        ready=True,
    )
    [shard] = made.shards
    table = Table(shard.server, place.connection, shard.facts, dict.fromkeys(columns, pa.int32()))
    with pytest.raises(Refused) as caught:
        table.write([Winner("u", dict.fromkeys(columns, 1), (1, 1, 0, "one"))])
    assert (caught.value.code, place.query("SELECT * FROM t")) == ("target.limit", [])


def test_as_wide_as_a_table_can_be_it_is_taken(place: Place) -> None:
    columns = dict(list(WIDE.items())[:1000])
    for store in ("row", "table"):
        for ready in (False, True):
            assert place.opened(columns, definition(columns), store=store, ready=ready)


def test_a_server_with_pages_of_4_kib_takes_the_keys_of_our_own_tables(place: Place) -> None:
    place.opened(ID, "CREATE TABLE t (id INT PRIMARY KEY, v INT)", ready=True)
    with place.connection.cursor() as cursor:
        bookkeeping.create(cursor, place.name, bookkeeping.DEFINITIONS)
    keys = place.query(
        "SELECT s.TABLE_NAME, s.INDEX_NAME, SUM(COALESCE(c.CHARACTER_OCTET_LENGTH, 8)) "
        "FROM information_schema.STATISTICS s "
        "JOIN information_schema.COLUMNS c USING (TABLE_SCHEMA, TABLE_NAME, COLUMN_NAME) "
        f"WHERE s.TABLE_SCHEMA = '{place.name}' GROUP BY 1, 2"
    )
    ours = {table for table, _, _ in keys} - {"t"}
    assert bookkeeping.DEFINITIONS.keys() <= ours
    assert [key for key in keys if key[2] > 768] == []


def test_the_version_of_a_source_that_is_itself_a_target_is_left_out(place: Place) -> None:
    """A cascade: its column is ours, and means another thing in each table."""
    columns = ID | {"_cdc_version": "varbinary(84)"}
    for ready in (False, True):
        made = place.opened(columns, "CREATE TABLE t (id INT PRIMARY KEY, v INT)", ready=ready)
        assert made.columns == ("id", "v")
    made = place.opened(columns, "CREATE TABLE t (id INT PRIMARY KEY, v INT, _cdc_version VARBINARY(84) INVISIBLE)")
    assert made.columns == ("id", "v")


@contextmanager
def another(place: Place) -> Iterator[Callable[[str], Any]]:
    with place.server.connect(autocommit=True) as connection, connection.cursor() as cursor:
        cursor.execute(f"USE {place.name}")
        yield cursor.execute


STATEMENTS: list[tuple[str, type[LockstepError], str]] = [
    ("SELECT * FROM gone", RetryLater, "target.busy"),
    ("SELECT gone FROM t", RetryLater, "target.busy"),
    ("INSERT INTO nowhere.t VALUES (1)", RetryLater, "target.busy"),
    (f"CREATE TEMPORARY TABLE w ({', '.join(f'c{n} INT' for n in range(1018))})", Refused, "target.limit"),
    ("CREATE TEMPORARY TABLE w (a VARCHAR(16000), b VARCHAR(400)) CHARACTER SET utf8mb4", Refused, "target.limit"),
    ("CREATE TEMPORARY TABLE w (FTS_DOC_ID INT) ENGINE=InnoDB", Refused, "target.limit"),
    ("CREATE TEMPORARY TABLE w (a INT, a INT)", Refused, "target.limit"),
    ("CREATE TABLE w (a VARCHAR(3000) PRIMARY KEY) CHARACTER SET utf8mb4 ENGINE=InnoDB", Refused, "target.limit"),
    (f"CREATE TABLE {'w' * 65} (a INT)", Refused, "target.limit"),
    ("CREATE TABLE w (a INT) ENGINE=Nonesuch", Refused, "target.definition"),
    ("INSERT INTO t VALUES (1, 1), (1, 2)", DataAtRisk, "target.row_error"),
    ("INSERT INTO t VALUES (1, 'x')", DataAtRisk, "target.row_error"),
    ("INSERT INTO t VALUES (1, 99999999999)", DataAtRisk, "target.row_error"),
    ("INSERT INTO t VALUES (NULL, 1)", DataAtRisk, "target.row_error"),
    ("INSERT INTO t VALUES (1, -1)", DataAtRisk, "target.row_error"),
    ("INSERT INTO t VALUES (1, 13)", DataAtRisk, "target.row_error"),
    ("SELECT FROM", Refused, "connection.statement"),
]


def test_each_error_of_a_server_is_one_of_ours_by_the_way_to_recover(place: Place) -> None:
    place.query("CREATE TABLE t (id INT PRIMARY KEY, v INT, CHECK (v >= 0))")
    place.query(
        "CREATE TRIGGER tr BEFORE INSERT ON t FOR EACH ROW "
        "IF NEW.v = 13 THEN SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = 'no'; END IF"
    )
    wrong = []
    with another(place) as run:
        run("SET SESSION sql_mode = 'STRICT_ALL_TABLES,NO_ENGINE_SUBSTITUTION'")
        for statement, kind, code in STATEMENTS:
            with pytest.raises(LockstepError) as caught, translating("here"):
                run(statement)
            if (severity(type(caught.value)), caught.value.code) != (kind, code):
                wrong.append((statement[:60], caught.value))
    assert wrong == []


def test_a_lock_that_is_held_a_broken_connection_and_a_time_limit_are_worth_another_attempt(place: Place) -> None:
    place.query("CREATE TABLE t (id INT PRIMARY KEY, v INT)")
    place.query("INSERT INTO t VALUES (1, 1)")
    mariadb = "MariaDB" in place.query("SELECT VERSION()")[0][0]
    limit = "SET SESSION max_statement_time = 0.01" if mariadb else "SET SESSION max_execution_time = 10"
    heavy = "SELECT COUNT(*) FROM information_schema.COLLATIONS a, information_schema.COLLATIONS b, " \
            "information_schema.COLLATIONS c, information_schema.COLLATIONS d"  # fmt: skip
    place.query("BEGIN")
    place.query("SELECT * FROM t FOR UPDATE")
    with another(place) as run:
        run("SET SESSION innodb_lock_wait_timeout = 1")
        with raises(RetryLater, "target.busy"), translating("here"):
            run("UPDATE t SET v = 2")
        run(limit)
        with raises(RetryLater, "connection.unreachable"), translating("here"):
            run(heavy)
        run("SET SESSION TRANSACTION READ ONLY")
        with raises(RetryLater, "connection.unreachable"), translating("here"):
            run("UPDATE t SET v = 2")
    place.query("ROLLBACK")
    with place.server.connect() as connection, connection.cursor() as cursor:
        place.query(f"KILL {connection.thread_id()}")
        with raises(RetryLater, "connection.unreachable"), translating("here"):
            cursor.execute("SELECT 1")


def test_an_error_of_a_server_crosses_from_a_worker_as_one_of_ours(place: Place) -> None:
    with pytest.raises(Exception, match=r"target\.busy") as caught, carried():
        place.query("SELECT * FROM gone")
    error = found(caught.value)
    assert isinstance(error, RetryLater)
    assert error.code == "target.busy"
    with pytest.raises(pymysql.err.ProgrammingError) as bare:
        place.query("SELECT * FROM gone")
    error = found(bare.value)
    assert isinstance(error, RetryLater)


def test_rows_that_a_workers_disk_does_not_take_are_worth_a_retry_and_leave_no_file(tmp_path: Path) -> None:
    """The operating system refuses to let a file grow beyond 1 MiB, as it would on a full disk."""
    rows = record_batch([shop("u", id, f"c{id}", id, 10) for id in range(1000)])

    def spool(batches: int) -> None:
        with (
            carried(), tempfile.TemporaryDirectory(dir=tmp_path) as folder,
            LoadFile(Path(folder), Layout(("id",), tuple(COLUMNS))) as file,
        ):  # fmt: skip
            for _ in range(batches):
                file.add(rows)
            file.flush()

    unlimited = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, unlimited[1]))
    try:
        spool(1)
        with pytest.raises(CarriedError) as caught:
            spool(100)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, unlimited)
    error = found(caught.value)
    assert isinstance(error, RetryLater)
    assert (error.code, list(tmp_path.iterdir())) == ("disk.error", [])
