"""A cutover in a process of its own, which ends in its own time: `python -m lockstep_airflow.cutover_process`.

Airflow kills a task's process group 5 s after it has told the task to end, and a cutover that undoes what it has made
may need longer. So the task (cutover_tasks.py) starts this process in a session of its own, and sends it SIGTERM when
the task ends, however that ends. What it notes goes to stderr, its answer to stdout: a JSON document, or `to_line` of
the error. It imports no Airflow.
"""

from __future__ import annotations

import json
import logging
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cdc_core import config
from cdc_core.errors import LockstepError, to_line
from cdc_core.operations.cutover import machine
from cdc_core.operations.cutover.cutover_report import cutover_document
from cdc_core.operations.cutover.moving import cutover_lease
from cdc_core.operations.cutover.opening import work_of
from cdc_core.operations.cutover.planning import plan
from cdc_core.operations.open_pipeline import open_pipeline
from cdc_core.process.account import settled
from cdc_core.process.leaving import leave_on_signals
from cdc_core.process.quiet_libraries import quiet_libraries
from spark_jobs.driver import Driver

if TYPE_CHECKING:
    from cdc_core.operations.cutover.work import CutoverWork

PLAN, REHEARSE, RUN, BACK = "plan", "rehearse", "run", "back"


def document_of(work: CutoverWork, verb: str) -> dict[str, Any]:
    """Does the verb; its document. Raises what it raises."""
    if verb == PLAN:
        made = plan(work)
        if made.error is not None:
            raise made.error
        return made.to_json()
    with cutover_lease(work) as lease:
        cutover = machine.back(work, lease) if verb == BACK else machine.run(work, lease, rehearse=verb == REHEARSE)
        return cutover_document(work.meta, cutover, work.options)


def main(verb: str, file: str, target: str = "") -> None:
    """verb: plan, rehearse, run or back. file: of the pipeline that changes come by; for `back`, of the way back."""
    os.environ.update(settled(os.environ))
    leave_on_signals()
    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="%(message)s")
    quiet_libraries()
    try:
        pipeline = config.load(Path(file))
        with (
            open_pipeline(pipeline) as ready,
            Driver(pipeline, ready.store, master=pipeline.spark.master) as spark,
            work_of(ready, spark, Path(file), target or None) as work,
        ):
            answer = json.dumps(document_of(work, verb))
    except LockstepError as error:
        answer = to_line(error)
    sys.stdout.write(answer)


if __name__ == "__main__":
    main(*sys.argv[1:])
