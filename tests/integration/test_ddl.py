"""Definitions of all shards, altered on real servers: killed, locked, drifted, taken back."""

from __future__ import annotations

import itertools
import shutil
import sqlite3
import sys
import threading
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pymysql
import pytest

from cdc_core.errors import LockstepError, Refused, RetryLater, UsageError
from cdc_core.meta import Meta
from cdc_core.meta.rollouts import DONE, OPEN
from cdc_core.operations.ddl import rollout as rollouts
from cdc_core.operations.ddl.rollout import Decided, Options, RolloutWork, decide, roll, rollout_lease
from cdc_core.stage import manifest as manifests
from cdc_core.stage.stores import open_stage
from cdc_core.targets.bookkeeping.table_states import DEFINITIONS, STATES
from tests.integration.one_server import FIRST_MARIADB, ON_MYSQL
from tests.lab.forked_commands import ROOT
from tests.lab.made_batches import manifest, schema
from tests.lab.opened import opened
from tests.lab.pipeline_file import made_pipeline, target
from tests.lab.shell import export

ADD = """
-- migrate:up
ALTER TABLE orders ADD COLUMN note VARCHAR(40) NULL COMMENT 'a; b';
ALTER TABLE orders ADD INDEX by_v (v); -- two steps
-- migrate:down
ALTER TABLE orders DROP INDEX by_v;
ALTER TABLE orders DROP COLUMN note;
"""
COLUMNS = "id BIGINT PRIMARY KEY, v INT NOT NULL, CHECK (v > -5)"


@dataclass(frozen=True)
class Shards:
    """16 shards in 4 databases of one server; the source's table is there, too."""

    server: Any
    name: str
    work: RolloutWork

    def on(self, *statements: str) -> list[tuple[Any, ...]]:
        return self.server.run(*statements)

    @property
    def names(self) -> list[str]:
        return [f"{self.name}_{d}.orders_{t}" for d in range(4) for t in range(4)]

    def decided(self, text: str = ADD, direction: str = "up", options: Options | None = None) -> Decided:
        return decide(self.work, text, "add.sql", direction, options or Options())

    def rolled(self, text: str = ADD, direction: str = "up", **options: Any) -> Decided:
        chosen = Options(**options)
        with rollout_lease(self.work) as lease:
            return roll(self.work, self.decided(text, direction, chosen), lease, chosen)

    def columns(self) -> dict[str, list[str]]:
        """Of each shard, the names of its columns and indexes."""
        found: dict[str, list[str]] = {}
        for view, column in (("COLUMNS", "COLUMN_NAME"), ("STATISTICS", "INDEX_NAME")):
            rows = self.on(
                f"SELECT CONCAT(TABLE_SCHEMA, '.', TABLE_NAME), {column} FROM information_schema.{view} "
                f"WHERE TABLE_SCHEMA LIKE '{self.name}\\_%' AND TABLE_NAME LIKE 'orders%' ORDER BY 1, 2"
            )
            for name, kind in rows:
                found.setdefault(name, []).append(kind)
        return found

    @property
    def equal(self) -> list[str]:
        """What all shards have; fails where they differ."""
        found = self.columns()
        assert sorted(found) == self.names
        first, *others = found.values()
        assert all(other == first for other in others)
        return first


@pytest.fixture
def shards(any_server: Any, tmp_path: Path) -> Iterator[Shards]:
    name = f"t_{uuid.uuid4().hex[:10]}"
    any_server.run(f"CREATE DATABASE {name}", f"CREATE TABLE {name}.orders ({COLUMNS})")
    for d in range(4):
        any_server.run(f"CREATE DATABASE {name}_{d}")
        any_server.run(*(f"CREATE TABLE {name}_{d}.orders_{t} ({COLUMNS})" for t in range(4)))
    rule = {"database": f"{name}_{{d}}", "table": "orders_{t}", "sharding": {"key": "id", "databases": 4, "tables": 4}}
    pipeline = made_pipeline(
        tmp_path, name, source="name: one, connection: env:SERVER", tables=f"include: ['{name}[.]orders']",
        targets=[target("shards", "env:SERVER", {"orders": rule})],
    )  # fmt: skip
    with Meta.open(pipeline.meta.url, pipeline.pipeline) as meta:
        yield Shards(
            any_server, name, RolloutWork(opened(pipeline, meta, {"SERVER": any_server.url}), pipeline.targets[0])
        )
    any_server.run(*(f"DROP DATABASE {name}{suffix}" for suffix in ("", "_0", "_1", "_2", "_3")))


