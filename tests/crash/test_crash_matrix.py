"""kill -9 at every durable step, then the same commands again: the target equals the source and the ledger adds up.

A sample is part of all tests; `make crash-matrix` runs all and prints the table.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from cdc_core.meta import Meta
from examples.sandbox.mariadb import MariaDb
from examples.sandbox.s3 import S3Server
from examples.sandbox.spark import ConnectServer
from tests.conftest import SourceDatabase, new_database
from tests.crash.cases import (
    AT_ENDPOINT,
    CASES,
    DRIVER,
    IN_PARTS,
    SUFFIXES,
    TASK,
    WRITE_PARTS,
    Case,
    at_endpoint,
)
from tests.lab import pipeline_file
from tests.lab.forked_commands import ROOT, Done, ForkedCommands
from tests.lab.pipeline_file import changed, pipeline_document, pipeline_text

TABLE = "(id INT PRIMARY KEY, customer INT NOT NULL, status VARCHAR(20), UNIQUE KEY (customer))"
WITHOUT_KEY = "(id INT, customer INT, status VARCHAR(20))"
COLUMNS = "id, customer, status"
LEASE_S = 5
CHANGES = (
    f"INSERT INTO orders VALUES {', '.join(f'({n}, {n}, {chr(39)}new{chr(39)})' for n in range(1, 201))}",
    "UPDATE orders SET status = 'paid' WHERE id % 3 = 0",
    "DELETE FROM orders WHERE id % 7 = 0",
    "UPDATE orders SET id = id + 1000 WHERE id % 50 = 1",
    "UPDATE orders SET customer = 500 - customer WHERE id < 20",
)
RULE = {"database": "shards", "table": "orders_{t}", "sharding": {"key": "id", "databases": 1, "tables": 2}}


def shards(rule: dict[str, Any], **keys: Any) -> dict[str, Any]:
    return pipeline_file.target("shards", "env:TARGET", {"orders": rule}, **keys)


@dataclass
class Crashed:
    """A source with changes, an empty target of two shards, meta on its server where a case kills that.

    bucket: the server of the stage where a case kills that; else None, and the stage is a folder. endpoint: the Connect
    server, if Spark is there; who starts it has told it the case, because its workers inherit its environment."""

    commands: ForkedCommands
    folder: Path
    source: SourceDatabase
    target: MariaDb
    bucket: S3Server | None
    endpoint: ConnectServer | None = None
    document: dict[str, Any] = field(default_factory=dict)

    def change(self, **sections: Any) -> None:
        """Other keys in the pipeline file, as of `pipeline_document`."""
        self.document = changed(self.document, **sections)
        self.pipeline.write_text(pipeline_text(self.document))

    @property
    def pipeline(self) -> Path:
        return self.folder / "crash.yaml"

    def lockstep(self, *arguments: str, case: Case | None = None) -> tuple[int, Any]:
        """Exit status and answer of a command; `case` strikes in it or in a process that it starts."""
        environ = {**os.environ, "SOURCE": self.source.server.url, "TARGET": self.target.url}
        environ["META"] = self.target.url.replace("mysql://", "mysql+pymysql://") + "/meta"
        if self.bucket is not None:
            environ |= self.bucket.keys
        paths = [str(ROOT), str(ROOT / "expectations"), str(ROOT / "plugins")]
        given = arguments if str(self.pipeline) in arguments else (*arguments, str(self.pipeline))
        if case is None:
            environ["PYTHONPATH"] = os.pathsep.join(paths)
            done = self.commands.run(*given, "--json", directory=self.folder, environ=environ)
        else:
            servers = {"target": self.target, "meta": self.target, "s3": self.bucket, "connect": self.endpoint}
            victim = case.victim if case.victim not in servers else str(servers[case.victim].pid)
            environ |= armed(case, victim, self.flag)
            environ["PYTHONPATH"] = os.pathsep.join([environ["PYTHONPATH"], *paths])
            command = [sys.executable, "-m", "cdc_core.cli", *given, "--json"]
            ended = subprocess.run(command, env=environ, capture_output=True, text=True, check=False)
            done = Done(ended.returncode, ended.stdout, ended.stderr)
        return done.code, json.loads(done.out) if done.out else done.err

    def mend(self) -> None:
        """All servers run again, on what the crash left."""
        self.target.restart()
        if self.bucket is not None:
            self.bucket.restart()
        if self.endpoint is not None and self.endpoint.pid is None:
            self.endpoint.restart()

    @property
    def flag(self) -> Path:
        return self.folder / "struck"

    def again(self, *arguments: str) -> Any:
        """A command that must succeed, if need be once the lease of who was killed has run out."""
        status, answer = self.lockstep(*arguments)
        while status == 75 and answer["error"]["code"] == "lease.held":
            time.sleep(1)
            status, answer = self.lockstep(*arguments)
        assert status == 0, answer
        return answer

    def is_staged(self) -> None:
        """Extracted again, each change is staged once."""
        self.again("extract")
        assert self.again("stage", "verify", "--deep")["ok"] is True
        file = self.folder / "orders.parquet"
        self.again("stage", "export", str(self.pipeline), "orders", "-o", str(file))
        found = pq.read_table(file, columns=COLUMNS.split(", ")).to_pylist()
        assert sorted(tuple(row.values()) for row in found) == sorted(self.source_rows())
        assert self.again("extract")["sources"][0]["rows"] == 0

    def is_applied(self) -> None:
        """Run again, the target equals the source, the ledger adds up, and nothing is left to do."""
        ran = self.again("run")
        assert sorted(self.target_rows()) == sorted(self.source_rows())
        assert all(entry["problems"] == [] for entry in ran["ledgers"])
        state = self.again("status")
        assert state["targets"][0]["pending"] == {"batches": 0, "rows": 0}
        assert [entry["problems"] for entry in state["ledgers"]] == [[]], state["ledgers"]
        assert self.again("run", "--staged")["batches"] == 0

    def is_copied(self) -> None:
        """Copied again, each row that was there before the capture is staged, and nothing is left to copy."""
        self.again("snapshot")
        self.is_staged()
        assert self.again("snapshot")["sources"] == []

    def spoil(self) -> None:
        """Faults at the target, which a verification finds: a changed row, a missing one, one that no source has, and
        one in the wrong shard."""
        self.target.run(
            "UPDATE orders_0 SET status = 'fault' ORDER BY id LIMIT 2",
            "DELETE FROM orders_1 ORDER BY id LIMIT 1",
            "INSERT INTO orders_0 VALUES (5000, 5000, 'surplus'), (5001, 5001, 'surplus')",
            "INSERT INTO orders_1 SELECT * FROM orders_0 WHERE id NOT IN (5000, 5001) ORDER BY id DESC LIMIT 1",
            database="shards",
        )
        status, answer = self.lockstep("verify")
        assert (status, answer["error"]["code"]) == (4, "verify.differs"), answer

    def is_repaired(self) -> None:
        """Repaired again, the rows are equal, and a verification finds nothing."""
        assert self.again("repair")["equal"] is True
        assert self.again("verify")["equal"] is True

    def is_queried(self, case: Case) -> None:
        """Run again, the target has the rows that the source has, and no key is looked up that was staged."""
        time.sleep(LEASE_S + 1)  # while the killed process has the lease, changes would be applied as they were logged
        ran = self.again("run")
        assert ran["reverse_query"]["error"] is None
        assert ran["reverse_query"]["keys"] == (QUERIED_KEYS if "again" in case.after else 0)
        assert all(entry["problems"] == [] for entry in ran["ledgers"])

    def is_verified(self) -> None:
        """Verified again, the planted faults are found, each once, and every row has been counted once."""
        status, answer = self.lockstep("verify")
        while status == 75 and answer["error"]["code"] == "lease.held":
            time.sleep(1)
            status, answer = self.lockstep("verify")
        assert status == 4, answer
        (told,) = answer["tables"]
        assert told["source_rows"] == len(self.source_rows())
        assert told["target_rows"] == len(self.target_rows())
        assert [(finding["kind"], finding["key"]["id"]) for finding in told["findings"]] == list(FAULTS)

    def source_rows(self) -> list[tuple[Any, ...]]:
        return self.source.server.run(f"SELECT {COLUMNS} FROM orders", database=self.source.name)

    def target_rows(self) -> list[tuple[Any, ...]]:
        both = f"SELECT {COLUMNS} FROM orders_0 UNION ALL SELECT {COLUMNS} FROM orders_1"
        return self.target.run(both, database="shards")


def armed(case: Case, victim: str, flag: Path, **more: str) -> dict[str, str]:
    """The variables of a process in which, or below which, a case strikes."""
    order = {"module": case.module, "function": case.function, "when": case.when, "call": case.call, **more}
    return {
        "LOCKSTEP_CRASH": json.dumps({**order, "victim": victim, "flag": str(flag)}),
        "PYTHONPATH": str(Path(__file__).parent / "hook"),
    }


@pytest.fixture
def target() -> Iterator[MariaDb]:
    with MariaDb.start(server_id=9) as server:
        server.run(
            "CREATE DATABASE shards",
            "CREATE DATABASE meta",
            *(f"CREATE TABLE shards.{table} {TABLE}" for table in ("orders_0", "orders_1")),
        )
        yield server


def line_of(
    commands: ForkedCommands,
    case: Case,
    source: SourceDatabase,
    target: MariaDb,
    bucket: S3Server | None,
    folder: Path,
    table: str = TABLE,
) -> Crashed:
    # The log of a server that other tests use may hold statements that stop whoever reads it from its beginning.
    reset = "RESET MASTER" if isinstance(source.server, MariaDb) else "RESET BINARY LOGS AND GTIDS"
    source.execute(reset, f"CREATE TABLE orders {table}", *CHANGES)
    line = Crashed(commands, folder, source, target, bucket)
    meta = "env:META" if case.victim == "meta" else f"sqlite:///{folder}/meta.db"
    stage = {}
    if bucket is not None:
        name = bucket.create_bucket(source.name.replace("_", "-"))
        stage = {"uri": f"s3://{name}/stage", "s3_endpoint": bucket.endpoint}
    part_rows = PART_ROWS if case.step == WRITE_PARTS else 0
    line.document = pipeline_document(folder, source.name)
    line.change(
        pipeline="crash", source="start: earliest", routes="[{match: '.*', to: orders}]",
        stage=stage, meta={"url": meta}, limits={"lease_s": LEASE_S, "batch_rows": 100},
        targets=[shards(RULE, part_rows=part_rows)],
        # The others are killed amid the work of Spark's own processes.
        spark={"driver_rows": 20_000 if case.killed in (TASK, DRIVER) else 0},
    )  # fmt: skip
    if case.victim == "meta":
        line.again("meta", "upgrade")
    return line


def begin_after_rows(line: Crashed) -> None:
    """The capture begins after the changes so far, which are several chunks; a few are made beside the copy."""
    line.source.execute("INSERT INTO orders SELECT seq, seq, 'many' FROM seq_2001_to_62000")
    line.change(source="start: latest", snapshot="readers: 1, chunk_mib: 1")
    line.again("extract")
    line.source.execute(
        "UPDATE orders SET status = 'sent' WHERE id % 900 = 0", "DELETE FROM orders WHERE id % 1000 = 1",
        "UPDATE orders SET id = id + 100000 WHERE id % 5000 = 2",
    )  # fmt: skip


def outgrow_driver(line: Crashed) -> None:
    """More changes than the driver, or one task of Spark, merges; some rows change their keys."""
    line.source.execute(
        "INSERT INTO orders SELECT seq, seq, 'many' FROM seq_2001_to_20000",
        "UPDATE orders SET status = 'sent' WHERE id % 2 = 0", "DELETE FROM orders WHERE id % 11 = 1",
        "UPDATE orders SET id = id + 100000 WHERE id % 5 = 2",
    )  # fmt: skip
    line.again("extract")


PART_ROWS = 300


def fill_parts(line: Crashed) -> None:
    """The next run has several parts for each shard, of rows that are inserted, updated and deleted."""
    only = rf"{line.source.name}\.orders"  # no other source table can feed the target's
    line.change(routes=[{"match": only, "to": "orders"}])
    line.target.run(*(f"ALTER TABLE orders_{shard} DROP INDEX customer" for shard in (0, 1)), database="shards")
    line.source.execute("INSERT INTO orders SELECT seq, seq, 'many' FROM seq_2001_to_4000")
    line.again("run")
    line.source.execute(
        "INSERT INTO orders SELECT seq, seq, 'more' FROM seq_5001_to_7000",
        "UPDATE orders SET status = 'sent' WHERE id % 2 = 0 AND id > 2000", "DELETE FROM orders WHERE id % 11 = 1",
    )  # fmt: skip
    line.again("extract")


QUERIED_KEYS = 5


def look_changes_up(line: Crashed) -> None:
    """The target lacks a few old changes, and the source has other rows by now, which its log does not tell."""
    line.change(reverse_query="older_than: 1s")
    line.again("run")
    line.source.execute(
        "UPDATE orders SET status = 'logged' WHERE id IN (100, 102, 103)", "DELETE FROM orders WHERE id = 104",
        "INSERT INTO orders VALUES (3000, 3000, 'logged')",
    )  # fmt: skip
    line.again("extract")
    line.source.execute(
        "SET SESSION sql_log_bin = 0", "UPDATE orders SET status = 'silent' WHERE id = 100",
        "DELETE FROM orders WHERE id IN (102, 3000)", "INSERT INTO orders VALUES (104, 104, 'silent')",
    )  # fmt: skip
    time.sleep(1.1)


FAULTS = (("missing", "2"), ("differs", "30000"), ("surplus", "70000"))


def fill_target(line: Crashed) -> None:
    """Many rows, several ranges of them; the target has all but for some faults, and has consumed everything."""
    line.source.execute("INSERT INTO orders SELECT seq, seq, 'many' FROM seq_2001_to_62000")
    line.change(snapshot="chunk_mib: 1")
    line.again("extract")
    rows = [*line.source_rows(), (70000, 70000, "surplus")]
    with line.target.connect("shards", autocommit=True) as connection, connection.cursor() as cursor:
        for shard in (0, 1):
            mine = [row for row in rows if row[0] % 2 == shard and row[0] != 2]
            cursor.executemany(f"INSERT INTO orders_{shard} VALUES (%s, %s, %s)", mine)
        cursor.execute("UPDATE orders_0 SET status = 'fault' WHERE id = 30000")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("META", f"{line.target.url.replace('mysql://', 'mysql+pymysql://')}/meta")
        with Meta.open(line.document["meta"]["url"], "crash") as meta:
            meta.records.seed("shards", list(meta.batches.find("shop")))


@pytest.fixture
def source(request: pytest.FixtureRequest) -> Iterator[SourceDatabase]:
    """A new, empty database on a server of this kind."""
    yield from new_database(request.getfixturevalue(request.param))


@pytest.mark.parametrize(
    ("case", "source"),
    [
        pytest.param(
            case, server, id=case.id + SUFFIXES[server],
            marks=pytest.mark.crash_sample if case.sample else pytest.mark.matrix,
        )
        for case in CASES
        for server in case.sources
    ],
    indirect=["source"],
)  # fmt: skip
@pytest.mark.spark
@pytest.mark.timeout(1800)
def test_after_a_kill_the_same_commands_end_equal(
    case: Case,
    commands: ForkedCommands,
    source: SourceDatabase,
    target: MariaDb,
    tmp_path: Path,
    request: pytest.FixtureRequest,
) -> None:
    bucket = request.getfixturevalue("s3_server") if case.victim == "s3" else None
    ends_equal_after(case, line_of(commands, case, source, target, bucket, tmp_path))


@pytest.mark.matrix
@pytest.mark.parametrize("case", [pytest.param(case, id=case.id + AT_ENDPOINT) for case in at_endpoint()])
@pytest.mark.spark
@pytest.mark.timeout(1800)
def test_after_a_kill_the_same_commands_end_equal_at_a_connect_endpoint(
    case: Case,
    commands: ForkedCommands,
    source_database: SourceDatabase,
    target: MariaDb,
    tmp_path: Path,
    request: pytest.FixtureRequest,
) -> None:
    bucket = request.getfixturevalue("s3_server") if case.victim == "s3" else None
    line = line_of(commands, case, source_database, target, bucket, tmp_path)
    with endpoint_of(line, case) as line.endpoint:
        ends_equal_after(case, line)


@contextmanager
def endpoint_of(line: Crashed, case: Case, **more: str) -> Iterator[ConnectServer]:
    """A Connect server to which the line's jobs go from now on. more: of the case's order."""
    servers = {"target": line.target, "meta": line.target, "s3": line.bucket}
    victim = case.victim if case.victim not in servers else str(servers[case.victim].pid)
    # In the driver, a case that is about it strikes by the driver's own environment.
    environ = {} if case.killed in (TASK, DRIVER) or victim == "connect" else armed(case, victim, line.flag, **more)
    if line.bucket is not None:
        environ |= line.bucket.keys
    with ConnectServer.start(environ=environ) as server:
        line.change(spark={"master": server.url, "driver_rows": 0})
        yield server


def ends_equal_after(case: Case, line: Crashed) -> None:
    """Something is killed; the same commands then end as they would have."""
    command = {"extract": "extract", "copy": "snapshot", "repair": "repair", "verify": "verify"}.get(case.step, "run")
    if command == "snapshot":
        begin_after_rows(line)
    elif command == "verify":
        fill_target(line)
    elif case.step == "reverse query":
        look_changes_up(line)
    elif case.step == IN_PARTS:
        outgrow_driver(line)
    elif case.step == WRITE_PARTS:
        fill_parts(line)
    elif command == "run":
        line.again("extract")
    elif command == "repair":
        line.again("run")
        line.spoil()
    status, answer = line.lockstep(command, case=case)
    assert line.flag.exists(), f"nothing was killed: {answer}"
    assert status in (-9, 75), answer
    line.mend()
    if command == "extract":
        line.is_staged()
        return
    if command == "verify":
        line.is_verified()
        return
    if command == "snapshot":
        line.is_copied()
    if command == "repair":
        line.is_repaired()
    if case.step == "reverse query":
        line.is_queried(case)
    if not case.sample or command == "run":
        line.is_applied()


@pytest.mark.matrix
@pytest.mark.spark
@pytest.mark.timeout(1800)
def test_rows_without_a_key_are_applied_exactly_once_whoever_is_killed_between_shards(
    commands: ForkedCommands, source_database: Any, target: MariaDb, tmp_path: Path
) -> None:
    """Of two shards one has committed when its worker is killed; later changes go with the batches that are left."""
    case = Case("write", "", "", "pymysql.connections", "Connection.commit", "after", "")
    line = line_of(commands, case, source_database, target, None, tmp_path, WITHOUT_KEY)
    line.change(targets=[shards({**RULE, "no_key": "rows"})])
    for table in ("orders_0", "orders_1"):
        target.run(f"DROP TABLE {table}", f"CREATE TABLE {table} {WITHOUT_KEY}", database="shards")
    source_database.execute("INSERT INTO orders SELECT * FROM orders WHERE id < 100", "DELETE FROM orders LIMIT 30")
    line.again("extract")
    status, answer = line.lockstep("run", case=case)
    assert line.flag.exists(), f"nothing was killed: {answer}"
    assert status == 75, answer
    source_database.execute(
        "UPDATE orders SET status = 'sent' WHERE id % 5 = 0", "UPDATE orders SET id = id + 1 WHERE id < 50",
        "INSERT INTO orders VALUES (3, 3, NULL), (3, 3, NULL), (4, NULL, '')",
        "DELETE FROM orders WHERE id = 90 LIMIT 1",
    )  # fmt: skip
    line.again("run")
    found = Counter(line.target_rows())
    assert found == Counter(line.source_rows())
    assert max(found.values()) > 1
