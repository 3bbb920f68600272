"""How many rows both sides have, and their greatest keys, as of places of the log.

Cheap, and no proof: rows may differ in every value. The manifests say how many rows each batch brings and takes away. A
batch that a side had when it was counted changes that side's count; of one that it may have had in part, the change
lies between bounds. It must keep true that a lag is never a difference: only a count outside of all bounds is one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

from cdc_core.model.batch import Manifest
from cdc_core.model.position import Position
from cdc_core.model.staged_columns import DELETE, INSERT, TRUNCATE, UPDATE


@dataclass(frozen=True, slots=True)
class Excess:
    """How many rows the target may have more than the source, from `least` to `most`; unbounded: nothing is known.
    touched: some batch is on one side only, or may be."""

    least: int = 0
    most: int = 0
    unbounded: bool = False
    touched: bool = False

    def allows(self, excess: int) -> bool:
        return self.unbounded or self.least <= excess <= self.most


def excess_of(
    batches: Iterable[Manifest],
    logical: str,
    bounds: Mapping[str, tuple[Position, Position]],
    consumed: AbstractSet[str],
    *,
    moving: bool,
) -> Excess:
    """bounds: by source, between which places its rows were counted. consumed: ids of the batches that the target had
    consumed before its rows were counted. moving: any update may move a row to another shard."""
    found = Excess()
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
        unbounded = found.unbounded or bool(ops[TRUNCATE]) or bool(batch.chunks)
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
        found = Excess(found.least + least, found.most + most, unbounded, True)
    return found


@dataclass(frozen=True, slots=True)
class CountVerdict:
    """differences: rows that no bound explains; 1 if only the greatest key differs."""

    differences: int = 0
    moving: int = 0
    unsettled: int = 0


def judged(source: int, target: int, excess: Excess, *, reached: bool) -> CountVerdict:
    """source, target: rows that were counted. reached: the greatest keys are the same."""
    found = target - source
    if not found and reached:
        return CountVerdict()
    if excess.unbounded:
        return CountVerdict(unsettled=1)
    if not excess.allows(found):
        return CountVerdict(differences=max(excess.least - found, found - excess.most))
    return CountVerdict(moving=1) if reached or excess.touched else CountVerdict(differences=1)