@contextmanager
def raises(code: str, kind: type[LockstepError] = Refused) -> Iterator[None]:
    with pytest.raises(kind) as caught:
        yield
    assert code in {caught.value.code, *(part.code for part in caught.value.parts)}, caught.value


def test_all_shards_are_altered_and_taken_back(shards: Shards) -> None:
    decided = shards.decided()
    assert not decided.problems
    (orders,) = decided.tables
    assert {told.ways for told in orders.foretold.values()} == {("instant", "inplace")}
    assert shards.equal == ["id", "v", "PRIMARY"], "a plan alters nothing"
    done = shards.rolled()
    assert done.done
    assert {done.tables[0].behind(shard) for shard in done.tables[0].shards} == {2}
    assert shards.equal == ["id", "note", "v", "by_v", "PRIMARY"]
    latest = shards.work.opened.meta.rollouts.latest("shards")
    assert latest is not None
    assert latest.state == DONE
    assert shards.rolled().done, "twice is once"
    assert shards.rolled(direction="down").done
    assert shards.equal == ["id", "v", "PRIMARY"]
    assert shards.rolled().done, "and once more"
    assert shards.equal == ["id", "note", "v", "by_v", "PRIMARY"]
    assert not shards.on(f"SHOW TABLES FROM {shards.name}_0 LIKE '\\_lockstep\\_ddl%'")


class Killed(BaseException):
    pass


@FIRST_MARIADB
@pytest.mark.parametrize(("stop_at", "after"), [(1, False), (1, True), (2, True), (9, False), (32, True)])
def test_a_killed_rollout_is_resumed_from_what_the_servers_have(
    shards: Shards, monkeypatch: pytest.MonkeyPatch, stop_at: int, after: bool
) -> None:
    execute, numbers = rollouts._execute, itertools.count(1)

    def killed(*arguments: Any) -> None:
        number = next(numbers)
        if number == stop_at and not after:
            raise Killed
        execute(*arguments)
        if number == stop_at:
            raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(rollouts, "_execute", killed)
        with pytest.raises(Killed):
            shards.rolled(wave=3)
    latest = shards.work.opened.meta.rollouts.latest("shards")
    assert latest is not None
    assert latest.state == OPEN
    with raises("ddl.open"):
        shards.rolled("ALTER TABLE orders ADD COLUMN other INT")
    assert shards.rolled(wave=5).done
    assert shards.equal == ["id", "note", "v", "by_v", "PRIMARY"]


@FIRST_MARIADB
@pytest.mark.parametrize("tables", [2, 5], ids=["fewer shards", "more shards"])
def test_what_was_begun_for_other_shards_is_neither_continued_nor_taken_back(
    shards: Shards, monkeypatch: pytest.MonkeyPatch, tables: int
) -> None:
    """Shards that the pipeline file does not name any more would never be altered."""
    with monkeypatch.context() as patch:
        patch.setattr(rollouts, "_in_waves", lambda *_: (_ for _ in ()).throw(Killed))
        with pytest.raises(Killed):
            shards.rolled()
    for d in range(4):
        shards.on(f"CREATE TABLE {shards.name}_{d}.orders_4 ({COLUMNS})")
    rule = shards.work.target.tables["orders"]
    assert rule.sharding is not None
    edited = rule.model_copy(update={"sharding": rule.sharding.model_copy(update={"tables": tables})})
    target = shards.work.target.model_copy(update={"tables": {"orders": edited}})
    other = replace(shards, work=replace(shards.work, target=target))
    for direction in ("up", "down"):
        with raises("ddl.open"):
            other.rolled(direction=direction)
    latest = shards.work.opened.meta.rollouts.latest("shards")
    assert latest is not None
    assert latest.state == OPEN
    assert shards.rolled().done
    for d in range(4):
        shards.on(f"DROP TABLE {shards.name}_{d}.orders_4")
    assert shards.equal == ["id", "note", "v", "by_v", "PRIMARY"]


