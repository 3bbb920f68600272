"""The lease under which one process at a time verifies or repairs a target."""

from __future__ import annotations

import hashlib
import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from cdc_core.errors import LockstepError, RetryLater
from cdc_core.extract.extractor import default_holder
from cdc_core.meta import Meta

log = logging.getLogger(__name__)

LEASE_S = 60.0


@contextmanager
def verifier_lease(meta: Meta, pipeline: str, target: str) -> Iterator[None]:
    """The right to verify and repair a target, renewed until the block ends. Raises RetryLater (verify.running)."""
    name = "verify:" + hashlib.sha256(f"{pipeline}/{target}".encode()).hexdigest()[:16]
    try:
        lease = meta.acquire_lease(name, pipeline, default_holder(), LEASE_S)
    except RetryLater as error:
        if error.code != "meta.lease_held":
            raise
        raise RetryLater(
            f"Another process verifies or repairs the target {target!r}.",
            where=target,
            code="verify.running",
            remedy=f"wait until it has ended or, if it is dead, {LEASE_S:.0f} s for its lease to expire",
        ) from None
    ending = threading.Event()

    def keep() -> None:
        while not ending.wait(LEASE_S / 3):
            try:
                meta.renew_lease(lease, LEASE_S)
            except LockstepError as error:
                log.warning("%s: the lease could not be renewed: %s", target, error)

    keeper = threading.Thread(target=keep, name=name, daemon=True)
    keeper.start()
    try:
        yield
    finally:
        ending.set()
        keeper.join()
        with suppress(LockstepError):
            meta.release_lease(lease)
