"""A new target is filled from the stage only where the stage has every row."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cdc_core.apply import retention
from cdc_core.model.batch import Manifest
from cdc_core.model.coverage import How, TableCoverage
from cdc_core.reshard.base import require_base
from cdc_core.reshard.fill import count_from_the_horizon
from cdc_core.stage import horizon
from tests.made_batches import manifest
from tests.refusals import refusal
from tests.unit.apply.made_line import Line

ORDERS = "shop.orders"
SHARDED: dict[str, Any] = {
    "database": "d{d}", "table": "t{t}", "sharding": {"key": "id", "databases": 2, "tables": 2}
}  # fmt: skip


def covered(one: Manifest, how: How, base_seq: int = 0) -> Manifest:
    begin = one.begin.position
    known = TableCoverage(how, begin.seq, one.window_start_us, str(begin), feeds=(ORDERS,), base_seq=base_seq)
    return replace(one, coverage={ORDERS: known})


@pytest.fixture
def line(tmp_path: Path) -> Iterator[Line]:
    one = Line.open(tmp_path).with_targets({"name": "t"}, {"name": "wide", "tables": {"*": SHARDED}})
    with one.meta:
        yield one


def base(line: Line) -> tuple[str, ...]:
    return require_base(line.store, line.pipeline, line.pipeline.target("wide"))


def test_a_table_that_was_empty_when_its_capture_began_is_whole(line: Line) -> None:
    line.stage(covered(manifest(0), How.EMPTY), manifest(1, window=1))
    assert base(line) == (ORDERS,)


@pytest.mark.parametrize("how", [How.EXISTING, How.UNLOGGED, How.ISOLATED])
def test_a_table_that_lacks_rows_is_refused(line: Line, how: How) -> None:
    line.stage(covered(manifest(0), How.EMPTY), covered(manifest(1, window=1), how), manifest(2, window=2))
    error = refusal(lambda: base(line))
    assert (error.code, "lockstep snapshot line" in error.remedy) == ("reshard.no_base", True)


def test_nothing_staged_is_refused(line: Line) -> None:
    line.stage(manifest(0, tables={}))
    assert refusal(lambda: base(line)).code == "reshard.no_base"


def test_what_was_purged_is_needed_unless_the_table_was_copied_since(line: Line) -> None:
    batches = [covered(manifest(0), How.EMPTY), *(manifest(number, window=number) for number in (1, 2, 3))]
    line.stage(*batches)
    line.done("first", targets=["t"])
    retention.purge(line.meta, line.store, line.with_targets({"name": "t"}).pipeline, cutoff_us=1 << 60)
    assert horizon.read(line.store, "shop") is not None
    assert "were purged" in refusal(lambda: base(line)).what
    line.stage(covered(manifest(4, window=4), How.COPIED, manifest(4).begin.position.seq), manifest(5, window=5))
    assert base(line) == (ORDERS,)
    assert refusal(lambda: line.plan("r", targets=["wide"])).code == "plan.purged"
    count_from_the_horizon(line.meta, line.store, line.pipeline, "wide")
    count_from_the_horizon(line.meta, line.store, line.pipeline, "wide")
    assert line.plan("r", targets=["wide"], most_rows=1).target("wide").batches == (batches[3].batch_id,)
