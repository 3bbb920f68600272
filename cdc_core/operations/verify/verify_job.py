"""What a verification works with, and what tells two of them apart."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass

from cdc_core.config import Pipeline, Target
from cdc_core.errors import LeaseHeld
from cdc_core.meta import Lease, Meta
from cdc_core.operations.open_pipeline import OpenPipeline
from cdc_core.operations.verify.modes import Mode

WAIT_S = 600.0
"""How long the stage may take to reach the place up to which the source was read."""
LEASE_S = 60.0

Watch = Callable[[str, str, int], None]
"""Told the table, the side that is read and the rows of it so far."""


@dataclass(frozen=True, slots=True)
class VerifyJob:
    """What a verification works with.

    lease: the verifier's; without one, nothing is kept in meta, and nothing continued. begun_after_us: one that was
    interrupted continues only if it is not older, in µs UTC by meta's clock. sample_percent, seed: of Mode.RANDOM; None
    for the pipeline's share, and for a seed of chance.
    """

    opened: OpenPipeline
    target: Target
    lease: Lease | None = None
    mode: Mode = Mode.ORDERED
    begun_after_us: int = 0
    sample_percent: float | None = None
    seed: int | None = None
    wait_s: float = WAIT_S
    report: Watch = lambda table, side, rows: None

    @property
    def pipeline(self) -> Pipeline:
        return self.opened.pipeline

    @property
    def meta(self) -> Meta:
        return self.opened.meta

    @property
    def share(self) -> float:
        """The share of ranges that a sample reads."""
        percent = self.pipeline.verify.sample_percent if self.sample_percent is None else self.sample_percent
        return percent / 100


def verifier_lease(opened: OpenPipeline, target: str) -> AbstractContextManager[Lease]:
    """The right to verify and repair a target, renewed until the block ends. Raises RetryLater (lease.held)."""
    name = f"verify:{digest([opened.name, target])[:16]}"
    taken = LeaseHeld(
        f"Another process verifies or repairs the target {target!r}.",
        where=target,
        remedy=f"wait until it has ended or, if it is dead, {LEASE_S:.0f} s for its lease to expire",
    )
    return opened.meta.leases.held(name, opened.holder, LEASE_S, taken=taken)


def config_digest(pipeline: Pipeline) -> str:
    """The digest of a pipeline's definition."""
    return digest(pipeline.model_dump(mode="json"))


def digest(document: object) -> str:
    return hashlib.sha256(json.dumps(document, sort_keys=True).encode()).hexdigest()
