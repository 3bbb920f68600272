"""What frees an application is not interrupted halfway.

Whoever tells a process to end may tell it twice: Airflow does, and so does a person who presses Ctrl-C again. The first
signal has the cutover undone; those that come while this is done wait until it is over.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

SIGNALS = (signal.SIGINT, signal.SIGTERM)


@contextmanager
def uninterrupted() -> Iterator[None]:
    """SIGINT and SIGTERM wait for the end of the block, unless it raises: then what it raises ends the process. Python
    handles signals in the main thread only: in another one, nothing interrupts the block."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    waiting: list[int] = []
    former = {number: signal.getsignal(number) for number in SIGNALS}
    for number in SIGNALS:
        signal.signal(number, lambda received, _: waiting.append(received))
    try:
        yield
    finally:
        for number, handler in former.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
    if waiting:
        signal.raise_signal(waiting[0])
