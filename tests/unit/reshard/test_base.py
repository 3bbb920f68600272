"""A new target is filled from the stage only where the stage has every row."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cdc_core.model.batch import Manifest
from cdc_core.model.coverage import How, TableCoverage
from cdc_core.operations.apply import retention
from cdc_core.operations.reshard.base import require_base
from cdc_core.operations.reshard.fill import count_from_the_horizon
from cdc_core.stage import horizon
from tests.lab.made_batches import manifest
from tests.lab.made_line import Line
from tests.lab.opened import opened, opened_line
from tests.lab.refusals import refusal

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
    assert (error.code, "lockstep snapshot line" in error.remedy) == ("stage.partial", True)


def test_nothing_staged_is_refused(line: Line) -> None:
    line.stage(manifest(0, tables={}))
    assert refusal(lambda: base(line)).code == "stage.partial"


def test_what_was_purged_is_needed_unless_the_table_was_copied_since(line: Line) -> None:
    batches = [covered(manifest(0), How.EMPTY), *(manifest(number, window=number) for number in (1, 2, 3))]
    line.stage(*batches)
    line.done("first", targets=["t"])
    retention.purge(opened(line.with_targets({"name": "t"}).pipeline, line.meta, store=line.store), cutoff_us=1 << 60)
    assert horizon.read(line.store, "shop") is not None
    assert "were purged" in refusal(lambda: base(line)).what
    line.stage(covered(manifest(4, window=4), How.COPIED, manifest(4).begin.position.seq), manifest(5, window=5))
    assert base(line) == (ORDERS,)
    assert refusal(lambda: line.plan("r", targets=["wide"])).code == "plan.purged"
    count_from_the_horizon(opened_line(line), "wide")
    count_from_the_horizon(opened_line(line), "wide")
    assert line.plan("r", targets=["wide"], most_rows=1).target("wide").batches == (batches[3].batch_id,)


def test_what_is_purged_after_the_command_has_looked_does_not_count_as_applied(line: Line) -> None:
    line.stage(covered(manifest(0), How.EMPTY), *(manifest(number, window=number) for number in (1, 2)))
    line.done("first", targets=["t"])
    assert base(line) == (ORDERS,)
    retention.purge(opened(line.with_targets({"name": "t"}).pipeline, line.meta, store=line.store), cutoff_us=1 << 60)
    error = refusal(lambda: count_from_the_horizon(opened_line(line), "wide"))
    assert error.code == "stage.partial"
    known = horizon.read(line.store, "shop")
    assert known is not None
    assert known.targets == ("t",)
    assert line.meta.records.find("wide", [manifest(0).batch_id]) == ()


def test_a_purge_of_what_a_target_has_taken_does_not_end_its_filling(line: Line) -> None:
    line.stage(covered(manifest(0), How.EMPTY), *(manifest(number, window=number) for number in range(1, 5)))
    line.done("first", targets=["t"])
    line.done("filling-1", targets=["wide"], most_rows=1)
    line.done("filling-2", targets=["wide"], most_rows=1)
    own = line.with_targets({"name": "t"}, {"name": "wide", "tables": {"*": SHARDED}, "replay_only": True}).pipeline

    def purge(number: int) -> tuple[str, ...]:
        retention.purge(
            opened(own, line.meta, store=line.store), cutoff_us=manifest(number, window=number).window_end_us
        )
        known = horizon.read(line.store, "shop")
        assert known is not None
        assert known.last_batch == manifest(number).batch_id
        return known.targets

    assert purge(0) == purge(1) == ("t", "wide")
    assert line.plan("filling-3", targets=["wide"], most_rows=1).target("wide").batches == (manifest(2).batch_id,)
    line.done("filling-3", targets=["wide"], most_rows=1)
    assert purge(3) == ("t",)  # more than it has taken
    assert refusal(lambda: line.plan("filling-4", targets=["wide"])).code == "plan.purged"
