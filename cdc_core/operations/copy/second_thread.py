"""Rows are encoded in a second thread while the next ones are read: neither waits for the other's part of the work.

It must keep true that rows are taken in the order in which they were handed over, one batch at a time; that few batches
wait, so that memory stays bounded; and that no rows are taken any more once the block has ended, however it ended.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future, wait
from contextlib import contextmanager

import pyarrow as pa

WAITING = 2
"""Batches that are handed over and not yet taken, the one that is being taken included."""

Take = Callable[[pa.RecordBatch], None]


@contextmanager
def taking(take: Take, thread: Executor) -> Iterator[Take]:
    """A function that hands rows to `take` in a second thread. Nothing else may use what `take` uses meanwhile.

    thread: of one worker. One for many blocks: memory that a thread has used is not always there for the next thread.

    Hand-over waits while WAITING batches are not yet taken, and raises what `take` has raised; so does the end of the
    block, where all rows are taken. A block that raises drops the rows that wait.
    """
    pending: deque[Future[None]] = deque()

    def hand_over(rows: pa.RecordBatch) -> None:
        while len(pending) >= WAITING or (pending and pending[0].done()):
            pending.popleft().result()
        pending.append(thread.submit(take, rows))

    try:
        yield hand_over
        while pending:
            pending.popleft().result()
    finally:
        for future in pending:
            future.cancel()
        wait(pending)
