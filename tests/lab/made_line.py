"""A pipeline of one or two sources with a meta database and a stage of its own, and tasks that are played by hand."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cdc_core.config import Pipeline
from cdc_core.meta import Lease, Meta
from cdc_core.model.batch import Manifest
from cdc_core.model.run_plan import (
    FilterCounts,
    MergeCounts,
    RunPlan,
    WriteCounts,
    counts_path,
    counts_to_bytes,
    quality_report,
)
from cdc_core.operations.apply import commit, plan
from cdc_core.stage import start_record as starts
from cdc_core.stage.objects import ObjectStore
from cdc_core.stage.stores import open_store
from tests.lab.made_batches import HOUR_US, START_US, checkpoint
from tests.lab.opened import empty_meta, opened_line

WINDOW = (START_US, START_US + HOUR_US)
NEXT_WINDOW = (START_US + HOUR_US, START_US + 2 * HOUR_US)


def pipeline(root: Path, **changed: Any) -> Pipeline:
    return Pipeline.model_validate(
        {
            "pipeline": "line",
            "sources": [{"name": "shop", "connection": "env:SHOP", "server_id": 7}],
            "tables": {"include": [".*"]},
            "stage": {"uri": f"file://{root}/stage"},
            "meta": {"url": f"sqlite:///{root}/meta.db"},
            "targets": [{"name": "t", "connections": ["env:T"], "tables": {"*": {}}}],
        }
        | changed
    )


@dataclass
class Line:
    """`stage` plays the extractors, `apply` the Spark tasks of a run."""

    pipeline: Pipeline
    meta: Meta
    store: ObjectStore
    leases: dict[str, Lease]

    @classmethod
    def open(cls, root: Path, **changed: Any) -> Line:
        made = pipeline(root, **changed)
        (root / "stage").mkdir(exist_ok=True)
        if not (root / "meta.db").exists():
            (root / "meta.db").write_bytes(empty_meta())
        return cls(made, Meta.open(made.meta.url, made.pipeline), open_store(made.stage.uri), {})

    def with_targets(self, *targets: dict[str, Any]) -> Line:
        data = self.pipeline.model_dump() | {
            "targets": [{"connections": ["env:T"], "tables": {"*": {}}} | target for target in targets]
        }
        return Line(Pipeline.model_validate(data), self.meta, self.store, self.leases)

    def stage(self, *manifests: Manifest, until_us: int | None = None) -> None:
        """Record the batches; `until_us` is the watermark the last one's source has reached."""
        for manifest in manifests:
            lease = self._lease(manifest.source)
            starts.put(self.store, manifest.source, manifest.begin, pipeline="line")
            self.store.put(manifest.path, manifest.to_bytes())
            self.meta.batches.commit(lease, manifest)
        if until_us is not None:
            last = self.meta.positions.checkpoint(manifests[-1].source)
            self.meta.positions.advance_watermark(self._lease(manifests[-1].source), _reached(last, until_us))

    def idle(self, source: str, until_us: int) -> None:
        """A source that has logged nothing at all."""
        self.meta.positions.advance_watermark(self._lease(source), checkpoint(0, until_us))

    def _lease(self, source: str) -> Lease:
        if source not in self.leases:
            self.leases[source] = self.meta.leases.acquire(source, "test", 600)
        return self.leases[source]

    def plan(self, run_id: str, window: tuple[int, int] | None = None, **options: Any) -> RunPlan:
        return plan.plan(opened_line(self), window=window, run_id=run_id, **options)

    def apply(self, run: RunPlan, target: str = "t", **altered: Any) -> None:
        """merge, filter, write and quality, as if every change were an insert; `altered` bends one count or result."""
        tables = run.merge_set(run.target(target).merge_set).tables
        merged = [MergeCounts(table.table, table.rows, 0, table.rows, 0) for table in tables]
        filtered = [FilterCounts(table.table, table.rows, 0, 0, 0, 0, 0) for table in tables]
        written = [WriteCounts(table.table, "0", table.rows, 0, 0) for table in tables]
        self.put_counts(run, target, merged, filtered, altered.get("written", written))
        results = altered.get("quality", {"target.json": {"success": True}})
        for name, result in results.items():
            self.store.put(f"{run.quality_folder(target)}/{name}", json.dumps(result).encode())
        if altered.get("reported", True):
            self.store.put(quality_report(run.quality_folder(target)), b"<html>")
        commit.mark_applied(self.meta, run, target)

    def put_counts(
        self,
        run: RunPlan,
        target: str,
        merged: list[MergeCounts],
        filtered: list[FilterCounts],
        written: list[WriteCounts],
    ) -> None:
        folders = (
            run.merged_folder(run.target(target).merge_set),
            run.filtered_folder(target),
            run.written_folder(target),
        )
        for folder, counts in zip(folders, (merged, filtered, written), strict=True):
            self.store.put(counts_path(folder), counts_to_bytes(list(counts)))

    def commit(self, run: RunPlan, target: str = "t") -> commit.CommitSummary:
        return commit.commit(opened_line(self), run, target)

    def done(self, run_id: str, window: tuple[int, int] | None = None, **options: Any) -> RunPlan:
        """A whole run."""
        run = self.plan(run_id, window, **options)
        for target in run.targets:
            self.apply(run, target.target)
            self.commit(run, target.target)
        return run


def _reached(last: Any, until_us: int) -> Any:
    return type(last)(last.position, gtid_set=last.gtid_set, server=last.server, watermark_us=until_us)
