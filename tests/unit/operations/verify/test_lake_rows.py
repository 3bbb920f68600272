"""What verification asks of a mirror: rows as of now, by ranges and by keys, whatever somebody else has made of it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.table.update import RemoveSnapshotsUpdate

from cdc_core.config import IcebergTarget
from cdc_core.errors import DataAtRisk, TableUnready
from cdc_core.lake.data_files import write_rows
from cdc_core.lake.lake_tables import MirrorRule, create
from cdc_core.lake.snapshots import MAIN, FileChange, LiveFiles, head, on_branch, snapshot_of, table_files
from cdc_core.model.places import in_order
from cdc_core.model.schema import Column, ColumnType, TableSchema
from cdc_core.model.version import VERSION_COLUMN
from cdc_core.operations.verify.lake_rows import LakeSide
from cdc_core.operations.verify.shape import RowRange, Shape, shape_of

_COLUMNS = (
    Column("day", ColumnType("date"), False, 1),
    Column("n", ColumnType("int"), False, 2),
    Column("v", ColumnType("tinyint", unsigned=True)),
)
SCHEMA = TableSchema("shop", "t", _COLUMNS)
COLUMNS = [pa.field("day", pa.date32()), pa.field("n", pa.int32()), pa.field("v", pa.int16())]
KEY = ("day", "n")
Row = tuple[int, int, int]


class Lake:
    """A mirror that anybody writes."""

    def __init__(self, folder: Path) -> None:
        self.catalog = SqlCatalog("lake", uri=f"sqlite:///{folder}/catalog.db", warehouse=folder.as_uri())
        self.rule = MirrorRule("shop.t", "shop/lake", tuple(KEY), flagged=False)
        create(self.catalog, ("ns", "t"), self.rule, COLUMNS)

    @property
    def table(self) -> Any:
        return self.catalog.load_table("ns.t")

    def write(self, *rows: Row, instead: bool = False) -> None:
        """instead: of the rows that are there."""
        table = self.table
        live, files = LiveFiles(table, head(table), KEY), table_files(table, table.schema(), KEY)
        columns = dict(zip(("day", "n", "v"), map(list, zip(*rows, strict=True)), strict=True))
        made = pa.table({**columns, VERSION_COLUMN: [b"v"] * len(rows)})
        days = made.set_column(0, "day", made.column("day").cast(pa.int32()).cast(pa.date32()))
        added = tuple(write_rows(files, in_order(days.cast(files.columns), KEY)))
        snapshot = snapshot_of(live, FileChange(added, frozenset(live.data if instead else ())), table.schema(), {})
        on_branch(snapshot, MAIN)

    def shape(self) -> Shape:
        target = IcebergTarget.model_validate(
            {"name": "lake", "kind": "iceberg", "catalog": {"type": "sql"}, "namespace": "ns", "tables": {"*": {}}}
        )
        side = LakeSide.opened(target, self.catalog, self.rule, shared=False)
        return shape_of(side, [SCHEMA], [SCHEMA])


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    made = Lake(tmp_path)
    made.write((0, 1, 5), (0, 2, 6), (31, 1, 7))
    return made


EVERY = RowRange()


def values(shape: Shape, range_: RowRange = EVERY) -> list[int]:
    return [value for _, batch, _ in shape.side.batches(shape, range_) for value in batch.column("v").to_pylist()]


def test_rows_are_those_of_the_last_renewal(lake: Lake) -> None:
    shape = lake.shape()
    lake.write((5, 5, 8))
    assert (values(shape), shape.side.count(shape)) == ([5, 6, 7], 3)
    shape.side.renew()
    assert (sorted(values(shape)), shape.side.count(shape)) == ([5, 6, 7, 8], 4)


def test_ranges_are_cut_by_literals_of_the_server(lake: Lake) -> None:
    shape = lake.shape()
    assert shape.side.why_whole(SCHEMA) == ""
    assert values(shape, RowRange((), ("'1970-01-01'", "1"))) == [5]
    assert values(shape, RowRange(("'1970-01-01'", "1"), ("'1970-01-31'", "9"))) == [6]
    assert values(shape, RowRange(("'1970-01-31'", "9"))) == [7]
    assert values(shape, RowRange((), ("'1970-01-01'", "1 DESC"))) == [6, 5]
    assert values(shape, RowRange(("'0000-00-00'", "1"), ("'1970-02-00'", "9"))) == [5, 6]


def test_rows_are_found_by_their_keys(lake: Lake) -> None:
    shape = lake.shape()
    assert values(shape, RowRange(wanted=["1970-01-01\t2", "1970-02-01\t1", "1970-02-01\t9"])) == [6, 7]
    assert values(shape, RowRange(wanted=["0000-00-00\t2"])) == []


def test_a_mirror_reaches_a_key_that_is_its_last(lake: Lake) -> None:
    shape = lake.shape()
    keys = [("'1970-02-01'", "1"), ("'1970-01-01'", "2"), ("'1970-02-01'", "2")]
    assert [shape.side.reaches(shape, key) for key in keys] == [True, False, False]


def test_values_that_the_source_cannot_have_are_compared_as_they_are(lake: Lake) -> None:
    lake.write((0, 1, 300), instead=True)
    ((_, batch, _),) = lake.shape().side.batches(lake.shape(), RowRange())
    assert (batch.column("v").type, batch.column("v").to_pylist()) == (pa.int32(), [300])
    assert lake.shape().columns[2].type.arrow == pa.uint8()


def test_a_snapshot_that_expires_while_it_is_read_is_no_loss_of_files(lake: Lake) -> None:
    shape = lake.shape()
    old = head(lake.table)
    assert old is not None
    (path,) = LiveFiles(lake.table, old, KEY).data
    lake.write((9, 9, 9), instead=True)
    os.remove(path.removeprefix("file://"))
    with pytest.raises(DataAtRisk) as lost:
        values(shape)
    assert lost.value.code == "lake.files_lost"
    expired = RemoveSnapshotsUpdate.model_validate({"snapshot-ids": [old.snapshot_id]})
    lake.catalog.commit_table(lake.table, (), (expired,))
    with pytest.raises(TableUnready):
        values(shape)
    shape.side.renew()
    assert values(shape) == [9]
