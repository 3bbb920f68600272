"""`lockstep run`, whose driver is started while the sources are read."""

from __future__ import annotations

import socket
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.unit.cli.conftest import Done

PIPELINE = """\
pipeline: shop
sources: [{{name: shop, connection: "env:SOURCE", server_id: 4711, start: latest}}]
tables: {{include: ['shop\\.orders']}}
stage: {{uri: "file://{folder}/stage"}}
meta: {{url: "sqlite:///{folder}/meta.db"}}
targets:
  - name: shards
    connections: ["env:TARGET"]
    tables: {{shop.orders: {{sharding: {{key: id, databases: 1, tables: 1}}, database: shop, table: orders}}}}
"""


def test_a_run_whose_source_does_not_answer_leaves_no_driver_and_no_output_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lockstep: Callable[..., Done]
) -> None:
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))  # without listen()
        for name in ("SOURCE", "TARGET"):
            monkeypatch.setenv(name, f"mysql://root@127.0.0.1:{nobody.getsockname()[1]}/")
        (tmp_path / "scratch").mkdir()
        monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "scratch"))
        (tmp_path / "shop.yaml").write_text(PIPELINE.format(folder=tmp_path))
        done = lockstep("run", tmp_path / "shop.yaml", "--json")
    assert done.code == 75
    assert not list((tmp_path / "scratch").iterdir())
    assert not [path for path in Path("/proc").glob("[0-9]*/cmdline") if str(tmp_path) in _read(path)]


def _read(path: Path) -> str:
    try:
        return path.read_bytes().decode(errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return ""
