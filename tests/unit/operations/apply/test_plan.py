"""Which batches a run takes, and what it refuses to take."""

from __future__ import annotations

import json
import sqlite3
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from cdc_core.errors import DataAtRisk, Refused, RetryLater, UsageError, severity
from cdc_core.meta.run_states import RecordState
from cdc_core.model.batch import CopiedChunk, Manifest
from cdc_core.model.coverage import How, TableCoverage
from cdc_core.model.run_plan import PLAN_VERSION, RunPlan, plan_path
from cdc_core.model.schema import Column, ColumnType, TableSchema
from cdc_core.model.windows import CLOCK_TOLERANCE_US
from cdc_core.operations.apply import commit, plan, replay
from cdc_core.operations.apply.replay import Selection
from cdc_core.operations.apply.table_rules import require_layouts
from cdc_core.stage.layout import CopiedName, copied_path, start_path
from tests.lab.made_batches import HOUR_US, START_US, checkpoint, manifest, position, schema
from tests.lab.made_line import NEXT_WINDOW, WINDOW, Line
from tests.lab.opened import opened_line
from tests.lab.refusals import refusal

B = [manifest(number) for number in range(6)]
IDS = tuple(batch.batch_id for batch in B)


def taken(run: RunPlan, target: str = "t") -> tuple[str, ...]:
    return run.target(target).batches


def test_a_plan_names_the_files_in_stream_order_with_their_key(line: Line) -> None:
    line.stage(manifest(0, tables={"shop.orders": 3, "shop.items": 2}), B[1])
    run = line.plan("r")
    assert taken(run) == IDS[:2]
    items, orders = run.merge_set(run.target("t").merge_set).tables
    assert (items.table, items.key, items.rows) == ("shop.items", ("id",), 2)
    assert [file.batch_id for file in orders.files] == list(IDS[:2])
    assert orders.rows == 13
    assert set(run.schemas) == {schema("orders").id, schema("items").id}
    assert run.stage_uri == line.pipeline.stage.uri


def test_a_run_ends_before_a_type_that_it_could_not_merge_and_the_next_one_begins_there(line: Line) -> None:
    retyped = TableSchema(
        "shop", "orders", (schema().columns[0], Column("v", ColumnType("varchar", length=9, charset="utf8mb4")))
    )
    later = [manifest(number, schemas=[retyped]) for number in (2, 3)]
    line.stage(B[0], B[1], *later)
    assert taken(line.done("r")) == IDS[:2]
    assert taken(line.done("s")) == IDS[2:4]


def test_a_type_of_a_column_that_is_gone_by_the_end_splits_no_run(line: Line) -> None:
    key, last = schema().columns[0], TableSchema("shop", "orders", (schema().columns[0],))
    kinds = (ColumnType("int"), ColumnType("varchar", length=9, charset="utf8mb4"))
    first, retyped = (TableSchema("shop", "orders", (key, Column("v", kind))) for kind in kinds)
    line.stage(*(manifest(number, schemas=[each]) for number, each in enumerate((first, retyped, last))))
    assert taken(line.plan("r")) == IDS[:3]


def test_a_run_ends_before_another_key_of_a_source_table_and_the_next_one_begins_there(line: Line) -> None:
    rekeyed = [manifest(number, schemas=[schema(key=("id", "v"))]) for number in (2, 3)]
    line.stage(B[0], B[1], *rekeyed)
    named = line.with_targets({"name": "t", "tables": {"*": {"key": ["id"]}}})
    assert taken(named.plan("n")) == IDS[:4]  # the key does not change there
    for name, key, ids in (("r", ("id",), IDS[:2]), ("s", ("id", "v"), IDS[2:4])):
        run = line.done(name)
        assert (taken(run), run.merge_sets[0].tables[0].key) == (ids, key)


def test_the_plan_is_on_the_stage_and_its_records_are_the_runs(line: Line) -> None:
    line.stage(B[0])
    run = line.plan("manual__2026-11-21T04:00:00+00:00", airflow_run_id="manual__2026-11-21T04:00:00+00:00")
    assert plan.load(line.meta, line.store, run.run_id) == run
    assert ":" not in run.path
    (record,) = line.meta.records.find("t", IDS)
    assert (record.state, record.run_id, record.table, record.rows) == (
        RecordState.STAGED,
        run.run_id,
        "shop.orders",
        10,
    )


