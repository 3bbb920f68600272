"""Runs the jobs of one run in one Spark application that several tasks use, each a process of its own.

Arguments: the folder and number of its slot (cdc_core/apply/run_slots.py), and how many seconds it waits for a job. An
order is a line of JSON on a connection of its own: the identity that the task expects, a job with its arguments, and
whether it is the last one. The answers are `begun`, and a line with the job's exit status. The task keeps the
connection open until then: without it the job, and with it the application, ends.
"""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import sys
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from cdc_core.apply.run_application import BEGUN, OTHER
from cdc_core.apply.run_slots import IDENTITY, Slot, peer_is_this_user
from spark_jobs.run_jobs import import_jobs, print_to, run_job

_LOOK_S = 0.5
_LEAVE_S = 20.0
"""How long the JVM may take to end by itself."""


def serve(folder: str, number: str, idle_s: str) -> None:
    slot = Slot(Path(folder), int(number))
    print_to(str(slot.output))
    identity, jvm = os.environ.pop(IDENTITY), os.getppid()
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(slot.socket))
        listener.listen()
        listener.settimeout(_LOOK_S)
        while (channel := _next(listener, slot, jvm, float(idle_s))) is not None:
            with channel:
                if not _carried_out(channel, slot, identity, jvm):
                    break
    _clean(slot, jvm)


def _next(listener: socket.socket, slot: Slot, jvm: int, idle_s: float) -> socket.socket | None:
    """The next task's connection; None if none comes in `idle_s`, or the JVM is gone."""
    patience = time.monotonic() + idle_s
    while os.getppid() == jvm:
        try:
            channel, _ = listener.accept()
        except TimeoutError:
            if time.monotonic() < patience:
                continue
            if _removed(slot, jvm):  # otherwise a task is about to connect
                return None
            continue
        channel.settimeout(None)
        if peer_is_this_user(channel):
            return channel
        channel.close()
    return None


def _carried_out(channel: socket.socket, slot: Slot, identity: str, jvm: int) -> bool:
    """Carries out an order; whether another one may follow."""
    with channel.makefile("rb") as orders, suppress(ConnectionError):
        line = orders.readline()
        if not line:
            return True
        order: Mapping[str, Any] = json.loads(line)
        if order["identity"] != identity:
            channel.sendall(OTHER)
            return False
        channel.sendall(BEGUN)
        done = threading.Event()
        watch = threading.Thread(target=_end_with_task, args=(channel, slot, jvm, done), daemon=True)
        watch.start()
        status = run_job(order["job"], order["arguments"])
        done.set()
        sys.stdout.flush()
        sys.stderr.flush()
        channel.sendall(b"%d\n" % status)
        watch.join()  # before the channel is closed, whose number another file may get
        if status == 0 and not order["last"]:
            threading.Thread(target=_import_jobs, daemon=True).start()
            return True
    return False


def _end_with_task(channel: socket.socket, slot: Slot, jvm: int, done: threading.Event) -> None:
    """Ends the application if the task or the JVM goes away before the job is done: a retry would do the job beside
    what is left of it."""
    while os.getppid() == jvm and not select.select([channel], [], [], _LOOK_S)[0]:  # a task sends nothing more
        if done.is_set():
            return
    if done.is_set():
        return
    sys.stderr.write("the task that ordered the job, or the JVM, is gone: the application ends\n")
    for number, patience_s in ((signal.SIGTERM, _LEAVE_S), (signal.SIGKILL, _LEAVE_S)):
        until = time.monotonic() + patience_s
        if os.getppid() == jvm:
            os.kill(jvm, number)
        while os.getppid() == jvm and time.monotonic() < until:
            time.sleep(0.05)
    _clean(slot, jvm)
    os._exit(1)


def _clean(slot: Slot, jvm: int) -> None:
    """Removes the slot's files, unless a task waits for this application's end to start the next one."""
    until = time.monotonic() + 2
    while time.monotonic() < until and not _removed(slot, jvm):
        time.sleep(0.05)


def _removed(slot: Slot, jvm: int) -> bool:
    """Removes the slot's files if no task uses it, and they are not another application's by now; whether none does."""
    if slot.pid() != jvm:
        return True
    with slot.used() as held:
        if held and slot.pid() == jvm:
            slot.remove()
        return held


def _import_jobs() -> None:
    """While Airflow starts the next task: the libraries of quality take seconds to load."""
    with suppress(Exception):  # the job itself reports it
        import_jobs()
        import spark_jobs.suite_runner  # noqa: F401


if __name__ == "__main__":
    serve(*sys.argv[1:])
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)  # not by way of the threads that may still import
