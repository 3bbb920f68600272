"""One repair: which of the rows still differ, claims for them, a run, and the same rows verified again.

    resume    what earlier repairs have staged and the target has not taken is applied
    verify    the named keys only. A row that is equal by now is left alone; a lag is not a difference
    hold      rows with a version that no staged change can have are set aside, unless the source is authoritative
    claim     the others are looked up in the source, and staged (claims.py)
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
from cdc_core.model.version import Version, encode, newer_or_equal
from cdc_core.operations.apply.jobs import Spark
from cdc_core.operations.copy.copier import copier_lease
from cdc_core.operations.copy.copyable import require_ages
from cdc_core.operations.copy.staging import finish_decided
from cdc_core.operations.open_pipeline import OpenPipeline
from cdc_core.operations.pipeline_run import RunResult
from cdc_core.operations.pipeline_run import apply as apply_staged
from cdc_core.operations.repair.claims import Claimed, WantedKeys, claim, finish_former
from cdc_core.operations.repair.held import Held, forget_version, held, key_rows, remove_row
from cdc_core.operations.repair.repaired_keys import (
    Key,
    error_values,
    has_error_value,
    keys_in,
    require_listed,
    texts_of,
)
from cdc_core.operations.verify import evidence
from cdc_core.operations.verify.feeding import feeding_of
from cdc_core.operations.verify.lease import verifier_lease
from cdc_core.operations.verify.results import TableResult
from cdc_core.operations.verify.shape import Shape
from cdc_core.operations.verify.source_rows import SourceTables, open_sources
from cdc_core.operations.verify.target_rows import TargetTables
from cdc_core.operations.verify.verifier import TableKeys
from cdc_core.operations.verify.verify_job import VerifyJob

log = logging.getLogger(__name__)

DAY_S = 86_400.0


@dataclass(frozen=True, slots=True)
class Result:
    """What a repair has done.

    before:    by logical table, what was found of the named rows when it began.
    after:     the same once the run had ended; None where nothing was applied.
    batches:   ids of the batches that were staged. rows, deletes: in them.
    newer:     by logical table, keys that were left alone, because the target's version is newer than anything staged.
    forgotten: rows that gave way, so that the source's count: such ones, and with a freshness column all that differed.
    removed:   rows that were in a shard to which their routes do not lead.
    claimed:   by logical table and key, what was staged.
    left_out:  by logical table, how many of the named rows no condition finds: see findings.has_error_value.
    refused:   by logical table, why none of its rows could be repaired.
    """

    before: Mapping[str, TableResult]
    after: Mapping[str, TableResult] | None = None
    batches: tuple[str, ...] = ()
    rows: int = 0
    deletes: int = 0
    newer: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    forgotten: int = 0
    removed: int = 0
    claimed: Mapping[str, Mapping[str, Claimed]] = field(default_factory=dict)
    left_out: Mapping[str, int] = field(default_factory=dict)
    refused: Mapping[str, Refused] = field(default_factory=dict)

    @property
    def error(self) -> LockstepError | None:
        """Why the rows are not all equal now; None if they are, or if nothing was applied to the others."""
        refused = combined(list(self.refused.values())) if self.refused else None
        left_out = refused or (error_values(self.left_out) if self.left_out else None)
        if self.after is None:
            return left_out
        left = {table: one.differences for table, one in self.after.items() if one.differences}
        if self.newer:
            count = sum(len(keys) for keys in self.newer.values())
            return DataAtRisk(
                f"{count} rows of {', '.join(self.newer)} have a version at the target that is newer than everything "
                "staged, so somebody else wrote them.",
                where=", ".join(self.newer),
                code="repair.newer",
                remedy="find out who writes there; --authoritative replaces these rows with the source's",
            )
        if left:
            return DataAtRisk(
                f"{sum(left.values())} rows of {', '.join(left)} still differ after the repair.",
                where=", ".join(left),
                code="verify.differs",
                remedy="see with `lockstep verify` how they differ. Look for rows that the run rejected, for a "
                "freshness column with a greater value (--authoritative ignores it), and for somebody who writes to "
                "the target",
            )
        return left_out

    @property
    def settled(self) -> bool:
        """Whether every named row was judged, and is equal; false where nothing was applied."""
        judged = self.after is not None and not self.left_out and not self.refused
        return judged and all(one.equal for one in (self.after or {}).values())


def repair(
    job: VerifyJob,
    keys: Mapping[str, Sequence[Key]],
    *,
    apply: Callable[[], object] | None,
    authoritative: bool = False,
    dry_run: bool = False,
) -> Result:
    """Repairs the rows with these keys, by logical table: `findings.keys_in`. The caller holds the verifier's lease.

    apply: applies what is staged to the job's target, as `lockstep run --staged --target` does; None: it is left to the
    next run. dry_run: only says how the rows differ now. A table that cannot be repaired is left out.

    Raises, if all are left out, Refused (repair.copy_instead, verify.no_evidence, snapshot.not_copyable,
    verify.not_comparable, verify.source_gone, and what opening the destination
    raises); else DataAtRisk (repair.limit), UsageError (usage.unknown_name), RetryLater (snapshot.paused), and what
    verifying, claiming and `apply` raise.
    """
    try:
        done = _repair(job, keys, apply=apply, authoritative=authoritative, dry_run=dry_run)
    except LockstepError as error:
        if not dry_run:
            _kept(job, error)
        raise
    if not dry_run and apply is not None:
        _kept(job, outcome(done))
        if job.lease is not None:
            equal = {
                name: len(keys[name]) - done.left_out.get(name, 0)
                for name, one in (done.after or {}).items()
                if one.equal
            }
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

    @property
    def error(self) -> LockstepError | None:
        """See `outcome`."""
        return outcome(self.done)


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
            VerifyJob(opened, opened.pipeline.target(target), lease), keys,
            apply=applied if spark is not None else None, authoritative=authoritative, dry_run=dry_run,
        )  # fmt: skip
    unjudged = {
        one["table"]: one["error"]["what"] if one["error"] else "rows were changing"
        for one in document["tables"]
        if (not tables or one["table"] in tables) and (one["error"] or one["unsettled"])
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
        unfound = {name: sum(has_error_value(asked[name].shape, key) for key in keys[name]) for name in asked}
        left_out = {name: count for name, count in unfound.items() if count}
        with targets:
            before = {name: table.verify(texts[name]) for name, table in asked.items()}
        wanted = [
            WantedKeys(
                table.shape,
                table.feeding,
                tuple(texts_of(table.shape, [one.key for one in before[name].findings])),
                partial(key_rows, table.shape),
            )
            for name, table in asked.items()
            if before[name].findings
        ]
        if dry_run:
            return Result(before, left_out=left_out, refused=refused)
        done = _repaired(job, before, wanted, apply, authoritative=authoritative)
        done = replace(done, left_out=left_out, refused=refused)
        if apply is None:
            return done
        # Opened again: the run may have added what Lockstep needs there.
        fed = feeding_of(job, sources)
        asked = {name: TableKeys(job, fed, name, targets) for name in asked}
        removed = sum(_remove_misplaced(asked[name].shape, claimed) for name, claimed in done.claimed.items())
        with targets:
            after = {name: table.verify(texts[name]) for name, table in asked.items()}
        return replace(done, after=after, removed=removed)


def outcome(done: Result) -> LockstepError | None:
    """What keeps a repair from being complete: `Result.error`, or RetryLater (verify.unsettled)."""
    if done.error is not None or done.after is None:
        return done.error
    unsettled = sum(one.unsettled for one in done.after.values())
    if unsettled:
        return TableUnready(
            f"{counted(unsettled, 'row')} changed too often to be judged.",
            where=", ".join(done.after),
            code="verify.unsettled",
            remedy="repair again after the next run",
        )
    return None


def _resume(job: VerifyJob, apply: Callable[[], object]) -> None:
    """Stages what a killed repair had decided, and applies what repairs have staged and the target has not taken."""
    names = [one.name for one in job.pipeline.sources]
    for name in names:
        finish_former(job.opened, name)
    staged = {batch for name in names for batch in job.meta.copied.repaired_batches(name)}
    if not staged:
        return
    pending = job.meta.plans.find("", names, [job.target.name], None).pending[job.target.name]
    if staged & pending:
        log.info("%s: what an earlier repair has staged is applied first", job.target.name)
        apply()


def _repaired(
    job: VerifyJob,
    before: Mapping[str, TableResult],
    wanted: Sequence[WantedKeys[Shape]],
    apply: Callable[[], object] | None,
    *,
    authoritative: bool,
) -> Result:
    """The result without what is known only after the run."""
    there = {one.shape.logical: held(one.shape, one.keys) for one in wanted}
    foreign = {one.shape.logical: _foreign(job, one, there[one.shape.logical]) for one in wanted}
    newer: dict[str, tuple[str, ...]] = {}
    if not authoritative:
        newer = {table: tuple(dict.fromkeys(one.key for one in rows)) for table, rows in foreign.items() if rows}
        wanted = [
            replace(one, keys=tuple(key for key in one.keys if key not in newer.get(one.shape.logical, ())))
            for one in wanted
        ]
    wanted = [one for one in wanted if one.keys]
    with ExitStack() as leased:
        leases: dict[str, Lease] = {}
        for name in sorted({source.name for one in wanted for source, _ in one.feeding}):
            leases[name] = leased.enter_context(copier_lease(job.opened, name))
            finish_decided(job.meta, job.opened.store, name, leases[name])
        _require_below_limit(job, wanted)
        made = claim(job, wanted, leases)
    forgotten = 0
    if apply is not None and authoritative:
        for one in wanted:
            rows = dict.fromkeys(foreign[one.shape.logical])
            if one.shape.destination.rule.freshness is not None:
                rows |= dict.fromkeys(row for row in there[one.shape.logical] if row.row is not None)
            forgotten += sum(_give_way(one.shape, row) for row in rows)
    if apply is not None and made.batches:
        apply()
    return Result(
        before, None, tuple(one.batch_id for one in made.batches), made.count(deleted=False), made.count(deleted=True),
        newer, forgotten, claimed=made.claimed,
    )  # fmt: skip


def _asked(
    job: VerifyJob, sources: Sequence[SourceTables], keys: Mapping[str, Sequence[Key]], targets: TargetTables
) -> tuple[dict[str, TableKeys], dict[str, list[str]], dict[str, Refused]]:
    """By logical table: its rows, the texts of the named keys, and why it cannot be repaired. Raises as `repair`."""
    asked: dict[str, TableKeys] = {}
    texts: dict[str, list[str]] = {}
    refused: dict[str, Refused] = {}
    fed = feeding_of(job, sources)
    for name in keys:
        try:
            table = TableKeys(job, fed, name, targets)
            texts[name] = list(texts_of(table.shape, keys[name]))
            for source, schema in table.feeding:
                require_ages(job.pipeline, source.capture, schema)
            asked[name] = table
        except Refused as error:
            refused[name] = error
    if refused and not asked:
        raise combined(list(refused.values()))
    return asked, texts, refused


def _require_below_limit(job: VerifyJob, wanted: Sequence[WantedKeys[Shape]]) -> None:
    """Raises DataAtRisk (repair.limit)."""
    limit = job.pipeline.repair.max_rows_per_day
    asked: dict[str, int] = {}
    for one in wanted:
        for name in {source.name for source, _ in one.feeding}:
            asked[name] = asked.get(name, 0) + len(one.keys)
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


def _foreign(job: VerifyJob, one: WantedKeys[Shape], there: Sequence[Held]) -> list[Held]:
    """What of the target's rows has a version that no staged change can have."""
    ends = []
    for source in {source.name for source, _ in one.feeding}:
        staged = job.meta.positions.checkpoint(source)  # read after the versions: what was staged meanwhile is known
        assert staged is not None  # verify.not_started
        ends.append(encode(Version(staged.watermark_us, staged.position.seq - 1, (1 << 63) - 1, source)))

    def known(version: bytes | None) -> bool:
        return not version or any(newer_or_equal(_of_source(end, version), version) for end in ends)

    return [row for row in there if not (known(row.row) and known(row.tombstone))]


