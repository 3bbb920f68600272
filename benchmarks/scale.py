"""What a pipeline of many tables costs a day: objects, requests, rows of meta and bytes; docs/scale.md explains them.

    make bench-scale                                     3,000 tables, 6 batches: a real run, counted and extrapolated
    make bench-scale BENCH_ARGS="--tables 300 --batches 20"

The formulae are `staged`, `compaction`, `removal` and `reading`. tests/unit/operations/apply/test_scale.py holds them
against real runs whose requests are counted at the interface of the store.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cdc_core.model.batch import Manifest
from cdc_core.model.block import Block, Entries, EntryGtids, EntryKind, TableRows
from cdc_core.model.position import Checkpoint, Position
from cdc_core.model.schema import TableSchema
from cdc_core.model.staged_columns import staged_schema
from cdc_core.stage import manifest as manifests
from cdc_core.stage import start_record
from cdc_core.stage.compacting import compact
from cdc_core.stage.objects import ObjectStore
from cdc_core.stage.stores import open_store
from cdc_core.stage.writer import BatchWriter


@dataclass(frozen=True)
class Load:
    """Of a source, a day. batches: staged. changed: tables with rows in a batch, on average. tables: with rows in more
    than one batch of the day. targets: that take all of it."""

    batches: int
    changed: float
    tables: int
    targets: int = 1

    @property
    def parts(self) -> int:
        return round(self.batches * self.changed)


@dataclass(frozen=True)
class Cost:
    """Objects that are added, or removed if negative; requests by kind; rows of meta."""

    objects: int = 0
    puts: int = 0
    gets: int = 0
    deletes: int = 0
    rows: int = 0


def staged(load: Load) -> Cost:
    """A part for each table and batch, and a manifest; a batch row, a file row for each part, a record for each part
    and target."""
    objects = load.parts + load.batches
    return Cost(objects=objects, puts=objects, rows=load.batches + load.parts * (1 + load.targets))


def compaction(load: Load) -> Cost:
    """Reads the manifests, writes a file for each table and the record, and reads each file beside its parts, which it
    has read to write it. A part below a megabyte is one GET."""
    return Cost(objects=load.tables + 1, puts=load.tables + 1, gets=load.batches + 2 * load.parts + load.tables, rows=0)


def removal(load: Load) -> Cost:
    """Reads the manifests, the record and each file once, and removes the parts; a mark says that it is done."""
    return Cost(objects=1 - load.parts, puts=1, gets=load.batches + 1 + load.tables, deletes=load.parts)


def opening(load: Load, *, compacted: bool) -> int:
    """GETs of a reader that opens the stage and then a table that changed in every batch."""
    return 2 if compacted else 2 * load.batches


_COUNTED = ("put", "put_if_absent", "open_output", "get", "open_input", "delete", "stat")


class Counting:
    """A store that counts what is asked of it."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store
        self.calls: Counter[str] = Counter()

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._store, name)
        if name not in _COUNTED:
            return found

        def call(*args: Any, **options: Any) -> Any:
            self.calls[name] += 1
            return found(*args, **options)

        return call

    def local_path(self, path: str) -> None:
        """As in a bucket: readers copy a file once, and verify the copy."""

    @property
    def puts(self) -> int:
        return sum(self.calls[name] for name in ("put", "put_if_absent", "open_output"))

    @property
    def gets(self) -> int:
        return self.calls["get"] + self.calls["open_input"]


def a_batch(store: ObjectStore, number: int, schemas: list[TableSchema]) -> Manifest:
    """A minute in which one transaction inserts a row into each table."""
    import numpy as np
    import pyarrow as pa

    begin, end = (Position(0, "binlog.000001", 4 + 1_000_000 * at) for at in (number, number + 1))
    ts_us = 1_767_225_600_000_000 + number * 60_000_000
    tables = []
    for at, schema in enumerate(schemas):
        row: dict[str, Any] = {column.name: f"value {number} {at}" for column in schema.columns} | {"id": number}
        row |= {"_before": None, "_cdc_op": "c", "_cdc_ts": ts_us, "_cdc_source": "shop", "_cdc_file": "binlog.000001"}
        row |= {"_cdc_pos": begin.offset, "_cdc_row": at << 24, "_cdc_seq": begin.seq, "_cdc_gtid": f"0-1-{number}"}
        rows = pa.RecordBatch.from_pylist([row], schema=staged_schema(schema))
        tables.append(TableRows(schema, schema.name, rows, np.zeros(1, np.int32)))
    one = np.ones(1, np.int64)
    entries = Entries(
        kind=np.array([EntryKind.TRANSACTION], np.uint8),
        begin=one * begin.offset,
        end=one * end.offset,
        seq=one * begin.seq,
        commit_ts_us=one * ts_us,
        events=one,
        rows=one * len(schemas),
        size_bytes=one,
        gtids=EntryGtids(["0-1-"], np.zeros(1, np.int64), one * number),
        trace=one * begin.offset,
        trace_crc=one,
    )
    window_us = 1_767_225_600_000_000
    writer = BatchWriter(
        store, pipeline="scale", source="shop", epoch=1, begin=Checkpoint(begin), window=(window_us, window_us + 1)
    )
    writer.add(Block("shop", begin, end, entries, tuple(tables), {}, ()))
    made = writer.finish(Checkpoint(end))
    manifests.commit(store, made)
    return made


def main() -> None:
    from benchmarks.chain import definition

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tables", type=int, default=3000)
    parser.add_argument("--batches", type=int, default=6)
    asked = parser.parse_args()
    schemas = [definition(number) for number in range(asked.tables)]
    with tempfile.TemporaryDirectory(prefix="lockstep-scale-") as folder:
        store = Counting(open_store(Path(folder, "stage").absolute().as_uri()))
        start_record.put(store, "shop", Checkpoint(Position(0, "binlog.000001", 4)), pipeline="scale")
        cpu_s, store.calls = time.process_time(), Counter()
        made = [a_batch(store, number, schemas) for number in range(asked.batches)]
        staged_s, puts = time.process_time() - cpu_s, store.puts
        text = sum(len(manifest.to_bytes()) for manifest in made)
        parts = sum(manifest.size_bytes for manifest in made)
        cpu_s, store.calls = time.process_time(), Counter()
        record = compact(store, made, epoch=1, created_us=0, level=1)
        compacted_s = time.process_time() - cpu_s
        print(f"{asked.batches} batches of {asked.tables:,} tables, one row of 20 columns each")
        print(f"staged     {puts:>9,} PUT   {staged_s / asked.batches:8.2f} CPU s a batch")
        print(f"parts      {parts / asked.batches / asked.tables:>9,.0f} bytes each")
        print(f"manifest   {text / asked.batches / asked.tables:>9,.0f} bytes for each part")
        print(f"compaction {store.gets:>9,} GET   {1000 * compacted_s / puts:8.2f} CPU ms a part")
        print(f"files      {record.size_bytes / asked.tables:>9,.0f} bytes each, {asked.batches} rows")
        print(f"record     {len(record.to_bytes()) / asked.tables:>9,.0f} bytes for each table")


if __name__ == "__main__":
    main()
