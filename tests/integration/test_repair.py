"""Repair: every planted fault goes, other rows keep their versions, and newer changes always win."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from contextlib import closing
from typing import Any

import pytest

from cdc_core.errors import DataAtRisk, Refused, RetryLater
from cdc_core.meta import Meta
from cdc_core.meta.batches import Batches
from cdc_core.operations.copy.copier import copier_lease
from cdc_core.operations.repair import claims
from cdc_core.operations.repair.repairer import Result, outcome, repair
from cdc_core.operations.status_report import health
from cdc_core.operations.verify import source_rows, staged_batches
from cdc_core.operations.verify.canonical import ERROR_SHOWN
from cdc_core.operations.verify.lease import verifier_lease
from cdc_core.operations.verify.results import TableResult
from cdc_core.operations.verify.source_rows import SourceTables
from cdc_core.operations.verify.verifier import verify_target
from cdc_core.operations.verify.verify_job import VerifyJob
from cdc_core.stage import manifest as manifests
from cdc_core.stage.as_of import AsOf
from cdc_core.stage.stage_reader import table_state
from cdc_core.targets.bookkeeping.table_states import DEFINITIONS, STATES
from tests.integration.test_target_session import HOSTILE, INIT_CONNECT, with_globals
from tests.integration.test_verify import (
    FIRST_MARIADB,
    FIRST_MYSQL,
    TYPES,
    Verified,
    fill,
    filtered_and_masked,
    insert_typed,
    numbers,
    typed,
)
from tests.integration.test_verify import verified as verified
from tests.lab.forked_commands import ForkedCommands
from tests.lab.opened import opened

SHARDED = "sharding: {key: id, function: mod, databases: 1, tables: 2}"


class Repaired:
    """A verified pipeline whose target is written by real runs."""

    def __init__(self, run: Verified, commands: ForkedCommands) -> None:
        self.run, self.commands = run, commands

    def __call__(self, command: str, *arguments: str) -> Any:
        return self.commands.run(
            command,
            "shop.yaml",
            *arguments,
            "--json",
            directory=self.run.line.folder,
            environ={**os.environ, **self.run.environ},
        )

    def ok(self, command: str, *arguments: str) -> Any:
        done = self(command, *arguments)
        assert done.code == 0, done.document
        return done.document

    def rows(self, *tables: str, columns: str = "*") -> list[tuple[Any, ...]]:
        found: list[tuple[Any, ...]] = []
        connected = closing(self.run.line.origin.sql.connect(self.run.place, autocommit=True))
        with connected as connection, connection.cursor() as cursor:
            for table in tables:
                cursor.execute(f"SELECT {columns} FROM {table} ORDER BY 1")
                found += cursor.fetchall()
        return found


@pytest.mark.matrix
def test_every_planted_fault_is_repaired_and_other_rows_keep_their_versions(
    verified: Callable[..., Verified], commands: ForkedCommands
) -> None:
    run = verified(SHARDED, table="{table}_{t}")
    typed(run)
    insert_typed(run, range(2 * len(TYPES)))
    run.source(
        "CREATE TABLE number (id INT PRIMARY KEY, v VARCHAR(20) COLLATE utf8mb4_general_ci, at DATETIME, f FLOAT)"
    )
    run.source(*(f"INSERT INTO number VALUES ({n}, 'v{n}', '2024-01-01 10:00:00', 1.234567)" for n in range(40)))
    for table in ("types", "number"):
        run.target(*(f"CREATE TABLE {table}_{n} LIKE {run.line.origin.name}.{table}" for n in (0, 1)))
    line = Repaired(run, commands)
    line.ok("run")
    versions = ("types_0", "types_1", "number_0", "number_1")
    before = {(table, row) for table in versions for row in line.rows(table, columns="id, _cdc_version")}
    for number, (column, (_, _, other)) in enumerate(TYPES.items()):
        run.target(f"UPDATE types_{number % 2} SET {column} = {other} WHERE id = {number}")
    run.target(
        "DELETE FROM number_1 WHERE id = 1",  # missing
        "INSERT INTO number_0 (id, v) VALUES (1000, 'surplus')",
        "UPDATE number_0 SET v = IF(id = 6, 'v8', 'v6') WHERE id IN (6, 8)",  # swapped
        "UPDATE number_0 SET v = 'v10 ' WHERE id = 10",
        "UPDATE number_0 SET v = 'V12' WHERE id = 12",
        "UPDATE number_0 SET f = 1.234568 WHERE id = 14",
        "UPDATE number_1 SET at = at + INTERVAL 1 HOUR WHERE id IN (21, 23)",
        "INSERT INTO number_1 SELECT * FROM number_0 WHERE id IN (16, 18)",  # in both, and in the wrong one
        "DELETE FROM number_0 WHERE id = 18",
    )
    run.unlogged(  # the stage is wrong
        "UPDATE number SET v = 'silent' WHERE id = 30",
        "DELETE FROM number WHERE id = 31",
        "INSERT INTO number VALUES (99, 'silent', NULL, 0)",
    )
    run.source("UPDATE number SET v = 'later' WHERE id = 33")  # a lag, which is not repaired
    assert line("verify").code == 4
    told = line("repair", "--dry-run")
    assert differing(line) == [f"{len(TYPES) + 14} rows of number, types differ from the source."]
    assert (told.code, told.document["batches"], told.document["equal"]) == (0, [], False)
    found = {one["table"]: sum(one["differences"].values()) for one in told.document["before"]}
    assert found == {"types": len(TYPES), "number": 14}
    repaired = line.ok("repair")
    assert repaired["equal"] is True
    assert differing(line) == []
    assert (repaired["rows"], repaired["deletes"]) == (len(TYPES) + 12, 2)
    assert all(entry["problems"] == [] for entry in repaired["ledgers"])
    for table in ("types", "number"):
        assert sorted(line.rows(f"{table}_0", f"{table}_1"), key=repr) == sorted(at_source(run, table), key=repr)
    after = {(table, row) for table in versions for row in line.rows(table, columns="id, _cdc_version")}
    touched = {row[0] for table, row in before ^ after if table.startswith("number")}
    assert touched == {1, 6, 8, 10, 12, 14, 16, 18, 21, 23, 30, 31, 33, 99}
    assert {row[0] for table, row in before ^ after if table.startswith("types")} == set(range(len(TYPES)))
    assert line.ok("verify")["equal"] is True
    staged = sorted(repr(row[:3]) for row in in_stage(run, "number"))  # the server prints a FLOAT with six digits
    assert staged == sorted(repr(row[:3]) for row in at_source(run, "number"))


LONG = 20_000
LONG_KEYS = {
    "falling": ("g INT NOT NULL, k VARCHAR(700) NOT NULL, v INT, PRIMARY KEY (g DESC, k))", "1, CONCAT(begin, n), n"),
    "hashed": (
        "k VARCHAR(1600) CHARACTER SET latin1, v INT, PRIMARY KEY USING HASH (k)) ENGINE = MEMORY",
        "CONCAT(REPEAT('a', 1500), n), n",
    ),
}
DIGITS = "(" + " UNION ALL ".join(f"SELECT {one} d" for one in range(10)) + ")"
SEQUENCE = (
    f"(SELECT LPAD(a.d + 10 * b.d + 100 * c.d + 1000 * e.d + 10000 * f.d, 8, '0') AS n, REPEAT('a', 600) AS begin "
    f"FROM {DIGITS} a, {DIGITS} b, {DIGITS} c, {DIGITS} e, (SELECT 0 d UNION ALL SELECT 1) f)"
)


@pytest.mark.parametrize("any_server", ["mariadb", pytest.param("mysql9", marks=pytest.mark.matrix)], indirect=True)
def test_keys_that_begin_alike_are_copied_verified_and_repaired_whatever_the_server_has_set(
    verified: Callable[..., Verified], commands: ForkedCommands
) -> None:
    run = verified()
    line, server = Repaired(run, commands), run.line.origin.sql
    for table, (columns, values) in LONG_KEYS.items():
        run.source(
            "SET SESSION max_heap_table_size = 256 << 20",
            f"CREATE TABLE {table} ({columns}",
            f"INSERT INTO {table} SELECT {values} FROM {SEQUENCE} numbers ORDER BY n MOD 7919, n",
        )
        run.target(f"CREATE TABLE {table} LIKE {run.line.origin.name}.{table}", f"ALTER TABLE {table} ENGINE = InnoDB")
    run.line.begin_now()
    admin = "CONNECTION ADMIN" if run.line.origin.mariadb else "CONNECTION_ADMIN"
    run.line.origin.execute_on_server(
        "CREATE USER lean IDENTIFIED BY 'x'", "GRANT ALL ON *.* TO lean", f"REVOKE SUPER, {admin} ON *.* FROM lean"
    )
    run.environ |= dict.fromkeys(("SOURCE", "TARGET"), f"mysql://lean:x@{server.host}:{server.port}")

    def hostile(command: str, *arguments: str) -> Any:
        with with_globals(server, {**HOSTILE, "init_connect": INIT_CONNECT}):
            return line(command, *arguments)

    try:
        for command in (("extract",), ("snapshot",), ("run",)):
            done = hostile(*command)
            assert done.code == 0, done.document
        equal = "SELECT COUNT(*), SUM(v), COUNT(DISTINCT v) FROM {}.{}"
        with run.line.origin.session() as asked:
            for table in LONG_KEYS:
                (found,) = asked(equal.format(run.place, table))
                assert found == (LONG, LONG * (LONG - 1) // 2, LONG), table
        for table in LONG_KEYS:
            run.target(f"DELETE FROM {table} WHERE v = 17", f"UPDATE {table} SET v = -1 WHERE v = {LONG - 1}")
        done = hostile("verify")
        found = {one["table"]: sum(one["differences"].values()) for one in done.document["tables"]}
        assert found == dict.fromkeys(LONG_KEYS, 2)
        assert hostile("repair").document["equal"] is True
    finally:
        run.line.origin.execute_on_server("DROP USER lean")


def differing(line: Repaired) -> list[str]:
    """What `lockstep status` says of rows that a verification has found to differ; it fails by them."""
    done = line("status")
    found = [one["what"] for one in done.document["problems"] if one["code"] == "verify.differs"]
    assert done.code == (4 if found else 0)
    return found


def at_source(run: Verified, table: str) -> list[tuple[Any, ...]]:
    connected = closing(run.line.origin.sql.connect(run.line.origin.name, autocommit=True))
    with connected as connection, connection.cursor() as cursor:
        cursor.execute(f"SELECT * FROM {table}")
        return list(cursor.fetchall())


def in_stage(run: Verified, table: str, **options: object) -> list[tuple[Any, ...]]:
    found = table_state(run.line.store, run.line.chain, table, **options)  # type: ignore[arg-type]
    columns = [found.column(name).to_pylist() for name in found.schema.names if not name.startswith("_cdc_")]
    return list(zip(*columns, strict=True))


def repaired(
    run: Verified,
    *tables: str,
    authoritative: bool = False,
    applied: bool = True,
    extract_on: Callable[[str], object] | None = None,
) -> Result:
    """Repairs what a verification finds. applied: the target then gets what is staged, as by a run."""
    pipeline = run.line.pipeline
    found: dict[str, TableResult] = run.verify(*tables)
    keys = {name: [one.key for one in result.findings] for name, result in found.items() if result.findings}
    with Meta.open(pipeline.meta.url, pipeline.pipeline) as meta, pytest.MonkeyPatch.context() as patch:
        ready = opened(pipeline, meta, run.environ)
        if extract_on is not None:
            for module in (claims, staged_batches):
                patch.setattr(module, "extract_if_free", lambda _, source: extract_on(source))
        apply = (lambda: [write(run, name) for name in keys]) if applied else None
        with verifier_lease(ready, "copy") as lease:
            job = VerifyJob(ready, pipeline.targets[0], lease)
            return repair(job, keys, apply=apply, authoritative=authoritative)


def write(run: Verified, table: str) -> None:
    """The target's table becomes what the stage says; rows that are equal are not touched."""
    rows = in_stage(run, table, partial=True)
    connected = closing(run.line.origin.sql.connect(run.place, autocommit=True))
    with connected as connection, connection.cursor() as cursor:
        cursor.execute("SET SESSION sql_mode = '', time_zone = '+00:00'")
        cursor.execute(f"DELETE FROM {table}")
        for row in rows:
            cursor.execute(f"INSERT INTO {table} VALUES ({', '.join(['%s'] * len(row))})", row)
    run.consumed()


