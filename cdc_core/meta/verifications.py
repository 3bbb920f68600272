"""Verifications of targets: how far the one under way is, and what the latest of each mode has found.

Every change happens under the verifier's lease. The evidence itself is on the stage; meta has a summary of it, so that
`lockstep status` and the page need not read the stage.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from sqlalchemy import Connection, insert, select, update

from cdc_core.meta import leases, tables
from cdc_core.meta.database import now_us
from cdc_core.meta.rows import Lease, Verification
from cdc_core.windows import from_us

_verification = tables.verification


def find(connection: Connection, pipeline: str) -> tuple[Verification, ...]:
    """Of all targets of a pipeline that a verification has begun for, by name."""
    rows = connection.execute(
        select(_verification).where(_verification.c.pipeline == pipeline).order_by(_verification.c.target)
    )
    return tuple(
        Verification(row.target, row.progress or "", json.loads(row.evidence or "{}"), row.updated_us) for row in rows
    )


def keep_progress(connection: Connection, lease: Lease, pipeline: str, target: str, progress: str | None) -> None:
    """progress: a document; None where no verification is under way any more. Raises RetryLater (lease.lost)."""
    leases.require_held(connection, lease)
    _write(connection, pipeline, target, {"progress": progress})


def finish(
    connection: Connection, lease: Lease, pipeline: str, target: str, mode: str, evidence: Mapping[str, Any]
) -> None:
    """The verification under way has ended with this evidence, a summary. Raises RetryLater (lease.lost)."""
    leases.require_held(connection, lease)
    known = next((one.evidence for one in find(connection, pipeline) if one.target == target), {})
    kept = json.dumps({**known, mode: dict(evidence)}, ensure_ascii=False)
    _write(connection, pipeline, target, {"progress": None, "evidence": kept})


def doubt(
    connection: Connection,
    lease: Lease,
    pipeline: str,
    target: str,
    mode: str,
    why: str,
    differing: Mapping[str, int],
) -> None:
    """What verifications that have begun before now say does not count any more. mode: under which it is kept. why:
    for people. differing: by logical table, rows that are known to differ. Raises RetryLater (lease.lost)."""
    leases.require_held(connection, lease)
    known = next((one.evidence for one in find(connection, pipeline) if one.target == target), {})
    former = known[newest(known)].get("differing", {}) if known else {}
    said = {
        "ended": from_us(now_us(connection)).isoformat(),
        "why": why,
        "equal": None,
        "differences": sum(differing.values()),
        "differing": {**former, **differing},
    }
    _write(connection, pipeline, target, {"evidence": json.dumps({**known, mode: said}, ensure_ascii=False)})


def forget_differences(
    connection: Connection, lease: Lease, pipeline: str, target: str, repaired: Mapping[str, int]
) -> None:
    """repaired: by logical table, how many rows that differed are equal now. Raises RetryLater (lease.lost)."""
    leases.require_held(connection, lease)
    known = next((one.evidence for one in find(connection, pipeline) if one.target == target), {})
    mode = newest(known)
    differing = dict(known[mode].get("differing", {})) if mode else {}
    left = {table: count - repaired.get(table, 0) for table, count in differing.items()}
    if left == differing:
        return
    said = {**known[mode], "differing": {table: count for table, count in left.items() if count > 0}}
    _write(connection, pipeline, target, {"evidence": json.dumps({**known, mode: said}, ensure_ascii=False)})


def newest(evidence: Mapping[str, Mapping[str, Any]]) -> str:
    """The mode of the latest evidence, whose `differing` counts all differences that are known; "" for none."""
    return max(evidence, key=lambda mode: str(evidence[mode]["ended"]), default="")


def _write(connection: Connection, pipeline: str, target: str, values: Mapping[str, str | None]) -> None:
    mine = (_verification.c.pipeline == pipeline) & (_verification.c.target == target)
    now = now_us(connection)
    if not connection.execute(update(_verification).where(mine).values(**values, updated_us=now)).rowcount:
        connection.execute(insert(_verification).values(pipeline=pipeline, target=target, **values, updated_us=now))
