"""Whether a target has changes that the stage has not (spark_jobs/staged_ends.py)."""

from __future__ import annotations

import pytest

from cdc_core.model.position import Position
from cdc_core.stage import start_record
from cdc_core.stage.manifest import commit
from cdc_core.stage.stores import open_store
from spark_jobs.staged_ends import StagedEnds
from tests.lab.made_batches import manifest

END = manifest(0).end.position


@pytest.fixture
def ends(tmp_path) -> StagedEnds:
    """Of a stage that has read the log of `shop` up to END."""
    store = open_store(f"file://{tmp_path}/stage")
    start_record.put(store, "shop", manifest(0).begin, pipeline="line")
    assert commit(store, manifest(0, tables={})).ours
    return StagedEnds(store)


def test_what_is_staged_may_be_in_the_target(ends) -> None:
    assert ends.behind({"shop": END.seq - 1}, "shop.orders", "shards") is None


@pytest.mark.parametrize(
    ("latest", "timeline"),
    [(END, 1), (Position(0, "binlog.000777", 4), 1), (Position(4, "binlog.000001", 4), 5)],
    ids=["the next transaction", "a later file", "a later timeline"],
)
def test_what_lies_behind_the_end_of_the_stage_is_refused(ends, latest, timeline) -> None:
    error = ends.behind({"shop": latest.seq}, "shop.orders", "shards")
    assert error.code == "target.ahead"
    assert f"`timeline: {timeline}`" in error.remedy
    assert f"--abandon {END.file}:{END.offset}" in error.remedy


def test_a_source_of_which_the_stage_has_nothing_is_another_pipelines(ends) -> None:
    """Two pipelines may feed one table, each with a stage of its own: their logs are not compared."""
    assert ends.behind({"items": 1 << 60}, "shop.orders", "shards") is None
    assert ends.behind({"items": 1 << 60, "shop": END.seq}, "shop.orders", "shards") is not None