def test_a_window_takes_its_own_batches_and_all_earlier_ones_not_yet_applied(line: Line) -> None:
    line.stage(B[0], manifest(1, window=1), manifest(2, window=2), until_us=START_US + 3 * HOUR_US)
    assert taken(line.plan("r", NEXT_WINDOW)) == IDS[:2]


def test_a_window_that_a_source_has_not_staged_to_its_end_waits(line: Line) -> None:
    line.stage(B[0])
    error = refusal(lambda: line.plan("r", WINDOW))
    assert (severity(type(error)), error.code, error.where) == (RetryLater, "stage.behind", "shop")
    assert line.meta.runs.find("r") is None
    line.stage(B[1], until_us=WINDOW[1] - 1)
    assert refusal(lambda: line.plan("r", WINDOW)).code == "stage.behind"
    line.stage(B[2], until_us=WINDOW[1])
    assert taken(line.plan("r", WINDOW)) == IDS[:3]


@pytest.mark.parametrize(
    ("ahead_us", "believed"), [(-1, True), (CLOCK_TOLERANCE_US, True), (CLOCK_TOLERANCE_US + 1, False)]
)
def test_a_source_that_is_staged_up_to_a_time_which_metas_clock_is_far_from_is_not_believed(
    line: Line, monkeypatch: pytest.MonkeyPatch, ahead_us: int, believed: bool
) -> None:
    line.stage(B[0], until_us=WINDOW[1])
    monkeypatch.setattr(type(line.meta), "now_us", lambda _: WINDOW[1] - ahead_us)
    if believed:
        assert taken(line.plan("r", WINDOW)) == IDS[:1]
        return
    error = refusal(lambda: line.plan("r", WINDOW))
    assert (severity(type(error)), error.code, "not at all yet" in error.what) == (RetryLater, "stage.behind", True)
    assert line.meta.runs.find("r") is None
    monkeypatch.setattr(type(line.meta), "now_us", lambda _: WINDOW[1])
    assert taken(line.plan("r", WINDOW)) == IDS[:1]


def test_every_source_must_have_staged_the_window(tmp_path: Path) -> None:
    two = [{"name": name, "connection": f"env:{name.upper()}", "server_id": 7} for name in ("shop", "west")]
    line = Line.open(tmp_path, sources=two)
    line.stage(B[0], until_us=WINDOW[1])
    error = refusal(lambda: line.plan("r", WINDOW))
    assert (error.code, error.where) == ("stage.behind", "west")
    line.idle("west", WINDOW[1])
    west = manifest(0, source="west", window=1)
    line.stage(west)
    assert taken(line.plan("r", WINDOW)) == IDS[:1]
    assert taken(line.plan("all")) == (*IDS[:1], west.batch_id)
    line.meta.close()


def test_consumed_batches_are_skipped_and_named(line: Line) -> None:
    line.stage(B[0], B[1])
    line.done("first")
    line.stage(B[2], until_us=WINDOW[1])
    run = line.plan("second", WINDOW)
    assert (taken(run), run.target("t").skipped) == (IDS[2:3], IDS[:2])


def test_a_hole_in_the_positions_is_refused_and_claims_nothing(line: Line, tmp_path: Path) -> None:
    line.stage(*B[:4])
    line.done("first", targets=[])
    for hole in (1, 3):  # in the middle, and before the stored position
        with sqlite3.connect(tmp_path / "meta.db") as connection:
            saved = connection.execute("SELECT * FROM batch WHERE batch_id = ?", (IDS[hole],)).fetchone()
            connection.execute("DELETE FROM batch WHERE batch_id = ?", (IDS[hole],))
        error = refusal(lambda: line.plan("r"))
        assert (severity(type(error)), error.code, error.where) == (DataAtRisk, "meta.gap", "shop")
        assert IDS[hole - 1] in error.what
        assert line.meta.records.find("t", IDS) == ()
        with sqlite3.connect(tmp_path / "meta.db") as connection:
            connection.execute(f"INSERT INTO batch VALUES ({','.join('?' * len(saved))})", saved)
    assert taken(line.plan("r")) == IDS[:4]


