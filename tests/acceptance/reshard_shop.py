"""A shop whose tables get more shards, and its servers."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.lab.databases import drop_database

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
      '*':
        {{database: "{name}_{{d}}", table: "{{logical}}_{{t}}",
         sharding: {{key: id, databases: {databases}, tables: {tables}}}}}

# Rows that are there already.
snapshot: {{mode: initial}}
stage: {{uri: "file://{folder}/stage"}}
meta: {{url: "sqlite:///{folder}/meta.db"}}
limits: {{lease_s: 5}}
cutover: {{switch_with: {folder}/switch.sh, budget_s: 20, max_lag_s: 10}}
"""
TABLES = ("orders", "items")
Grid = tuple[int, int]
NOWHERE = "mysql://nobody@127.0.0.1:9"


class Shop:
    """A pipeline with rows, and its servers."""

    def __init__(self, lockstep: Any, source: Any, target: Any, name: str, old: Grid, new: Grid) -> None:
        self.lockstep, self.source, self.target, self.name = lockstep, source, target, name
        self.old, self.new = old, new
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

    def hook(self, *files: str) -> None:
        """Names a switch command in pipelines that were written without one."""
        for file in map(self.folder.joinpath, files):
            text = file.read_text()
            assert "switch_with" not in text
            file.write_text(text.replace("cutover:\n", f"cutover:\n  switch_with: {self.folder}/switch.sh\n"))

    def add_layout(self) -> None:
        """Adds a target with the new layout to the pipeline file."""
        databases, tables = self.new
        target = f"""
  - name: shards_{databases}x{tables}
    connections: [env:NEW]
    on_missing_table: create
    tables:
      '*':
        {{database: "{self.name}_{{d}}_{databases}x{tables}", table: "{{logical}}_{{t}}",
         sharding: {{key: id, databases: {databases}, tables: {tables}}}}}
"""
        self.file.write_text(self.file.read_text().replace("\n# Rows that are there already.", target))

    def write(self, server: Any = None, place: Any = None) -> None:
        """The application's writes: to the source, or to shards. place: of a table and an id there."""
        server, place = server or self.source, place or (lambda table, key: f"{self.name}.{table}")
        for table in TABLES:
            for key in range(0, 40, 3):
                server.run(f"REPLACE INTO {place(table, key)} (id, n) VALUES ({key}, {time.monotonic_ns()})")
            server.run(f"DELETE FROM {place(table, 2)} WHERE id = 2")

    def old_place(self, table: str, key: int) -> str:
        d, t = divmod(key % (self.old[0] * self.old[1]), self.old[1])
        return f"{self.name}_{d}.{table}_{t}"

    def new_place(self, table: str, key: int) -> str:
        d, t = divmod(key % (self.new[0] * self.new[1]), self.new[1])
        return f"{self.name}_{d}_{self.new[0]}x{self.new[1]}.{table}_{t}"

    def rows(self, server: Any, places: list[str]) -> list[tuple[int, int]]:
        if not places:
            return []
        return sorted(server.run(" UNION ALL ".join(f"SELECT id, n FROM {place}" for place in places)))

    def at_source(self, table: str) -> list[tuple[int, int]]:
        return self.rows(self.source, [f"{self.name}.{table}"])

    def in_old(self, table: str) -> list[tuple[int, int]]:
        return self.rows(self.target, [self.old_place(table, shard) for shard in range(self.old[0] * self.old[1])])

    def in_new(self, table: str) -> list[tuple[int, int]]:
        """Each row is in its own shard."""
        found, count = [], self.new[0] * self.new[1]
        for shard in range(count):
            rows = self.rows(self.target, [self.new_place(table, shard)])
            assert all(key % count == shard for key, _ in rows)
            found += rows
        return sorted(found)


@contextmanager
def shop(lockstep: Any, source: Any, target: Any, *, old: Grid = (2, 2), new: Grid = (4, 4)) -> Iterator[Shop]:
    """old, new: databases and tables in each."""
    name = f"re_{uuid.uuid4().hex[:8]}"
    made = Shop(lockstep, source, target, name, old, new)
    lockstep.environ |= {"SOURCE": source.url, "SHARDS": target.url, "NEW": target.url}
    made.file.write_text(PIPELINE.format(name=name, folder=made.folder, databases=old[0], tables=old[1]))
    (made.folder / "switch.sh").write_text("#!/bin/sh\n")
    (made.folder / "switch.sh").chmod(0o755)
    source.run(f"CREATE DATABASE {name}")
    for table in TABLES:
        source.run(
            f"CREATE TABLE {name}.{table} (id INT PRIMARY KEY, n BIGINT NOT NULL, code INT UNIQUE)",
            f"INSERT INTO {name}.{table} (id, n) VALUES " + ", ".join(f"({n}, {n})" for n in range(1, 200)),
        )
    try:
        yield made
    finally:
        for server in (source, target):
            for (database,) in server.run(f"SHOW DATABASES LIKE '{name}%'"):
                drop_database(server, database)
