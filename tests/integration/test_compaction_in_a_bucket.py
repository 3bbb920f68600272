"""Compaction of a stage in a bucket: readers see the same before it, after it, and without the originals. Then rows are
erased there."""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import Any

import pytest

import lockstep
from cdc_core.operations.apply import retention
from cdc_core.operations.forget.forgetting import forget
from cdc_core.stage import compactions as compaction
from cdc_core.stage import manifest
from cdc_core.stage.stores import open_store
from tests.lab.made_blocks import Made
from tests.lab.made_line import Line
from tests.lab.opened import opened_line
from tests.unit.operations.apply.test_compact import HOUR_US, Staged, insert


def test_a_bucket_is_compacted_as_a_directory_is(
    s3_server: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in s3_server.keys.items():
        monkeypatch.setenv(name, value)
    uri = f"s3://{s3_server.create_bucket(f'stage-{uuid.uuid4().hex}')}/x"
    local = Line.open(tmp_path)
    line = Line(local.pipeline, local.meta, open_store(uri, s3_endpoint=s3_server.endpoint), {})

    def seen() -> list[Any]:
        orders = lockstep.open(uri, s3_endpoint=s3_server.endpoint)["shop.orders"]
        answers = orders.changes(), orders.now(), orders.as_of("1970-01-01T02:30:00Z")
        return [rows.to_arrow().to_pylist() for rows in answers]

    with line.meta:
        staged = Staged(line, tmp_path, [])
        for hour in (0, 1, 2, 3, 30):
            staged.stage(hour * HOUR_US, Made([insert(hour), insert(100 + hour)], ts=hour * HOUR_US + 1))
        line.done("all")
        before = seen()
        assert len(staged.compact().ranges) == 1
        assert seen() == before
        assert [done.files for done in staged.removed().removed] == [4]
        assert seen() == before
        retention.sweep(opened_line(line), older_than_s=-1)
        (record,) = compaction.read(line.store, ["shop"])
        assert staged.paths("compacted/") == sorted(part.path for part in record.parts)
        assert manifest.verify(line.store, "shop", deep=True) == []
        assert len(staged.paths("changes/")) == 1
        line.meta.leases.release(line.leases.pop("shop"))
        done = forget(opened_line(line.with_targets()), "shop.orders", ["id=2", "id=30"], although_it_exists=True)
        assert [place.kind for place in done.places] == ["compacted", "staged"]
        assert seen() == [[row for row in rows if row["id"] not in (2, 30)] for rows in before]
        assert manifest.verify(line.store, "shop", deep=True) == []
