"""What needs attention in a pipeline, the worst first: a pure function of its status and its schedule.

Keeps true: a pipeline whose last extract failed, that is late, or that was never extracted is not called healthy.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from itertools import islice, takewhile

from cdc_core.config import WAY_BACK_SUFFIX
from cdc_core.errors import SEVERITY, DataAtRisk, InternalError, LockstepError, Refused, RetryLater
from cdc_core.meta import verifications
from cdc_core.meta.meta_rows import CopyState, Failure, SetAside, SourceStatus, Status
from cdc_core.meta.rollouts import unfinished
from cdc_core.meta.run_states import RunState
from cdc_core.meta.task_failures import COPY, COPY_TABLE, EXTRACT, GATES, LOST_WRITES, REPAIR, RUN, copied_table
from cdc_core.model.coverage import How, TableCoverage, lacks
from cdc_core.model.readable import counted
from cdc_core.model.windows import Windows, from_us, to_us

MOST_LATE = 1000
"""Intervals that are counted at most."""
GRACE = 1
"""The interval that ended last may still be in progress."""


class Level(StrEnum):
    FAILED = "failed"
    """Data waits, or is at risk, until somebody acts or a retry succeeds."""
    PAUSED = "paused"
    """Data waits because somebody wants it to, until that person says otherwise."""
    LATE = "late"
    NOTED = "noted"
    """A piece of information; nothing waits for it."""


_KINDS = {kind.exit_class: kind for kind in SEVERITY}


@dataclass(frozen=True, slots=True)
class Problem:
    """what, where, remedy, code: as an error has them. subject: source, target or run. since_us: 0 if unknown.

    kind: the class of errors that it belongs to; None for what is only information. about: tells it from others with
    its subject and code.
    """

    level: Level
    subject: str
    what: str
    where: str = ""
    remedy: str = ""
    code: str = ""
    since_us: int = 0
    times: int = 1
    kind: type[LockstepError] | None = None
    about: str = ""

    @property
    def exit_class(self) -> str:
        return "" if self.kind is None else self.kind.exit_class

    @property
    def exit_code(self) -> int:
        """The exit code of `lockstep status`."""
        return 0 if self.kind is None else self.kind.exit_code


def problems(status: Status, windows: Windows, sources: Sequence[str], targets: Sequence[str]) -> tuple[Problem, ...]:
    """sources, targets: of the pipeline file."""
    return (
        *_unclosed(status),
        *_differing(status, targets),
        *_set_aside(status),
        *_half_altered(status, targets),
        *_failed(status, sources, targets),
        *_paused(status),
        *_never(status, sources),
        *_late(status, windows, targets),
        *_purged_soon(status),
        *_copied(status, targets),
        *_noted(status),
    )


def _failed(status: Status, sources: Sequence[str], targets: Sequence[str]) -> Iterator[Problem]:
    runs = standing(status)
    known = set()
    copying = [
        source.source for source in status.sources if any(each.state is not CopyState.COPIED for each in source.copies)
    ]
    # Refused tables: see _noted.
    subjects = {EXTRACT: sources, RUN: runs, COPY: copying, COPY_TABLE: []}
    subjects |= dict.fromkeys((REPAIR, GATES, LOST_WRITES), targets)
    for failure in sorted(status.failures, key=lambda each: (SEVERITY.index(_kind(each)), -each.failed_us)):
        if failure.subject not in subjects.get(failure.task, [failure.subject]):
            continue
        known.add(failure.subject)
        subject = f"{failure.task} {failure.subject}".strip()
        yield Problem(
            Level.FAILED,
            subject,
            failure.what,
            failure.where,
            failure.remedy,
            failure.code,
            failure.first_us,
            failure.times,
            _kind(failure),
        )
    for run_id in runs:
        if run_id not in known:
            run = next(each for each in status.runs if each.run_id == run_id)
            yield Problem(
                Level.FAILED,
                f"run {run_id}",
                run.last_error or "The run failed.",
                since_us=run.updated_us,
                kind=InternalError,
            )


def _kind(failure: Failure) -> type[LockstepError]:
    return _KINDS.get(failure.exit_class, InternalError)


def standing(status: Status) -> list[str]:
    """Runs that failed, until their batches are committed. Once another run has taken these, or of a replay, which has
    none: until another run has committed."""
    found, committed = [], False
    for run in status.runs:
        committed |= run.state is RunState.COMMITTED
        if run.state is RunState.FAILED and (run.run_id in status.holding or not committed):
            found.append(run.run_id)
    return found


def _unclosed(status: Status) -> Iterator[Problem]:
    for row in status.ledgers:
        for problem in row.entry.problems():
            yield Problem(
                Level.FAILED,
                f"run {row.entry.run_id}",
                f"The ledger of {row.entry.table} does not add up: {problem}.",
                where=row.entry.target,
                remedy="compare the table with its source before you trust it",
                kind=DataAtRisk,
                since_us=row.closed_us,
            )


def _differing(status: Status, targets: Sequence[str]) -> Iterator[Problem]:
    """Rows of targets that a verification found to differ, until they are repaired or found equal."""
    for verification in status.verifications:
        mode = verifications.newest(verification.evidence)
        if not mode or verification.target not in targets:
            continue
        rows = verifications.known_to_differ(verification.evidence)
        of = f" of {', '.join(sorted(rows))}" if rows else ""
        # A count names no rows, so that only the next verification can say that they are equal.
        counted_only = mode not in ("ordered", "random") and not rows
        count = verification.evidence[mode]["differences"] if counted_only else sum(rows.values())
        differ = "differs" if count == 1 else "differ"
        if count:
            yield Problem(
                Level.FAILED,
                f"target {verification.target}",
                f"{counted(count, 'row')}{of} {differ} from the source.",
                remedy="`lockstep repair` brings these rows from the source, `lockstep verify` compares again; "
                "docs/verification.md has the causes",
                code="verify.differs",
                kind=DataAtRisk,
                since_us=to_us(datetime.fromisoformat(verification.evidence[mode]["ended"])),
            )


def _set_aside(status: Status) -> Iterator[Problem]:
    """Rows that targets rejected and lack, by the run that set them aside."""
    by_run: dict[tuple[str, str], list[SetAside]] = {}
    for rejected in status.set_aside:
        by_run.setdefault((rejected.target, rejected.run_id), []).append(rejected)
    for (target, run_id), of_run in by_run.items():
        rows, tables = sum(rejected.rows for rejected in of_run), ", ".join(rejected.table for rejected in of_run)
        yield Problem(
            Level.FAILED,
            f"target {target}",
            f"{target} lacks {counted(rows, 'row')} of {tables} that it rejected: the run {run_id} set them aside.",
            where=run_id,
            code="target.row_error",
            since_us=of_run[0].since_us,
            remedy="correct the rows at the source; or let the target take them, then `lockstep run "
            f"{status.pipeline} --requeue {run_id} --target {target}`, or `lockstep verify` and `lockstep repair` once "
            "its batches were purged. The stage has the rows and reasons in runs/",
            kind=DataAtRisk,
            about=tables,
        )


def _half_altered(status: Status, targets: Sequence[str]) -> Iterator[Problem]:
    """Shards of a target that may be defined differently, until somebody ends the change."""
    for rollout in status.rollouts:
        if rollout.target in targets:
            error = unfinished(rollout)
            yield Problem(
                Level.FAILED,
                f"target {rollout.target}",
                error.what,
                error.where,
                error.remedy,
                error.code,
                rollout.updated_us,
                kind=Refused,
            )


def _copied(status: Status, targets: Sequence[str]) -> Iterator[Problem]:
    for target in status.targets:
        if target.copied_rows and target.target in targets:
            yield Problem(
                Level.NOTED,
                f"target {target.target}",
                f"{counted(target.copied_rows, 'copied row')} wait for the next run: "
                f"{target.target} does not have them yet.",
                remedy="the DAG's next run applies them when its interval has ended; `lockstep run` does it now",
            )


def _paused(status: Status) -> Iterator[Problem]:
    """Copies for which tables wait. A pause that nothing waits for is noted: verifications wait for its end too."""
    for source in status.sources:
        if not source.copies_paused_us:
            continue
        begun = [each for each in source.copies if each.state in (CopyState.COPYING, CopyState.READ)]
        waiting = len(begun) + sum(1 for each in source.copies if each.state is CopyState.PENDING)
        what = (
            f"Copies and verifications of {source.source} have been paused since {_moment(source.copies_paused_us)} by "
            f"{source.copies_paused_by}."
        )
        if waiting:
            what += f" Waiting to be copied: {counted(waiting, 'table')}."
        if begun:
            first = _moment(min(each.started_us for each in begun))
            what += f" Purges take nothing that was staged after {first}, when the first of these copies began."
        yield Problem(
            Level.PAUSED if waiting else Level.NOTED,
            f"source {source.source}",
            what,
            remedy=f"`lockstep snapshot {status.pipeline} --resume`, once the source can take the load",
            since_us=source.copies_paused_us,
            kind=RetryLater if waiting else None,
        )


def _never(status: Status, sources: Sequence[str]) -> Iterator[Problem]:
    known = {source.source for source in status.sources}
    for name in sources:
        if name not in known:
            yield Problem(
                Level.LATE,
                f"source {name}",
                f"{name} was never extracted.",
                remedy="switch the DAG on, or run `lockstep extract`",
                kind=RetryLater,
            )


def intervals_late(windows: Windows, complete_us: int, now_us: int) -> int:
    """Intervals that ended incomplete, beyond the one that may still be in progress; MOST_LATE at most."""
    ended = takewhile(lambda end_us: end_us <= now_us, islice(windows.ends_after(complete_us), MOST_LATE + GRACE))
    return max(0, sum(1 for _ in ended) - GRACE)


def _late(status: Status, windows: Windows, targets: Sequence[str]) -> Iterator[Problem]:
    for source in status.sources:
        reached = source.checkpoint.watermark_us
        # Without a watermark it is at least as late as its latest progress is old.
        late = intervals_late(windows, reached or source.updated_us, status.now_us)
        if late:
            done = "it is extracted up to" if reached else "it was extracted last at"
            yield _lateness(f"source {source.source}", source.source, late, reached or source.updated_us, done)
    for target in status.targets:
        oldest = target.oldest_window_us
        late = intervals_late(windows, oldest, status.now_us) if oldest is not None and target.target in targets else 0
        if late and oldest is not None:
            yield _lateness(f"target {target.target}", target.target, late, oldest, "it is applied up to")


def _lateness(subject: str, name: str, late: int, reached_us: int, done: str) -> Problem:
    count = f"{late:,} interval{'s' if late > 1 else ''}" if late < MOST_LATE else f"{MOST_LATE:,} intervals or more"
    return Problem(
        Level.LATE,
        subject,
        f"{name} is late by {count}: {done} {_moment(reached_us)}.",
        remedy="check that the DAG is switched on and its runs succeed, or run `lockstep run` by hand",
        since_us=reached_us,
        kind=RetryLater,
    )


def retention_left_s(source: SourceStatus, now_us: int) -> float | None:
    """How long the source still keeps what is not extracted yet; None if it keeps its log for ever."""
    reached_us = source.checkpoint.watermark_us or source.updated_us
    return source.retention_s - (now_us - reached_us) / 1e6 if source.retention_s else None


def _purged_soon(status: Status) -> Iterator[Problem]:
    for source in status.sources:
        left_s = retention_left_s(source, status.now_us)
        if left_s is not None and left_s < source.retention_s / 2:
            gone = "may be purged already" if left_s <= 0 else f"are purged in {left_s / 3600:.1f} h"
            yield Problem(
                Level.LATE,
                f"source {source.source}",
                f"The changes of {source.source} that are not extracted yet {gone}: the source keeps its log for "
                f"{source.retention_s / 3600:.1f} h.",
                remedy="extract now, or raise binlog_expire_logs_seconds on the source",
                kind=RetryLater,
                about="purged soon",
            )


ISOLATED_REMEDY = (
    "a table that the pipeline leaves out: capture it; an isolated one: `lockstep stage isolated` says why; fix that, "
    "then `lockstep snapshot` with its name reads it again"
)


def _noted(status: Status) -> Iterator[Problem]:
    for source in status.sources:
        for note in source.notes:
            yield Problem(Level.NOTED, f"source {source.source}", note)
    refused = {failure.subject: failure for failure in status.failures if failure.task == COPY_TABLE}
    for source in status.sources:
        for table, coverage in missed(status.pipeline, source.partial).items():
            said = lacks(table, source.source, coverage)
            said = f"{said[0].upper()}{said[1:]}."
            why = refused.get(copied_table(source.source, table))
            if why is not None and coverage.how.captured:
                what, remedy, code = f"{said} {why.what}", why.remedy, why.code
                yield Problem(Level.NOTED, f"table {table}", what, why.where, remedy, code)
                continue
            ways_out = "`lockstep snapshot` copies the table" if coverage.how.captured else ISOLATED_REMEDY
            yield Problem(
                Level.NOTED,
                f"table {table}",
                said,
                code="stage.partial",
                remedy="the staged files do not have its full state; "
                + ("the source no longer has the table" if coverage.gone else ways_out),
            )


def missed(pipeline: str, partial: Mapping[str, TableCoverage]) -> dict[str, TableCoverage]:
    """The partial tables of which somebody may miss rows. A way back begins where its target has every row, and needs
    none from before."""
    back = pipeline.endswith(WAY_BACK_SUFFIX)
    return {
        table: coverage
        for table, coverage in partial.items()
        if coverage.cascaded or not (back and coverage.how is How.EXISTING)
    }


def _moment(moment_us: int) -> str:
    return f"{from_us(moment_us):%Y-%m-%d %H:%M} UTC"
