"""kill -9 at every durable step of a run to a lake, with each kind of catalog; then the same command again: the mirror
equals the source, each row is there once, the ledger adds up, and nothing is left to do."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow.compute as pc
import pytest
from pyiceberg.catalog import load_catalog

from cdc_core.lake.lake_schema import DELETED
from examples.sandbox.postgres import Postgres
from tests.conftest import SourceDatabase
from tests.crash.cases import DRIVER, Case
from tests.crash.test_crash_matrix import armed
from tests.lab.forked_commands import Done, ForkedCommands
from tests.lab.lake_changes import require_every_change_once
from tests.lab.pipeline_file import pipeline_document, pipeline_text
from tests.lab.rest_catalog import RestCatalogServer

LAKE, JOBS, AGAIN = "cdc_core.lake", "spark_jobs", "the next run takes over the whole run"
SNAPSHOTS, PUBLICATION, COMMITS = f"{LAKE}.snapshots", f"{LAKE}.publication", f"{LAKE}.commits"
CASES = (
    Case("ready", "some tables made, others not", DRIVER, f"{LAKE}.lake_tables", "create", "after", AGAIN),
    Case("filter", "filtered, not counted", DRIVER, f"{JOBS}.lake_filter", "_judged", "after", AGAIN),
    Case("write", "files written, no snapshot", DRIVER, f"{LAKE}.data_files", "_write_file", "after", AGAIN),
    Case("write", "snapshot made, in no catalog", DRIVER, SNAPSHOTS, "on_branch", "before", AGAIN),
    Case("write", "some snapshots on the branch", DRIVER, SNAPSHOTS, "on_branch", "after", AGAIN, call=2),
    Case("commit", "before the publication", DRIVER, PUBLICATION, "publish", "before", AGAIN),
    Case("commit", "some tables published, if one by one", DRIVER, COMMITS, "_forget", "after", AGAIN, call=11),
    Case("commit", "published, no cut on the stage", DRIVER, "cdc_core.stage.cuts", "complete", "before",
         "the next run completes it, finds its rows there, and publishes another", sample=True, call=2),
    Case("commit", "cut on the stage, not in meta", DRIVER, "cdc_core.stage.cuts", "complete", "after",
         "the next run finds its rows there, and publishes a cut", call=2),
    Case("maintenance", "snapshots expired, files not removed", DRIVER, f"{LAKE}.expiry", "files_of", "after",
         "the files are orphans"),
)  # fmt: skip
CHANGES = (
    "INSERT INTO orders SELECT seq, seq * 2, CONCAT('new', seq) FROM seq_1001_to_1300",
    "UPDATE orders SET status = 'paid' WHERE id % 3 = 0",
    "DELETE FROM orders WHERE id % 7 = 0",
    "UPDATE orders SET id = id + 10000 WHERE id % 50 = 1",
    "UPDATE customers SET name = 'x' WHERE id < 10",
    "DELETE FROM customers WHERE id % 11 = 0",
    "ALTER TABLE customers ADD COLUMN email VARCHAR(20)",
)


@dataclass
class Laked:
    kind: str
    commands: ForkedCommands
    folder: Path
    source: SourceDatabase
    catalog: dict[str, str]
    deleted_customers: list[tuple[int, str]] = field(default_factory=list)

    def lockstep(self, *arguments: str, case: Case | None = None) -> Done:
        environ = {**os.environ, "SOURCE": self.source.server.url, "LAKE_CATALOG": self.catalog["uri"]}
        if case is not None:
            environ |= armed(case, "process", self.folder / "struck")
        return self.commands.run(*arguments, "crash.yaml", "--json", directory=self.folder, environ=environ)

    def again(self, *arguments: str) -> Any:
        done = self.lockstep(*arguments)
        assert done.code == 0, done.out + done.err
        return json.loads(done.out)

    def require_equal(self) -> None:
        tables = load_catalog("lake", **self.catalog)
        for name in ("orders", "customers"):
            rows = tables.load_table(f"shop.{name}").scan().to_arrow()
            if name == "customers":
                gone = rows.filter(rows[DELETED]).select(["id", "name"]).sort_by("id").to_pylist()
                assert [tuple(row.values()) for row in gone] == self.deleted_customers
                rows = rows.filter(pc.invert(rows[DELETED]))
            columns = [
                column for (column, *_) in self.source.server.run(f"SHOW COLUMNS FROM {self.source.name}.{name}")
            ]
            query = f"SELECT {', '.join(columns)} FROM {name}"
            found = sorted(tuple(row[column] for column in columns) for row in rows.to_pylist())
            assert found == sorted(self.source.server.run(query, database=self.source.name)), name
            require_every_change_once(tables.load_table(f"shop.{name}__changes"), self.folder / "stage", name)


@pytest.fixture(params=["sqlite", "postgres", "rest", "rest one by one"])
def laked(
    request: pytest.FixtureRequest, commands: ForkedCommands, source_database: SourceDatabase, tmp_path: Path
) -> Iterator[Laked]:
    kind = request.param
    catalog = {"type": "rest" if kind.startswith("rest") else "sql", "warehouse": (tmp_path / "warehouse").as_uri()}
    (tmp_path / "warehouse").mkdir()
    with ExitStack() as servers:
        if kind.startswith("rest"):
            catalog["uri"] = servers.enter_context(RestCatalogServer(tmp_path, transactions=kind == "rest")).uri
        elif kind == "postgres":
            catalog["uri"] = servers.enter_context(Postgres.start()).url()
        else:
            catalog["uri"] = f"sqlite:///{tmp_path}/lake.db"
        yield Laked(kind, commands, tmp_path, source_database, catalog)


def marked(case: Case) -> Any:
    return pytest.param(case, id=case.id, marks=[pytest.mark.crash_sample if case.sample else pytest.mark.matrix])


@pytest.mark.parametrize("case", [marked(case) for case in CASES])
def test_a_lake_is_right_after_a_kill(case: Case, laked: Laked) -> None:
    laked.source.execute(
        "CREATE TABLE orders (id INT PRIMARY KEY, customer INT, status VARCHAR(20))",
        "CREATE TABLE customers (id INT PRIMARY KEY, name VARCHAR(20))",
    )
    target = {
        "name": "lake", "kind": "iceberg", "namespace": "shop",
        "tables": {"*": {"changes": "table"}, "customers": {"changes": "table", "deletes": "flag"}},
        "catalog": {**laked.catalog, "uri": "env:LAKE_CATALOG"},
    }  # fmt: skip
    document = pipeline_document(
        laked.folder, laked.source.name, pipeline="crash", source="start: latest", targets=[target],
        limits={"lease_s": 5},
    )  # fmt: skip
    (laked.folder / "crash.yaml").write_text(pipeline_text(document))
    laked.again("extract")
    laked.source.execute(
        "INSERT INTO orders SELECT seq, seq, 'first' FROM seq_1_to_1000",
        "INSERT INTO customers SELECT seq, 'first' FROM seq_1_to_100",
    )
    if case.step != "ready":
        laked.again("run")
        laked.source.execute(*CHANGES)
        laked.deleted_customers = [(number, "first") for number in range(11, 101, 11)]
    strikes = ("lake", "maintain") if case.step == "maintenance" else ("run",)
    struck = laked.lockstep(*strikes, case=case)
    # One request publishes all tables, and nothing is done for each of them.
    comes_there = laked.kind != "rest" or case.function != "_forget"
    assert (laked.folder / "struck").exists() == comes_there, struck.out
    assert (struck.code < 0) == comes_there, struck.err
    ran = laked.again("run")
    laked.require_equal()
    assert all(entry["problems"] == [] for entry in ran["ledgers"])
    assert laked.again("status")["targets"][0]["pending"] == {"batches": 0, "rows": 0}
    assert laked.again("run", "--staged")["batches"] == 0
    assert laked.again("lake", "at")["tables"]
