"""The keys `snapshot` and `reverse_query`: rows that are read from a source by SELECT."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from cdc_core.config.value_types import Age, ConnectionRef, Model

MOST_READERS = 64
"""Chunks of a source that are read at once."""


class ThrottleOptions(Model):
    """A copy waits while one of these is true, and asks between chunks."""

    threads_running: int | None = Field(None, ge=1, description="more threads than this run at the source")
    replicas: tuple[ConnectionRef, ...] = Field(
        (), description="replicas whose lag counts, as env:VARIABLE or airflow:CONNECTION_ID"
    )
    replica_lag_s: float = Field(10.0, gt=0, description="a replica lags more than this, or does not replicate")
    query: str | None = Field(None, min_length=1, description="a query whose only value is above 0 at the source")


class Snapshot(Model):
    """How rows that exist already are copied."""

    mode: Literal["none", "initial"] = Field(
        "none",
        description="initial: `lockstep run` and the DAG copy tables that lack rows from before the capture; "
        "none: only `lockstep snapshot` and the DAG cdc_<pipeline>_snapshot copy",
    )
    readers: int = Field(2, ge=1, le=MOST_READERS, description="chunks read at once; each takes two connections")
    chunk_mib: int = Field(32, ge=1, le=1024, description="size of a chunk's rows, which one query reads")
    chunk_s: float = Field(
        5.0,
        gt=0,
        le=600,
        description="chunks get smaller if one takes longer: meanwhile the source keeps old row versions",
    )
    throttle: ThrottleOptions = Field(default_factory=ThrottleOptions, description="when a copy waits")

    @property
    def elsewhere(self) -> dict[str, Any]:
        """What was chosen and holds at other servers, too: they have not the same replicas, nor what a query asks."""
        of_the_source = {"replicas", "replica_lag_s", "query"}
        chosen: dict[str, Any] = self.model_dump(
            mode="json", exclude_unset=True, exclude={"mode": True, "throttle": of_the_source}
        )
        return {key: value for key, value in chosen.items() if value != {}}


class ReverseQuery(Model):
    """Old changes are looked up in the source by key before a run applies them. Only runs that apply everything staged
    do it: `lockstep run`, and DAG runs without a window."""

    older_than: Age = Field("60s", description="changes committed longer ago than this are looked up")
    max_keys: int = Field(
        100_000, ge=1, description="keys that one run looks up; further changes are applied as logged"
    )
    wait_s: float = Field(
        60.0, gt=0, description="how long a run waits for the source (snapshot.throttle) before it continues without"
    )
