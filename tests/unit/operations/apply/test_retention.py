"""What a purge removes, in which order, and that nobody is given less without being told."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cdc_core.errors import LockstepError, Refused, RetryLater, severity
from cdc_core.meta import Meta
from cdc_core.meta.run_states import RecordState
from cdc_core.meta.table_copies import copier_of
from cdc_core.model.batch import CopiedChunk, Manifest
from cdc_core.model.run_plan import WriteCounts
from cdc_core.operations.apply import replay, retention
from cdc_core.operations.apply.replay import Selection
from cdc_core.operations.apply.retention import Purged
from cdc_core.operations.check.check_targets import writer_of
from cdc_core.operations.rebuild import rebuild
from cdc_core.stage import horizon
from cdc_core.stage.horizon import require_unpurged
from cdc_core.stage.manifest import chain, verify
from tests.lab.made_batches import HOUR_US, START_US, manifest
from tests.lab.made_line import Line
from tests.lab.opened import opened_line
from tests.lab.refusals import refusal

B = [manifest(number, window=number) for number in range(6)]
IDS = tuple(batch.batch_id for batch in B)
NEVER = 1 << 60


@pytest.fixture
def line(line: Line) -> Line:
    line.stage(*B)
    for batch in B:
        for part in batch.parts:
            line.store.put(part.path, b"x" * part.size_bytes)
    return line


def purge(line: Line, cutoff_us: int = NEVER, **options: Any) -> Purged:
    return retention.purge(opened_line(line), cutoff_us=cutoff_us, **options)


def staged(line: Line) -> list[str]:
    return [listed.batch_id for listed in chain(line.store, "shop")]


def files(line: Line) -> set[str]:
    return {info.path for prefix in ("changes/", "manifests/") for info in line.store.list(prefix)}


def states(line: Line, target: str = "t") -> dict[str, RecordState]:
    return {record.batch_id: record.state for record in line.meta.records.find(target, IDS)}


def test_old_committed_batches_go_with_their_files_and_the_newest_stays(line: Line) -> None:
    line.done("first")
    done = purge(line)
    assert (done.sources[0].batches, done.sources[0].rows) == (5, 50)
    assert staged(line) == [IDS[5]]
    assert files(line) == {B[5].path, B[5].parts[0].path}
    assert states(line) == dict.fromkeys(IDS[:5], RecordState.PURGED) | {IDS[5]: RecordState.COMMITTED}
    assert verify(line.store, "shop") == []
    known = horizon.read(line.store, "shop")
    assert (known.position, known.until_us, known.targets) == (B[5].begin.position, B[4].window_end_us, ("t",))
    assert known.tables == {"shop.orders": 50}
    line.stage(manifest(6, window=6))
    assert line.plan("next").target("t").batches == (manifest(6).batch_id,)


def test_age_counts_from_the_end_of_a_batchs_window(line: Line) -> None:
    line.done("first")
    assert purge(line, START_US + 2 * HOUR_US - 1).sources[0].batches == 1
    assert purge(line, START_US + 2 * HOUR_US).sources[0].batches == 1
    assert staged(line) == list(IDS[2:])


def read_at(low: int, place: int, *, by_key: bool = True) -> Manifest:
    """Rows that were looked up, or copied, where B[low] begins, to be staged where B[place] begins."""
    begin = B[place].begin
    seen, high = B[low].begin.position, begin.position
    chunk = CopiedChunk(1, "shop.orders", (), (), START_US, seen, high, 1, (), by_key=by_key)
    return replace(B[place], end=begin, parts=(), events=0, transactions=0, chunks=(chunk,))


@pytest.mark.parametrize("by_key", [True, False])
def test_a_purge_leaves_what_the_log_brought_since_rows_were_read_that_stay(line: Line, by_key: bool) -> None:
    # B[2] or B[3] may delete the row.
    line.stage(read_at(2, 4, by_key=by_key))
    line.done("first")
    before_b4 = B[3].window_end_us
    done = purge(line, before_b4)
    assert "rows that were read" in done.sources[0].held_by
    assert (done.sources[0].batches, done.sources[0].horizon and done.sources[0].horizon.position) == (
        2,
        B[2].begin.position,
    )
    assert purge(line, B[4].window_end_us).sources[0].batches == 4  # with the rows that were read
    assert staged(line) == [IDS[5]]


@pytest.mark.parametrize("recorded", [False, True])
def test_rows_that_are_staged_while_a_purge_looks_keep_what_was_logged_since_they_were_looked_up(
    line: Line, monkeypatch: pytest.MonkeyPatch, recorded: bool
) -> None:
    line.done("first")
    moving, claimed = line.meta.records.purge, read_at(2, 5)

    def meanwhile(*args: Any, **options: Any) -> int:
        copier = line.meta.leases.acquire(copier_of("shop"), "me", 60)
        line.meta.copied.decide(copier, claimed, ())
        if recorded:
            line.meta.batches.record_copied(copier, claimed)
        return moving(*args, **options)

    with monkeypatch.context() as patch:
        patch.setattr(line.meta.records, "purge", meanwhile)
        error = refusal(lambda: purge(line))
    assert (severity(type(error)), error.code) == (RetryLater, "lease.lost")
    assert (staged(line), horizon.read(line.store, "shop")) == (list(IDS), None)


def test_a_row_is_not_staged_where_a_purge_removes_what_was_logged_since_it_was_looked_up(line: Line) -> None:
    line.done("first")
    purge(line, B[3].window_end_us)
    copier = line.meta.leases.acquire(copier_of("shop"), "me", 60)
    error = refusal(lambda: line.meta.copied.decide(copier, read_at(3, 5), ()))
    assert (severity(type(error)), error.code, line.meta.copied.decided("shop")) == (RetryLater, "lease.lost", ())
    line.meta.copied.decide(copier, read_at(4, 5), ())


def test_a_batch_that_one_target_lacks_holds_all_later_ones(line: Line) -> None:
    both = line.with_targets({"name": "t"}, {"name": "u"})
    both.done("one", targets=["t"])
    assert "u has not committed" in purge(both).sources[0].held_by
    assert staged(both) == list(IDS)
    run = both.plan("two", targets=["u"])
    both.apply(run, "u")
    assert purge(both).sources[0].batches == 0
    both.commit(run, "u")
    assert purge(both).sources[0].batches == 5


def test_a_dry_run_tells_and_moves_nothing(line: Line) -> None:
    line.done("first")
    before = files(line), states(line)
    told = purge(line, dry_run=True)
    assert told.sources[0].batches == 5
    assert (files(line), states(line), horizon.read(line.store, "shop")) == (*before, None)
    done = purge(line)
    assert done.sources == told.sources


def test_what_a_run_of_any_target_holds_is_not_purged(line: Line) -> None:
    line.done("first")
    # A target that the file of this purge does not know is at work already.
    later = line.with_targets({"name": "t"}, {"name": "new"})
    later.plan("second", targets=["new"])
    error = refusal(lambda: purge(line))
    assert (severity(type(error)), error.code, error.where) == (Refused, "stage.not_committed", "new")
    assert staged(line) == list(IDS)
    assert set(states(line).values()) == {RecordState.COMMITTED}


class Killed(Exception):
    pass


@pytest.mark.parametrize("step", range(15))
def test_killed_at_any_step_it_shows_all_or_the_horizon_and_the_next_purge_ends_it(
    line: Line, monkeypatch: pytest.MonkeyPatch, step: int
) -> None:
    line.done("first")
    left = [step]

    def counted(call: Callable[..., Any]) -> Callable[..., Any]:
        def work(*args: Any, **options: Any) -> Any:
            if left[0] == 0:
                raise Killed
            left[0] -= 1
            return call(*args, **options)

        return work

    with monkeypatch.context() as patch:
        for name in ("put", "delete"):
            patch.setattr(line.store, name, counted(getattr(line.store, name)))
        for repository, name in (
            (line.meta.records, "purge"),
            (line.meta.batches, "forget"),
            (line.meta.runs, "forget"),
        ):
            patch.setattr(repository, name, counted(getattr(repository, name)))
        with pytest.raises(Killed):
            # records, horizon, rows, part and manifest of five batches, files of the run, its row
            purge(line, forget_us=NEVER)
    known = horizon.read(line.store, "shop")
    assert staged(line) == (list(IDS) if known is None else [IDS[5]])
    assert verify(line.store, "shop") == []
    assert line.plan("between").target("t").batches == ()
    purge(line, forget_us=NEVER)
    assert files(line) == {B[5].path, B[5].parts[0].path}
    assert states(line) == {IDS[5]: RecordState.COMMITTED}
    assert line.meta.runs.find("first") is None


def test_two_purges_at_once_take_turns(line: Line, monkeypatch: pytest.MonkeyPatch) -> None:
    line.done("first")
    inner: list[LockstepError] = []
    moving = line.meta.records.purge

    def meanwhile(*args: Any, **options: Any) -> int:
        inner.append(refusal(lambda: purge(line)))
        return moving(*args, **options)

    monkeypatch.setattr(line.meta.records, "purge", meanwhile)
    purge(line)
    assert [(severity(type(error)), error.code) for error in inner] == [(RetryLater, "lease.held")]


def test_what_is_purged_while_meta_is_rebuilt_does_not_come_back(line: Line, monkeypatch: pytest.MonkeyPatch) -> None:
    line.done("first")
    line.meta.leases.release(line.leases["shop"])
    inner: list[str] = []
    known = line.meta.rebuild

    def meanwhile(*args: Any) -> Any:
        try:
            purge(line, forget_us=NEVER)
        except RetryLater as error:
            inner.append(error.code)
        return known(*args)

    monkeypatch.setattr(line.meta, "rebuild", meanwhile)
    assert rebuild(opened_line(line), "shop")[0] == 0
    assert line.plan("next").target("t").batches == ()
    assert inner == ["lease.held"]


def test_a_rebuild_keeps_its_lease_however_long_the_chain_takes_to_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the next try of a DAG's extractor would end it, again and again."""
    line = Line.open(tmp_path, limits={"lease_s": 5})
    line.stage(*B)
    line.meta.leases.release(line.leases["shop"])

    def expires_us() -> int:
        with sqlite3.connect(tmp_path / "meta.db") as connection:
            return int(connection.execute("SELECT expires_us FROM lease WHERE source = 'shop'").fetchone()[0])

    known = line.meta.rebuild

    def after_a_renewal(*args: Any) -> Any:
        first_us, end_s = expires_us(), time.monotonic() + 60
        while expires_us() == first_us:
            assert time.monotonic() < end_s
            time.sleep(0.05)
        return known(*args)

    with line.meta:
        monkeypatch.setattr(line.meta, "rebuild", after_a_renewal)
        assert rebuild(opened_line(line), "shop")[0] == 0
        assert expires_us() == 0  # it is free at once


