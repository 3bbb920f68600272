"""A run that would write what its own pipeline reads is refused before it writes."""

from __future__ import annotations

from pathlib import Path

import pytest

from cdc_core.errors import Refused
from cdc_core.operations.check.loops import require_no_loops
from tests.lab.made_batches import manifest
from tests.lab.made_line import Line
from tests.lab.refusals import raises
from tests.lab.shell import export

SAME = "mysql://u:p@DB.example:3306"
OTHER = "mysql://u:p@db.example:3307"


@pytest.mark.parametrize(
    ("target", "database", "loops"),
    [(SAME, "shop", True), (SAME.lower(), "shop", True), (OTHER, "shop", False), (SAME, "copy", False)],
)
def test_a_captured_table_on_a_server_that_is_read_is_not_written(
    tmp_path: Path, target: str, database: str, loops: bool
) -> None:
    written = {"name": "t", "connections": ["env:T"], "tables": {"*": {"database": database, "table": "orders"}}}
    line = Line.open(tmp_path, tables={"include": [r"shop\..*"]}, targets=[written])
    export({"SHOP": SAME, "T": target})
    with line.meta:
        line.stage(manifest(0))
        plan = line.plan("r")
    if not loops:
        require_no_loops(line.pipeline, plan)
        return
    with raises(Refused, "check.loop") as caught:
        require_no_loops(line.pipeline, plan)
    assert "shop.orders" in str(caught.value)
