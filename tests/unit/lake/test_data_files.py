"""Positions of deleted rows are those of the data file that is asked for."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.io.pyarrow import PyArrowFileIO

from cdc_core.lake.data_files import KeyedFiles, LiveFile, deleted_rows, write_rows
from cdc_core.lake.lake_schema import first_schema
from cdc_core.model.version import VERSION_COLUMN


@pytest.mark.parametrize("group_rows", [1, 100])
def test_a_file_of_deletes_may_name_several_data_files(tmp_path: Path, group_rows: int) -> None:
    files = KeyedFiles(PyArrowFileIO(), tmp_path.as_uri(), first_schema([pa.field("a", pa.int64())], ["a"]), ("a",))
    path = tmp_path / "deletes.parquet"
    named = pa.table({"file_path": ["x", "x", "y", "z"], "pos": [1, 70_000, 0, 2**31]})
    pq.write_table(named, path, row_group_size=group_rows)
    x = LiveFile(
        path="x", rows=80_000, size_bytes=1, groups=1, deleted=2, deletes=(path.as_uri(),), low=None, high=None,
        keyless=False,
    )  # fmt: skip
    found = {name: list(deleted_rows(files, replace(x, path=name))) for name in ("x", "y", "z", "other")}
    assert found == {"x": [1, 70_000], "y": [0], "z": [2**31], "other": []}


def test_only_values_that_repeat_have_a_dictionary(tmp_path: Path) -> None:
    schema = first_schema(
        [pa.field("a", pa.int64()), pa.field("few", pa.string()), pa.field("all", pa.string())], ["a"]
    )
    files = KeyedFiles(PyArrowFileIO(), tmp_path.as_uri(), schema, ("a",))
    numbers = range(1000)
    values = {
        "a": pa.array(numbers),
        "few": pa.array([f"few {at % 3}" for at in numbers]),
        "all": pa.array([f"all {at}" for at in numbers]),
        VERSION_COLUMN: pa.array([str(at).encode() for at in numbers]),
    }
    (new,) = write_rows(files, pa.table({name: values[name] for name in files.columns.names}))
    group = pq.read_metadata(new.path.removeprefix("file://")).row_group(0)
    columns = [group.column(at) for at in range(group.num_columns)]
    assert [column.path_in_schema for column in columns if column.has_dictionary_page] == ["few"]
