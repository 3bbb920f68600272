"""Merge against the reference model of history: the last change of each key, key changes split, everything counted."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow.dataset as ds
import pytest
from pyspark.sql import SparkSession

from cdc_core.config import Pipeline
from cdc_core.errors import DataAtRisk, Refused
from cdc_core.model.position import Position
from cdc_core.model.run_plan import MergeCounts, counts_from_bytes, counts_path
from cdc_core.stage.horizon import Horizon
from cdc_core.stage.layout import horizon_path
from cdc_core.stage.stores import open_store
from spark_jobs import merge as merge_module
from spark_jobs.job import Job
from spark_jobs.merge import merge
from tests.history_model import Change
from tests.spark.staged_changes import Stage, merge_by, require_merged_columns, staged_pipeline, table_schema

# PySpark leaves the sockets of `collect` to the garbage collector.
pytestmark = [pytest.mark.spark, pytest.mark.filterwarnings("ignore::ResourceWarning")]


@pytest.fixture(params=["driver", "spark"], autouse=True)
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Who merges the tables: both keep every rule below."""
    merge_by(request.param, monkeypatch)
    return str(request.param)


BY_DRIVER = pytest.mark.parametrize("way", ["driver"], indirect=True)
"""For rules of cdc_core/history, which both call."""
ITEMS = table_schema("shop.items", {"a": "int", "b": "varchar(10)", "n": "int"}, ["a", "b"])


def pipeline(root: Path, routes: str = "[]") -> Pipeline:
    target = {"name": "shards", "connections": ["env:TGT"], "tables": {"*": {"database": "db"}}}
    return staged_pipeline(root, targets=[target], routes=routes)


def merged(
    spark: SparkSession, stage: Stage, key: list[str], *, on_truncate: str = "stop", routes: str = "[]"
) -> tuple[list[dict], MergeCounts]:
    plan = stage.plan("r", dict.fromkeys(stage.files, key), on_truncate=on_truncate)
    job = Job(lambda: spark, pipeline(stage.root, routes), plan, open_store(stage.uri), set_name="0")
    merge(job)
    counts = counts_from_bytes(job.store.get(counts_path(plan.merged_folder("0"))), MergeCounts)
    table = next(iter(stage.files))
    files = ds.dataset(stage.root / job.merged(table), format="parquet")
    require_merged_columns(job, job.merge_set.tables[0])
    rows = files.to_table().to_pylist()
    return rows, next(count for count in counts if count.table == table)


def test_an_added_column_is_null_before_and_a_wider_type_keeps_every_value(spark: SparkSession, tmp_path: Path) -> None:
    stage = Stage(tmp_path)
    old = table_schema("shop.items", {"id": "int", "n": "int unsigned", "gone": "int"}, ["id"])
    new = table_schema("shop.items", {"id": "bigint", "n": "bigint unsigned", "more": "varchar(5)"}, ["id"])
    stage.add("shop.items", old, [Change("c", {"id": 1, "n": 2**32 - 1, "gone": 7}, 10)])
    stage.add("shop.items", new, [Change("c", {"id": 2**40, "n": 2**64 - 1, "more": "x"}, 20)])
    rows, _ = merged(spark, stage, ["id"])
    found = sorted((row["id"], int(row["n"]), row["more"]) for row in rows)
    assert found == [(1, 2**32 - 1, None), (2**40, 2**64 - 1, "x")]
    assert "gone" not in rows[0]


SPLIT = "[{match: 'shop\\.items_\\d+', to: shop.items}]"


@pytest.mark.parametrize(("on_truncate", "routes"), [("stop", "[]"), ("apply", SPLIT)])
def test_a_truncate_is_refused_and_leaves_no_counts(
    spark: SparkSession, tmp_path: Path, on_truncate: str, routes: str
) -> None:
    stage = Stage(tmp_path)
    stage.add("shop.items", ITEMS, [Change("c", {"a": 1, "b": "x", "n": 1}, 10), Change("t", {}, 20)])
    with pytest.raises(Refused) as caught:
        merged(spark, stage, ["a", "b"], on_truncate=on_truncate, routes=routes)
    assert caught.value.code == "config.table_rule"
    assert list(tmp_path.rglob("counts.json")) == []


