"""The ring: bounded memory between the thread that reads the log and the thread that stages it.

Theory of operation
    The ring holds blocks in stream order. Three cursors count items, and only ever grow:

        acked <= taken <= published          published - acked <= items

    An item is a captured row or an entry's end: an entry weighs `rows + 1` items, so that a stretch without rows
    weighs one. In mode "both" (the default) the held entries' `size_bytes` is bounded as well, by `size_bytes`,
    which is `items * MEMORY_UNIT` unless given. Cursors are always on entry boundaries. A boundary is named by an
    AckPoint (file, offset, commit time); `take` returns stretches between boundaries and `ack` frees them.

    One producer, one consumer; any thread may call close, fail, stats and the positions.

    call                 acked          taken          published      refused, and nothing moves, when
    put, try_put         .              .              + block        closed; gap after what was published; full (False)
    take, try_take       .              + 1..n entries .              nothing there (None)
    ack(point)           = point        .              .              point is not a boundary in (acked, taken]
    clean_until(p)       <= p           .              .              p lies beyond taken
    rollback             .              = acked        .              never
    clear                = published    = published    .              never
    close                .              .              .              (puts raise RingClosed; takes drain what is there)
    fail(error)          .              .              .              (puts and takes raise the error, on both sides)

    A block of more items or bytes than the whole ring is accepted alone, when nothing unacknowledged is held: it
    is in memory already, and refusing it would stop the source for good. `stats().oversized` counts these.

    A transaction larger than a block comes as PART entries. Their ends are boundaries too: acking one frees its
    memory, but `resume_position`, where another extractor would begin, stays at the last boundary that is not a PART's.
    When all is taken and the producer waits for space, only the consumer can continue: `starved` is then true and
    `take` returns None at once, so that the consumer writes what it has collected and acks.

    Acked entries of a block that is not acked to its end still hold their share of the block's buffers: memory
    exceeds the account by less than one block.
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from typing import Literal

from cdc_core.errors import InternalError, UsageError, defect
from cdc_core.model.block import Block
from cdc_core.model.position import Position
from cdc_core.ring.boundary import AckPoint, Edge, RingStats, Taken
from cdc_core.ring.cursors import Cursors, RingBlock

MEMORY_UNIT = 1024
"""Bytes that one item may weigh on average before the byte limit binds, unless `size_bytes` says otherwise."""


class RingClosed(InternalError):
    """A put into a closed ring: the consumer has ended, or the producer closed too early. Nothing was published."""


@dataclass(slots=True)
class _Account:
    """Statistics beside the cursors: high water, and waits of each side."""

    high_items: int = 0
    high_bytes: int = 0
    oversized: int = 0
    put_waits: int = 0
    put_wait_s: float = 0.0
    take_waits: int = 0
    take_wait_s: float = 0.0


class Ring:
    """See the module's docstring.

    items:         a power of two.
    size_bytes:    a multiple of MEMORY_UNIT; default items * MEMORY_UNIT; not looked at in mode "items".
    ddl_isolation: an entry of DDL is taken alone.

    Raises UsageError (config.invalid) for sizes it cannot have.
    """

    def __init__(
        self,
        items: int,
        size_bytes: int | None = None,
        *,
        mode: Literal["items", "both"] = "both",
        ddl_isolation: bool = True,
    ) -> None:
        limit = items * MEMORY_UNIT if size_bytes is None else size_bytes
        if items < 1 or items & (items - 1) or limit < MEMORY_UNIT or limit % MEMORY_UNIT:
            raise UsageError(
                f"A ring cannot have {items} items and {limit} bytes.",
                code="config.invalid",
                remedy=f"set limits.ring_items to a power of two, and the bytes to a multiple of {MEMORY_UNIT}",
            )
        self.items = items
        self.size_bytes = limit
        self._bounded_bytes = mode == "both"
        self._at = Cursors(ddl_isolation=ddl_isolation)
        self._account = _Account()
        self._waiting: RingBlock | None = None  # the block that a put waits to publish
        self._closed = False
        self._error: BaseException | None = None
        self._lock = threading.Lock()
        self._room = threading.Condition(self._lock)
        self._data = threading.Condition(self._lock)

    # The producer's side

    def put(self, block: Block, timeout_s: float | None = None) -> bool:
        """Publishes a block, waiting for space; False when there is none within the timeout (nothing was published).

        Raises RingClosed (internal.defect), DataAtRisk (internal.defect) for a block that does not continue what was
        published, InternalError (internal.defect) for one without entries, and the error given to `fail`.
        """
        held = RingBlock.of(block)
        with self._lock:
            self._check_put(block)
            if not self._fits(held) and not self._wait_for_room(held, timeout_s):
                return False
            self._publish(held)
            return True

    def try_put(self, block: Block) -> bool:
        """`put` without waiting."""
        return self.put(block, timeout_s=0)

    def close(self) -> None:
        """No more puts. What is held can still be taken and acked; a waiting put raises RingClosed."""
        with self._lock:
            self._closed = True
            self._wake()

    def fail(self, error: BaseException) -> None:
        """Both sides get this error, now if they wait, else at their next put or take. Later errors are ignored."""
        with self._lock:
            if self._error is None:
                self._error = error
            self._closed = True
            self._wake()

    # The consumer's side

    def take(
        self, max_items: int | None = None, max_bytes: int | None = None, timeout_s: float | None = None
    ) -> Taken | None:
        """The next entries, as many as the limits allow and at least one; waits while there are none.

        None after the timeout, when the ring is closed and all is taken (`drained`), and at once when `starved`.
        Raises the error given to `fail`, even when something is left to take: it is still in the log.
        """
        with self._lock:
            self._check_error()
            if self._nothing_left() and not self._wait_for_data(timeout_s):
                return None
            return self._at.advance(max_items, max_bytes)

    def try_take(self, max_items: int | None = None, max_bytes: int | None = None) -> Taken | None:
        """`take` without waiting."""
        return self.take(max_items, max_bytes, timeout_s=0)

    def ack(self, point: AckPoint) -> None:
        """Frees everything up to a boundary that was taken and not yet acked.

        Raises InternalError (internal.defect) for any other point; nothing moves then.
        """
        with self._lock:
            found = self._at.find(point)
            if found is None:
                raise defect(
                    f"{point} is not an entry boundary between the acknowledged and the taken position.",
                    where=f"acked {self._at.acked_position}, taken up to {self._at.taken_position()}",
                    first="nothing moved; run again",
                )
            self._at.free(found)
            self._room.notify_all()

    def clean_until(self, position: Position) -> int:
        """Acks every taken entry that ends at or before a position; returns the items freed.

        Raises InternalError (internal.defect) for a position beyond what was taken; nothing moves then.
        """
        with self._lock:
            taken = self._at.taken_position()
            if taken is None or position > taken:
                raise defect(
                    f"The ring cannot be cleaned up to {position}, which was never taken.",
                    where=f"taken up to {taken}",
                    first="nothing moved; run again",
                )
            before = self._at.acked
            found = self._at.last_before(position)
            if found is not None:
                self._at.free(found)
                self._room.notify_all()
            return self._at.acked - before

    def rollback(self) -> Position | None:
        """The next take begins after the last ack again: at the returned position.

        That equals `resume_position` unless the last ack lies inside an open transaction.
        """
        with self._lock:
            self._at.rollback()
            return self._at.acked_position

    def clear(self) -> None:
        """Drops all that is held, taken or not; the next put may begin anywhere. `resume_position` stays."""
        with self._lock:
            self._at.clear()
            self._room.notify_all()

    # For any thread

    @property
    def starved(self) -> bool:
        """All is taken, and a put waits for space: only an ack allows progress."""
        with self._lock:
            return self._starved()

    @property
    def drained(self) -> bool:
        """Closed, and all is taken."""
        with self._lock:
            return self._closed and self._nothing_left()

    @property
    def closed(self) -> bool:
        with self._lock:
            return self._closed

    @property
    def resume_position(self) -> Position | None:
        """Where another extractor begins without losing or repeating what was acked; None before the first put."""
        with self._lock:
            return self._at.resume

    def first_position(self) -> Edge | None:
        """Where the oldest unacked entry begins (included), or where the next one will (not included)."""
        with self._lock:
            position = self._at.acked_position
            return None if position is None else Edge(position, self._at.depth_items > 0)

    def latest_position(self) -> Edge | None:
        """Where the newest entry ends; not included once that entry is acked or cleared."""
        with self._lock:
            position = self._at.latest
            return None if position is None else Edge(position, self._at.depth_items > 0)

    def stats(self) -> RingStats:
        with self._lock:
            at, account = self._at, self._account
            return RingStats(
                published=at.published,
                taken=at.taken,
                acked=at.acked,
                depth_items=at.depth_items,
                depth_bytes=at.depth_bytes,
                high_water_items=account.high_items,
                high_water_bytes=account.high_bytes,
                oversized=account.oversized,
                put_waits=account.put_waits,
                put_wait_s=account.put_wait_s,
                take_waits=account.take_waits,
                take_wait_s=account.take_wait_s,
            )

    # Inside: the lock is held

    def _wake(self) -> None:
        self._room.notify_all()
        self._data.notify_all()

    def _nothing_left(self) -> bool:
        return self._at.taken == self._at.published

    def _starved(self) -> bool:
        return self._waiting is not None and self._nothing_left() and not self._fits(self._waiting)

    def _check_error(self) -> None:
        if self._error is not None:
            raise self._error

    def _check_put(self, block: Block) -> None:
        self._check_error()
        if self._closed:
            raise RingClosed(
                "The ring is closed: its consumer has ended.",
                where=f"{block.source} {block.begin}",
                remedy="see the error of the consumer",
            )
        if not len(block.entries):
            raise defect(
                "A block has no entries, so nothing of it could be acknowledged.",
                where=f"{block.source} {block.begin}",
                first="nothing is lost",
            )
        if not self._at.continues(block.begin):
            raise defect(
                f"A block begins at {block.begin}, but the one before it ended at {self._at.latest}.",
                where=block.source,
                first="start the extractor again: it continues at the last staged position",
            )

    def _fits(self, held: RingBlock) -> bool:
        if not self._at.depth_items:
            return True
        if self._at.depth_items + held.items[-1] > self.items:
            return False
        return not self._bounded_bytes or self._at.depth_bytes + int(held.sizes[-1]) <= self.size_bytes

    def _wait_for_room(self, held: RingBlock, timeout_s: float | None) -> bool:
        if timeout_s is not None and timeout_s <= 0:
            return False
        began = time.monotonic()
        self._account.put_waits += 1
        self._waiting = held
        self._data.notify_all()  # a consumer that waits may be starved from now on
        try:
            self._room.wait_for(lambda: self._fits(held) or self._closed, timeout_s)
        finally:
            self._waiting = None
            self._account.put_wait_s += time.monotonic() - began
        self._check_put(held.block)
        return self._fits(held)

    def _publish(self, held: RingBlock) -> None:
        account = self._account
        self._at.publish(held)
        account.oversized += int(held.items[-1]) > self.items or (
            self._bounded_bytes and int(held.sizes[-1]) > self.size_bytes
        )
        account.high_items = max(account.high_items, self._at.depth_items)
        account.high_bytes = max(account.high_bytes, self._at.depth_bytes)
        self._data.notify_all()

    def _wait_for_data(self, timeout_s: float | None) -> bool:
        def ready() -> bool:
            return not self._nothing_left() or self._starved() or self._closed

        if (timeout_s is None or timeout_s > 0) and not ready():
            began = time.monotonic()
            self._account.take_waits += 1
            self._data.wait_for(ready, timeout_s)
            self._account.take_wait_s += time.monotonic() - began
        self._check_error()
        return not self._nothing_left()