@FIRST_MARIADB
def test_an_error_of_a_shard_stops_the_waves_after_it_and_the_canary_stops_all(shards: Shards) -> None:
    text = "ALTER TABLE orders ADD UNIQUE KEY u (v)"
    shards.on(f"INSERT INTO {shards.name}_1.orders_1 VALUES (5, 1), (21, 1)")
    with raises("ddl.refused"):
        shards.rolled(text, canary=5)
    assert shards.equal == ["id", "v", "PRIMARY"]
    shards.on(f"DELETE FROM {shards.name}_1.orders_1")
    shards.rolled(text)
    shards.on(f"ALTER TABLE {shards.name}_0.orders_0 DROP INDEX u")
    assert shards.rolled(text).done, "one shard lacked it"
    assert sorted(shards.equal) == ["PRIMARY", "id", "u", "v"]


@FIRST_MARIADB
@pytest.mark.parametrize("first", ["", "ALTER TABLE orders ADD COLUMN note INT NULL;"])
def test_what_no_shard_takes_to_its_end_is_taken_back_wherever_each_shard_is(shards: Shards, first: str) -> None:
    undone = "ALTER TABLE orders DROP COLUMN note;" if first else ""
    text = (
        f"-- migrate:up\n{first}\nALTER TABLE orders ADD UNIQUE KEY u (v);\n"
        f"-- migrate:down\nALTER TABLE orders DROP INDEX u;\n{undone}"
    )
    shards.on(f"INSERT INTO {shards.name}_1.orders_1 VALUES (5, 1), (21, 1)")
    with raises("ddl.refused"):
        shards.rolled(text, canary=5)
    assert [name for name, found in shards.columns().items() if "note" in found] == (
        [f"{shards.name}_1.orders_1"] if first else []
    )
    assert shards.rolled(text, "down").done
    assert shards.equal == ["id", "v", "PRIMARY"]
    assert shards.work.opened.meta.rollouts.latest("shards").state == DONE
    assert shards.rolled().done, "another file may begin"