KEYS = {
    "i8": ("TINYINT", "-128", "0", "127"), "u64": ("BIGINT UNSIGNED", "18446744073709551615", "0", "7"),
    "d": ("DECIMAL(20,6)", "1.000001", "-0.5", "0"),
    "wide": ("DECIMAL(50,10)", "123456789012345678901234567890.1", "0", "-1"),
    "f": ("FLOAT", "0.1", "-3.4e38", "16777216"), "dd": ("DOUBLE", "0.1", "1e-300", "-2.5"),
    "day": ("DATE", "'2024-02-29'", "'0000-00-00'", "'1000-01-01'"),
    "dt": ("DATETIME(6)", "'2024-01-01 10:00:00.000001'", "'2024-02-00 00:00:00'", "'9999-12-31 23:59:59.999999'"),
    "ts": ("TIMESTAMP(3)", "'2024-01-01 10:00:00.120'", "'2024-03-31 02:30:00'", "'2038-01-01 00:00:00'"),
    "t": ("TIME(3)", "'-100:00:00.001'", "'00:00:00'", "'838:00:00'"), "y": ("YEAR", "1999", "'0000'", "2069"),
    "b1": ("BIT(2)", "b'0'", "b'1'", "b'11'"), "b9": ("BIT(9)", "b'100000001'", "b'0'", "b'11'"),
    "e": ("ENUM('b','a','')", "'a'", "'b'", "''"), "s": ("SET('z','x','y')", "'x,z'", "''", "'z,y,x'"),
    "c": ("CHAR(10) CHARACTER SET latin1", "'\u00e9 x'", "''", "'Z'"),
    "v": ("VARCHAR(20) COLLATE utf8mb4_bin", "'tab\\t\\\\N'", "'blank '", "'\U0001f600'"),
    "bin": ("BINARY(4)", "X'00FF'", "X'00'", "X'FFFFFFFF'"), "vb": ("VARBINARY(9)", "X'0001'", "X''", "X'5C4E'"),
}  # fmt: skip
"""By name: a type of keys, and three keys: of a row that differs, of one that only the target has, and of one that it
lacks."""


