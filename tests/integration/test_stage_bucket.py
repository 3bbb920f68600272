"""A batch's whole life in a bucket: written, committed, verified, read as a state, asked by SQL, exported."""

from __future__ import annotations

import uuid

import pyarrow.parquet as pq
import pytest

from cdc_core.model.position import Checkpoint, Position
from cdc_core.model.schema import Column, ColumnType, TableSchema
from cdc_core.stage import start_record as starts
from cdc_core.stage.manifest import chain, commit, verify
from cdc_core.stage.sql_views import sql
from cdc_core.stage.stage_reader import changes, export, table_state
from cdc_core.stage.stores import open_store
from cdc_core.stage.writer import BatchWriter
from tests.lab.made_blocks import Change, Made, block

SCHEMA = TableSchema("shop", "orders", (Column("id", ColumnType("int"), False, 1), Column("note", ColumnType("text"))))


@pytest.fixture
def store(s3_server, monkeypatch):
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", s3_server.access_key)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", s3_server.secret_key)
    bucket = s3_server.create_bucket(f"life-{uuid.uuid4().hex}")
    return open_store(f"s3://{bucket}/stage", s3_endpoint=s3_server.endpoint)


def test_a_batch_in_a_bucket_reads_back_in_every_way(store, tmp_path):
    scratch = tmp_path / "scratch"
    begin = Position(0, "binlog.000001", 4)
    starts.put(store, "shop", Checkpoint(begin), pipeline="line")
    for number in range(3):
        end = Position(0, "binlog.000001", begin.offset + 200)
        writer = BatchWriter(
            store, pipeline="p", source="shop", epoch=1, begin=Checkpoint(begin), window=(0, 1), scratch_dir=scratch
        )
        row = {"id": number, "note": "x"}
        made = [Made([Change(SCHEMA, "c", row, logical="a/b 😀")]), Made([Change(SCHEMA, "c", row)])]
        writer.add(block(made, begin))
        assert commit(store, writer.finish(Checkpoint(end))).ours
        begin = end
    batches = list(chain(store, "shop"))
    assert len(batches) == 3
    assert verify(store, "shop", deep=True) == []
    assert changes(store, batches, "a/b 😀").column("id").to_pylist() == [0, 1, 2]
    assert table_state(store, batches, "shop.orders", partial=True).column("id").to_pylist() == [0, 1, 2]
    answer = sql(store, {"shop": batches}, 'SELECT count(*) AS n FROM "shop.orders_changes", "a/b 😀_changes"')
    assert answer.to_pylist() == [{"n": 9}]
    assert export(store, batches, "shop.orders", tmp_path / "out.parquet", partial=True) == 3
    assert pq.read_table(tmp_path / "out.parquet").column("id").to_pylist() == [0, 1, 2]
    assert list(scratch.iterdir()) == []
