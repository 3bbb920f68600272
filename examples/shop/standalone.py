"""`airflow standalone` in a process group of its own, so that nothing of it outlives its starter."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from examples.shop.airflow_env import REPOSITORY, airflow_command

START_S = 180
STOP_S = 20
PARTS = ("metadatabase", "scheduler", "dag_processor")


@contextmanager
def standalone(
    environment: Mapping[str, str], log: Path, part: str = "standalone", *, stop_s: float = STOP_S
) -> Iterator[subprocess.Popen[bytes]]:
    """Scheduler, DAG processor, triggerer and web server, or one part alone; ended with all children on leaving, by
    SIGKILL after stop_s."""
    with open(log, "ab") as output:
        process = subprocess.Popen(
            airflow_command([part]),
            env=dict(environment),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            cwd=REPOSITORY,
        )
    try:
        yield process
    finally:
        # When it ends, it leaves its child processes running.
        for signal_number in (signal.SIGTERM, signal.SIGKILL):
            try:
                os.killpg(process.pid, signal_number)
            except ProcessLookupError:
                break
            _reap_group(process, stop_s)


def pid_of(airflow: subprocess.Popen[bytes], part: str) -> int:
    """The process of one part of a running `airflow standalone` (Linux)."""
    pids = " ".join(path.read_text() for path in Path(f"/proc/{airflow.pid}/task").glob("*/children")).split()
    commands = {int(pid): Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0") for pid in pids}
    return next(pid for pid, words in commands.items() if part.encode() in words)


def _reap_group(process: subprocess.Popen[bytes], stop_s: float) -> None:
    deadline_s = time.monotonic() + stop_s
    while time.monotonic() < deadline_s:
        process.poll()
        try:
            os.killpg(process.pid, 0)
        except ProcessLookupError:
            return
        time.sleep(0.2)


def wait_until_healthy(airflow: subprocess.Popen[bytes], port: int) -> bool:
    """Whether all parts work before START_S is over; False at once when Airflow ends."""
    deadline_s = time.monotonic() + START_S
    while time.monotonic() < deadline_s and airflow.poll() is None:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/api/v2/monitor/health", timeout=5) as answer:
                health = json.load(answer)
            if all(health.get(part, {}).get("status") == "healthy" for part in PARTS):
                return True
        except (urllib.error.URLError, OSError, ValueError):
            pass
        time.sleep(0.5)
    return False


def login(home: Path) -> tuple[str, str]:
    """User and password that Airflow made up at its first start."""
    passwords = json.loads((home / "simple_auth_manager_passwords.json.generated").read_text())
    user = next(iter(passwords))
    return user, passwords[user]
