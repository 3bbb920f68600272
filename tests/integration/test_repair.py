"""Repair: every planted fault goes, other rows keep their versions, and newer changes always win."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from contextlib import closing
from typing import Any

import pytest

from cdc_core.errors import DataAtRisk, Refused, RetryLater
from cdc_core.meta.batches import Batches
from cdc_core.operations.copy.copier import copier_lease
from cdc_core.operations.repair import claims
from cdc_core.operations.repair.repairer import Result, repair
from cdc_core.operations.status_report import health
from cdc_core.operations.verify import source_rows
from cdc_core.operations.verify.canonical import ERROR_SHOWN
from cdc_core.operations.verify.source_rows import SourceTables
from cdc_core.operations.verify.verifier import verify_target
from cdc_core.operations.verify.verify_job import verifier_lease
from cdc_core.stage import manifest as manifests
from cdc_core.stage.as_of import AsOf
from cdc_core.targets.bookkeeping.table_states import DEFINITIONS, STATES
from tests.integration.one_server import FIRST_MARIADB, FIRST_MYSQL
from tests.integration.test_target_session import HOSTILE, INIT_CONNECT, with_globals
from tests.integration.test_verify import TYPES, filtered_and_masked, insert_typed, typed
from tests.lab.copying import at_source, in_stage, is_equal
from tests.lab.pipeline_file import target
from tests.lab.refusals import raises
from tests.lab.verified import Verified

SHARDED = "sharding: {key: id, function: mod, databases: 1, tables: 2}"


@pytest.mark.matrix
def test_every_planted_fault_is_repaired_and_other_rows_keep_their_versions(verified: Callable[..., Verified]) -> None:
    run = verified(SHARDED, table="{table}_{t}")
    typed(run)
    insert_typed(run, range(2 * len(TYPES)))
    run.source(
        "CREATE TABLE number (id INT PRIMARY KEY, v VARCHAR(20) COLLATE utf8mb4_general_ci, at DATETIME, f FLOAT)"
    )
    run.source(*(f"INSERT INTO number VALUES ({n}, 'v{n}', '2024-01-01 10:00:00', 1.234567)" for n in range(40)))
    for table in ("types", "number"):
        run.target(*(f"CREATE TABLE {table}_{n} LIKE {run.origin.name}.{table}" for n in (0, 1)))
    run.ok("run")
    versions = ("types_0", "types_1", "number_0", "number_1")
    before = {(table, row) for table in versions for row in run.rows(table, columns="id, _cdc_version")}
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
    assert run("verify").code == 4
    told = run("repair", "--dry-run")
    assert differing(run) == [f"{len(TYPES) + 14} rows of number, types differ from the source."]
    assert (told.code, told.document["batches"], told.document["equal"]) == (0, [], False)
    found = {table["table"]: sum(table["differences"].values()) for table in told.document["before"]}
    assert found == {"types": len(TYPES), "number": 14}
    repaired = run.ok("repair")
    assert repaired["equal"] is True
    assert differing(run) == []
    assert (repaired["rows"], repaired["deletes"]) == (len(TYPES) + 12, 2)
    assert all(entry["problems"] == [] for entry in repaired["ledgers"])
    for table in ("types", "number"):
        assert sorted(run.rows(f"{table}_0", f"{table}_1"), key=repr) == at_source(run, table)
    after = {(table, row) for table in versions for row in run.rows(table, columns="id, _cdc_version")}
    touched = {row[0] for table, row in before ^ after if table.startswith("number")}
    assert touched == {1, 6, 8, 10, 12, 14, 16, 18, 21, 23, 30, 31, 33, 99}
    assert {row[0] for table, row in before ^ after if table.startswith("types")} == set(range(len(TYPES)))
    assert run.ok("verify")["equal"] is True
    staged = sorted(repr(row[:3]) for row in in_stage(run, "number"))  # the server prints a FLOAT with six digits
    assert staged == sorted(repr(row[:3]) for row in at_source(run, "number"))


LONG = 12_000
LONG_KEYS = {
    "falling": ("g INT NOT NULL, k VARCHAR(700) NOT NULL, v INT, PRIMARY KEY (g DESC, k))", "1, CONCAT(begin, n), n"),
    "hashed": (
        "k VARCHAR(1600) CHARACTER SET latin1, v INT, PRIMARY KEY USING HASH (k)) ENGINE = MEMORY",
        "CONCAT(REPEAT('a', 1500), n), n",
    ),
}
DIGITS = "(" + " UNION ALL ".join(f"SELECT {digit} d" for digit in range(10)) + ")"
SEQUENCE = (
    f"(SELECT LPAD(a.d + 10 * b.d + 100 * c.d + 1000 * e.d + 10000 * f.d, 8, '0') AS n, REPEAT('a', 600) AS begin "
    f"FROM {DIGITS} a, {DIGITS} b, {DIGITS} c, {DIGITS} e, {DIGITS} f HAVING n < 12000)"
)


@pytest.mark.parametrize("any_server", ["mariadb", pytest.param("mysql9", marks=pytest.mark.matrix)], indirect=True)
def test_keys_that_begin_alike_are_copied_verified_and_repaired_whatever_the_server_has_set(
    verified: Callable[..., Verified],
) -> None:
    run = verified(snapshot="chunk_mib: 1")
    server = run.origin.sql
    for table, (columns, values) in LONG_KEYS.items():
        run.source(
            "SET SESSION max_heap_table_size = 256 << 20",
            f"CREATE TABLE {table} ({columns}",
            f"INSERT INTO {table} SELECT {values} FROM {SEQUENCE} numbers ORDER BY n * 1327 MOD {LONG + 1}",
        )
        run.target(f"CREATE TABLE {table} LIKE {run.origin.name}.{table}", f"ALTER TABLE {table} ENGINE = InnoDB")
    run.begin_now()
    admin = "CONNECTION ADMIN" if run.origin.mariadb else "CONNECTION_ADMIN"
    run.origin.execute_on_server(
        "CREATE USER lean IDENTIFIED BY 'x'", "GRANT ALL ON *.* TO lean", f"REVOKE SUPER, {admin} ON *.* FROM lean"
    )
    run.environ |= dict.fromkeys(("SOURCE", "TARGET"), f"mysql://lean:x@{server.host}:{server.port}")

    def hostile(command: str, *arguments: str) -> Any:
        with with_globals(server, {**HOSTILE, "init_connect": INIT_CONNECT}):
            return run(command, *arguments)

    try:
        for command in (("extract",), ("snapshot",), ("run",)):
            done = hostile(*command)
            assert done.code == 0, done.document
        chunks = [chunk.table for manifest in run.chain for chunk in manifest.chunks]
        assert {t: chunks.count(f"{run.origin.name}.{t}") > 1 for t in LONG_KEYS} == dict.fromkeys(LONG_KEYS, True), (
            chunks
        )
        equal = "SELECT COUNT(*), SUM(v), COUNT(DISTINCT v) FROM {}.{}"
        with run.origin.session() as asked:
            for table in LONG_KEYS:
                (found,) = asked(equal.format(run.place, table))
                assert found == (LONG, LONG * (LONG - 1) // 2, LONG), table
        for table in LONG_KEYS:
            run.target(f"DELETE FROM {table} WHERE v = 17", f"UPDATE {table} SET v = -1 WHERE v = {LONG - 1}")
        done = hostile("verify")
        found = {table["table"]: sum(table["differences"].values()) for table in done.document["tables"]}
        assert found == dict.fromkeys(LONG_KEYS, 2)
        assert hostile("repair").document["equal"] is True
    finally:
        run.origin.execute_on_server("DROP USER lean")


def differing(run: Verified) -> list[str]:
    """What `lockstep status` says of rows that a verification has found to differ; it fails by them."""
    done = run("status")
    found = [problem["what"] for problem in done.document["problems"] if problem["code"] == "verify.differs"]
    assert done.code == (4 if found else 0)
    return found


def repaired(run: Verified, *tables: str, authoritative: bool = False, applied: bool = True) -> Result:
    """Repairs what a verification finds. applied: the target then gets what is staged, as by a run."""
    results = run.verify(*tables)
    keys = {name: [finding.key for finding in result.findings] for name, result in results.items() if result.findings}
    apply = (lambda: [write(run, name) for name in keys]) if applied else None
    with verifier_lease(run.opened, "copy") as lease:
        return repair(run.job(lease=lease), keys, apply=apply, authoritative=authoritative)


def write(run: Verified, table: str) -> None:
    """The target's table becomes what the stage says; rows that are equal are not touched."""
    rows = in_stage(run, table, partial=True)
    connected = closing(run.origin.sql.connect(run.place, autocommit=True))
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
"""By name: a type of a column of a key, and its value in three keys: of a row that differs, of one that only the target
has, and of one that it lacks."""


