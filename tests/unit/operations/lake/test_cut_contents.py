"""What a cut says of its sources."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from cdc_core.model.cut import Cut, CutSource
from cdc_core.model.position import Position
from cdc_core.operations.lake.cut_contents import sources_after


def test_a_source_that_the_pipeline_has_no_more_holds_no_cut_back() -> None:
    at = CutSource(Position(0, "binlog.000001", 4), "", 0, {})
    last = Cut("run", "lake", 0, {"gone": at}, ())
    ready: Any = SimpleNamespace(pipeline=SimpleNamespace(sources=()))
    assert sources_after(ready, SimpleNamespace(), "lake", last) == {}  # type: ignore[arg-type]
