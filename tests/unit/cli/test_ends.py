"""How the process of a command ends."""

from __future__ import annotations

import subprocess
import sys


def test_a_command_that_has_used_duckdb_ends_without_a_word_of_it() -> None:
    code = (
        "import sys\n"
        "from cdc_core.cli import app\n"
        "sys.argv = ['lockstep']\n"
        "app.app = lambda **options: __import__('duckdb') and 3\n"
        "app.main()\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (3, "", "")
