"""The ring: bounded memory between the thread that reads the log and the thread that stages it.

Theory of operation
    The ring holds blocks in stream order. Three cursors count items, and only ever grow:

        acked <= taken <= published          published - acked <= items

    An item is a captured row or an entry's end: an entry weighs `rows + 1` items, so that a stretch without rows
    weighs one. The held entries' `size_bytes` is bounded as well, by `size_bytes`, which is `items * MEMORY_UNIT`
    unless given. Cursors are always on entry boundaries. A boundary is named by an AckPoint (file, offset, commit
    time); `take` returns stretches between boundaries and `ack` frees them.

    One producer, one consumer; any thread may call close, fail and stats.

    call           acked      taken             published   refused, and nothing moves, when
    put            .          .                 + block     closed; gap after what was published; full (False)
    take           .          = published, or   .           nothing there ()
                              up to a DDL or
                              after it
    ack(point)     = point    .                 .           point is not a boundary in (acked, taken]
    rollback       .          = acked           .           never
    close          .          .                 .           (puts raise RingClosed; takes drain what is there)
    fail(error)    .          .                 .           (puts and takes raise the error, on both sides)

    A block of more items or bytes than the whole ring is accepted alone, when nothing unacknowledged is held: it
    is in memory already, and refusing it would stop the source for good.

    A transaction larger than a block comes as PART entries. Their ends are boundaries too: acking one frees its
    memory. An entry of DDL is taken alone, so that what comes after it can be treated by its definition.
    When all is taken and the producer waits for space, only the consumer can continue: `starved` is then true and
    `take` returns at once, so that the consumer writes what it has collected and acks.

    Acked entries of a block that is not acked to its end still hold their share of the block's buffers: memory
    exceeds the account by less than one block.
"""

from __future__ import annotations

import threading

from cdc_core.errors import InternalError, UsageError, defect
from cdc_core.model.block import Block
from cdc_core.ring.boundary import AckPoint, RingStats
from cdc_core.ring.cursors import Cursors, RingBlock

MEMORY_UNIT = 1024
"""Bytes that one item may weigh on average before the byte limit binds, unless `size_bytes` says otherwise."""


class RingClosed(InternalError):
    """A put into a closed ring: the consumer has ended, or the producer closed too early. Nothing was published."""


class Ring:
    """See the module's docstring.

    items:      a power of two.
    size_bytes: a multiple of MEMORY_UNIT; default items * MEMORY_UNIT.

    Raises UsageError (config.invalid) for sizes it cannot have.
    """

    def __init__(self, items: int, size_bytes: int | None = None) -> None:
        limit = items * MEMORY_UNIT if size_bytes is None else size_bytes
        if items < 1 or items & (items - 1) or limit < MEMORY_UNIT or limit % MEMORY_UNIT:
            raise UsageError(
                f"A ring cannot have {items} items and {limit} bytes.",
                code="config.invalid",
                remedy=f"set limits.ring_items to a power of two, and the bytes to a multiple of {MEMORY_UNIT}",
            )
        self.items = items
        self.size_bytes = limit
        self._at = Cursors()
        self._high_items = self._high_bytes = 0
        self._put_waits = self._take_waits = 0
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

    def take(self, timeout_s: float | None = None) -> tuple[Block, ...]:
        """What was published since the last take, up to an entry of DDL, or that alone; waits while there is nothing.

        () after the timeout, when the ring is closed and all is taken (`drained`), and at once when `starved`.
        Raises the error given to `fail`, even when something is left to take: it is still in the log.
        """
        with self._lock:
            self._check_error()
            if self._nothing_left() and not self._wait_for_data(timeout_s):
                return ()
            return self._at.advance()

    def ack(self, point: AckPoint) -> None:
        """Frees everything up to a boundary that was taken and not yet acked.

        Raises InternalError (internal.defect) for any other point; nothing moves then.
        """
        with self._lock:
            found = self._at.find(point)
            if found is None:
                raise defect(
                    f"{point} is not an entry boundary between the acknowledged and the taken position.",
                    where=f"{self._at.acked} items acked, {self._at.taken} taken",
                    first="nothing moved; run again",
                )
            self._at.free(found)
            self._room.notify_all()

    def rollback(self) -> None:
        """The next take begins after the last ack again."""
        with self._lock:
            self._at.rollback()

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

    def stats(self) -> RingStats:
        with self._lock:
            at = self._at
            return RingStats(
                published=at.published,
                taken=at.taken,
                acked=at.acked,
                depth_items=at.depth_items,
                depth_bytes=at.depth_bytes,
                high_water_items=self._high_items,
                high_water_bytes=self._high_bytes,
                put_waits=self._put_waits,
                take_waits=self._take_waits,
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
        items, size = self._at.depth_items + int(held.items[-1]), self._at.depth_bytes + int(held.sizes[-1])
        return items <= self.items and size <= self.size_bytes

    def _wait_for_room(self, held: RingBlock, timeout_s: float | None) -> bool:
        if timeout_s is not None and timeout_s <= 0:
            return False
        self._put_waits += 1
        self._waiting = held
        self._data.notify_all()  # a consumer that waits may be starved from now on
        try:
            self._room.wait_for(lambda: self._fits(held) or self._closed, timeout_s)
        finally:
            self._waiting = None
        self._check_put(held.block)
        return self._fits(held)

    def _publish(self, held: RingBlock) -> None:
        self._at.publish(held)
        self._high_items = max(self._high_items, self._at.depth_items)
        self._high_bytes = max(self._high_bytes, self._at.depth_bytes)
        self._data.notify_all()

    def _wait_for_data(self, timeout_s: float | None) -> bool:
        def ready() -> bool:
            return not self._nothing_left() or self._starved() or self._closed

        if (timeout_s is None or timeout_s > 0) and not ready():
            self._take_waits += 1
            self._data.wait_for(ready, timeout_s)
        self._check_error()
        return not self._nothing_left()