def test_a_file_with_other_rows_than_its_manifest_says_is_data_at_risk(spark: SparkSession, tmp_path: Path) -> None:
    stage = Stage(tmp_path)
    stage.add("shop.items", ITEMS, [Change("c", {"a": a, "b": "x", "n": 1}, 10, a) for a in range(5)])
    (file,) = stage.files["shop.items"]
    stage.files["shop.items"] = [replace(file, rows=4)]
    with pytest.raises(DataAtRisk) as caught:
        merged(spark, stage, ["a", "b"])
    assert caught.value.code == "stage.damaged"


def test_a_staged_file_with_other_bytes_is_refused_before_any_of_its_rows_is_merged(
    spark: SparkSession, tmp_path: Path
) -> None:
    stage = Stage(tmp_path)
    changes = [Change("c", {"a": a, "b": "x", "n": 1}, 10, a) for a in range(5)]
    stage.add("shop.items", ITEMS, changes)
    place = tmp_path / stage.files["shop.items"][0].path
    whole = place.read_bytes()
    Stage(tmp_path).add("shop.items", ITEMS, [replace(change, row=change.row | {"n": 2}) for change in changes])
    other = place.read_bytes()
    footer = bytes([*whole[:-20], whole[-20] ^ 255, *whole[-19:]])
    length = bytes([*whole[:-8], *b"\xff\xff\xff\x7f", *whole[-4:]])
    for data in (other, bytes([whole[0], whole[1] ^ 1, *whole[2:]]), footer, length, whole[:-1], b""):
        place.write_bytes(data)
        with pytest.raises(DataAtRisk) as caught:
            merged(spark, stage, ["a", "b"])
        assert caught.value.code == "stage.damaged"
        assert list(tmp_path.rglob("merged/**/*.parquet")) == []
    place.write_bytes(whole)
    assert len(merged(spark, stage, ["a", "b"])[0]) == 5


WIDE = table_schema("shop.wide", {"id": "int", "x": "int", "y": "varchar(9)", "d": "date"}, ["id"])


def test_the_error_value_of_an_enum_and_its_label_without_text_are_two_keys(
    spark: SparkSession, tmp_path: Path
) -> None:
    schema = table_schema("shop.labels", {"e": r"enum('a','','\0')", "n": "int"}, ["e"])
    zero = {"e": ""}
    stage = Stage(tmp_path / "stage")
    stage.add(
        "shop.labels",
        schema,
        [
            Change("c", {"e": "", "n": 1}, 11, literal=zero),
            Change("c", {"e": "", "n": 2}, 12),
            Change("c", {"e": "\0", "n": 4}, 12),
            Change("u", {"e": "", "n": 3}, 13, literal={"e": "", "_before.e": ""}, before={"e": "", "n": 1}),
        ],
    )
    rows, counts = merged(spark, stage, ["e"])
    assert sorted((row["n"], dict(row["_cdc_literal"] or {}).get("e")) for row in rows) == [
        (2, None),
        (3, ""),
        (4, None),
    ]
    assert counts.winners == 3
    moved = Stage(tmp_path / "moved")
    moved.add("shop.labels", schema, [Change("u", {"e": "", "n": 1}, 14, literal={"_before.e": ""}, before=zero)])
    rows, _ = merged(spark, moved, ["e"])
    assert sorted((row["_cdc_op"], dict(row["_cdc_literal"] or {}).get("e")) for row in rows) == [
        ("d", ""),
        ("u", None),
    ]


@BY_DRIVER
@pytest.mark.parametrize(("absent", "before"), [(["id"], {"id": 2}), (["_before.id"], {"id": None})])
def test_changes_that_do_not_say_their_key_stop(
    spark: SparkSession, tmp_path: Path, absent: list[str], before: dict[str, Any]
) -> None:
    stage = Stage(tmp_path)
    stage.add("shop.wide", WIDE, [Change("u", {"id": 1, "x": 2}, 1, before=before, absent=absent)])
    with pytest.raises(DataAtRisk) as stopped:
        merged(spark, stage, ["id"])
    assert stopped.value.code == "target.absent_values"


