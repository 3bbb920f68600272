"""Files that a task writes for later steps: whole when they are named, durable when the task has ended, else gone."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from cdc_core.stage.files import FileStore
from spark_jobs.step_files import StepFiles

ROWS = pa.table({"n": range(1000)})


class Watched(FileStore):
    """Notes which files are made durable together."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder.as_uri())
        self.settled: list[list[str]] = []

    def settle(self, paths: Sequence[str]) -> None:
        self.settled.append(list(paths))
        super().settle(paths)


def write(file: Any) -> None:
    pq.write_table(ROWS, file, row_group_size=100)


def test_many_files_are_made_durable_together_as_the_task_ends(tmp_path: Path) -> None:
    store = Watched(tmp_path)
    with StepFiles(store) as files:
        paths = [files.write("runs/r/merged/cdc_table=t", write) for _ in range(40)]
        assert store.settled == []
    (together,) = store.settled
    assert set(together) < set(paths)
    assert len(set(paths)) == 40
    assert all(pq.read_table(tmp_path / path).equals(ROWS) for path in paths)


def test_what_ends_in_an_error_leaves_no_file_and_promises_nothing(tmp_path: Path) -> None:
    store = Watched(tmp_path)

    def broken(file: Any) -> None:
        write(file)
        raise ValueError("broken")

    with pytest.raises(ValueError, match="broken"), StepFiles(store) as files:
        files.write("a", broken)
    assert list(store.list("")) == []
    assert store.settled == []
