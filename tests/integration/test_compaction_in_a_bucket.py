"""Compaction of a stage in a bucket: readers see the same before it, after it, and without the originals, whatever is
killed."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

import pytest

import lockstep
from cdc_core.errors import RetryLater
from cdc_core.operations.apply import retention
from cdc_core.stage import compactions as compaction
from cdc_core.stage import manifest
from cdc_core.stage.stores import open_store
from examples.sandbox.s3 import S3Server
from tests.lab.made_blocks import Made
from tests.lab.made_line import Line
from tests.lab.opened import opened_line
from tests.unit.operations.apply.test_compact import HOUR_US, Staged, insert, killing


@dataclass
class InBucket:
    """Four batches of a day that is closed, and one of the next, at `uri`."""

    uri: str
    server: S3Server
    staged: Staged

    def seen(self) -> list[Any]:
        orders = lockstep.open(self.uri, s3_endpoint=self.server.endpoint)["shop.orders"]
        answers = orders.changes(), orders.now(), orders.as_of("1970-01-01T02:30:00Z")
        return [rows.to_arrow().to_pylist() for rows in answers]

    def is_compacted_once(self) -> None:
        """Nothing that a killed compaction has left counts, and a sweep finds no part that does."""
        line = self.staged.line
        retention.sweep(opened_line(line), older_than_s=-1)
        (record,) = compaction.read(line.store, ["shop"])
        assert self.staged.paths("compacted/") == sorted(part.path for part in record.parts)
        assert manifest.verify(line.store, "shop", deep=True) == []


@contextmanager
def in_bucket(server: S3Server, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[InBucket]:
    for name, value in server.keys.items():
        monkeypatch.setenv(name, value)
    uri = f"s3://{server.create_bucket(f'stage-{uuid.uuid4().hex}')}/x"
    folder.mkdir(exist_ok=True)
    line = Line.open(folder)
    with line.meta:
        staged = Staged(Line(line.pipeline, line.meta, open_store(uri, s3_endpoint=server.endpoint), {}), folder, [])
        for hour in range(4):
            staged.stage(hour * HOUR_US, Made([insert(hour), insert(100 + hour)], ts=hour * HOUR_US + 1))
        staged.stage(30 * HOUR_US, Made([insert(50)], ts=30 * HOUR_US))
        staged.line.done("all")
        yield InBucket(uri, server, staged)


def test_a_bucket_is_compacted_as_a_directory_is(
    s3_server: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with in_bucket(s3_server, tmp_path, monkeypatch) as one:
        before = one.seen()
        assert len(one.staged.compact().ranges) == 1
        assert one.seen() == before
        assert [done.files for done in one.staged.removed().removed] == [4]
        assert one.seen() == before
        one.is_compacted_once()
        assert len(one.staged.paths("changes/")) == 1


@pytest.mark.matrix
@pytest.mark.parametrize("removing", [False, True])
def test_killed_at_any_step_in_a_bucket_nothing_is_lost_or_seen_twice(
    s3_server: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, removing: bool
) -> None:
    for step in count(1):
        with in_bucket(s3_server, tmp_path / str(step), monkeypatch) as one:
            before = one.seen()
            if removing:
                one.staged.compact()
            work: Callable[[], object] = one.staged.removed if removing else one.staged.compact
            killed = killing(one.staged, monkeypatch, step, work)
            assert one.seen() == before
            work()
            assert one.seen() == before
            one.is_compacted_once()
        if not killed:
            break
    assert step > 6


@pytest.mark.matrix
@pytest.mark.parametrize("call", ["open_output", "put_if_absent", "delete"])
@pytest.mark.parametrize("when", ["before", "after"])
def test_the_server_may_be_killed_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str, when: str
) -> None:
    with S3Server.start() as server, in_bucket(server, tmp_path, monkeypatch) as one:
        before = one.seen()
        if call == "delete":
            one.staged.compact()
        real, struck = getattr(one.staged.line.store, call), []

        def dying(*args: Any, **options: Any) -> Any:
            if when == "before" and not struck:
                struck.append(server.kill())
            result = real(*args, **options)
            if not struck:
                struck.append(server.kill())
            return result

        with monkeypatch.context() as patch:
            patch.setattr(one.staged.line.store, call, dying)
            with pytest.raises(RetryLater):
                one.staged.removed()
        assert struck
        server.restart()
        assert one.seen() == before
        one.staged.removed()
        assert one.seen() == before
        one.is_compacted_once()
        assert len(one.staged.paths("changes/")) == 1
