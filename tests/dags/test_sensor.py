"""When the sensor opens, keeps and closes its extractor. The extractor is a stand-in here; tests/dags/test_runs.py
runs the same sensor in Airflow against a real server."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, nullcontext, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk.exceptions import AirflowException, AirflowFailException

import cdc_core.operations.extract
from cdc_core import config
from cdc_core.errors import DataAtRisk, LeaseHeld, LockstepError, RetryLater
from cdc_core.meta import Meta
from cdc_core.model.position import Checkpoint, Position
from cdc_core.model.windows import CLOCK_TOLERANCE_US
from cdc_core.operations.extract import DrainResult, StagingTotals
from cdc_core.process import leaving
from lockstep_airflow import metrics
from lockstep_airflow.extract_sensor import ExtractSensor
from tests.dags.task_context import FIVE, task_context

HELD = LeaseHeld("Held by another.", remedy="wait")
POSITION = Position(0, "binlog.000007", 1234)
STAGED = StagingTotals(batches=1, files=2, rows=3, events=4), POSITION, 99


@dataclass
class Extraction:
    """What the stand-in did, and what its drains will answer: a result of `done`, or an error to raise."""

    answers: list[bool | LockstepError] = field(default_factory=list)
    refuse: LockstepError | None = None
    events: list[str] = field(default_factory=list)
    holders: list[str] = field(default_factory=list)
    logins: list[str | None] = field(default_factory=list)
    until_us: list[int | None] = field(default_factory=list)
    accepted: list[tuple[tuple[str, int], ...]] = field(default_factory=list)
    abandoned: list[tuple[str, int] | None] = field(default_factory=list)


@pytest.fixture
def extraction(monkeypatch: pytest.MonkeyPatch) -> Extraction:
    record = Extraction()

    class StandIn:
        def __init__(self, opened: Any, source: str, *, accept: Any, abandon: Any) -> None:
            record.accepted.append(accept)
            record.abandoned.append(abandon)
            record.logins.append(os.environ.get("LOCKSTEP_CONN_SOURCE_DB"))
            record.holders.append(opened.holder)

        def __enter__(self) -> Any:
            if record.refuse is not None:
                raise record.refuse
            record.events.append("open")
            return self

        def __exit__(self, *_: object) -> None:
            record.events.append("close")

        def drain(self, *, until_us: int | None, budget_s: float) -> DrainResult:
            record.events.append("drain")
            record.until_us.append(until_us)
            answer = record.answers.pop(0)
            if isinstance(answer, LockstepError):
                raise answer
            return DrainResult(answer, *STAGED)

        @property
        def reached(self) -> DrainResult:
            return DrainResult(False, *STAGED)

    monkeypatch.setattr(cdc_core.operations.extract, "Extractor", StandIn)
    monkeypatch.setenv("AIRFLOW_CONN_SOURCE_DB", "mysql://u:p@127.0.0.1:1/")
    monkeypatch.setenv("AIRFLOW_CONN_TARGET_DB", "mysql://u:p@127.0.0.1:1/")
    return record


@pytest.fixture
def sensor(write_pipeline: Callable[..., Path]) -> Iterator[Callable[[str], ExtractSensor]]:
    """Makes sensors, which are closed after the test: an open one holds variables in this process's environment."""
    file = write_pipeline("shop")
    with ExitStack() as made:

        def make(mode: str) -> ExtractSensor:
            made_sensor = ExtractSensor(task_id="extract", file=str(file), source="shop_db", mode=mode, poke_interval=0)
            made.callback(made_sensor._close)
            return made_sensor

        yield make


@pytest.fixture
def context() -> Any:
    return task_context(
        "extract", run_id="scheduled__5", logical_date=FIVE, try_number=2, get_first_reschedule_date=lambda _: None
    )


def test_poke_mode_keeps_the_extractor_open_between_pokes_and_closes_it_in_the_end(
    extraction: Extraction, sensor: Any, context: Any
) -> None:
    extraction.answers = [False, False, True]
    answer = sensor("poke").execute(context)
    assert extraction.events == ["open", "drain", "drain", "drain", "close"]
    assert extraction.until_us == [1795240800000000] * 3
    assert extraction.logins == ["mysql://u:p@127.0.0.1:1"]
    assert "LOCKSTEP_CONN_SOURCE_DB" not in os.environ
    assert answer == {
        "source": "shop_db", "rows": 3, "batches": 1, "files": 2, "events": 4,
        "position": "binlog.000007:1234", "watermark_us": 99,
    }  # fmt: skip


def test_reschedule_mode_opens_and_closes_in_each_poke(extraction: Extraction, sensor: Any, context: Any) -> None:
    extraction.answers = [False, True]
    assert not sensor("reschedule").poke(context)
    assert sensor("reschedule").poke(context)
    assert extraction.events == ["open", "drain", "close"] * 2


def test_the_params_accept_and_abandon_are_for_the_source_that_they_name(
    extraction: Extraction, sensor: Any, context: Any
) -> None:
    place = "shop_db=binlog.000012:4711"
    extraction.answers = [True] * 3
    assert sensor("poke").poke(context)
    assert sensor("poke").poke({**context, "params": {"accept": [place]}})
    assert sensor("poke").poke({**context, "params": {"abandon": [place]}})
    assert extraction.accepted == [(), (("binlog.000012", 4711),), ()]
    assert extraction.abandoned == [None, None, ("binlog.000012", 4711)]
    for param in ("accept", "abandon"):
        for wrong, code in (
            ("other=binlog.000012:4711", "usage.argument"),
            ("shop_db=binlog.000012", "usage.argument"),
        ):
            with pytest.raises(AirflowFailException, match=f"(?s)param {param}.*{code}"):
                sensor("poke").poke({**context, "params": {param: [wrong]}})


