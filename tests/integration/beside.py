"""Work that goes on in threads while a block runs."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def beside(*works: Callable[[], None]) -> Iterator[None]:
    """Runs each again and again until the block ends; a failure of one is raised then."""
    stop = threading.Event()
    failed: list[BaseException] = []

    def again(work: Callable[[], None]) -> None:
        try:
            while not stop.is_set():
                work()
        except BaseException as error:  # noqa: BLE001
            failed.append(error)

    threads = [threading.Thread(target=again, args=(work,)) for work in works]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    if failed:
        raise failed[0]
