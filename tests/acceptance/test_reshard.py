"""More shards for a target: before a cutover from the stage alone, after one from the shards themselves."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pymysql
import pytest

PIPELINE = """# The shop.
pipeline: {name}
sources: [{{name: {name}, connection: env:SOURCE, server_id: 5192, start: latest}}]
tables: {{include: ['{name}\\.(orders|items)']}}
routes: [{{match: '{name}\\.(.*)', to: '\\1'}}]
targets:
  - name: shards   # as the application knows them
    connections: [env:SHARDS]
    on_missing_table: create
    tables:
      '*': {{database: "{name}_{{d}}", table: "{{logical}}_{{t}}", sharding: {{key: id, databases: 2, tables: 2}}}}

# Rows that are there already.
snapshot: {{mode: initial}}
stage: {{uri: "file://{folder}/stage"}}
meta: {{url: "sqlite:///{folder}/meta.db"}}
limits: {{lease_s: 5}}
cutover: {{switch_with: {folder}/switch.sh, budget_s: 20, max_lag_s: 10}}
"""
TABLES = ("orders", "items")
NOWHERE = "mysql://nobody@127.0.0.1:9"
pytestmark = [pytest.mark.slow, pytest.mark.spark]


def execute(server: Any, *statements: str) -> list[Any]:
    rows: list[Any] = []
    with server.connect(autocommit=True) as connection, connection.cursor() as cursor:
        for statement in statements:
            cursor.execute(statement)
            rows = list(cursor.fetchall())
    return rows


class Shop:
    """A pipeline with rows, and its servers."""

    def __init__(self, lockstep: Any, source: Any, target: Any, name: str) -> None:
        self.lockstep, self.source, self.target, self.name = lockstep, source, target, name
        self.folder = Path(lockstep.directory)
        self.file = self.folder / "shop.yaml"

    def __call__(self, *arguments: object, code: int = 0, **environ: str) -> Any:
        """The answer of a command, or its error. environ: for this command alone."""
        kept = dict(self.lockstep.environ)
        self.lockstep.environ |= environ
        try:
            done = self.lockstep(*arguments, code=code)
        finally:
            self.lockstep.environ.clear()
            self.lockstep.environ |= kept
        return json.loads(done.out)

    def write(self, server: Any = None, place: Any = None) -> None:
        """The application's writes: to the source, or to shards. place: of a table and an id there."""
        server, place = server or self.source, place or (lambda table, key: f"{self.name}.{table}")
        for table in TABLES:
            for key in range(0, 40, 3):
                execute(server, f"REPLACE INTO {place(table, key)} (id, n) VALUES ({key}, {time.monotonic_ns()})")
            execute(server, f"DELETE FROM {place(table, 2)} WHERE id = 2")

    def old_place(self, table: str, key: int) -> str:
        return f"{self.name}_{key % 4 // 2}.{table}_{key % 4 % 2}"

    def new_place(self, table: str, key: int) -> str:
        return f"{self.name}_{key % 16 // 4}_4x4.{table}_{key % 16 % 4}"

    def rows(self, server: Any, places: list[str]) -> list[tuple[int, int]]:
        return sorted(row for place in places for row in execute(server, f"SELECT id, n FROM {place}"))

    def at_source(self, table: str) -> list[tuple[int, int]]:
        return self.rows(self.source, [f"{self.name}.{table}"])

    def in_old(self, table: str) -> list[tuple[int, int]]:
        return self.rows(self.target, [self.old_place(table, shard) for shard in range(4)])

    def in_new(self, table: str) -> list[tuple[int, int]]:
        """Of the 16 shards; each row is in its own."""
        found = []
        for shard in range(16):
            rows = self.rows(self.target, [self.new_place(table, shard)])
            assert all(key % 16 == shard for key, _ in rows)
            found += rows
        return sorted(found)


