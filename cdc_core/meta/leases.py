"""Leases: at most one process extracts a source, copies its tables, purges, verifies a target, alters its shards, fills
it, or moves a cutover, whatever clocks, pauses and kills do.

One table has all of them, by name: a source's lease has the name of the source, the others a prefix that no source can
have. `held` is how a process has one.

The epoch is a fencing token: taking a lease raises it, and whatever happens under a lease begins with `require_held`,
which locks its row and checks that it has the mover's own epoch and name. The holder of an expired lease that nobody
took may still move: expiry only lets another take it. Times come from the database's clock.
"""

from __future__ import annotations

import logging
import secrets
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, replace

from sqlalchemy import ColumnElement, Connection, Row, Update, insert, select, update

from cdc_core.errors import LeaseHeld, LeaseLost, LockstepError, RetryLater, defect
from cdc_core.meta.database import Database
from cdc_core.meta.meta_rows import Lease, RingDepth
from cdc_core.meta.meta_schema import lease as _lease
from cdc_core.meta.repository import Repository, reads, writes
from cdc_core.model.windows import MICROSECONDS, from_us
from cdc_core.process.leaving import at_the_last, unwound

log = logging.getLogger(__name__)

_NO_RING = RingDepth()


class Leases(Repository):
    def __init__(self, at: Database | Connection, holds: dict[tuple[str, str], Lease] | None = None) -> None:
        super().__init__(at)
        self._holds = {} if holds is None else holds
        """Leases that this process has taken and not given back, by pipeline and name."""

    def of(self, database: Database) -> Leases:
        """The leases of another pipeline."""
        return Leases(database, self._holds)

    @contextmanager
    def held(
        self,
        source: str,
        holder: str,
        ttl_s: float,
        *,
        taken: RetryLater | None = None,
        ring: Callable[[], RingDepth] = RingDepth,
        lost: Callable[[LockstepError], None] | None = None,
    ) -> Iterator[Lease]:
        """The lease, renewed until the block ends.

        ttl_s: how long a killed holder keeps it. ring: of an extractor, for `status`. lost: receives the error by which
        the lease cannot be renewed; without it, whatever needs the lease will say so.

        Raises `taken`, or else RetryLater (lease.held), if another process has it.
        """
        try:
            lease = self.acquire(source, holder, ttl_s)
        except LeaseHeld:
            if taken is None:
                raise
            raise taken from None
        ending = threading.Event()

        def keep() -> None:
            while not ending.wait(ttl_s / 3):
                try:
                    self.renew(lease, ttl_s, ring())
                except LockstepError as error:
                    if lost is not None and (not error.retriable or isinstance(error, LeaseLost)):
                        lost(error)
                        return
                    log.warning("%s: the lease could not be renewed: %s", source, error)

        keeper = threading.Thread(target=keep, name=f"lease-{source}", daemon=True)
        keeper.start()
        try:
            yield lease
        finally:
            ending.set()
            keeper.join()
            with suppress(LockstepError):  # a meta database that is down must not fail the exit
                self.release(self._holds.get((lease.pipeline, source), lease), ring())

    def acquire(self, source: str, holder: str, ttl_s: float) -> Lease:
        """The lease under a new epoch, until it is released. ttl_s: until it expires if it is not renewed.

        Raises RetryLater (lease.held).
        """
        at_the_last(self._give_all_back)
        database = self._database
        named = database.pipeline, source
        before = self._holds.get(named)

        def take(connection: Connection) -> Lease:
            # Before the transaction ends: a signal may come once it is taken and before we know.
            lease = self._holds[named] = self.within(connection)._take(source, holder, ttl_s)
            return lease

        try:
            return database.write(take)
        except Exception:
            self._holds.pop(named, None)
            if before is not None:
                self._holds[named] = before
            raise

    def release(self, lease: Lease, ring: RingDepth | None = None) -> None:
        """Gives the lease up at once, unless another has taken it. The epoch stays: whatever this holder still sends is
        refused, because the lease has no holder now."""
        values = {"holder": "", "expires_us": 0, **({} if ring is None else _ring(ring))}
        self._database.write(lambda connection: connection.execute(_mine(lease).values(values)))
        self._holds.pop((lease.pipeline, lease.source), None)

    def note_raised(self, lease: Lease) -> None:
        """A lease of this process has this epoch now."""
        self._holds[lease.pipeline, lease.source] = lease

    def give_back(self) -> None:
        """Leases that are still held, because a signal came when they were taken."""
        unwound(self._give_all_back)
        self._give_all_back()

    def _give_all_back(self) -> None:
        for lease in list(self._holds.values()):
            with suppress(LockstepError):
                self.release(lease)

    def _take(self, source: str, holder: str, ttl_s: float) -> Lease:
        if not holder:
            raise defect("A lease needs a holder.", where=source)
        mine = _of(self.pipeline, source)
        row = self.execute(select(_lease).where(mine).with_for_update()).one_or_none()
        now = self.now_us()
        expires_us = now + round(ttl_s * MICROSECONDS)
        if row is None:
            first = Lease(source, self.pipeline, holder, 1, expires_us, _new_identity())
            self.execute(insert(_lease).values(asdict(first)))
            return first
        if row.holder and row.expires_us > now:
            raise LeaseHeld(
                f"The source {source!r} is being extracted by {row.holder} until {from_us(row.expires_us).isoformat()} "
                f"or longer (now {from_us(now).isoformat()}).",
                where=source,
                remedy="wait until it ends or, if it is dead, until its lease expires",
            )
        epoch, identity = row.epoch + 1, row.identity or _new_identity()
        self.execute(
            update(_lease)
            .where(mine, _lease.c.epoch == row.epoch)
            .values(holder=holder, epoch=epoch, expires_us=expires_us, identity=identity, **_ring(RingDepth()))
        )
        return Lease(source, self.pipeline, holder, epoch, expires_us, identity)

    def is_held(self, pipeline: str, source: str) -> bool:
        """Whether a process has the lease of that pipeline."""
        row = self.execute(select(_lease).where(_of(pipeline, source))).one_or_none()
        return row is not None and bool(row.holder) and row.expires_us > self.now_us()

    @reads
    def identity(self, source: str) -> str:
        """Lease.identity of the source; "" where nobody ever had a lease of it."""
        return self.execute(select(_lease.c.identity).where(_of(self.pipeline, source))).scalar() or ""

    def find(self, source: str) -> Row | None:  # type: ignore[type-arg]
        """The lease of a source of the pipeline that the transaction is for."""
        return self.execute(select(_lease).where(_of(self.pipeline, source))).one_or_none()

    @writes
    def renew(self, lease: Lease, ttl_s: float, ring: RingDepth = _NO_RING) -> Lease:
        """Valid for ttl_s seconds from now. ring: its state, for `status`. Raises as `require_held`."""
        self.require_held(lease)
        expires_us = self.now_us() + round(ttl_s * MICROSECONDS)
        self.execute(_mine(lease).values(expires_us=expires_us, **_ring(ring)))
        return replace(lease, expires_us=expires_us)

    @writes
    def record_retention(self, lease: Lease, retention_s: int) -> None:
        """For how long the source keeps its log, for `status`. Raises as `require_held`."""
        self.require_held(lease)
        self.execute(_mine(lease).values(retention_s=retention_s))

    def raise_epoch(self, lease: Lease, above: int) -> Lease:
        """The same lease under an epoch higher than `above`: epochs in file names must not come back."""
        self.require_held(lease)
        epoch = max(lease.epoch, above + 1)
        self.execute(_mine(lease).values(epoch=epoch))
        return replace(lease, epoch=epoch)

    @reads
    def live_epoch(self, source: str) -> int:
        """Epochs below it have ended: nobody holds them, not even a holder whose lease has expired meanwhile."""
        row = self.find(source)
        if row is None:
            return 0
        return int(row.epoch) if row.holder else int(row.epoch) + 1

    def require_held(self, lease: Lease) -> None:
        """Lock the lease's row until the transaction ends; RetryLater (lease.lost) when another has it by now."""
        mine = _of(lease.pipeline, lease.source)
        row = self.execute(select(_lease).where(mine).with_for_update()).one_or_none()
        if row is not None and (row.epoch, row.holder) == (lease.epoch, lease.holder):
            return
        owner = f"{row.holder or 'nobody'} with epoch {row.epoch}" if row is not None else "nobody"
        raise LeaseLost(
            f"The lease of {lease.holder} on source {lease.source!r} (epoch {lease.epoch}) is lost: {owner} has it "
            "now.",
            where=lease.source,
            remedy="this extractor has moved nothing since; start it again, it continues from the stored position",
        )


def _of(pipeline: str, source: str) -> ColumnElement[bool]:
    return (_lease.c.pipeline == pipeline) & (_lease.c.source == source)


def _new_identity() -> str:
    return secrets.token_hex(8)


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
    return update(_lease).where(held_by(lease))


def held_by(lease: Lease) -> ColumnElement[bool]:
    """The row of a lease, as long as its holder has it."""
    mine = _of(lease.pipeline, lease.source)
    return mine & (_lease.c.epoch == lease.epoch) & (_lease.c.holder == lease.holder)
