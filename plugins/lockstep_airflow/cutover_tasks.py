"""The tasks of the cutover DAG.

    plan ─► rehearse ─► approve ─► switch

Each does its work in a process of its own (cutover_process.py), which makes runs and verifications as those are made
otherwise. Whatever is killed, the next try continues the cutover that is open. Only `switch` calls the command that
leads the application to another place, after somebody has approved; where the cutover that this was for has ended
meanwhile, a retry begins no other.
"""

from __future__ import annotations

import ctypes
import json
import logging
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseOperator
from airflow.sdk.exceptions import AirflowSkipException

from cdc_core import config
from cdc_core.errors import RetryLater, RolledBack, from_text
from cdc_core.model.windows import CLOCK_TOLERANCE_US, to_us
from lockstep_airflow.airflow_failures import as_airflow_failures
from lockstep_airflow.credentials import exported
from lockstep_airflow.run_context import asked_at
from lockstep_airflow.window import DIRECTION, REHEARSE, TARGET

if TYPE_CHECKING:
    from airflow.sdk import Context

    from cdc_core.config import Pipeline

log = logging.getLogger(__name__)

THERE, BACK = "there", "back"
_PR_SET_PDEATHSIG = 1
# Loaded here, not between fork and exec.
_LIBC = ctypes.CDLL(None, use_errno=True) if sys.platform == "linux" else None


class CutoverOperator(BaseOperator):
    """Does a step of a cutover. XCom: its document, that of the command of `lockstep cutover` (docs/cli.md).

    step: plan, rehearse or switch.
    """

    ui_color = "#fbe9d0"

    def __init__(self, *, file: str, step: str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.file = file
        self.step = step
        self._process: subprocess.Popen[bytes] | None = None
        self._told = False

    def on_kill(self) -> None:
        self._told = True
        if self._process is not None:
            self._process.terminate()

    def execute(self, context: Context) -> dict[str, Any]:
        params = dict(context.get("params") or {})
        back = params.get(DIRECTION) == BACK
        if self.step == "plan" and back:
            raise AirflowSkipException("What the way back needs was looked at before the application was switched.")
        if self.step == "rehearse" and not params.get(REHEARSE, True):
            raise AirflowSkipException("The form asks for no rehearsal.")
        with as_airflow_failures(f"cutover: {self.step}"):
            there = Path(self.file)
            file = config.back_file(there) if back else there
            ti = context["ti"]
            if self.step == "switch" and ti.try_number > ti.max_tries - (self.retries or 0) + 1:  # of this clear
                _require_not_ended(config.load(file), asked_at(context))
            verb = ("back" if back else "run") if self.step == "switch" else self.step
            chosen = [str(params[TARGET])] if params.get(TARGET) and not back else []
            with exported(config.load(there)):
                return self._run([verb, str(file), *chosen])

    def _run(self, arguments: Sequence[str]) -> dict[str, Any]:
        """The document of the process, whose notes go to the task's log. Raises the error that it says."""
        command = [sys.executable, "-m", "lockstep_airflow.cutover_process", *arguments]
        with tempfile.TemporaryFile() as answer:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=answer,
                stderr=subprocess.PIPE,
                start_new_session=True,
                preexec_fn=_die_with_parent,
            )
            if self._told:  # while it was started
                self._process.terminate()
            with self._process as process:
                assert process.stderr is not None
                for line in process.stderr:
                    log.info("%s", line.decode(errors="replace").rstrip())
            answer.seek(0)
            text = answer.read().decode()
        error = from_text(text)
        if error is not None:
            raise error
        if process.returncode or not text:
            code = process.returncode
            raise RetryLater(
                f"The process of the cutover ended with {f'signal {-code}' if code < 0 else f'code {code}'}, "
                "without an answer.",
                where="the log above",
                code="run.interrupted",
                remedy="nothing is lost: the next try continues the cutover, or ends it; look there for what ended it",
            )
        document: dict[str, Any] = json.loads(text)
        return document


def _die_with_parent() -> None:
    """The kernel sends SIGTERM when the parent dies: Airflow retries a task that was killed, and its process must not
    continue beside that of the retry."""
    if _LIBC is not None:
        _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)


def _require_not_ended(pipeline: Pipeline, since: datetime) -> None:
    """Raises RetryLater (cutover.rolled_back) if a cutover that was begun since then has been rolled back, by somebody
    (`lockstep cutover abort`) or by a try whose answer was lost; or has led the application back meanwhile."""
    from cdc_core.meta import Meta
    from cdc_core.operations.cutover.cutover_states import State

    with Meta.open(pipeline.meta.url, pipeline.pipeline) as meta:
        cutover = meta.cutovers.latest(pipeline.pipeline)
    if cutover is None or cutover.state not in (State.ROLLED_BACK, State.BACK) or cutover.details.get("rehearsal"):
        return
    if cutover.created_us + CLOCK_TOLERANCE_US >= to_us(since):
        raise RolledBack(
            f"The cutover that was approved has ended since: it is {cutover.state}"
            f"{f' ({cutover.error})' if cutover.error else ''}.",
            where=f"cutover {cutover.cutover_id}",
            remedy="nothing was begun; to begin another one, clear the run from its approve task on",
        )
