"""One repair: which of the rows still differ, claims for them, a run, and the same rows verified again.

    resume    what earlier repairs have staged and the target has not taken is applied
    verify    the named keys only. A row that is equal by now is left alone; a lag is not a difference
    claim     the others are looked up in the source, and staged (claims.py)
    give way  if the source is authoritative, what the target has of them becomes older than everything
    apply     an ordinary run; the caller's
    remove    rows in shards to which their routes do not lead, once the right shard has them
    verify    the same keys again

Killed at any moment, a repair is made again from the same findings. What was staged stays staged and is applied first,
so that it is neither looked up nor counted twice; a claim that is staged twice changes nothing. It holds the target's
lease, as a verification does, and the copier's of each source until its rows are staged. It does not keep runs away:
what it stages, a run that is under way may take as well, and what it removes or forgets at the target, it does under
the table's lock, and only if the version is still the one that it has seen.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import partial

from cdc_core.errors import DataAtRisk, LockstepError, Refused, RetryLater, TableUnready, UsageError, combined
from cdc_core.meta import Lease
from cdc_core.meta.task_failures import REPAIR
from cdc_core.model.readable import counted
from cdc_core.model.version import newer_or_equal
from cdc_core.operations.apply.jobs import Spark
from cdc_core.operations.copy.copier import copier_lease
from cdc_core.operations.copy.copyable import require_ages
from cdc_core.operations.copy.staging import finish_decided
from cdc_core.operations.open_pipeline import OpenPipeline
from cdc_core.operations.pipeline_run import RunResult
from cdc_core.operations.pipeline_run import apply as apply_staged
from cdc_core.operations.repair.claims import Claimed, Made, WantedKeys, claim, finish_former
from cdc_core.operations.repair.held import Held, forget_version, held, key_rows, of_servers, remove_row
from cdc_core.operations.repair.repaired_keys import (
    Key,
    keys_in,
    require_listed,
    texts_of,
)
from cdc_core.operations.verify import evidence
from cdc_core.operations.verify.feeding import chosen, feeding_of
from cdc_core.operations.verify.results import TableResult
from cdc_core.operations.verify.shape import Shape
from cdc_core.operations.verify.source_rows import SourceTables, open_sources
from cdc_core.operations.verify.table import ComparedTable
from cdc_core.operations.verify.target_rows import ServerSide, TargetTables
from cdc_core.operations.verify.verify_job import VerifyJob, verifier_lease
from cdc_core.operations.verify.verify_progress import forget_found

log = logging.getLogger(__name__)

DAY_S = 86_400.0


@dataclass(frozen=True, slots=True)
class Result:
    """What a repair has done.

    before:    by logical table, what was found of the named rows when it began.
    after:     the same once the run had ended; None where nothing was applied.
    batches:   ids of the batches that were staged. rows, deletes: in them.
    forgotten: rows and tombstones that gave way, so that the source's rows count whatever their versions.
    removed:   rows that were in a shard to which their routes do not lead.
    claimed:   by logical table and key, what was staged.
    refused:   by logical table, why none of its rows could be repaired.
    """

    before: Mapping[str, TableResult]
    after: Mapping[str, TableResult] | None = None
    batches: tuple[str, ...] = ()
    rows: int = 0
    deletes: int = 0
    forgotten: int = 0
    removed: int = 0
    claimed: Mapping[str, Mapping[str, Claimed]] = field(default_factory=dict)
    refused: Mapping[str, Refused] = field(default_factory=dict)

    @property
    def error(self) -> LockstepError | None:
        """Why the rows are not all equal now; None if they are, or if nothing was applied to the others."""
        after = {} if self.after is None else self.after
        left = {table: result.differences for table, result in after.items() if result.differences}
        if left:
            return DataAtRisk(
                f"{sum(left.values())} rows of {', '.join(left)} still differ after the repair.",
                where=", ".join(left),
                code="verify.differs",
                remedy="see with `lockstep verify` how they differ. Look for rows that the run rejected, and for "
                "somebody who writes to the target. --authoritative also replaces rows with a newer version or a "
                "greater freshness than the source's",
            )
        if self.refused:
            return combined(list(self.refused.values()))
        unsettled = sum(result.unsettled for result in after.values())
        if unsettled:
            return TableUnready(
                f"{counted(unsettled, 'row')} changed too often to be judged.",
                where=", ".join(after),
                code="verify.unsettled",
                remedy="repair again after the next run",
            )
        return None

    @property
    def settled(self) -> bool:
        """Whether every named row was judged, and is equal; false where nothing was applied."""
        judged = self.after is not None and not self.refused
        return judged and all(result.equal for result in (self.after or {}).values())


def repair(
    job: VerifyJob,
    keys: Mapping[str, Sequence[Key]],
    *,
    apply: Callable[[], object] | None,
    authoritative: bool = False,
    dry_run: bool = False,
) -> Result:
    """Repairs the rows with these keys, by logical table (`repaired_keys.keys_in`). The caller holds the verifier's
    lease.

    apply: applies what is staged to the job's target, as `lockstep run --staged --target` does; None: it is left to the
    next run. dry_run: only says how the rows differ now. A table that cannot be repaired is left out.

    Raises, if all are left out, Refused (repair.copy_instead, verify.no_evidence, snapshot.not_copyable,
    verify.not_comparable, verify.source_gone, and what opening the destination raises); else DataAtRisk (repair.limit),
    UsageError (usage.unknown_name), RetryLater (snapshot.paused), and what verifying, claiming and `apply` raise.
    """
    try:
        done = _repair(job, keys, apply=apply, authoritative=authoritative, dry_run=dry_run)
    except LockstepError as error:
        if not dry_run:
            _kept(job, error)
        raise
    if not dry_run and apply is not None:
        _kept(job, done.error)
        if job.lease is not None:
            equal = {name: len(keys[name]) for name, result in (done.after or {}).items() if result.equal}
            job.meta.verifications.forget_differences(job.lease, job.target.name, equal)
    return done


@dataclass(frozen=True, slots=True)
class RepairReport:
    """evidence: the path of what was repaired by. unjudged: tables that this evidence does not judge completely, and
    why. runs: by which what is staged was applied."""

    target: str
    evidence: str
    unjudged: Mapping[str, str]
    done: Result
    runs: tuple[RunResult, ...]


def repair_target(
    opened: OpenPipeline,
    target: str,
    spark: Spark | None,
    tables: Sequence[str] = (),
    ids: Sequence[str] = (),
    *,
    path: str | None = None,
    authoritative: bool = False,
    dry_run: bool = False,
) -> RepairReport:
    """Repairs what verifications have found at a target, under its lease.

    spark: None leaves what is staged to the next run. ids: of single findings; none for all. path: of the evidence;
    None for the newest of each table. Raises as `repair`; RetryLater (lease.held), and what reading the evidence
    raises.
    """
    if path:
        document = evidence.read(opened.store, path)
    else:
        (path, *earlier), document = evidence.outstanding(opened.store, target)
        for older in earlier:
            opened.progress.note(f"findings of earlier evidence count, too: {older}")
    if not ids and not dry_run:
        require_listed(document, path, tables)
    keys = keys_in(document, path, tables=tables, ids=ids)
    runs: list[RunResult] = []

    def applied() -> None:
        assert spark is not None
        runs.append(apply_staged(opened, spark, "repair", targets=[target]))

    with verifier_lease(opened, target) as lease:
        done = repair(
            VerifyJob(opened, opened.pipeline.target(target), lease),
            keys,
            apply=applied if spark is not None else None,
            authoritative=authoritative,
            dry_run=dry_run,
        )
    unjudged = {
        table["table"]: table["error"]["what"] if table["error"] else "rows were changing"
        for table in document["tables"]
        if (not tables or table["table"] in tables) and (table["error"] or table["unsettled"])
    }
    return RepairReport(target, path, unjudged, done, tuple(runs))


def _kept(job: VerifyJob, error: LockstepError | None) -> None:
    """For `lockstep status` and the page: what somebody must look at, until a repair has succeeded."""
    if isinstance(error, (RetryLater, UsageError)):
        return
    target = job.target.name
    try:
        if error is None:
            job.meta.failures.clear(REPAIR, target)
        else:
            job.meta.failures.keep(REPAIR, target, error)
    except LockstepError as unkept:  # the error itself is what counts
        log.warning("%s: the result of this repair could not be kept in meta: %s", target, unkept)


def _repair(
    job: VerifyJob,
    keys: Mapping[str, Sequence[Key]],
    *,
    apply: Callable[[], object] | None,
    authoritative: bool,
    dry_run: bool,
) -> Result:
    with ExitStack() as opened:
        sources = opened.enter_context(open_sources(job))
        if apply is not None and not dry_run:
            _resume(job, apply)
        targets = TargetTables()
        asked, texts, refused = _asked(job, sources, keys, targets)
        with targets:
            before = {name: table.compared(texts[name]) for name, table in asked.items()}
        wanted = [
            WantedKeys(
                name,
                table.shape.key,
                texts_of(table.shape, [finding.key for finding in before[name].findings]),
                table.feeding,
                partial(key_rows, table.shape),
                table.shape.errors,
                table.shape.side.shard_numbers,
            )
            for name, table in asked.items()
            if before[name].findings
        ]
        if dry_run:
            return Result(before, refused=refused)
        forget_found(job, asked)
        there = (
            {table.logical: _there(asked[table.logical].shape, table.keys) for table in wanted} if authoritative else {}
        )
        made = _claimed(job, wanted)
        done = Result(
            before,
            batches=tuple(batch.batch_id for batch in made.batches),
            rows=made.count(deleted=False),
            deletes=made.count(deleted=True),
            claimed=made.claimed,
            refused=refused,
        )
        if apply is None:
            return done
        forgotten = sum(_given_way(asked[name].shape, rows) for name, rows in there.items())
        if made.batches:
            apply()
        # Opened again: the run may have added what Lockstep needs there.
        fed = feeding_of(job, sources)
        asked = {name: ComparedTable(job, name, fed.feeding(name), targets) for name in asked}
        removed = sum(_remove_misplaced(asked[name].shape, claimed) for name, claimed in done.claimed.items())
        with targets:
            after = {name: table.compared(texts[name]) for name, table in asked.items()}
        return replace(done, after=after, removed=removed, forgotten=forgotten)


def _resume(job: VerifyJob, apply: Callable[[], object]) -> None:
    """Stages what a killed repair had decided, and applies what repairs have staged and the target has not taken."""
    names = [source.name for source in job.pipeline.sources]
    for name in names:
        finish_former(job.opened, name)
    staged = {batch for name in names for batch in job.meta.copied.repaired_batches(name)}
    if not staged:
        return
    pending = job.meta.plans.find("", names, [job.target.name], None).pending[job.target.name]
    if staged & pending:
        log.info("%s: what an earlier repair has staged is applied first", job.target.name)
        apply()


def _claimed(job: VerifyJob, wanted: Sequence[WantedKeys]) -> Made:
    """Under the copier's lease of each source."""
    with ExitStack() as leased:
        leases: dict[str, Lease] = {}
        for name in sorted({source.name for table in wanted for source, _ in table.feeding}):
            leases[name] = leased.enter_context(copier_lease(job.opened, name))
            finish_decided(job.meta, job.opened.store, name, leases[name])
        _require_below_limit(job, wanted)
        return claim(job, wanted, leases)


