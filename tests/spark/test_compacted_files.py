"""Runs whose batches are in compacted files: exactly the rows of the run's batches are merged, whichever those are."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Collection
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from cdc_core.model.position import MAX_OFFSET
from cdc_core.stage.layout import CompactedName, compacted_path
from tests.history_model import Change
from tests.spark.staged_changes import Stage, merge_by, table_schema
from tests.spark.test_merge import merged

pytestmark = [pytest.mark.spark, pytest.mark.filterwarnings("ignore::ResourceWarning")]
ITEMS = table_schema("shop.items", {"a": "int", "b": "varchar(10)", "n": "int"}, ["a", "b"])
LOG = table_schema("shop.log", {"a": "int", "n": "int"}, [])
BATCHES = 6


def changes(source: str, number: int, names: Collection[str]) -> list[Change]:
    """Of a batch: rows that come again and again, and one of its own."""
    rows = [{"a": 1, "b": "x", "n": number}, {"a": 100 + number, "b": "y", "n": number}]
    found = []
    for ordinal, row in enumerate(rows):
        values = {name: value for name, value in row.items() if name in names}
        found.append(Change("c", values, 10 * number + ordinal + 1, source=source))
    return found


def compacted(stage: Stage, table: str, taken: Collection[int]) -> None:
    """Joins the files of each source into one, of which the plan takes these batches."""
    planned = []
    for source in ("one", "two"):
        mine = [file for file in stage.files[table] if file.batch_id.startswith(f"{source}/")]
        if not mine:
            continue
        rows = pa.concat_tables([pq.read_table(stage.root / file.path) for file in mine])
        seqs = [pq.read_table(stage.root / file.path).column("_cdc_seq").to_pylist() for file in mine]
        path = compacted_path(table, 0, CompactedName(source, seqs[0][0], seqs[-1][-1] + 1, 1, 0))
        (stage.root / path).parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(rows.unify_dictionaries().combine_chunks(), stage.root / path)
        data = (stage.root / path).read_bytes()
        for number, (file, own) in enumerate(zip(mine, seqs, strict=True)):
            (stage.root / file.path).unlink()
            if number in taken:
                planned.append(
                    replace(
                        file,
                        path=path,
                        batch_id=f"{source}/0000-0000000-{own[0]:010d}",
                        size_bytes=len(data),
                        sha256=hashlib.sha256(data).hexdigest(),
                        min_seq=min(own),
                        max_seq=max(own),
                        of_rows=rows.num_rows,
                    )
                )
    stage.files[table] = planned


def results(spark: SparkSession, root: Path, schema: Any, taken: Collection[int], *, join: bool) -> tuple[Any, ...]:
    stage = Stage(root)
    names = [column.name for column in schema.columns]
    for source in ("one", "two"):
        for number in range(BATCHES):
            if join or number in taken:
                stage.add(schema.name, schema, changes(source, number, names))
    if join:
        compacted(stage, schema.name, taken)
    rows, counts = merged(spark, stage, list(schema.key))
    places: Counter[Any] = Counter()
    for row in rows:
        place = row["_cdc_seq"] & MAX_OFFSET  # of a table without a key: where the batch begins
        places[*(row[name] for name in names), row["_cdc_op"], row["_cdc_source"], place] += 1
    return places, counts


@pytest.mark.parametrize(
    ("way", "taken"), [("driver", range(BATCHES)), ("driver", [1, 2]), ("driver", [0, 2, 5]), ("spark", [0, 2, 5])]
)
def test_a_run_takes_the_rows_of_its_batches_from_compacted_files(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str, taken: Collection[int]
) -> None:
    merge_by(way, monkeypatch)
    plain = results(spark, tmp_path / "plain", ITEMS, taken, join=False)
    joined = results(spark, tmp_path / "joined", ITEMS, taken, join=True)
    assert joined == plain
    assert plain[1].rows == 4 * len(list(taken))


@pytest.mark.parametrize(("way", "taken"), [("driver", range(BATCHES)), ("driver", [0, 2, 5]), ("spark", [0, 2, 5])])
def test_rows_without_a_key_keep_their_batches_in_compacted_files(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str, taken: Collection[int]
) -> None:
    merge_by(way, monkeypatch)
    plain = results(spark, tmp_path / "plain", LOG, taken, join=False)
    joined = results(spark, tmp_path / "joined", LOG, taken, join=True)
    assert joined == plain
    assert sum(plain[0].values()) == 4 * len(list(taken))
