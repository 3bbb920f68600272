"""The progress of a verification, in meta after each range."""

from __future__ import annotations

import secrets
from collections.abc import Sequence

from cdc_core.model.windows import from_us
from cdc_core.operations.verify.modes import Mode
from cdc_core.operations.verify.verify_job import VerifyJob, config_digest, digest
from cdc_core.operations.verify.verify_progress import Tally, VerifyProgress, why_again

KEPT_BYTES = 4 << 20
"""Most that the keys of findings take in meta, of all tables of a verification."""


class KeptProgress:
    """What is known of each table so far; without a lease it is not kept."""

    def __init__(self, job: VerifyJob, tables: Sequence[str]) -> None:
        self._job = job
        now_us = job.meta.now_us()
        seed = secrets.randbits(32) if job.seed is None else job.seed
        share = [job.share, job.seed] if job.mode is Mode.RANDOM else []
        scope = digest([config_digest(job.pipeline), job.mode, sorted(tables), share])
        self.progress = VerifyProgress(scope, now_us, seed)
        known = job.meta.verifications.find(job.target.name) if job.lease is not None else None
        if known is None or not known.progress:
            return
        found = VerifyProgress.from_text(known.progress)
        if job.restart:
            again = "you asked for it (--restart)"
        elif found is None:
            again = "another version of Lockstep began it"
        else:
            again = why_again(found, scope, now_us, job.pipeline.verify.resume_within)
        if again or found is None:
            job.opened.progress.note(f"The verification that was interrupted begins from the start: {again}.")
            return
        self.progress = found
        job.opened.progress.note(f"The verification of {from_us(found.started_us):%Y-%m-%d %H:%M:%S} UTC continues.")

    def tally(self, table: str, definition: str) -> Tally:
        """What is known of a table; of none, or of one that is defined otherwise now, nothing."""
        known = self.progress.tables.get(table)
        if known is not None and known.definition != definition:
            self._job.opened.progress.note(
                f"{table} begins from the start: it was redefined, or its target is at another address, since its "
                "verification was interrupted."
            )
            known = None
        return known or Tally(definition)

    def bytes_left(self, table: str) -> int:
        """What the keys of a table's findings may take beside those of other tables."""
        return KEPT_BYTES - sum(one.first_bytes for name, one in self.progress.tables.items() if name != table)

    def keep(self, table: str, tally: Tally) -> None:
        """Raises RetryLater (lease.lost)."""
        job = self._job
        self.progress = self.progress.with_table(table, tally)
        if job.lease is not None:
            job.meta.verifications.keep_progress(job.lease, job.target.name, self.progress.to_text())