def test_a_hole_between_what_is_consumed_and_what_is_not_is_refused(line: Line, tmp_path: Path) -> None:
    line.stage(B[0])
    line.done("first")
    line.stage(B[1], B[2])
    with sqlite3.connect(tmp_path / "meta.db") as connection:
        connection.execute("DELETE FROM batch WHERE batch_id = ?", (IDS[1],))
    assert refusal(lambda: line.plan("r")).code == "meta.gap"


def test_planned_again_a_run_gets_the_same_plan_whatever_was_staged_since(line: Line) -> None:
    line.stage(B[0])
    first = line.plan("r")
    line.stage(B[1])
    assert line.plan("r") == first
    line.store.delete(first.path)  # killed between the claim and the file
    assert line.plan("r") == first
    assert plan.load(line.meta, line.store, "r") == first
    line.apply(first)  # even after the write
    assert line.plan("r") == first


def test_a_failed_run_planned_again_is_planned(line: Line) -> None:
    line.stage(B[0])
    first = line.plan("r")
    line.meta.runs.record_failure("r", "the target was away")
    assert line.plan("r") == first
    run = line.meta.runs.find("r")
    assert (run.state.value, run.last_error) == ("PLANNED", None)


def test_an_empty_run_planned_again_takes_what_was_staged_since(line: Line) -> None:
    assert taken(line.plan("r")) == ()
    line.stage(B[0])
    assert taken(line.plan("r")) == IDS[:1]


def test_a_committed_run_planned_again_has_nothing_to_do_whatever_was_staged_since(line: Line) -> None:
    line.stage(B[0], until_us=WINDOW[1])
    line.done("r", WINDOW)
    line.stage(B[1], until_us=WINDOW[1])
    again = line.plan("r", WINDOW)
    assert (taken(again), again.target("t").skipped) == ((), IDS[:1])
    assert line.commit(again).moved == 0
    assert [record.state for record in line.meta.records.find("t", IDS)] == [RecordState.COMMITTED]
    assert taken(line.plan("next", WINDOW)) == IDS[1:2]


def test_of_two_targets_the_one_that_is_committed_gets_nothing_when_the_run_is_cleared(line: Line) -> None:
    line = line.with_targets({"name": "t"}, {"name": "u"})
    line.stage(B[0])
    run = line.plan("r")
    line.apply(run)
    line.commit(run)
    again = line.plan("r")
    assert (taken(again), taken(again, "u")) == ((), IDS[:1])


def test_a_run_takes_over_what_a_dead_run_has_claimed(line: Line) -> None:
    line.stage(B[0], B[1])
    dead = line.plan("dead")
    line.stage(B[2])
    heir = line.plan("heir")
    assert taken(heir) == IDS[:3]
    line.apply(dead)  # as if it had not been dead
    error = refusal(lambda: line.commit(dead))
    assert (severity(type(error)), error.code) == (RetryLater, "run.taken_over")
    line.apply(heir)
    line.commit(heir)
    assert line.commit(dead).moved == 0  # done by the other run: its ledger is closed, no record moves
    assert {record.run_id for record in line.meta.records.find("t", IDS)} == {"heir"}


def test_a_run_has_nothing_left_to_do_while_others_have_all_of_its_batches(line: Line) -> None:
    line = line.with_targets({"name": "t"}, {"name": "u"})
    line.stage(B[0], manifest(1, window=1), until_us=NEXT_WINDOW[1])
    run = line.plan("r")
    lost = partial(commit.taken_over, line.meta, run)
    assert (lost("t"), lost("u"), lost()) == ("", "", "")
    line.plan("some", WINDOW, targets=["t"])
    assert lost("t") == "", "the second is its own still"
    all_of_one = line.plan("other", targets=["t"])
    assert (lost("t").count("'r' has nothing left to do: other took"), lost("u"), lost()) == (1, "", "")
    line.apply(all_of_one)
    line.commit(all_of_one)
    assert "other" in lost("t")
    line.done("last", targets=["u"])
    assert "other, last" in lost()
    assert commit.taken_over(line.meta, all_of_one) == "", "cleared, it repeats what it has committed"