@FIRST_MYSQL
def test_rows_are_found_by_keys_of_every_type(verified: Callable[..., Verified]) -> None:
    run = verified()
    zone = "SET SESSION sql_mode = '', time_zone = '+00:00'"
    names = [f"k{number}" for number in range(6)]
    kinds = {name: dict(list(KEYS.items())[number :: len(names)]) for number, name in enumerate(names)}

    def inserted(name: str, place: int, v: str) -> str:
        return f"INSERT IGNORE INTO {name} VALUES ({', '.join(kind[place] for kind in kinds[name].values())}, '{v}')"

    for name in names:
        columns = ", ".join(f"k_{column} {kind} NOT NULL" for column, (kind, *_) in kinds[name].items())
        key = ", ".join(f"k_{column}" for column in kinds[name])
        run.source(f"CREATE TABLE {name} ({columns}, v VARCHAR(9), PRIMARY KEY ({key}))", zone)
        run.source(zone, inserted(name, 1, "wrong"))
    run.load(*names)
    run.unlogged(
        zone, *(f"UPDATE {name} SET v = 'right'" for name in names), *(inserted(name, 3, "new") for name in names)
    )
    run.target(zone, *(inserted(name, 2, "x") for name in names))
    done = repaired(run, *names)
    assert {name: result.error for name, result in (done.after or {}).items()} == dict.fromkeys(names)
    assert {name: result.source_rows for name, result in (done.after or {}).items()} == dict.fromkeys(names, 2)
    deleted = {table for table, keys in done.claimed.items() if any(claim.shard < 0 for claim in keys.values())}
    assert (sorted(deleted), done.rows) == (sorted(names), 2 * len(names))
    assert all(result.equal for result in run.verify(*names).values())  # the target was written from the stage alone