@pytest.mark.parametrize("parts", [1, 3])
@pytest.mark.parametrize("recorded", [True, False], ids=["a purge", "somebody"])
def test_files_that_are_removed_while_they_are_read_end_a_merge_with_an_error_that_says_so(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str, recorded: bool, parts: int
) -> None:
    stage = Stage(tmp_path)
    added = [Change("c", {"a": a, "b": "x", "n": 1}, 10, a) for a in range(5)]
    stage.add("shop.items", ITEMS, added)
    stage.add("shop.items", ITEMS, [replace(change, seq=30) for change in added[:3]])
    plan = stage.plan("r", {"shop.items": ["a", "b"]})
    job = Job(lambda: spark, pipeline(tmp_path), plan, open_store(stage.uri), set_name="0")
    reader = "file_events" if way == "driver" else "shuffled" if parts > 1 else "in_tasks"
    read = getattr(merge_module, reader)

    def removed_first(*arguments: Any, **named: Any) -> Any:
        files = job.merge_set.tables[0].files
        if recorded:  # a purge moves the horizon first
            horizon = Horizon("one", Position(0, "bin.000001", 1000), 0, files[-1].batch_id, (), {})
            job.store.put(horizon_path("one"), horizon.to_bytes())
        job.store.delete(files[-1].path)
        return read(*arguments, **named)

    monkeypatch.setattr(merge_module, reader, removed_first)
    monkeypatch.setattr(merge_module, "_parts", lambda *_: parts)
    with pytest.raises(Exception, match="plan.purged" if recorded else "stage.damaged"):
        merge(job)
    assert list(tmp_path.rglob("counts.json")) == []


def test_a_truncate_after_a_copy_that_begins_the_table_again_undoes_the_copied_rows_too(
    spark: SparkSession, tmp_path: Path
) -> None:
    stage = Stage(tmp_path)
    stage.add("shop.items", ITEMS, [Change("t", {}, 10)], copied=True)
    stage.add("shop.items", ITEMS, [Change("r", {"a": 1, "b": "x", "n": 1}, 10, 1)], copied=True)
    stage.add("shop.items", ITEMS, [Change("t", {}, 20), Change("c", {"a": 2, "b": "x", "n": 2}, 21)])
    rows, counts = merged(spark, stage, ["a", "b"], on_truncate="apply")
    assert sorted((row["_cdc_op"], row["_cdc_seq"]) for row in rows) == [("t", 20), ("u", 21)]
    assert (counts.rows, counts.winners, counts.superseded, len(counts.truncates)) == (4, 2, 2, 1)
    with pytest.raises(Refused) as caught:
        merged(spark, stage, ["a", "b"])
    assert caught.value.code == "config.table_rule"


def test_rows_that_move_between_keys_of_the_target_are_in_one_part(
    spark: SparkSession, tmp_path: Path, way: str
) -> None:
    """The target's key is not the source table's, whose changes of keys the manifests count."""
    stage = Stage(tmp_path)
    added = [Change("c", {"id": at, "x": at, "y": f"y{at}"}, 10, at) for at in range(20)]
    moved = [
        Change("u", {"id": at, "x": 100 + at}, 20, at, {"id": at, "x": at}, absent=["y", "d", "_before.y", "_before.d"])
        for at in range(20)
    ]
    stage.add("shop.wide", WIDE, added)
    stage.add("shop.wide", WIDE, moved)
    assert [file.key_changes for file in stage.files["shop.wide"]] == [0, 0]
    rows, counts = merged(spark, stage, ["x"])
    found = {row["x"]: (row["y"], row["_cdc_absent"]) for row in rows if row["_cdc_op"] == "u"}
    assert found == {100 + at: (f"y{at}", None) for at in range(20)}
    assert counts.key_changes == 20


@BY_DRIVER
def test_each_of_several_files_has_a_range_of_the_keys(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(merge_module, "FILE_ROWS", 4)
    stage = Stage(tmp_path)
    keys = [(str(at * 7 % 10), at) for at in range(10)]
    stage.add("shop.items", ITEMS, [Change("c", {"a": a, "b": b, "n": 1}, 10, a) for b, a in keys])
    _, counts = merged(spark, stage, ["b", "a"])
    folder = next((tmp_path / "runs").rglob("cdc_table=shop.items"))
    tables = [ds.dataset(folder / name).to_table(["b", "a"]) for name in counts.files]
    found = sorted([tuple(row.values()) for row in table.to_pylist()] for table in tables)
    assert [len(rows) for rows in found] == [3, 3, 4]
    assert [row for rows in found for row in rows] == sorted(keys)
