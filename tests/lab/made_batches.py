"""Manifests made by hand, for tests of what comes behind the stage: meta, plan, commit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from cdc_core.model.batch import Manifest, Part
from cdc_core.model.coverage import How, TableCoverage
from cdc_core.model.position import Checkpoint, Position
from cdc_core.model.schema import Column, ColumnType, TableSchema
from cdc_core.stage.layout import PartName, part_path

HOUR_US = 3_600_000_000
START_US = 497_000 * HOUR_US
"""Where window 0 of the made batches begins: a full hour."""


def position(number: int, *, timeline: int = 0) -> Position:
    """The position behind the first `number` batches."""
    return Position(timeline, f"binlog.{1 + number // 100:06d}", 4 + 1000 * (number % 100))


def checkpoint(number: int, watermark_us: int = START_US) -> Checkpoint:
    return Checkpoint(position(number), gtid_set=f"0-1-{number}", server="server_id=1", watermark_us=watermark_us)


def schema(table: str = "orders", *, key: Sequence[str] = ("id",), columns: Sequence[str] = ("id", "v")) -> TableSchema:
    parts = {name: place for place, name in enumerate(key, 1)}
    return TableSchema(
        "shop", table, tuple(Column(name, ColumnType("int"), key_part=parts.get(name)) for name in columns)
    )


def manifest(
    number: int,
    *,
    source: str = "shop",
    pipeline: str = "line",
    epoch: int = 1,
    window: int = 0,
    tables: dict[str, int] | None = None,
    schemas: Sequence[TableSchema] = (),
    notes: tuple[str, ...] = (),
    end: int | None = None,
    absent_rows: int = 0,
) -> Manifest:
    """Batch `number` of a source: `tables` maps logical tables to rows; `window` counts hours from START_US.
    absent_rows: of each table."""
    rows = {"shop.orders": 10} if tables is None else tables
    definitions = schemas or [schema(name.rpartition(".")[2]) for name in rows]
    begin = position(number)
    start_us = START_US + window * HOUR_US
    parts = tuple(
        Part(
            table=name,
            path=part_path(name, start_us, PartName(source, begin.seq, epoch, index)),
            rows=count,
            size_bytes=100 * count,
            plain_bytes=200 * count,
            sha256=f"{index:064x}",
            schema_id=definition.id,
            min_seq=begin.seq,
            max_seq=begin.seq + 1,
            ops={"c": count},
            absent_rows=absent_rows,
        )
        for index, ((name, count), definition) in enumerate(zip(rows.items(), definitions, strict=True))
    )
    return Manifest(
        pipeline=pipeline,
        source=source,
        epoch=epoch,
        begin=checkpoint(number, start_us),
        end=checkpoint(number + 1 if end is None else end, start_us + HOUR_US // 2),
        window_start_us=start_us,
        window_end_us=start_us + HOUR_US,
        parts=parts,
        events=3 * sum(rows.values()),
        transactions=len(parts),
        created_us=start_us,
        notes=notes,
        schemas={definition.id: definition for definition in definitions},
    )


def covered(manifests: Sequence[Manifest], *, how: How = How.CREATED, rows: int | None = None) -> list[Manifest]:
    """The same, and the first of each source says that all tables of the source have this coverage."""
    seen: set[str] = set()
    found = []
    for batch in manifests:
        first, begin = batch.source not in seen, batch.begin.position
        seen.add(batch.source)
        names = {each.schemas[part.schema_id].name for each in manifests for part in each.parts}
        coverage = TableCoverage(how, begin.seq - 1, 0, str(begin), rows)
        found.append(replace(batch, coverage=dict.fromkeys(sorted(names), coverage)) if first else batch)
    return found
