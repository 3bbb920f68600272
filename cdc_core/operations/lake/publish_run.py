"""The snapshots that a run has made become what readers see, and a cut names them.

Where the catalog publishes tables together, the rows of the cut in `lockstep_cuts` are among them. The cut on the stage
comes after: a commit that was killed in between finds that everything is published, and writes it.
"""

from __future__ import annotations

import logging

from cdc_core.lake.catalogs import catalog_answers, name_of, open_catalog
from cdc_core.lake.cut_table import with_cut
from cdc_core.lake.publication import BaseSnapshots, LakeSnapshot, branch_of, publish
from cdc_core.model.cut import Cut, CutSource, CutTable
from cdc_core.model.json_codec import parsed
from cdc_core.model.readable import counted
from cdc_core.model.run_plan import RunPlan, lake_path
from cdc_core.operations.lake.lake_ready import lake_of
from cdc_core.operations.open_pipeline import OpenPipeline
from cdc_core.stage import cuts
from cdc_core.stage.manifest import parse
from cdc_core.stage.objects import find

log = logging.getLogger(__name__)


def publish_run(ready: OpenPipeline, plan: RunPlan, name: str) -> None:
    """Publishes what the write has made, all tables together where the catalog can. Twice is as once. Raises what
    `publish` raises."""
    target = lake_of(ready.pipeline, name)
    raw = find(ready.store, lake_path(plan.written_folder(name)))  # a run without rows has written nothing
    snapshots = [] if raw is None else parsed(list[LakeSnapshot], raw)
    last = cuts.newest(ready.store, name)
    cut = last if last is not None and last.run_id == plan.run_id else _cut(ready, plan, name, snapshots, last)
    catalog = open_catalog(target)
    with catalog_answers(target):
        of_cut = with_cut(catalog, target, cut, branch_of(plan.run_id))
        if publish(catalog, [*snapshots, *([] if of_cut is None else [of_cut])]):
            log.info("run %s: target %s: %s published", plan.run_id, name, counted(len(snapshots), "snapshot"))
    cuts.put(ready.store, cut)


def _cut(ready: OpenPipeline, plan: RunPlan, name: str, snapshots: list[LakeSnapshot], last: Cut | None) -> Cut:
    """The tables as the last cut has them, but those that the run is about: what it has made of each, or else what it
    is based on, which a run that was killed after its publication may have made."""
    target = lake_of(ready.pipeline, name)
    raw = find(ready.store, lake_path(plan.filtered_folder(name)))
    bases = [] if raw is None else parsed(list[BaseSnapshots], raw)
    made = {one.identifier: one.snapshot for one in snapshots}
    tables = {} if last is None else {one.logical: one for one in last.tables if target.table(one.logical) is not None}
    for base in bases:
        tables[base.table] = CutTable(base.table, name_of(base.identifier), made.get(base.identifier, base.rows))
    sources = {} if last is None else dict(last.sources)
    taken = set(plan.target(name).batches)
    for source in ready.pipeline.sources:
        batches = [one for one in ready.meta.batches.find(source.name) if one.batch_id in taken]
        if batches:
            newest = max(batches, key=lambda one: one.end.seq)
            end = parse(ready.store.get(newest.manifest), newest.manifest, ready.store.uri).end
            known = sources.get(source.name)
            if known is None or known.position.seq <= end.position.seq:
                sources[source.name] = CutSource(end.position, end.gtid_set, end.watermark_us)
    return Cut(plan.run_id, name, ready.meta.now_us(), sources, tuple(tables[one] for one in sorted(tables)))
