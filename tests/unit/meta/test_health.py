"""What is shown first of a pipeline: failures, lateness, what was never extracted."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from cdc_core.errors import DataAtRisk, InternalError, LockstepError, Refused, RetryLater, UsageError
from cdc_core.meta import Cutover, TableCopy
from cdc_core.meta.health import MOST_LATE, Level, Problem, intervals_late, problems, retention_left_s
from cdc_core.meta.meta_rows import PlannedRun, Rollout
from cdc_core.meta.rollouts import alterer_of
from cdc_core.meta.table_copies import copier_of
from cdc_core.model.batch import CopiedChunk
from cdc_core.model.coverage import NO_SURVEY, How, TableCoverage
from cdc_core.model.run_plan import RunPlan, WriteCounts
from cdc_core.model.schema import TableSchema
from cdc_core.model.windows import Windows
from cdc_core.operations.cutover.cutover_report import way_back_document
from cdc_core.operations.status_report import status_document
from tests.lab.made_batches import HOUR_US, START_US, covered, manifest, position
from tests.lab.made_line import Line

SCHEDULES = ("*/7 * * * *", "0 * * * *", "30 2 * * 1")
HOURLY = Windows("0 * * * *")


def found(line: Line, now_us: int = START_US + HOUR_US) -> tuple[Problem, ...]:
    return problems(replace(line.meta.status.find(["t"]), now_us=now_us), HOURLY, ["shop"], ["t"])


def seen(line: Line, now_us: int = START_US + HOUR_US) -> list[tuple[str, str]]:
    return [(problem.level.value, problem.code or problem.subject) for problem in found(line, now_us)]


def error(kind: type[LockstepError] = DataAtRisk, code: str = "source.log_lost") -> LockstepError:
    return kind("It broke.", where="binlog.000001:4", remedy="copy it", code=code)


def test_a_source_that_was_never_extracted_is_said_and_its_failure_before_that(line: Line) -> None:
    assert seen(line) == [("late", "source shop")]
    line.meta.failures.keep("extract", "shop", error())
    assert seen(line) == [("failed", "source.log_lost"), ("late", "source shop")]


def test_a_failed_extract_is_said_with_all_it_said_until_the_position_or_the_watermark_moves(line: Line) -> None:
    line.stage(manifest(0), until_us=START_US + HOUR_US)
    line.meta.failures.keep("extract", "shop", error(RetryLater, "connection.unreachable"))
    line.meta.failures.keep("extract", "shop", error())
    line.meta.failures.keep("extract", "shop", error())
    (failure,) = line.meta.status.find().failures
    assert (failure.code, failure.what, failure.where, failure.remedy, failure.exit_class, failure.times) == (
        "source.log_lost", "It broke.", "binlog.000001:4", "copy it", "data at risk", 2,
    )  # fmt: skip
    assert failure.first_us <= failure.failed_us
    line.meta.of("other").failures.keep("extract", "shop", error())
    assert seen(line) == [("failed", "source.log_lost")]
    reached = line.meta.positions.checkpoint("shop")
    line.meta.positions.advance_watermark(line.leases["shop"], reached)
    assert seen(line) == []
    line.meta.failures.keep("extract", "shop", error())
    line.stage(manifest(1, window=1))
    assert ("failed", "source.log_lost") not in seen(line)


def test_the_worst_class_comes_first(line: Line) -> None:
    line.stage(manifest(0), until_us=START_US + HOUR_US)
    for number, kind in enumerate((RetryLater, UsageError, Refused, DataAtRisk, InternalError)):
        line.meta.failures.keep("plan", str(number), error(kind, f"x.{number}"))
    assert [code for _, code in seen(line)] == ["x.3", "x.4", "x.2", "x.1", "x.0"]


def test_a_failed_run_and_a_failed_plan_are_said_until_one_succeeds(line: Line) -> None:
    line.stage(manifest(0), until_us=START_US + HOUR_US)
    line.meta.failures.keep("plan", "", error(Refused, "plan.purged"))
    assert seen(line) == [("failed", "plan.purged")]
    run = line.plan("first")
    assert seen(line) == []
    line.meta.runs.record_failure("first", "it broke")
    assert seen(line) == [("failed", "run first")]
    line.meta.failures.keep("run", "first", error(Refused, "target.grants"))
    assert seen(line) == [("failed", "target.grants")]
    line.apply(run)
    line.commit(run)
    assert seen(line) == []


def test_a_failed_run_whose_batches_another_has_committed_is_over(line: Line) -> None:
    line.stage(manifest(0), until_us=START_US + HOUR_US)
    line.plan("first")
    line.meta.runs.record_failure("first", "it broke")
    line.meta.failures.keep("run", "first", error(Refused, "target.grants"))
    line.done("second")
    assert seen(line) == []


def test_a_failed_run_is_said_as_long_as_it_has_batches_whatever_other_runs_commit(line: Line) -> None:
    """Of other targets, of earlier windows, or of nothing at all."""
    line.stage(manifest(0), until_us=START_US + HOUR_US)
    run = line.plan("first")
    line.meta.runs.record_failure("first", "it broke")
    line.done("a backfill", (START_US - HOUR_US, START_US))
    assert seen(line) == [("failed", "run first")]
    line.apply(run)
    line.commit(run)
    assert seen(line) == []


def test_an_error_of_a_run_whose_batches_another_has_committed_keeps_no_way_back_from_being_ready(line: Line) -> None:
    """Each run has a name of its own: nothing clears the error of one that failed."""
    line.stage(manifest(0), until_us=START_US + HOUR_US)
    line.plan("first")
    line.meta.runs.record_failure("first", "it broke")
    line.meta.failures.keep("run", "first", error(RetryLater, "connection.unreachable"))
    cutover = Cutover("c1", "there", "line", "WATCH")
    assert "last error: It broke." in way_back_document(line.meta, cutover, "24h")["said"]
    line.done("second")
    assert "last error" not in way_back_document(line.meta, cutover, "24h")["said"]


def test_a_source_and_a_target_are_late_by_the_intervals_that_have_ended(line: Line) -> None:
    line.stage(manifest(0), until_us=START_US + HOUR_US)
    assert seen(line, START_US + 2 * HOUR_US - 1) == []  # the hour that ended last may be at work
    assert seen(line, START_US + 3 * HOUR_US) == [("late", "source shop"), ("late", "target t")]
    line.done("first")
    assert seen(line, START_US + 3 * HOUR_US) == [("late", "source shop")]


def test_tables_that_are_partial_are_noted_last(line: Line) -> None:
    line.stage(*covered([manifest(0)], how=How.EXISTING, rows=60_000), until_us=START_US + HOUR_US)
    status = line.meta.status.find()
    (found,) = problems(status, HOURLY, ["shop"], [])[-1:]
    assert (found.level, found.exit_code) == (Level.NOTED, 0)
    assert "Rows of shop.orders" in found.what
    assert "~60,000 rows at" in found.what
    back = replace(status, pipeline="line_back")  # begins where its target has every row
    assert problems(back, HOURLY, ["shop"], []) == problems(status, HOURLY, ["shop"], [])[:-1]


def test_a_pause_of_copies_is_said_with_the_tables_and_the_purges_that_wait_for_its_end(line: Line) -> None:
    line.stage(manifest(0), until_us=START_US + HOUR_US)
    line.meta.copies.pause("shop", "somebody")

    def said() -> Problem:
        return next(
            problem for problem in problems(line.meta.status.find(), HOURLY, ["shop"], []) if "paused" in problem.what
        )

    nothing_waits = said()
    assert (nothing_waits.level, nothing_waits.exit_code) == (Level.NOTED, 0)
    assert "by somebody" in nothing_waits.what
    line.meta.coverages.keep(line.leases["shop"], {"shop.due": TableCoverage(How.EXISTING, 1, 0, "", 7)}, NO_SURVEY)
    due = said()
    assert (due.level, due.exit_code) == (Level.PAUSED, RetryLater.exit_code)
    assert "Waiting to be copied: 1 table." in due.what
    assert "Purges" not in due.what
    copier = line.meta.leases.acquire(copier_of("shop"), "the copier", 60)
    line.meta.copies.begin(copier, TableCopy("shop", TableSchema("shop", "big", ()), ("9",)))
    begun = said()
    assert "Waiting to be copied: 2 tables. Purges take nothing that was staged after" in begun.what
    assert "lockstep snapshot line --resume" in begun.remedy
    line.meta.failures.keep("extract", "shop", error())
    assert [level for level, _ in seen(line)][:2] == ["failed", "paused"]
    line.meta.copies.resume("shop")
    assert not any("paused" in problem.what for problem in problems(line.meta.status.find(), HOURLY, ["shop"], []))


def test_what_the_source_will_purge_is_said_from_half_of_its_retention_on(line: Line) -> None:
    line.stage(manifest(0), until_us=START_US + HOUR_US)
    line.meta.leases.record_retention(line.leases["shop"], 7200)
    status = line.meta.status.find()
    left = retention_left_s(status.sources[0], status.now_us)
    assert left < 0  # the made batches are years old
    assert any(
        "may be purged already" in problem.what for problem in problems(line.meta.status.find(), HOURLY, ["shop"], [])
    )


def test_a_watermark_that_was_withdrawn_is_a_lag_that_nobody_knows(line: Line) -> None:
    """Not one of 56 years, for which logs count as purged."""
    line.stage(manifest(0), until_us=START_US + HOUR_US)
    stored = line.meta.positions.checkpoint("shop")
    line.meta.positions.advance_watermark(line.leases["shop"], stored.distrusted())
    line.meta.leases.record_retention(line.leases["shop"], 7200)
    status = line.meta.status.find()
    (source,) = status.sources
    assert (source.lag_us, status_document(status, [])["sources"][0]["lag_s"]) == (None, None)
    left = retention_left_s(source, status.now_us)
    assert 0 < left <= 7200
    assert not problems(status, HOURLY, ["shop"], [])
    later = replace(status, now_us=status.now_us + 3 * HOUR_US)
    what = [problem.what for problem in problems(later, HOURLY, ["shop"], [])]
    assert [" late by " in text and "was extracted last at" in text for text in what] == [True, False]
    assert "may be purged already" in what[1]
    back = way_back_document(line.meta, Cutover("c1", "there", "line", "WATCH"), "24h")
    assert (back["ready"], back["lag_s"], "not ready: lag unknown" in back["said"]) == (False, None, True)


@settings(deadline=None)
@given(complete=st.integers(0, 200 * HOUR_US), more=st.integers(0, 100 * HOUR_US), schedule=st.sampled_from(SCHEDULES))
def test_lateness_counts_the_intervals_that_ended_after_what_is_complete(
    complete: int, more: int, schedule: str
) -> None:
    windows, now = Windows(schedule), START_US + complete + more
    complete += START_US
    ended = 0
    _, end = windows.containing(complete)
    while end <= now:
        ended += 1
        _, end = windows.containing(end)
    assert intervals_late(windows, complete, now) == max(0, min(ended - 1, MOST_LATE))


def test_rows_that_a_verification_found_to_differ_are_said_until_they_are_repaired_or_found_equal(line: Line) -> None:
    line.stage(manifest(0), until_us=START_US + HOUR_US)
    line.done("first")
    lease = line.meta.leases.acquire("verify:t", "a test", 60)

    def ended(mode: str, hour: int, differing: dict[str, int], differences: int = 0) -> None:
        summary = {"ended": f"2026-11-20T{hour:02}:00:00+00:00", "differing": differing, "differences": differences}
        line.meta.verifications.finish(lease, "t", mode, summary)

    def said() -> list[str]:
        return [problem.what for problem in found(line)]

    ended("ordered", 1, {"orders": 3, "items": 1}, 4)
    assert said() == ["4 rows of items, orders differ from the source."]
    assert [(problem.level, problem.exit_code) for problem in found(line)] == [(Level.FAILED, 4)]
    assert problems(replace(line.meta.status.find(["t"]), now_us=0), HOURLY, ["shop"], ["another"]) == ()
    ended("random", 2, {"orders": 3, "items": 1})  # it has seen none of them
    assert said() == ["4 rows of items, orders differ from the source."]
    line.meta.verifications.forget_differences(lease, "t", {"orders": 2, "items": 1})
    assert said() == ["1 row of orders differs from the source."]
    ended("ordered", 3, {})
    assert said() == []
    ended("count", 4, {}, 5)
    assert said() == ["5 rows differ from the source."]
    line.meta.verifications.forget_differences(lease, "t", {"orders": 5})  # it is not known which rows these are
    assert said() == ["5 rows differ from the source."]
    ended("ordered", 5, {})
    assert said() == []


def rejecting(line: Line, run_id: str, rows: int, **options: object) -> RunPlan:
    """A run whose target rejects rows of each table."""
    run = line.plan(run_id, **options)
    tables = run.merge_set(run.target("t").merge_set).tables
    line.apply(
        run, written=[WriteCounts(table.table, "0", table.rows - rows, 0, 0, quarantined=rows) for table in tables]
    )
    line.commit(run)
    return run


def test_rows_that_a_target_rejected_are_said_first_until_they_were_taken_or_found_there(line: Line) -> None:
    line.stage(manifest(0), until_us=START_US + HOUR_US)
    first = rejecting(line, "first", 2)
    assert seen(line) == [("failed", "target.row_error")]
    (problem,) = found(line)
    assert (problem.exit_code, problem.where, "--requeue first" in problem.remedy) == (4, "first", True)
    assert "2 rows of shop.orders" in problem.what
    line.stage(manifest(1), until_us=START_US + HOUR_US)
    rejecting(line, "second", 1)
    assert [listed.where for listed in found(line)] == ["first", "second"]

    # A replay of the first run's batches says itself what is lacking of them.
    repeated = replace(first, run_id="again", replay=True)
    line.store.put(repeated.path, repeated.to_bytes())
    line.meta.runs.claim(PlannedRun("again", "line", None, repeated.path, repeated.digest, replays=True), ())
    line.apply(repeated)
    line.commit(repeated)
    assert [rejected.run_id for rejected in line.meta.ledgers.set_aside("t")] == ["second"]
    line.meta.ledgers.settle("t", before_us=1)
    assert [rejected.run_id for rejected in line.meta.ledgers.set_aside("t")] == ["second"]
    line.meta.ledgers.settle("t", before_us=line.meta.now_us() + 1)
    assert seen(line) == []


def test_copied_rows_that_wait_for_a_run_are_noted_until_one_has_taken_them(line: Line) -> None:
    line.stage(manifest(0), until_us=START_US + HOUR_US)
    line.done("first")
    assert seen(line) == []
    copied = manifest(1, end=1)
    at, paths = copied.begin.position, tuple(part.path for part in copied.parts)
    chunk = CopiedChunk(1, "shop.orders", (), (), START_US, at, at, 10, paths)
    line.stage(replace(copied, chunks=(chunk,)))
    assert seen(line) == [("noted", "target t")]
    line.done("second")
    assert seen(line) == []


def test_a_note_ends_when_all_targets_have_its_batch_and_no_table_lacks_anything_since_then(line: Line) -> None:
    def notes() -> tuple[str, ...]:
        return line.meta.status.find(["t"]).sources[0].notes

    line.stage(manifest(0, notes=("a table was dropped",)), until_us=START_US + HOUR_US)
    assert notes() == ("a table was dropped",)
    line.done("first")
    assert notes() == ()
    begin = manifest(1).begin.position
    changed = TableCoverage(How.UNLOGGED, begin.seq, 0, str(begin))
    line.stage(replace(manifest(1, notes=("needs a copy",)), coverage={"shop.orders": changed}))
    line.done("second")
    assert notes() == ("needs a copy",)
    copied = TableCoverage(How.COPIED, position(2).seq, 0, str(position(2)))
    line.stage(replace(manifest(2), coverage={"shop.orders": copied}))
    assert notes() == ()


def test_a_rollout_that_no_process_is_at_is_said_until_all_shards_have_it_or_it_is_taken_back(line: Line) -> None:
    line.stage(manifest(0), until_us=START_US + HOUR_US)
    line.done("first")
    name = alterer_of("line", "t")
    half = Rollout("a", "line", "t", "add.sql", "up", "ALTER ...", {}, {}, {"orders": [0, 1]})
    lease = line.meta.leases.acquire(name, "a test", 60)
    assert line.meta.rollouts.begin(lease, half).shards == {"orders": [0, 1]}
    assert seen(line) == []  # a process is at it
    line.meta.leases.release(lease)
    (problem,) = found(line)
    assert (problem.level, problem.subject, problem.code) == (Level.FAILED, "target t", "ddl.open")
    assert (problem.where, problem.exit_code) == ("add.sql", Refused.exit_code)
    assert "`lockstep ddl resume line --target t`" in problem.remedy
    status = replace(line.meta.status.find(["t"]), now_us=START_US + HOUR_US)
    assert problems(status, HOURLY, ["shop"], ["another"]) == ()
    lease = line.meta.leases.acquire(name, "a test", 60)
    line.meta.rollouts.begin(lease, replace(half, rollout_id="b", direction="down"))
    line.meta.leases.release(lease)
    assert [(each.code, "(down)" in each.what) for each in found(line)] == [("ddl.open", True)]
    lease = line.meta.leases.acquire(name, "a test", 60)
    line.meta.rollouts.finish(lease, "b")
    line.meta.leases.release(lease)
    assert seen(line) == []


def test_rows_that_differ_come_before_errors_that_may_pass(line: Line) -> None:
    line.stage(manifest(0), until_us=START_US + HOUR_US)
    line.done("first")
    lease = line.meta.leases.acquire("verify:t", "a test", 60)
    summary = {"ended": "2026-11-20T01:00:00+00:00", "differing": {"orders": 3}, "differences": 3}
    line.meta.verifications.finish(lease, "t", "ordered", summary)
    line.meta.failures.keep("plan", "", error(RetryLater, "connection.unreachable"))
    assert seen(line) == [("failed", "verify.differs"), ("failed", "connection.unreachable")]
