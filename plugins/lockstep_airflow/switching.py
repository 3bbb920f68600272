"""The tasks of the cutover DAG. Each runs the command of its name, and ends as that ends.

    plan ─► rehearse ─► approve ─► switch

A command is a process of its own: it makes runs and verifications as `lockstep run` and `lockstep verify` do. What it
notes goes to the log of the task, its document to XCom. It is sent SIGTERM if the task's process ends, however that
ends. Whatever is killed, the next try continues the cutover that is open, or ends it and begins another: the command
says which. Only `switch` calls the command that leads the application to another place, after somebody has approved.
"""

from __future__ import annotations

import json
import logging
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseOperator
from airflow.sdk.exceptions import AirflowSkipException

from cdc_core import config
from cdc_core.errors import LockstepError, RetryLater, from_document
from lockstep_airflow.credentials import environment
from lockstep_airflow.failures import as_airflow_failures
from lockstep_airflow.parent_death import die_with_parent
from lockstep_airflow.window import DIRECTION, REHEARSE, TARGET

if TYPE_CHECKING:
    from airflow.sdk import Context

log = logging.getLogger(__name__)

THERE, BACK = "there", "back"
FINAL = frozenset({"cutover.rolled_back"})
"""Codes for what passes by itself, and is not tried again: writes are stopped again only when somebody asks for it."""


class CutoverOperator(BaseOperator):
    """Runs one of the commands of `lockstep cutover`. XCom: its document; docs/cli.md has the commands.

    command: plan, rehearse or switch. back_file: of the pipeline that carries changes back.
    """

    ui_color = "#fbe9d0"

    def __init__(self, *, file: str, back_file: str, command: str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.file = file
        self.back_file = back_file
        self.command = command
        self._process: subprocess.Popen[bytes] | None = None

    def execute(self, context: Context) -> dict[str, Any]:
        params = dict(context.get("params") or {})
        back = params.get(DIRECTION) == BACK
        if self.command == "plan" and back:
            raise AirflowSkipException("What the way back needs was looked at before the application was switched.")
        if self.command == "rehearse" and not params.get(REHEARSE, True):
            raise AirflowSkipException("The form asks for no rehearsal.")
        with as_airflow_failures(f"cutover: {self.command}", final=FINAL):
            pipeline = config.load(Path(self.file))
            return self._run(self._arguments(back, params.get(TARGET)), environment(pipeline))

    def on_kill(self) -> None:
        if self._process is not None:
            self._process.terminate()

    def _arguments(self, back: bool, target: str | None) -> list[str]:
        chosen = ["--target", target] if target and not back else []
        match self.command:
            case "switch":
                return ["back", self.file] if back else ["run", self.file, *chosen]
            case _:
                return [self.command, self.back_file if back else self.file, *chosen]

    def _run(self, arguments: Sequence[str], environ: Mapping[str, str]) -> dict[str, Any]:
        command = [sys.executable, "-m", "cdc_core.cli", "cutover", *arguments, "--json"]
        log.info("lockstep cutover %s", " ".join(arguments))
        with tempfile.TemporaryFile() as said:
            self._process = subprocess.Popen(
                command, env=dict(environ), stdin=subprocess.DEVNULL, stdout=said, stderr=subprocess.PIPE,
                preexec_fn=die_with_parent,
            )  # fmt: skip
            with self._process as process:
                assert process.stderr is not None
                for line in process.stderr:
                    log.info("%s", line.decode(errors="replace").rstrip())
            said.seek(0)
            document = _document(said.read())
        error = _error(document, process.returncode)
        if error is not None:
            raise error
        return document


def _document(text: bytes) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _error(document: Mapping[str, Any], code: int) -> LockstepError | None:
    """What ended a command. RetryLater (cutover.ended) if it could not say."""
    if "error" in document:
        return from_document(document["error"])
    if not code and document:
        return None
    return RetryLater(
        f"The command ended with {f'signal {-code}' if code < 0 else f'code {code}'}, without an answer.",
        where="the log above",
        code="cutover.ended",
        remedy="nothing is lost: the next try continues the cutover, or ends it; look there for what ended the command",
    )
