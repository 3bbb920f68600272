"""A stager killed by SIGKILL at every step of a commit: nothing half is visible, and the next one makes one chain."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from cdc_core.stage.manifest import chain, sweep, verify
from cdc_core.stage.stores import open_store
from examples.sandbox.s3 import S3Server
from tests.integration.dying_stager import TRANSACTIONS, place
from tests.lab.staged_tables import changes

ROOT = Path(__file__).parents[2]
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

Run = Callable[..., int]


@pytest.fixture(scope="module")
def run(s3_server: S3Server) -> Iterator[Run]:
    """Stages in a process of its own; its exit code."""
    with subprocess.Popen(
        [sys.executable, "-m", "tests.integration.dying_stager"],
        cwd=ROOT, env=os.environ | s3_server.keys, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    ) as stager:  # fmt: skip
        assert stager.stdin is not None
        assert stager.stdout is not None

        def run(*arguments: object) -> int:
            print(json.dumps(arguments), file=stager.stdin, flush=True)
            return int(stager.stdout.readline())

        yield run
        stager.stdin.close()


def check(run: Run, uri: str, endpoint: str, step: str, scratch: Path) -> None:
    store = open_store(uri, s3_endpoint=endpoint or None)
    assert run(uri, endpoint, 1, step, str(scratch)) == -signal.SIGKILL, "the step was not reached"
    half = list(chain(store, "shop"))
    assert verify(store, "shop", deep=True) == []
    assert len(half) == BATCHES_BY_THEN[step]
    assert run(uri, endpoint, 2, "never", str(scratch)) == 0
    batches = list(chain(store, "shop"))
    assert batches[: len(half)] == half
    assert batches[-1].end.position == place(TRANSACTIONS)
    for table in ("shop.orders", "shop.items"):
        assert changes(store, batches, table).column("id").to_pylist() == list(range(TRANSACTIONS))
    sweep(store, "shop", live_epoch=3, older_than_s=-3600)
    listed = {part.path for batch in batches for part in batch.parts}
    assert {info.path for info in store.list("changes/")} == listed
    assert verify(store, "shop", deep=True) == []


@pytest.mark.parametrize("step", BATCHES_BY_THEN)
def test_a_stager_killed_in_a_directory_loses_nothing_and_stages_nothing_twice(
    run: Run, tmp_path: Path, step: str
) -> None:
    check(run, f"file://{tmp_path}/stage", "", step, tmp_path / "scratch")
    left = [path.name for path in (tmp_path / "stage").rglob("*") if path.name.startswith(".tmp-")]
    assert left == []


@pytest.mark.parametrize("step", S3_STEPS)
def test_a_stager_killed_at_a_bucket_loses_nothing_and_stages_nothing_twice(
    run: Run, tmp_path: Path, s3_server: S3Server, bucket: str, step: str
) -> None:
    check(run, f"s3://{bucket}/stage", s3_server.endpoint, step, tmp_path / "scratch")