@contextmanager
def shop(lockstep: Any, source: Any, target: Any) -> Iterator[Shop]:
    name = f"re_{uuid.uuid4().hex[:8]}"
    made = Shop(lockstep, source, target, name)
    lockstep.environ |= {"SOURCE": source.url, "SHARDS": target.url, "NEW": target.url}
    made.file.write_text(PIPELINE.format(name=name, folder=made.folder))
    (made.folder / "switch.sh").write_text("#!/bin/sh\n")
    (made.folder / "switch.sh").chmod(0o755)
    execute(source, f"CREATE DATABASE {name}")
    for table in TABLES:
        execute(
            source,
            f"CREATE TABLE {name}.{table} (id INT PRIMARY KEY, n BIGINT NOT NULL, code INT UNIQUE)",
            f"INSERT INTO {name}.{table} (id, n) VALUES " + ", ".join(f"({n}, {n})" for n in range(1, 200)),
        )
    try:
        yield made
    finally:
        for server in (source, target):
            for (database,) in execute(server, f"SHOW DATABASES LIKE '{name}%'"):
                end_s = time.monotonic() + 60
                while not dropped(server, database):
                    assert time.monotonic() < end_s
                    time.sleep(0.1)


def dropped(server: Any, database: str) -> bool:
    """A server that is still deleting files of its tables says that the directory is not empty."""
    try:
        execute(server, f"DROP DATABASE IF EXISTS {database}")
    except pymysql.err.OperationalError as error:
        if error.args[0] != 1010:
            raise
        return False
    return True


PAIRS = {"mysql9 to mariadb": ("mysql9", "mariadb_target"), "mariadb to mysql9": ("mariadb", "mysql9")}


@pytest.fixture
def servers(request: pytest.FixtureRequest) -> tuple[Any, Any]:
    source, target = PAIRS[request.param]
    return request.getfixturevalue(source), request.getfixturevalue(target)


def always(first: str) -> Any:
    """Both pairs of servers, of which the other is left to the matrix."""
    chosen = [pytest.param(name, marks=[] if name == first else [pytest.mark.matrix]) for name in PAIRS]
    return pytest.mark.parametrize("servers", chosen, indirect=True)


@always("mysql9 to mariadb")
@pytest.mark.timeout(600)
def test_a_target_with_more_shards_is_filled_from_the_stage_alone_and_the_application_is_led_there(
    lockstep: Any, servers: tuple[Any, Any]
) -> None:
    with shop(lockstep, *servers) as made:
        made("run", "shop.yaml")
        made.write()
        made("run", "shop.yaml")
        to = ("shop.yaml", "--to", "4x4", "--connection", "env:NEW")
        assert "shards_4x4" in made("reshard", "plan", *to)["text"]
        assert "4x4" not in made.file.read_text()
        # Neither the source nor the old shards can be reached.
        made("reshard", "run", *to, "--rows", "100", SOURCE=NOWHERE, SHARDS=NOWHERE)
        text = made.file.read_text()
        assert "# as the application knows them" in text
        assert "# Rows that are there already." in text
        assert "replay_only" not in text
        for table in TABLES:
            assert made.in_new(table) == made.at_source(table) == made.in_old(table)
        made.write()
        assert sorted(one["target"] for one in made("run", "shop.yaml")["targets"]) == ["shards", "shards_4x4"]
        assert made("verify", "shop.yaml", "--target", "shards_4x4")["equal"] is True
        status = made("reshard", "status", "shop.yaml")["targets"]
        assert [(one["rows_to_apply"], one["fed_by_runs"]) for one in status] == [(0, True)] * 2
        made("reshard", "run", *to)  # again: nothing is left to do
        assert made.file.read_text() == text
        there = made("cutover", "run", "shop.yaml", "--target", "shards_4x4")
        assert there["state"] == "WATCH"
        made.write(made.target, made.new_place)
        made("run", "shop_back.yaml")
        made("run", "shop_back.yaml")
        assert made("verify", "shop_back.yaml")["equal"] is True
        for table in TABLES:
            assert made.at_source(table) == made.in_new(table) != made.in_old(table)
        assert made("cutover", "back", "shop.yaml")["state"] == "COMPLETE"


