"""When the tasks of the cutover DAG fail, are retried or left out. The commands are the real ones, without servers;
test_approval has servers and an Airflow."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk.exceptions import AirflowException, AirflowFailException, AirflowSkipException

from cdc_core.errors import RetryLater
from lockstep_airflow.switching import CutoverOperator


@pytest.fixture
def file(write_pipeline: Callable[..., Path], monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("SOURCE_DB", "TARGET_DB"):
        monkeypatch.setenv(f"AIRFLOW_CONN_{name}", "mysql://u:secret@127.0.0.1:1/")
    made = write_pipeline("shop", more="cutover: {switch_with: ./switch.sh}\n")
    assert isinstance(made, Path)
    return made


def operator(file: Path, command: str) -> CutoverOperator:
    return CutoverOperator(
        task_id=command, file=str(file), back_file=str(file.with_name("shop_back.yaml")), command=command
    )


def execute(file: Path, command: str, **params: Any) -> Any:
    return operator(file, command).execute({"params": params})  # type: ignore[typeddict-item]


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
    with pytest.raises(AirflowException, match=r"cutover\.ended") as caught:
        execute(file, "switch")
    assert not isinstance(caught.value, AirflowFailException)


def test_a_cutover_that_was_rolled_back_is_not_tried_again(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Writes are stopped once for each approval."""

    def rolled_back(*_: object) -> None:
        raise RetryLater("Rolled back.", code="cutover.rolled_back", remedy="begin again")

    monkeypatch.setattr(CutoverOperator, "_run", rolled_back)
    with pytest.raises(AirflowFailException, match="it is not tried again"):
        execute(file, "switch")


@pytest.mark.parametrize(
    ("command", "params", "asked"),
    [
        ("plan", {}, ["cutover", "plan", "shop"]),
        ("rehearse", {"direction": "back"}, ["cutover", "rehearse", "shop_back"]),
        ("switch", {"target": "main"}, ["cutover", "run", "shop", "--target", "main"]),
        ("switch", {"direction": "back", "target": "main"}, ["cutover", "back", "shop"]),
    ],
)
def test_each_task_asks_for_its_command(
    file: Path, monkeypatch: pytest.MonkeyPatch, command: str, params: dict[str, str], asked: list[str]
) -> None:
    seen: list[str] = []
    monkeypatch.setattr(CutoverOperator, "_run", lambda _, arguments, environ: seen.extend(arguments))
    execute(file, command, **params)
    assert [Path(one).stem if one.endswith(".yaml") else one for one in seen] == asked
