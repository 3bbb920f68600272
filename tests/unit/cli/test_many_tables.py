"""`status` of a pipeline with thousands of tables: a bounded answer, a count of the others, and how to see them."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from cdc_core.cli.status import MOST_ACCOUNTS, MOST_COPIES, MOST_NOTES
from cdc_core.model.coverage import How, TableCoverage
from cdc_core.operations.extract import DrainResult
from cdc_core.operations.extract.partial import note_partial
from cdc_core.operations.open_pipeline import OpenPipeline
from tests.lab.made_batches import covered, manifest
from tests.lab.made_line import Line
from tests.lab.opened import Noted

TABLES = 500
PIPELINE = """
pipeline: line
sources: [{{name: shop, connection: env:SHOP, server_id: 7}}]
tables: {{include: ['.*']}}
stage: {{uri: 'file://{0}/stage'}}
meta: {{url: 'sqlite:///{0}/meta.db'}}
targets: [{{name: t, connections: [env:T], tables: {{'*': {{}}}}}}]
"""


@pytest.fixture
def many(tmp_path: Path) -> Path:
    """A pipeline that has applied a batch of TABLES partial tables."""
    line = Line.open(tmp_path)
    line.stage(*covered([manifest(0, tables={f"shop.t{number:03d}": 1 for number in range(TABLES)})], how=How.EXISTING))
    line.done("run")
    line.stage(manifest(1, tables={}))
    line.done("after")  # without rows it has no ledger
    line.meta.close()
    path = tmp_path / "line.yaml"
    path.write_text(PIPELINE.format(tmp_path))
    return path


def test_status_counts_the_batches_of_a_failed_run_among_those_that_wait(
    lockstep: Callable[..., Any], tmp_path: Path
) -> None:
    line = Line.open(tmp_path)
    line.stage(manifest(0, tables={"shop.orders": 7}))
    line.plan("failed")
    line.meta.runs.record_failure("failed", "it broke")
    line.stage(manifest(1, tables={"shop.orders": 5}))
    line.meta.close()
    path = tmp_path / "line.yaml"
    path.write_text(PIPELINE.format(tmp_path))
    shown = " ".join(lockstep("status", path).out.split())
    assert "waiting batches ┃ waiting rows" in shown
    assert "│t │ 2 │ 12 │ STAGED 1" in shown
    document = json.loads(lockstep("status", path, "--json").out)
    assert document["targets"][0]["open"] == {"batches": 2, "rows": 12}


def test_an_extract_says_once_that_tables_had_rows_before() -> None:
    partial = {
        f"shop.t{number:02d}": TableCoverage(How.EXISTING, 4, 0, "binlog.000001:4", rows=number) for number in range(12)
    }
    partial["shop.late"] = TableCoverage(How.UNLOGGED, 9, 0, "binlog.000001:9")
    partial["shop.gone"] = replace(partial["shop.t03"], absent_seq=99)
    results = {"shop": cast(DrainResult, SimpleNamespace(partial=partial))}
    progress = Noted()
    note_partial(cast(OpenPipeline, SimpleNamespace(name="shop", progress=progress)), results)
    gone, existing, late = " ".join(progress.notes).split("partial: ")[1:]
    assert gone.startswith("rows of shop.gone (source shop) from before")
    assert existing.startswith(
        "rows from before their capture are not captured: shop.t00 (~0 rows), shop.t01 (~1 row), shop.t02 (~2 rows), "
    )
    assert existing.rstrip().endswith("shop.t09 (~9 rows) and 2 more")
    assert late.startswith("rows of shop.late (source shop) changed without row events at binlog.000001:9")
    assert "`lockstep snapshot` copies the tables." in late

    # A way back begins where its target has every row.
    back = Noted()
    note_partial(cast(OpenPipeline, SimpleNamespace(name="shop_back", progress=back)), results)
    assert " ".join(back.notes).count("partial: ") == 1


def test_status_shows_some_of_many_tables_counts_the_others_and_all_of_them_on_request(
    lockstep: Callable[..., Any], many: Path
) -> None:
    out = lockstep("status", many).out
    assert out.count("noted: table shop.t") == MOST_NOTES
    assert f"and {TABLES - MOST_NOTES:,} more notes: lockstep status {many} --all" in out.replace("\n", " ")
    assert f"and {TABLES - MOST_ACCOUNTS:,} more tables, which add up" in out
    assert f"and {TABLES - MOST_COPIES:,} more tables that are not copied" in out
    assert len(out.splitlines()) < 200
    out = lockstep("status", many, "--all").out
    assert out.count("noted: table shop.t") == TABLES
    assert "--all" not in out
    assert f"shop.t{TABLES - 1}" in out.partition("ledger of the latest run")[2]
    document = json.loads(lockstep("status", many, "--json").out)
    assert len(document["problems"]) >= TABLES
    assert len(document["ledgers"]) == TABLES
    assert [one["state"] for one in document["sources"][0]["copies"]] == ["pending"] * TABLES
