"""A problem is told once, and once more when it is solved."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from cdc_core.errors import Refused, RetryLater
from cdc_core.model.run_plan import WriteCounts
from cdc_core.operations.problem_events import ProblemEvent, tell_problems
from tests.lab.made_batches import manifest
from tests.lab.made_line import Line


@pytest.fixture
def line(tmp_path: Path) -> Line:
    made = Line.open(tmp_path)
    made.stage(manifest(0, tables={"shop.orders": 1}), until_us=time.time_ns() // 1000)
    made.done("run")
    return made


def fail(line: Line, error: type[Refused | RetryLater], what: str = "It broke.") -> None:
    code = "connection.denied" if error is Refused else "connection.unreachable"
    line.meta.failures.keep("plan", "", error(what, where="somewhere", code=code, remedy="mend it"))


def told(line: Line, *, given_up: bool = True, late: bool = True) -> list[tuple[str, str, bool]]:
    events: list[ProblemEvent] = []
    tell_problems(line.pipeline, line.meta, {"page": events.append}, given_up=given_up, late=late)
    return [(event.code, event.what, event.solved) for event in events]


def test_a_problem_is_told_once_and_once_more_when_it_is_solved_and_again_when_it_comes_back(line: Line) -> None:
    assert told(line) == []
    fail(line, Refused)
    assert told(line) == [("connection.denied", "It broke.", False)]
    fail(line, Refused, "It broke in other words.")
    assert told(line) == []
    line.meta.failures.clear("plan", "")
    assert told(line) == [("connection.denied", "It broke.", True)]
    assert told(line) == []
    fail(line, Refused)
    assert told(line) == [("connection.denied", "It broke.", False)]


def test_what_a_retry_may_cure_is_told_when_nothing_is_tried_again(line: Line) -> None:
    fail(line, RetryLater)
    assert told(line, given_up=False) == []
    assert told(line, given_up=True) == [("connection.unreachable", "It broke.", False)]
    assert told(line, given_up=False) == [], "it is not solved"
    line.meta.failures.clear("plan", "")
    assert told(line, given_up=False) == [("connection.unreachable", "It broke.", True)]


def test_another_problem_in_the_place_of_one_is_told_beside_the_solved_one(line: Line) -> None:
    fail(line, Refused)
    told(line)
    fail(line, RetryLater, "It is away.")
    assert told(line) == [("connection.unreachable", "It is away.", False), ("connection.denied", "It broke.", True)]


@pytest.mark.parametrize("solved", [False, True])
def test_what_could_not_be_told_is_told_by_the_next_call(line: Line, solved: bool) -> None:
    fail(line, Refused)
    if solved:
        told(line)
        line.meta.failures.clear("plan", "")

    def unreachable(event: ProblemEvent) -> None:
        raise OSError("no network")

    tell_problems(line.pipeline, line.meta, {"page": unreachable}, given_up=True)
    assert told(line) == [("connection.denied", "It broke.", solved)]
    assert told(line) == []


def test_a_receiver_that_fails_has_no_other_told_twice(line: Line) -> None:
    def unreachable(event: ProblemEvent) -> None:
        raise OSError("no network")

    events: list[ProblemEvent] = []
    fail(line, Refused)
    for _ in range(2):
        tell_problems(line.pipeline, line.meta, {"chat": unreachable, "page": events.append}, given_up=True)
    line.meta.failures.clear("plan", "")
    tell_problems(line.pipeline, line.meta, {"chat": unreachable, "page": events.append}, given_up=True)
    assert [event.solved for event in events] == [False, True]


def test_a_new_receiver_is_told_what_there_is_and_one_that_is_gone_leaves_nothing(line: Line) -> None:
    fail(line, Refused)
    events: list[ProblemEvent] = []
    for name in ("chat", "page", "chat"):
        tell_problems(line.pipeline, line.meta, {name: events.append}, given_up=True)
    assert [event.solved for event in events] == [False] * 3


@pytest.mark.parametrize("given_up", [True, False])
def test_what_is_late_is_told_when_a_run_has_ended_unless_a_failure_explains_it(tmp_path: Path, given_up: bool) -> None:
    line = Line.open(tmp_path)
    line.stage(manifest(0, tables={"shop.orders": 1}))
    fail(line, Refused)
    assert told(line, given_up=given_up) == [("connection.denied", "It broke.", False)]
    line.meta.failures.clear("plan", "")
    assert [solved for _, _, solved in told(line, given_up=given_up, late=False)] == [True]
    assert [solved for _, _, solved in told(line, given_up=given_up)] == [False, False], "source and target are late"
    assert told(line, given_up=given_up, late=False) == []


def test_rows_that_a_target_lacks_do_not_explain_what_is_late(tmp_path: Path) -> None:
    line = Line.open(tmp_path)
    line.stage(manifest(0, tables={"shop.orders": 1}))
    line.meta.failures.keep("repair", "t", Refused("They differ.", where="t", code="verify.differs", remedy="look"))
    assert len(told(line)) == 3


def test_rows_that_a_target_lacks_of_another_table_are_another_problem(line: Line) -> None:
    found = []
    for number, table in enumerate(("shop.orders", "shop.items", "shop.orders"), 1):
        line.stage(manifest(number, tables={table: 2}), until_us=time.time_ns() // 1000)
        run = line.plan(f"run {number}")
        line.apply(run, written=[WriteCounts(table, "0", 1, 0, 0, quarantined=1)])
        line.commit(run)
        found.append([what for _, what, _ in told(line)])
    assert [len(each) for each in found] == [1, 1, 0]
    assert "shop.items" in found[1][0]


def test_changes_that_the_source_is_about_to_purge_are_told_beside_what_is_late(tmp_path: Path) -> None:
    line = Line.open(tmp_path)
    line.stage(manifest(0, tables={"shop.orders": 1}))
    line.meta.leases.record_retention(line.leases["shop"], 3600)
    assert sum("the source keeps its log" in what for _, what, _ in told(line)) == 1


def test_runs_that_fail_one_after_the_other_by_the_same_error_are_one_problem(line: Line) -> None:
    until_us = time.time_ns() // 1000
    for number, run in enumerate(("first", "second"), 1):
        line.stage(manifest(number, tables={"shop.orders": 1}), until_us=until_us)
        line.plan(run)
        error = RetryLater("It is away.", where="t", code="connection.unreachable", remedy="wait")
        line.meta.runs.record_failure(run, str(error))
        line.meta.failures.keep("run", run, error)
        assert told(line) == ([("connection.unreachable", "It is away.", False)] if run == "first" else [])
    line.done("third")
    assert told(line) == [("connection.unreachable", "It is away.", True)]


@pytest.mark.parametrize(
    ("said", "known"),
    [
        ("plan failed: It broke.\n  at   elsewhere", True),
        ("plan failed: It broke otherwise.\n  at   somewhere\n  code connection.denied (refused)", True),
        ("purge failed: It is full.\n  at   somewhere\n  code disk.full (retry)", False),
        ("purge failed: Denied.\n  at   s3://lake\n  code connection.denied (refused)", False),
        ("its process was killed", False),
    ],
)
def test_an_older_problem_does_not_explain_another_failure(line: Line, said: str, known: bool) -> None:
    fail(line, Refused)
    for _ in range(2):
        assert tell_problems(line.pipeline, line.meta, {"page": print}, given_up=True, said=said) is known


def test_of_several_processes_at_once_one_tells(line: Line) -> None:
    fail(line, Refused)
    for solved in (False, True):
        with ThreadPoolExecutor(8) as pool:
            found = [event for each in pool.map(lambda _: told(line), range(8)) for event in each]
        assert found == [("connection.denied", "It broke.", solved)]
        line.meta.failures.clear("plan", "")


def test_an_event_says_what_where_and_what_to_do(line: Line) -> None:
    fail(line, Refused)
    events: list[ProblemEvent] = []
    tell_problems(line.pipeline, line.meta, {"page": events.append}, given_up=True)
    assert str(events[0]) == "line: plan: It broke. At somewhere. To do: mend it."
    assert events[0].since.endswith("Z")
