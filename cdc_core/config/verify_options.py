"""The keys `verify` and `repair`: how targets are compared with their sources, and what may be repaired."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from cdc_core.config.value_types import Age, Cron, Model


class Verify(Model):
    """How `lockstep verify` and the DAG cdc_<pipeline>_verify compare targets with the sources. They read a source in
    chunks, and wait, as `snapshot` says."""

    schedule: Cron | None = Field(
        None, description="cron expression (UTC) of the DAG; default: it runs when somebody starts it"
    )
    mode: Literal["ordered", "random", "count", "max-id"] = Field(
        "ordered",
        description="what scheduled runs compare: every row; a sample; the number of rows; that and the "
        "greatest key. Only ordered proves that a target is equal",
    )
    sample_percent: float = Field(10.0, gt=0, le=100, description="share of the rows that mode random reads")
    resume_within: Age = Field("24h", description="a verification that was interrupted longer ago starts over")
    repair: bool = Field(
        False,
        description="the DAG repairs what it finds, within repair.max_rows_per_day; the trigger form overrides it",
    )


class Repair(Model):
    """Limits of `lockstep repair`, and of the DAG cdc_<pipeline>_verify with `verify.repair`."""

    max_rows_per_day: int = Field(
        10_000,
        ge=0,
        description="rows of a source that repairs may stage in 24 hours; above it they end with "
        "`repair.limit`, because so many differences have a cause",
    )
