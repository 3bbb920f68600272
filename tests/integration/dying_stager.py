"""Stages batches and dies by SIGKILL at a step: answers each line of stdin, a JSON of the arguments of `stage`, with
the exit code of a process that is forked for it. Loading takes longer than staging does."""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas  # noqa: F401 - pyarrow would load it in each process

from cdc_core.model.position import Checkpoint, Position
from cdc_core.model.schema import Column, ColumnType, TableSchema
from cdc_core.stage import files, manifest, parquet, s3, start_record
from cdc_core.stage.stores import open_store
from cdc_core.stage.writer import BatchWriter
from tests.lab.made_blocks import Change, Made, block

TRANSACTIONS, PER_BATCH = 60, 20
ORDERS = TableSchema("shop", "orders", (Column("id", ColumnType("int"), False, 1),))
ITEMS = TableSchema("shop", "items", ORDERS.columns)


def place(number: int) -> Position:
    return Position(0, "binlog.000001", 4 + 100 * number)


def dying(owner: Any, name: str, *, after: bool, nth: int = 2) -> None:
    real, calls = getattr(owner, name), [0]

    def call(*arguments: Any, **named: Any) -> Any:
        calls[0] += 1
        mine = calls[0]
        if mine == nth and not after:
            os.kill(os.getpid(), signal.SIGKILL)
        result = real(*arguments, **named)
        if mine == nth and after:
            os.kill(os.getpid(), signal.SIGKILL)
        return result

    setattr(owner, name, call)


def steps(store: Any, endpoint: str) -> dict[str, Callable[[], None]]:
    output: Any = s3.S3Output if endpoint else files.FileOutput
    put = "_conditionally" if endpoint else "put_if_absent"
    # Parts of a bucket are put conditionally as well: two parts and a manifest for each batch.
    second = 6 if endpoint else 2
    return {
        "first bytes of a part": lambda: dying(output, "write", after=True, nth=5),
        "before a part is durable": lambda: dying(output, "publish", after=False, nth=3),
        "between two parts": lambda: dying(output, "publish", after=True, nth=3),
        "all parts durable": lambda: dying(type(store), put, after=False, nth=second),
        "manifest's temporary file": lambda: dying(os, "link", after=False),
        "manifest linked": lambda: dying(os, "link", after=True),
        "manifest put": lambda: dying(type(store), put, after=True, nth=second),
        "never": lambda: None,
    }


def stage(uri: str, endpoint: str, epoch: int, step: str, scratch: str) -> None:
    store = open_store(uri, s3_endpoint=endpoint or None)
    parquet.ROW_GROUP_ROWS = 8
    parquet._BUFFER = 500
    start_record.put(store, "shop", Checkpoint(place(0)), pipeline="p")
    steps(store, endpoint)[step]()
    begin = place(0)
    for done in manifest.chain(store, "shop"):
        begin = done.end.position
    for first in range((begin.offset - 4) // 100, TRANSACTIONS, PER_BATCH):
        writer = BatchWriter(
            store, pipeline="p", source="shop", epoch=epoch, begin=Checkpoint(place(first)),
            window=(0, 3_600_000_000), scratch_dir=Path(scratch),
        )  # fmt: skip
        for at in range(first, first + PER_BATCH):
            made = Made([Change(ORDERS, "c", {"id": at}), Change(ITEMS, "c", {"id": at})], ts=at)
            writer.add(block([made], place(at)))
        batch = writer.finish(Checkpoint(place(first + PER_BATCH)))
        assert manifest.commit(store, batch).ours


if __name__ == "__main__":
    assert threading.active_count() == 1, "a fork would lose threads"
    while line := sys.stdin.readline():
        child = os.fork()
        if child == 0:
            stage(*json.loads(line))
            os._exit(0)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