def _of_source(end: bytes, version: bytes) -> bytes:
    """The end of what is staged with the origin of a version of the same source, so that only their places differ."""
    source = end[24:]
    return end + version[24 + len(source) :] if version[24:].startswith(source + b"\0") else end


def _give_way(shape: Shape, row: Held) -> bool:
    shard = shape.destination.shards[row.shard]
    if shape.destination.rule.freshness is not None and row.row is not None:
        return remove_row(shape, shard, row.key, row.row)  # the greater value would count, whatever the version
    return forget_version(shape, shard, row)


def _remove_misplaced(shape: Shape, claimed: Mapping[str, Claimed]) -> int:
    """Removes rows that are in another shard than their own, of keys that were claimed; how many.

    A row that a change after the claim has moved there is newer than the claim, and stays.
    """
    if len(shape.destination.shards) == 1 or not claimed:
        return 0
    by_key: dict[str, list[tuple[int, bytes]]] = {}
    for row in held(shape, list(claimed)):
        if row.row is not None:
            by_key.setdefault(row.key, []).append((row.shard, row.row))
    removed = 0
    for key, rows in by_key.items():
        one = claimed[key]
        if one.shard >= 0 and all(shard != one.shard for shard, _ in rows):
            continue  # the run did not write it: another change is newer, or the target has rejected the row
        for shard, version in rows:
            if shard != one.shard and newer_or_equal(_of_source(one.version, version), version):
                removed += remove_row(shape, shape.destination.shards[shard], key, version)
    return removed
