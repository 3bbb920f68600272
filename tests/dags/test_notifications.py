"""The receivers of problems, in Airflow itself."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cdc_core import config
from cdc_core.errors import LockstepError, Refused
from cdc_core.meta import Meta
from cdc_core.operations.problem_events import ProblemEvent
from lockstep_airflow.notifications import callbacks
from lockstep_airflow.pipelines import read_folder
from tests.dags.airflow_line import AirflowLine, fill, now
from tests.dags.task_context import task_context

TELLING = """
import json
from airflow.sdk import BaseNotifier
from cdc_core.operations.problem_events import ProblemEvent

FILE = {file!r}

def write(kind, **values):
    with open(FILE, "a") as file:
        file.write(json.dumps({{"kind": kind, **values}}) + "\\n")

def page(problem, team):
    assert isinstance(problem, ProblemEvent)
    write("function", team=team, code=problem.code, solved=problem.solved)

class Channel(BaseNotifier):
    template_fields = ("text",)

    def __init__(self, text):
        super().__init__()
        self.text = text

    def notify(self, context):
        write("notifier", text=self.text, task=context["ti"].task_id)
"""


def test_a_problem_is_told_to_functions_and_notifiers_when_its_task_has_failed_and_when_a_later_run_succeeds(
    line: Callable[..., AirflowLine], source_database: Any, tmp_path: Path
) -> None:
    said = tmp_path / "said.jsonl"
    modules = tmp_path / "modules"
    modules.mkdir()
    (modules / "team_alerts.py").write_text(TELLING.format(file=str(said)))
    text = "{{ problem.pipeline }} {{ problem.code }} {{ 'solved' if problem.solved else 'new' }}"
    notify = [
        {"use": "team_alerts:page", "options": {"team": "data"}},
        {"use": "team_alerts:Channel", "options": {"text": text}},
    ]
    run = line("telling", notify=notify)
    run.environ["PYTHONPATH"] = f"{modules}:{run.environ.get('PYTHONPATH', '')}"
    fill(source_database, 3)
    url = run.environ["AIRFLOW_CONN_TELLING"]
    run.environ["AIRFLOW_CONN_TELLING"] = url.replace("root:", "nobody:")
    assert run.start(now()).wait(timeout=240) != 0, run.output[-6000:]
    run.environ["AIRFLOW_CONN_TELLING"] = url
    run.run(now())
    run.run(now())
    events = [json.loads(each) for each in said.read_text().splitlines()]
    assert events == [
        {"kind": "function", "team": "data", "code": "connection.denied", "solved": False},
        {"kind": "notifier", "text": "telling connection.denied new", "task": "extract"},
        {"kind": "function", "team": "data", "code": "connection.denied", "solved": True},
        {"kind": "notifier", "text": "telling connection.denied solved", "task": "extract"},
    ]


def test_a_notifier_that_is_not_there_costs_its_own_pipeline_only(
    write_pipeline: Callable[..., Path], pipelines: Path
) -> None:
    write_pipeline("shop")
    write_pipeline("books", airflow={"notify": [{"use": "nowhere.to_be:found"}]})
    folder = read_folder(pipelines)
    assert {spec.pipeline for spec in folder.specs} == {"shop"}
    with pytest.raises(Exception, match=r"airflow\.notify names nowhere\.to_be:found"):
        raise folder.error()


RECEIVED: list[ProblemEvent] = []


def receive(problem: ProblemEvent) -> None:
    RECEIVED.append(problem)


def test_a_failure_that_meta_does_not_know_of_is_told_each_time(write_pipeline: Callable[..., Path]) -> None:
    """A defect, a process that was killed, or meta itself; beside an older failure that meta knows of, too."""
    notify = {"notify": [{"use": f"{__name__}:receive"}]}
    file = write_pipeline("shop", airflow=notify)
    away = write_pipeline("away", airflow=notify, meta={"url": f"sqlite:///{file}/meta.db"})
    RECEIVED.clear()
    context = task_context("merge") | {"exception": ValueError("broken")}
    for _ in range(2):
        callbacks(str(file))["on_failure_callback"](context)
    known = Refused("It is full.", where="here", code="disk.full", remedy="make room")
    pipeline = config.load(file)
    with Meta.open(pipeline.meta.url, "shop") as meta:
        meta.failures.keep("plan", "", known)
    for said in ("plan failed: It is full.", "broken again"):
        callbacks(str(file))["on_failure_callback"](context | {"exception": ValueError(said)})
    with pytest.raises(LockstepError):
        callbacks(str(away))["on_failure_callback"](context)
    callbacks(str(file))["on_success_callback"](context)
    assert [(event.pipeline, event.subject, event.what) for event in RECEIVED if event.level == "failed"] == [
        ("shop", "merge", "broken"), ("shop", "merge", "broken"), ("shop", "plan", "It is full."),
        ("shop", "merge", "broken again"), ("away", "merge", "broken"),
    ]  # fmt: skip


def test_what_is_late_is_told_once_a_run_has_nothing_left_to_do(write_pipeline: Callable[..., Path]) -> None:
    notify = {"notify": [{"use": f"{__name__}:receive"}]}
    for name, targets, last in (("shop", None, "to_main.commit"), ("files", [], "group.extract")):
        file = write_pipeline(name, airflow=notify, **{} if targets is None else {"targets": targets})
        Meta.open(config.load(file).meta.url, name, upgrade=True).close()
        RECEIVED.clear()
        callbacks(str(file))["on_success_callback"](task_context("plan"))
        assert RECEIVED == []
        for _ in range(2):
            callbacks(str(file))["on_success_callback"](task_context(last))
        assert [(event.level, event.solved) for event in RECEIVED] == [("late", False)]