def test_a_new_target_is_refused_until_it_is_said_to_be_filled(line: Line) -> None:
    line.done("first")
    purge(line)
    later = line.with_targets({"name": "t"}, {"name": "new"})
    error = refusal(lambda: later.plan("second"))
    assert (error.code, error.where) == ("plan.purged", "targets.new")
    assert str(B[5].begin.position) in error.what
    assert line.meta.runs.find("second") is None
    assert refusal(lambda: retention.seeded(opened_line(later), "x")).code == "usage.unknown_name"
    assert retention.seeded(opened_line(later), "new") == 5
    assert retention.seeded(opened_line(later), "new") == 0
    assert later.plan("second").target("new").batches == (IDS[5],)
    assert line.plan("third").target("t").batches == ()


def test_after_a_rebuild_of_meta_too_a_target_that_never_took_it_is_refused(line: Line, tmp_path: Path) -> None:
    line.done("first")
    purge(line)
    (tmp_path / "fresh").mkdir()
    fresh = Line.open(tmp_path / "fresh").with_targets({"name": "t"}, {"name": "new"})
    fresh = Line(fresh.pipeline, fresh.meta, line.store, {})
    with fresh.meta:
        lease = fresh.meta.leases.acquire("shop", "me", 60)
        fresh.meta.rebuild(lease, chain(line.store, "shop"))
        assert fresh.plan("a", targets=["t"]).target("t").batches == (IDS[5],)
        assert refusal(lambda: fresh.plan("b", targets=["new"])).code == "plan.purged"


