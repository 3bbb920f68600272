"""The keys `verify` and `repair`: how targets are compared with their sources, and what may be repaired."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from cdc_core.config.values import Age, Cron, Model


class Verify(Model):
    """How `lockstep verify` and the DAG cdc_<pipeline>_verify compare targets with the sources. They read a source in
    chunks, and wait, as snapshot.chunk_mib, chunk_s and throttle say."""

    schedule: Cron | None = Field(
        None, description="cron expression (UTC) of the DAG; default: it runs only when somebody starts it"
    )
    mode: Literal["ordered", "random", "count", "max-id"] = Field(
        "ordered",
        description="what scheduled runs compare: every row; a sample of the rows; the number of rows; that, and the "
        "greatest key. Only ordered proves that a target is equal",
    )
    sample_percent: float = Field(10.0, gt=0, le=100, description="share of the rows that mode random reads")
    resume_within: Age = Field(
        "24h", description="a verification that was interrupted longer ago begins from the start"
    )
    repair: bool = Field(
        False,
        description="the DAG repairs what it finds, as `lockstep repair` does, within repair.max_rows_per_day; the "
        "trigger form decides for a single run",
    )


class Repair(Model):
    """What `lockstep repair` may do, and the DAG cdc_<pipeline>_verify where `verify.repair` is true."""

    max_rows_per_day: int = Field(
        10_000,
        ge=0,
        description="rows of a source that repairs may stage within 24 hours; above it, they stage nothing and end in "
        "`repair.limit`: that many differences have a cause to look for first",
    )
