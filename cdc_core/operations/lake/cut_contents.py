"""What a cut says of its sources and tables: how far the log is in them, and which rows a table lacks.

A table is complete at a cut by the rule by which its staged state is (stage.staged_coverage), with the coverage that
the batches say which the target has; and if the target has every batch with changes of it. A replay may bring some
tables further than others.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping

from cdc_core.meta import BatchRow
from cdc_core.model.coverage import TableCoverage
from cdc_core.model.cut import Cut, CutSource
from cdc_core.model.readable import counted
from cdc_core.model.run_plan import RunPlan
from cdc_core.operations.apply.left_out import left_out
from cdc_core.operations.open_pipeline import OpenPipeline
from cdc_core.stage import horizon as horizons
from cdc_core.stage.as_of import AsOf
from cdc_core.stage.manifest import read_several
from cdc_core.stage.staged_coverage import feeding_tables, lacking, settled_coverage

NO_MIRROR = "it has no mirror, because no run has had rows of it (`lockstep target create` makes one)"


def sources_after(ready: OpenPipeline, plan: RunPlan, target: str, last: Cut | None) -> dict[str, CutSource]:
    """The sources of the last cut that the pipeline still has, with the batches of a run. Raises what reading manifests
    raises."""
    names = {source.name for source in ready.pipeline.sources}
    sources = {} if last is None else {name: at for name, at in last.sources.items() if name in names}
    for source in ready.pipeline.sources:
        known = sources.get(source.name)
        batch_ids = [batch for batch in plan.target(target).batches if batch.partition("/")[0] == source.name]
        taken = set(batch_ids)
        if known is None:
            batches = ready.meta.batches.find(source.name)
            taken |= _consumed(ready, target, batches)
        else:
            first = ready.meta.batches.by_id(batch_ids[0]) if batch_ids else None  # they are in stream order
            batches = () if first is None else ready.meta.batches.find(source.name, after=first.begin)
        new = [
            batch
            for batch in batches
            if batch.batch_id in taken and (known is None or batch.copied or batch.end.seq > known.position.seq)
        ]
        if not new:
            continue
        manifests = read_several(ready.store, source.name, [batch.manifest for batch in new])
        if known is None:
            horizon = horizons.read(ready.store, source.name)
            coverage = {} if horizon is None else horizon.coverage
        else:
            coverage = known.coverage
        coverage = settled_coverage(coverage, manifests)
        end = max((manifest.end for manifest in manifests), key=lambda point: point.position.seq)
        coverage = {**_seen(ready, source.name, end.position.seq), **coverage}
        if known is None or known.position.seq <= end.position.seq:
            sources[source.name] = CutSource(end.position, end.gtid_set, end.watermark_us, coverage)
        else:
            sources[source.name] = CutSource(known.position, known.gtid_set, known.committed_us, coverage)
    return sources


def _seen(ready: OpenPipeline, source: str, until_seq: int) -> dict[str, TableCoverage]:
    """What was seen of tables up to a place, and no manifest says yet: of those without changes, for instance."""
    covered = ready.meta.coverages.find(source)
    return {
        name: table for name, table in covered.tables.items() if name in covered.unstaged and table.seq <= until_seq
    }


def captured_tables(sources: Mapping[str, CutSource]) -> set[str]:
    """The logical tables of the source tables that are there at a cut."""
    found = set[str]()
    for at in sources.values():
        there = {name: coverage for name, coverage in at.coverage.items() if coverage.absent_seq <= coverage.seq}
        found |= feeding_tables((), there).keys()
    return found


def _consumed(ready: OpenPipeline, target: str, batches: Collection[BatchRow]) -> set[str]:
    records = ready.meta.records.find(target, [batch.batch_id for batch in batches])
    return {record.batch_id for record in records if record.state.consumed}


def lacking_rows(
    ready: OpenPipeline,
    plan: RunPlan,
    target: str,
    sources: Mapping[str, CutSource],
    tables: Collection[str],
    last: Cut | None,
    *,
    without_rows: Collection[str],
) -> dict[str, tuple[str, ...]]:
    """What each logical table of a cut lacks, in words. sources, tables: of the cut. last: the cut before it.
    without_rows: those of the tables that no run has had rows of."""
    found: dict[str, list[str]] = {table: [] for table in tables}
    fed = set[str]()
    for source, at in sorted(sources.items()):
        feeding = feeding_tables((), at.coverage)
        as_of, end_seq = AsOf(position=at.position), at.position.seq
        for table in feeding.keys() & found.keys():
            fed.add(table)
            found[table] += lacking(table, feeding[table], source, at.coverage, end_seq, as_of)
        for table, line in _purged(ready, source, at.coverage, without_rows):
            found[table].append(line)
    for table, batches in _behind(ready, plan, target, sources, tables, last).items():
        found[table].append(f"{counted(len(batches), 'batch')} with changes of it, the first is {batches[0]}")
    return {
        table: tuple(lines) if table in fed else ("nothing says which tables of the source feed it", *lines)
        for table, lines in found.items()
    }


def _purged(
    ready: OpenPipeline, source: str, coverage: Mapping[str, TableCoverage], tables: Collection[str]
) -> Iterator[tuple[str, str]]:
    """Those of these tables that need changes which a purge has removed, and what to say of them."""
    horizon, needed = horizons.read(ready.store, source) if tables else None, _needed_from(coverage)
    if horizon is None:
        return
    for table in tables:
        purged = horizon.tables.get(table)
        if purged and needed.get(table, 0) < horizon.position.seq:
            yield table, f"what was purged before {horizon}: {counted(purged, 'change')} of it"


def _behind(
    ready: OpenPipeline,
    plan: RunPlan,
    target: str,
    sources: Mapping[str, CutSource],
    tables: Collection[str],
    last: Cut | None,
) -> dict[str, list[str]]:
    """By table, the batches up to the cut's position whose changes of it neither this run has, nor those before it."""
    whole = {table.logical for table in last.tables if not table.lacks} if last is not None else set[str]()
    merged = plan.merge_set(plan.target(target).merge_set).tables
    takes = {(file.batch_id, table.table) for table in merged for file in table.files}
    found: dict[str, list[str]] = defaultdict(list)
    for table, batches in left_out(ready.meta, target, tables).items():
        found[table] += [batch for batch in batches if (batch, table) not in takes]
    for source, at in sources.items():
        until = last.sources[source].position.seq if last is not None and source in last.sources else -1
        first = ready.meta.plans.first_lacking(source, target)
        row = None if first is None else ready.meta.batches.by_id(first)
        if row is None:
            continue
        reached = ready.meta.batches.find(source, after=row.begin, until=at.position)
        had, needed = _consumed(ready, target, reached), _needed_from(at.coverage)
        due = [batch for batch in reached if batch.batch_id not in had]
        files = ready.meta.batches.files([batch.batch_id for batch in due])
        for batch in due:
            for table in sorted({file.table for file in files[batch.batch_id]} & set(tables)):
                known = batch.end.seq <= until and table in whole
                # Copied rows are before the batch that begins at their place.
                outdated = batch.end.seq + batch.copied <= needed.get(table, 0)
                if (batch.batch_id, table) not in takes and not known and not outdated:
                    found[table].append(batch.batch_id)
    return {table: batches for table, batches in found.items() if batches}


def _needed_from(coverage: Mapping[str, TableCoverage]) -> dict[str, int]:
    """By logical table, the order key before which no change is needed."""
    feeding = feeding_tables((), coverage)
    needs = {name: covered.needs_seq if covered.whole else 0 for name, covered in coverage.items()}
    return {table: min(needs[name] for name in feeds) for table, feeds in feeding.items()}
