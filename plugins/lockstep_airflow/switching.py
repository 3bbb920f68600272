"""The tasks of the cutover DAG. Each runs the command of its name, and ends as that ends.

    plan ─► rehearse ─► approve ─► switch

A command makes runs and verifications as `lockstep run` and `lockstep verify` do. Whatever is killed, the next try
continues the cutover that is open. Only `switch` calls the command that leads the application to another place, after
somebody has approved; where the cutover that this was for has ended meanwhile, a retry begins no other.
"""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow.sdk.exceptions import AirflowSkipException

from cdc_core import config
from cdc_core.errors import RetryLater, RolledBack
from cdc_core.windows import CLOCK_TOLERANCE_US, to_us
from lockstep_airflow.commands import CommandOperator
from lockstep_airflow.credentials import environment
from lockstep_airflow.failures import as_airflow_failures
from lockstep_airflow.run_context import asked_at
from lockstep_airflow.window import DIRECTION, REHEARSE, TARGET

if TYPE_CHECKING:
    from airflow.sdk import Context

    from cdc_core.config import Pipeline

THERE, BACK = "there", "back"


class CutoverOperator(CommandOperator):
    """Runs one of the commands of `lockstep cutover`. XCom: its document; docs/cli.md has the commands.

    command: plan, rehearse or switch. back_file: of the pipeline that carries changes back.
    """

    ui_color = "#fbe9d0"

    def __init__(self, *, file: str, back_file: str, command: str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.file = file
        self.back_file = back_file
        self.command = command

    def execute(self, context: Context) -> dict[str, Any]:
        params = dict(context.get("params") or {})
        back = params.get(DIRECTION) == BACK
        if self.command == "plan" and back:
            raise AirflowSkipException("What the way back needs was looked at before the application was switched.")
        if self.command == "rehearse" and not params.get(REHEARSE, True):
            raise AirflowSkipException("The form asks for no rehearsal.")
        with as_airflow_failures(f"cutover: {self.command}"):
            pipeline = config.load(Path(self.file))
            ti = context["ti"]
            if self.command == "switch" and ti.try_number > ti.max_tries - (self.retries or 0) + 1:  # of this clear
                _require_not_ended(config.load(Path(self.back_file)) if back else pipeline, asked_at(context))
            return self._run(self._arguments(back, params.get(TARGET)), environment(pipeline))

    def _arguments(self, back: bool, target: str | None) -> list[str]:
        chosen = ["--target", target] if target and not back else []
        match self.command:
            case "switch":
                return ["cutover", "back", self.file] if back else ["cutover", "run", self.file, *chosen]
            case _:
                return ["cutover", self.command, self.back_file if back else self.file, *chosen]

    def _without_answer(self, how: str) -> RetryLater:
        return RetryLater(
            f"The command ended with {how}, without an answer.",
            where="the log above",
            code="run.interrupted",
            remedy="nothing is lost: the next try continues the cutover, or ends it; look there for what ended the "
            "command",
        )


def _require_not_ended(pipeline: Pipeline, since: datetime) -> None:
    """Raises RetryLater (cutover.rolled_back) if a cutover that was begun since then has been rolled back, by somebody
    (`lockstep cutover abort`) or by a try whose answer was lost; or has led the application back meanwhile."""
    from cdc_core.cutover.states import State
    from cdc_core.meta import Meta

    with Meta.open(pipeline.meta.url, pipeline.pipeline) as meta:
        known = meta.latest_cutover(pipeline.pipeline)
    if known is None or known.state not in (State.ROLLED_BACK, State.BACK) or known.details.get("rehearsal"):
        return
    if known.created_us + CLOCK_TOLERANCE_US >= to_us(since):
        raise RolledBack(
            f"The cutover that was approved has ended since: it is {known.state}"
            f"{f' ({known.error})' if known.error else ''}.",
            where=f"cutover {known.cutover_id}",
            remedy="nothing was begun; to begin another one, clear the run from its approve task on",
        )
