"""The right to change what is staged of a pipeline, other than by adding batches: purges, sweeps and compactions take
turns."""

from __future__ import annotations

from contextlib import AbstractContextManager

from cdc_core.config import Pipeline
from cdc_core.errors import LeaseHeld
from cdc_core.meta import Lease, Meta
from cdc_core.operations.open_pipeline import OpenPipeline

_LEASE_S = 60.0


def turn_of(pipeline: Pipeline) -> str:
    """The name of the lease, which no source can have."""
    return f"purge:{pipeline.pipeline}"


def turn_at(opened: OpenPipeline) -> AbstractContextManager[Lease]:
    """The turn, until the block ends; its epoch grows with each. Raises RetryLater (lease.held)."""
    taken = LeaseHeld(
        f"Another process purges, compacts, sweeps or rebuilds what is staged of {opened.name!r}.",
        where=opened.name,
        remedy=f"wait until it has ended or, if it is dead, {_LEASE_S:g} s for its lease to expire",
    )
    return opened.meta.leases.held(turn_of(opened.pipeline), opened.holder, _LEASE_S, taken=taken)


def require_turn(meta: Meta, turn: Lease) -> None:
    """Raises RetryLater (lease.lost) for a purge that was paused too long."""
    meta.leases.renew(turn, _LEASE_S)
