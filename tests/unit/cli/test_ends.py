"""How the process of a command ends."""

from __future__ import annotations

import json
import os
import subprocess
import sys


def test_a_command_that_has_used_duckdb_ends_without_a_word_of_it() -> None:
    code = (
        "import sys\n"
        "from cdc_core.cli import app\n"
        "sys.argv = ['lockstep']\n"
        "app.command_tree = lambda: lambda **options: __import__('duckdb') and 3\n"
        "app.main()\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (3, "", "")


def test_a_note_that_nobody_reads_ends_nothing() -> None:
    """As of a command whose `2>&1 | head` has left, or whose task was killed."""
    code = (
        "from cdc_core.cli.output import CliOutput\n"
        "output = CliOutput(as_json=True)\n"
        "for _ in range(2): output.note('switched')\n"
        "output.answer({'noted': True})\n"
    )
    read, write = os.pipe()
    os.close(read)
    with os.fdopen(write, "wb") as nobody:
        done = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=nobody, check=False)
    assert (done.returncode, json.loads(done.stdout)) == (0, {"noted": True})
