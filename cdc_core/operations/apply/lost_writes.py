"""Whether a target still has every transaction that a closed ledger counts, and what brings back the lost ones.

A target may fail over to a replica that had not received its last transactions, or be restored from a backup. The
ledgers in meta are then closed over rows that are gone, and no later run would write them again. So `check`, every run
before its first job and at its end, and every commit look for the row that each shard's last counted transaction left
in the shard's own ledger (`row_writer.note`). A server has a prefix of its transactions: with that row it has all
earlier ones. A table that the pipeline names otherwise by now is another one: what was written to the former is not in
it.

The way on is a replay of the lost batches. It is planned over the loss: its plan names the shards that it restores, and
its commit, which looks again, records that they are restored if no more is lost by then. A replay that began before
the loss restores nothing, since it may have left out what the target had at that time.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace

from cdc_core.config import MysqlTarget, Pipeline, Target
from cdc_core.errors import DataAtRisk
from cdc_core.meta import Meta
from cdc_core.meta.meta_rows import ClosedWrite, LastWrite, Renewal, StillLost
from cdc_core.meta.task_failures import LOST_WRITES
from cdc_core.model.batch import at_place
from cdc_core.model.readable import counted
from cdc_core.model.run_plan import Restored, RunPlan, WriteCounts
from cdc_core.operations.open_pipeline import OpenPipeline
from cdc_core.stage import horizon as horizons
from cdc_core.stage.objects import ObjectStore
from cdc_core.targets.bookkeeping.ledger_rows import Shard, ledger_rows
from cdc_core.targets.reading.sharding import shard_tables

_SHOWN = 3


@dataclass(frozen=True, slots=True)
class LostWrites:
    """Transactions that one shard of a table lacks, although closed ledgers count them.

    writes: in the order of their ledgers; more may be lost if `everything` is: the shard has no row of any ledger that
    meta knows. due: the last one that ledgers count. last: the last one that the shard shows. named: whether the rules
    of the target still have the shard.
    """

    table: str
    shard: str
    writes: tuple[ClosedWrite, ...]
    everything: bool
    due: LastWrite
    last: LastWrite | None
    named: bool = True

    @property
    def runs(self) -> tuple[str, ...]:
        return tuple(write.run_id for write in self.writes)

    @property
    def rows(self) -> int:
        return sum(write.written.get(self.shard, 0) for write in self.writes)


def find(opened: OpenPipeline, target: Target) -> tuple[LostWrites, ...]:
    """What the target has lost. Raises what ledger_rows raises."""
    meta = opened.meta
    due = {
        (table, shard): write
        for table, shards in meta.writes.last(target.name).items()
        for shard, write in shards.items()
    }
    there = _ledger_rows(opened, target, {shard: (write.run_id,) for shard, write in due.items()})
    due = {at: write for at, write in due.items() if target.table(at[0]) is not None}
    lacking = {at: write for at, write in due.items() if there.get(at, {}).get(write.run_id, 0) < write.number}
    if not lacking:
        return ()
    shown = _ledger_rows(opened, target, dict.fromkeys(lacking))
    closed = {table: meta.writes.closed(target.name, table) for table in {table for table, _ in lacking}}
    return tuple(
        replace(_lost(*at, write, shown.get(at, {}), closed[at[0]]), named=at in there) for at, write in lacking.items()
    )


def _ledger_rows(
    opened: OpenPipeline, target: Target, wanted: Mapping[Shard, Collection[str] | None]
) -> dict[Shard, dict[str, int]]:
    if isinstance(target, MysqlTarget):
        return ledger_rows(target, wanted)
    from cdc_core.lake.lake_ledger import published_runs

    return published_runs(opened.catalogs.of(target), target, wanted)


def _lost(table: str, shard: str, due: LastWrite, rows: Mapping[str, int], closed: Iterable[ClosedWrite]) -> LostWrites:
    """rows: numbers of the transactions that the shard shows, by run."""
    writes = [write for write in closed if shard in write.numbers]
    kept = max(
        (write.numbers[shard] for write in writes if rows.get(write.run_id, 0) >= write.numbers[shard]), default=0
    )
    lost = tuple(write for write in writes if write.numbers[shard] > kept)
    known = due.run_id in {write.run_id for write in lost}
    last = max(((number, run_id) for run_id, number in rows.items()), default=None)
    return LostWrites(table, shard, lost, not kept or not known, due, last and LastWrite(last[1], last[0]))


def require_kept(opened: OpenPipeline, target: str) -> None:
    """Raises DataAtRisk (target.lost_writes), and what ledger_rows raises."""
    lost = find(opened, opened.pipeline.target(target))
    if lost:
        raise refusal(opened.pipeline, target, lost)


def refusal(pipeline: Pipeline, target: str, lost: Iterable[LostWrites]) -> DataAtRisk:
    """The error for lost writes, with the replay that restores them."""
    all_lost = sorted(lost, key=lambda writes: (writes.table, writes.shard))
    shown = "; ".join(
        (
            f"{writes.shard} lacks "
            if writes.named
            else f"the tables that {writes.table} has now lack, of {writes.shard}, "
        )
        + (
            f"{counted(writes.rows, 'row')} of {', '.join(writes.runs[-_SHOWN:])}"
            if writes.writes
            else "all that was written"
        )
        for writes in all_lost[:_SHOWN]
    )
    more = f"; so do {counted(len(all_lost) - _SHOWN, 'more table')}" if len(all_lost) > _SHOWN else ""
    first = first_batches(all_lost)
    begin = "".join(f" --from {batch}" for batch in first)
    return DataAtRisk(
        f"The target {target!r} has lost writes that were committed: {shown}{more}.",
        where=f"targets.{target}",
        code="target.lost_writes",
        remedy="nothing was written. If the connection leads to the wrong server, or the pipeline file to the wrong "
        "tables, correct it. If the server was "
        "restored, or is a replica that was promoted before it had received everything, write the lost batches again: "
        f"`lockstep run {pipeline.pipeline} --replay --target {target}{begin}` "
        f"({'first_batches in Airflow: ' + ', '.join(first) if first else 'in Airflow: the replay DAG, from the start'}"
        "); the next run then continues. If the rows are there in another way: "
        f"`lockstep meta accept {pipeline.pipeline} --target {target}`",
    )


def first_batches(lost: Iterable[LostWrites]) -> list[str]:
    """The batches of the log, one a source, from which a replay must begin; [] for all that is staged."""
    first: dict[str, str] = {}
    for writes in lost:
        if writes.everything:
            return []
        for write in writes.writes:
            for source, (begin, _) in write.spans.items():
                begin = at_place(begin)  # copied rows are taken with their place
                first[source] = min(begin, first.get(source, begin))
    return [first[source] for source in sorted(first)]


def restored_by(opened: OpenPipeline, plan: RunPlan, lost: Iterable[LostWrites]) -> tuple[Restored, ...]:
    """The lost writes that a replay repeats: it takes every batch that they came from."""
    sources = [source.name for source in opened.pipeline.sources]
    taken = {
        table.table: {file.batch_id for file in table.files}
        for merge_set in plan.merge_sets
        for table in merge_set.tables
    }
    return tuple(
        Restored(writes.table, writes.shard, writes.runs, writes.everything)
        for writes in lost
        if (batches := taken.get(writes.table)) and _needed(opened.meta, opened.store, sources, writes) <= batches
    )


def _needed(meta: Meta, store: ObjectStore, sources: Iterable[str], lost: LostWrites) -> set[str]:
    """The batches that the lost writes came from."""
    spans: list[tuple[str, str, str]]
    if lost.everything:
        spans = [(source, f"{source}/", f"{source}0") for source in sources]  # "0" is the character after "/"
        purged = [horizons.read(store, source) for source in sources]
        needed = {horizon.last_batch for horizon in purged if horizon is not None and lost.table in horizon.tables}
    else:
        spans = [(source, *ends) for write in lost.writes for source, ends in write.spans.items()]
        needed = {end for _, *ends in spans for end in ends}
    for source, begin, end in spans:
        ids = [batch.batch_id for batch in meta.batches.find(source) if begin <= batch.batch_id <= end]
        needed |= {
            batch for batch, files in meta.batches.files(ids).items() if any(file.table == lost.table for file in files)
        }
    return needed


def require_own(opened: OpenPipeline, plan: RunPlan, target: str, written: Iterable[WriteCounts]) -> None:
    """The target has what the run itself wrote. Raises DataAtRisk (target.lost_writes)."""
    mine = {(counts.table, counts.shard): counts.number for counts in written if counts.number}
    there = _ledger_rows(opened, opened.pipeline.target(target), dict.fromkeys(mine, (plan.run_id,)))
    gone = [shard for shard, number in mine.items() if shard in there and there[shard].get(plan.run_id, 0) < number]
    if gone:
        raise DataAtRisk(
            f"The target {target!r} has lost what this run wrote to {gone[0][1]}"
            + (f" and {counted(len(gone) - 1, 'more table')}" if len(gone) > 1 else "")
            + ": it may have failed over meanwhile.",
            where=f"targets.{target}",
            code="target.lost_writes",
            remedy="no batch was marked as consumed. Clear the run from its filter task on; without Airflow, start "
            "another run, which takes the batches again",
        )


def still_lost(lost: Iterable[LostWrites], plan: RunPlan) -> StillLost:
    """What the target still lacks after this run."""
    restores = {(restore.table, restore.shard): restore for restore in plan.restores}
    lacking: dict[str, set[str]] = {}
    renewed: dict[str, dict[str, Renewal]] = {}
    for writes in lost:
        known = restores.get((writes.table, writes.shard))
        if known is not None and set(writes.runs) <= set(known.runs) and known.everything >= writes.everything:
            renewed.setdefault(writes.table, {})[writes.shard] = Renewal(writes.due, writes.last)
        else:
            lacking.setdefault(writes.table, set()).add(writes.shard)
    return StillLost(lacking, renewed)


def accept(opened: OpenPipeline, target: str) -> tuple[LostWrites, ...]:
    """Ask no more for what the target has lost; what that was."""
    lost = find(opened, opened.pipeline.target(target))
    shown: dict[str, dict[str, Renewal]] = {}
    for writes in lost:
        shown.setdefault(writes.table, {})[writes.shard] = Renewal(writes.due, writes.last)
    opened.meta.writes.accept(target, shown)
    opened.meta.failures.clear(LOST_WRITES, target)
    return lost


def accept_moved(meta: Meta, target: MysqlTarget, tables: Collection[str]) -> None:
    """Ask no more for what was written to shards that these tables do not have any more: their rows were moved."""
    due = meta.writes.last(target.name)
    moved: dict[str, dict[str, Renewal]] = {}
    for table in due.keys() & tables:
        named = {shard_table.name for shard_table in shard_tables(target, table)}
        moved[table] = {shard: Renewal(write, None) for shard, write in due[table].items() if shard not in named}
    meta.writes.accept(target.name, moved)