@always("mariadb to mysql9")
@pytest.mark.timeout(600)
def test_shards_that_an_application_writes_to_are_moved_to_their_successors_and_back(
    lockstep: Any, servers: tuple[Any, Any]
) -> None:
    with shop(lockstep, *servers) as made:
        made("run", "shop.yaml")
        made("cutover", "run", "shop.yaml")
        made.write(made.target, made.old_place)
        done = made("reshard", "run", "shop.yaml", "--to", "4x4")
        file = Path(done["file"]).name
        assert (file, done["successor"]) == ("shop_4x4.yaml", f"{made.name}_4x4")
        assert made("reshard", "run", "shop.yaml", "--to", "4x4") == done
        made("run", file)
        made.write(made.target, made.old_place)
        made("run", file)
        verified = made("verify", file)
        assert verified["equal"] is True
        assert len(verified["tables"]) == 8  # each former shard of each table by itself
        for table in TABLES:
            assert made.in_new(table) == made.in_old(table)
        assert [one["shared"] for one in made("target", "check-ids", file)["keys"]] == [0] * 8
        back = "shop_4x4_back.yaml"
        for _ in range(2):
            assert made("cutover", "run", file)["state"] == "WATCH"
            # The way back may write to the former shards, and what fed them before may not.
            execute(
                made.source, "SET @lockstep_writes = 1", f"REPLACE INTO {made.name}.orders (id, n) VALUES (77777, 1)"
            )
            assert made("run", "shop.yaml", code=3)["error"]["code"] == "target.fenced"
            made.write(made.target, made.new_place)
            made("run", back)
            made("run", back)
            for table in TABLES:
                assert made.in_old(table) == made.in_new(table)
            assert made("cutover", "back", file)["state"] == "COMPLETE"
            made.write(made.target, made.old_place)
            with pytest.raises(AssertionError, match=r"target\.fenced"):
                made("run", back, "--replay", "--target", f"{made.name}_4x4_back_{made.name}_4x4_0")
            made("run", file)
            for table in TABLES:
                assert made.in_old(table) == made.in_new(table)
        for key in (500, 501):  # of two shards
            execute(made.target, f"INSERT INTO {made.old_place('orders', key)} (id, n, code) VALUES ({key}, 1, 7)")
        shared = made("target", "check-ids", "shop.yaml", "--table", "orders", code=4)
        assert [(one["key"], one["shared"], one["values"][0]["value"]) for one in shared["keys"]] == [
            (["code"], 1, ["7"])
        ]


@always("mysql9 to mariadb")
@pytest.mark.timeout(600)
def test_a_row_in_the_wrong_shard_stops_the_run_and_is_named(lockstep: Any, servers: tuple[Any, Any]) -> None:
    with shop(lockstep, *servers) as made:
        made("run", "shop.yaml")
        made("cutover", "run", "shop.yaml")
        made("reshard", "run", "shop.yaml", "--to", "4x4")
        made("run", "shop_4x4.yaml")
        execute(made.target, f"INSERT INTO {made.old_place('orders', 1)} (id, n) VALUES (402, 1)")
        error = made("run", "shop_4x4.yaml", code=4)["error"]
        assert error["code"] == "target.foreign_row"
        assert "id = 402 belongs to shard 2 of 4, and was in shard 1" in error["what"]
        assert 402 not in dict(made.in_new("orders"))
        assert made("reshard", "plan", "shop.yaml", "--to", "3x3", code=3)["error"]["code"] == "reshard.layout"