def replayed(line: Line, **chosen: Any) -> tuple[str, ...]:
    run = replay.plan(opened_line(line), Selection("t", **chosen), run_id=f"r{len(chosen)}")
    return run.target("t").batches


def test_a_replay_that_would_begin_before_the_horizon_is_refused_and_told_where_to_begin(line: Line) -> None:
    line.done("first")
    purge(line, B[2].window_end_us)

    error = refusal(lambda: replayed(line))
    assert (severity(type(error)), error.code, IDS[3] in error.remedy) == (Refused, "plan.purged", True)
    assert replayed(line, first=replay.places(line.pipeline, [IDS[3]], "--from")) == IDS[3:]
    assert refusal(lambda: require_unpurged(line.store, IDS)).code == "plan.purged"
    require_unpurged(line.store, IDS[3:])


def test_files_of_old_committed_runs_go_and_those_of_others_stay(line: Line) -> None:
    run = line.plan("old: first")
    line.apply(run)
    line.commit(run)
    replay.plan(opened_line(line), Selection("t"), run_id="open")
    assert purge(line, 0).runs == ()
    done = purge(line)
    assert done.runs == ("old: first",)
    assert {info.path.split("/")[1] for info in line.store.list("runs/")} == {"open"}
    assert line.meta.ledgers.find("old: first") != ()
    assert purge(line).runs == ()


