"""The button in Airflow's UI that leads from a task to the account of its run."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from airflow.sdk import BaseOperatorLink

from cdc_core import config
from lockstep_airflow.run_context import run_name_of

if TYPE_CHECKING:
    from airflow.sdk.types import TaskInstanceKey


class LedgerLink(BaseOperatorLink):
    """The link of an operator with a pipeline file. The task stores it at its end, so it appears only then."""

    name = "Ledger of this run"

    def get_link(self, operator: Any, *, ti_key: TaskInstanceKey) -> str:
        from airflow.sdk.configuration import conf

        pipeline = config.load(Path(operator.file)).pipeline
        ledger = f"ledger/{pipeline}/{run_name_of(pipeline, ti_key.dag_id, ti_key.run_id)}"
        # Airflow shows the page in a frame, and takes the frame's own path from the part after the view's name.
        airflow = conf.get("api", "base_url", fallback="").rstrip("/")
        return f"{airflow}/plugin/lockstep{urlsplit(airflow).path}/lockstep/{ledger}"
