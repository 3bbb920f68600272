"""Ends a process within seconds, in every phase, after SIGTERM, Ctrl-C or Airflow has told it to end.

The main thread raises SystemExit at once, or after an `uninterrupted` block; the other threads raise it where they call
`leave_if_told`. So everything unwinds: open batches are closed, threads are joined, leases are given back. A process
that has not unwound after GRACE_S, because it waits for a server or computes, ends as if it was killed, but first
performs the actions registered with `at_the_last`: above all, it gives leases back, so that the next attempt begins at
once.
A cutover is `unhurried`: it ends when it is undone.

The state here belongs to the process, as signals do.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from _thread import start_new_thread  # from a signal handler: `threading` has locks that the interrupted code may hold
from collections.abc import Callable, Iterator
from contextlib import contextmanager

GRACE_S = 3.5
"""Airflow kills a task 5 s after it has told it to end."""
_DURABLE_S = 20.0
"""How long an uninterrupted block may take in addition: containers are killed after 30 s."""
_LAST_S = 1.0


class _Process:
    def __init__(self) -> None:
        self.code: int | None = None
        """The exit code, once it was told to end."""
        self.waiting = False
        self.uninterrupted = 0
        """Blocks of the main thread."""
        self.blocks: set[object] = set()
        """Blocks of all threads."""
        self.unhurried = 0
        self.last: dict[Callable[[], None], None] = {}


_process = _Process()


def leave_on_signals() -> None:
    """For the main thread of a command: SIGINT and SIGTERM end it, with the exit codes that shells have for them."""
    _process.code, _process.waiting = None, False
    for number in (signal.SIGINT, signal.SIGTERM):
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, lambda received, _: leave(128 + received))


def leave(code: int) -> None:
    """For signal handlers. Raises SystemExit, unless that was raised before, or has to wait."""
    first, _process.code = _process.code is None, code
    if first and not _process.unhurried:
        start_new_thread(_end, (code,))
    if _process.uninterrupted:
        _process.waiting = True
    elif first or _process.unhurried:
        raise SystemExit(code)


def leave_if_told() -> None:
    """In any thread, between two steps. Raises SystemExit if the process was told to end, and is not `unhurried`: what
    undoes a cutover must not end early."""
    if _process.code is not None and not _process.unhurried:
        raise SystemExit(_process.code)


@contextmanager
def uninterrupted() -> Iterator[None]:
    """A block that begins nothing long. SystemExit waits for its end, unless it raises: then that ends the process."""
    block, main = object(), threading.current_thread() is threading.main_thread()
    _process.uninterrupted += main
    try:
        _process.blocks.add(block)
        yield
    finally:
        _process.blocks.discard(block)
        _process.uninterrupted -= main
    if main and _process.waiting and not _process.uninterrupted:
        _process.waiting = False
        raise SystemExit(_process.code)


@contextmanager
def unhurried() -> Iterator[None]:
    """A block that unwinds for as long as it takes, and that each signal interrupts."""
    _process.unhurried += 1
    try:
        yield
    finally:
        _process.unhurried -= 1
        if _process.code is not None and not _process.unhurried:
            start_new_thread(_end, (_process.code,))


def at_the_last(action: Callable[[], None]) -> None:
    """Registers an action for a process that ends before it has unwound. `unwound` cancels it."""
    _process.last[action] = None


def unwound(action: Callable[[], None]) -> None:
    _process.last.pop(action, None)


def _end(code: int) -> None:
    time.sleep(GRACE_S)
    until_s = time.monotonic() + _DURABLE_S
    while _process.blocks and time.monotonic() < until_s:
        time.sleep(0.05)
    for action in reversed(list(_process.last)):
        thread = threading.Thread(target=action, daemon=True)
        thread.start()
        thread.join(_LAST_S)
    os._exit(code)
