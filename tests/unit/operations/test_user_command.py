"""A command of the user's ends with the process that called it, in whatever thread (operations/user_command.py)."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).parents[3] / "examples" / "online_ddl" / "pt-osc.sh"
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


def told_to_end(told: signal.Signals, script: Path, begun: Path, environ: Mapping[str, str] = os.environ) -> None:
    """The script is called, and the caller is told to end once the script's child has begun and said its number."""
    calling = subprocess.Popen([sys.executable, "-c", CALLING, str(script)], env=environ)
    try:
        while not (begun.exists() and begun.read_text().endswith("\n")):
            assert calling.poll() is None
            time.sleep(0.05)
        calling.send_signal(told)
        assert calling.wait(30) == 128 + told
    finally:
        calling.kill()
        calling.wait()
    while running(int(begun.read_text())):
        time.sleep(0.05)


@pytest.mark.parametrize("told", [signal.SIGINT, signal.SIGTERM])
def test_a_command_ends_and_cleans_up_when_its_caller_is_told_to_end(told: signal.Signals, tmp_path: Path) -> None:
    script = tmp_path / "copy.sh"
    script.write_text(COMMAND)
    told_to_end(told, script, tmp_path / "copy.sh.begun")
    assert not (tmp_path / "copy.sh.secret").exists()


def test_the_example_of_a_copying_command_leaves_no_password(tmp_path: Path) -> None:
    tools, scratch, begun = (tmp_path / name for name in ("tools", "scratch", "begun"))
    tools.mkdir()
    scratch.mkdir()
    for name, text in (("mysql", "exit 0"), ("pt-online-schema-change", f"echo $$ > '{begun}'\nexec sleep 100")):
        (tools / name).write_text(f"#!/bin/sh\n{text}\n")
        (tools / name).chmod(0o700)
    names = ["HOST", "PORT", "USER", "PASSWORD", "SSL_MODE", "DATABASE", "TABLE", "CLAUSES"]
    shard = {f"LOCKSTEP_DDL_{name}": "x" for name in names} | {"LOCKSTEP_DDL_PHASE": "start"}
    path = f"{tools}:{os.environ['PATH']}"
    told_to_end(signal.SIGTERM, EXAMPLE, begun, {**os.environ, **shard, "PATH": path, "TMPDIR": str(scratch)})
    assert list(scratch.iterdir()) == []