def test_a_run_that_lost_its_batches_and_is_cleared_takes_them_back(line: Line) -> None:
    line.stage(B[0])
    run = line.plan("a")
    line.plan("b")
    line.stage(B[1])
    assert commit.taken_over(line.meta, run, "t")
    again = line.plan("a")
    assert taken(again) == IDS[:2]
    assert commit.taken_over(line.meta, again, "t") == ""
    line.apply(again)
    assert line.commit(again).moved == 2


def test_a_commit_between_the_look_and_the_claim_makes_plan_look_again(
    line: Line, monkeypatch: pytest.MonkeyPatch
) -> None:
    line.stage(B[0], B[1])
    rival = line.plan("rival")
    line.apply(rival)
    real = line.meta.plans.find

    def late(*arguments: object) -> object:
        seen = real(*arguments)
        monkeypatch.undo()
        line.commit(rival)
        return seen

    monkeypatch.setattr(line.meta.plans, "find", late)
    assert taken(line.plan("r")) == ()


def test_targets_that_wait_for_the_same_and_merge_alike_share_one_merge_set(line: Line) -> None:
    line.stage(B[0])
    line.done("first")
    rules = {"w": {"key": ["v"]}, "x": {"on_truncate": "apply"}, "y": {"on_truncate": "ignore"}}
    line = line.with_targets(*({"name": name, "tables": {"*": rules.get(name, {})}} for name in "tuvwxy"))
    line.stage(B[1])
    run = line.plan("r")
    assert [run.target(name).merge_set for name in "tuvwxy"] == ["0", "1", "1", "2", "3", "4"]
    assert [len(taken(run, name)) for name in "tuvwxy"] == [1, 2, 2, 2, 2, 2]
    merged = [run.merge_set(number).tables[0] for number in "01234"]
    assert [(table.key, table.on_truncate) for table in merged] == [
        (("id",), "stop"), (("id",), "stop"), (("v",), "stop"), (("id",), "apply"), (("id",), "ignore"),
    ]  # fmt: skip
    assert plan.load(line.meta, line.store, "r") == run


def test_a_table_that_the_target_does_not_take_is_recorded_and_not_merged(line: Line) -> None:
    line = line.with_targets({"name": "t", "tables": {"shop.orders": {}}})
    line.stage(manifest(0, tables={"shop.orders": 3, "shop.items": 2}), manifest(1, tables={"shop.items": 2}))
    run = line.plan("r")
    assert [table.table for table in run.merge_set("0").tables] == ["shop.orders"]
    assert [(record.table, record.taken) for record in line.meta.records.find("t", IDS)] == [
        ("shop.items", False),
        ("shop.orders", True),
        ("shop.items", False),
    ]
    line.apply(run)
    line.commit(run)
    assert {record.state for record in line.meta.records.find("t", IDS)} == {RecordState.COMMITTED}


def test_a_table_that_the_rules_take_in_later_is_named_until_what_was_left_out_is_replayed(
    line: Line, caplog: pytest.LogCaptureFixture
) -> None:
    line = line.with_targets({"name": "t", "tables": {"shop.orders": {}}})
    both = [manifest(number, tables={"shop.orders": 3, "shop.items": 2}) for number in range(5)]
    line.stage(*both[:2])
    line.done("first")
    line = line.with_targets({"name": "t"})

    def said(run_id: str) -> str:
        caplog.clear()
        line.done(run_id)
        return "".join(caplog.messages)

    line.stage(both[2])
    warned = said("second")
    assert "2 batches with changes of shop.items were committed while the rules of the target left" in warned
    assert f"lockstep run line --replay --target t --table shop.items --from {IDS[0]}" in warned
    run = replay.plan(opened_line(line), Selection("t", tables=("shop.items",)), run_id="again")
    line.apply(run)
    line.stage(both[3])
    assert "shop.items" in said("third"), "the replay is not committed"
    line.commit(run)
    line.stage(both[4])
    assert "left the table out" not in said("fourth")


def test_a_table_that_was_copied_since_lacks_nothing_that_was_left_out_before(
    line: Line, caplog: pytest.LogCaptureFixture
) -> None:
    line = line.with_targets({"name": "t", "tables": {"shop.orders": {}}})
    line.stage(manifest(0, tables={"shop.items": 2}))
    line.done("first")
    line = line.with_targets({"name": "t"})
    place = position(1)
    copied = TableCoverage(How.COPIED, place.seq, 0, str(place), feeds=("shop.items",), base_seq=place.seq)
    line.stage(replace(manifest(1, tables={"shop.items": 2}), coverage={"shop.items": copied}))
    caplog.clear()
    line.done("second")
    assert "left the table out" not in "".join(caplog.messages)