@always("mysql9 to mariadb")
@pytest.mark.timeout(600)
def test_whatever_kills_a_reshard_the_same_command_continues(lockstep: Any, servers: tuple[Any, Any]) -> None:
    with shop(lockstep, *servers) as made:
        for _ in range(3):
            made("run", "shop.yaml")
            made.write()
        made("run", "shop.yaml")
        arguments = ("reshard", "run", "shop.yaml", "--to", "4x4", "--rows", "1")
        killed_after(made, arguments, "added the target")
        assert "replay_only: true" in made.file.read_text()
        assert [one["target"] for one in made("run", "shop.yaml")["targets"]] == []  # runs leave it alone
        before = progress(made)
        for lacking in (0, 1):
            until_free(made)
            killed_after(made, arguments, f"has {before + lacking} of", beside=not lacking)
            assert before <= progress(made) < 4
        with pytest.raises(AssertionError, match=r"plan\.unknown_target|cli\.usage"):
            made("run", "shop.yaml", "--target", "shards_4x4", "--staged")
        until_free(made)
        made(*arguments)
        for table in TABLES:
            assert made.in_new(table) == made.at_source(table)
        assert "replay_only" not in made.file.read_text()


def until_free(made: Shop) -> None:
    """The lease of a killed process has expired: nothing else tells another one that it is dead."""
    with sqlite3.connect(made.folder / "meta.db") as connection:
        sql = "SELECT source FROM lease WHERE source LIKE 'reshard:%' AND expires_us > ?"
        while connection.execute(sql, [time.time_ns() // 1000]).fetchall():
            time.sleep(0.2)


def progress(made: Shop) -> int:
    status = {one["target"]: one for one in made("reshard", "status", "shop.yaml")["targets"]}
    return int(status["shards_4x4"]["batches"])


def killed_after(made: Shop, arguments: tuple[str, ...], said: str, *, beside: bool = False) -> None:
    """Kills a command that has said something. beside: another one is begun meanwhile, and is refused."""
    process = subprocess.Popen(
        made.lockstep.command(*arguments), cwd=made.folder, env=made.lockstep.environment, text=True,
        stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, start_new_session=True,
    )  # fmt: skip
    assert process.stderr is not None
    lines = []
    for line in process.stderr:
        lines.append(line)
        if said in line:
            break
    else:
        raise AssertionError("".join(lines))
    if beside:
        assert made(*arguments, code=75)["error"]["code"] == "reshard.running"
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    process.stderr.close()


@always("mysql9 to mariadb")
@pytest.mark.timeout(600)
def test_a_meta_database_that_was_rebuilt_lets_no_run_use_another_sharding(
    lockstep: Any, servers: tuple[Any, Any]
) -> None:
    with shop(lockstep, *servers) as made:
        made("run", "shop.yaml")
        (made.folder / "meta.db").unlink()
        made("meta", "rebuild", "shop.yaml")
        made.write()
        text = made.file.read_text()
        made.file.write_text(text.replace("tables: 2}", "tables: 4}"))
        assert made("run", "shop.yaml", code=4)["error"]["code"] == "target.layout"
        for table in TABLES:
            for place in (f"{made.name}_{d}.{table}_{t}" for d in range(2) for t in (2, 3)):
                assert made.rows(made.target, [place]) == []
        layouts = made("target", "layout", "shop.yaml")["layouts"]
        assert ("shard 1 of 4 by mod(id)", "shard 1 of 8 by mod(id)") in [
            (one["written"], one["now"]) for one in layouts
        ]
        made.file.write_text(text)
        made("run", "shop.yaml")
        for table in TABLES:
            assert made.in_old(table) == made.at_source(table)


@always("mysql9 to mariadb")
@pytest.mark.timeout(600)
def test_a_new_target_is_refused_where_the_stage_lacks_rows(lockstep: Any, servers: tuple[Any, Any]) -> None:
    with shop(lockstep, *servers) as made:
        made.file.write_text(made.file.read_text().replace("mode: initial", "mode: none"))
        made("run", "shop.yaml")
        made.write()
        made("run", "shop.yaml")
        text = made.file.read_text()
        for verb in ("plan", "run"):
            assert made("reshard", verb, "shop.yaml", "--to", "4x4", code=3)["error"]["code"] == "reshard.no_base"
        assert made.file.read_text() == text
