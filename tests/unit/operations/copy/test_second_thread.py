"""Rows that are handed to a second thread are all taken in order, or the block raises."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pyarrow as pa
import pytest

from cdc_core.operations.copy.second_thread import WAITING, taking


def rows(number: int) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict({"n": [number]})


def number_of(batch: pa.RecordBatch) -> int:
    return int(batch.column("n")[0].as_py())


def test_all_rows_are_taken_in_order_by_another_thread() -> None:
    taken: list[int] = []
    threads: set[int] = set()

    def take(batch: pa.RecordBatch) -> None:
        threads.add(threading.get_ident())
        taken.append(number_of(batch))

    with ThreadPoolExecutor(1) as thread, taking(take, thread) as hand_over:
        for number in range(100):
            hand_over(rows(number))
    assert taken == list(range(100))
    assert len(threads) == 1
    assert threading.get_ident() not in threads


def test_the_reader_waits_for_the_second_thread_so_that_few_batches_are_in_memory() -> None:
    taken: list[int] = []
    go_on = threading.Event()
    handed: list[int] = []
    most = 0

    def take(batch: pa.RecordBatch) -> None:
        nonlocal most
        go_on.wait()
        most = max(most, len(handed) - len(taken))
        taken.append(number_of(batch))

    def read() -> None:
        with ThreadPoolExecutor(1) as thread, taking(take, thread) as hand_over:
            for number in range(10):
                hand_over(rows(number))
                handed.append(number)

    reader = threading.Thread(target=read)
    reader.start()
    while len(handed) < WAITING:
        time.sleep(0.001)
    reader.join(0.1)  # for what must not be handed over
    assert len(handed) == WAITING
    go_on.set()
    reader.join()
    assert taken == list(range(10))
    assert most <= WAITING + 1


@pytest.mark.parametrize("bad", [0, 5, 9])
def test_an_error_of_the_second_thread_ends_the_block(bad: int) -> None:
    def take(batch: pa.RecordBatch) -> None:
        if number_of(batch) == bad:
            raise OSError("disk full")

    handed: list[int] = []

    def read() -> None:
        with ThreadPoolExecutor(1) as thread, taking(take, thread) as hand_over:
            for number in range(10):
                hand_over(rows(number))
                handed.append(number)

    with pytest.raises(OSError, match="disk full"):
        read()
    assert len(handed) <= bad + WAITING


def test_nothing_is_taken_any_more_once_the_block_has_raised() -> None:
    taken: list[int] = []
    begun, go_on = threading.Event(), threading.Event()

    def take(batch: pa.RecordBatch) -> None:
        begun.set()
        go_on.wait()
        taken.append(number_of(batch))

    def read() -> None:
        with ThreadPoolExecutor(1) as thread, taking(take, thread) as hand_over:
            for number in range(WAITING):
                hand_over(rows(number))
            begun.wait()
            threading.Timer(0.05, go_on.set).start()
            raise KeyError

    with pytest.raises(KeyError):
        read()
    assert taken == [0]
