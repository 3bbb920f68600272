"""Batches of files that the product's writer has written, of transactions that a test writes down."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from cdc_core.model.batch import Manifest
from cdc_core.model.position import Checkpoint
from cdc_core.model.schema import Column, ColumnType, TableSchema
from cdc_core.stage.objects import ObjectStore
from cdc_core.stage.writer import BatchWriter
from tests.lab.made_batches import HOUR_US, covered
from tests.lab.made_blocks import Change, Made, at, block

ID = Column("id", ColumnType("int"), False, 1)
NOTE = Column("note", ColumnType("varchar", length=50, charset="utf8mb4"))
ORDERS = TableSchema("shop", "orders", (ID, NOTE))
KEYLESS = TableSchema("shop", "log", (Column("n", ColumnType("int")), NOTE))


def written(
    store: ObjectStore,
    begin: int,
    made: Sequence[Made],
    *,
    source: str = "shop",
    epoch: int = 1,
    window: tuple[int, int] = (0, HOUR_US),
    watermark_us: int = 0,
) -> Manifest:
    """A batch of transactions after the first `begin` ones. Its parts are durable, its manifest is not committed."""
    writer = BatchWriter(store, pipeline="p", source=source, epoch=epoch, begin=Checkpoint(at(begin)), window=window)
    writer.add(block(made, at(begin), source=source))
    return writer.finish(Checkpoint(at(begin + len(made)), watermark_us=watermark_us))


def stage(store: ObjectStore, *batches: Sequence[Made], source: str = "shop") -> list[Manifest]:
    """One manifest for each list of transactions, one after the other; none is committed."""
    begin, manifests = 0, []
    for made in batches:
        manifests.append(written(store, begin, made, source=source))
        begin += len(made)
    return covered(manifests)


def insert(number: int, note: str | None = "n", schema: TableSchema = ORDERS, **rest: Any) -> Change:
    return Change(schema, "c", {schema.columns[0].name: number, "note": note}, **rest)


def delete(number: int, note: str | None = "n", schema: TableSchema = ORDERS, **rest: Any) -> Change:
    return Change(schema, "d", {schema.columns[0].name: number, "note": note}, **rest)


def update(
    old: tuple[int, str | None], new: tuple[int, str | None], schema: TableSchema = ORDERS, **rest: Any
) -> Change:
    key = schema.columns[0].name
    return Change(schema, "u", {key: new[0], "note": new[1]}, {key: old[0], "note": old[1]}, **rest)


def truncate(schema: TableSchema = ORDERS, **rest: Any) -> Change:
    return Change(schema, "t", {}, **rest)


def rows(table: pa.Table, *names: str) -> list[tuple[Any, ...]]:
    return [tuple(row[name] for name in names) for row in table.to_pylist()]
