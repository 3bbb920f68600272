"""A command of the user's ends with the process that called it, in whatever thread (operations/user_command.py)."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

CALLING = """
import sys
from concurrent.futures import ThreadPoolExecutor
from cdc_core.operations.user_command import run_command
from cdc_core.process.leaving import leave_on_signals
leave_on_signals()
with ThreadPoolExecutor(1) as pool:
    pool.submit(run_command, "sh " + sys.argv[1], {}, "--copy-with").result()
"""
COMMAND = """
trap 'rm -f "$0.secret"; exit 1' TERM
echo password > "$0.secret"
sleep 100 &
echo $! > "$0.begun"
wait
"""


def running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


@pytest.mark.parametrize("told", [signal.SIGINT, signal.SIGTERM])
def test_a_command_ends_and_cleans_up_when_its_caller_is_told_to_end(told: signal.Signals, tmp_path: Path) -> None:
    script = tmp_path / "copy.sh"
    script.write_text(COMMAND)
    secret, begun = (Path(f"{script}.{name}") for name in ("secret", "begun"))
    calling = subprocess.Popen([sys.executable, "-c", CALLING, str(script)])
    try:
        while not (begun.exists() and begun.read_text().endswith("\n")):
            assert calling.poll() is None
            time.sleep(0.05)
        calling.send_signal(told)
        assert calling.wait(30) == 128 + told
    finally:
        calling.kill()
        calling.wait()
    assert not secret.exists()
    while running(int(begun.read_text())):
        time.sleep(0.05)
