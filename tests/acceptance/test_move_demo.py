"""`make move`, as a new user runs it."""

from __future__ import annotations

import subprocess
import sys

import pytest

from examples.move.demo import REPOSITORY


@pytest.mark.matrix
@pytest.mark.spark
@pytest.mark.timeout(1200)
def test_the_application_of_the_demo_finds_each_of_its_writes() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "examples.move.demo"], cwd=REPOSITORY, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout.count("missing, twice or others: 0\n")) == (0, 2), (
        done.stdout[-3000:] + done.stderr
    )
