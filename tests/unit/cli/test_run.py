"""`lockstep run`, whose driver is started while the sources are read."""

from __future__ import annotations

import socket
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.lab.pipeline_file import sharded, write_pipeline
from tests.unit.cli.conftest import Done


def test_a_run_whose_source_does_not_answer_leaves_no_driver_and_no_output_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lockstep: Callable[..., Done]
) -> None:
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))  # without listen()
        for name in ("SOURCE", "TARGET"):
            monkeypatch.setenv(name, f"mysql://root@127.0.0.1:{nobody.getsockname()[1]}/")
        (tmp_path / "scratch").mkdir()
        monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "scratch"))
        file = write_pipeline(tmp_path, "shop", targets=[sharded("shards", "env:TARGET", "orders", "shop")])
        done = lockstep("run", file, "--json")
    assert done.code == 75
    assert not list((tmp_path / "scratch").iterdir())
    assert not [path for path in Path("/proc").glob("[0-9]*/cmdline") if str(tmp_path) in _read(path)]


def _read(path: Path) -> str:
    try:
        return path.read_bytes().decode(errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return ""
