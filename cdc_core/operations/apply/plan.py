"""Which staged batches a run takes to which target, written down once as the run's plan.

A target takes every batch that it has not committed and that begins before the window ends, in stream order, so a
missed interval is made up by the next run. Consumed batches are skipped, and the log names them.

May assume that meta's rows equal the manifests (Meta.rebuild restores them).
Keeps true: no plan over a gap in a source's positions, nor over a window that is not staged completely. The claim in
meta comes after plan.json, whose path has the digest of its content: the plan that meta names can be read, is never
overwritten, and owns its records until another run, or another plan of this one, takes them over.

Planned again, a run gets exactly the same plan as long as it owns its records and the pipeline file is the same.
A target that the run has committed gets nothing more in that run: later batches belong to later runs.

Batches of another run that failed, died or is still running are taken over. That is safe because the target's
version guard lets no older change overwrite a newer row, however many runs write it, and because the run that lost
the batches can no longer commit them.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

from cdc_core.config import Pipeline, Target
from cdc_core.errors import BatchesTaken, DataAtRisk, Refused, RetryLater, UsageError
from cdc_core.meta import BatchRow, Meta, PlanView
from cdc_core.meta.meta_rows import Claim, FileRow, PlannedRun
from cdc_core.meta.run_register import require_plan
from cdc_core.model.choices import choose
from cdc_core.model.run_plan import MergeSet, MergeTable, PlannedFile, RunPlan, TargetRun
from cdc_core.model.schema import TableSchema
from cdc_core.model.windows import CLOCK_TOLERANCE_US, from_us
from cdc_core.operations.apply import left_out
from cdc_core.operations.apply.overlap import require_counted_once
from cdc_core.operations.apply.redefined import before_redefinition
from cdc_core.operations.apply.retention import require_seeded
from cdc_core.operations.apply.suites import require_suites
from cdc_core.operations.apply.table_rules import key_of, require_none_set_aside
from cdc_core.operations.open_pipeline import OpenPipeline
from cdc_core.stage import compactions
from cdc_core.stage.compactions import Compactions
from cdc_core.stage.erasures import require_ended
from cdc_core.stage.horizon import require_unpurged
from cdc_core.stage.layout import parse_copied
from cdc_core.stage.manifest import parse, require_listed
from cdc_core.stage.objects import ObjectStore

log = logging.getLogger(__name__)

_ATTEMPTS = 3
_RUN_ID_CHARS = 250


def plan(
    opened: OpenPipeline,
    *,
    window: tuple[int, int] | None,
    run_id: str,
    targets: Sequence[str] | None = None,
    airflow_run_id: str | None = None,
) -> RunPlan:
    """Choose the batches, claim them in meta, write plan.json; returns the plan.

    window:    [start, end) in µs UTC; None takes everything staged.
    targets:   names; None for all of the pipeline's.

    Raises RetryLater (stage.behind, run.taken_over), DataAtRisk (meta.gap, stage.damaged), Refused
    (config.table_rule, stage.key, stage.partial, plan.purged, usage.argument),
    UsageError (quality.suite, usage.argument, usage.unknown_name).
    """
    require_suites(opened.pipeline)
    chosen = _checked(opened.pipeline, window, run_id, targets)
    for attempt in range(1, _ATTEMPTS + 1):
        try:
            return _plan(opened, window, run_id, chosen, airflow_run_id)
        except BatchesTaken as error:
            # Another run committed between our read and our claim: read again.
            if attempt == _ATTEMPTS:
                raise
            log.info("run %s: %s", run_id, error)
    raise AssertionError  # the loop returns or raises


def load(meta: Meta, store: ObjectStore, run_id: str) -> RunPlan:
    """The plan that a run's tasks read: the last one that was registered. Raises Refused (run.clear_task), and what the
    stage raises."""
    run = meta.runs.find(run_id)
    if run is None:
        raise Refused(
            f"No plan of the run {run_id!r} was registered.",
            where=run_id,
            code="run.clear_task",
            remedy="clear the run from its plan task on",
        )
    made = RunPlan.from_bytes(store.get(run.plan_path))
    require_plan(run, run_id, made.path, made.digest)
    return made


def check_run_id(run_id: str) -> None:
    """Raises UsageError (usage.argument)."""
    if not (0 < len(run_id) <= _RUN_ID_CHARS and run_id.isascii()):
        raise UsageError(
            f"A run id has 1 to {_RUN_ID_CHARS} ASCII characters, not {len(run_id)}.",
            where=run_id[:80],
            code="usage.argument",
            remedy="give the run a shorter id",
        )


def _checked(
    pipeline: Pipeline, window: tuple[int, int] | None, run_id: str, targets: Sequence[str] | None
) -> tuple[Target, ...]:
    check_run_id(run_id)
    if window is not None and window[0] >= window[1]:
        raise UsageError(
            f"The window {from_us(window[0])} to {from_us(window[1])} is empty.",
            where=run_id,
            code="usage.argument",
            remedy="give a start before the end, both in UTC",
        )
    names = [target.name for target in pipeline.targets]
    chosen = choose(names, targets, "target", "targets") if targets is None or targets else ()
    return tuple(map(pipeline.target, chosen))


def _plan(
    opened: OpenPipeline,
    window: tuple[int, int] | None,
    run_id: str,
    targets: Sequence[Target],
    airflow_run_id: str | None,
) -> RunPlan:
    require_ended(opened.store)
    run_row = opened.meta.runs.find(run_id)
    sources = [source.name for source in opened.pipeline.sources]
    view = opened.meta.plans.find(run_id, sources, [target.name for target in targets], window)
    require_staged(view, sources, window, now_us=opened.meta.now_us())
    ranges = compactions.read(opened.store, sources)
    for source in sources:
        require_chain(view, source)
        require_listed(opened.store, source, [batch.manifest for batch in opened.meta.batches.find(source)])
        require_seeded(opened.store, source, [target.name for target in targets])
    require_unpurged(opened.store, sorted(set().union(*view.pending.values())))
    schemas = schemas_of(view, opened.store)
    plan: RunPlan | None = None
    if run_row is not None and any(view.own.values()):
        plan = composed(opened.pipeline, window, run_id, targets, view, view.own, schemas, ranges)
    if plan is None or run_row is None or plan.digest != run_row.plan_sha256:
        open_ = {name: ids if name not in view.closed else frozenset() for name, ids in view.pending.items()}
        mergeable = {target.name: before_redefinition(view, open_[target.name], target, schemas) for target in targets}
        if mergeable != open_:
            log.warning(
                "run %s: the key of a table, or the type of a column, changes later on; the run ends before that, and "
                "the next one continues there",
                run_id,
            )
        plan = composed(opened.pipeline, window, run_id, targets, view, mergeable, schemas, ranges)
    require_counted_once(opened.meta, opened.store, view, plan)
    claims = [claim for target in targets for claim in _claims(target, plan.target(target.name).batches, view)]
    opened.store.put(plan.path, plan.to_bytes())
    by_driver = plan.by_driver(opened.pipeline.spark.driver_rows)
    run = PlannedRun(run_id, opened.name, window, plan.path, plan.digest, airflow_run_id, by_driver=by_driver)
    opened.meta.runs.claim(run, claims)
    require_ended(opened.store)  # an erasure that began meanwhile has seen the run, or is seen here
    for target in plan.targets:
        skipped = f", skipped as consumed: {', '.join(target.skipped)}" if target.skipped else ""
        log.info("run %s: target %s takes %d batches%s", run_id, target.target, len(target.batches), skipped)
        for warning in left_out.warnings(opened.meta, plan, target.target):
            log.warning("run %s: target %s: %s", run_id, target.target, warning)
    return plan


def require_staged(view: PlanView, sources: Sequence[str], window: tuple[int, int] | None, *, now_us: int) -> None:
    """Raises RetryLater (stage.behind) unless each source is staged up to the end of the window (µs UTC), if any."""
    if window is None:
        return
    for source in sources:
        checkpoint = view.checkpoints.get(source)
        watermark_us = checkpoint.watermark_us if checkpoint is not None else 0
        if watermark_us > now_us + CLOCK_TOLERANCE_US:
            watermark_us = 0  # it came from a clock that was ahead
        if watermark_us < window[1]:
            reached = f"only up to {from_us(watermark_us).isoformat()}" if watermark_us else "not at all yet"
            raise RetryLater(
                f"The window ends at {from_us(window[1]).isoformat()}; source {source!r} is staged {reached}.",
                where=source,
                code="stage.behind",
                remedy="wait until this window is extracted (the DAG's extract task), or run `lockstep extract`",
            )


def require_chain(view: PlanView, source: str, *, whole: bool = True) -> None:
    """Each batch of the view begins where the last one ended; with `whole`, the last ends at the stored position."""
    chain = view.chain.get(source, ())
    ends = [(batch.batch_id, batch.end) for batch in chain]
    follows = [(batch.batch_id, batch.begin) for batch in chain[1:]]
    checkpoint = view.checkpoints.get(source) if whole else None
    if checkpoint is not None:
        follows.append(("the stored position", checkpoint.position))
    for (batch_id, end), (what, begin) in zip(ends, follows, strict=False):  # without a position there is one end more
        if end != begin:
            raise DataAtRisk(
                f"The batch {batch_id} ends at {end}, but what follows it ({what}) begins at {begin}: the changes in "
                "between would be lost.",
                where=source,
                code="meta.gap",
                remedy="nothing was planned. `lockstep stage ls` shows the chain of manifests. If the chain is whole, "
                "`lockstep meta rebuild` restores meta from it; if a manifest is missing, restore it from a backup",
            )


def schemas_of(view: PlanView, store: ObjectStore) -> Mapping[str, TableSchema]:
    """Every definition of the pending files; read from the manifests if meta does not have it."""
    return definitions(view.schemas, view.files, (batch for chain in view.chain.values() for batch in chain), store)


def definitions(
    known: Mapping[str, TableSchema],
    files: Mapping[str, Sequence[FileRow]],
    batches: Iterable[BatchRow],
    store: ObjectStore,
) -> Mapping[str, TableSchema]:
    """Every definition of the files of these batches, by id: those of meta, and others from the manifests."""
    schemas = dict(known)
    manifests = {batch.batch_id: batch.manifest for batch in batches}
    for batch_id, of_batch in files.items():
        if any(file.schema_id not in schemas for file in of_batch):
            schemas |= parse(store.get(manifests[batch_id]), manifests[batch_id], store.uri).schemas
    return schemas


def composed(
    pipeline: Pipeline,
    window: tuple[int, int] | None,
    run_id: str,
    targets: Sequence[Target],
    view: PlanView,
    chosen: Mapping[str, frozenset[str]],
    schemas: Mapping[str, TableSchema],
    ranges: Compactions,
) -> RunPlan:
    """A pure function of its arguments: equal claims under an equal configuration make equal plans."""
    sets: dict[tuple[MergeTable, ...], MergeSet] = {}
    runs, taken = [], []
    for target in targets:
        batches = [batch for chain in view.chain.values() for batch in chain if batch.batch_id in chosen[target.name]]
        tables = _merge_tables(pipeline, target, batches, view, schemas, ranges)
        merge_set = sets.setdefault(tables, MergeSet(str(len(sets)), tables))
        ids = tuple(batch.batch_id for batch in batches)
        layouts = {table.table: rule.layout for table in tables if (rule := target.table(table.table)) is not None}
        runs.append(TargetRun(target.name, merge_set.name, ids, view.consumed[target.name], layouts))
        taken += batches
    start_us, end_us = window or (
        min((batch.window_start_us for batch in taken), default=0),
        max((batch.window_end_us for batch in taken), default=0),
    )
    used = {file.schema_id for tables in sets for table in tables for file in table.files}
    return RunPlan(
        run_id=run_id,
        pipeline=pipeline.pipeline,
        stage_uri=pipeline.stage.uri,
        window_start_us=start_us,
        window_end_us=end_us,
        merge_sets=tuple(sets.values()),
        targets=tuple(runs),
        schemas={schema_id: schemas[schema_id] for schema_id in sorted(used)},
    )


def _merge_tables(
    pipeline: Pipeline,
    target: Target,
    batches: Sequence[BatchRow],
    view: PlanView,
    schemas: Mapping[str, TableSchema],
    ranges: Compactions,
) -> tuple[MergeTable, ...]:
    """The tables that the target takes, by name; files in stream order within each source.

    Raises Refused (config.table_rule, snapshot.not_copyable), and what key_of does.
    """
    files: dict[str, list[PlannedFile]] = defaultdict(list)
    for batch in batches:
        for file in view.files[batch.batch_id]:
            if target.table(file.table) is not None:
                files[file.table].append(_planned(file, batch.batch_id, ranges))
    return tuple(_merge_table(pipeline, target, table, tuple(files[table]), schemas) for table in sorted(files))


def _planned(file: FileRow, batch_id: str, ranges: Compactions) -> PlannedFile:
    other = ranges.instead_of(file.path, file.table, file.schema_id, file.max_seq)
    read = file if other is None else other
    return PlannedFile(
        path=read.path,
        rows=file.rows,
        schema_id=file.schema_id,
        batch_id=batch_id,
        size_bytes=read.size_bytes,
        plain_bytes=file.plain_bytes,
        sha256=read.sha256,
        max_seq=file.max_seq,
        absent_rows=file.absent_rows,
        min_seq=file.min_seq,
        of_rows=0 if other is None else other.rows,
        key_changes=file.key_changes,
    )


def _merge_table(
    pipeline: Pipeline,
    target: Target,
    table: str,
    files: tuple[PlannedFile, ...],
    schemas: Mapping[str, TableSchema],
) -> MergeTable:
    rule = target.table(table)
    assert rule is not None  # otherwise its files would not be here
    merge_table = MergeTable(
        table, key_of(target, table, _in_use(files, schemas)), files, rule.on_truncate, rule.shared_keys
    )
    require_none_set_aside(target, merge_table)
    for file in files:
        source_table = schemas[file.schema_id].name
        if parse_copied(file.path) and pipeline.counts_newest(target.name, table, source_table):
            raise Refused(
                f"Rows of several tables count as one row of {table!r}, the newest change first, and Lockstep cannot "
                f"know when the rows that were copied from {source_table} last changed.",
                where=f"targets.{target.name}.tables.{table}.shared_keys",
                code="snapshot.not_copyable",
                remedy="leave out shared_keys for the table: rows with the same key then stop the run",
            )
    return merge_table


def _in_use(files: Sequence[PlannedFile], schemas: Mapping[str, TableSchema]) -> list[TableSchema]:
    return [schemas[schema_id] for schema_id in dict.fromkeys(file.schema_id for file in files)]


def _claims(target: Target, batch_ids: Sequence[str], view: PlanView) -> list[Claim]:
    by_id = {batch.batch_id: batch for chain in view.chain.values() for batch in chain}
    claims = []
    for batch_id in batch_ids:
        batch, rows = by_id[batch_id], _rows_by_table(view.files[batch_id])
        claims += [
            Claim(
                target=target.name,
                batch_id=batch_id,
                table=table,
                source=batch.source,
                begin_seq=batch.begin.seq,
                rows=count,
                taken=target.table(table) is not None if table else True,
            )
            for table, count in (rows or {"": 0}).items()
        ]
    return claims


def _rows_by_table(files: Sequence[FileRow]) -> dict[str, int]:
    rows: dict[str, int] = defaultdict(int)
    for file in files:
        rows[file.table] += file.rows
    return dict(rows)
