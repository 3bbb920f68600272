"""A lab whose target is a second database of the source's server, and what tests of verifications and repairs do."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from cdc_core.operations.verify.results import TableResult
from cdc_core.operations.verify.verifier import verify
from cdc_core.operations.verify.verify_job import VerifyJob
from tests.lab.databases import fresh_name
from tests.lab.forked_commands import Done, ForkedCommands, Started
from tests.lab.lab import Lab
from tests.lab.origin import Origin
from tests.lab.pipeline_file import JOINED, Section, keys, target
from tests.lab.shell import export


class Verified(Lab):
    """rule: of all tables of the target `copy`. table: their names there. commands: asked for by the first command."""

    def __init__(
        self,
        folder: Path,
        origin: Origin,
        commands: Callable[[], ForkedCommands],
        rule: Section = "",
        *,
        table: str = "{table}",
        **sections: Any,
    ) -> None:
        super().__init__(folder, origin, routes=JOINED, **sections)
        self.place, self._commands = fresh_name(), commands
        origin.execute_on_server(f"CREATE DATABASE {self.place}")
        tables = {"*": {"database": self.place, "table": table, **keys(rule)}}
        self.change(targets=[target("copy", "env:TARGET", tables)])
        self.environ |= {"TARGET": origin.sql.url, "SALT": "pepper"}
        export(self.environ)

    def __exit__(self, *error: object) -> None:
        super().__exit__(*error)
        self.origin.execute_on_server(f"DROP DATABASE IF EXISTS {self.place}")

    def change_target(self, **keys: Any) -> None:
        """Other keys of the target in the pipeline file."""
        (copy,) = self.pipeline.targets
        self.change(targets=[{**copy.model_dump(mode="json", exclude_unset=True), **keys}])

    def source(self, *statements: str) -> None:
        self.origin.execute(*statements)

    def unlogged(self, *statements: str) -> None:
        """On the source, and not in its log."""
        self.source("SET SESSION sql_log_bin = 0", *statements)

    def target(self, *statements: str) -> list[tuple[Any, ...]]:
        return self.origin.sql.run(*statements, database=self.place)

    def rows(self, *tables: str, columns: str = "*") -> list[tuple[Any, ...]]:
        """Of these tables of the target, one after the other."""
        return [row for table in tables for row in self.target(f"SELECT {columns} FROM {table} ORDER BY 1")]

    def fill(self, ids: range, table: str = "number") -> None:
        """Rows of the source with an hour each."""
        hour = "'2024-01-01 10:00:00' + INTERVAL {} MINUTE"
        self.source(*(f"INSERT INTO {table} VALUES ({n}, 'v{n}', {hour.format(n)})" for n in ids))

    def make(self, table: str, ids: range, key: str = "PRIMARY KEY") -> None:
        """A table of the source with such rows."""
        self.source(f"CREATE TABLE {table} (id INT {key}, v VARCHAR(20) COLLATE utf8mb4_general_ci, at DATETIME)")
        self.fill(ids, table)

    def joined(self, ids_a: range, ids_b: range) -> None:
        """Tables `all_a` and `all_b` with such rows, which the target has as one table `all`."""
        self.make("all_a", ids_a)
        self.make("all_b", ids_b)
        self.extract()
        own = self.origin.name
        self.target(
            f"CREATE TABLE `all` LIKE {own}.all_a",
            f"INSERT INTO `all` SELECT * FROM {own}.all_a UNION ALL SELECT * FROM {own}.all_b",
        )
        self.consumed()

    def into_two_shards(self, table: str = "number", by: str = "MOD(t, 2)") -> None:
        """The target has all rows of the table. by: SQL of the shard."""
        self.extract()
        for shard in (0, 1):
            self.target(
                f"CREATE TABLE {table}_{shard} LIKE {self.origin.name}.{table}",
                f"INSERT INTO {table}_{shard} SELECT * FROM {self.origin.name}.{table} WHERE {by} = {shard}",
            )
        self.consumed()

    def numbers(self, rows: int = 40, *, table: str = "number", key: str = "PRIMARY KEY") -> None:
        """A table with such rows, the same at both ends."""
        self.make(table, range(rows), key)
        self.load(table)

    def load(self, *tables: str) -> None:
        """Makes the target equal to the source, as by a run that applies everything staged."""
        self.extract()
        for table in tables:
            self.target(
                f"DROP TABLE IF EXISTS {table}",
                f"CREATE TABLE {table} LIKE {self.origin.name}.{table}",
                f"INSERT INTO {table} SELECT * FROM {self.origin.name}.{table}",
            )
        self.consumed()

    def consumed(self) -> None:
        """The target counts as having everything that is staged."""
        self.meta.records.seed("copy", list(self.meta.batches.find("shop")))

    def job(self, **options: Any) -> VerifyJob:
        return VerifyJob(self.opened, self.pipeline.targets[0], **options)

    def verify(self, *tables: str, **options: Any) -> dict[str, TableResult]:
        """By table. options: of the job."""
        return {result.table: result for result in verify(self.job(**options), tables).results}

    def found(self, table: str) -> list[tuple[str, str, dict[str, Any], list[str]]]:
        """Kind, wrong side, key and columns of each difference."""
        result = self.verify(table)[table]
        assert result.error is None, result.error
        assert result.unsettled == 0
        assert result.differences == len(result.findings)
        return [(finding.kind, finding.wrong, dict(finding.key), list(finding.columns)) for finding in result.findings]

    def __call__(self, command: str, *arguments: str, json: bool = True) -> Done:
        """`lockstep COMMAND` of the pipeline."""
        given = (command, "shop.yaml", *arguments, *["--json"] * json)
        return self._commands().run(*given, directory=self.folder, environ={**os.environ, **self.environ})

    def start(self, log: Path, command: str, *arguments: str) -> Started:
        """The same, beside others. log: the file for what it prints."""
        environ = {**os.environ, **self.environ}
        return self._commands().start(
            command, "shop.yaml", *arguments, "--json", directory=self.folder, environ=environ, log=log
        )

    def ok(self, command: str, *arguments: str) -> dict[str, Any]:
        """The document of a command that succeeds."""
        done = self(command, *arguments)
        assert done.code == 0, done.document
        return done.document
