"""`status` of a pipeline with thousands of tables: a bounded answer, a count of the others, and how to see them."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from cdc_core.cli.status import MOST_ACCOUNTS, MOST_COPIES, MOST_NOTES
from cdc_core.model.coverage import How, TableCoverage
from cdc_core.operations.extract.partial import note_partial
from tests.lab.made_batches import covered, manifest
from tests.lab.made_line import Line
from tests.lab.opened import Noted
from tests.lab.pipeline_file import write_pipeline

TABLES = 500


@pytest.fixture
def many(tmp_path: Path) -> Path:
    """A pipeline that has applied a batch of TABLES partial tables."""
    line = Line.open(tmp_path)
    line.stage(*covered([manifest(0, tables={f"shop.t{number:03d}": 1 for number in range(TABLES)})], how=How.EXISTING))
    line.done("run")
    line.stage(manifest(1, tables={}))
    line.done("after")  # without rows it has no ledger
    line.meta.close()
    return written(tmp_path)


def written(folder: Path) -> Path:
    """The file of the pipeline."""
    targets = [{"name": "t", "connections": ["env:T"], "tables": {"*": {}}}]
    return write_pipeline(folder, "shop", pipeline="line", routes="[]", targets=targets)


def test_status_counts_the_batches_of_a_failed_run_among_those_that_wait(
    lockstep: Callable[..., Any], tmp_path: Path
) -> None:
    line = Line.open(tmp_path)
    line.stage(manifest(0, tables={"shop.orders": 7}))
    line.plan("failed")
    line.meta.runs.record_failure("failed", "it broke")
    line.stage(manifest(1, tables={"shop.orders": 5}))
    line.meta.close()
    path = written(tmp_path)
    shown = " ".join(lockstep("status", path).out.split())
    assert "waiting batches ┃ waiting rows" in shown
    assert "│t │ 2 │ 12 │ STAGED 1" in shown
    document = json.loads(lockstep("status", path, "--json").out)
    assert document["targets"][0]["open"] == {"batches": 2, "rows": 12}


@pytest.mark.parametrize(("pipeline", "notes"), [("shop", 3), ("shop_back", 1)])  # a way back has every row
def test_an_extract_says_once_that_tables_had_rows_before(pipeline: str, notes: int) -> None:
    partial = {
        f"shop.t{number:02d}": TableCoverage(How.EXISTING, 4, 0, "binlog.000001:4", rows=number) for number in range(12)
    }
    partial["shop.late"] = TableCoverage(How.UNLOGGED, 9, 0, "binlog.000001:9")
    partial["shop.gone"] = replace(partial["shop.t03"], absent_seq=99)
    results = {"shop": SimpleNamespace(partial=partial)}
    progress = Noted()
    note_partial(SimpleNamespace(name=pipeline, progress=progress), results)
    said = " ".join(progress.notes)
    assert said.count("partial: ") == notes
    assert ("shop.t09 (~9 rows) and 2 more" in said) == (notes == 3)
    assert "shop.late (source shop) changed without row events at binlog.000001:9" in said
    assert "`lockstep snapshot` copies the tables." in said


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
    assert [copy["state"] for copy in document["sources"][0]["copies"]] == ["pending"] * TABLES
