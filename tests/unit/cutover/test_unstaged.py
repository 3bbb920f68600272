"""Which tables that are not staged stop a cutover (cdc_core/operations/cutover/unstaged.py)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from cdc_core.config import parse
from cdc_core.model.coverage import NO_SURVEY, How, TableCoverage
from cdc_core.operations.cutover.unstaged import StagedTables
from tests.lab.made_batches import manifest
from tests.lab.made_line import Line


@pytest.fixture
def line(tmp_path: Path) -> Iterator[Line]:
    made = Line.open(tmp_path, schedule="0 * * * *")
    yield made
    made.meta.close()


@pytest.mark.parametrize(
    ("include", "stops"),
    [(r"shop\.orders", True), (r"Shop\.Orders", True), (r"shop\.items", False)],
    ids=["taken again", "taken by servers that compare names in lower case", "left out on purpose"],
)
def test_a_table_that_was_left_out_stops_a_cutover_if_the_pipeline_takes_it(
    line: Line, include: str, stops: bool
) -> None:
    left_out = TableCoverage(How.LEFT_OUT, 1, 0, "binlog.000001:4")
    line.stage(manifest(0))
    line.meta.coverages.keep(line.leases["shop"], {"shop.orders": left_out}, NO_SURVEY)
    pipeline = parse(
        rf"""
pipeline: line
sources: [{{name: shop, connection: "env:SRC", server_id: 9}}]
tables: {{include: ['{include}']}}
stage: {{uri: "s3://bucket/shop/"}}
meta: {{url: "sqlite:////nowhere/meta.db"}}
targets: [{{name: shards, connections: ["env:TARGET"], tables: {{'*': {{database: shop, table: "{{logical}}"}}}}}}]
""",
        where="test",
    )
    found = [error.code for error in StagedTables(pipeline, pipeline.targets, line.meta).not_captured()]
    assert found == (["table.not_captured"] if stops else [])
