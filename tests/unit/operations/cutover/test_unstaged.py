"""Which tables that are not staged stop a cutover (cdc_core/operations/cutover/unstaged.py)."""

from __future__ import annotations

from pathlib import Path

import pytest

from cdc_core.meta import TableCopy
from cdc_core.meta.table_copies import copier_of
from cdc_core.model.coverage import NO_SURVEY, How, TableCoverage
from cdc_core.model.schema import TableSchema
from cdc_core.operations.copy.pending import copied_by_runs
from cdc_core.operations.cutover.unstaged import StagedTables
from tests.lab.made_batches import manifest
from tests.lab.made_line import Line, pipeline


@pytest.mark.parametrize(
    ("include", "stops"),
    [(r"shop\.orders", True), (r"Shop\.Orders", True), (r"shop\.items", False)],
    ids=["taken again", "taken by servers that compare names in lower case", "left out on purpose"],
)
def test_a_table_that_was_left_out_stops_a_cutover_if_the_pipeline_takes_it(
    line: Line, tmp_path: Path, include: str, stops: bool
) -> None:
    left_out = TableCoverage(How.LEFT_OUT, 1, 0, "binlog.000001:4")
    line.stage(manifest(0))
    line.meta.coverages.keep(line.leases["shop"], {"shop.orders": left_out}, NO_SURVEY)
    found = pipeline(tmp_path, tables={"include": [include]})
    codes = [error.code for error in StagedTables(found, found.targets, line.meta).not_captured()]
    assert codes == (["table.not_captured"] if stops else [])


def test_a_copy_that_has_begun_stops_a_cutover_until_a_run_has_finished_it(line: Line, tmp_path: Path) -> None:
    """Whatever the pipeline copies by itself: the remedy is a run."""
    found = pipeline(tmp_path, snapshot={"mode": "none"})
    copier = line.meta.leases.acquire(copier_of("shop"), "the copier", 60)
    line.meta.copies.begin(copier, TableCopy("shop", TableSchema("shop", "big", ()), ("9",)))
    (error,) = StagedTables(found, found.targets, line.meta).refused()
    assert (error.code, "shop.big waits for a copy" in error.what) == ("cutover.copy_due", True)
    assert [run.name for run in copied_by_runs(line.meta, found, "shop")] == ["shop.big"]
    line.meta.copies.drop(copier, "shop", "shop.big")
    assert list(StagedTables(found, found.targets, line.meta).refused()) == []
