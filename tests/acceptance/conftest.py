"""`lockstep` as a user calls it: a process of its own, in a directory of its own, against real servers."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from cdc_core.config import load
from cdc_core.operations.open_pipeline import OpenPipeline, open_pipeline
from cdc_core.source.capture import SYSTEM_SCHEMAS
from examples.sandbox.spark import ConnectServer
from examples.sandbox.sql_server import SqlServer
from tests.acceptance import cutover_cases
from tests.acceptance.moving_shop import PAIRS
from tests.lab.databases import drop_database
from tests.lab.forked_commands import ROOT, Done, ForkedCommands, Started
from tests.lab.pipeline_file import keys, write_pipeline
from tests.lab.shell import export


@dataclass
class CommandLine:
    """A shell of a user: `environ` is what was exported in it."""

    directory: Path
    _commands: ForkedCommands
    environ: dict[str, str] = field(default_factory=dict)

    def __call__(self, *arguments: object, code: int | None = 0) -> Done:
        """Runs `lockstep ARGUMENTS --json`; fails the test when it ends with another code than expected."""
        done = self._commands.run(*arguments, "--json", directory=self.directory, environ=self.environment)
        if code is not None:
            assert done.code == code, f"{arguments}: {done.code}\n{done.out}\n{done.err}"
        return done

    @contextmanager
    def started(self, *arguments: object, log: str = "started.log") -> Iterator[Started]:
        """`lockstep ARGUMENTS --json` beside the block, after which it is killed."""
        running = self._commands.start(
            *arguments, "--json", directory=self.directory, environ=self.environment, log=self.directory / log
        )
        try:
            yield running
        finally:
            running.kill()

    def write(self, pipeline: str, database: str, **sections: Any) -> Path:
        """A pipeline file in the directory, whose source is at env:SHOP. sections: as of `pipeline_document`."""
        sections["source"] = {"connection": "env:SHOP"} | keys(sections.get("source", ""))
        return write_pipeline(self.directory, database, pipeline=pipeline, **sections)

    def init(self, source: SqlServer, database: str, target: SqlServer | None = None, *options: str) -> Path:
        """`shop.yaml` by `lockstep init`: it captures the database at env:SHOP. Its target is at env:COPY."""
        self.environ["SHOP"] = source.url
        if target:
            self.environ["COPY"] = target.url
            options = ("--target", "env:COPY", *options)
        self("init", "shop", "--source", "env:SHOP", "--include", rf"{database}\..*", *options)
        return self.directory / "shop.yaml"

    def exported(self, table: str, *options: object, file: str = "shop.yaml") -> pa.Table:
        """The state of a logical table, by `lockstep stage export`."""
        place = self.directory / "exported.parquet"
        self("stage", "export", file, table, "-o", place, "--force", *options)
        return pq.read_table(place)

    def opened(self, file: str = "shop.yaml") -> AbstractContextManager[OpenPipeline]:
        """The pipeline, for what no command does. What the shell exports, this process does."""
        export(self.environ)
        return open_pipeline(load(self.directory / file))

    @property
    def environment(self) -> Mapping[str, str]:
        return {**os.environ, "PYTHONPATH": str(ROOT), **self.environ}

    @staticmethod
    def command(*arguments: object) -> list[str]:
        return [sys.executable, "-m", "cdc_core.cli", *(str(argument) for argument in arguments)]


@pytest.fixture
def lockstep(tmp_path: Path, commands: ForkedCommands, shared_servers: list[SqlServer]) -> Iterator[CommandLine]:
    """Databases that the test creates on the shared servers are dropped."""
    before = {server.port: databases(server) for server in shared_servers}
    yield CommandLine(tmp_path, commands)
    for server in shared_servers:
        for name in databases(server) - before.get(server.port, set()):
            drop_database(server, name)


def databases(server: SqlServer) -> set[str]:
    """Those of users."""
    return {name for (name,) in server.run("SHOW DATABASES")} - SYSTEM_SCHEMAS


@pytest.fixture
def cursors(mariadb: SqlServer, mariadb_target: SqlServer, lockstep: CommandLine) -> Iterator[tuple[Any, Any]]:
    """At the source, env:SHOP, and at the target, env:COPY."""
    lockstep.environ |= {"SHOP": mariadb.url, "COPY": mariadb_target.url}
    with (
        mariadb.connect(autocommit=True) as connection, connection.cursor() as source,
        mariadb_target.connect(autocommit=True) as other, other.cursor() as copy,
    ):  # fmt: skip
        yield source, copy


@pytest.fixture
def servers(request: pytest.FixtureRequest) -> tuple[Any, Any]:
    """A source and a target of another kind."""
    source, target = PAIRS[request.param]
    return request.getfixturevalue(source), request.getfixturevalue(target)


@pytest.hookimpl(trylast=True)
def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """After `make move-matrix`: how the cutovers ended."""
    if config.getoption("-m") != "matrix or move_sample":
        return
    ended: dict[str, str] = {}
    for outcome in ("passed", "failed", "error"):
        for report in terminalreporter.stats.get(outcome, []):
            name = report.nodeid.partition("[")[2].rpartition("-")[0]
            for key, value in getattr(report, "user_properties", ()):
                if key == "ended":
                    ended[name] = value if outcome == "passed" else "NOT AS EXPECTED"
    for direction in cutover_cases.DIRECTIONS:
        for line in (*cutover_cases.table(direction, ended), ""):
            terminalreporter.write_line(line)


@pytest.fixture(scope="session")
def connect_server() -> Iterator[ConnectServer]:
    """Its executors have this environment."""
    with ConnectServer.start() as server:
        yield server


@pytest.fixture(params=["driver", "spark"])
def spark_section(request: pytest.FixtureRequest) -> dict[str, Any]:
    """A pipeline's section: its runs are done by their driver, or all by Spark."""
    if request.param == "driver":
        return {}
    return {"driver_rows": 0, "master": request.getfixturevalue("connect_server").url}
