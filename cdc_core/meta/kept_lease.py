"""A lease that is renewed while a block runs."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from cdc_core.errors import LeaseHeld, LockstepError, RetryLater
from cdc_core.meta.meta import Meta
from cdc_core.meta.rows import Lease

log = logging.getLogger(__name__)


@contextmanager
def kept_lease(
    meta: Meta, name: str, pipeline: str, holder: str, lease_s: float, *, taken: RetryLater
) -> Iterator[Lease]:
    """The lease `name`, renewed until the block ends. lease_s: how long a killed holder keeps it.

    Raises `taken` if another process has it.
    """
    try:
        lease = meta.acquire_lease(name, pipeline, holder, lease_s)
    except LeaseHeld:
        raise taken from None
    ending = threading.Event()

    def keep() -> None:
        while not ending.wait(lease_s / 3):
            try:
                meta.renew_lease(lease, lease_s)
            except LockstepError as error:  # whatever needs the lease will say so
                log.warning("%s: the lease could not be renewed: %s", name, error)

    keeper = threading.Thread(target=keep, name=name, daemon=True)
    keeper.start()
    try:
        yield lease
    finally:
        ending.set()
        keeper.join()
        with suppress(LockstepError):
            meta.release_lease(lease)
