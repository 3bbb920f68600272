"""Which values before a change a merge reads (arrow_changes.BeforeRule), and that those suffice."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from cdc_core.model.schema import TableSchema
from cdc_core.model.staged import BEFORE
from spark_jobs import arrow_changes
from spark_jobs.arrow_changes import BeforeRule, StagedRows, changes_of, read_rows
from spark_jobs.arrow_merge import ArrowRule, merged
from tests.history_model import Change
from tests.spark.staged_changes import staged_table, table_schema

ITEMS = table_schema("shop.items", {"id": "int", "id.x": "int", "n": "int", "place": "int"}, ["id"])
ROW = {"id": 1, "id.x": 2, "n": 3, "place": 4}
COLUMNS = pa.schema([(name, pa.int32()) for name in ROW])


@pytest.fixture(autouse=True)
def no_file_is_small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arrow_changes, "FEW_ROWS", 0)


def read(
    folder: Path, changes: Sequence[Change], rule: BeforeRule, schema: TableSchema = ITEMS, **rest: Any
) -> StagedRows:
    path = folder / "staged.parquet"
    pq.write_table(staged_table(schema, changes), path, row_group_size=2)
    return read_rows(pq.ParquetFile(path), schema, None, lambda *_: None, rule, **rest)


def before(rows: StagedRows) -> list[str]:
    return [field.name for field in rows.rows.schema.field(BEFORE).type]


def update(at: int, was: Mapping[str, Any], literal: Mapping[str, str] | None = None, **row: Any) -> Change:
    return Change("u", {**ROW, **row}, at, 0, {**ROW, **was}, literal=literal)


@pytest.mark.parametrize(
    ("changes", "moving", "every", "needed"),
    [
        ([update(1, {"n": 1}), update(2, {"n": 2})], (), False, ["id"]),
        ([update(1, {"n": 1}), update(2, {"n": 2})], ("place",), False, ["id", "place"]),
        ([update(1, {"n": 1})], (), True, list(ROW)),
        ([Change("c", ROW, 1, 0), Change("d", ROW, 2, 0)], (), False, ["id"]),
        ([Change("c", ROW, 1, 0), update(2, {}), update(3, {"id": 9})], (), False, list(ROW)),
        ([update(1, {"id": None}, id=None), update(2, {"id": None})], (), False, list(ROW)),
        ([update(1, {"id": None}, id=None)], (), False, ["id"]),
        ([update(1, {"n": 1}, literal={"_before.id": "0000-00-00"})], (), False, list(ROW)),
    ],
)  # fmt: skip
def test_values_before_are_read_of_all_columns_only_where_a_row_may_change_its_key(
    tmp_path: Path, changes: Sequence[Change], moving: Sequence[str], every: bool, needed: list[str]
) -> None:
    assert before(read(tmp_path, changes, BeforeRule(COLUMNS, ["id"], moving, every))) == needed


def test_a_small_file_is_read_once_and_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arrow_changes, "FEW_ROWS", 2)
    rule = BeforeRule(COLUMNS, ["id"], (), False)
    changes = [update(at, {"n": at}) for at in (1, 2, 3)]
    assert before(read(tmp_path, changes[:2], rule)) == list(ROW)
    assert before(read(tmp_path, changes, rule)) == ["id"]


def test_only_changes_that_count_decide_what_is_read(tmp_path: Path) -> None:
    rows = read(
        tmp_path, [update(1, {"n": 1}), update(2, {"id": 9})], BeforeRule(COLUMNS, ["id"], (), False), seqs=[(1, 1)]
    )
    assert before(rows) == ["id"]
    assert rows.rows.num_rows == 1


def test_files_with_and_without_all_values_before_are_merged_together(tmp_path: Path) -> None:
    rule = BeforeRule(COLUMNS, ["id"], (), False)
    files = [
        read(tmp_path, [update(1, {"n": 1}), update(2, {"n": 2})], rule),
        read(tmp_path, [Change("d", {**ROW, "id": 5}, 3, 0), update(4, {"id": 1, "n": 30}, id=7, n=31)], rule),
    ]
    assert [len(before(one)) for one in files] == [1, 4]
    rows, found = merged(changes_of(files, COLUMNS), ArrowRule(COLUMNS, ["id"]))
    assert {(row["id"], row["id.x"], row["n"], row["_cdc_op"]) for row in rows.to_pylist()} == {
        (1, 2, 30, "d"), (5, 2, 3, "d"), (7, 2, 31, "u"),
    }  # fmt: skip
    assert (found.rows, found.key_changes, found.superseded) == (4, 1, 2)


def test_a_shard_key_that_no_file_of_the_run_has_moves_no_row(tmp_path: Path) -> None:
    older = table_schema("shop.items", {"id": "int", "n": "int"}, ["id"])
    rows = read(
        tmp_path, [update(1, {"n": 1}), update(2, {"n": 2})], BeforeRule(COLUMNS, ["id"], ["place"], False), older
    )
    (row,) = merged(changes_of([rows], COLUMNS), ArrowRule(COLUMNS, ["id"], ["place"]))[0].to_pylist()
    assert (row["id"], row["place"], row["_cdc_former_shard_keys"]) == (1, None, {"place": []})
