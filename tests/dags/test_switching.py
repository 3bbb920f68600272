"""When the tasks of the cutover DAG fail, are retried or left out. The commands are the real ones, without servers;
test_approval has servers and an Airflow."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk.exceptions import AirflowException, AirflowFailException, AirflowSkipException

from cdc_core import config
from cdc_core.errors import RolledBack
from cdc_core.meta import Cutover, Meta
from lockstep_airflow.cutover_tasks import CutoverOperator
from tests.dags.conftest import REPOSITORY
from tests.dags.task_context import task_context


@pytest.fixture
def file(write_pipeline: Callable[..., Path], monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("SOURCE_DB", "TARGET_DB"):
        monkeypatch.setenv(f"AIRFLOW_CONN_{name}", "mysql://u:secret@127.0.0.1:1/")
    made = write_pipeline("shop", cutover="switch_with: /bin/true")
    assert isinstance(made, Path)
    return made


def operator(file: Path, command: str) -> CutoverOperator:
    return CutoverOperator(task_id=command, file=str(file), step=command, retries=5)


def execute(file: Path, command: str, *, tries: int = 1, **params: Any) -> Any:
    """tries: which one of the task it is; of each clear, six are made."""
    most = 5 if tries < 7 else 11
    context = task_context(command, asked=datetime.now(UTC), params=params, try_number=tries, max_tries=most)
    return operator(file, command).execute(context)


def test_what_the_command_says_is_what_the_task_says(file: Path) -> None:
    with pytest.raises(AirflowException, match=r"127\.0\.0\.1:1") as caught:
        execute(file, "plan")
    assert not isinstance(caught.value, AirflowFailException)  # a server that is away may come again
    assert "secret" not in str(caught.value)
    with pytest.raises(AirflowFailException, match=r"shop_back\.yaml"):
        execute(file, "switch", direction="back")


def test_the_form_leaves_tasks_out(file: Path) -> None:
    with pytest.raises(AirflowSkipException):
        execute(file, "plan", direction="back")
    with pytest.raises(AirflowSkipException):
        execute(file, "rehearse", rehearse=False)


def test_a_command_without_an_answer_is_tried_again(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with pytest.raises(AirflowException, match=r"run\.interrupted") as caught:
        execute(file, "switch")
    assert not isinstance(caught.value, AirflowFailException)


def test_a_cutover_that_was_rolled_back_is_not_tried_again(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Writes are stopped once for each approval."""

    def rolled_back(*_: object) -> None:
        raise RolledBack("Rolled back.", remedy="begin again")

    monkeypatch.setattr(CutoverOperator, "_run", rolled_back)
    with pytest.raises(AirflowFailException, match="it is not tried again"):
        execute(file, "switch")


def test_a_retry_begins_no_cutover_after_the_one_that_was_approved_has_ended(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else an application is led away after somebody has said `lockstep cutover abort`, because the task was killed."""
    run = list[Any]()
    monkeypatch.setattr(CutoverOperator, "_run", lambda _, arguments: run.append(arguments))
    with Meta.open(config.load(file).meta.url, "shop", upgrade=True) as meta:
        execute(file, "switch", tries=2)  # killed before it has begun one
        lease = meta.leases.acquire("cutover:x", "test", 600)
        rehearsed = meta.cutovers.begin(lease, Cutover("c0", "shop", "shop_back", "PREPARED"), ())
        meta.cutovers.move(lease, rehearsed, "ROLLED_BACK", {"rehearsal": True})
        execute(file, "switch", tries=2)
        begun = meta.cutovers.begin(lease, Cutover("c1", "shop", "shop_back", "PREPARED"), ["ROLLED_BACK"])
        execute(file, "switch", tries=2)  # continues it
        meta.cutovers.move(lease, begun, "ROLLED_BACK", {}, "aborted")
        assert len(run) == 3
        with pytest.raises(AirflowFailException, match=r"it is ROLLED_BACK \(aborted\)(.|\n)*it is not tried again"):
            execute(file, "switch", tries=2)
        assert len(run) == 3
        execute(file, "switch", tries=7)  # cleared: somebody asks for it
        assert len(run) == 4


@pytest.mark.parametrize(
    ("command", "params", "asked"),
    [
        ("plan", {}, ["plan", "shop"]),
        ("rehearse", {"direction": "back"}, ["rehearse", "shop_back"]),
        ("switch", {"target": "main"}, ["run", "shop", "main"]),
        ("switch", {"direction": "back", "target": "main"}, ["back", "shop_back"]),
    ],
)
def test_each_task_asks_for_its_command(
    file: Path, monkeypatch: pytest.MonkeyPatch, command: str, params: dict[str, str], asked: list[str]
) -> None:
    seen: list[str] = []
    monkeypatch.setattr(CutoverOperator, "_run", lambda _, arguments: seen.extend(arguments))
    execute(file, command, **params)
    assert [Path(argument).stem if argument.endswith(".yaml") else argument for argument in seen] == asked


SLOW = """#!{python}
import pathlib, signal, sys, time
here, told = pathlib.Path({folder!r}), []
signal.signal(signal.SIGTERM, lambda number, _: told.append(number))
(here / "begun").touch()
while not told:
    time.sleep(0.05)
while not (here / "killed").exists():
    time.sleep(0.05)
(here / "undone").touch()
"""
"""A command that undoes what it has made, once it is told to end, for longer than its task lives."""
TASK = """
import os, signal, sys
from lockstep_airflow.cutover_tasks import CutoverOperator
os.setpgid(0, 0)
task = CutoverOperator(task_id="switch", file="shop.yaml", step="switch")
signal.signal(signal.SIGTERM, lambda *_: task.on_kill())
sys.executable = sys.argv[1]
task._run(["run", "shop.yaml"])
"""
"""A task's process as Airflow has it: the leader of a group, with a handler that calls `on_kill` and returns."""


def test_a_command_has_the_time_to_undo_itself_when_its_task_is_terminated(tmp_path: Path) -> None:
    slow = tmp_path / "slow.py"
    slow.write_text(SLOW.format(python=sys.executable, folder=str(tmp_path)))
    slow.chmod(0o755)
    task = subprocess.Popen(
        [sys.executable, "-c", TASK, str(slow)],
        env={**os.environ, "PYTHONPATH": f"{REPOSITORY}:{REPOSITORY / 'plugins'}"},
    )
    try:
        until((tmp_path / "begun").exists)
        os.killpg(task.pid, signal.SIGTERM)
        time.sleep(0.5)  # Airflow waits for 5 s
    finally:
        os.killpg(task.pid, signal.SIGKILL)
        task.wait()
    (tmp_path / "killed").touch()
    until((tmp_path / "undone").exists)


def until(true: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + 60
    while not true():
        assert time.monotonic() < deadline_s
        time.sleep(0.05)
