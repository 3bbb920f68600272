"""The tasks of the reshard DAG.

    plan ─► fill ─► verify

Before a cutover, `fill` adds a target to the pipeline file and fills it from the stage, and `verify` compares it with
the sources. After one it writes the pipeline that moves the shards, which has DAGs of its own: `verify` is left out.
Whatever is killed, the next try continues.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseOperator
from airflow.sdk.exceptions import AirflowSkipException

from cdc_core.errors import Refused
from lockstep_airflow.airflow_failures import as_airflow_failures
from lockstep_airflow.credentials import exported
from lockstep_airflow.spark_connection import driver_of
from lockstep_airflow.specs import FILL, PLAN
from lockstep_airflow.task_pipeline import opened
from lockstep_airflow.termination import Leaving
from lockstep_airflow.window import CONNECTIONS, DATABASE, LAYOUT, SHARDS, TARGET

if TYPE_CHECKING:
    from airflow.sdk import Context

    from cdc_core.operations.open_pipeline import OpenPipeline
    from cdc_core.operations.reshard.resharding import Resharding


class ReshardOperator(Leaving, BaseOperator):
    """Does a step of a resharding. XCom: its document, that of `lockstep reshard` (docs/cli.md); of verify, {target,
    equal, evidence}.

    step: plan, fill or verify. connection: Airflow connection id of the Spark cluster.
    """

    ui_color = "#fbe9d0"

    def __init__(self, *, file: str, step: str, connection: str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.file = file
        self.step = step
        self.connection = connection

    def execute(self, context: Context) -> dict[str, Any]:
        params = dict(context.get("params") or {})
        target = "" if self.step in (PLAN, FILL) else self._filled(context)
        connections = [str(one) for one in params.get(CONNECTIONS) or ()]
        with (
            as_airflow_failures(f"reshard: {self.step}"),
            opened(self.file, context) as ready,
            exported(ready.pipeline, connections),
            self.working(),
        ):
            if target:
                return self._verify(ready, target)
            return self._do(ready, self._asked(ready, params, connections))

    def _filled(self, context: Context) -> str:
        """The target that the task before has filled."""
        filled = context["ti"].xcom_pull(task_ids=FILL)
        if not isinstance(filled, Mapping):
            with as_airflow_failures("reshard: verify"):
                raise _not_filled()
        if "successor" in filled:
            raise AirflowSkipException(
                f"The application writes to the shards: the DAGs of {filled['successor']} move them from here on."
            )
        return str(filled["new_target"])

    def _asked(self, ready: OpenPipeline, params: Mapping[str, Any], connections: list[str]) -> Resharding:
        from cdc_core.operations.reshard.resharding import Resharding

        return Resharding.of(
            Path(self.file), ready.pipeline, str(params[LAYOUT]), target=params.get(TARGET) or None,
            database=params.get(DATABASE) or None, connections=connections, shards=params.get(SHARDS) or None,
        )  # fmt: skip

    def _do(self, ready: OpenPipeline, asked: Resharding) -> dict[str, Any]:
        from cdc_core.operations.reshard.resharding import plan, reshard

        if self.step == PLAN:
            return plan(ready, asked).to_json()
        return reshard(ready, asked, lambda pipeline, store: driver_of(self.connection, pipeline, store)).to_json()

    def _verify(self, ready: OpenPipeline, target: str) -> dict[str, Any]:
        from cdc_core.operations.verify import evidence
        from cdc_core.operations.verify.verifier import verify_target

        report = verify_target(ready, target)
        if report.error is not None:
            raise report.error
        location = ready.store.location(report.path)
        return {"target": target, "equal": evidence.proven(report.results), "evidence": location}


def _not_filled() -> Refused:
    return Refused(
        f"The task {FILL} has not said which target it has filled: it was marked, or Airflow has removed its XCom.",
        where=f"task {FILL}",
        code="run.clear_task",
        remedy=f"nothing was verified; clear the task {FILL}, which finds what is done, and this one with it",
    )
