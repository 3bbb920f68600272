"""Compaction of a stage in a bucket: readers see the same before it, after it, and without the originals."""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import Any

import pytest

import lockstep
from cdc_core.stage import manifest
from cdc_core.stage.stores import open_store
from tests.made_blocks import Made
from tests.unit.apply.made_line import Line
from tests.unit.apply.test_compaction import HOUR_US, Staged, insert


def test_a_bucket_is_compacted_as_a_directory_is(
    s3_server: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", s3_server.access_key)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", s3_server.secret_key)
    uri = f"s3://{s3_server.create_bucket(f'stage-{uuid.uuid4().hex}')}/x"
    store = open_store(uri, s3_endpoint=s3_server.endpoint)
    line = Line.open(tmp_path)

    def seen() -> list[Any]:
        orders = lockstep.open(uri, s3_endpoint=s3_server.endpoint)["shop.orders"]
        answers = orders.changes(), orders.now(), orders.as_of("1970-01-01T02:30:00Z")
        return [rows.to_arrow().to_pylist() for rows in answers]

    with line.meta:
        staged = Staged(Line(line.pipeline, line.meta, store, {}), tmp_path, [])
        for hour in range(4):
            staged.stage(hour * HOUR_US, Made([insert(hour), insert(100 + hour)], ts=hour * HOUR_US + 1))
        staged.stage(30 * HOUR_US, Made([insert(50)], ts=30 * HOUR_US))
        staged.line.done("all")
        before = seen()
        assert len(staged.compact().ranges) == 1
        assert seen() == before
        assert [one.files for one in staged.removed().removed] == [4]
        assert seen() == before
        assert manifest.verify(store, "shop", deep=True) == []
        assert (len(staged.paths("changes/")), len(staged.paths("compacted/"))) == (1, 1)
