"""A stager killed by SIGKILL at every step of a commit: nothing half is visible, and the next one makes one chain."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import uuid
from pathlib import Path

import pytest

from cdc_core.model.position import Position
from cdc_core.stage.manifest import chain, sweep, verify
from cdc_core.stage.stage_reader import changes
from cdc_core.stage.stores import open_store

ROOT = Path(__file__).parents[2]
TRANSACTIONS = 60
STAGER = """
import os, signal, sys
from tests.lab.made_blocks import Change, Made, block
from cdc_core.model.block import EntryKind
from cdc_core.model.position import Checkpoint, Position
from cdc_core.model.schema import Column, ColumnType, TableSchema
from cdc_core.stage import files, manifest, parquet, s3, start_record
from cdc_core.stage.stores import open_store
from cdc_core.stage.writer import BatchWriter

uri, endpoint, epoch, step, scratch = sys.argv[1:6]
store = open_store(uri, s3_endpoint=endpoint or None)
schema = TableSchema("shop", "orders", (Column("id", ColumnType("int"), False, 1),))
other = TableSchema("shop", "items", schema.columns)
parquet.ROW_GROUP_ROWS = 8
parquet._BUFFER = 500

def die():
    os.kill(os.getpid(), signal.SIGKILL)

def dying(owner, name, after, nth=2):
    real, calls = getattr(owner, name), [0]
    def call(*args, **rest):
        calls[0] += 1
        mine = calls[0]
        if mine == nth and not after:
            die()
        result = real(*args, **rest)
        if mine == nth and after:
            die()
        return result
    setattr(owner, name, call)

output = s3.S3Output if endpoint else files.FileOutput
kind = type(store)
STEPS = {
    "first bytes of a part": lambda: dying(output, "write", True, 5),
    "before a part is durable": lambda: dying(output, "publish", False, 3),
    "between two parts": lambda: dying(output, "publish", True, 3),
    "all parts durable": lambda: dying(kind, "put_if_absent" if not endpoint else "_conditionally", False, MANIFEST),
    "manifest's temporary file": lambda: dying(files.os, "link", False, 2),
    "manifest linked": lambda: dying(files.os, "link", True, 2),
    "manifest put": lambda: dying(kind, "put_if_absent" if not endpoint else "_conditionally", True, MANIFEST),
}
# Parts of a bucket are put conditionally as well: two parts and a manifest for each batch.
MANIFEST = 6 if endpoint else 2
start_record.put(store, "shop", Checkpoint(Position(0, "binlog.000001", 4)), pipeline="p")
if step != "never":
    STEPS[step]()

place = Position(0, "binlog.000001", 4)
for done in manifest.chain(store, "shop"):
    place = done.end.position
number = (place.offset - 4) // 100
while number < 60:
    stop = number + 20
    writer = BatchWriter(store, pipeline="p", source="shop", epoch=int(epoch), begin=Checkpoint(place),
                         window=(0, 3_600_000_000), scratch_dir=__import__("pathlib").Path(scratch))
    for at in range(number, stop):
        made = Made([Change(schema, "c", {"id": at}), Change(other, "c", {"id": at})], ts=at)
        writer.add(block([made], Position(0, "binlog.000001", 4 + 100 * at)))
    batch = writer.finish(Checkpoint(Position(0, "binlog.000001", 4 + 100 * stop)))
    assert manifest.commit(store, batch).ours
    place, number = batch.end.position, stop
"""
BATCHES_BY_THEN = {
    "first bytes of a part": 0,
    "before a part is durable": 1,
    "between two parts": 1,
    "all parts durable": 1,
    "manifest's temporary file": 1,
    "manifest linked": 2,
    "manifest put": 2,
}
S3_STEPS = [step for step in BATCHES_BY_THEN if step not in ("manifest's temporary file", "manifest linked")]


def run(uri: str, endpoint: str, epoch: int, step: str, scratch: Path) -> int:
    answer = subprocess.run(
        [sys.executable, "-c", STAGER, uri, endpoint, str(epoch), step, str(scratch)],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert answer.returncode in (0, -signal.SIGKILL), answer.stderr
    return answer.returncode


def check(uri: str, endpoint: str, step: str, tmp_path: Path) -> None:
    store = open_store(uri, s3_endpoint=endpoint or None)
    assert run(uri, endpoint, 1, step, tmp_path) == -signal.SIGKILL, "the step was not reached"
    half = list(chain(store, "shop"))
    assert verify(store, "shop", deep=True) == []
    assert len(half) == BATCHES_BY_THEN[step]
    assert run(uri, endpoint, 2, "never", tmp_path) == 0
    batches = list(chain(store, "shop"))
    assert batches[: len(half)] == half
    assert [batch.end.position for batch in batches][-1] == Position(0, "binlog.000001", 4 + 100 * TRANSACTIONS)
    for table in ("shop.orders", "shop.items"):
        assert changes(store, batches, table).column("id").to_pylist() == list(range(TRANSACTIONS))
    sweep(store, "shop", live_epoch=3, older_than_s=-3600)
    listed = {part.path for batch in batches for part in batch.parts}
    assert {info.path for info in store.list("changes/")} == listed
    assert verify(store, "shop", deep=True) == []


@pytest.mark.parametrize("step", BATCHES_BY_THEN)
def test_a_stager_killed_in_a_directory_loses_nothing_and_stages_nothing_twice(tmp_path, step):
    check(f"file://{tmp_path}/stage", "", step, tmp_path / "scratch")
    left = [path.name for path in (tmp_path / "stage").rglob("*") if path.name.startswith(".tmp-")]
    assert left == []


@pytest.mark.parametrize("step", S3_STEPS)
def test_a_stager_killed_at_a_bucket_loses_nothing_and_stages_nothing_twice(tmp_path, s3_server, monkeypatch, step):
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", s3_server.access_key)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", s3_server.secret_key)
    bucket = s3_server.create_bucket(f"kills-{uuid.uuid4().hex}")
    check(f"s3://{bucket}/stage", s3_server.endpoint, step, tmp_path / "scratch")
