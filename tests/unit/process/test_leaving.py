"""A process that is told to end: what waits, what is interrupted, and what is done if it does not unwind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from sqlalchemy import Connection

from cdc_core.errors import RetryLater
from cdc_core.meta import Meta
from cdc_core.operations.extract import side_by_side
from cdc_core.operations.open_pipeline import open_pipeline
from cdc_core.process import leaving
from cdc_core.process.leaving import leave_if_told, unhurried, uninterrupted
from tests.lab.made_line import pipeline


@pytest.fixture(autouse=True)
def ending(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """Signals as a command has them; the exit codes with which this process would be ended after a while."""
    codes: list[int] = []
    monkeypatch.setattr(leaving, "_process", leaving._Process())
    monkeypatch.setattr(leaving, "start_new_thread", lambda _, arguments: codes.extend(arguments))
    former = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    signal.signal(signal.SIGINT, signal.default_int_handler)  # which the background of a shell ignores
    leaving.leave_on_signals()
    yield codes
    for number, handler in former.items():
        signal.signal(number, handler)


@pytest.mark.parametrize("sent", [(signal.SIGTERM, signal.SIGINT), (signal.SIGINT,)])
def test_a_signal_waits_for_the_end_of_an_uninterrupted_block(sent: tuple[signal.Signals, ...]) -> None:
    done = []

    def undo() -> None:
        with uninterrupted(), uninterrupted():
            for number in sent:
                os.kill(os.getpid(), number)
            done.append("undone")
        done.append("more")

    with pytest.raises(SystemExit) as left:
        undo()
    assert (done, left.value.code) == (["undone"], 128 + sent[-1])


def test_an_error_of_the_block_is_not_replaced_by_a_signal() -> None:
    def undo() -> None:
        with uninterrupted():
            os.kill(os.getpid(), signal.SIGTERM)
            raise ValueError("not undone")

    with pytest.raises(ValueError, match="not undone"):
        undo()


def test_a_second_signal_does_not_interrupt_the_way_out(ending: list[int]) -> None:
    done = []

    def work() -> None:
        try:
            os.kill(os.getpid(), signal.SIGTERM)
        finally:
            os.kill(os.getpid(), signal.SIGTERM)
            done.append("closed")

    with pytest.raises(SystemExit):
        work()
    assert (done, ending) == (["closed"], [143])


def test_what_is_unhurried_has_its_time_and_each_signal_interrupts_it(ending: list[int]) -> None:
    done = []

    def undo() -> None:
        with unhurried():
            with pytest.raises(SystemExit):
                os.kill(os.getpid(), signal.SIGTERM)
            done.append(list(ending))
            os.kill(os.getpid(), signal.SIGTERM)

    with pytest.raises(SystemExit):
        undo()
    assert (done, ending) == ([[]], [143])


def test_other_threads_leave_between_two_steps() -> None:
    left: list[str] = []

    def work() -> None:
        with uninterrupted():
            leave_if_told()
            left.append("a step")
        told.wait()
        try:
            leave_if_told()
        except SystemExit:
            left.append("left")

    told = threading.Event()
    thread = threading.Thread(target=work)
    thread.start()
    with pytest.raises(SystemExit):
        os.kill(os.getpid(), signal.SIGTERM)
    told.set()
    thread.join()
    assert left == ["a step", "left"]


def test_what_an_unhurried_process_still_does_is_not_cut_short() -> None:
    def undo() -> None:
        with unhurried():
            with pytest.raises(SystemExit):
                os.kill(os.getpid(), signal.SIGTERM)
            leave_if_told()
            done.append("read")
        leave_if_told()

    done: list[str] = []
    with pytest.raises(SystemExit):
        undo()
    assert done == ["read"]


def test_an_extraction_whose_thread_was_told_to_leave_is_not_taken_for_a_whole_one(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    class Told:
        def __init__(self, *_: object, **__: object) -> None:
            raise SystemExit(143)

    monkeypatch.setattr(side_by_side, "Extractor", Told)
    with open_pipeline(pipeline(tmp_path)) as ready, pytest.raises(SystemExit) as left:
        side_by_side.extract_sources(ready)
    assert left.value.code == 143


WAITING = """
import sys, threading
from cdc_core.process import leaving
from cdc_core.meta import Meta
leaving.leave_on_signals()
leaving.GRACE_S = 0.2
with Meta.open(sys.argv[1], "shop") as meta:
    meta.leases.acquire("shop", "me", 600.0)
    print("waits", flush=True)
    try:
        threading.Event().wait()
    finally:
        threading.Event().wait()
"""


@pytest.mark.timeout(60)
def test_a_process_that_does_not_unwind_ends_and_gives_its_leases_back(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/meta.db"
    command = [sys.executable, "-c", WAITING, url]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process, Meta.open(url, "shop") as meta:
        assert process.stdout.readline() == "waits\n"
        with pytest.raises(RetryLater, match="is being extracted"):
            meta.leases.acquire("shop", "other", 60.0)
        process.terminate()
        assert process.wait() == 143
        meta.leases.acquire("shop", "other", 60.0)


def test_a_lease_that_a_signal_has_left_behind_is_given_back_when_meta_is_closed(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/meta.db"
    with Meta.open(url, "shop") as meta:
        meta.leases.acquire("shop", "me", 600.0)
        meta.leases.acquire("other", "me", 600.0)
        with pytest.raises(RetryLater):
            meta.leases.acquire("shop", "me", 600.0)
    with Meta.open(url, "shop") as meta:
        meta.leases.acquire("shop", "you", 60.0)
        meta.leases.acquire("other", "you", 60.0)


def test_a_lease_that_a_signal_interrupts_as_it_is_taken_is_given_back_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = f"sqlite:///{tmp_path}/meta.db"
    with Meta.open(url, "shop") as meta:
        write = meta._database.write

        def interrupted(work: Callable[[Connection], object]) -> None:
            monkeypatch.undo()
            write(work)
            raise SystemExit

        monkeypatch.setattr(meta._database, "write", interrupted)
        with pytest.raises(SystemExit):
            meta.leases.acquire("shop", "me", 600.0)
    with Meta.open(url, "shop") as meta:
        meta.leases.acquire("shop", "you", 60.0)


def test_a_lease_that_another_has_taken_stays_with_it_also_where_the_holders_have_one_name(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/meta.db"
    with Meta.open(url, "shop") as other:
        with Meta.open(url, "shop") as meta:
            lost = meta.leases.acquire("shop", "host:1", 0.0)
            taken = other.leases.acquire("shop", "host:1", 60.0)
            meta.leases.release(lost)
        other.leases.renew(taken, 60.0)
