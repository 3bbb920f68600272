"""The keys `snapshot` and `reverse_query`: rows that are read from a source by SELECT."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from cdc_core.config.values import Age, ConnectionRef, Model

MOST_READERS = 64
"""Chunks of a source that are read at once."""


class Throttle(Model):
    """When a copy waits. It is asked between chunks; a limit that is not given does not count."""

    threads_running: int | None = Field(None, ge=1, description="more threads than this run at the source")
    history_list_length: int | None = Field(
        None, ge=1, description="the source keeps more undo records than this (MySQL: needs the privilege PROCESS)"
    )
    replicas: tuple[ConnectionRef, ...] = Field(
        (), description="replicas of the source, as env:VARIABLE or airflow:CONNECTION_ID, whose lag counts"
    )
    replica_lag_s: float = Field(10.0, gt=0, description="one of `replicas` lags more than this, or does not replicate")
    query: str | None = Field(None, min_length=1, description="a query whose only value is above 0 at the source")


class Snapshot(Model):
    """How rows that exist already are copied."""

    mode: Literal["none", "initial"] = Field(
        "none",
        description="initial: `lockstep run` and the DAG copy each captured table of which rows from before the "
        "capture are missing; none: only `lockstep snapshot` and the DAG cdc_<pipeline>_snapshot copy",
    )
    readers: int = Field(
        2, ge=1, le=MOST_READERS, description="chunks read at once; two connections to the source each"
    )
    chunk_mib: int = Field(32, ge=1, le=1024, description="size of a chunk's rows, which one query reads")
    chunk_s: float = Field(
        5.0,
        gt=0,
        le=600,
        description="if a chunk takes longer to read, the next ones are smaller: meanwhile the source keeps old row "
        "versions",
    )
    throttle: Throttle = Field(default_factory=Throttle, description="when a copy waits")

    @property
    def elsewhere(self) -> dict[str, Any]:
        """What was chosen and holds at other servers, too: they have not the same replicas, nor what a query asks."""
        of_the_source = {"replicas", "replica_lag_s", "query"}
        chosen: dict[str, Any] = self.model_dump(
            mode="json", exclude_unset=True, exclude={"mode": True, "throttle": of_the_source}
        )
        return {key: value for key, value in chosen.items() if value != {}}


class ReverseQuery(Model):
    """Old changes are looked up in the source by key before a run applies them, so that it writes no row that is older
    than the source's. Only runs that apply all that is staged do it: `lockstep run`, and DAG runs without a window."""

    older_than: Age = Field("60s", description="changes that were committed longer ago than this are looked up")
    max_keys: int = Field(
        100_000, ge=1, description="keys that one run looks up at most; further changes are applied as they were logged"
    )
    wait_s: float = Field(
        60.0, gt=0, description="how long a run waits for the source (snapshot.throttle) before it continues without"
    )