def test_a_source_that_another_holds_is_waited_for(extraction: Extraction, sensor: Any, context: Any) -> None:
    extraction.answers = [True]
    extraction.refuse = HELD
    task = sensor("poke")
    assert not task.poke(context)
    extraction.refuse = None
    assert task.poke(context)
    assert extraction.holders[0].startswith("cdc_shop/scheduled__5/extract[0] try 2 on ")


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (RetryLater("The connection is lost.", code="source.lost", remedy="wait"), AirflowException),
        (DataAtRisk("The log is purged.", code="source.log_lost", remedy="sync"), AirflowFailException),
    ],
)
@pytest.mark.parametrize("mode", ["poke", "reschedule"])
def test_an_error_closes_the_extractor_and_what_was_staged_before_it_is_counted(
    extraction: Extraction, sensor: Any, context: Any, monkeypatch: pytest.MonkeyPatch, mode: str,
    error: LockstepError, kind: type[Exception],
) -> None:  # fmt: skip
    counted: dict[str, int] = {}
    monkeypatch.setattr(metrics, "_count", lambda name, more, **_: counted.update({name: more}))
    extraction.answers = [error]
    task = sensor(mode)
    with pytest.raises(kind) as raised:
        task.execute(context)
    assert type(raised.value) is kind
    assert extraction.events == ["open", "drain", "close"]
    assert (counted["lockstep.batches_staged"], counted["lockstep.rows_staged"]) == (1, 3)


@pytest.mark.parametrize("swallowed", [False, True], ids=["", "swallowed"])
def test_a_termination_leaves_by_way_of_closing(
    extraction: Extraction, sensor: Any, context: Any, monkeypatch: pytest.MonkeyPatch, swallowed: bool
) -> None:
    """Python drops what a signal handler raises in a finalizer: the next poke leaves then."""
    monkeypatch.setattr(leaving, "_process", leaving._Process())
    monkeypatch.setattr(leaving, "start_new_thread", lambda *_: None)  # which would end this process
    task = sensor("poke")

    def terminated(self: Any, **_: Any) -> DrainResult:
        extraction.events.append("drain")
        with suppress(SystemExit) if swallowed else nullcontext():
            task.on_kill()
        return DrainResult(False, StagingTotals(), POSITION, 99)

    monkeypatch.setattr(cdc_core.operations.extract.Extractor, "drain", terminated)
    with pytest.raises(SystemExit) as left:
        task.execute(context)
    assert left.value.code == 143
    assert extraction.events == ["open", "drain", "close"]
    task.on_kill()  # nothing is open


def test_after_a_termination_nothing_is_opened(extraction: Extraction, sensor: Any, context: Any) -> None:
    task = sensor("poke")
    task.on_kill()
    with pytest.raises(SystemExit):
        task.execute(context)
    assert extraction.events == []


def test_a_dry_run_and_a_staged_window_do_not_open_the_source(
    extraction: Extraction, sensor: Any, context: Any
) -> None:
    assert sensor("poke").poke({**context, "params": {"dry_run": True}}).xcom_value["dry_run"] is True
    task = sensor("poke")
    url = config.load(Path(task.file)).meta.url
    with Meta.open(url, "shop", upgrade=True) as meta:
        lease = meta.leases.acquire("shop_db", "an extractor before", ttl_s=60)
        meta.positions.advance_watermark(lease, Checkpoint(POSITION, watermark_us=1795240800000000))
    assert task.poke(context).xcom_value["already_staged"] is True
    assert extraction.holders == []


def test_a_window_that_ends_after_the_time_that_the_task_waits_for_is_refused_at_once(
    extraction: Extraction, sensor: Any, context: Any
) -> None:
    """Else a wrong year in the form keeps all other runs waiting for hours."""
    task = sensor("poke")
    task.timeout = 3600.0
    context["params"] = {"window_end": str(datetime.now(UTC) + timedelta(hours=2))}
    with pytest.raises(AirflowFailException, match=r"which is 1 h.*\n.*\n.*\n.*usage\.argument"):
        task.poke(context)
    assert extraction.events == []
    extraction.answers = [False]
    context["params"] = {"window_end": str(datetime.now(UTC) + timedelta(minutes=50))}
    assert not task.poke(context).is_done


@pytest.mark.parametrize("mode", ["poke", "reschedule"])
@pytest.mark.parametrize(
    ("watermark_us", "clock_us", "asked"),
    [
        (-1, 0, True),
        (0, 0, False),
        (0, -CLOCK_TOLERANCE_US, False),
        (0, -CLOCK_TOLERANCE_US - 1, True),
        (3_600_000_000, 0, True),
        (3_600_000_000, 3_600_000_000, False),
    ],
)
def test_a_watermark_saves_asking_the_source_only_within_the_clock_of_meta(
    extraction: Extraction, sensor: Any, context: Any, monkeypatch: pytest.MonkeyPatch, mode: str, watermark_us: int,
    clock_us: int, asked: bool,
) -> None:  # fmt: skip
    """Both by the end of the window."""
    end_us = 1795240800000000
    task = sensor(mode)
    with Meta.open(config.load(Path(task.file)).meta.url, "shop", upgrade=True) as meta:
        lease = meta.leases.acquire("shop_db", "an extractor before", ttl_s=60)
        meta.positions.advance_watermark(lease, Checkpoint(POSITION, watermark_us=end_us + watermark_us))
    monkeypatch.setattr(Meta, "now_us", lambda _: end_us + clock_us)
    extraction.answers = [True]
    result = task.poke(context)
    assert result.is_done
    assert "already_staged" not in result.xcom_value if asked else result.xcom_value["already_staged"]
    assert extraction.until_us == [end_us] * asked