@FIRST_MYSQL
def test_rows_are_found_by_keys_of_every_type(verified: Callable[..., Verified]) -> None:
    run = verified()
    zone = "SET SESSION sql_mode = '', time_zone = '+00:00'"
    names = [f"k_{name}" for name in KEYS]
    for name, (kind, differs, _, _) in KEYS.items():
        rows = f"INSERT INTO k_{name} VALUES ({differs}, 'wrong')"
        run.source(f"CREATE TABLE k_{name} (id {kind} NOT NULL, v VARCHAR(9), PRIMARY KEY (id))", zone, rows)
    run.load(*names)
    run.unlogged(
        zone,
        *(f"UPDATE k_{name} SET v = 'right'" for name in KEYS),
        *(f"INSERT IGNORE INTO k_{name} VALUES ({missing}, 'new')" for name, (*_, missing) in KEYS.items()),
    )
    run.target(zone, *(f"INSERT IGNORE INTO k_{name} VALUES ({one[2]}, 'x')" for name, one in KEYS.items()))
    done = repaired(run, *names)
    assert {name: one.error for name, one in (done.after or {}).items()} == dict.fromkeys(names)
    assert {name: one.source.rows for name, one in (done.after or {}).items()} == dict.fromkeys(names, 2)
    deleted = {table for table, keys in done.claimed.items() if any(one.shard < 0 for one in keys.values())}
    assert (sorted(deleted), done.rows) == (sorted(names), 2 * len(KEYS))
    assert all(one.equal for one in run.verify(*names).values())  # the target was written from the stage alone