def test_a_batch_without_rows_is_consumed_too(line: Line) -> None:
    line.stage(manifest(0, tables={}))
    run = line.plan("r")
    assert [(record.table, record.state) for record in line.meta.records.find("t", IDS)] == [("", RecordState.STAGED)]
    assert line.commit(run).moved == 1
    assert taken(line.plan("next")) == ()


def test_a_table_without_a_key_is_refused_with_its_remedy(line: Line) -> None:
    line.stage(manifest(0, schemas=[schema(key=())]))
    error = refusal(lambda: line.plan("r"))
    assert (severity(type(error)), error.code) == (Refused, "config.table_rule")
    assert "in place of '*'" in error.remedy  # a table that '*' takes cannot be left out by itself
    assert "shop.orders" in error.what
    assert "targets.t.tables.shop.orders.key" in error.remedy
    assert line.meta.records.find("t", IDS) == ()
    mended = line.with_targets({"name": "t", "tables": {"*": {"key": ["id"]}}})
    assert mended.plan("r").merge_set("0").tables[0].key == ("id",)


def test_a_table_without_a_key_is_counted_where_the_target_says_so_and_names_no_key(line: Line) -> None:
    line.stage(manifest(0, schemas=[schema(key=())]))
    rule = {"no_key": "rows"}
    counted = line.with_targets({"name": "t", "tables": {"*": rule}})
    plan_of = counted.plan("r")
    assert plan_of.merge_set("0").tables[0].key == ()
    assert plan.load(line.meta, line.store, "r") == plan_of
    named = line.with_targets({"name": "t", "tables": {"*": {**rule, "key": ["id"]}}})
    assert named.plan("r").merge_set("0").tables[0].key == ("id",)
    line.stage(manifest(1, schemas=[schema("orders_1", key=("id",))]))
    error = refusal(lambda: counted.plan("r"))
    assert (error.code, "shop.orders: none" in error.what) == ("stage.key", True)


def test_what_may_come_twice_behind_a_failover_by_time_is_not_taken_where_rows_have_no_key(line: Line) -> None:
    def behind(number: int) -> Manifest:
        begin, end = (replace(checkpoint(at), position=position(at, timeline=1)) for at in (number, number + 1))
        return replace(manifest(number, schemas=[schema(key=())]), begin=begin, end=end)

    bridge = replace(
        manifest(0, tables={}), end=behind(5).begin, again_until=position(5, timeline=1).seq + 1, notes=("by time",)
    )
    line.stage(bridge, behind(5))
    counted = line.with_targets({"name": "t", "tables": {"*": {"no_key": "rows"}}})
    for attempt in (
        lambda: counted.plan("r"),
        lambda: replay.plan(opened_line(counted), Selection("t"), run_id="again"),
    ):
        error = refusal(attempt)
        assert (severity(type(error)), error.code) == (Refused, "stage.partial")
        assert behind(5).batch_id in error.what
    without = line.with_targets({"name": "t", "tables": {"shop.items": {}}})
    without.done("without")
    line.stage(behind(6))
    assert taken(counted.plan("r")) == (behind(6).batch_id,)
    assert Manifest.from_bytes(bridge.to_bytes()) == bridge


