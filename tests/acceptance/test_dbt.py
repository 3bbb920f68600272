"""examples/dbt on the demo's shop: its sources as `lockstep dbt sources` prints them, and its models by dbt itself."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import duckdb
import pytest
import yaml
from pyiceberg.catalog import load_catalog

from examples.shop.place import Place, connections
from examples.shop.tables import source_statements
from examples.shop.workload import Shop
from tests.contract.product_source import ROOT
from tests.lab.dbt_python import dbt_python
from tests.lab.lake_changes import staged_changes

EXAMPLE = ROOT / "examples" / "dbt"


@dataclass
class Analysts:
    """Who have a dbt project over the shop's lake."""

    lockstep: Any
    shop: Shop
    place: Place
    project: Path

    @property
    def file(self) -> Path:
        return self.place.pipeline_file

    def publish(self) -> None:
        """What the shop has sold, to the stage and to the lake."""
        self.lockstep("extract", self.file)
        self.lockstep("run", self.file, "--replay", "--target", "lake")

    def dbt(self, *arguments: str, code: int | None = 0) -> None:
        variables = {
            "PYTHONPATH": str(ROOT),
            "DBT_PROFILES_DIR": str(self.project),
            "DBT_SEND_ANONYMOUS_USAGE_STATS": "false",
            "SHOP_DUCKDB": str(self.place.root / "analytics.duckdb"),
            "SHOP_LAKE": self.place.catalog_url,
        }
        done = subprocess.run(
            [dbt_python(), "-m", "dbt.cli.main", *arguments],
            cwd=self.project,
            env={**os.environ, **variables},
            capture_output=True,
            text=True,
            check=False,
        )
        assert code is None or done.returncode == code, done.stdout[-6000:] + done.stderr[-2000:]

    def ask(self, query: str) -> list[tuple[Any, ...]]:
        with closing(duckdb.connect(self.place.root / "analytics.duckdb")) as database:
            return database.execute(query).fetchall()

    def staged_changes(self) -> int:
        return len(staged_changes(self.place.stage, "orders"))


@pytest.fixture
def analysts(lockstep: Any, mariadb: Any, tmp_path: Path) -> Iterator[Analysts]:
    """The shop has rows that were copied, and a column that came later, as in the demo."""
    place = Place(tmp_path / "demo")
    place.start_over()
    lockstep.environ |= connections(place, mariadb, mariadb)
    mariadb.run(*source_statements())
    project = tmp_path / "project"
    shutil.copytree(EXAMPLE, project, ignore=shutil.ignore_patterns("target", "logs", "__pycache__"))
    with closing(mariadb.connect()) as connection:
        shop = Shop(connection, 20)
        shop.run(150)
        lockstep("extract", place.pipeline_file)
        shop.run(50)
        lockstep("snapshot", place.pipeline_file)
        shop.add_column()
        shop.run(100)
        yield Analysts(lockstep, shop, place, project)


def test_the_models_are_built_and_right_also_after_more_changes_a_replay_and_a_late_copy(analysts: Analysts) -> None:
    analysts.publish()
    sources = analysts.project / "models" / "sources.yml"
    sources.unlink()
    analysts.lockstep("dbt", "sources", analysts.file, "--output", sources)
    assert sources.read_text() == (EXAMPLE / "models" / "sources.yml").read_text()
    refused = analysts.lockstep("dbt", "sources", analysts.file, "-o", sources, code=2)
    assert refused.error["code"] == "usage.output_file"
    printed = analysts.lockstep("dbt", "sources", analysts.file).document
    assert {"pipeline": "shop", **yaml.safe_load(sources.read_text())} == printed

    analysts.dbt("build")
    analysts.dbt("source", "freshness", code=None)  # whether they are late depends on how fast this machine is
    found = json.loads((analysts.project / "target" / "sources.json").read_text())["results"]
    cuts = load_catalog("lake", type="sql", uri=analysts.place.catalog_url).load_table("shop.lockstep_cuts")
    committed = set(cuts.scan().to_arrow()["committed_at"].to_pylist())
    assert {source["unique_id"].rpartition(".")[2] for source in found} == {
        "customers", "order_items", "orders", "orders__changes",
    }  # fmt: skip
    assert {source["max_loaded_at"] for source in found} == {moment.isoformat() for moment in committed}

    first = analysts.staged_changes()
    assert analysts.ask("SELECT count(*) FROM order_changes") == [(first,)]
    # A version that is over: only a table that is made again loses the mark.
    mark = "UPDATE order_changes SET status = 'marked' WHERE (order_id, _cdc_seq, _cdc_row) = ("
    mark += "SELECT (order_id, _cdc_seq, _cdc_row) FROM order_versions WHERE NOT is_current LIMIT 1)"
    assert analysts.ask(mark) == [(1,)]

    analysts.shop.run(150)
    analysts.publish()
    analysts.dbt("build")
    second = analysts.staged_changes()
    assert second > first
    marked = "SELECT count(*), count(*) FILTER (status = 'marked') FROM order_changes"
    assert analysts.ask(marked) == [(second, 1)]

    analysts.lockstep("run", analysts.file, "--replay", "--target", "lake")
    analysts.shop.run(20)
    analysts.lockstep("extract", analysts.file)
    analysts.lockstep("snapshot", analysts.file, "shop.orders_1")
    analysts.publish()
    analysts.dbt("build")
    third = analysts.staged_changes()
    assert third > second
    assert analysts.ask(marked) == [(third, 1)]
