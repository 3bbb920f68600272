"""What the page in Airflow shows of a pipeline's history: windows without holes, and lists that end."""

from __future__ import annotations

from pathlib import Path

import pytest

from cdc_core.errors import Refused
from cdc_core.meta import Meta
from cdc_core.meta.overviews import BATCHES, WINDOWS, Overview
from cdc_core.model.windows import Windows
from tests.lab.made_batches import HOUR_US, START_US, manifest
from tests.lab.made_line import WINDOW, Line
from tests.lab.refusals import raises


def seen(line: Line, schedule: str = "0 * * * *") -> Overview:
    return line.meta.overviews.find(["t"], Windows(schedule))


def test_before_anything_is_staged_there_is_nothing_to_plot(line: Line) -> None:
    assert (seen(line).windows, seen(line).batches) == ((), ())
    line.idle("shop", START_US)
    assert seen(line).windows == ()


def test_windows_without_changes_count_nothing_and_leave_no_hole(line: Line) -> None:
    line.stage(manifest(0), manifest(1), manifest(2, window=3), until_us=START_US + 5 * HOUR_US)
    windows = seen(line).windows
    assert [window.rows for window in windows] == [20, 0, 0, 10, 0]
    assert [window.start_us for window in windows] == [START_US + hour * HOUR_US for hour in range(5)]
    assert all(window.end_us - window.start_us == HOUR_US for window in windows)
    assert windows[0].batches == 2
    assert windows[0].size_bytes == 2000


def test_what_was_staged_under_another_schedule_counts_in_the_window_that_holds_it(line: Line) -> None:
    line.stage(*(manifest(number, window=number) for number in range(30)))
    assert sum(window.rows for window in seen(line, "0 0 * * *").windows) == 300


def test_lists_end_where_the_history_does_not(line: Line) -> None:
    line.stage(*(manifest(number, window=number) for number in range(60)))
    found = seen(line)
    assert len(found.batches) == BATCHES
    assert found.batches[0].window_start_us == START_US + 59 * HOUR_US
    assert len(found.windows) == WINDOWS
    assert found.windows[-1].start_us == START_US + 59 * HOUR_US


def test_the_batches_of_several_sources_are_those_of_the_latest_windows(line: Line) -> None:
    line.stage(*(manifest(number, window=number) for number in range(40)))
    line.stage(*(manifest(number, source="other", window=number) for number in range(40)))
    found = seen(line).batches
    assert {batch.source for batch in found} == {"shop", "other"}
    assert min(batch.window_start_us for batch in found) == START_US + 15 * HOUR_US


def test_each_run_has_its_targets_and_all_of_its_ledgers(line: Line) -> None:
    tables = {f"shop.t{number}": 1 for number in range(30)}
    line.stage(manifest(0, tables=tables), manifest(1, window=1), until_us=WINDOW[1])
    line.done("first", WINDOW)
    line.plan("second")
    found = seen(line)
    assert [(account.run.run_id, account.targets) for account in found.accounts] == [
        ("second", ("t",)),
        ("first", ("t",)),
    ]
    assert [len(account.ledgers) for account in found.accounts] == [0, 30]


def test_who_only_looks_makes_no_database(tmp_path: Path) -> None:
    file = tmp_path / "deep" / "meta.db"
    for _ in range(2):
        with raises(Refused, "meta.absent"):
            Meta.open(f"sqlite:///{file}", "line", create=False)
        assert not (tmp_path / "deep").exists()
    file.parent.mkdir()
    file.touch()
    with pytest.raises(Refused):
        Meta.open(f"sqlite:///{file}", "line", create=False)
    assert file.stat().st_size == 0
