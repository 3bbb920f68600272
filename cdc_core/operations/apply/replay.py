"""A replay: staged batches applied to a target again, or for the first time, from the files alone.

It takes what it is told to, consumed or not, and neither asks the sources nor needs or moves a consume record. That
is safe whatever the target holds and whoever else writes to it, for the target's guard lets no older change overwrite
a newer row: into a target that has it all a replay changes nothing (every row of its ledger is equal, stale or
absent), into an empty one it builds the tables from the beginning.

Whole batches are taken: those that reach into the window, or from one position to another.

Keeps true: no replay over a gap in a source's positions, nor over a window that is not staged completely; nor, of a
table whose changes do not have all of their values, over batches before it that the target has not committed: a row
would carry the version of the last change and lack what others brought. Nor of a table without a key: the target must
lack exactly what comes after its mark. Planned again after its commit, a replay keeps its plan.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from cdc_core.config import Pipeline, Target
from cdc_core.errors import PlanOutdated, Refused, UsageError
from cdc_core.meta import BatchRow, Meta, PlanView, RunState
from cdc_core.meta.meta_rows import PlannedRun
from cdc_core.model.choices import choose
from cdc_core.model.position import order_key
from cdc_core.model.run_plan import RunPlan
from cdc_core.model.windows import from_us
from cdc_core.operations.apply import lost_writes
from cdc_core.operations.apply.overlap import require_counted_once
from cdc_core.operations.apply.plan import (
    check_run_id,
    composed,
    load,
    require_chain,
    require_staged,
    schemas_of,
)
from cdc_core.operations.apply.suites import require_suites
from cdc_core.operations.apply.table_rules import rows_lacking_values
from cdc_core.operations.open_pipeline import OpenPipeline
from cdc_core.stage import compactions
from cdc_core.stage import horizon as horizons
from cdc_core.stage.erasures import require_ended
from cdc_core.stage.horizon import Horizon, require_unpurged
from cdc_core.stage.manifest import require_listed
from cdc_core.stage.objects import ObjectStore

log = logging.getLogger(__name__)

_BATCH = re.compile(r"^([a-z][a-z0-9_]*)/(\d{4})-(\d{7})-(\d{10})$")


@dataclass(frozen=True, slots=True)
class Selection:
    """What a replay applies, and to which target.

    start_us, end_us: batches of windows that reach into [start, end), µs UTC; None: no bound.
    first, last:      by source, order keys of positions: from the batch that holds the first one to the one that
                      holds the last.
    tables:           logical names; () for all that the target has.
    batches:          ids; None for all.
    """

    target: str
    start_us: int | None = None
    end_us: int | None = None
    first: Mapping[str, int] = field(default_factory=dict)
    last: Mapping[str, int] = field(default_factory=dict)
    tables: tuple[str, ...] = ()
    batches: frozenset[str] | None = None

    @property
    def window(self) -> tuple[int, int] | None:
        """None unless time bounds it on both sides."""
        return None if self.start_us is None or self.end_us is None else (self.start_us, self.end_us)

    def takes(self, batch: BatchRow) -> bool:
        return (
            (self.start_us is None or batch.window_end_us > self.start_us)
            and (self.end_us is None or batch.window_start_us < self.end_us)
            # Copied rows are before the batch that begins at their place.
            and batch.end.seq + batch.copied > self.first.get(batch.source, -1)
            and batch.begin.seq <= self.last.get(batch.source, batch.begin.seq)
            and (self.batches is None or batch.batch_id in self.batches)
        )

    def takes_before(self, horizon: Horizon) -> bool:
        """Whether it would take purged history of a source, which meta may no longer know."""
        return (self.start_us is None or horizon.until_us > self.start_us) and (
            horizon.position.seq > self.first.get(horizon.source, -1)
        )


def places(pipeline: Pipeline, names: Sequence[str], where: str) -> dict[str, int]:
    """Positions, as `stage ls` names batches, by source. Raises UsageError (usage.argument)."""
    found: dict[str, int] = {}
    known = [source.name for source in pipeline.sources]
    for name in names:
        match = _BATCH.match(name)
        if match is None or match[1] not in known or match[1] in found:
            raise UsageError(
                f"{name!r} is not a position of a source, or the source has two.",
                where=where,
                code="usage.argument",
                remedy="give for each source at most one batch, as `lockstep stage ls` names it, such as "
                f"{known[0]}/0000-0000042-0000015823",
            )
        found[match[1]] = order_key(int(match[2]), int(match[3]), int(match[4]))
    return found


def requeued(meta: Meta, store: ObjectStore, run_id: str, target: str | None = None) -> Selection:
    """What a run set aside because its target rejected it: the batches of the run, the tables with such rows.

    A newer change that was applied since wins, as in any replay.
    Raises UsageError (usage.argument) for a run without such rows, or with rows of several targets if none is given.
    """
    rows = [row.entry for row in meta.ledgers.find(run_id, target) if row.entry.quarantined]
    targets = sorted({entry.target for entry in rows})
    if len(targets) != 1:
        of = f" for the target {target}" if target else ""
        raise UsageError(
            f"Several targets rejected rows of run {run_id!r}: {', '.join(targets)}."
            if targets
            else f"No ledger of a run {run_id!r} has quarantined rows{of}.",
            where=run_id,
            code="usage.argument",
            remedy="name one target (--target)"
            if targets
            else "name a committed run whose ledger has quarantined rows: `lockstep status` lists the latest runs",
        )
    # Planned again after its commit, the run has none of them in its plan; a replay has them there alone.
    batches = load(meta, store, run_id).target(targets[0]).batches or meta.records.committed_by(run_id, targets[0])
    return Selection(targets[0], tables=tuple(entry.table for entry in rows), batches=frozenset(batches))


def plan(opened: OpenPipeline, selection: Selection, *, run_id: str, airflow_run_id: str | None = None) -> RunPlan:
    """Choose the batches, register the run, write plan.json; returns the plan.

    A target that has batches already is asked whether it has lost any of them.
    Raises UsageError (quality.suite, usage.argument, usage.unknown_name), RetryLater
    (stage.behind), DataAtRisk (meta.gap, stage.damaged), Refused
    (replay.from_first, config.table_rule, stage.key, stage.partial, plan.purged, usage.argument).
    """
    require_suites(opened.pipeline)
    check_run_id(run_id)
    run = opened.meta.runs.find(run_id)
    if run is not None and run.state is RunState.COMMITTED and opened.store.stat(run.plan_path) is not None:
        try:
            stored = load(opened.meta, opened.store, run_id)
        except PlanOutdated:
            pass  # planned again
        else:
            if stored.target(selection.target).batches:
                return stored
    require_ended(opened.store)
    view = chosen(opened, selection)
    for source in view.chain:
        require_listed(opened.store, source, [batch.manifest for batch in opened.meta.batches.find(source)])
    known_horizons = [horizon for source in view.chain if (horizon := horizons.read(opened.store, source)) is not None]
    purged = [horizon.last_batch for horizon in known_horizons if selection.takes_before(horizon)]
    require_unpurged(opened.store, sorted(selection.batches) if selection.batches is not None else purged)
    target = _target(opened.pipeline, selection)
    schemas, ranges = schemas_of(view, opened.store), compactions.read(opened.store, view.chain)
    made = composed(opened.pipeline, selection.window, run_id, [target], view, view.pending, schemas, ranges)
    made = replace(made, replay=True)
    lost = lost_writes.find(opened, target)
    made = replace(made, restores=lost_writes.restored_by(opened, made, lost))
    _require_tables(made, selection)
    _require_no_change_between(opened.meta, made, view)
    require_counted_once(opened.meta, opened.store, view, made)
    replays = bool(made.target(target.name).batches)
    opened.store.put(made.path, made.to_bytes())
    opened.meta.runs.claim(
        PlannedRun(
            run_id,
            opened.name,
            selection.window,
            made.path,
            made.digest,
            airflow_run_id,
            replays=replays,
            by_driver=made.by_driver(opened.pipeline.spark.driver_rows),
        ),
        (),
    )
    require_ended(opened.store)  # an erasure that began meanwhile has seen the run, or is seen here
    log.info("run %s: replay of %d batches to %s", run_id, len(made.target(target.name).batches), target.name)
    return made


def chosen(opened: OpenPipeline, selection: Selection) -> PlanView:
    """The selection as a plan sees it. Raises what `plan` raises for batches."""
    target = _target(opened.pipeline, selection)
    sources = [source.name for source in opened.pipeline.sources]
    if selection.start_us is not None and selection.end_us is not None and selection.start_us >= selection.end_us:
        raise UsageError(
            f"The window {from_us(selection.start_us)} to {from_us(selection.end_us)} is empty.",
            where="replay",
            code="usage.argument",
            remedy="give a start before the end, both in UTC",
        )
    chain = {source: tuple(filter(selection.takes, opened.meta.batches.find(source))) for source in sources}
    ids = [batch.batch_id for batches in chain.values() for batch in batches]
    files = opened.meta.batches.files(ids)
    view = PlanView(
        checkpoints=opened.meta.positions.checkpoints(),
        chain=chain,
        pending={target.name: frozenset(ids)},
        consumed={target.name: ()},
        own={target.name: frozenset()},
        closed=frozenset(),
        files=files,
        schemas=opened.meta.schemas.find(sorted({file.schema_id for of_batch in files.values() for file in of_batch})),
    )
    if selection.end_us is not None:
        require_staged(view, sources, (selection.start_us or 0, selection.end_us), now_us=opened.meta.now_us())
    if selection.batches is None:  # otherwise they were planned before, over a chain that was whole
        for source in sources:
            require_chain(view, source, whole=False)
    return view


def _target(pipeline: Pipeline, selection: Selection) -> Target:
    """The target with the rules of the selected tables alone."""
    (name,) = choose([target.name for target in pipeline.targets], [selection.target], "target", "targets")
    target = pipeline.target(name)
    if not selection.tables:
        return target
    rules = {name: target.table(name) for name in selection.tables}
    missing = [name for name, rule in rules.items() if rule is None]
    if missing:
        raise UsageError(
            f"The target {target.name!r} does not have the table {missing[0]!r}.",
            where=f"targets.{target.name}.tables",
            code="usage.unknown_name",
            remedy="give logical names of its tables, as `lockstep stage ls` shows them",
        )
    return target.model_copy(update={"tables": rules})


def _require_tables(made: RunPlan, selection: Selection) -> None:
    staged = {table.table for merge_set in made.merge_sets for table in merge_set.tables}
    unstaged = [name for name in selection.tables if name not in staged]
    if unstaged:
        raise UsageError(
            f"The chosen batches contain no change of {unstaged[0]!r}.",
            where=made.run_id,
            code="usage.unknown_name",
            remedy="look at `lockstep stage ls` for the names of the tables, or choose other batches",
        )


def _require_no_change_between(meta: Meta, made: RunPlan, view: PlanView) -> None:
    """Raises Refused (replay.from_first)."""
    tables = {
        table.table: table
        for merge_set in made.merge_sets
        for table in merge_set.tables
        if rows_lacking_values(table) or not table.key
    }
    if not tables:
        return
    target = made.targets[0].target
    for source, batches in view.chain.items():
        ids = {batch.batch_id for batch in batches}
        before = meta.batches.find(source, until=batches[-1].end) if batches else ()
        left_out = [batch.batch_id for batch in before if batch.batch_id not in ids]
        has = {
            (record.batch_id, record.table)
            for record in meta.records.find(target, left_out)
            if record.state.consumed and record.taken
        }
        staged = {(batch_id, file.table) for batch_id, files in meta.batches.files(left_out).items() for file in files}
        lacking = sorted((batch_id, table) for batch_id, table in staged - has if table in tables)
        if lacking:
            batch_id, table = lacking[0]
            what = "do not have all of their values and depend on earlier changes"
            if not tables[table].key:
                what = "have no key, so their batches must be applied once, and in order"
            raise Refused(
                f"The changes of {table!r} {what}; the replay leaves out the batch {batch_id}, which {target!r} has "
                "not committed.",
                where=made.run_id,
                code="replay.from_first",
                remedy="replay from the first batch on (without --from; no first_batches or begin in Airflow), or let "
                "the target's runs apply the batches before these",
            )