def test_a_run_stays_as_long_as_its_target_lacks_rows_that_it_set_aside(line: Line) -> None:
    run = line.plan("first")
    (table,) = run.merge_set("0").tables
    line.apply(run, written=[WriteCounts(table.table, "0", table.rows - 1, 0, 0, quarantined=1)])
    line.commit(run)
    done = purge(line, forget_us=NEVER)
    assert (done.sources[0].batches, done.runs, done.forgotten_runs) == (5, (), 0)
    assert [rejected.run_id for rejected in line.meta.ledgers.set_aside("t")] == ["first"]
    assert line.store.stat(run.path) is not None
    line.meta.ledgers.settle("t", run_id="first")
    done = purge(line, forget_us=NEVER)
    assert (done.runs, done.forgotten_runs) == (("first",), 1)


def test_a_table_whose_purged_history_the_target_has_is_its_own_even_after_meta_was_lost(
    line: Line, tmp_path: Path
) -> None:
    line.done("first")
    (tmp_path / "fresh").mkdir()
    fresh = Line.open(tmp_path / "fresh")
    with fresh.meta:

        def owned(meta: Meta, target: str, table: str) -> bool:
            return writer_of(meta, line.pipeline, target).owns(table)

        assert not owned(fresh.meta, "t", "shop.orders")
        purge(line, forget_us=NEVER)
        for meta in (line.meta, fresh.meta):
            assert owned(meta, "t", "shop.orders")
            assert not owned(meta, "t", "shop.new")
            assert not owned(meta, "new", "shop.orders")


def test_a_table_that_the_target_left_out_is_not_its_own_because_it_was_purged(line: Line) -> None:
    line.with_targets({"name": "t", "tables": {"shop.items": {}}}).done("first")
    purge(line)
    assert not writer_of(line.meta, line.pipeline, "t").owns("shop.orders")


def known(line: Line) -> list[str]:
    return [batch.batch_id for batch in line.meta.batches.find("shop")]


def test_rows_of_purged_batches_and_old_runs_leave_meta_at_their_own_age(line: Line) -> None:
    line.done("first")
    told = purge(line, B[3].window_end_us, forget_us=B[1].window_end_us, dry_run=True)
    done = purge(line, B[3].window_end_us, forget_us=B[1].window_end_us)
    assert done == told
    assert (done.forgotten_batches, done.forgotten_runs) == (2, 0)
    assert (staged(line), known(line), sorted(states(line))) == (list(IDS[4:]), list(IDS[2:]), list(IDS[2:]))
    assert line.plan("between").target("t").batches == ()

    line.stage(manifest(6, window=6))
    assert line.plan("next").target("t").batches == (manifest(6).batch_id,)
    lease = line.leases["shop"]
    assert line.meta.rebuild(lease, chain(line.store, "shop"))[1] == 0
    assert purge(line, B[3].window_end_us, forget_us=B[1].window_end_us).forgotten_batches == 0


def test_what_is_not_purged_is_not_forgotten(line: Line) -> None:
    both = line.with_targets({"name": "t"}, {"name": "u"})
    both.done("one", targets=["t"])
    assert purge(both, forget_us=NEVER).forgotten_batches == 0
    assert purge(both, 0, forget_us=NEVER).forgotten_runs == 0
    assert known(both) == list(IDS)
    both.commit(both.plan("two", targets=["t"]))
    assert set(states(both).values()) == {RecordState.COMMITTED}


def test_runs_and_ledgers_go_with_their_age_and_open_runs_stay(line: Line) -> None:
    line.done("old")
    replay.plan(opened_line(line), Selection("t"), run_id="open")
    assert purge(line, forget_us=NEVER, dry_run=True).forgotten_runs == 1
    assert line.meta.ledgers.find("old") != ()
    assert purge(line, forget_us=NEVER).forgotten_runs == 1
    assert (line.meta.runs.find("old"), line.meta.ledgers.find("old")) == (None, ())
    assert line.meta.runs.find("open") is not None
    assert line.plan("old").target("t").batches == ()