VERSIONED = "ALTER TABLE number ADD COLUMN _cdc_version VARBINARY(84) INVISIBLE"
FOREIGN = "7FFFFFFFFFFFFFFF7FFFFFFFFFFFFFFF00000000000000007A"


@FIRST_MYSQL
def test_a_row_with_a_newer_version_is_replaced_only_if_the_source_is_authoritative(
    verified: Callable[..., Verified],
) -> None:
    run = verified()
    numbers(run)
    run.target(
        VERSIONED,
        f"UPDATE number SET v = 'foreign', _cdc_version = X'{FOREIGN}' WHERE id = 3",
        "UPDATE number SET v = 'fault' WHERE id = 4",
    )
    done = repaired(run, "number", applied=False)
    assert (done.newer, done.rows) == ({"number": ("3",)}, 1)
    run.consumed()  # else the next repair applies it first
    done = repaired(run, "number")
    assert (done.error and done.error.code, done.rows) == ("repair.newer", 1)
    # `write` has no guard, and has replaced the row.
    run.target(f"UPDATE number SET v = 'foreign', _cdc_version = X'{FOREIGN}' WHERE id = 3")
    done = repaired(run, "number", authoritative=True)
    assert (done.forgotten, done.newer, done.settled) == (1, {}, True)


@FIRST_MYSQL
def test_a_row_that_is_fresher_than_the_source_is_replaced_only_if_the_source_is_authoritative(
    verified: Callable[..., Verified], commands: ForkedCommands
) -> None:
    run = verified("freshness: at")
    numbers(run, 6)
    line = Repaired(run, commands)
    run.source("INSERT INTO number VALUES (9, 'new', NULL)")
    line.ok("run")
    run.target(
        "UPDATE number SET v = 'fault', at = at + INTERVAL 1 HOUR WHERE id IN (3, 9)",
        "UPDATE number SET v = 'fault' WHERE id = 4",
        "INSERT INTO number (id, v, at) VALUES (7, 'surplus', '2100-01-01')",
    )
    assert line("verify").code == 4
    kept = line("repair")
    assert (kept.code, kept.document["error"]["code"]) == (4, "verify.differs")
    different = set(line.rows("number", columns="id, v, at")) ^ set(at_source(run, "number"))
    assert {row[0] for row in different} == {3}
    repaired = line.ok("repair", "--authoritative")
    assert (repaired["equal"], repaired["rows"]) == (True, 1)
    assert line.rows("number", columns="id, v, at") == sorted(at_source(run, "number"))


@FIRST_MYSQL
def test_behind_a_fence_rows_are_verified_and_a_repair_changes_nothing(verified: Callable[..., Verified]) -> None:
    run = verified()
    numbers(run)
    run.target(VERSIONED, f"UPDATE number SET v = 'foreign', _cdc_version = X'{FOREIGN}' WHERE id = 3")
    run.target(f"CREATE TABLE {STATES} ({DEFINITIONS[STATES]})")
    run.target(f"INSERT INTO {STATES} (table_name, fence) VALUES ('number', 'the application writes here')")
    assert run.verify("number")["number"].differences == 1
    with pytest.raises(Refused) as caught:
        repaired(run, "number", authoritative=True)
    assert caught.value.code == "target.fenced"
    run.target(f"DELETE FROM {STATES}")
    assert repaired(run, "number", authoritative=True).settled