@pytest.mark.parametrize(("began", "code"), [(6, ""), (5, "stage.partial")])
def test_what_may_come_twice_is_taken_with_a_copy_that_began_behind_it(line: Line, began: int, code: str) -> None:
    keyless = schema(key=())
    first, place = (replace(checkpoint(at), position=position(at, timeline=1)) for at in (5, 6))
    again = replace(manifest(5, schemas=[keyless]), begin=first, end=place)
    bridge = replace(manifest(0, tables={}), end=first, again_until=place.position.seq, notes=("by time",))
    low = position(began, timeline=1)
    path = copied_path("shop.orders", START_US, CopiedName("shop", 1, 1, 0))
    chunk = CopiedChunk(1, "shop.orders", (), (), START_US, low, place.position, 10, (path,))
    of_log = manifest(6, schemas=[keyless])
    whole = TableCoverage(How.COPIED, place.position.seq - 1, 0, "", feeds=("shop.orders",), base_seq=low.seq)
    copy = replace(
        of_log, begin=place, end=place, parts=(replace(of_log.parts[0], path=path, ops={"r": 10}),), events=0,
        transactions=0, chunks=(chunk,), coverage={keyless.name: whole},
    )  # fmt: skip
    line.stage(bridge, replace(again, parts=(replace(again.parts[0], max_seq=place.position.seq - 1),)), copy)
    counted = line.with_targets({"name": "t", "tables": {"*": {"no_key": "rows"}}})
    if code:
        assert refusal(lambda: counted.plan("r")).code == code
    else:
        assert taken(counted.plan("r")) == (bridge.batch_id, again.batch_id, copy.batch_id)


def test_keys_that_differ_in_one_table_are_refused(line: Line) -> None:
    line.stage(B[0], manifest(1, schemas=[schema("orders_1", key=("id", "v"))]))
    error = refusal(lambda: line.plan("r"))
    assert (severity(type(error)), error.code) == (Refused, "stage.key")
    assert taken(line.with_targets({"name": "t", "tables": {"*": {"key": ["id"]}}}).plan("r")) == IDS[:2]


def test_a_key_column_that_a_source_table_lacks_is_refused(line: Line) -> None:
    line.stage(B[0])
    error = refusal(lambda: line.with_targets({"name": "t", "tables": {"*": {"key": ["nope"]}}}).plan("r"))
    assert (severity(type(error)), error.code) == (Refused, "config.table_rule")
    assert "'nope'" in error.what


def test_a_changed_key_in_the_pipeline_file_makes_a_new_plan_of_the_same_run(line: Line) -> None:
    line.stage(B[0])
    old = line.plan("r")
    changed = line.with_targets({"name": "t", "tables": {"*": {"key": ["v"]}}})
    new = changed.plan("r")
    assert new.merge_set("0").tables[0].key == ("v",)
    error = refusal(lambda: commit.mark_applied(line.meta, old, "t"))
    assert (severity(type(error)), error.code) == (Refused, "run.clear_task")


def test_a_definition_that_meta_lost_comes_from_the_manifest(line: Line, tmp_path: Path) -> None:
    line.stage(B[0])
    with sqlite3.connect(tmp_path / "meta.db") as connection:
        connection.execute("DELETE FROM schema_version")
    assert line.plan("r").schemas == B[0].schemas


@pytest.mark.parametrize(
    ("options", "code"),
    [
        ({"run_id": ""}, "usage.argument"),
        ({"run_id": "x" * 251}, "usage.argument"),
        ({"run_id": "größe"}, "usage.argument"),
        ({"run_id": "r", "window": (WINDOW[1], WINDOW[0])}, "usage.argument"),
        ({"run_id": "r", "window": (WINDOW[0], WINDOW[0])}, "usage.argument"),
        ({"run_id": "r", "targets": ["nobody"]}, "usage.unknown_name"),
    ],
)
def test_wrong_arguments_are_usage_errors(line: Line, options: dict[str, object], code: str) -> None:
    error = refusal(lambda: line.plan(**options))
    assert (severity(type(error)), error.code) == (UsageError, code)


def test_a_run_id_is_not_reused_for_another_window(line: Line) -> None:
    line.stage(B[0], until_us=NEXT_WINDOW[1])
    line.plan("r", WINDOW)
    assert refusal(lambda: line.plan("r", NEXT_WINDOW)).code == "usage.argument"


@pytest.mark.parametrize("lost", [0, 1, 2, "start"])
def test_no_plan_and_no_replay_over_a_stage_that_has_lost_what_meta_recorded(line: Line, lost: int | str) -> None:
    line.stage(B[0], B[1])
    line.done("before")
    line.stage(B[2])
    line.store.delete(B[lost].path if isinstance(lost, int) else start_path("shop"))
    wanted = "stage.damaged"
    assert refusal(lambda: line.plan("r")).code == wanted
    assert refusal(lambda: replay.plan(opened_line(line), Selection("t"), run_id="again")).code == wanted


