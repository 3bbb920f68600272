"""When the tasks of the snapshot DAG wait, extract, end or leave. Reading and staging are stand-ins here;
tests/dags/test_scheduler.py runs the same tasks in Airflow against a real server."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
import pytest
from airflow.sdk.exceptions import (
    AirflowException,
    AirflowFailException,
    AirflowRuntimeError,
    AirflowSkipException,
    DagRunTriggerException,
    ErrorType,
)
from airflow.sdk.execution_time.comms import ErrorResponse

from cdc_core import config
from cdc_core.errors import ConnectionLost, LeaseHeld, LockstepError, OtherServer, Paused, Refused
from cdc_core.meta import Meta, TableCopy
from cdc_core.meta.copied_batches import CopiedBatches
from cdc_core.meta.table_copies import TableCopies
from cdc_core.model.position import Position
from cdc_core.model.schema import TableSchema
from cdc_core.operations.copy import copier, steps
from cdc_core.operations.copy.pending import PendingTable
from cdc_core.operations.copy.staging import Staged
from cdc_core.operations.extract import side_by_side
from cdc_core.operations.open_pipeline import OpenPipeline
from cdc_core.process import leaving
from lockstep_airflow import copy_tasks
from lockstep_airflow.copy_tasks import CopySensor, StartCopyOperator
from tests.dags.task_context import task_context

TABLE = PendingTable("shop.t", "rows are missing", 7)


class World:
    """What the stand-ins answer, and what was asked of them."""

    def __init__(self) -> None:
        self.pending: tuple[PendingTable, ...] = (TABLE,)
        self.failure: LockstepError | None = None
        self.running = False
        self.staged = Staged()
        self.refused: dict[str, Refused] = {}
        self.runs = 0
        self.dag: Exception | None = None
        self.asked: list[str] = []


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    made = World()

    @contextmanager
    def lease(*_: Any) -> Iterator[None]:
        if made.running:
            raise LeaseHeld("Another.", remedy="wait")
        yield

    def step(name: str, answer: Callable[[], Any]) -> Callable[..., Any]:
        def taken(*_: Any, **__: Any) -> Any:
            made.asked.append(name)
            if made.failure is not None and name != "extract":
                raise made.failure
            return answer()

        return taken

    monkeypatch.setattr(copier, "copier_lease", lease)
    monkeypatch.setattr(side_by_side, "extract_if_free", step("extract", lambda: True))
    monkeypatch.setattr(steps, "read_tables", step("read", lambda: made.refused))
    monkeypatch.setattr(steps, "stage_read", step("stage", lambda: made.staged))
    monkeypatch.setattr(steps, "due", lambda *_: made.pending)
    monkeypatch.setattr(copy_tasks, "_wanted", lambda *_: made.pending)
    read = TableCopy("shop_db", TableSchema("shop", "t", ()), ("9",), complete=True, rows=7)
    monkeypatch.setattr(TableCopies, "find", lambda *_: (read,))
    for name in ("SOURCE", "TARGET"):
        monkeypatch.setenv(f"AIRFLOW_CONN_{name}_DB", "mysql://u:p@127.0.0.1:1/")
    return made


@pytest.fixture
def file(write_pipeline: Callable[..., Path]) -> str:
    made = write_pipeline("shop", snapshot="mode: initial")
    Meta.open(config.load(made).meta.url, "shop", upgrade=True).close()
    return str(made)


@pytest.fixture
def context(world: World) -> Any:
    def get_dag(dag_id: str) -> None:
        if world.dag is not None:
            raise world.dag

    return task_context(
        "copy", asked=datetime.now(UTC), get_dag=get_dag, get_dr_count=lambda **_: world.runs
    )  # fmt: skip


def sensor(file: str) -> Any:
    return CopySensor(task_id="copy", file=file, subject="shop_db", mode="reschedule")


def test_a_copier_leaves_what_another_one_copies_before_it_has_the_lease(
    world: World, file: str, context: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    @contextmanager
    def lease(*_: Any) -> Iterator[None]:
        world.pending = ()
        yield

    monkeypatch.setattr(copier, "copier_lease", lease)
    with pytest.raises(AirflowSkipException):
        sensor(file).poke(context)
    assert world.asked == []


def test_a_copier_waits_for_another_or_while_it_is_paused_and_extracts_first_where_another_server_took_over(
    world: World, file: str, context: Any
) -> None:
    task = sensor(file)
    world.running = True
    assert not task.poke(context)
    assert world.asked == []
    world.running = False
    world.failure = Paused("Paused.", remedy="resume")
    assert not task.poke(context)
    world.asked.clear()
    world.failure = OtherServer("Another server.", remedy="extract")
    assert not task.poke(context)
    assert world.asked == ["read", "extract"]
    world.failure = ConnectionLost("Lost.", remedy="wait")
    with pytest.raises(AirflowException) as raised:
        task.poke(context)
    assert not isinstance(raised.value, AirflowFailException)
    world.failure = None
    assert task.poke(context).is_done
    world.pending = ()
    with pytest.raises(AirflowSkipException):
        task.poke(context)


def test_a_copier_extracts_and_waits_as_long_as_the_chain_has_not_passed_the_copy(
    world: World, file: str, context: Any
) -> None:
    task = sensor(file)
    world.staged = Staged(waiting=Position(0, "binlog.000007", 4))
    assert not task.poke(context)
    assert world.asked == ["read", "extract", "stage"]
    world.staged = Staged(tables=("shop.t",), dropped=(("shop.u", "it was truncated"),))
    assert task.poke(context).xcom_value == {"source": "shop_db", "tables": 1, "rows": 0, "batches": 0, "dropped": 1}
    world.pending = ()
    with pytest.raises(AirflowSkipException):
        task.poke(context)


def test_a_table_that_cannot_be_copied_fails_the_run_once_the_others_are_staged(
    world: World, file: str, context: Any
) -> None:
    task = sensor(file)
    refused = Refused("shop.u has no key.", where="shop.u", code="snapshot.not_copyable", remedy="give it a key")
    world.refused = {"shop.u": refused}
    world.staged = Staged(waiting=Position(0, "binlog.000007", 4))
    assert not task.poke(context)
    world.staged = Staged(tables=("shop.t",))
    with pytest.raises(AirflowFailException, match=r"shop\.u has no key") as raised:
        task.poke(context)
    assert "give it a key" in str(raised.value)
    assert world.asked == ["read", "extract", "stage"] * 2
    world.refused = {}
    assert task.poke(context).is_done


def test_what_was_decided_and_not_recorded_is_staged_although_nothing_is_left_to_read(
    world: World, file: str, context: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(CopiedBatches, "decided", lambda *_: ("a manifest",))
    world.pending = ()
    assert sensor(file).poke(context).is_done
    assert world.asked == ["read", "extract", "stage"]


def test_a_dry_run_asks_nobody_and_a_termination_leaves(
    world: World, file: str, context: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = sensor(file)
    with pytest.raises(AirflowSkipException):
        task.poke({**context, "params": {"dry_run": True}})
    assert world.asked == []

    monkeypatch.setattr(leaving, "_process", leaving._Process())
    monkeypatch.setattr(leaving, "start_new_thread", lambda *_: None)  # which would end this process

    def killed(*_: Any, **__: Any) -> None:
        task.on_kill()

    monkeypatch.setattr(steps, "read_tables", killed)
    for _ in range(2):  # again, as if Python had dropped the first one
        with pytest.raises(SystemExit):
            task.poke(context)
        task.on_kill()


def not_found(status: int, *, here: bool) -> Exception:
    if not here:
        return AirflowRuntimeError(ErrorResponse(error=ErrorType.API_SERVER_ERROR, detail={"status_code": status}))
    request = httpx.Request("GET", "http://airflow")
    return httpx.HTTPStatusError("no", request=request, response=httpx.Response(status, request=request))


def test_a_copy_is_started_once_and_under_a_name_of_its_own(world: World, file: str, context: Any) -> None:
    task = StartCopyOperator(task_id="snapshot", file=file, dag_id_of_copy="cdc_shop_snapshot")
    with pytest.raises(DagRunTriggerException) as raised:
        task.execute(context)
    started = raised.value
    assert (started.trigger_dag_id, started.dag_run_id, started.skip_when_already_exists) == (
        "cdc_shop_snapshot", "from__shop-r", True,
    )  # fmt: skip
    world.runs = 1
    with pytest.raises(AirflowSkipException, match="under way"):
        task.execute(context)
    for here in (True, False):
        world.dag = not_found(404, here=here)
        with pytest.raises(AirflowSkipException, match="no DAG"):
            task.execute(context)
        world.dag = not_found(500, here=here)
        with pytest.raises(type(world.dag)):
            task.execute(context)
    world.pending = ()
    with pytest.raises(AirflowSkipException):
        task.execute(context)
    with pytest.raises(AirflowSkipException):
        task.execute({**context, "params": {"dry_run": True}})


def test_the_form_says_how_many_readers_a_copy_has(
    world: World, file: str, context: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    readers: list[int] = []

    def read(ready: OpenPipeline, *_: Any, **__: Any) -> dict[str, Any]:
        readers.append(ready.pipeline.snapshot.readers)
        return {}

    monkeypatch.setattr(steps, "read_tables", read)
    task = sensor(file)
    for asked in (None, 7):
        context["params"] = {"readers": asked}
        assert task.poke(context).is_done
    assert readers == [config.load(Path(file)).snapshot.readers, 7]
