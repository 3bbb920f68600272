"""The ledger: what adds up is closed, and each figure that does not is named."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from cdc_core.errors import DataAtRisk
from cdc_core.model.run_plan import (
    FilterCounts,
    MergeCounts,
    MergeSet,
    MergeTable,
    PlannedFile,
    RunPlan,
    TargetRun,
    WriteCounts,
)
from cdc_core.operations.apply import ledger
from tests.lab.refusals import raises

TABLE = "shop.orders"
PLAN = RunPlan(
    run_id="r",
    pipeline="line",
    stage_uri="file:///s",
    window_start_us=0,
    window_end_us=1,
    merge_sets=(MergeSet("0", (MergeTable(TABLE, ("id",), (PlannedFile("p", 10, "s", "b", 1, 1, "", 1),)),)),),
    targets=(TargetRun("t", "0", ("b",)),),
    schemas={},
)
MERGE = MergeCounts(TABLE, rows=10, key_changes=2, winners=9, superseded=3)
FILTER = FilterCounts(TABLE, insert=3, update=2, delete=1, revived=1, absent=1, stale=1)
WRITE = [WriteCounts(TABLE, "0", written=4, stale=1, absent=0), WriteCounts(TABLE, "1", written=2, stale=0, absent=1)]


def problem(
    merge: list[MergeCounts] | None = None,
    filtered: list[FilterCounts] | None = None,
    written: list[WriteCounts] | None = None,
) -> str:
    with raises(DataAtRisk, "run.unbalanced") as caught:
        ledger.close(
            PLAN,
            "t",
            [MERGE] if merge is None else merge,
            [FILTER] if filtered is None else filtered,
            WRITE if written is None else written,
        )
    return caught.value.what


def test_what_adds_up_is_closed_with_the_stale_of_filter_and_write_together() -> None:
    (entry,) = ledger.close(PLAN, "t", [MERGE], [FILTER], WRITE)
    assert (entry.staged_rows, entry.key_changes, entry.winners, entry.superseded) == (10, 2, 9, 3)
    assert (entry.written, entry.stale, entry.absent) == (6, 2, 1)
    assert entry.problems() == ()


def test_equal_rows_are_part_of_the_written_ones_and_can_be_no_more() -> None:
    (entry,) = ledger.close(PLAN, "t", [MERGE], [FILTER], [replace(counts, equal=counts.written) for counts in WRITE])
    assert (entry.written, entry.equal) == (6, 6)
    assert "equal 7 > written 6" in problem(written=[replace(WRITE[0], equal=7), WRITE[1]])


@given(
    where=st.sampled_from(["merge", "filter", "write"]),
    field=st.integers(min_value=0, max_value=5),
    by=st.integers(min_value=-3, max_value=3).filter(bool),
)
def test_any_single_figure_that_is_wrong_is_found(where: str, field: int, by: int) -> None:
    merge, filtered, written = MERGE, FILTER, list(WRITE)
    counts = {"merge": merge, "filter": filtered, "write": written[0]}[where]
    others = ("table", "shard", "equal", "number", "truncates", "files")
    names = [name for name in counts.__slots__ if name not in others]
    name = names[field % len(names)]
    bent = replace(counts, **{name: getattr(counts, name) + by})
    assert TABLE in problem(
        [bent] if where == "merge" else [merge],
        [bent] if where == "filter" else [filtered],
        [bent, written[1]] if where == "write" else written,
    )


def test_rows_that_merge_did_not_read_are_found_even_if_its_own_figures_add_up() -> None:
    said = problem(merge=[replace(MERGE, rows=8, superseded=1)])
    assert "merge read 8 rows of 10 staged" in said


def test_a_task_that_counted_nothing_is_found() -> None:
    assert "merge counted nothing" in problem(merge=[])
    assert "filter counted nothing" in problem(filtered=[])
    assert "write did 0 of the 8" in problem(written=[])


def test_a_shard_that_is_missing_or_counted_twice_is_found() -> None:
    assert "write did 5 of the 8" in problem(written=WRITE[:1])
    assert "write counted shop.orders on 0 2 times" in problem(written=[WRITE[0], WRITE[0], WRITE[1]])


def test_counts_of_a_table_that_is_not_planned_are_found() -> None:
    assert "'other'" in problem(written=[*WRITE, WriteCounts("other", "0", 0, 0, 0)])


def test_negative_figures_that_cancel_out_are_found() -> None:
    assert "shop.orders: stale is -1" in problem(written=[replace(WRITE[0], written=6, stale=-1), WRITE[1]])