def test_what_meta_has_forgotten_is_refused_all_the_same(line: Line) -> None:
    line.done("first")
    purge(line, B[2].window_end_us, forget_us=NEVER)
    assert known(line) == list(IDS[3:])

    for reaching in ({}, {"start_us": START_US}, {"end_us": B[0].window_end_us}, {"batches": frozenset(IDS[:1])}):
        assert refusal(lambda chosen=reaching: replayed(line, **chosen)).code == "plan.purged"
    assert replayed(line, start_us=B[2].window_end_us) == IDS[3:]
    later = line.with_targets({"name": "t"}, {"name": "new"})
    assert refusal(lambda: later.plan("second")).code == "plan.purged"
    assert retention.seeded(opened_line(later), "new") == 0
    assert later.plan("second").target("new").batches == IDS[3:]


def test_a_pipeline_without_targets_purges_by_age_alone(tmp_path: Path) -> None:
    line = Line.open(tmp_path, targets=[])
    line.stage(*B)
    with line.meta:
        assert purge(line).sources[0].batches == 5
        later = line.with_targets({"name": "t"})
        assert refusal(lambda: later.plan("r")).code == "plan.purged"


def test_status_counts_what_is_staged_still(line: Line) -> None:
    line.done("first")
    purge(line)
    (source,) = line.meta.status.find(["t"]).sources
    assert (source.batches, source.rows) == (1, 10)


def folders(line: Line) -> set[str]:
    return {info.path.split("/")[2] for info in line.store.list("runs/")}


def sweep_plans(line: Line, **options: Any) -> set[str]:
    found = retention.sweep_plans(opened_line(line), **{"older_than_s": -60, **options})
    return {root.split("/")[2] for root in found}


def test_a_sweep_removes_plans_that_nothing_needs_any_more_and_no_others(line: Line) -> None:
    """A run is planned again with more batches, another takes them all over, and a third is planned and replayed."""
    run = line.plan("again")
    line.apply(run)
    wider = line.with_targets({"name": "t"}, {"name": "u"})
    planned = wider.plan("again")
    assert planned.root != run.root
    assert folders(line) == {run.digest[:16], planned.digest[:16]}
    assert sweep_plans(line) == set()  # no target has committed these batches: a killed write may need the files
    committed = wider.done("winner")
    made = replay.plan(opened_line(line), Selection("t"), run_id="replay")
    assert sweep_plans(line, older_than_s=3600) == set()
    dead = {run.digest[:16], planned.digest[:16]}
    assert sweep_plans(line, dry_run=True) == dead
    assert sweep_plans(line) == dead
    assert folders(line) == {committed.digest[:16], made.digest[:16]}
    assert sweep_plans(line) == set()


def test_a_sweep_leaves_plans_of_other_pipelines_and_files_that_are_no_plans(line: Line) -> None:
    other = line.plan("other").to_bytes().replace(b'"pipeline":"line"', b'"pipeline":"another"')
    line.store.put("runs/other/0/plan.json", other)
    line.store.put("runs/note/1/plan.json", b"[]")
    line.store.put("runs/lost/2/merged/x.parquet", b"x")
    line.done("first")
    assert {"0", "1", "2"}.isdisjoint(sweep_plans(line))
    assert {"0", "1", "2"} <= folders(line)


def test_a_stage_that_deletes_nothing_is_said_before_anything_counts_as_purged(
    line: Line, monkeypatch: pytest.MonkeyPatch
) -> None:
    line.done("first")
    before = files(line)
    delete = line.store.delete

    def denied(path: str) -> None:
        raise Refused("Access is denied.", where=path, code="stage.denied", remedy="grant s3:DeleteObject")

    def denied_parts(path: str) -> None:
        if path == B[2].parts[0].path:
            denied(path)
        delete(path)

    monkeypatch.setattr(line.store, "delete", denied)
    assert refusal(lambda: purge(line)).code == "stage.denied"
    assert (files(line), horizon.read(line.store, "shop")) == (before, None)
    assert states(line) == dict.fromkeys(IDS, RecordState.COMMITTED)
    monkeypatch.setattr(line.store, "delete", denied_parts)
    error = refusal(lambda: purge(line))
    assert (error.code, error.where, "2 of 5 purged batches" in error.remedy) == (
        "stage.denied", B[2].parts[0].path, True
    )  # fmt: skip
    monkeypatch.setattr(line.store, "delete", delete)
    purge(line)
    assert files(line) == {B[5].path, B[5].parts[0].path}
