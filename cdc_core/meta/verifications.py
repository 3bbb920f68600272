"""Verifications of targets: how far the one under way is, and what the latest of each mode has found.

Every change happens under the verifier's lease. The evidence itself is on the stage; meta has a summary of it, so that
`lockstep status` and the page need not read the stage.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from sqlalchemy import insert, select, update

from cdc_core.meta.leases import Leases
from cdc_core.meta.meta_rows import Lease, Verification
from cdc_core.meta.meta_schema import verification as _verification
from cdc_core.meta.repository import Repository, reads, writes
from cdc_core.model.windows import from_us


class Verifications(Repository):
    @reads
    def find(self, target: str) -> Verification | None:
        """None where none was ever begun."""
        return next((verification for verification in self.all() if verification.target == target), None)

    @reads
    def all(self) -> tuple[Verification, ...]:
        """The verifications of all targets that have any, by name."""
        rows = self.execute(select(_verification).order_by(_verification.c.target))
        return tuple(
            Verification(row.target, row.progress or "", json.loads(row.evidence or "{}"), row.updated_us)
            for row in rows
        )

    @reads
    def evidence(self, target: str) -> Mapping[str, Mapping[str, Any]]:
        """A summary of what the latest verification has found, by mode."""
        verification = self.find(target)
        return {} if verification is None else verification.evidence

    @writes
    def keep_progress(self, lease: Lease, target: str, progress: str | None) -> None:
        """progress: a document; None where no verification is under way. Raises RetryLater (lease.lost)."""
        Leases(self.connection).require_held(lease)
        self._write(target, {"progress": progress})

    @writes
    def finish(self, lease: Lease, target: str, mode: str, evidence: Mapping[str, Any]) -> None:
        """The verification under way has ended with this evidence, a summary. Raises RetryLater (lease.lost)."""
        Leases(self.connection).require_held(lease)
        known = self.evidence(target)
        kept = json.dumps({**known, mode: dict(evidence)}, ensure_ascii=False)
        self._write(target, {"progress": None, "evidence": kept})

    @writes
    def doubt(self, lease: Lease, target: str, mode: str, why: str, differing: Mapping[str, int]) -> None:
        """What verifications that have begun before now say does not count any more. mode: under which it is kept. why:
        for people. differing: by logical table, rows that are known to differ. Raises RetryLater (lease.lost)."""
        Leases(self.connection).require_held(lease)
        evidence = self.evidence(target)
        said = {
            "ended": from_us(self.now_us()).isoformat(),
            "why": why,
            "equal": None,
            "differences": sum(differing.values()),
            "differing": {**known_to_differ(evidence), **differing},
        }
        self._write(target, {"evidence": json.dumps({**evidence, mode: said}, ensure_ascii=False)})

    @writes
    def forget_differences(self, lease: Lease, target: str, repaired: Mapping[str, int]) -> None:
        """repaired: by logical table, how many rows are equal now. Raises RetryLater (lease.lost)."""
        Leases(self.connection).require_held(lease)
        evidence = self.evidence(target)
        mode, differing = newest(evidence), known_to_differ(evidence)
        left = {table: count - repaired.get(table, 0) for table, count in differing.items()}
        if left == differing:
            return
        said = {**evidence[mode], "differing": {table: count for table, count in left.items() if count > 0}}
        self._write(target, {"evidence": json.dumps({**evidence, mode: said}, ensure_ascii=False)})

    def _write(self, target: str, values: Mapping[str, str | None]) -> None:
        mine = _verification.c.target == target
        now = self.now_us()
        if not self.execute(update(_verification).where(mine).values(**values, updated_us=now)).rowcount:
            self.execute(insert(_verification).values(target=target, **values, updated_us=now))


def newest(evidence: Mapping[str, Mapping[str, Any]]) -> str:
    """The mode of the latest evidence; "" for none."""
    return max(evidence, key=lambda mode: str(evidence[mode]["ended"]), default="")


def known_to_differ(evidence: Mapping[str, Mapping[str, Any]]) -> dict[str, int]:
    """How many rows of each logical table are known to differ: the latest evidence of all modes counts them."""
    mode = newest(evidence)
    return dict(evidence[mode].get("differing", {})) if mode else {}