def _asked(
    job: VerifyJob, sources: Sequence[SourceTables], keys: Mapping[str, Sequence[Key]], targets: TargetTables
) -> tuple[dict[str, ComparedTable], dict[str, list[str]], dict[str, Refused]]:
    """Each logical table's rows, the texts of its named keys, and why it cannot be repaired. Raises as `repair`."""
    compared: dict[str, ComparedTable] = {}
    texts: dict[str, list[str]] = {}
    refused: dict[str, Refused] = {}
    fed = feeding_of(job, sources)
    for name in keys:
        try:
            chosen(job, fed, [name])
            table = ComparedTable(job, name, fed.feeding(name), targets)
            texts[name] = list(texts_of(table.shape, keys[name]))
            for source, schema in table.feeding:
                require_ages(job.pipeline, source.capture, schema)
            compared[name] = table
        except Refused as error:
            refused[name] = error
    if refused and not compared:
        raise combined(list(refused.values()))
    return compared, texts, refused


def _require_below_limit(job: VerifyJob, wanted: Sequence[WantedKeys]) -> None:
    """Raises DataAtRisk (repair.limit)."""
    limit = job.pipeline.repair.max_rows_per_day
    asked: dict[str, int] = {}
    for table in wanted:
        for name in {source.name for source, _ in table.feeding}:
            asked[name] = asked.get(name, 0) + len(table.keys)
    for name, rows in asked.items():
        done = job.meta.copied.repaired(name, DAY_S)
        if done + rows > limit:
            raise DataAtRisk(
                f"Repairing {rows} rows that {name} feeds would exceed the limit of {limit}: {done} were repaired in "
                "the last 24 hours. Nothing was staged.",
                where=f"target {job.target.name}",
                code="repair.limit",
                remedy="find out why so many rows differ; then raise repair.max_rows_per_day, or copy the table "
                "again (`lockstep snapshot PIPELINE TABLE`)",
            )


