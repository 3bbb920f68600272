"""The tasks of the reshard DAG. Each runs the command of its name, and ends as that ends.

    plan ─► fill ─► verify

Before a cutover, `fill` adds a target to the pipeline file and fills it from the stage, and `verify` compares it with
the sources. After one it writes the pipeline that moves the shards, which has DAGs of its own: `verify` is left out.
Whatever is killed, the next try continues.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow.sdk.exceptions import AirflowSkipException

from cdc_core import config
from cdc_core.errors import Refused, RetryLater
from lockstep_airflow.commands import CommandOperator
from lockstep_airflow.credentials import environment
from lockstep_airflow.failures import as_airflow_failures
from lockstep_airflow.specs import FILL
from lockstep_airflow.window import CONNECTIONS, DATABASE, LAYOUT, SHARDS, TARGET

if TYPE_CHECKING:
    from airflow.sdk import Context


class ReshardOperator(CommandOperator):
    """Runs `lockstep reshard plan`, `lockstep reshard run` or `lockstep verify`. XCom: its document.

    command: plan, fill or verify.
    """

    ui_color = "#fbe9d0"

    def __init__(self, *, file: str, command: str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.file = file
        self.command = command

    def execute(self, context: Context) -> dict[str, Any]:
        params = dict(context.get("params") or {})
        connections = list(params.get(CONNECTIONS) or ())
        if self.command == "verify":
            filled = context["ti"].xcom_pull(task_ids=FILL)
            if filled is None:
                with as_airflow_failures("reshard: verify"):
                    raise _not_filled()
            if "successor" in filled:
                raise AirflowSkipException(
                    f"The application writes to the shards: the DAGs of {filled['successor']} move them from here on."
                )
            arguments = ["verify", self.file, "--target", filled["new_target"]]
        else:
            asked = {
                "--to": params[LAYOUT],
                "--target": params.get(TARGET),
                "--database": params.get(DATABASE),
                "--shards": params.get(SHARDS),
            }
            arguments = ["reshard", "run" if self.command == FILL else self.command, self.file]
            arguments += [part for name, value in asked.items() if value for part in (name, str(value))]
            arguments += [part for one in connections for part in ("--connection", str(one))]
        with as_airflow_failures(f"reshard: {self.command}"):
            return self._run(arguments, environment(config.load(Path(self.file)), connections))

    def _without_answer(self, how: str) -> RetryLater:
        return RetryLater(
            f"The command ended with {how}, without an answer.",
            where="the log above",
            code="run.interrupted",
            remedy="nothing is lost: the next try continues; look there for what ended the command",
        )


def _not_filled() -> Refused:
    return Refused(
        f"The task {FILL} has not said which target it has filled: it was marked, or Airflow has removed its XCom.",
        where=f"task {FILL}",
        code="run.clear_task",
        remedy=f"nothing was verified; clear the task {FILL}, which finds what is done, and this one with it",
    )
