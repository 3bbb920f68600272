"""Two pipelines whose sources have one name, on one stage, each with a meta database of its own."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Any

import pytest

BESIDE = ("extract", "check", "meta rebuild", "stage purge --older-than 1m", "stage sweep", "stage ls", "stage verify",
          "stage isolated", "stage sql", "stage export")  # fmt: skip


@pytest.fixture
def pair(source_database: Any, lockstep: Any) -> Any:
    """`first.yaml` and `second.yaml`, on other tables of one server."""
    for name in ("first", "second"):
        source_database.execute(f"CREATE TABLE {name} (id INT PRIMARY KEY)")
    for name in ("first", "second"):
        lockstep.environ["SHOP"] = source_database.server.url
        pattern = rf"{source_database.name}\.{name}"
        stage = (lockstep.directory / "stage").as_uri()
        lockstep("init", name, "--source", "env:SHOP", "--include", pattern, "--stage", stage)
        file = lockstep.directory / f"{name}.yaml"
        file.write_text(re.sub(r"- name: \w+", "- name: shop", file.read_text(), count=1))
    return source_database


def files(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize(
    "staged",
    [pytest.param(True, id="with batches"), pytest.param(False, id="with a start only", marks=pytest.mark.matrix)],
)
def test_a_pipeline_takes_and_removes_nothing_of_another_ones_chain(pair: Any, lockstep: Any, staged: bool) -> None:
    if staged:
        pair.execute("INSERT INTO first VALUES (1), (2)")
    lockstep("extract", "first.yaml")
    pair.execute("INSERT INTO second VALUES (7)")
    stage = lockstep.directory / "stage"
    assert (stage / "manifests").exists() is staged
    before = files(stage)
    for command in BESIDE if staged else BESIDE[:3]:
        words = [*command.split(), "second.yaml"]
        words += {"stage sql": ["SELECT 1"], "stage export": [f"{pair.name}.first", "-o", "x.parquet"]}.get(command, [])
        done = lockstep(*words, code=None)
        assert done.code == 3, (command, done)
        found = done.document
        codes = (
            [finding["code"] for finding in found["findings"] if finding["status"] == "fail"]
            if command == "check"
            else []
        )
        assert (codes or [done.error["code"]]) == ["stage.other_pipeline"], (command, found)
        assert "'first'" in done.out
        assert files(stage) == before, command
    lockstep("extract", "first.yaml")
    assert lockstep("stage", "verify", "first.yaml").document["ok"]
    # Each way on that the remedy names.
    file = lockstep.directory / "second.yaml"
    own = file.read_text()
    file.write_text(own.replace("- name: shop", "- name: west"))
    lockstep("extract", "second.yaml")
    assert [table["rows"] for table in lockstep("stage", "ls", "second.yaml").document["tables"]] == [1]
    file.write_text(own.replace(stage.as_uri(), (lockstep.directory / "other").as_uri()))
    shutil.rmtree(lockstep.directory / ".lockstep" / "second")  # its own meta
    lockstep("extract", "second.yaml")
    assert [table["rows"] for table in lockstep("stage", "ls", "second.yaml").document["tables"]] == [1]
