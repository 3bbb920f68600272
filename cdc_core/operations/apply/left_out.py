"""Tables that a target's rules take in after batches with their changes were committed: no run brings these changes.

Where the table was empty since then, or was copied, none of them is needed.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping
from math import inf

from cdc_core.meta import Meta
from cdc_core.model.batch import at_place
from cdc_core.model.run_plan import RunPlan
from cdc_core.operations.open_pipeline import OpenPipeline
from cdc_core.stage import horizon as horizons


def left_out(meta: Meta, target: str, tables: Collection[str]) -> dict[str, list[str]]:
    """For each table, the batches whose changes of it the target needs and has left out, in stream order."""
    known = meta.records.left_out(target, tables)
    found: dict[str, list[str]] = {}
    for source in sorted({_source(batch) for batches in known.values() for batch in batches}):
        batches = meta.batches.find(source)
        for table, ids in known.items():
            begin = _needed_from(meta, table, source)
            # Copied rows begin and end at one place.
            needed = {batch.batch_id for batch in batches if batch.end.seq + batch.copied > begin}
            found[table] = [*found.get(table, ()), *(batch_id for batch_id in ids if batch_id in needed)]
    return {table: batches for table, batches in found.items() if batches}


def warnings(meta: Meta, plan: RunPlan, target: str) -> list[str]:
    """What is missing in the target for that reason, and what brings it."""
    keys = {table.table: table.key for table in plan.merge_set(plan.target(target).merge_set).tables}
    said = []
    for table, batches in left_out(meta, target, keys).items():
        first: dict[str, str] = {}
        for batch in batches:
            first.setdefault(_source(batch), at_place(batch))
        begin = "".join(f" --from {place}" for place in first.values())
        remedy = f"replay them: lockstep run {plan.pipeline} --replay --target {target} --table {table}{begin}"
        if not keys[table]:
            remedy = "copy its source tables again: lockstep snapshot"
        said.append(
            f"{len(batches)} batches with changes of {table} were committed while the rules of the target left the "
            f"table out, so that rows may be missing or old there; {remedy}"
        )
    return said


def in_part(opened: OpenPipeline, plan: RunPlan, target: str) -> frozenset[str]:
    """Tables of which the run leaves out batches that the target needs, and that no later one brings: those that were
    left out; of a replay, all before its end."""
    if not plan.replay:
        tables = [table.table for table in plan.merge_set(plan.target(target).merge_set).tables]
        return frozenset(left_out(opened.meta, target, tables))
    takes, found = set(plan.target(target).batches), set[str]()
    for source in [configured.name for configured in opened.pipeline.sources]:
        batches, horizon = opened.meta.batches.find(source), horizons.read(opened.store, source)
        end = max((batch.begin.seq for batch in batches if batch.batch_id in takes), default=inf)
        others = [batch for batch in batches if batch.batch_id not in takes and batch.begin.seq < end]
        files = opened.meta.batches.files([batch.batch_id for batch in others])
        ends = dict.fromkeys(horizon.tables, horizon.position.seq) if horizon is not None else {}
        for batch in others:  # in stream order
            ends |= {file.table: batch.end.seq + batch.copied for file in files[batch.batch_id]}
        found |= {table for table, last in ends.items() if last > _needed_from(opened.meta, table, source)}
    return frozenset(found)


def replayed(meta: Meta, plan: RunPlan, target: str) -> None:
    """What a replay has written is not left out any longer. Rows without a key are counted in order: what comes after
    later batches is not written."""
    tables: Mapping[str, set[str]] = defaultdict(set)
    for table in plan.merge_set(plan.target(target).merge_set).tables:
        if table.key:
            tables[table.table].update(file.batch_id for file in table.files)
    meta.records.take(target, tables)


def _needed_from(meta: Meta, table: str, source: str) -> int:
    feeding = [coverage for coverage in meta.coverages.find(source).tables.values() if table in coverage.feeds]
    return min((coverage.needs_seq if coverage.whole else 0 for coverage in feeding), default=0)


def _source(batch: str) -> str:
    return batch.rpartition("/")[0]