VERSIONED = "ALTER TABLE number ADD COLUMN _cdc_version VARBINARY(84) INVISIBLE"
FOREIGN = "7FFFFFFFFFFFFFFF7FFFFFFFFFFFFFFF00000000000000007A"


@pytest.mark.parametrize(
    ("rule", "newer"),
    [
        ("", f"_cdc_version = X'{FOREIGN}' WHERE id = 3"),
        ("freshness: at", "at = at + INTERVAL 1 HOUR WHERE id IN (3, 9)"),
    ],
    ids=["version", "freshness"],
)
@FIRST_MYSQL
def test_a_row_that_is_newer_than_the_source_is_replaced_only_if_the_source_is_authoritative(
    verified: Callable[..., Verified], rule: str, newer: str
) -> None:
    run = verified(rule)
    run.numbers(6)
    run.source("INSERT INTO number VALUES (9, 'new', NULL)")
    run.ok("run")
    run.target(
        f"UPDATE number SET v = 'fault', {newer}",
        "UPDATE number SET v = 'fault' WHERE id = 4",
        "INSERT INTO number (id, v, at) VALUES (7, 'surplus', '2100-01-01')",
    )
    assert run("verify").code == 4
    kept = run("repair")
    assert (kept.code, kept.document["error"]["code"]) == (4, "verify.differs")
    different = set(run.rows("number", columns="id, v, at")) ^ set(at_source(run, "number"))
    assert {row[0] for row in different} == {3}
    repaired = run.ok("repair", "--authoritative")
    assert (repaired["equal"], repaired["rows"]) == (True, 1)
    assert rule or repaired["forgotten_versions"] == 1
    assert run.rows("number", columns="id, v, at") == sorted(at_source(run, "number"))


