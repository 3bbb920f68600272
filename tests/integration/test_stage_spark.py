"""Staged parts read by Spark: every type and encoding by its vectorised reader, and paths as they are."""

from __future__ import annotations

import datetime
from decimal import Decimal

import duckdb
import pandas as pd
import pyarrow.dataset as pads
import pytest

from cdc_core.model.paths import segment
from cdc_core.model.position import Checkpoint, Position
from cdc_core.model.schema import Column, ColumnType, TableSchema, parse_column_type
from cdc_core.stage.stores import open_store
from cdc_core.stage.writer import BatchWriter
from tests.lab.made_blocks import Change, Made, block

TYPES = {
    "i8": "tinyint", "u8": "tinyint unsigned", "i16": "smallint", "u16": "smallint unsigned", "u32": "int unsigned",
    "u64": "bigint unsigned", "dec": "decimal(38,10)", "small": "decimal(12,2)", "f": "float", "day": "date",
    "at": "datetime(6)", "ts": "timestamp(6)", "t": "time(3)", "y": "year", "b": "bit(1)", "bits": "bit(64)",
    "blob": "blob", "v": "vector",
}  # fmt: skip
MOMENT = datetime.datetime(2026, 11, 21, 4, 5, 6, 789012)
START = Position(0, "binlog.000001", 4)


@pytest.mark.spark
@pytest.mark.filterwarnings("ignore::ResourceWarning")  # PySpark leaves the sockets of `collect` to the collector
def test_spark_reads_every_type_and_encoding(spark, tmp_path):
    columns = tuple(Column(name, parse_column_type(text)) for name, text in TYPES.items())
    schema = TableSchema("shop", "all", (Column("id", ColumnType("int"), False, 1), *columns))
    row = {
        "i8": -128, "u8": 255, "i16": -32768, "u16": 65535, "u32": 2**32 - 1, "u64": 2**64 - 1,
        "dec": Decimal("1234567890123456789012345678.0123456789"), "small": Decimal("-1234567890.12"), "f": 0.5,
        "day": datetime.date(9999, 12, 31), "at": MOMENT, "ts": MOMENT.replace(tzinfo=datetime.UTC),
        "t": "-838:59:59.000", "y": 1901, "b": True, "bits": 2**64 - 1, "blob": bytearray(b"\x00\xff"),
        "v": [0.5, -1.0],
    }  # fmt: skip
    count = 5000
    changes = [
        Change(schema, "u", {"id": n, **row}, {"id": n, **row}, {"day": "odd"} if n % 1000 == 0 else None)
        for n in range(count)
    ]
    store = open_store(f"file://{tmp_path}/a stage")
    writer = BatchWriter(store, pipeline="p", source="shop", epoch=1, begin=Checkpoint(START), window=(0, 1))
    made = [Made([Change(c.schema, c.op, c.after, c.before, c.literal, "a=b/c% .x")], ts=n, gtid=f"0-1-{n}")
            for n, c in enumerate(changes)]  # fmt: skip
    writer.add(block(made, START))
    manifest = writer.finish(Checkpoint(Position(0, "binlog.000001", 4 + 100 * count)))
    frame = spark.read.parquet(store.spark_uri(manifest.parts[0].path))
    kinds = dict(frame.dtypes)
    rows = {record["id"]: record for record in frame.collect()}
    plan = frame._jdf.queryExecution().executedPlan().toString()
    by_partition = spark.read.parquet(f"file:{tmp_path}/a stage/changes").select("cdc_table").first()[0]
    assert "Batched: true" in plan
    assert by_partition == "a@003db@002fc@0025@0020.x"
    assert (kinds["at"], kinds["ts"], kinds["u64"], kinds["u32"]) == (
        "timestamp_ntz",
        "timestamp",
        "decimal(20,0)",
        "bigint",
    )
    assert len(rows) == count
    for number in (0, 1, 2500, count - 1):
        values = rows[number].asDict(recursive=True)
        expected = {**row, "ts": values["ts"], "u64": Decimal(2**64 - 1), "bits": Decimal(2**64 - 1)}
        assert {name: values[name] for name in row} == expected
        assert values["ts"].astimezone(datetime.UTC) == row["ts"]
        assert values["_before"]["u32"] == row["u32"]
        assert values["_cdc_gtid"] == f"0-1-{number}"
        assert values["_cdc_seq"] == START.seq + 100 * number
        assert values["_cdc_row"] == 0
        assert values["_cdc_op"] == "u"
        assert values["_cdc_literal"] == ({"day": "odd"} if number % 1000 == 0 else None)


@pytest.mark.spark
@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_every_tool_opens_the_printed_paths_and_reads_the_folders_as_the_same_columns(spark, tmp_path):
    """Whatever a table is called: '%' and letters beyond ASCII are what tools disagree about."""
    names = ["shop.orders", "shop.my-table", "db.таблица", "db.名前 é", "a/b=c", "100%", "a%2Fb", "a?b*[c]#d&e+f"]
    schema = TableSchema("shop", "t", (Column("id", ColumnType("int"), False, 1),))
    store = open_store(f"file://{tmp_path}/stage")
    writer = BatchWriter(store, pipeline="p", source="shop", epoch=1, begin=Checkpoint(START), window=(0, 1))
    rows = [Change(schema, "c", {"id": n}, None, None, name) for n, name in enumerate(names)]
    writer.add(block([Made(rows)], START))
    parts = writer.finish(Checkpoint(Position(0, "binlog.000001", 104))).parts
    day = datetime.date(1970, 1, 1)
    expected = sorted((n, segment(name), day) for n, name in enumerate(names))
    paths = [store.location(part.path) for part in parts]
    folder = f"{tmp_path}/stage/changes"

    by_duckdb = duckdb.sql(
        "SELECT id, cdc_table, cdc_date FROM read_parquet($1, hive_partitioning = true)", params=[paths]
    )
    assert sorted(by_duckdb.fetchall()) == expected
    listed = duckdb.sql(f"SELECT id, cdc_table, cdc_date FROM '{folder}/*/*/*.parquet'")
    assert sorted(listed.fetchall()) == expected
    assert sorted(int(pd.read_parquet(path)["id"].iloc[0]) for path in paths) == list(range(len(names)))
    by_arrow = pads.dataset(folder, format="parquet", partitioning="hive").to_table().to_pylist()
    assert sorted((row["id"], row["cdc_table"], row["cdc_date"]) for row in by_arrow) == [
        (n, table, str(date)) for n, table, date in expected
    ]
    by_spark = spark.read.parquet(*[store.spark_uri(part.path) for part in parts])
    assert sorted(row["id"] for row in by_spark.collect()) == list(range(len(names)))
    folders = spark.read.parquet(f"file:{folder}").select("id", "cdc_table", "cdc_date").collect()
    assert sorted(tuple(row) for row in folders) == expected
    assert all(path.isascii() for path in paths if str(tmp_path).isascii())  # else unseen by a JVM without UTF-8
