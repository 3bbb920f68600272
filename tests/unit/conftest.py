"""A pipeline for the tests of what comes after the stage."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.lab.made_line import Line


@pytest.fixture
def line(tmp_path: Path) -> Iterator[Line]:
    """Nothing is staged yet."""
    made = Line.open(tmp_path)
    with made.meta:
        yield made