@FIRST_MARIADB
def test_a_server_that_was_upgraded_meanwhile_gets_no_statement_twice(
    shards: Shards, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = "-- migrate:up\nALTER TABLE orders ADD INDEX (v);\n-- migrate:down\nALTER TABLE orders DROP INDEX v;"
    shards.rolled(text)
    version = pymysql.Connection.get_server_info
    monkeypatch.setattr(pymysql.Connection, "get_server_info", lambda self: f"{version(self)}-upgraded")
    assert shards.rolled(text).done
    assert shards.equal == ["id", "v", "PRIMARY", "v"]


@FIRST_MARIADB
def test_a_file_may_get_the_statements_that_take_it_back_after_it_was_begun(shards: Shards) -> None:
    up = "ALTER TABLE orders ADD UNIQUE KEY u (v);"
    shards.on(f"INSERT INTO {shards.name}_1.orders_1 VALUES (5, 1), (21, 1)")
    with raises("ddl.refused"):
        shards.rolled(up)
    with raises("ddl.script", UsageError):
        shards.rolled(up, "down")
    both = f"-- migrate:up\n{up}\n-- migrate:down\nALTER TABLE orders DROP INDEX u;"
    assert shards.rolled(both, "down").done
    assert shards.equal == ["id", "v", "PRIMARY"]


@FIRST_MARIADB
def test_in_a_wave_what_was_begun_ends_and_the_next_wave_does_not_begin(shards: Shards) -> None:
    text = "ALTER TABLE orders ADD UNIQUE KEY u (v)"
    shards.on(f"INSERT INTO {shards.name}_0.orders_2 VALUES (2, 1), (18, 1)")
    with raises("ddl.refused"):
        shards.rolled(text, wave=3)
    having = [name for name, found in shards.columns().items() if "u" in found]
    assert having == [f"{shards.name}_0.orders_{t}" for t in (0, 1, 3)]
    shards.on(f"DELETE FROM {shards.name}_0.orders_2")
    assert shards.rolled(text, wave=3).done


@FIRST_MARIADB
def test_a_shard_that_is_defined_otherwise_is_told_and_nothing_is_altered(shards: Shards) -> None:
    shards.on(f"ALTER TABLE {shards.name}_2.orders_3 MODIFY v BIGINT NOT NULL")
    shards.on(f"DROP TABLE {shards.name}_3.orders_3")
    problems = shards.decided().problems
    assert {problem.code for problem in problems} == {"ddl.drift", "target.table"}
    assert any("bigint" in problem.what for problem in problems)
    with raises("ddl.drift"):
        shards.rolled()
    assert not any("note" in found for found in shards.columns().values())


@FIRST_MARIADB
def test_shards_whose_indexes_are_due_are_told_and_nothing_is_altered(shards: Shards) -> None:
    before = shards.columns()
    shards.on(
        f"CREATE TABLE {shards.name}_1.{STATES} ({DEFINITIONS[STATES]})",
        f"INSERT INTO {shards.name}_1.{STATES} (table_name, due) VALUES ('orders_0', '[]'), "
        """('orders_2', '[{"name": "by_v", "parts": [["v", null, false]], """
        """"sql": "KEY `by_v` (`v`)", "alone": true}]')""",
    )
    with raises("target.busy", RetryLater):
        shards.rolled()
    assert shards.columns() == before
    shards.on(f"DELETE FROM {shards.name}_1.{STATES}")
    shards.rolled()


def test_shards_that_were_altered_by_hand_are_passed_over(shards: Shards) -> None:
    for t in (0, 1):
        shards.on(f"ALTER TABLE {shards.name}_0.orders_{t} ADD COLUMN note VARCHAR(40) NULL COMMENT 'a; b'")
    assert shards.rolled().done
    assert shards.equal == ["id", "note", "v", "by_v", "PRIMARY"]


REFUSED = {
    "ALTER TABLE orders MODIFY v BIGINT NOT NULL": "ddl.copies",
    "ALTER TABLE orders ADD COLUMN v INT": "ddl.refused",
    "ALTER TABLE orders AUTO_INCREMENT = 7": "ddl.refused",
    "ALTER TABLE orders ADD COLUMN a INT; ALTER TABLE orders DROP a": "ddl.refused",
    "ALTER TABLE orders DROP COLUMN v": "ddl.column_needed",
    "ALTER TABLE orders ADD COLUMN w INT; ALTER TABLE orders DROP COLUMN w, ADD COLUMN x INT, DROP COLUMN v, "
    "ADD COLUMN v BIGINT NOT NULL DEFAULT 0": "ddl.column_needed",
    "ALTER TABLE orders DROP COLUMN v; ALTER TABLE orders ADD COLUMN v BIGINT NOT NULL DEFAULT 0": "ddl.column_needed",
}


def test_what_copies_fails_or_is_still_needed_is_refused_before_anything_is_altered(shards: Shards) -> None:
    for statement, code in REFUSED.items():
        with raises(code):
            shards.rolled(statement)
        assert shards.equal == ["id", "v", "PRIMARY"], statement
    assert shards.work.opened.meta.rollouts.latest("shards") is None


@FIRST_MARIADB
def test_a_column_may_go_once_the_source_lacks_it(shards: Shards) -> None:
    shards.on(f"ALTER TABLE {shards.name}.orders DROP COLUMN v")
    text = "ALTER TABLE orders DROP COLUMN v"
    if "MariaDB" not in str(shards.on("SELECT VERSION()")):
        text = "ALTER TABLE orders DROP CHECK orders_0_chk_1, DROP COLUMN v"
    problems = shards.decided(text).problems
    assert "ddl.column_needed" not in {problem.code for problem in problems}


@FIRST_MARIADB
@pytest.mark.parametrize("known", [True, False], ids=["", "only its manifest has its definition"])
def test_a_column_is_needed_while_a_staged_batch_brings_it(shards: Shards, tmp_path: Path, known: bool) -> None:
    shards.on(*(f"ALTER TABLE {name} ADD COLUMN gone INT" for name in shards.names))
    meta, text = shards.work.opened.meta, "ALTER TABLE orders DROP COLUMN gone"
    assert shards.decided(text).problems == ()
    made = manifest(0, source="one", pipeline="shop", tables={"orders": 3}, schemas=[schema(columns=("id", "gone"))])
    (tmp_path / "stage").mkdir()
    manifests.commit(open_stage(shards.work.opened.pipeline.stage), made)
    meta.batches.commit(meta.leases.acquire("one", "me", 60), made)
    if not known:
        with closing(sqlite3.connect(tmp_path / "meta.db")) as connection:
            connection.execute("DELETE FROM schema_version")
            connection.commit()
    (needed,) = shards.decided(text).problems
    assert needed.code == "ddl.column_needed"
    assert made.batch_id in needed.what


@FIRST_MARIADB
def test_a_lock_is_waited_for_in_short_pieces_and_given_up_in_the_end(
    shards: Shards, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rollouts, "LOCK_WAIT_S", 1)
    monkeypatch.setattr(rollouts, "_PAUSE_S", 0.01)
    with shards.server.connect(f"{shards.name}_0") as busy, busy.cursor() as cursor:
        cursor.execute("SELECT * FROM orders_0")  # its transaction keeps the definition
        with raises("ddl.locked", RetryLater):
            shards.rolled(patience_s=1.0)
        assert not any("note" in found for found in shards.columns().values())
        busy.rollback()
    assert shards.rolled().done


@FIRST_MARIADB
def test_two_at_once_take_turns(shards: Shards) -> None:
    with rollout_lease(shards.work), raises("lease.held", RetryLater), rollout_lease(shards.work):
        pass


@FIRST_MARIADB
def test_a_process_that_was_paused_alters_nothing_that_another_one_has_taken_back(
    shards: Shards, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its shards are as it has left them: only the lease says that they are not its own."""
    bring, paused = rollouts._bring, list[bool]()
    with rollout_lease(shards.work) as lease:
        decided = shards.decided()

        def later(*arguments: Any) -> None:
            if not paused:
                paused.append(True)
                shards.work.opened.meta.leases.release(lease)  # as if it had expired
                assert shards.rolled().done
                assert shards.rolled(direction="down").done
            bring(*arguments)

        monkeypatch.setattr(rollouts, "_bring", later)
        before = shards.equal
        with raises("lease.lost", RetryLater):
            roll(shards.work, decided, lease, Options())
    assert shards.equal == before


@FIRST_MARIADB
def test_two_that_foretell_from_one_shard_take_turns(shards: Shards) -> None:
    """The empty copy has one name: dropped in the middle by another, it would foretell half of the statements."""
    canary = shards.decided().tables[0].shards[0].place
    with (
        rollouts._session(shards.work, canary) as connection,
        rollouts._alone(connection, canary, 1.0),
        raises("ddl.locked", RetryLater),
    ):
        shards.decided(options=Options(patience_s=1.0))


def test_mysql_adds_a_partition_without_a_copy_and_mariadb_is_refused_in_words(shards: Shards) -> None:
    parts = "PARTITION BY RANGE (id) (PARTITION a VALUES LESS THAN (10))"
    for name in shards.names:
        shards.on(f"ALTER TABLE {name} {parts}")
    text = "ALTER TABLE orders ADD PARTITION (PARTITION b VALUES LESS THAN (20))"
    if "MariaDB" in str(shards.on("SELECT VERSION()")):  # it takes no ALGORITHM beside it
        with raises("ddl.refused"):
            shards.rolled(text)
    else:
        assert shards.rolled(text).done


@FIRST_MARIADB
def test_an_account_that_may_not_drop_is_told_which_privilege_it_lacks(shards: Shards) -> None:
    account = f"u_{uuid.uuid4().hex[:8]}"
    shards.on(
        f"CREATE USER {account}@'127.0.0.1' IDENTIFIED BY 'x'", f"GRANT SELECT, ALTER ON *.* TO {account}@'127.0.0.1'"
    )
    try:
        url = f"mysql://{account}:x@127.0.0.1:{shards.server.port}"
        export({"SERVER": url})
        problems = decide(shards.work, ADD, "add.sql", "up", Options()).problems
        assert [problem.code for problem in problems] == ["connection.grant"]
        assert "DROP" in problems[0].remedy
    finally:
        shards.on(f"DROP USER {account}@'127.0.0.1'")


_TOOL = """
import os, pymysql, pathlib, sys
get = lambda name: os.environ["LOCKSTEP_DDL_" + name]
phase, table = get("PHASE"), get("TABLE")
with open(sys.argv[1], "a") as calls:
    print(phase, get("SHARD"), file=calls)
if pathlib.Path(sys.argv[1] + "." + phase + get("SHARD")).exists():
    sys.exit("no " + get("PASSWORD"))
with pymysql.connect(host=get("HOST"), port=int(get("PORT")), user=get("USER"), password=get("PASSWORD"),
                     ssl=get("SSL_MODE") == "REQUIRED" and {"check_hostname": False},
                     database=get("DATABASE"), autocommit=True) as connection, connection.cursor() as cursor:
    if phase == "start":
        cursor.execute(f"DROP TABLE IF EXISTS `_{table}_new`")
        cursor.execute(f"CREATE TABLE `_{table}_new` LIKE `{table}`")
        cursor.execute(f"ALTER TABLE `_{table}_new` {get('CLAUSES')}")
        cursor.execute(f"INSERT INTO `_{table}_new` SELECT * FROM `{table}`")
    else:
        cursor.execute(f"RENAME TABLE `{table}` TO `_{table}_old`, `_{table}_new` TO `{table}`")
        cursor.execute(f"DROP TABLE `_{table}_old`")
"""


@pytest.mark.matrix
@pytest.mark.skipif(shutil.which("pt-online-schema-change") is None, reason="needs percona-toolkit")
def test_pt_online_schema_change_makes_the_copies_while_an_application_writes(shards: Shards, tmp_path: Path) -> None:
    """With the script of docs/operations.md. A call is killed in between, and made again."""
    for name in shards.names:  # the tool keeps names of CHECK constraints, which MySQL wants to be unique
        shards.on(f"DROP TABLE {name}", f"CREATE TABLE {name} (id BIGINT PRIMARY KEY, v INT NOT NULL)",
                  f"INSERT INTO {name} VALUES (1, 1), (2, 2), (3, 3)")  # fmt: skip
    script = ROOT / "examples" / "online_ddl" / "pt-osc.sh"
    broken = tmp_path / "broken.sh"
    dies = f"[ $LOCKSTEP_DDL_SHARD-$LOCKSTEP_DDL_PHASE = $(cat {tmp_path}/fails) ] && kill -9 $$"
    broken.write_text(f"#!/bin/sh\n{dies}\nexec {script}\n")
    broken.chmod(0o755)
    text = "ALTER TABLE orders MODIFY v BIGINT NOT NULL"
    written: dict[int, int] = {}
    stop = threading.Event()

    def write() -> None:
        with shards.server.connect(autocommit=True) as connection, connection.cursor() as cursor:
            for turn in itertools.count(10):
                if stop.is_set():
                    return
                cursor.execute(f"INSERT INTO {shards.names[5]} VALUES ({turn}, {turn})")
                written[turn] = turn
                cursor.execute(f"UPDATE {shards.names[5]} SET v = {-turn} WHERE id = {turn - 1 if turn > 10 else 1}")
                written[turn - 1 if turn > 10 else 1] = -turn

    with ThreadPoolExecutor(1) as pool:
        writing = pool.submit(write)
        try:
            for fails in ("7-start", "3-complete"):
                (tmp_path / "fails").write_text(fails)
                with raises("hook.failed", RetryLater):
                    shards.rolled(text, copy_with=str(broken), wave=4)
            (tmp_path / "fails").write_text("none")
            done = shards.rolled(text, copy_with=str(broken))
        finally:
            stop.set()
        writing.result()
    (orders,) = done.tables
    assert done.done
    assert len({shard.found for shard in orders.shards}) == 1
    assert dict(shards.on(f"SELECT id, v FROM {shards.names[5]}")) == {2: 2, 3: 3, **written}
    assert shards.on(f"SELECT * FROM {shards.names[0]}") == [(1, 1), (2, 2), (3, 3)]
    left = shards.on(f"SELECT TABLE_NAME FROM information_schema.TABLES WHERE TABLE_SCHEMA LIKE '{shards.name}\\_%' "
                     "AND TABLE_NAME LIKE '\\_orders%'")  # fmt: skip
    assert left == []
    assert shards.on(f"SELECT * FROM information_schema.TRIGGERS WHERE TRIGGER_SCHEMA LIKE '{shards.name}\\_%'") == []


@pytest.fixture
def encrypted(shards: Shards) -> Iterator[Shards]:
    """With an account to which the server talks by TLS alone."""
    account = f"'{shards.name}'@'%'"
    shards.on(f"CREATE USER {account} IDENTIFIED BY 'secret' REQUIRE SSL", f"GRANT ALL ON *.* TO {account}")
    export({"SERVER": f"mysql://{shards.name}:secret@127.0.0.1:{shards.server.port}/?ssl_mode=REQUIRED"})
    yield shards
    shards.on(f"DROP USER {account}")


@ON_MYSQL
def test_what_copies_is_left_to_a_tool_that_exchanges_nothing_before_all_copies_are_ready(
    encrypted: Shards, tmp_path: Path
) -> None:
    shards = encrypted
    tool, calls = tmp_path / "tool.py", tmp_path / "calls"
    tool.write_text(_TOOL)
    command = f"{sys.executable} {tool} {calls}"
    text = "ALTER TABLE orders MODIFY v BIGINT NOT NULL"
    shards.on(f"INSERT INTO {shards.name}_0.orders_1 VALUES (1, 7)")
    with raises("ddl.copies"):
        shards.rolled(f"{text}; ALTER TABLE orders ADD a INT", copy_with=command)
    fails = tmp_path / "calls.start9"
    fails.touch()
    with pytest.raises(RetryLater) as caught:
        shards.rolled(text, copy_with=command, wave=4)
    assert "no ***" in caught.value.what
    assert {line.split()[0] for line in calls.read_text().splitlines()} == {"start"}
    fails.unlink()
    with raises("usage.argument", UsageError):
        shards.rolled(text)
    fails = tmp_path / "calls.complete3"
    fails.touch()
    with raises("hook.failed", RetryLater):
        shards.rolled(text, copy_with=command)
    fails.unlink()
    calls.unlink()
    done = shards.rolled(text, copy_with=command)
    assert done.done
    (orders,) = done.tables
    assert len({shard.found for shard in orders.shards}) == 1
    assert shards.on(f"SELECT id, v FROM {shards.name}_0.orders_1") == [(1, 7)]
    phases = [line.split()[0] for line in calls.read_text().splitlines()]
    assert phases == sorted(phases, reverse=True), "every start is before the first complete"
    assert 0 < phases.count("start") < 16, "some shards had it before"