@FIRST_MARIADB
def test_above_the_limit_of_a_day_nothing_is_staged_and_status_says_so(verified: Callable[..., Verified]) -> None:
    run = verified()
    run.line.change(repair="max_rows_per_day: 5")
    numbers(run)
    run.target("UPDATE number SET v = 'fault' WHERE id < 3")
    assert repaired(run, "number").settled
    run.target("UPDATE number SET v = 'fault' WHERE id < 3")
    batches = [one.batch_id for one in run.line.chain if one.copied]
    with pytest.raises(DataAtRisk) as caught:
        repaired(run, "number")
    assert caught.value.code == "repair.limit"
    assert [one.batch_id for one in run.line.chain if one.copied] == batches
    assert alarms(run) == [("repair copy", "repair.limit", 4)]
    with pytest.raises(DataAtRisk):
        repaired(run, "number")
    run.target("UPDATE number SET v = 'v2' WHERE id = 2")
    assert repaired(run, "number").settled  # 3 + 2
    assert alarms(run) == []
    run.target("UPDATE number SET v = 'fault' WHERE id < 3")
    with pytest.raises(DataAtRisk):
        repaired(run, "number")
    assert alarms(run) == [("repair copy", "repair.limit", 4)]
    run.target("UPDATE number SET v = CONCAT('v', id) WHERE id < 3")
    pipeline = run.line.pipeline
    with Meta.open(pipeline.meta.url, pipeline.pipeline) as meta:
        verify_target(opened(pipeline, meta, run.environ), "copy")
    assert alarms(run) == []


def alarms(run: Verified) -> list[tuple[str, str, int]]:
    """Of repairs, as `lockstep status` and the page show them."""
    with Meta.open(run.line.pipeline.meta.url, run.line.pipeline.pipeline) as meta:
        found = health(meta.status.find(), run.line.pipeline)
    return [(one.subject, one.code, one.exit_code) for one in found if one.subject.startswith("repair")]


MEANWHILE = {
    "rows": ["UPDATE number SET v = 'later' WHERE id = 3", "DELETE FROM number WHERE id = 4",
             "INSERT INTO number VALUES (90, 'later', NULL)"],
    "truncate": ["TRUNCATE TABLE number", "INSERT INTO number VALUES (3, 'after', NULL)"],
    "alter": ["ALTER TABLE number ADD COLUMN extra INT NULL", "UPDATE number SET extra = 1 WHERE id = 3"],
    "rename": ["RENAME TABLE number TO other", "CREATE TABLE number LIKE other",
               "INSERT INTO number VALUES (3, 'new life', NULL)"],
}  # fmt: skip
BETWEEN = pytest.mark.parametrize(
    ("any_server", "what"),
    [
        pytest.param(server, what, marks=() if at % 2 == (server == "mysql9") else pytest.mark.matrix)
        for server in ("mariadb", "mysql9")
        for at, what in enumerate(MEANWHILE)
    ],
    indirect=["any_server"],
)


@BETWEEN
def test_what_happens_to_the_rows_between_low_and_high_counts(verified: Callable[..., Verified], what: str) -> None:
    """The log goes on after the rows were looked up, and before they are staged."""
    run = verified(tables="on_truncate: stage, on_unlogged_change: record")
    numbers(run, 8)
    run.unlogged("DELETE FROM number WHERE id = 6", "UPDATE number SET v = 'silent' WHERE id = 3")
    run.target("UPDATE number SET v = 'fault' WHERE id IN (3, 4)", "INSERT INTO number VALUES (90, 'mine', NULL)")
    pending = [MEANWHILE[what]]

    def extract_on(_: str) -> None:
        if pending and sys._getframe(2).f_code.co_name == "_staged":
            run.source(*pending.pop())
        run.drain()

    done = repaired(run, "number", applied=False, extract_on=extract_on)
    assert (len(done.batches), pending) == (1, [])
    run.drain()
    assert sorted(map(repr, in_stage(run, "number", partial=True))) == sorted(map(repr, at_source(run, "number")))