@FIRST_MYSQL
def test_behind_a_fence_rows_are_verified_and_a_repair_changes_nothing(shop: Verified) -> None:
    shop.target(VERSIONED, f"UPDATE number SET v = 'foreign', _cdc_version = X'{FOREIGN}' WHERE id = 3")
    shop.target(f"CREATE TABLE {STATES} ({DEFINITIONS[STATES]})")
    shop.target(f"INSERT INTO {STATES} (table_name, fence) VALUES ('number', 'the application writes here')")
    assert shop.verify("number")["number"].differences == 1
    with raises(Refused, "target.fenced"):
        repaired(shop, "number", authoritative=True)
    shop.target(f"DELETE FROM {STATES}")
    assert repaired(shop, "number", authoritative=True).settled


@FIRST_MARIADB
def test_above_the_limit_of_a_day_nothing_is_staged_and_status_says_so(shop: Verified) -> None:
    shop.change(repair="max_rows_per_day: 5")
    shop.target("UPDATE number SET v = 'fault' WHERE id < 3")
    assert repaired(shop, "number").settled
    shop.target("UPDATE number SET v = 'fault' WHERE id < 3")
    batches = [manifest.batch_id for manifest in shop.chain if manifest.copied]
    with raises(DataAtRisk, "repair.limit"):
        repaired(shop, "number")
    assert [manifest.batch_id for manifest in shop.chain if manifest.copied] == batches
    assert alarms(shop) == [("repair copy", "repair.limit", 4)]
    with pytest.raises(DataAtRisk):
        repaired(shop, "number")
    shop.target("UPDATE number SET v = 'v2' WHERE id = 2")
    assert repaired(shop, "number").settled  # 3 + 2
    assert alarms(shop) == []
    shop.target("UPDATE number SET v = 'fault' WHERE id < 3")
    with pytest.raises(DataAtRisk):
        repaired(shop, "number")
    assert alarms(shop) == [("repair copy", "repair.limit", 4)]
    shop.target("UPDATE number SET v = CONCAT('v', id) WHERE id < 3")
    verify_target(shop.opened, "copy")
    assert alarms(shop) == []


