"""The end of a run: records move to COMMITTED with a ledger that adds up and quality that passed, or not at all."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from cdc_core.errors import DataAtRisk, LockstepError, Refused, severity
from cdc_core.meta import RecordState
from cdc_core.model.run_plan import WriteCounts, counts_path
from cdc_core.operations.apply import lost_writes
from tests.lab.made_batches import manifest
from tests.lab.made_line import WINDOW, Line, pipeline
from tests.lab.refusals import refusal

B = [manifest(number, tables={"shop.orders": 4, "shop.items": 2}) for number in range(2)]
IDS = tuple(one.batch_id for one in B)


@pytest.fixture
def line(tmp_path: Path) -> Iterator[Line]:
    one = Line.open(tmp_path)
    one.stage(*B, until_us=WINDOW[1])
    with one.meta:
        yield one


def states(line: Line) -> set[RecordState]:
    return {record.state for record in line.meta.records.find("t", IDS)}


def refused(line: Line, **altered: object) -> LockstepError:
    """A commit that must fail, after tasks that left `altered`; nothing may have moved."""
    run = line.plan("r", WINDOW)
    line.apply(run, **altered)
    error = refusal(lambda: line.commit(run))
    assert states(line) == {RecordState.APPLIED}
    assert line.meta.ledgers.find("r") == ()
    return error


def test_a_commit_moves_every_record_and_sums_up_in_ids_and_counts(line: Line) -> None:
    run = line.plan("r", WINDOW)
    line.apply(run)
    summary = line.commit(run)
    assert states(line) == {RecordState.COMMITTED}
    assert (summary.batches, summary.moved) == (2, 4)
    assert [(table.table, table.staged_rows, table.written) for table in summary.tables] == [
        ("shop.items", 4, 4),
        ("shop.orders", 8, 8),
    ]
    assert json.loads(json.dumps(summary.to_json()))["tables"][0]["winners"] == 4


def test_a_commit_run_twice_changes_nothing_even_when_the_runs_files_are_gone(line: Line) -> None:
    run = line.plan("r", WINDOW)
    line.apply(run)
    first = line.commit(run)
    before = line.meta.records.find("t", IDS), line.meta.ledgers.find("r"), line.meta.runs.find("r")
    for found in list(line.store.list(f"{run.root}/")):
        line.store.delete(found.path)
    second = line.commit(run)
    assert (second.moved, second.tables) == (0, first.tables)
    assert (first.again, second.again) == (False, True)
    assert (line.meta.records.find("t", IDS), line.meta.ledgers.find("r"), line.meta.runs.find("r")) == before


def test_a_ledger_that_does_not_add_up_moves_nothing(line: Line) -> None:
    error = refused(line, written=[WriteCounts("shop.orders", "0", 8, 0, 0), WriteCounts("shop.items", "0", 3, 0, 0)])
    assert (severity(type(error)), error.code) == (DataAtRisk, "run.unbalanced")
    assert "shop.items" in error.what


def test_quality_that_failed_or_is_missing_moves_nothing(line: Line) -> None:
    error = refused(line, quality={"a.json": {"success": True}, "b.json": {"success": False}})
    assert (severity(type(error)), error.code) == (DataAtRisk, "quality.failed")
    assert "b.json" in error.what
    assert "a.json" not in error.what
    for found in list(line.store.list("runs/r/")):
        if "/quality/" in found.path:
            line.store.delete(found.path)
    error = refused(line, quality={})
    assert (severity(type(error)), error.code) == (Refused, "run.clear_task")


def test_quality_that_was_killed_between_two_results_moves_nothing(line: Line) -> None:
    error = refused(line, quality={"a.json": {"success": True}}, reported=False)
    assert (severity(type(error)), error.code) == (Refused, "run.clear_task")


@pytest.mark.parametrize("result", [{}, {"success": "yes"}, {"success": 1}, [], None])
def test_a_quality_result_that_does_not_say_true_is_no_success(line: Line, result: object) -> None:
    assert refused(line, quality={"a.json": result}).code in ("quality.failed", "run.clear_task")


@pytest.mark.parametrize("folder", ["merged/set=0", "filtered/target=t", "written/target=t"])
def test_counts_that_are_missing_or_cut_off_move_nothing(line: Line, folder: str) -> None:
    run = line.plan("r", WINDOW)
    line.apply(run)
    path = counts_path(f"{run.root}/{folder}")
    whole = line.store.get(path)
    line.store.delete(path)
    error = refusal(lambda: line.commit(run))
    assert (severity(type(error)), error.code) == (Refused, "run.clear_task")
    for broken in (whole[: len(whole) // 2], b'[{"no": 1}]', b"[1]", b"{}x"):
        line.store.put(path, broken)
        assert refusal(lambda: line.commit(run)).code == "run.clear_task"
    assert states(line) == {RecordState.APPLIED}
    line.store.put(path, whole)
    assert line.commit(run).moved == 4


def test_a_commit_before_the_write_has_finished_is_refused(line: Line) -> None:
    run = line.plan("r", WINDOW)
    line.apply(run)
    again = line.plan("other", WINDOW)  # takes the records over as they stand
    assert taken_states(line) == {("APPLIED", "other")}
    error = refusal(lambda: line.commit(again))
    assert (severity(type(error)), error.code) == (Refused, "run.clear_task")


def taken_states(line: Line) -> set[tuple[str, str]]:
    return {(record.state.value, record.run_id) for record in line.meta.records.find("t", IDS)}


def test_records_that_were_not_applied_are_not_committed(line: Line) -> None:
    run = line.plan("r", WINDOW)
    line.apply(run)
    line.meta.close()
    # The same files, but the write task died before it said so.
    fresh = Line.open(Path(line.pipeline.stage.uri.removeprefix("file://")).parent)
    with fresh.meta:
        _back_to_staged(fresh)
        error = refusal(lambda: fresh.commit(run))
        assert (severity(type(error)), error.code) == (Refused, "run.clear_task")
        assert fresh.meta.ledgers.find("r") == ()


def _back_to_staged(line: Line) -> None:
    import sqlite3

    with sqlite3.connect(line.pipeline.meta.url.removeprefix("sqlite:///")) as connection:
        connection.execute("UPDATE consume_record SET state = 'STAGED' WHERE table_name = 'shop.items'")


def test_a_plan_that_takes_the_place_of_this_one_while_it_is_committed_is_not_taken_for_carried_out(
    line: Line, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first plan's rules leave a table out: its rows would be in no run, and nothing would say so."""
    narrow = line.with_targets({"name": "t", "tables": {"shop.orders": {}}})
    run = narrow.plan("r", WINDOW)
    narrow.apply(run)

    def cleared(*_: object) -> tuple[()]:
        line.plan("r", WINDOW)  # the run is cleared from its plan task on, after the pipeline file was changed
        return ()

    with monkeypatch.context() as patched:
        patched.setattr(lost_writes, "find", cleared)
        assert refusal(lambda: narrow.commit(run)).code == "run.clear_task"
    assert line.meta.ledgers.find("r") == ()
    again = line.plan("r", WINDOW)
    line.apply(again)
    line.commit(again)
    assert {row.entry.table for row in line.meta.ledgers.find("r")} == {"shop.orders", "shop.items"}


def test_another_pipelines_run_is_refused(line: Line, tmp_path: Path) -> None:
    run = line.plan("r", WINDOW)
    line.apply(run)
    stranger = Line(pipeline(tmp_path, pipeline="other"), line.meta, line.store, {})
    assert refusal(lambda: stranger.commit(run)).code == "usage.argument"


def test_a_target_commits_on_its_own(line: Line) -> None:
    both = line.with_targets({"name": "t"}, {"name": "u"})
    run = both.plan("r", WINDOW)
    both.apply(run, "t")
    both.apply(run, "u", quality={"a.json": {"success": False}})
    assert both.commit(run, "t").moved == 4
    assert refusal(lambda: both.commit(run, "u")).code == "quality.failed"
    assert states(both) == {RecordState.COMMITTED}
    assert {record.state for record in both.meta.records.find("u", IDS)} == {RecordState.APPLIED}
    known = both.meta.runs.find("r")
    assert known is not None
    assert known.state.value == "PLANNED"
