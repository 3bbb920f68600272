"""Signals wait while what a cutover has made is undone."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator

import pytest

from cdc_core.cutover.uninterrupted import SIGNALS, uninterrupted


@pytest.fixture(autouse=True)
def terminated() -> Iterator[None]:
    """SIGTERM as a command has it."""

    def leave(number: int, frame: object) -> None:
        raise SystemExit(128 + number)

    former = signal.signal(signal.SIGTERM, leave)
    yield
    signal.signal(signal.SIGTERM, former)


@pytest.mark.parametrize(
    ("sent", "raised"), [((signal.SIGTERM, signal.SIGINT), SystemExit), ((signal.SIGINT,), KeyboardInterrupt)]
)
def test_a_signal_waits_for_the_end_of_the_block(sent: tuple[signal.Signals, ...], raised: type[BaseException]) -> None:
    before, done = [signal.getsignal(number) for number in SIGNALS], []

    def undo() -> None:
        with uninterrupted():
            for number in sent:
                os.kill(os.getpid(), number)
            done.append("undone")

    with pytest.raises(raised):
        undo()
    assert done == ["undone"]
    assert [signal.getsignal(number) for number in SIGNALS] == before


def test_an_error_of_the_block_is_not_replaced_by_a_signal() -> None:
    before = signal.getsignal(signal.SIGTERM)

    def undo() -> None:
        with uninterrupted():
            os.kill(os.getpid(), signal.SIGTERM)
            raise ValueError("not undone")

    with pytest.raises(ValueError, match="not undone"):
        undo()
    assert signal.getsignal(signal.SIGTERM) == before


def test_in_another_thread_no_handler_is_changed() -> None:
    before, seen = signal.getsignal(signal.SIGTERM), []

    def work() -> None:
        with uninterrupted():
            seen.append(signal.getsignal(signal.SIGTERM))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [before]
