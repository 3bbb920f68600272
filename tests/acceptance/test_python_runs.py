"""`lockstep.extract` and `lockstep.run`, as a script or a task of somebody else calls them."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

import lockstep
from tests.lab.pipeline_file import write_pipeline


def test_functions_do_what_the_commands_do_and_return_reports(
    source_database: Any, mariadb_target: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = source_database.name
    source_database.execute("CREATE TABLE orders (id INT PRIMARY KEY, v INT)")
    mariadb_target.run(f"CREATE DATABASE {name}", f"CREATE TABLE {name}.orders (id INT PRIMARY KEY, v INT)")
    monkeypatch.setenv("SHOP", source_database.server.url)
    monkeypatch.setenv("COPY", mariadb_target.url)
    target = {"name": "copy", "connections": ["env:COPY"], "tables": {"*": {}}}
    source = {"name": "shop", "connection": "env:SHOP", "start": "latest"}
    file = write_pipeline(tmp_path, name, source=source, routes="[]", targets=[target])
    lockstep.extract(file)
    source_database.execute("INSERT INTO orders VALUES (1, 10), (2, 20)")
    extracted = lockstep.extract(file, until=datetime.now(UTC))
    assert (extracted["shop"].done, extracted["shop"].staged.rows) == (True, 2)
    done = lockstep.run(file)
    assert (done.extracted["shop"].staged.rows, done.applied.rows, done.applied.by_driver) == (0, 2, True)
    assert mariadb_target.run(f"SELECT * FROM {name}.orders ORDER BY id") == [(1, 10), (2, 20)]
    with pytest.raises(lockstep.UsageError, match="no source 'books'"):
        lockstep.extract(file, sources=["books"])
    with pytest.raises(lockstep.UsageError, match="No source is named"):
        lockstep.extract(file, sources=[])
    with pytest.raises(lockstep.UsageError, match="No target is named"):
        lockstep.run(file, targets=())
    with pytest.raises(lockstep.UsageError, match="no time zone"):
        lockstep.run(file, until=datetime(2026, 1, 1))
