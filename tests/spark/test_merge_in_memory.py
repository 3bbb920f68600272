"""The merge in memory is what the model of history says; without Spark, so that many histories can be tried."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cdc_core.stage.stores import open_store
from spark_jobs import small_tables
from spark_jobs.arrow_changes import Memory
from spark_jobs.job import Job
from tests.history_model import COLUMNS, KEY, NAMES, TRUNCATE_KEY, winners
from tests.spark.staged_changes import Stage, table_schema
from tests.spark.test_merge import CASES, model_values, pipeline

HISTORIES = table_schema("shop.items", COLUMNS, KEY)


@pytest.mark.parametrize("case", CASES)
@given(data=st.data(), files=st.integers(1, 4))
@settings(max_examples=100)
def test_the_merge_in_memory_is_what_the_model_of_history_says(case: str, files: int, data: st.DataObject) -> None:
    drawn, on_truncate = CASES[case]
    changes = data.draw(drawn).changes
    with tempfile.TemporaryDirectory() as folder:
        stage = Stage(Path(folder))
        for source in sorted({change.source for change in changes}):
            mine = data.draw(st.permutations([change for change in changes if change.source == source]))
            for number in range(min(files, len(mine))):
                stage.add("shop.items", HISTORIES, mine[number::files])
        plan = stage.plan("r", {"shop.items": list(KEY)}, on_truncate=on_truncate)
        spark: Any = None
        job = Job(lambda: spark, pipeline(stage.root), plan, open_store(stage.uri), set_name="0")
        small = small_tables._small(job, job.merge_set.tables[0])
        if len({change.source for change in changes}) > 1 and any(change.absent for change in changes):
            assert small is None
            return
        assert small is not None
        with Memory(1 << 30).share() as take:
            table, counts, undone, _ = small_tables.merged_rows(job.store, small, take)
    found = {}
    for row in table.to_pylist():
        key = TRUNCATE_KEY if row["_cdc_op"] == "t" else (row["a"], row["b"])
        found[key] = (row["_cdc_op"], (row["_cdc_seq"], row["_cdc_row"]), row["_cdc_source"], model_values(row))
    last = winners([one for one in changes if on_truncate == "apply" or one.op != "t"], NAMES, KEY)
    assert found == {
        key: (one.op, one.order, one.source, dict(one.values) if one.op == "u" else None) for key, one in last.items()
    }
    assert counts.rows + undone == len(changes)
    assert counts.rows + counts.key_changes == table.num_rows + counts.superseded
