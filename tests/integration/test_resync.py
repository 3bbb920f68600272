"""Tables whose rows changed without row events, or that could not be read for a while: a copy makes the stage right
again, rows that no longer exist included."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from contextlib import closing, suppress
from typing import Any

import pymysql
import pytest

from cdc_core.errors import Refused, RetryLater
from cdc_core.meta.copied_batches import CopiedBatches
from cdc_core.meta.leases import Leases
from cdc_core.meta.table_copies import TableCopies
from cdc_core.model.coverage import How
from cdc_core.operations.copy import chunks
from cdc_core.operations.copy.chunk_file import ChunkFile
from cdc_core.operations.copy.copy_sources import readmit
from cdc_core.operations.copy.pending import chosen, pending
from cdc_core.stage import manifest as manifests
from cdc_core.stage.as_of import AsOf
from cdc_core.stage.isolated import isolated
from cdc_core.stage.layout import SNAPSHOT
from cdc_core.stage.stage_reader import by_key_batches
from tests.integration.one_server import FIRST_MARIADB, ON_MARIADB, ON_MYSQL
from tests.integration.test_snapshot import Killed
from tests.lab.copying import copy, heal, is_equal, pending_tables, read, stage, swept
from tests.lab.databases import fresh_name
from tests.lab.lab import Lab
from tests.lab.refusals import raises
from tests.lab.staged_tables import changes

RESYNC = "on_unlogged_change: resync, on_unreadable: resync"
SETUP = (
    "CREATE TABLE t (id INT PRIMARY KEY, v INT, w VARCHAR(20))",
    "INSERT INTO t VALUES (1, 1, 'a'), (2, 2, 'b'), (3, 3, 'c'), (150, 4, 'd')",
)
PARTED = (
    "CREATE TABLE t (id INT PRIMARY KEY, v INT, w VARCHAR(20)) PARTITION BY RANGE (id) "
    "(PARTITION p0 VALUES LESS THAN (100), PARTITION p1 VALUES LESS THAN MAXVALUE)",
    SETUP[1],
    "CREATE TABLE plain (id INT PRIMARY KEY, v INT, w VARCHAR(20))",
    "INSERT INTO plain VALUES (2, 7, 'x'), (8, 8, 'y')",
)
SWAP = (
    "CREATE TABLE _t_new (id INT PRIMARY KEY, v INT, w VARCHAR(20), more INT)",
    "INSERT INTO _t_new (id, v, w) SELECT id, v, w FROM t WHERE id <> 3",
    "RENAME TABLE t TO _t_old, _t_new TO t",
)
BY_TRIGGERS = (
    "CREATE TABLE _t_new LIKE t",
    "ALTER TABLE _t_new MODIFY v BIGINT, ADD COLUMN more INT NOT NULL DEFAULT 5",
    "CREATE TRIGGER osc_del AFTER DELETE ON t FOR EACH ROW DELETE IGNORE FROM _t_new WHERE id <=> OLD.id",
    "CREATE TRIGGER osc_upd AFTER UPDATE ON t FOR EACH ROW BEGIN DELETE IGNORE FROM _t_new "
    "WHERE NOT (OLD.id <=> NEW.id) AND id <=> OLD.id; "
    "REPLACE INTO _t_new (id, v, w) VALUES (NEW.id, NEW.v, NEW.w); END",
    "CREATE TRIGGER osc_ins AFTER INSERT ON t FOR EACH ROW "
    "REPLACE INTO _t_new (id, v, w) VALUES (NEW.id, NEW.v, NEW.w)",
    "INSERT LOW_PRIORITY IGNORE INTO _t_new (id, v, w) SELECT id, v, w FROM t FORCE INDEX (PRIMARY) WHERE id <= 2",
    "UPDATE t SET id = id + 50, v = 8 WHERE id = 3",
    "INSERT INTO t VALUES (4, 4, 'beside'), (5, 5, 'gone again')",
    "DELETE FROM t WHERE id = 5",
    "INSERT LOW_PRIORITY IGNORE INTO _t_new (id, v, w) SELECT id, v, w FROM t FORCE INDEX (PRIMARY) WHERE id > 2",
    "ANALYZE TABLE _t_new",
    "RENAME TABLE t TO _t_old, _t_new TO t",
    "DROP TABLE IF EXISTS _t_old",
    "DROP TRIGGER IF EXISTS osc_del", "DROP TRIGGER IF EXISTS osc_upd", "DROP TRIGGER IF EXISTS osc_ins",
)  # fmt: skip
"""The statements of pt-online-schema-change, and what applications write meanwhile."""
UNLOGGED: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "add column with a default": (SETUP, ("ALTER TABLE t ADD COLUMN more INT NOT NULL DEFAULT 5",)),
    "modify": (SETUP, ("ALTER TABLE t MODIFY w CHAR(5) NOT NULL",)),
    "truncate": (SETUP, ("TRUNCATE TABLE t",)),
    "drop and create": (SETUP, ("DROP TABLE t", "CREATE TABLE t (id INT PRIMARY KEY, v INT, w VARCHAR(20), n INT)")),
    "online schema change": (SETUP, SWAP),
    "online schema change by triggers": (SETUP, BY_TRIGGERS),
    "a column that comes again": (SETUP, ("ALTER TABLE t DROP COLUMN w", "ALTER TABLE t ADD COLUMN w VARCHAR(20)")),
    "exchange partition": (PARTED, ("ALTER TABLE t EXCHANGE PARTITION p0 WITH TABLE plain",)),
    "truncate partition": (PARTED, ("ALTER TABLE t TRUNCATE PARTITION p0",)),
    "drop partition": (PARTED, ("ALTER TABLE t DROP PARTITION p0",)),
    "create or replace": (SETUP, ("CREATE OR REPLACE TABLE t (id INT PRIMARY KEY, w VARCHAR(20))",)),
}
USUAL = {"online schema change by triggers", "truncate partition", "create or replace"}


@pytest.mark.parametrize(
    "kind", [pytest.param(case, marks=() if case in USUAL else pytest.mark.matrix) for case in UNLOGGED]
)
def test_rows_that_changed_unlogged_are_copied_again_and_those_that_are_gone_go(
    make_line: Callable[..., Lab], kind: str
) -> None:
    line = make_line(tables=RESYNC)
    setup, statements = UNLOGGED[kind]
    if kind == "create or replace" and not line.origin.mariadb:
        statements = ("DROP TABLE t", *(statement.replace("OR REPLACE ", "") for statement in statements))
    line.origin.execute(*setup)
    line.drain()
    before = line.chain[-1].end.position
    line.origin.execute("UPDATE t SET v = 77 WHERE id = 2", *statements, "INSERT IGNORE INTO t (id, w) VALUES (9, 'z')")
    line.drain()
    assert line.coverage["t"] is How.UNLOGGED
    due = {table.name: table for table in pending(line.meta, "shop")}
    assert due[f"{line.origin.name}.t"].copied_by_runs(line.pipeline)
    heal(line)
    line.origin.execute("DELETE FROM t WHERE id = 150", "INSERT IGNORE INTO t (id, w) VALUES (10, 'zz')")
    line.drain()
    assert pending_tables(line) == []
    assert line.coverage["t"] is How.COPIED
    is_equal(line, "t")
    assert line.ids("t", as_of=AsOf(position=before)) == [1, 2, 3, 150]
    last = {}
    for batch in by_key_batches(line.store, line.chain, "t"):
        last |= {row["id"]: row["_cdc_op"] for row in batch.to_pylist()}
    assert sorted(key for key, op in last.items() if op != "d") == line.ids("t")


KEPT = (
    "MODIFY w VARCHAR(200)", "MODIFY w VARCHAR(20) COMMENT 'said'", "CHANGE w W VARCHAR(20) NULL DEFAULT 'é' AFTER id",
    "MODIFY COLUMN e ENUM('b','a','new') DEFAULT 'new'", "MODIFY s SET('x','y','z') FIRST", "MODIFY n INT NULL",
    "MODIFY n INT NOT NULL DEFAULT -1, ADD COLUMN more INT, COMMENT 'said'", "MODIFY bin VARBINARY(30)",
    "MODIFY at DATETIME(3) DEFAULT CURRENT_TIMESTAMP(3) ON UPDATE CURRENT_TIMESTAMP(3)",
    "MODIFY d DECIMAL(9,2) DEFAULT (1 + 1)", "MODIFY w VARCHAR(20) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin",
)  # fmt: skip
"""What keeps each value. After it come statements that do not, or where that is not certain."""
BENT = (
    "MODIFY n BIGINT NOT NULL", "MODIFY e ENUM('a','b')", "MODIFY s SET('y','x')", "MODIFY w VARCHAR(9)",
    "MODIFY w TEXT", "MODIFY w VARCHAR(20) CHARACTER SET latin1", "MODIFY at DATETIME", "MODIFY d DECIMAL(9,1)",
    "MODIFY n INT UNSIGNED NOT NULL", "CHANGE n m INT NOT NULL", "MODIFY w VARCHAR(20) NOT NULL",
    "MODIFY bin BINARY(9)",
    "MODIFY n INT NOT NULL UNIQUE", "MODIFY g INT AS (id + 2) STORED", "MODIFY w VARCHAR(30), DROP PRIMARY KEY",
    "MODIFY n INT AS (id) STORED",
)  # fmt: skip


@pytest.mark.parametrize("metadata", ["FULL", pytest.param("MINIMAL", marks=pytest.mark.matrix)])
def test_a_column_that_is_defined_again_is_copied_again_only_where_its_values_may_differ(
    make_line: Callable[..., Lab], metadata: str
) -> None:
    """Each statement runs after another process has read the rows before it; its table has rows of extreme values."""
    line = make_line(tables=RESYNC)
    shape = (
        "(id INT PRIMARY KEY, w VARCHAR(20), e ENUM('b','a'), s SET('x','y'), n INT NOT NULL, at DATETIME(3), "
        "d DECIMAL(9,2), bin VARBINARY(9)"
    )
    rows = "(1, 'ж € 😀', 'b', 'x,y', -2147483648, '1000-01-01 00:00:00.999', -9999999.99, X'00FF00'), (2, "
    rows += "'', '', '', 0, NULL, NULL, ''), (3, 'twenty characters !!', 'a', 'y', 2147483647, NULL, 0.01, X'')"
    tables = {f"t{number}": clause for number, clause in enumerate((*KEPT, *BENT))}
    line.origin.execute_on_server(f"SET GLOBAL binlog_row_metadata = {metadata}")
    try:
        for table, clause in tables.items():
            generated = ", g INT AS (id + 1) STORED" if " g " in clause else ""
            line.origin.execute(
                f"CREATE TABLE {table} {shape}{generated}) DEFAULT CHARSET utf8mb4", "SET SESSION sql_mode = ''",
                f"INSERT INTO {table} (id, w, e, s, n, at, d, bin) VALUES {rows}",
            )  # fmt: skip
        line.drain()
        first = dict(line.coverage)
        for table, clause in tables.items():
            strict = "STRICT_TRANS_TABLES" if clause in KEPT else ""
            line.origin.execute(f"SET SESSION sql_mode = '{strict}'", f"ALTER TABLE {table} {clause}")
        line.drain()
        copied = {tables[table] for table, how in line.coverage.items() if how is not first[table]}
        assert copied == set(BENT)
        for table, clause in tables.items():
            if clause in KEPT:
                line.origin.execute(f"UPDATE {table} SET n = 5 WHERE id = 3")
        line.drain()
        is_equal(line, *(table for table, clause in tables.items() if clause in KEPT))
    finally:
        line.origin.execute_on_server("SET GLOBAL binlog_row_metadata = FULL")


@pytest.mark.parametrize("seed", [1, pytest.param(2, marks=pytest.mark.matrix)])
def test_unlogged_changes_beside_writers_and_copies_end_with_the_rows_of_the_source(
    make_line: Callable[..., Lab], monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    chance = random.Random(seed)
    monkeypatch.setattr(chunks, "chunk_rows", lambda size_bytes, row_bytes: chance.choice([2, 9, 30]))
    line = make_line(tables=RESYNC)
    line.origin.execute(*PARTED)
    line.drain()
    stop = threading.Event()

    def write() -> None:
        own = random.Random(seed + 10)
        with closing(line.origin.sql.connect(line.origin.name, autocommit=True)) as connection:
            while not stop.is_set():
                n, m = own.randrange(200), own.randrange(200)
                with connection.cursor() as cursor:
                    cursor.execute(
                        own.choice(
                            [
                                f"REPLACE INTO t VALUES ({n}, {m}, 'w{m}')",
                                f"DELETE FROM t WHERE id = {n}",
                                f"UPDATE IGNORE t SET id = {m} WHERE id = {n}",
                            ]
                        )
                    )

    writer = threading.Thread(target=write)
    writer.start()
    try:
        for _ in range(4):
            line.origin.execute(
                chance.choice(
                    [
                        "ALTER TABLE t TRUNCATE PARTITION p0",
                        "ALTER TABLE t EXCHANGE PARTITION p0 WITH TABLE plain",
                        "ALTER TABLE t TRUNCATE PARTITION p1",
                    ]
                )
            )
            if chance.random() < 0.5:
                line.drain()
            read(line)
            if chance.random() < 0.3:
                line.origin.execute("ALTER TABLE t TRUNCATE PARTITION p1")
            line.drain()
            stage(line)
    finally:
        stop.set()
        writer.join()
    for _ in range(3):
        line.drain()
        heal(line)
    assert pending_tables(line) == []
    is_equal(line, "t", "plain")


BESIDE = (
    "CREATE TABLE plain (id INT)", "CREATE TABLE tr (id INT)", "CREATE TABLE par (id INT PRIMARY KEY)",
    "CREATE VIEW v AS SELECT * FROM {c}.t",
    "CREATE TRIGGER x AFTER INSERT ON tr FOR EACH ROW REPLACE INTO {c}.u VALUES (new.id, 6, 'trigger')",
    "CREATE PROCEDURE p(a INT) DELETE FROM {c}.u WHERE id = a",
    "CREATE FUNCTION f(a INT) RETURNS INT DETERMINISTIC MODIFIES SQL DATA "
    "BEGIN REPLACE INTO {c}.t VALUES (a, 7, 'function'); RETURN a; END",
    "CREATE TABLE {c}.ch (id INT PRIMARY KEY, "
    "CONSTRAINT fk FOREIGN KEY (id) REFERENCES {o}.par (id) ON DELETE CASCADE)",
    "INSERT INTO par VALUES (1), (2), (3)", "INSERT INTO {c}.ch SELECT id FROM par",
    "INSERT INTO {c}.u SELECT * FROM {c}.t",
)  # fmt: skip
"""In a database that is not captured, with ways into the one that is."""
STEPS = (
    "REPLACE INTO {c}.t VALUES ({n}, {n}, 'w')", "UPDATE {c}.t SET v = {n} WHERE id % 3 = 1", "DELETE FROM {c}.u",
    "REPLACE INTO {c}.u SELECT * FROM {c}.t", "UPDATE plain JOIN {c}.u ON u.id = plain.id SET u.v = {n}",
    "REPLACE INTO v VALUES ({n}, 5, 'view')", "UPDATE v SET w = 'view' WHERE id < {n}", "INSERT INTO tr VALUES ({n})",
    "CALL p({n})", "INSERT INTO plain VALUES (f({n}))", "DELETE FROM par WHERE id < {n}",
    "REPLACE INTO par VALUES ({n})",
    "INSERT INTO {c}.ch SELECT id FROM par", "INSERT INTO plain VALUES ({n})", "DELETE FROM plain WHERE id > {n}",
    "CREATE OR REPLACE VIEW v AS SELECT * FROM {c}.u", "CREATE OR REPLACE VIEW v AS SELECT * FROM {c}.t", "DROP VIEW v",
    "DROP TRIGGER x", BESIDE[4], "DROP FUNCTION f", BESIDE[6], "ALTER TABLE {c}.ch DROP FOREIGN KEY fk",
    "TRUNCATE {c}.u",
    "RENAME TABLE {c}.u TO {c}.other, {c}.other TO {c}.u", "ALTER TABLE {c}.t MODIFY w VARCHAR(30)", "DROP TABLE tr",
    "ANALYZE TABLE {c}.t", "CREATE TABLE tr (id INT)", "BEGIN", "COMMIT", "ROLLBACK", "SAVEPOINT s", "ROLLBACK TO s",
)  # fmt: skip


@pytest.mark.parametrize("seed", [1, *(pytest.param(seed, marks=pytest.mark.matrix) for seed in range(2, 12))])
def test_any_history_of_statements_without_rows_ends_with_the_rows_of_the_source(
    make_line: Callable[..., Lab], seed: int
) -> None:
    """Through views, triggers, routines and foreign keys that come and go before anybody reads the log."""
    chance = random.Random(seed)
    line = make_line(tables=RESYNC)
    server, names = line.origin.sql, {"c": line.origin.name, "o": fresh_name()}
    line.origin.execute_on_server("SET GLOBAL log_bin_trust_function_creators = 1", f"CREATE DATABASE {names['o']}")
    line.origin.execute(*SETUP, "CREATE TABLE u LIKE t")
    try:
        server.run(*(sql.format(**names) for sql in BESIDE), database=names["o"])
        for _ in range(3):
            with closing(server.connect(names["o"], autocommit=True)) as connection, connection.cursor() as cursor:
                cursor.execute(f"SET SESSION binlog_format = {chance.choice(['ROW', 'STATEMENT', 'STATEMENT'])}")
                for _ in range(chance.randint(2, 6)):
                    with suppress(pymysql.err.MySQLError):
                        cursor.execute(chance.choice(STEPS).format(n=chance.randrange(9), **names))
            for _ in range(2):  # a copy that was read before the log was, and its changes, may want another
                line.drain()
                heal(line)
            assert pending_tables(line) == []
            is_equal(line, "t", "u", "ch")
    finally:
        line.origin.execute("DROP TABLE IF EXISTS ch")
        line.origin.execute_on_server(f"DROP DATABASE {names['o']}")


@ON_MYSQL
def test_a_copy_that_began_before_the_unlogged_change_is_dropped_and_the_next_one_counts(
    make_line: Callable[..., Lab],
) -> None:
    line = make_line(tables=RESYNC)
    line.origin.execute(*PARTED)
    line.drain()
    read(line, "t")
    line.origin.execute("ALTER TABLE t TRUNCATE PARTITION p0")
    line.drain()
    assert [table for table, _ in stage(line).dropped] == [f"{line.origin.name}.t"]
    assert line.coverage["t"] is How.UNLOGGED
    heal(line)
    is_equal(line, "t")


@pytest.mark.parametrize("change", ["logged", "unlogged", "into an empty table"])
@ON_MARIADB
def test_rows_that_appear_above_the_last_key_before_the_first_chunk_is_read_are_not_lost(
    make_line: Callable[..., Lab], monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    line = make_line(tables=RESYNC)
    line.origin.execute(*PARTED, "INSERT INTO plain VALUES (500, 5, 'z')", "DELETE FROM plain WHERE id < 100")
    line.drain()
    line.origin.execute("ALTER TABLE t TRUNCATE PARTITION p0")
    if change == "into an empty table":
        line.origin.execute("ALTER TABLE t TRUNCATE PARTITION p1")
    line.drain()
    begin = TableCopies.begin

    def then(*arguments: Any) -> None:
        begin(*arguments)
        if change == "unlogged":
            line.origin.execute("ALTER TABLE t EXCHANGE PARTITION p1 WITH TABLE plain")
        else:
            line.origin.execute("INSERT INTO t VALUES (600, 6, 'new'), (601, 6, 'new')")
        line.drain()

    with monkeypatch.context() as patch:
        patch.setattr(TableCopies, "begin", then)
        copy(line, "t")
    assert line.coverage["t"] is (How.UNLOGGED if change == "unlogged" else How.COPIED)
    heal(line)
    is_equal(line, "t", "plain")


HALF, WHOLE, SECOND = "before it is durable", "durable", "after that of another table"
KILLED = [(HALF, True), (WHOLE, False), (SECOND, False)]


@pytest.mark.parametrize(
    ("moment", "changed_again"),
    [
        pytest.param(moment, again, marks=() if (moment, again) in KILLED else pytest.mark.matrix)
        for moment in (HALF, WHOLE, SECOND)
        for again in (False, True)
    ],
)
@ON_MYSQL
def test_the_mark_of_a_resync_that_was_killed_counts_for_no_reader_and_is_swept(
    make_line: Callable[..., Lab], monkeypatch: pytest.MonkeyPatch, moment: str, changed_again: bool
) -> None:
    line = make_line(tables=RESYNC)
    line.origin.execute(*PARTED, "CREATE TABLE u LIKE t", "INSERT INTO u SELECT * FROM t")
    line.drain()
    before = {table: line.ids(table) for table in ("t", "u")}
    line.origin.execute("ALTER TABLE t TRUNCATE PARTITION p0", "ALTER TABLE u TRUNCATE PARTITION p1")
    line.drain()
    read(line)
    limits = line.pipeline.limits.model_copy(update={"batch_mib": 0})  # a batch for each table; all marks come first
    line.pipeline = line.pipeline.model_copy(update={"limits": limits})
    owner, step = (ChunkFile, "finish") if moment == HALF else (CopiedBatches, "decide")
    done, calls_left = getattr(owner, step), [1 if moment == SECOND else 0]

    def struck(*arguments: Any, **named: Any) -> Any:
        if not calls_left[0]:
            raise Killed
        calls_left[0] -= 1
        return done(*arguments, **named)

    with monkeypatch.context() as patch:
        patch.setattr(owner, step, struck)
        patch.setattr(ChunkFile, "__exit__", lambda *_: None)  # a killed process removes nothing
        with pytest.raises(Killed):
            stage(line)

    waiting = [table for table, how in line.coverage.items() if how is How.UNLOGGED]
    assert len(waiting) == (1 if moment == SECOND else 2)
    assert unlisted(line)
    for table in waiting:
        assert line.ids(table, partial=True) == before[table]
    assert manifests.verify(line.store, "shop", deep=True) == []
    if changed_again:
        line.origin.execute("ALTER TABLE t TRUNCATE PARTITION p1", "ALTER TABLE u TRUNCATE PARTITION p0")
        line.drain()
    swept(line)
    heal(line)
    heal(line)  # a copy that was read before the other change does not count

    assert pending_tables(line) == []
    is_equal(line, "t", "u")
    for manifest in line.chain:
        assert sum(part.ops.get("t", 0) for part in manifest.parts) == len({chunk.table for chunk in manifest.chunks})
    assert manifests.verify(line.store, "shop", deep=True) == []
    swept(line)
    assert unlisted(line) == set()


def unlisted(line: Lab) -> set[str]:
    """Files of copied rows that no batch names, whether they wait for one or are left."""
    return {info.path for info in line.store.list(SNAPSHOT)} - {
        part.path for manifest in line.chain for part in manifest.parts
    }


ODD = "ALTER TABLE t RENAME COLUMN w TO _cdc_seq"
EVEN = "ALTER TABLE t RENAME COLUMN _cdc_seq TO w"


def test_a_table_that_could_not_be_read_at_a_place_is_read_again_and_copied(make_line: Callable[..., Lab]) -> None:
    line = make_line(tables=RESYNC)
    table = f"{line.origin.name}.t"
    line.origin.execute(*SETUP)
    line.drain()
    line.origin.execute(ODD, "DELETE FROM t WHERE id = 1", "INSERT INTO t VALUES (4, 4, 'd')")
    line.drain()
    assert line.coverage["t"] is How.ISOLATED
    with raises(Refused, "table.not_captured"):
        chosen(line.meta, "shop", [table])

    heal(line)  # the cause is still there
    line.origin.execute("INSERT INTO t VALUES (5, 5, 'e')")
    line.drain()
    assert line.coverage["t"] is How.ISOLATED
    assert "source.unsupported_table" in isolated(line.store, "shop")[table]

    line.origin.execute(EVEN, "DELETE FROM t WHERE id = 2")
    line.drain()
    heal(line)
    assert line.coverage["t"] is How.COPIED
    line.origin.execute("INSERT INTO t VALUES (6, 6, 'f')")
    line.drain()
    is_equal(line, "t")
    assert line.chain[-1].isolated == {}
    assert pending_tables(line) == []


@FIRST_MARIADB
def test_a_table_is_read_again_where_nothing_was_logged_after_it_was_isolated(make_line: Callable[..., Lab]) -> None:
    line = make_line(tables=RESYNC)
    line.origin.execute(*SETUP, ODD, "DELETE FROM t WHERE id = 1", EVEN, "INSERT INTO t VALUES (4, 4, 'd')")
    line.drain()
    assert line.coverage["t"] is How.ISOLATED
    heal(line)
    assert line.coverage["t"] is How.COPIED
    is_equal(line, "t")
    line.origin.execute("INSERT INTO t VALUES (6, 6, 'f')")
    line.drain()
    assert line.coverage["t"] is How.COPIED
    is_equal(line, "t")


@FIRST_MARIADB
def test_an_isolated_table_is_read_again_where_a_copy_of_it_is_asked_for(make_line: Callable[..., Lab]) -> None:
    line = make_line(tables="on_unreadable: isolate, on_unlogged_change: record")
    line.origin.execute(*SETUP, ODD, "DELETE FROM t WHERE id = 1", EVEN, "INSERT INTO t VALUES (4, 4, 'd')")
    line.drain()
    table = f"{line.origin.name}.t"
    assert readmit(line.opened, "shop") == []
    with line.meta.leases.held("shop", "an extractor", 60), raises(RetryLater, "lease.held"):
        readmit(line.opened, "shop", [table])
    assert readmit(line.opened, "shop", [table]) == [table]
    assert readmit(line.opened, "shop", [table]) == [table], "until it is read"
    line.extract()
    assert readmit(line.opened, "shop", [table]) == []
    assert line.meta.coverages.find("shop").tables[table].how is How.CAPTURED_AGAIN
    copy(line, "t")
    assert line.coverage["t"] is How.COPIED
    is_equal(line, "t")


@FIRST_MARIADB
def test_a_table_that_another_process_has_had_captured_again_by_now_ends_no_run(
    make_line: Callable[..., Lab], monkeypatch: pytest.MonkeyPatch
) -> None:
    line = make_line(tables=RESYNC)
    line.origin.execute(*SETUP, ODD, "DELETE FROM t WHERE id = 1", EVEN, "INSERT INTO t VALUES (4, 4, 'd')")
    line.drain()
    assert line.coverage["t"] is How.ISOLATED
    known = Leases.held

    def held(leases: Leases, *arguments: Any, **options: Any) -> Any:
        monkeypatch.setattr(Leases, "held", known)
        heal(line)
        line.origin.execute("INSERT INTO t VALUES (6, 6, 'f')")
        line.drain()
        return known(leases, *arguments, **options)

    monkeypatch.setattr(Leases, "held", held)
    assert readmit(line.opened, "shop") == []
    is_equal(line, "t")


@FIRST_MARIADB
def test_chunks_that_were_read_before_the_table_was_captured_again_do_not_count(make_line: Callable[..., Lab]) -> None:
    line = make_line(tables=RESYNC)
    line.origin.execute(*SETUP)
    line.drain()
    read(line, "t")
    line.origin.execute(ODD, "DELETE FROM t WHERE id = 1", EVEN)
    line.drain()
    assert stage(line).dropped[0][1].startswith("changes are missed since")
    read(line, "t")
    line.origin.execute("DELETE FROM t WHERE id = 2")
    readmit(line.opened, "shop")
    line.drain()
    stage(line)
    heal(line)
    is_equal(line, "t")


@ON_MARIADB
def test_a_table_that_the_pipeline_left_out_for_a_while_is_copied_again(make_line: Callable[..., Lab]) -> None:
    line = make_line(tables="on_unlogged_change: record")
    line.origin.execute(*SETUP)
    line.drain()
    line.change(tables=f"exclude: ['{line.origin.name}[.]t'], on_unlogged_change: stop")
    line.origin.execute("DELETE FROM t WHERE id = 1")
    line.drain()
    assert line.coverage["t"] is How.LEFT_OUT
    assert pending_tables(line) == []
    line.change(tables="exclude: [], on_unlogged_change: record")
    line.origin.execute("DELETE FROM t WHERE id = 2", "UPDATE t SET v = 9 WHERE id = 3")
    line.drain()
    assert line.coverage["t"] is How.CAPTURED_AGAIN
    heal(line)
    line.drain()
    assert line.coverage["t"] is How.COPIED
    is_equal(line, "t")


@ON_MYSQL
def test_a_state_as_of_a_time_within_the_copy_has_no_fewer_rows_than_before_it(make_line: Callable[..., Lab]) -> None:
    line = make_line(tables=RESYNC)
    line.origin.execute(*PARTED)
    line.drain()
    line.origin.execute("ALTER TABLE t TRUNCATE PARTITION p0")
    line.drain()
    heal(line)
    (renewed,) = [manifest for manifest in line.chain if manifest.copied]
    truncate = changes(line.store, line.chain, "t").to_pylist()[-2 - 1 :]
    times = {row["_cdc_op"]: row["_cdc_ts"] for row in truncate if row["_cdc_op"] in "tr"}
    assert times["t"] >= times["r"]
    assert renewed.parts[0].ops == {"t": 1}
