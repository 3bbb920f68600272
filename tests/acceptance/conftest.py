"""`lockstep` as a user calls it: a process of its own, in a directory of its own, against real servers."""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.acceptance import cutover_cases
from tests.acceptance.moving_shop import PAIRS
from tests.lab.forked_commands import ROOT, Done, ForkedCommands
from tests.lab.pipeline_file import keys, write_pipeline


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

    def write(self, pipeline: str, database: str, **sections: Any) -> Path:
        """A pipeline file in the directory, whose source is at env:SHOP. sections: as of `pipeline_document`."""
        sections["source"] = {"connection": "env:SHOP"} | keys(sections.get("source", ""))
        return write_pipeline(self.directory, database, pipeline=pipeline, **sections)

    @property
    def environment(self) -> Mapping[str, str]:
        return {**os.environ, "PYTHONPATH": str(ROOT), **self.environ}

    @staticmethod
    def command(*arguments: object) -> list[str]:
        return [sys.executable, "-m", "cdc_core.cli", *(str(one) for one in arguments)]


@pytest.fixture
def lockstep(tmp_path: Path, commands: ForkedCommands) -> CommandLine:
    return CommandLine(tmp_path, commands)


@pytest.fixture
def cursors(mariadb: Any, mariadb_target: Any, lockstep: CommandLine) -> Iterator[tuple[Any, Any]]:
    """At the source, env:SHOP, and at the target, env:COPY. Databases that a test creates by them are dropped."""
    lockstep.environ |= {"SHOP": mariadb.url, "COPY": mariadb_target.url}
    with (
        mariadb.connect(autocommit=True) as one, one.cursor() as source,
        mariadb_target.connect(autocommit=True) as other, other.cursor() as copy,
    ):  # fmt: skip
        before = [databases(cursor) for cursor in (source, copy)]
        try:
            yield source, copy
        finally:
            for cursor, there in zip((source, copy), before, strict=True):
                for name in databases(cursor) - there:
                    cursor.execute(f"DROP DATABASE `{name}`")


def databases(cursor: Any) -> set[str]:
    cursor.execute("SHOW DATABASES")
    return {name for (name,) in cursor.fetchall()}


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
    random_ends: Counter[tuple[str, str, str, str]] = Counter()
    for outcome in ("passed", "failed", "error"):
        for report in terminalreporter.stats.get(outcome, []):
            name = report.nodeid.partition("[")[2].rpartition("-")[0]
            for key, value in getattr(report, "user_properties", ()):
                if key == "ended" and "|" in value:
                    *what, count = value.split("|")
                    random_ends[what[0], what[1], what[2], what[3]] += int(count)
                elif key == "ended":
                    ended[name] = value if outcome == "passed" else "NOT AS EXPECTED"
    tables = [line for one in cutover_cases.DIRECTIONS for line in (*cutover_cases.table(one, ended), "")]
    for line in [*tables, *cutover_cases.random_table(random_ends)]:
        terminalreporter.write_line(line)
