"""Leases: at most one extractor of a pipeline's source moves its position, whatever clocks, pauses and kills do.

The epoch is a fencing token: taking a lease raises it, and every move of a source's position happens under
`require_held`, which locks the lease's row and checks that it has the mover's own epoch and name. The holder of an
expired lease that nobody took may still move: expiry only lets another take it. Times come from the database's clock.
"""

from __future__ import annotations

import secrets
from dataclasses import asdict, replace

from sqlalchemy import ColumnElement, Connection, Row, Update, insert, select, update

from cdc_core.errors import LeaseHeld, LeaseLost, defect
from cdc_core.meta import tables
from cdc_core.meta.database import now_us
from cdc_core.meta.rows import Lease, RingDepth
from cdc_core.meta.scope import pipeline_of
from cdc_core.windows import MICROSECONDS, from_us

_lease = tables.lease


def acquire(connection: Connection, source: str, pipeline: str, holder: str, ttl_s: float) -> Lease:
    """The lease of a source, with an epoch higher than any before. ttl_s: until it expires if it is not renewed.

    Raises RetryLater (lease.held).
    """
    if not holder:
        raise defect("A lease needs a holder.", where=source)
    mine = _of(pipeline, source)
    row = connection.execute(select(_lease).where(mine).with_for_update()).one_or_none()
    now = now_us(connection)
    expires_us = now + round(ttl_s * MICROSECONDS)
    if row is None:
        first = Lease(source, pipeline, holder, 1, expires_us, _new_identity())
        connection.execute(insert(_lease).values(asdict(first)))
        return first
    if row.holder and row.expires_us > now:
        raise LeaseHeld(
            f"The source {source!r} is being extracted by {row.holder} until {from_us(row.expires_us).isoformat()} "
            f"or longer (now {from_us(now).isoformat()}).",
            where=source,
            remedy="wait until it ends or, if it is dead, until its lease expires",
        )
    epoch, identity = row.epoch + 1, row.identity or _new_identity()
    connection.execute(
        update(_lease)
        .where(mine, _lease.c.epoch == row.epoch)
        .values(holder=holder, epoch=epoch, expires_us=expires_us, identity=identity, **_ring(RingDepth()))
    )
    return Lease(source, pipeline, holder, epoch, expires_us, identity)


def is_held(connection: Connection, pipeline: str, source: str) -> bool:
    row = connection.execute(select(_lease).where(_of(pipeline, source))).one_or_none()
    return row is not None and bool(row.holder) and row.expires_us > now_us(connection)


def identity(connection: Connection, source: str) -> str:
    """Lease.identity of the source; "" where nobody ever had a lease of it."""
    mine = _of(pipeline_of(connection), source)
    return connection.execute(select(_lease.c.identity).where(mine)).scalar() or ""


def _of(pipeline: str, source: str) -> ColumnElement[bool]:
    return (_lease.c.pipeline == pipeline) & (_lease.c.source == source)


def find(connection: Connection, source: str) -> Row | None:  # type: ignore[type-arg]
    """The lease of a source of the pipeline that the transaction is for."""
    return connection.execute(select(_lease).where(_of(pipeline_of(connection), source))).one_or_none()


def _new_identity() -> str:
    return secrets.token_hex(8)


def renew(connection: Connection, lease: Lease, ttl_s: float, ring: RingDepth) -> Lease:
    """Valid for ttl_s seconds from now. ring: its state, for `status`. Raises as `require_held`."""
    require_held(connection, lease)
    expires_us = now_us(connection) + round(ttl_s * MICROSECONDS)
    connection.execute(_mine(lease).values(expires_us=expires_us, **_ring(ring)))
    return replace(lease, expires_us=expires_us)


def record_retention(connection: Connection, lease: Lease, retention_s: int) -> None:
    """For how long the source keeps its log, for `status`. Raises as `require_held`."""
    require_held(connection, lease)
    connection.execute(_mine(lease).values(retention_s=retention_s))


def release(connection: Connection, lease: Lease, ring: RingDepth) -> None:
    """The epoch stays: whatever this holder still sends is refused, because the lease has no holder now."""
    require_held(connection, lease)
    connection.execute(_mine(lease).values(holder="", expires_us=0, **_ring(ring)))


def give_back(connection: Connection, lease: Lease) -> None:
    """As `release`; nothing if it is lost."""
    connection.execute(_mine(lease).values(holder="", expires_us=0))


def raise_epoch(connection: Connection, lease: Lease, above: int) -> Lease:
    """The same lease under an epoch higher than `above`: epochs in file names must not come back."""
    require_held(connection, lease)
    epoch = max(lease.epoch, above + 1)
    connection.execute(_mine(lease).values(epoch=epoch))
    return replace(lease, epoch=epoch)


def live_epoch(connection: Connection, source: str) -> int:
    """Epochs below it have ended: nobody holds them, not even a holder whose lease has expired meanwhile."""
    row = find(connection, source)
    if row is None:
        return 0
    return int(row.epoch) if row.holder else int(row.epoch) + 1


def require_held(connection: Connection, lease: Lease) -> None:
    """Lock the lease's row until the transaction ends; RetryLater (lease.lost) when another has it by now."""
    mine = _of(lease.pipeline, lease.source)
    row = connection.execute(select(_lease).where(mine).with_for_update()).one_or_none()
    if row is not None and (row.epoch, row.holder) == (lease.epoch, lease.holder):
        return
    owner = f"{row.holder or 'nobody'} with epoch {row.epoch}" if row is not None else "nobody"
    raise LeaseLost(
        f"The lease of {lease.holder} on source {lease.source!r} (epoch {lease.epoch}) is lost: {owner} has it now.",
        where=lease.source,
        remedy="this extractor has moved nothing since; start it again, it continues from the stored position",
    )


def ring_of(row: Row[tuple[object, ...]]) -> RingDepth:
    """The depth of the ring, as a lease's row has it."""
    return RingDepth(row.ring_items, row.ring_bytes, row.ring_most_items, row.ring_most_bytes)


def _ring(ring: RingDepth) -> dict[str, int]:
    return {
        "ring_items": ring.items,
        "ring_bytes": ring.size_bytes,
        "ring_most_items": ring.most_items,
        "ring_most_bytes": ring.most_bytes,
    }


def _mine(lease: Lease) -> Update:
    return update(_lease).where(held(lease))


def held(lease: Lease) -> ColumnElement[bool]:
    """The row of a lease, as long as its holder has it."""
    mine = _of(lease.pipeline, lease.source)
    return mine & (_lease.c.epoch == lease.epoch) & (_lease.c.holder == lease.holder)