def alarms(run: Verified) -> list[tuple[str, str, int]]:
    """Of repairs, as `lockstep status` and the page show them."""
    found = health(run.meta.status.find(), run.pipeline)
    return [
        (finding.subject, finding.code, finding.exit_code) for finding in found if finding.subject.startswith("repair")
    ]


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
def test_what_happens_to_the_rows_between_low_and_high_counts(
    verified: Callable[..., Verified], monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    """The log goes on after the rows were looked up, and before they are staged."""
    run = verified(tables="on_truncate: stage, on_unlogged_change: record")
    run.numbers(8)
    run.unlogged("DELETE FROM number WHERE id = 6", "UPDATE number SET v = 'silent' WHERE id = 3")
    run.target("UPDATE number SET v = 'fault' WHERE id IN (3, 4)", "INSERT INTO number VALUES (90, 'mine', NULL)")
    pending = [MEANWHILE[what]]

    def extract_on(*_: Any, where: str) -> None:
        while pending:
            run.source(*pending.pop())
        run.extract()

    monkeypatch.setattr(claims, "extract_up_to", extract_on)
    if what == "rows":
        assert len(repaired(run, "number", applied=False).batches) == 1
    else:
        with raises(RetryLater, "verify.unsettled"):
            repaired(run, "number", applied=False)
        assert not any(batch.copied for batch in run.chain), "it would be older than what has happened since"
        if what == "alter":
            run.target("ALTER TABLE number ADD COLUMN extra INT NULL")
        repaired(run, "number", applied=False)
    assert pending == []
    run.extract()
    assert sorted(map(repr, in_stage(run, "number", partial=True))) == sorted(map(repr, at_source(run, "number")))


@FIRST_MYSQL
def test_what_is_written_after_the_view_and_before_the_end_of_the_log_is_asked_for_counts(
    verified: Callable[..., Verified], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The looked-up rows are older than what the log brings from `low` on, not only from `high` on."""
    run = verified()
    run.numbers(8)
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
    run.extract()
    is_equal(run, "number")


@FIRST_MARIADB
def test_the_stage_alone_tells_a_repaired_state_and_an_earlier_one(shop: Verified) -> None:
    shop.source("UPDATE number SET v = 'second' WHERE id = 5")
    shop.extract()
    moment = shop.chain[-1].end
    shop.unlogged("UPDATE number SET v = 'silent' WHERE id = 3")
    time.sleep(1.1)
    shop.source("INSERT INTO number VALUES (70, 'third', NULL)")
    shop.extract()
    done = repaired(shop, "number")
    assert done.settled
    assert len(done.batches) == 1
    now = sorted(map(repr, at_source(shop, "number")))
    assert sorted(map(repr, in_stage(shop, "number"))) == now
    for as_of in (AsOf(position=moment.position), AsOf(time_us=moment.watermark_us)):
        then = {row[0]: row[1] for row in in_stage(shop, "number", as_of=as_of)}
        assert (then[3], then[5], 70 in then) == ("v3", "second", False)
    coverage = shop.coverage
    before = shop.meta.copied.repaired("shop", 1e6)
    shop.lose_meta()
    shop.rebuild()
    assert shop.meta.copied.repaired("shop", 1e6) == before == 1
    assert shop.coverage == coverage
    assert manifests.verify(shop.store, "shop", deep=True) == []


@FIRST_MYSQL
def test_of_several_source_tables_each_row_comes_from_its_own(verified: Callable[..., Verified]) -> None:
    run = verified()
    run.joined(range(5), range(100, 105))
    run.target("DELETE FROM `all` WHERE id = 103", "UPDATE `all` SET v = 'fault' WHERE id = 3",
               "INSERT INTO `all` VALUES (50, 'nobody', NULL)")  # fmt: skip
    run.unlogged("UPDATE all_b SET v = 'silent' WHERE id = 101")
    done = repaired(run, "all", applied=False)
    assert (done.rows, done.deletes) == (3, 1)
    chunks = [chunk for batch in run.chain for chunk in batch.chunks]
    assert {(chunk.table.partition(".")[2], chunk.rows) for chunk in chunks} == {("all_a", 2), ("all_b", 3)}
    state = {row[0]: row[1] for row in in_stage(run, "all")}
    assert state == {row[0]: row[1] for table in ("all_a", "all_b") for row in at_source(run, table)}


def refuses(run: Verified, table: str) -> None:
    """Only a copy repairs the table."""
    with raises(Refused, "repair.copy_instead") as caught:
        repaired(run, table, applied=False)
    assert "lockstep snapshot" in caught.value.remedy


@FIRST_MARIADB
def test_what_cannot_be_repaired_by_key_is_refused_and_keeps_no_other_table_from_it(
    verified: Callable[..., Verified],
) -> None:
    run = verified("no_key: rows", tables="columns: {mask: ['.*masked[.]id'], salt: env:SALT}")
    run.numbers(5, key="")
    run.target("INSERT INTO number VALUES (5, 'v5', NULL)")
    run.source(
        "CREATE TABLE masked (id VARCHAR(20) PRIMARY KEY)", "INSERT INTO masked VALUES ('a')",
        "CREATE TABLE item (id INT PRIMARY KEY, v VARCHAR(9))", "INSERT INTO item VALUES (1, 'right')",
    )  # fmt: skip
    run.extract()
    run.target(
        "CREATE TABLE masked (id CHAR(64) CHARACTER SET ascii COLLATE ascii_bin PRIMARY KEY)",
        "CREATE TABLE item (id INT PRIMARY KEY, v VARCHAR(9))", "INSERT INTO item VALUES (1, 'wrong')",
    )  # fmt: skip
    run.consumed()
    for table in ("number", "masked"):
        refuses(run, table)
    done = repaired(run, "number", "item")
    error = done.error
    assert (done.settled, list(done.refused), error and error.code) == (False, ["number"], "repair.copy_instead")
    assert done.after is not None
    assert {name: result.equal for name, result in done.after.items()} == {"item": True}


@pytest.mark.parametrize("key", ["id", "part, id"])
@FIRST_MARIADB
def test_the_error_value_of_an_enum_in_a_key_is_not_taken_for_the_label(
    verified: Callable[..., Verified], key: str
) -> None:
    """No condition finds the row with the error value, and those with the label '' are not taken for it."""
    run = verified()
    lenient = "SET SESSION sql_mode = ''"
    columns = f"id ENUM('a', '', 'b') NOT NULL, part INT NOT NULL, v VARCHAR(9), PRIMARY KEY ({key})"
    rows = "(0, 1, 'error'), ('', 1, 'label'), ('a', 1, 'a')"
    run.source(f"CREATE TABLE coded ({columns})", lenient, f"INSERT INTO coded VALUES {rows}")
    run.extract()
    run.target(f"CREATE TABLE coded ({columns})", lenient, f"INSERT INTO coded VALUES {rows}")
    run.consumed()
    run.target("UPDATE coded SET v = 'fault' WHERE id + 0 IN (1, 2)")
    done = repaired(run, "coded", applied=False)
    assert (done.before["coded"].source_rows, done.before["coded"].found) == (2, {"target": 2})
    assert (done.rows, done.deletes) == (2, 0)
    run.target(
        lenient, "INSERT INTO coded VALUES (0, 2, 'surplus')" if "part" in key else "DELETE FROM coded WHERE id + 0 = 0"
    )
    refuses(run, "coded")
    assert ERROR_SHOWN in [finding.key["id"] for finding in run.verify("coded")["coded"].findings]


@FIRST_MARIADB
def test_bytes_that_are_not_text_are_not_taken_for_their_digits(verified: Callable[..., Verified]) -> None:
    """No condition finds the row whose key has the bytes, and one whose text is their digits is not taken for it."""
    run = verified()
    run.source(
        "CREATE TABLE words (k VARCHAR(20) CHARACTER SET greek PRIMARY KEY, v INT)",
        "INSERT INTO words VALUES (X'D2', 1), ('0xd2', 2), ('d', 3)",
        "CREATE TABLE shown (id INT PRIMARY KEY, v VARCHAR(20) CHARACTER SET greek)",
        "INSERT INTO shown VALUES (1, X'D2')",
    )
    run.load("words", "shown")
    run.target("UPDATE words SET v = 7 WHERE v = 1", "UPDATE shown SET v = '0xd2'")
    refuses(run, "words")
    run.target("UPDATE words SET k = '0xd2d2', v = 1 WHERE v = 7")
    verified_tables = run.verify("words", "shown")
    assert {difference.key["k"]: difference.kind for difference in verified_tables["words"].findings} == {
        "(not text) 0xd2": "missing", "0xd2d2": "surplus",
    }  # fmt: skip
    (finding,) = verified_tables["shown"].findings
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
    shop: Verified, monkeypatch: pytest.MonkeyPatch, killed: str
) -> None:
    shop.change(repair="max_rows_per_day: 2")
    shop.target("UPDATE number SET v = 'fault' WHERE id IN (3, 4)")
    with monkeypatch.context() as patch:
        owner, name = (sys.modules[__name__], "write") if killed.endswith("applied") else (Batches, "record_copied")

        def kill(*_: Any) -> None:
            raise KeyboardInterrupt

        patch.setattr(owner, name, kill)
        with pytest.raises(KeyboardInterrupt):
            repaired(shop, "number")
    done = repaired(shop, "number")
    assert (done.settled, done.batches, done.before["number"].differences) == (True, (), 0)
    chunks = [chunk for batch in shop.chain for chunk in batch.chunks]
    assert [chunk.rows for chunk in chunks if chunk.by_key] == [2]
    assert shop.verify("number")["number"].equal


@FIRST_MARIADB
def test_no_delete_is_staged_that_another_target_could_not_apply(verified: Callable[..., Verified]) -> None:
    run = verified()
    rule = {"database": run.place, "table": "other", "key": ["email"]}
    other = target("other", "env:TARGET", {"person": rule})
    run.change(targets=[run.pipeline.targets[0].model_dump(exclude_unset=True), other])
    run.source("CREATE TABLE person (id INT PRIMARY KEY, email VARCHAR(20) NOT NULL)",
               "INSERT INTO person VALUES (1, 'a'), (2, 'b')")  # fmt: skip
    run.load("person")
    run.target("INSERT INTO person VALUES (3, 'surplus')")
    refuses(run, "person")
    assert not any(batch.copied for batch in run.chain)


@FIRST_MARIADB
def test_a_repair_waits_for_a_verification_and_for_a_copy(verified: Callable[..., Verified]) -> None:
    run = verified()
    run.numbers(5)
    run.target("UPDATE number SET v = 'fault' WHERE id = 2")
    with verifier_lease(run.opened, "copy"), raises(RetryLater, "lease.held"):
        repaired(run, "number")
    with copier_lease(run.opened, "shop"), raises(RetryLater, "lease.held"):
        repaired(run, "number")
    assert repaired(run, "number").settled


@FIRST_MARIADB
def test_the_command_shows_stages_and_counts_chosen_findings(verified: Callable[..., Verified]) -> None:
    run = verified()
    run.numbers(9)
    run.target("UPDATE number SET v = 'fault' WHERE id IN (2, 3)")
    counts = run("verify", "--mode", "count").document["evidence"]
    assert run("repair").error["code"] == "verify.no_evidence"
    path = counts[counts.index("evidence/") :]
    assert run("repair", "--evidence", path).error["code"] == "verify.no_evidence"
    first, second = run("verify").document["tables"][0]["findings"]
    told = run.ok("repair", "number", "--dry-run")
    assert (told["batches"], told["rows"], told["after"]) == ([], 0, None)
    assert [finding["columns"] for finding in told["before"][0]["findings"]] == [
        {"v": {"source": "v2", "target": "fault"}}, {"v": {"source": "v3", "target": "fault"}}
    ]  # fmt: skip
    staged = run.ok("repair", "--finding", first["id"], "--stage-only")
    assert (len(staged["batches"]), staged["rows"], staged["deletes"]) == (1, 1, 0)
    assert [finding["key"] for finding in staged["before"][0]["findings"]] == [first["key"]] != [second["key"]]
    assert run("repair", "--finding", "0").error["code"] == "usage.unknown_name"
    assert run("repair", "other").error["code"] == "usage.unknown_name"


@FIRST_MARIADB
def test_the_deletes_of_a_repair_lack_nothing_that_a_target_needs(verified: Callable[..., Verified]) -> None:
    """They have their key alone. With values that the log leaves out, no row could be set aside, and no virtual column
    of MariaDB fill a plain one."""
    run = verified("on_row_error: quarantine")
    run.source(
        "CREATE TABLE item (id INT PRIMARY KEY, n INT, v INT AS (n + 1) VIRTUAL)",
        "INSERT INTO item (id, n) VALUES (1, 1), (2, 2)",
    )
    run.target("CREATE TABLE item (id INT PRIMARY KEY, n INT, v INT)")
    run.ok("run")
    run.target("INSERT INTO item (id, n, v) VALUES (3, 3, 4)", "UPDATE item SET n = 5 WHERE id = 2")
    assert run("verify").code == 4
    repaired = run.ok("repair")
    assert (repaired["equal"], repaired["rows"], repaired["deletes"]) == (True, 1, 1)
    assert run.rows("item", columns="id, n, v") == at_source(run, "item")
