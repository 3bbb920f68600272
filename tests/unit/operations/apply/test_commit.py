"""The end of a run: records move to COMMITTED with a ledger that adds up and quality that passed, or not at all."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from cdc_core.errors import DataAtRisk, LockstepError, Refused, severity
from cdc_core.meta.run_states import RecordState
from cdc_core.model.run_plan import WriteCounts, counts_path
from cdc_core.operations.apply import lost_writes
from tests.lab.made_batches import manifest
from tests.lab.made_line import WINDOW, Line, pipeline
from tests.lab.refusals import refusal

B = [manifest(number, tables={"shop.orders": 4, "shop.items": 2}) for number in range(2)]
IDS = tuple(batch.batch_id for batch in B)


@pytest.fixture
def line(line: Line) -> Line:
    line.stage(*B, until_us=WINDOW[1])
    return line


def states(line: Line) -> set[RecordState]:
    return {record.state for record in line.meta.records.find("t", IDS)}


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
    for info in list(line.store.list(f"{run.root}/")):
        line.store.delete(info.path)
    second = line.commit(run)
    assert (second.moved, second.tables) == (0, first.tables)
    assert (first.again, second.again) == (False, True)
    assert (line.meta.records.find("t", IDS), line.meta.ledgers.find("r"), line.meta.runs.find("r")) == before


UNBALANCED = [WriteCounts("shop.orders", "0", 8, 0, 0), WriteCounts("shop.items", "0", 3, 0, 0)]
PASSED, FAILED = {"success": True}, {"success": False}


@pytest.mark.parametrize(
    ("altered", "kind", "code", "named"),
    [
        ({"written": UNBALANCED}, DataAtRisk, "run.unbalanced", "shop.items"),
        ({"quality": {"a.json": PASSED, "b.json": FAILED}}, DataAtRisk, "quality.failed", "b.json"),
        ({"quality": {}}, Refused, "run.clear_task", ""),
        ({"quality": {"a.json": PASSED}, "reported": False}, Refused, "run.clear_task", ""),  # killed between two
        *(({"quality": {"a.json": {"success": said}}}, DataAtRisk, "quality.failed", "a.json") for said in ("yes", 1)),
        *(({"quality": {"a.json": result}}, Refused, "run.clear_task", "") for result in ({}, [], None)),
    ],
)
def test_a_ledger_that_does_not_add_up_or_quality_that_is_not_said_to_have_passed_moves_nothing(
    line: Line, altered: dict[str, Any], kind: type[LockstepError], code: str, named: str
) -> None:
    run = line.plan("r", WINDOW)
    line.apply(run, **altered)
    error = refusal(lambda: line.commit(run))
    assert (severity(type(error)), error.code, named in error.what) == (kind, code, True)
    assert states(line) == {RecordState.APPLIED}
    assert line.meta.ledgers.find("r") == ()


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
    assert states(line) == {RecordState.APPLIED}
    error = refusal(lambda: line.commit(again))
    assert (severity(type(error)), error.code) == (Refused, "run.clear_task")


def test_records_that_were_not_applied_are_not_committed(line: Line, tmp_path: Path) -> None:
    """All files are there, but the write task died before it said so."""
    run = line.plan("r", WINDOW)
    line.apply(run)
    with sqlite3.connect(tmp_path / "meta.db") as connection:
        connection.execute("UPDATE consume_record SET state = 'STAGED' WHERE table_name = 'shop.items'")
    error = refusal(lambda: line.commit(run))
    assert (severity(type(error)), error.code) == (Refused, "run.clear_task")
    assert line.meta.ledgers.find("r") == ()


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
    assert both.meta.runs.find("r").state.value == "PLANNED"