@FIRST_MYSQL
def test_what_is_written_after_the_view_and_before_the_end_of_the_log_is_asked_for_counts(
    verified: Callable[..., Verified], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The looked-up rows are older than what the log brings from `low` on, not only from `high` on."""
    run = verified()
    numbers(run, 8)
    run.target("UPDATE number SET v = 'fault' WHERE id IN (3, 4)", "INSERT INTO number VALUES (90, 'mine', NULL)")
    pending: list[str] = []
    await_logged, high_of = SourceTables.await_logged, source_rows.high_of

    def looking_up(tables: SourceTables) -> None:
        pending.extend(MEANWHILE["rows"])
        await_logged(tables)

    def written(*arguments: Any) -> Any:
        if pending:
            run.source(*pending)
            pending.clear()
        return high_of(*arguments)

    monkeypatch.setattr(SourceTables, "await_logged", looking_up)
    monkeypatch.setattr(source_rows, "high_of", written)
    done = repaired(run, "number", applied=False)
    assert (done.rows, done.deletes, pending) == (2, 1, [])
    run.drain()
    assert sorted(in_stage(run, "number"), key=repr) == sorted(at_source(run, "number"), key=repr)


@FIRST_MARIADB
def test_the_stage_alone_tells_a_repaired_state_and_an_earlier_one(verified: Callable[..., Verified]) -> None:
    run = verified()
    numbers(run)
    run.source("UPDATE number SET v = 'second' WHERE id = 5")
    run.drain()
    moment = run.line.chain[-1].end
    run.unlogged("UPDATE number SET v = 'silent' WHERE id = 3")
    time.sleep(1.1)
    run.source("INSERT INTO number VALUES (70, 'third', NULL)")
    run.drain()
    done = repaired(run, "number")
    assert done.settled
    assert len(done.batches) == 1
    now = sorted(map(repr, at_source(run, "number")))
    assert sorted(map(repr, in_stage(run, "number"))) == now
    for as_of in (AsOf(position=moment.position), AsOf(time_us=moment.watermark_us)):
        then = {row[0]: row[1] for row in in_stage(run, "number", as_of=as_of)}
        assert (then[3], then[5], 70 in then) == ("v3", "second", False)
    coverage = run.line.coverage
    with Meta.open(run.line.pipeline.meta.url, run.line.pipeline.pipeline) as meta:
        before = meta.copied.repaired("shop", 1e6)
    run.line.lose_meta()
    with Meta.open(run.line.pipeline.meta.url, run.line.pipeline.pipeline) as meta:
        lease = meta.leases.acquire("shop", "me", 60)
        lease, _ = meta.rebuild(lease, run.line.chain)
        meta.leases.release(lease)
        assert meta.copied.repaired("shop", 1e6) == before == 1
    assert run.line.coverage == coverage
    assert manifests.verify(run.line.store, "shop", deep=True) == []


@FIRST_MYSQL
def test_of_several_source_tables_each_row_comes_from_its_own(verified: Callable[..., Verified]) -> None:
    run = verified()
    for name, first in (("all_a", 0), ("all_b", 100)):
        run.source(f"CREATE TABLE {name} (id INT PRIMARY KEY, v VARCHAR(20) COLLATE utf8mb4_general_ci, at DATETIME)")
        fill(run, range(first, first + 5), name)
    run.drain()
    own = run.line.origin.name
    run.target(
        f"CREATE TABLE `all` LIKE {own}.all_a",
        f"INSERT INTO `all` SELECT * FROM {own}.all_a UNION ALL SELECT * FROM {own}.all_b",
    )
    run.consumed()
    run.target("DELETE FROM `all` WHERE id = 103", "UPDATE `all` SET v = 'fault' WHERE id = 3",
               "INSERT INTO `all` VALUES (50, 'nobody', NULL)")  # fmt: skip
    run.unlogged("UPDATE all_b SET v = 'silent' WHERE id = 101")
    done = repaired(run, "all", applied=False)
    assert (done.rows, done.deletes) == (3, 1)
    chunks = [chunk for batch in run.line.chain for chunk in batch.chunks]
    assert {(one.table.partition(".")[2], one.rows) for one in chunks} == {("all_a", 2), ("all_b", 3)}
    state = {row[0]: row[1] for row in in_stage(run, "all")}
    assert state == {row[0]: row[1] for table in ("all_a", "all_b") for row in at_source(run, table)}


@FIRST_MARIADB
def test_what_cannot_be_repaired_by_key_is_refused_with_what_to_do(verified: Callable[..., Verified]) -> None:
    run = verified("no_key: rows", tables="columns: {mask: ['.*masked[.]id'], salt: env:SALT}")
    numbers(run, 5, key="")
    run.target("INSERT INTO number VALUES (5, 'v5', NULL)")
    with pytest.raises(Refused) as caught:
        repaired(run, "number")
    assert (caught.value.code, "lockstep snapshot" in caught.value.remedy) == ("repair.copy_instead", True)
    run.source("CREATE TABLE masked (id VARCHAR(20) PRIMARY KEY)", "INSERT INTO masked VALUES ('a')")
    run.drain()
    run.target("CREATE TABLE masked (id CHAR(64) CHARACTER SET ascii COLLATE ascii_bin PRIMARY KEY)")
    run.consumed()
    with pytest.raises(Refused) as caught:
        repaired(run, "masked")
    assert (caught.value.code, "lockstep snapshot" in caught.value.remedy) == ("repair.copy_instead", True)


@FIRST_MARIADB
def test_a_table_that_cannot_be_repaired_does_not_keep_others_from_it(verified: Callable[..., Verified]) -> None:
    run = verified("no_key: rows")
    numbers(run, 5, key="")
    run.target("INSERT INTO number VALUES (5, 'v5', NULL)")
    run.source("CREATE TABLE item (id INT PRIMARY KEY, v VARCHAR(9))", "INSERT INTO item VALUES (1, 'right')")
    run.drain()
    run.target("CREATE TABLE item (id INT PRIMARY KEY, v VARCHAR(9))", "INSERT INTO item VALUES (1, 'wrong')")
    run.consumed()
    done = repaired(run, "number", "item")
    error = outcome(done)
    assert (done.settled, list(done.refused), error and error.code) == (False, ["number"], "repair.copy_instead")
    assert done.after is not None
    assert {name: one.equal for name, one in done.after.items()} == {"item": True}


@pytest.mark.parametrize("key", ["id", "part, id"])
@FIRST_MARIADB
def test_the_error_value_of_an_enum_in_a_key_is_not_taken_for_the_label(
    verified: Callable[..., Verified], key: str
) -> None:
    """No condition finds the row with the error value; a row with the label '' is repaired beside it."""
    run = verified()
    lenient = "SET SESSION sql_mode = ''"
    columns = f"id ENUM('a', '', 'b') NOT NULL, part INT NOT NULL, v VARCHAR(9), PRIMARY KEY ({key})"
    rows = "(0, 1, 'error'), ('', 1, 'label'), ('a', 1, 'a')"
    run.source(f"CREATE TABLE coded ({columns})", lenient, f"INSERT INTO coded VALUES {rows}")
    run.drain()
    run.target(f"CREATE TABLE coded ({columns})", lenient, f"INSERT INTO coded VALUES {rows}")
    run.consumed()
    run.target("UPDATE coded SET v = 'fault' WHERE id + 0 IN (1, 2)")
    done = repaired(run, "coded", applied=False)
    assert (done.before["coded"].source.rows, done.before["coded"].found) == (2, {"target": 2})
    assert (done.rows, done.deletes) == (2, 0)
    run.target(
        lenient, "INSERT INTO coded VALUES (0, 2, 'surplus')" if "part" in key else "DELETE FROM coded WHERE id + 0 = 0"
    )
    done = repaired(run, "coded", applied=False)
    assert (done.rows, done.deletes, done.left_out, done.settled) == (2, 0, {"coded": 1}, False)
    assert done.error is not None
    assert (done.error.code, "lockstep snapshot" in done.error.remedy) == ("repair.copy_instead", True)
    run.target("UPDATE coded SET v = 'label' WHERE id + 0 = 2", "UPDATE coded SET v = 'a' WHERE id + 0 = 1")
    done = repaired(run, "coded", applied=False)
    assert (done.rows, done.left_out, done.error is not None) == (0, {"coded": 1}, True), "it is told alone"
    assert [one.key["id"] for one in run.verify("coded")["coded"].findings] == [ERROR_SHOWN]


@FIRST_MARIADB
def test_bytes_that_are_not_text_in_a_key_are_not_taken_for_their_digits(verified: Callable[..., Verified]) -> None:
    """No condition finds the row with the bytes; a row whose text is their digits is repaired beside it."""
    run = verified()
    run.source(
        "CREATE TABLE words (k VARCHAR(20) CHARACTER SET greek PRIMARY KEY, v INT)",
        "INSERT INTO words VALUES (X'D2', 1), ('0xd2', 2), ('d', 3)",
    )
    run.load("words")
    run.target("UPDATE words SET v = 7 WHERE v = 1")
    done = repaired(run, "words", applied=False)
    assert (done.rows, done.deletes, done.left_out, done.settled) == (0, 0, {"words": 1}, False)
    assert done.error is not None
    assert done.error.code == "repair.copy_instead"
    run.target("UPDATE words SET v = 8 WHERE v = 2")
    done = repaired(run, "words", applied=False)
    assert (done.rows, done.before["words"].found, done.left_out) == (1, {"target": 1}, {"words": 1})
    run.target("UPDATE words SET k = '0xd2d2', v = 1 WHERE v = 7", "UPDATE words SET v = 2 WHERE v = 8")
    assert {one.key["k"]: one.kind for one in run.verify("words")["words"].findings} == {
        "(not text) 0xd2": "missing", "0xd2d2": "surplus",
    }  # fmt: skip


@FIRST_MARIADB
def test_a_value_of_bytes_that_are_not_text_is_shown_beside_its_digits(verified: Callable[..., Verified]) -> None:
    run = verified()
    run.source(
        "CREATE TABLE words (id INT PRIMARY KEY, v VARCHAR(20) CHARACTER SET greek)",
        "INSERT INTO words VALUES (1, X'D2')",
    )
    run.load("words")
    run.target("UPDATE words SET v = '0xd2'")
    (finding,) = run.verify("words")["words"].findings
    assert finding.columns == {"v": ("(not text) 0xd2", "0xd2")}


@FIRST_MYSQL
def test_rows_outside_a_filter_are_deleted_and_masks_are_applied(verified: Callable[..., Verified]) -> None:
    run = filtered_and_masked(verified)
    run.target("UPDATE number SET v = REPEAT('0', 64) WHERE id = 1", "INSERT INTO number VALUES (35, '', NULL)")
    done = repaired(run, "number")
    assert (done.rows, done.deletes, done.settled) == (1, 1, True)
    assert run.verify("number")["number"].equal


@pytest.mark.parametrize(
    "killed", [pytest.param("before it is applied", marks=pytest.mark.matrix), "before it is recorded"]
)
@FIRST_MYSQL
def test_what_a_killed_repair_has_staged_is_applied_and_neither_looked_up_nor_counted_twice(
    verified: Callable[..., Verified], monkeypatch: pytest.MonkeyPatch, killed: str
) -> None:
    run = verified()
    run.line.change(repair="max_rows_per_day: 2")
    numbers(run)
    run.target("UPDATE number SET v = 'fault' WHERE id IN (3, 4)")
    with monkeypatch.context() as patch:
        owner, name = (sys.modules[__name__], "write") if killed.endswith("applied") else (Batches, "record_copied")

        def kill(*_: Any) -> None:
            raise KeyboardInterrupt

        patch.setattr(owner, name, kill)
        with pytest.raises(KeyboardInterrupt):
            repaired(run, "number")
    done = repaired(run, "number")
    assert (done.settled, done.batches, done.before["number"].differences) == (True, (), 0)
    chunks = [chunk for batch in run.line.chain for chunk in batch.chunks]
    assert [one.rows for one in chunks if one.by_key] == [2]
    assert run.verify("number")["number"].equal


@FIRST_MARIADB
def test_no_delete_is_staged_that_another_target_could_not_apply(verified: Callable[..., Verified]) -> None:
    run = verified()
    rule = {"database": run.place, "table": "other", "key": ["email"]}
    other = {"name": "other", "connections": ["env:TARGET"], "tables": {"person": rule}}
    run.line.change(targets=[run.line.pipeline.targets[0].model_dump(exclude_unset=True), other])
    run.source("CREATE TABLE person (id INT PRIMARY KEY, email VARCHAR(20) NOT NULL)",
               "INSERT INTO person VALUES (1, 'a'), (2, 'b')")  # fmt: skip
    run.load("person")
    run.target("INSERT INTO person VALUES (3, 'surplus')")
    with pytest.raises(Refused) as refused:
        repaired(run, "person")
    assert refused.value.code == "repair.copy_instead"
    assert not any(batch.copied for batch in run.line.chain)


@FIRST_MARIADB
def test_a_repair_waits_for_a_verification_and_for_a_copy(verified: Callable[..., Verified]) -> None:
    run = verified()
    numbers(run, 5)
    run.target("UPDATE number SET v = 'fault' WHERE id = 2")
    with Meta.open(run.line.pipeline.meta.url, run.line.pipeline.pipeline) as meta:
        with verifier_lease(opened(run.line.pipeline, meta), "copy"), pytest.raises(RetryLater) as caught:
            repaired(run, "number")
        assert caught.value.code == "lease.held"
        with copier_lease(opened(run.line.pipeline, meta), "shop"), pytest.raises(RetryLater) as caught:
            repaired(run, "number")
        assert caught.value.code == "lease.held"
    assert repaired(run, "number").settled


@FIRST_MARIADB
def test_the_command_shows_stages_and_counts_chosen_findings(
    verified: Callable[..., Verified], commands: ForkedCommands
) -> None:
    run = verified()
    numbers(run, 9)
    run.target("UPDATE number SET v = 'fault' WHERE id IN (2, 3)")
    line = Repaired(run, commands)
    counts = line("verify", "--mode", "count").document["evidence"]
    assert line("repair").error["code"] == "verify.no_evidence"
    path = counts[counts.index("evidence/") :]
    assert line("repair", "--evidence", path).error["code"] == "verify.no_evidence"
    first, second = line("verify").document["tables"][0]["findings"]
    told = line.ok("repair", "number", "--dry-run")
    assert (told["batches"], told["rows"], told["after"]) == ([], 0, None)
    assert [one["columns"] for one in told["before"][0]["findings"]] == [
        {"v": {"source": "v2", "target": "fault"}}, {"v": {"source": "v3", "target": "fault"}}
    ]  # fmt: skip
    staged = line.ok("repair", "--finding", first["id"], "--stage-only")
    assert (len(staged["batches"]), staged["rows"], staged["deletes"]) == (1, 1, 0)
    assert [one["key"] for one in staged["before"][0]["findings"]] == [first["key"]] != [second["key"]]
    assert line("repair", "--finding", "0").error["code"] == "usage.unknown_name"
    assert line("repair", "other").error["code"] == "usage.unknown_name"


@FIRST_MARIADB
def test_the_deletes_of_a_repair_lack_nothing_that_a_target_needs(
    verified: Callable[..., Verified], commands: ForkedCommands
) -> None:
    """They have their key alone. With values that the log leaves out, no row could be set aside, and no virtual column
    of MariaDB fill a plain one."""
    run = verified("on_row_error: quarantine")
    run.source(
        "CREATE TABLE item (id INT PRIMARY KEY, n INT, v INT AS (n + 1) VIRTUAL)",
        "INSERT INTO item (id, n) VALUES (1, 1), (2, 2)",
    )
    run.target("CREATE TABLE item (id INT PRIMARY KEY, n INT, v INT)")
    line = Repaired(run, commands)
    line.ok("run")
    run.target("INSERT INTO item (id, n, v) VALUES (3, 3, 4)", "UPDATE item SET n = 5 WHERE id = 2")
    assert line("verify").code == 4
    repaired = line.ok("repair")
    assert (repaired["equal"], repaired["rows"], repaired["deletes"]) == (True, 1, 1)
    assert line.rows("item", columns="id, n, v") == at_source(run, "item")
