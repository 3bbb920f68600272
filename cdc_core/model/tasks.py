"""The tasks of a run, in order: defined once for all code that executes or describes a run.

    extract ─► snapshot ─► plan ─► merge ─► per target: filter ─► write ─► quality ─► commit

`lockstep run` (operations/pipeline_run.py) executes them one after the other, Airflow's DAGs are built from them
(lockstep_airflow/specs.py), and jobs.py knows the Spark jobs among them.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Task:
    """One task.

    spark: it is a Spark job, spark_jobs/<name>.py; otherwise a function of cdc_core.
    doc:   what it does, in a sentence.
    """

    name: str
    spark: bool
    doc: str


EXTRACT = Task(
    "extract",
    False,
    "Reads the source's binlog up to the end of the window and stages it. A window that is already staged is not read "
    "again.",
)
SNAPSHOT = Task("snapshot", False, "Copies tables that lack rows, if the pipeline copies by itself.")
PLAN = Task(
    "plan", False, "Chooses the staged batches of the window, and earlier ones not applied yet, for each target."
)
MERGE = Task("merge", True, "Finds the last change of each key among the planned batches.")
FILTER = Task("filter", True, "Compares the last changes with the versions that the target holds.")
WRITE = Task("write", True, "Writes the newer rows, guarded by version: each shard in one transaction, or in parts.")
QUALITY = Task("quality", True, "Runs the expectations on staged, merged and written rows.")
COMMIT = Task("commit", False, "Closes the ledger, which must add up, and marks the batches as consumed.")

TARGET_TASKS = (FILTER, WRITE, QUALITY, COMMIT)
"""What runs for each target after its merge set is merged."""
SPARK_JOBS = tuple(task.name for task in (MERGE, *TARGET_TASKS) if task.spark)