def _of_source(end: bytes, version: bytes) -> bytes:
    """A version with the origin of another of the same source, so that only their places differ."""
    source = end[24:]
    return end + version[24 + len(source) :] if version[24:].startswith(source + b"\0") else end


def _there(shape: Shape, keys: Sequence[str]) -> list[Held]:
    """What the target has under these keys."""
    if isinstance(shape.side, ServerSide):
        return held(shape, keys)
    from cdc_core.operations.repair import held_in_lake  # needs an extra

    return held_in_lake.held(shape, keys)


def _given_way(shape: Shape, rows: Sequence[Held]) -> int:
    """How much of this has become older than everything."""
    if isinstance(shape.side, ServerSide):
        return sum(_give_way(shape, row) for row in rows)
    from cdc_core.operations.repair import held_in_lake

    return held_in_lake.give_way(shape, rows)


def _give_way(shape: Shape, row: Held) -> bool:
    side = of_servers(shape)
    shard = side.shards[row.shard]
    if side.destination.rule.freshness is not None and row.row is not None:
        return remove_row(shape, shard, row.key, row.row)  # the greater value would count, whatever the version
    return forget_version(shape, shard, row)


def _remove_misplaced(shape: Shape, claimed: Mapping[str, Claimed]) -> int:
    """Removes rows that are in another shard than their own, of keys that were claimed; how many.

    A row that a change after the claim has moved there is newer than the claim, and stays.
    """
    if len(shape.side.places) == 1 or not claimed:
        return 0
    by_key: dict[str, list[tuple[int, bytes]]] = {}
    for row in held(shape, list(claimed)):
        if row.row is not None:
            by_key.setdefault(row.key, []).append((row.shard, row.row))
    removed = 0
    for key, rows in by_key.items():
        claimed_key = claimed[key]
        if claimed_key.shard >= 0 and all(shard != claimed_key.shard for shard, _ in rows):
            continue  # the run did not write it: another change is newer, or the target has rejected the row
        for shard, version in rows:
            if shard != claimed_key.shard and newer_or_equal(_of_source(claimed_key.version, version), version):
                removed += remove_row(shape, of_servers(shape).shards[shard], key, version)
    return removed
