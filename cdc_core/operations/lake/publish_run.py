"""The snapshots that a run has made become what readers see, and a cut names them.

The rows of the cut in `lockstep_cuts` are published with them, or after them where a catalog publishes one table after
the other. A cut is made of the last one, and no other cut may be published in between: `lockstep_cuts` must still have
the snapshot that was looked at before the last cut was read. The cut is on the stage before it is published, and
readers find it there once it is: a commit that was killed in between is completed by the next one.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from pyiceberg.catalog import Catalog

from cdc_core.config import IcebergTarget
from cdc_core.lake import cut_table
from cdc_core.lake.catalogs import catalog_answers, identifier, name_of
from cdc_core.lake.publication import BaseSnapshots, LakeSnapshot, branch_of, publish, require_seen
from cdc_core.lake.snapshots import PLAN, RUN, head, said
from cdc_core.model.cut import Cut, CutTable
from cdc_core.model.json_codec import parsed
from cdc_core.model.readable import counted
from cdc_core.model.run_plan import RunPlan, lake_path
from cdc_core.operations.lake.cut_contents import NO_MIRROR, captured_tables, lacking_rows, sources_after
from cdc_core.operations.lake.lake_ready import lake_of
from cdc_core.operations.open_pipeline import OpenPipeline
from cdc_core.stage import cuts
from cdc_core.stage.objects import find

log = logging.getLogger(__name__)


def publish_run(ready: OpenPipeline, plan: RunPlan, name: str) -> None:
    """Publishes what the write has made, all tables together where the catalog can. Twice is as once. Raises what
    `publish` raises."""
    target, of_run = lake_of(ready.pipeline, name), {RUN: plan.run_id, PLAN: plan.digest}
    raw = find(ready.store, lake_path(plan.written_folder(name)))  # a run without rows has written nothing
    snapshots = [] if raw is None else parsed(list[LakeSnapshot], raw)
    catalog = ready.catalogs.of(target)
    with catalog_answers(target):
        table = cut_table.opened(catalog, target)
        shown = cut_table.shown(table)
        cuts.complete(ready.store, name, {snapshot.snapshot_id for snapshot in shown})
        if any((said(snapshot, RUN), said(snapshot, PLAN)) == (plan.run_id, plan.digest) for snapshot in shown):
            publish(catalog, snapshots)
            return
        cut = _cut(ready, plan, catalog, target, snapshots)
        of_cut = cut_table.with_cut(table, cut, of_run, branch_of(plan.run_id))
        cuts.prepare(ready.store, cut, of_cut.snapshot)
        publish(catalog, [*snapshots, of_cut])
    log.info("run %s: target %s: %s published", plan.run_id, name, counted(len(snapshots), "snapshot"))
    cuts.complete(ready.store, name, {of_cut.snapshot})


def _cut(
    ready: OpenPipeline, plan: RunPlan, catalog: Catalog, target: IcebergTarget, snapshots: Sequence[LakeSnapshot]
) -> Cut:
    """The tables as the last cut has them, but those that the run is about: what it has made of each, or else what it
    is based on, which a run that was killed after its publication may have made. Captured tables that no run has had
    rows of are in it, too."""
    last = cuts.newest(ready.store, target.name)
    raw = find(ready.store, lake_path(plan.filtered_folder(target.name)))
    bases = [] if raw is None else parsed(list[BaseSnapshots], raw)
    made = {snapshot.identifier: snapshot.snapshot for snapshot in snapshots}
    known = () if last is None else last.tables
    tables = {table.logical: (table.name, table.snapshot) for table in known if target.table(table.logical) is not None}
    for base in bases:
        if base.identifier not in made:  # another run may have published it, with the last cut
            require_seen(catalog.load_table(base.identifier), base.rows)
        tables[base.table] = name_of(base.identifier), made.get(base.identifier, base.rows)
    sources = sources_after(ready, plan, target.name, last)
    without_rows = [table for table in captured_tables(sources) if tables.get(table, ("", None))[1] is None]
    without_mirror = set[str]()
    for logical in without_rows:
        if target.table(logical) is not None and logical not in {base.table for base in bases}:
            name = identifier(target, logical)
            if not catalog.table_exists(name):
                without_mirror.add(logical)
            elif head(catalog.load_table(name)) is not None:  # of a run that no cut tells of
                continue
            tables[logical] = name_of(name), None
    empty = [table for table, (_, snapshot) in tables.items() if snapshot is None]
    lacking = lacking_rows(ready, plan, target.name, sources, tables, last, without_rows=empty)
    lacking |= {table: (*lacking[table], NO_MIRROR) for table in without_mirror}
    of_tables = tuple(CutTable(table, *tables[table], lacking[table]) for table in sorted(tables))
    # Later than the last one, also where a clock steps back: by this time, readers and the next cut find the last one.
    made_us = max(ready.meta.now_us(), 0 if last is None else last.made_us + 1)
    return Cut(plan.run_id, target.name, made_us, sources, of_tables)