def test_run_ids_that_paths_cannot_hold_have_folders_of_their_own() -> None:
    ids = ["a/b", "a%2Fb", "a~b", "a%7Eb", "..", ".", "%2E", "a:b", "a b", "x" * 250, "x" * 249 + "y"]
    paths = [plan_path(run_id, "0" * 64) for run_id in ids]
    assert len(set(paths)) == len(ids)
    assert all(path.count("/") == 3 and ".." not in path for path in paths)
    assert all(len(path.split("/")[1]) <= 200 for path in paths)


def test_no_row_may_be_set_aside_where_changes_do_not_have_all_of_their_values(line: Line) -> None:
    line = line.with_targets({"name": "t", "tables": {"*": {"on_row_error": "quarantine"}}})
    line.stage(B[0])
    assert taken(line.plan("whole")) == IDS[:1]
    line.stage(manifest(1, absent_rows=2))
    error = refusal(lambda: line.plan("part"))
    assert (error.code, error.where) == ("config.table_rule", "targets.t.tables.shop.orders.on_row_error")
    assert line.meta.runs.find("part") is None
    assert taken(line.with_targets({"name": "t"}).plan("part")) == IDS[:2]


def test_a_run_that_is_planned_again_with_other_batches_shares_no_folder_with_its_first_plan(line: Line) -> None:
    line.stage(B[0])
    first = line.plan("r")
    line.stage(B[1])
    assert line.plan("r") == first  # it still owns its records
    line.done("other")
    line.stage(B[2])
    second = line.plan("r")
    assert taken(second) == IDS[2:3]
    folders = [
        {
            run_plan.merged_folder("0"),
            run_plan.filtered_folder("t"),
            run_plan.written_folder("t"),
            run_plan.quality_folder("t"),
            run_plan.path,
        }
        for run_plan in (first, second)
    ]
    assert folders[0].isdisjoint(folders[1])
    assert plan.load(line.meta, line.store, "r") == second
    line.apply(second)
    line.put_counts(first, "t", [], [], [])  # a task of the first plan that is still alive
    assert refusal(lambda: line.commit(first)).code == "run.clear_task"
    assert line.commit(second).moved == 1


@pytest.mark.parametrize("version", [0, PLAN_VERSION + 1])
def test_a_plan_of_another_version_is_refused_in_words_and_planning_again_helps(line: Line, version: int) -> None:
    line.stage(B[0])
    run = line.plan("r")
    data = json.loads(run.to_bytes()) | {"version": version, "unheard_of": 1}
    line.store.put(run.path, json.dumps(data).encode())
    error = refusal(lambda: plan.load(line.meta, line.store, "r"))
    assert (error.code, f"version {version}" in error.what, "run r" in error.where) == ("run.clear_task", True, True)
    assert line.plan("r") == run
    assert plan.load(line.meta, line.store, "r") == run


def test_a_plan_that_was_altered_is_not_worked_on(line: Line) -> None:
    line.stage(B[0], B[1])
    run = line.plan("r")
    line.store.put(run.path, replace(run, window_end_us=run.window_end_us + 1).to_bytes())
    assert refusal(lambda: plan.load(line.meta, line.store, "r")).code == "run.clear_task"


def sharded(line: Line, **sharding: object) -> Line:
    rule = {"database": "d{d}", "table": "t{t}", "sharding": {"key": "id", "databases": 2, "tables": 2, **sharding}}
    return line.with_targets({"name": "t", "connections": ["env:T"], "tables": {"*": rule}})


@pytest.mark.parametrize(
    "changed",
    [{"function": "hash"}, {"key": "name"}, {"databases": 4, "tables": 1}, {"function": "range", "bounds": [1, 2, 3]}],
)
def test_a_task_of_a_run_that_was_planned_for_another_layout_is_refused(line: Line, changed: dict[str, object]) -> None:
    line.stage(B[0], B[1])
    before, after = sharded(line), sharded(line, **changed)
    first = before.plan("r")
    assert refusal(lambda: require_layouts(after.pipeline, first)).code == "run.clear_task"
    require_layouts(before.pipeline, first)
    require_layouts(sharded(line, key="ID").pipeline, first)  # columns' names have no case
    require_layouts(after.pipeline, after.plan("r"))
