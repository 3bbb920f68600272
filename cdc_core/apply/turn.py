"""The right to change what is staged of a pipeline, other than by adding batches: purges, sweeps and compactions take
turns."""

from __future__ import annotations

import os
import socket

from cdc_core.config import Pipeline
from cdc_core.meta import Lease, Meta

_LEASE_S = 60.0


def turn_of(pipeline: Pipeline) -> str:
    """The name of the lease, which no source can have."""
    return f"purge:{pipeline.pipeline}"


class Turn:
    """Raises RetryLater (lease.held) where another process has the turn."""

    def __init__(self, meta: Meta, pipeline: Pipeline) -> None:
        self._meta = meta
        self._name = turn_of(pipeline)
        self._pipeline = pipeline.pipeline
        self._lease: Lease | None = None

    def __enter__(self) -> Turn:
        holder = f"{socket.gethostname()}:{os.getpid()}"
        self._lease = self._meta.acquire_lease(self._name, self._pipeline, holder, _LEASE_S)
        return self

    def renew(self) -> None:
        """Raises RetryLater (lease.lost) for a purge that was paused too long."""
        assert self._lease is not None
        self._lease = self._meta.renew_lease(self._lease, _LEASE_S)

    def __exit__(self, *_: object) -> None:
        assert self._lease is not None
        self._meta.release_lease(self._lease)

    @property
    def epoch(self) -> int:
        """Grows with each turn of the pipeline."""
        assert self._lease is not None
        return self._lease.epoch
