"""The lease under which one process at a time verifies or repairs a target."""

from __future__ import annotations

import hashlib
from contextlib import AbstractContextManager

from cdc_core.errors import LeaseHeld
from cdc_core.meta import Lease
from cdc_core.operations.open_pipeline import OpenPipeline

LEASE_S = 60.0


def verifier_lease(opened: OpenPipeline, target: str) -> AbstractContextManager[Lease]:
    """The right to verify and repair a target, renewed until the block ends. Raises RetryLater (lease.held)."""
    name = "verify:" + hashlib.sha256(f"{opened.name}/{target}".encode()).hexdigest()[:16]
    taken = LeaseHeld(
        f"Another process verifies or repairs the target {target!r}.",
        where=target,
        remedy=f"wait until it has ended or, if it is dead, {LEASE_S:.0f} s for its lease to expire",
    )
    return opened.meta.leases.held(name, opened.holder, LEASE_S, taken=taken)
