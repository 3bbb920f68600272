"""Verifications that only count: how many rows both sides have, and their greatest keys, as of places of the log.

Cheap, and no proof: rows may differ in every value. The manifests say how many rows each batch brings and takes away. A
batch that a side had when it was counted changes that side's count; of one that it may have had in part, the change
lies between bounds. It must keep true that a lag is never a difference: only a count outside of all bounds is one.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import TYPE_CHECKING

from cdc_core.errors import Refused
from cdc_core.model.batch import Manifest
from cdc_core.model.position import Position
from cdc_core.model.staged_columns import DELETE, INSERT, TRUNCATE, UPDATE
from cdc_core.operations.copy.key_ranges import Key
from cdc_core.operations.verify.judgement import Wrong
from cdc_core.operations.verify.modes import Mode
from cdc_core.operations.verify.results import TableResult
from cdc_core.operations.verify.verify_progress import SourceSpan, joined

if TYPE_CHECKING:
    from cdc_core.operations.verify.table import ComparedTable


def count_rows(table: ComparedTable) -> TableResult:
    """Raises Refused (verify.mode), and what reading raises."""
    job, shape = table.job, table.shape
    started_s = time.monotonic()
    _require_countable(table)
    spans: tuple[SourceSpan, ...] = ()
    last: Key = ()
    here = 0
    for source, schema in table.feeding:
        rows, last, read = source.count(schema)
        here += rows
        job.report(table.name, "source", here)
        spans = joined(spans, [SourceSpan(source.name, read.low, read.high)])
    consumed = table.consumed()
    there = table.target_rows()
    job.report(table.name, "target", there)
    reached = job.mode is not Mode.MAX_ID or not last or table.reaches(last)
    bounds = {span.source: (span.low, span.high) for span in spans}
    sharding = shape.side.sharding
    moves = sharding is not None and sharding.key not in shape.key
    chains = table.batches.chains_until(spans)
    excess = _excess_of(chains, table.name, bounds, consumed.batches, moving=moves)
    differences = moving = unsettled = 0
    if there != here or not reached:
        if excess.unbounded:
            unsettled = 1
        elif not excess.least <= there - here <= excess.most:
            differences = max(excess.least - (there - here), there - here - excess.most)
        elif not reached and not excess.touched:
            differences = 1
        else:
            moving = 1
    return TableResult(
        table.name,
        mode=job.mode,
        spans=spans,
        consumed_until=consumed.until,
        source_rows=here,
        target_rows=there,
        moving=moving,
        unsettled=unsettled,
        found={Wrong.UNKNOWN: differences} if differences else {},
        ranges=1,
        greatest_differs=differences > 0 and not reached,
        seconds=time.monotonic() - started_s,
    )


def _require_countable(table: ComparedTable) -> None:
    """Raises Refused (verify.mode)."""
    job, names = table.job, [schema.name for _, schema in table.feeding]
    why = ""
    if any(re.fullmatch(rule.match, name) for rule in job.pipeline.tables.rows for name in names):
        why = "a filter leaves out rows of the source"
    elif len(names) > 1 and table.rule.shared_keys == "newest":
        why = "source tables may share keys (shared_keys: newest), so that their rows are fewer in the target"
    elif job.mode is Mode.MAX_ID:
        why = "several source tables feed it" if len(names) > 1 else table.whole
    if why:
        raise Refused(
            f"{table.name} cannot be verified in the mode {job.mode}: {why}.",
            where=table.name,
            code="verify.mode",
            remedy="verify the table with --mode ordered",
        )


@dataclass(frozen=True, slots=True)
class _Excess:
    """How many rows the target may have more than the source, from `least` to `most`; unbounded: nothing is known.
    touched: some batch is on one side only, or may be."""

    least: int = 0
    most: int = 0
    unbounded: bool = False
    touched: bool = False


def _excess_of(
    batches: Iterable[Manifest],
    logical: str,
    bounds: Mapping[str, tuple[Position, Position]],
    consumed: AbstractSet[str],
    *,
    moving: bool,
) -> _Excess:
    """bounds: by source, between which places its rows were counted. consumed: ids of the batches that the target had
    consumed before its rows were counted. moving: any update may move a row to another shard."""
    excess = _Excess()
    for batch in batches:
        parts = [part for part in batch.parts if part.table == logical]
        low, high = bounds[batch.source]
        had, applied = batch.end.position <= low, batch.batch_id in consumed
        if not parts or (had and applied):
            continue
        had_in_part = not had and batch.begin.position < high
        ops = {op: sum(part.ops.get(op, 0) for part in parts) for op in (INSERT, UPDATE, DELETE, TRUNCATE)}
        copied = sum(part.rows for part in parts) - sum(ops.values())
        more, less = ops[INSERT] + copied, ops[DELETE]
        unbounded = excess.unbounded or bool(ops[TRUNCATE]) or bool(batch.chunks)
        if had:  # the target may lack any of it
            least, most = -more, less
        elif applied and not had_in_part:
            least, most = more - less, more - less
        elif applied or not had_in_part:  # the source may lack any of it
            least, most = -less, more
        else:
            least, most = -more - less, more + less
        if not applied:  # a run may have made one of the two steps of a row that gets another key, or another shard
            steps = ops[UPDATE] if moving else sum(part.key_changes for part in parts)
            least, most = least - steps, most + steps
        excess = _Excess(excess.least + least, excess.most + most, unbounded, True)
    return excess
