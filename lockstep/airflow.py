"""Lockstep's tasks in DAGs that others write; lockstep_airflow.task_groups has them.

from lockstep.airflow import pipeline_tasks

with DAG("shop_hourly", schedule="@hourly", start_date=...):
    pipeline_tasks("pipelines/shop.yaml") >> report()
"""

from __future__ import annotations

from lockstep_airflow.task_groups import ApplyTasks as Apply
from lockstep_airflow.task_groups import ExtractTasks as Extract
from lockstep_airflow.task_groups import SnapshotTasks as Snapshot
from lockstep_airflow.task_groups import VerifyTasks as Verify
from lockstep_airflow.task_groups import pipeline_tasks

__all__ = ["Apply", "Extract", "Snapshot", "Verify", "pipeline_tasks"]
