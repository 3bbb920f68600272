"""What a replay takes, and that it leaves the consume records to the runs of the line."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cdc_core.errors import DataAtRisk, RetryLater, UsageError, severity
from cdc_core.meta import RunState
from cdc_core.meta.meta_rows import ClosedWrite, LastWrite
from cdc_core.meta.run_states import RecordState
from cdc_core.model.batch import CopiedChunk
from cdc_core.model.coverage import How, TableCoverage
from cdc_core.model.run_plan import RunPlan, WriteCounts
from cdc_core.operations.apply import left_out, replay
from cdc_core.operations.apply.lost_writes import LostWrites, first_batches
from cdc_core.operations.apply.replay import Selection, places
from cdc_core.stage.layout import CopiedName, copied_path
from tests.lab.made_batches import HOUR_US, START_US, manifest, position, schema
from tests.lab.made_line import NEXT_WINDOW, WINDOW, Line
from tests.lab.opened import opened_line
from tests.lab.refusals import refusal

B = [manifest(number, window=number // 2, tables={"shop.orders": 3, "shop.items": 2}) for number in range(6)]
IDS = tuple(batch.batch_id for batch in B)


@pytest.fixture
def line(line: Line) -> Line:
    line.stage(*B, until_us=START_US + 3 * HOUR_US)
    return line.with_targets({"name": "t"}, {"name": "new"})


def plan(line: Line, run_id: str, target: str = "t", **chosen: Any) -> RunPlan:
    return replay.plan(opened_line(line), Selection(target, **chosen), run_id=run_id)


def taken(run: RunPlan) -> tuple[str, ...]:
    return run.targets[0].batches


def records(line: Line, target: str) -> set[tuple[RecordState, str]]:
    return {(record.state, record.run_id) for record in line.meta.records.find(target, IDS)}


def test_a_replay_takes_consumed_batches_too_and_moves_no_record(line: Line) -> None:
    line.done("first", WINDOW)
    before = records(line, "t")
    run = plan(line, "r")
    assert (taken(run), run.replay) == (IDS, True)
    line.apply(run)
    assert records(line, "t") == before
    done = line.commit(run)
    assert (done.moved, done.again, line.commit(run).again) == (0, False, True)
    assert records(line, "t") == before
    known = line.meta.runs.find("r")
    assert known.state is RunState.COMMITTED
    assert {row.entry.table for row in line.meta.ledgers.find("r")} == {"shop.orders", "shop.items"}
    assert line.plan("second").target("t").batches == IDS[2:]  # the line goes on where it was


def test_a_replay_from_a_batch_takes_the_copied_rows_at_its_beginning(line: Line) -> None:
    batches = {batch.batch_id: batch for batch in line.meta.batches.find("shop")}
    here, earlier = (batches[batch] for batch in (IDS[3], IDS[2]))
    copied = replace(here, end=here.begin, batch_id=f"{here.batch_id}+000000000001")
    selection = Selection("t", first={"shop": here.begin.seq})
    assert [selection.takes(batch) for batch in (earlier, copied, here)] == [False, True, True]
    assert not selection.takes(replace(earlier, end=earlier.begin))


def test_lost_copied_rows_are_replayed_from_the_place_where_they_are_staged(line: Line) -> None:
    copied = f"{IDS[3]}+000000000007"
    write = ClosedWrite("lost", {"0": 4}, {"0": 9}, {"shop": (copied, IDS[4])})
    begin = first_batches([LostWrites("shop.orders", "0", (write,), False, LastWrite("r", 1), None)])
    assert places(line.pipeline, begin, "--from") == places(line.pipeline, [IDS[3]], "--from")


def test_deletes_of_a_repair_are_replayed_without_what_came_before_them(line: Line) -> None:
    """They have their key alone, and need no more."""
    at = manifest(6, tables={"shop.orders": 1}, absent_rows=1)
    path = copied_path("shop.orders", START_US, CopiedName("shop", 1, 1, 0))
    place = at.begin.position
    chunk = CopiedChunk(1, "shop.orders", (), (), START_US, place, place, 1, (path,), by_key=True)
    parts = (replace(at.parts[0], path=path, ops={"d": 1}),)
    repair = replace(at, end=at.begin, parts=parts, events=0, transactions=0, chunks=(chunk,))
    line.stage(repair)
    assert taken(plan(line, "r", "new", batches=frozenset([repair.batch_id]))) == (repair.batch_id,)


def test_a_replay_that_is_not_committed_is_planned_and_its_failure_is_kept(line: Line) -> None:
    plan(line, "r")
    line.meta.runs.record_failure("r", "spark died", target="t")
    run = line.meta.runs.find("r")
    assert (run.state, run.last_error) == (RunState.FAILED, "spark died")
    assert taken(plan(line, "r")) == IDS


@pytest.mark.parametrize(
    ("chosen", "expected"),
    [
        ({"start_us": NEXT_WINDOW[0], "end_us": NEXT_WINDOW[1]}, IDS[2:4]),
        ({"start_us": WINDOW[0] + 1, "end_us": WINDOW[0] + 2}, IDS[:2]),
        ({"start_us": NEXT_WINDOW[1]}, IDS[4:]),
        ({"end_us": NEXT_WINDOW[0]}, IDS[:2]),
        ({"first": {"shop": B[3].begin.position.seq}}, IDS[3:]),
        ({"first": {"shop": B[3].begin.position.seq + 1}}, IDS[3:]),
        ({"last": {"shop": B[3].begin.position.seq}}, IDS[:4]),
        ({"first": {"shop": B[1].begin.position.seq}, "end_us": NEXT_WINDOW[1]}, IDS[1:4]),
        ({"first": {"shop": B[5].end.position.seq}}, ()),
    ],
)
def test_whole_batches_are_taken_that_reach_into_what_is_asked(
    line: Line, chosen: dict[str, Any], expected: tuple[str, ...]
) -> None:
    assert taken(plan(line, "r", **chosen)) == expected


def test_chosen_tables_alone_are_in_the_plan(line: Line) -> None:
    run = plan(line, "r", tables=("shop.items",))
    assert [table.table for table in run.merge_sets[0].tables] == ["shop.items"]
    for table, where in (("shop.none", "r"), ("shop.orders", "targets.only.tables")):
        only = line.with_targets({"name": "t"}, {"name": "only", "tables": {"shop.items": {}}})
        error = refusal(
            lambda table=table, only=only, where=where: plan(
                only, "r", "t" if where == "r" else "only", tables=(table,)
            )
        )
        assert (severity(type(error)), error.code, error.where) == (UsageError, "usage.unknown_name", where)


def test_a_replay_names_a_target_of_the_pipeline(line: Line) -> None:
    assert taken(plan(line, "again", "new")) == IDS
    assert refusal(lambda: plan(line, "x", "nobody")).code == "usage.unknown_name"


def test_a_window_that_is_not_staged_to_its_end_waits_and_an_empty_one_is_refused(line: Line) -> None:
    error = refusal(lambda: plan(line, "r", start_us=START_US, end_us=START_US + 3 * HOUR_US + 1))
    assert (severity(type(error)), error.code) == (RetryLater, "stage.behind")
    assert refusal(lambda: plan(line, "r", start_us=2, end_us=2)).code == "usage.argument"
    assert line.meta.runs.find("r") is None


def test_a_gap_among_the_chosen_batches_is_refused(line: Line, tmp_path: Path) -> None:
    import sqlite3

    with sqlite3.connect(tmp_path / "meta.db") as connection:
        connection.execute("DELETE FROM batch WHERE batch_id = ?", (IDS[2],))
    error = refusal(lambda: plan(line, "r"))
    assert (severity(type(error)), error.code) == (DataAtRisk, "meta.gap")
    assert taken(plan(line, "r", last={"shop": B[1].begin.position.seq})) == IDS[:2]


def test_a_committed_replay_keeps_its_plan_whatever_was_staged_since(line: Line) -> None:
    run = plan(line, "r", "new")
    line.stage(manifest(6, window=3))
    assert len(taken(plan(line, "r", "new"))) == 7  # not committed yet: planned anew
    line.apply(plan(line, "r", "new"), "new")
    line.commit(plan(line, "r", "new"), "new")
    line.stage(manifest(7, window=3))
    again = plan(line, "r", "new")
    assert len(taken(again)) == 7 > len(taken(run))
    line.apply(again, "new")
    assert line.commit(again, "new").moved == 0


def test_two_replays_and_a_run_may_be_open_at_once(line: Line) -> None:
    runs = [plan(line, "a"), plan(line, "b"), line.plan("c")]
    for run in runs:
        line.apply(run)
    for run in reversed(runs):
        line.commit(run)
    assert {state for state, _ in records(line, "t")} == {RecordState.COMMITTED}
    assert {run_id for _, run_id in records(line, "t")} == {"c"}


@pytest.mark.parametrize("name", ["west/0000-0000001-0000000004", "shop/1-2-3", "binlog.000001:4", "shop/"])
def test_a_position_that_is_none_of_a_source_is_refused(line: Line, name: str) -> None:
    error = refusal(lambda: places(line.pipeline, [name], "--from"))
    assert (severity(type(error)), error.code, error.where) == (UsageError, "usage.argument", "--from")
    assert refusal(lambda: places(line.pipeline, [IDS[0], IDS[1]], "--to")).code == "usage.argument"
    assert places(line.pipeline, [IDS[1]], "--to") == {"shop": B[1].begin.position.seq}


def test_a_run_or_replay_says_of_which_tables_it_leaves_out_what_no_later_run_brings(line: Line) -> None:
    def partly(run: RunPlan) -> set[str]:
        return set(left_out.in_part(opened_line(line), run, "t"))

    assert partly(line.plan("all")) == partly(plan(line, "whole")) == set()
    assert partly(plan(line, "to", last={"shop": B[1].begin.position.seq})) == set()
    assert partly(plan(line, "from", first={"shop": B[1].begin.position.seq})) == {"shop.orders", "shop.items"}
    line.with_targets({"name": "t", "tables": {"shop.items": {}}}).done("first")
    line.stage(manifest(6, tables={"shop.orders": 1, "shop.items": 1}))
    assert partly(line.plan("second")) == {"shop.orders"}
    assert partly(plan(line, "again")) == set()
    # A copy since has what was left out.
    line.stage(replace(manifest(7), coverage={"shop.orders": TableCoverage(How.COPIED, position(7).seq, START_US, "b:4",
               feeds=("shop.orders",), base_seq=position(6).seq)}))  # fmt: skip
    assert partly(line.plan("third")) == set()
    assert partly(plan(line, "since", first={"shop": position(6).seq})) == {"shop.items"}


def test_a_requeue_takes_the_batches_of_a_run_and_the_tables_of_which_rows_were_set_aside(line: Line) -> None:
    run = line.plan("first", NEXT_WINDOW)
    aside = [WriteCounts("shop.orders", "0", 11, 0, 0, quarantined=1), WriteCounts("shop.items", "0", 8, 0, 0)]
    line.apply(run, written=aside)
    line.commit(run)
    chosen = replay.requeued(line.meta, line.store, "first")
    assert (chosen.target, chosen.tables, chosen.batches) == ("t", ("shop.orders",), frozenset(IDS[:4]))
    again = replay.plan(opened_line(line), chosen, run_id="again")
    assert (taken(again), [table.table for table in again.merge_sets[0].tables]) == (IDS[:4], ["shop.orders"])
    for run_id, target in (("nobody", None), ("first", "new"), ("again", None)):
        error = refusal(lambda run_id=run_id, target=target: replay.requeued(line.meta, line.store, run_id, target))
        assert (severity(type(error)), error.code) == (UsageError, "usage.argument")


def test_a_run_that_was_planned_again_after_its_commit_is_requeued_all_the_same(line: Line) -> None:
    """Who clears a whole DAG run gives it a plan without the batches that it has committed."""
    run = line.plan("first", NEXT_WINDOW)
    line.apply(
        run, written=[WriteCounts("shop.orders", "0", 11, 0, 0, quarantined=1), WriteCounts("shop.items", "0", 8, 0, 0)]
    )
    line.commit(run)
    assert taken(line.plan("first", NEXT_WINDOW)) == ()
    chosen = replay.requeued(line.meta, line.store, "first")
    assert chosen.batches == frozenset(IDS[:4])
    assert taken(replay.plan(opened_line(line), chosen, run_id="again")) == IDS[:4]


def test_changes_without_all_values_are_replayed_only_upon_what_the_target_has_or_the_replay_takes(line: Line) -> None:
    line.done("first", targets=["t"])
    tables = {"shop.orders": 1}
    more = [manifest(6, tables={"shop.items": 1}), *(manifest(at, tables=tables, absent_rows=1) for at in (7, 8, 9))]
    line.stage(*more)
    ids = tuple(batch.batch_id for batch in more)
    assert taken(plan(line, "behind", first={"shop": more[1].begin.position.seq})) == ids[1:]
    for chosen in ({"first": {"shop": B[1].begin.position.seq}}, {"batches": frozenset(ids[3:])}):
        error = refusal(lambda chosen=chosen: plan(line, "part", "new", **chosen))
        assert (error.code, IDS[0] in error.what, "without --from" in error.remedy) == (
            "replay.from_first",
            True,
            True,
        )
        assert line.meta.runs.find("part") is None
    assert ids[1] in refusal(lambda: plan(line, "part", batches=frozenset(ids[3:]))).what
    assert taken(plan(line, "whole", "new")) == IDS + ids
    assert taken(plan(line, "items", "new", first={"shop": more[0].begin.position.seq}, tables=("shop.items",)))


def test_a_table_without_a_key_is_replayed_only_behind_what_the_target_has_or_from_the_first_batch_on(
    tmp_path: Path,
) -> None:
    rule = {"tables": {"*": {"no_key": "rows"}}}
    with Line.open(tmp_path).meta as meta:
        made = Line.open(tmp_path)
        line = Line(made.pipeline, meta, made.store, {}).with_targets({"name": "t", **rule}, {"name": "new", **rule})
        batches = [manifest(number, schemas=[schema(key=())]) for number in range(4)]
        line.stage(*batches)
        ids = tuple(batch.batch_id for batch in batches)
        later = {"first": {"shop": batches[2].begin.position.seq}}
        for target, chosen in (("new", later), ("new", {"batches": frozenset((ids[0], ids[2]))}), ("t", later)):
            error = refusal(lambda target=target, chosen=chosen: plan(line, "part", target, **chosen))
            assert error.code == "replay.from_first"
        assert taken(plan(line, "whole", "new")) == ids
        assert taken(plan(line, "head", "new", last={"shop": batches[1].begin.position.seq})) == ids[:2]
        line.done("first", targets=["t"])
        assert taken(plan(line, "behind", **later)) == ids[2:]
