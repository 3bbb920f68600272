"""From staged files to a sharded target and back: filter, write and quality on a real server, one run after another."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import SparkSession

from cdc_core.config import Quality
from cdc_core.errors import DataAtRisk, LockstepError, Refused, UsageError
from cdc_core.model.merged_columns import SHARD
from cdc_core.model.run_plan import FilterCounts, RunPlan, counts_path
from cdc_core.model.schema import Column, TableSchema, parse_column_type
from cdc_core.stage.stores import open_store
from cdc_core.targets.bookkeeping.fence import lower_fences, raise_fences
from cdc_core.targets.bookkeeping.table_states import DEFINITIONS, STATES
from cdc_core.targets.tables import compare_columns
from spark_jobs import quality, suite_parts
from spark_jobs.filter import apply_filter
from spark_jobs.job import Job
from spark_jobs.merge import merge
from spark_jobs.quality import check
from spark_jobs.quality_rows import Sample, spaced
from spark_jobs.suite_parts import judge_in_parts
from spark_jobs.table_tasks import together
from spark_jobs.write import FilteredRows, shard_pieces, write, write_pieces
from tests.history_model import Change
from tests.spark.target_line import ALSO_BY_SPARK, DRIVER_ALONE, FIRST, ORDERS, TargetLine, fed_by_two, order

# PySpark leaves the sockets of `collect` to the garbage collector.
pytestmark = [pytest.mark.spark, pytest.mark.filterwarnings("ignore::ResourceWarning")]


@ALSO_BY_SPARK
def test_a_run_writes_each_shard_again_changes_nothing_and_meets_the_expectations(line: TargetLine) -> None:
    plan = line.run(*FIRST, order("d", 8, 8, "c8", 11), order("d", 99, 3, "z", 12), quality=True)
    assert line.rows() == {
        "0.0": [(4, 4, "c4")],
        "0.1": [(1, 1, "c1"), (5, 5, "c5")],
        "1.0": [(2, 2, "c2"), (6, 6, "c6")],
        "1.1": [(3, 3, "c3"), (7, 7, "c7")],
    }
    line.adds_up(plan)
    merged, filtered, _ = line.counts(plan)
    assert (merged.rows, merged.winners, merged.superseded) == (10, 9, 1)
    assert (filtered.insert, filtered.absent, filtered.stale) == (7, 2, 0)
    before = line.everything()
    line.again(plan)
    assert line.everything() == before
    line.adds_up(plan)


@pytest.fixture
def indexed(line: TargetLine, monkeypatch: pytest.MonkeyPatch) -> TargetLine:
    """Each table has an index and is one that Lockstep has made. More than two rows are worth to build it anew."""
    for d in (0, 1):
        states = f"{line.prefix}_{d}.{STATES}"
        line.query(f"CREATE TABLE {states} ({DEFINITIONS[STATES]})")
        line.query(f"INSERT INTO {states} (table_name, due) VALUES ('orders_0', '[]'), ('orders_1', '[]')")
    for place in line.places:
        line.query(f"ALTER TABLE {place} ADD KEY at (at)")
    monkeypatch.setattr("cdc_core.targets.bookkeeping.indexes.LARGE_ROWS", 2)
    return line


def with_index(line: TargetLine) -> int:
    """How many of the four tables have it."""
    return sum(bool(line.query(f"SHOW INDEX FROM {place} WHERE Key_name = 'at'")) for place in line.places)


def test_the_indexes_of_tables_that_lockstep_has_made_wait_for_a_large_first_run(
    indexed: TargetLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    line = indexed
    seen: list[int] = []

    def noted(*arguments: Any, of: Any = write_pieces) -> Any:
        seen.append(with_index(line))
        done = of(*arguments)
        seen.append(with_index(line))
        return done

    monkeypatch.setattr("spark_jobs.write.write_pieces", noted)
    line.run(*FIRST[:7])
    assert seen[:2] == [4, 4], "fewer rows than are worth it"
    for place in line.places:
        line.query(f"DELETE FROM {place}")
    seen.clear()
    line.run(*(order("c", id, id, f"c{id}", 20, id) for id in range(11, 19)))
    assert seen[:2] == [0, 0]
    assert with_index(line) == 4
    assert len(line.rows()) == 4
    assert line.query(f"SELECT * FROM {line.prefix}_0.{STATES} WHERE due IS NOT NULL") == []


@DRIVER_ALONE
@pytest.mark.parametrize("loaded", [False, True])
def test_a_run_that_is_killed_around_its_load_builds_the_indexes_when_it_is_repeated(
    indexed: TargetLine, loaded: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Killed(BaseException):
        pass

    def killed(*arguments: Any) -> Any:
        if loaded:
            write_pieces(*arguments)
        raise Killed

    line = indexed
    with monkeypatch.context() as patched:
        patched.setattr("spark_jobs.write.write_pieces", killed)
        with pytest.raises(Killed):
            line.run(*FIRST)
    assert with_index(line) == 0
    (plan,) = line.runs
    line.again(plan, quality=True)
    assert with_index(line) == 4
    assert len(line.rows()) == 4
    line.adds_up(plan)


@DRIVER_ALONE
def test_a_small_run_starts_no_spark(line: TargetLine, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_spark(job: Job) -> SparkSession:
        raise AssertionError("the driver does all of this itself")

    monkeypatch.setattr(Job, "spark", property(no_spark))
    line.run(*FIRST, order("d", 8, 8, "c8", 11))
    line.run(order("u", 1, 2, "c1", 20, customer=1), quality=True)
    assert sum(len(rows) for rows in line.rows().values()) == 7


def test_a_fence_refuses_a_run_before_and_after_its_filter(line: TargetLine) -> None:
    line.run(*FIRST)
    held, target = line.rows(), line.pipeline.target("shards")
    plan = line.planned([order("d", 1, 1, "c1", 20)])
    merge(line.job(plan, target=None))
    for task in (apply_filter, write):
        raise_fences(target, ["shop.orders"], "switched")
        with pytest.raises(Refused) as caught:
            task(line.job(plan))
        assert caught.value.code == "target.fenced"
        assert line.rows() == held
        lower_fences(target, ["shop.orders"])
        task(line.job(plan))
    assert line.rows() != held
    raise_fences(target, ["shop.orders"], "switched")
    check(line.job(plan))  # which only reads what was written before


def test_a_merge_of_a_runs_former_plan_that_is_still_alive_changes_nothing_of_the_present_one(line: TargetLine) -> None:
    """The run was planned again, with one batch more, while Spark went on merging for the first plan."""
    keys = {"shop.orders": ["id"]}
    line.stage.add("shop.orders", ORDERS, FIRST)
    former = line.stage.plan("again", keys)
    merge(line.job(former, target=None))
    line.stage.add("shop.orders", ORDERS, [order("d", 1, 1, "c1", 20)])
    present = line.stage.plan("again", keys)
    merge(line.job(present, target=None))
    merge(line.job(former, target=None))
    apply_filter(line.job(former))
    apply_filter(line.job(present))
    write(line.job(present))
    check(line.job(present))
    line.adds_up(present)
    assert {row[0] for rows in line.rows().values() for row in rows} == set(range(2, 9))
    write(line.job(former))
    assert {row[0] for rows in line.rows().values() for row in rows} == set(range(2, 9))
    line.adds_up(present)


@ALSO_BY_SPARK
def test_files_that_a_killed_attempt_adds_after_the_next_one_has_ended_count_for_nothing(line: TargetLine) -> None:
    """Nothing ends at once what executors do for a driver that is gone."""
    line.stage.add("shop.orders", ORDERS, FIRST)
    plan = line.stage.plan("late", {"shop.orders": ["id"]})
    merge(line.job(plan, target=None))
    job = line.job(plan)
    (table,) = job.tables()

    def add_late(folder: str, paths: Sequence[str]) -> None:
        for path in paths:
            name = path.rpartition("/")[2]
            for place in (f"late-{name}", f"another/{name}"):
                job.store.put(f"{folder}/{place}", job.store.get(path))

    add_late(job.merged("shop.orders"), job.merged_files(table))
    apply_filter(line.job(plan))
    add_late(job.filtered("shop.orders"), job.filtered_files(table))
    write(line.job(plan))
    check(line.job(plan))
    line.adds_up(plan)
    assert sum(len(rows) for rows in line.rows().values()) == len(FIRST)


def test_each_winner_is_classified_and_stale_ones_are_kept_with_their_reason(line: TargetLine) -> None:
    line.run(*FIRST, order("d", 7, 7, "c7", 30))
    plan = line.run(
        order("c", 20, 20, "new", 40),
        order("u", 1, 1, "changed", 40, code="c1"),
        order("d", 2, 2, "c2", 40),
        order("u", 21, 21, "revived", 40, code="was"),
        order("d", 22, 22, "gone", 40),
        order("u", 3, 3, "late", 5, code="c3"),
        order("c", 7, 7, "late", 20),
    )
    _, filtered, _ = line.counts(plan)
    expected = FilterCounts("shop.orders", insert=1, update=1, delete=1, revived=1, absent=1, stale=2)
    assert filtered == expected
    line.adds_up(plan)
    folder = line.stage.root / line.job(plan).rejected("shop.orders")
    rejected = {row["id"]: row["_cdc_reason"] for row in ds.dataset(folder, format="parquet").to_table().to_pylist()}
    assert rejected == {
        3: "the target has a newer version of the row",
        7: "the key was deleted by a newer change",
    }


@ALSO_BY_SPARK
def test_each_file_to_be_written_holds_its_rows_by_shard_in_the_order_of_their_key_and_is_read_to_its_end(
    line: TargetLine,
) -> None:
    line.spark().conf.set("spark.sql.files.maxRecordsPerFile", 1)
    try:
        plan = line.run(*reversed(FIRST))
    finally:
        line.spark().conf.unset("spark.sql.files.maxRecordsPerFile")
    shards: set[int] = set()
    folder = line.stage.root / line.job(plan).filtered("shop.orders")
    for path in folder.glob("*.parquet"):
        rows = pq.read_table(path)
        found = list(zip(rows[SHARD].to_pylist(), rows["id"].to_pylist(), strict=True))
        assert found == sorted(found)
        shards.update(shard for shard, _ in found)
        pq.write_table(rows, path, row_group_size=1)
    assert shards == {0, 1, 2, 3}
    left_behind = folder / "_temporary" / "0" / "killed.parquet"
    left_behind.parent.mkdir(parents=True)
    left_behind.write_bytes(b"PAR1")
    write(line.job(plan))
    assert [counts.equal for counts in line.counts(plan)[2]] == [2, 2, 2, 2]


def test_a_row_whose_shard_key_changes_moves_and_never_stands_twice_whatever_the_order_of_runs(
    line: TargetLine,
) -> None:
    first = line.run(*FIRST)
    moves = [
        [order("u", 1, 2, "c1", 20, customer=1), order("u", 5, 6, "m", 21, customer=5), order("d", 5, 6, "m", 22)],
        [order("u", 1, 3, "c1", 30, customer=2), order("u", 1, 1, "c1", 31, customer=3)],
        [order("u", 1, 4, "c1", 40, customer=1)],
    ]
    plans = [line.run(*changes) for changes in moves]
    expected = line.everything()
    assert line.rows()["0.0"] == [(1, 4, "c1"), (4, 4, "c4"), (8, 8, "c8")]
    assert sum(row[0] == 1 for rows in line.rows().values() for row in rows) == 1
    assert 5 not in {row[0] for rows in line.rows().values() for row in rows}
    for plan in (plans[1], first, plans[0], plans[2]):
        line.again(plan, quality=plan is plans[2])
        assert line.everything() == expected
        line.adds_up(plan)


def test_runs_in_the_wrong_order_end_in_the_same_target(line: TargetLine) -> None:
    late = line.run(order("u", 1, 2, "x", 40, code="c1", customer=1), order("d", 2, 2, "c2", 41))
    line.run(*FIRST)
    middle = line.run(order("u", 1, 1, "m", 20, code="c1"), order("u", 2, 6, "n", 21, code="c2", customer=2))
    found = {row[0]: row[1:] for rows in line.rows().values() for row in rows}
    assert found[1] == (2, "x")
    assert 2 not in found
    for plan in (late, middle):
        line.again(plan, quality=plan is middle)
    assert {row[0]: row[1:] for rows in line.rows().values() for row in rows} == found


def test_quality_fails_on_a_tampered_row_and_says_which(line: TargetLine, monkeypatch: pytest.MonkeyPatch) -> None:
    # In the driver; Spark's workers have the server compare few rows.
    monkeypatch.setattr(compare_columns, "SMALL_ROWS", 0)
    plan = line.run(*FIRST, order("d", 8, 8, "c8", 11))
    line.query(f"UPDATE {line.prefix}_0.orders_1 SET code = 'Tampered' WHERE id = 5")
    line.query(f"DELETE FROM {line.prefix}_1.orders_0 WHERE id = 2")
    line.query(f"INSERT INTO {line.prefix}_0.orders_0 (id, customer) VALUES (8, 8)")
    with pytest.raises(DataAtRisk) as caught:
        check(line.job(plan))
    assert caught.value.code == "quality.failed"
    verdict = json.loads((line.stage.root / plan.quality_folder("shards") / "target.json").read_text())
    assert verdict["success"] is False
    assert {(example["_key"], example["_outcome"]) for example in verdict["examples"]} == {
        ("5", "differs"),
        ("2", "missing"),
        ("8", "left behind"),
    }
    assert json.loads((line.stage.root / plan.quality_folder("shards") / "merged.json").read_text())["success"] is True


def test_a_run_of_more_rows_than_are_judged_in_memory_is_judged_by_spark_and_as_well(
    line: TargetLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    def verdicts() -> dict[str, Any]:
        with suppress(DataAtRisk):
            check(line.job(plan))
        folder = line.stage.root / plan.quality_folder("shards")
        found = {name: json.loads((folder / f"{name}.json").read_text()) for name in ("staged", "merged", "target")}
        return {
            name: (
                verdict["success"], verdict["rows"], [each["success"] for each in verdict["expectations"]],
                sorted((row["_key"], row["_outcome"]) for row in verdict.get("examples", ())),
            )
            for name, verdict in found.items()
        }  # fmt: skip

    def the_same_by_spark() -> dict[str, Any]:
        in_memory = verdicts()
        stages: list[str] = []

        def in_parts(job: Any, stage: str, rows: Any) -> dict[str, Any]:
            stages.append(stage)
            return judge_in_parts(job, stage, rows)

        with monkeypatch.context() as patch, line.by_spark():
            patch.setattr(quality, "GATHERED_ROWS", 2)
            patch.setattr(suite_parts, "PART_ROWS", 3)
            patch.setattr(suite_parts, "judge_in_parts", in_parts)
            assert verdicts() == in_memory
        assert stages == ["staged", "merged", "target"]
        return in_memory

    plan = line.run(*FIRST, order("d", 8, 8, "c8", 11))
    assert all(outcome[0] for outcome in the_same_by_spark().values())

    line.query(f"UPDATE {line.prefix}_0.orders_1 SET code = 'Tampered' WHERE id = 5")
    line.query(f"DELETE FROM {line.prefix}_1.orders_0 WHERE id = 2")
    path = next(line.stage.root.glob(f"{line.job(plan).merged('shop.orders')}/**/*.parquet"))
    pq.write_table(pa.concat_tables([pq.read_table(path), pq.read_table(path).slice(0, 1)]), path)
    found = the_same_by_spark()
    assert found["target"][3] == [("2", "missing"), ("5", "differs")]
    assert [outcome[0] for outcome in found.values()] == [True, False, False]
    assert found["merged"][2][:2] == [False, False]  # their number, and that no key stands twice


def test_quality_reads_a_sample_back_where_the_pipeline_says_so_and_says_which_it_was(
    line: TargetLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compare_columns, "SMALL_ROWS", 0)
    plan = line.run(*FIRST, quality=True)
    folder = line.stage.root / plan.quality_folder("shards")
    verdict = json.loads((folder / "target.json").read_text())
    assert (verdict["rows"], verdict["of"]) == (8, 8)
    assert "<p>all 8 rows</p>" in (folder / "report.html").read_text()

    line.pipeline = line.pipeline.model_copy(update={"quality": Quality(sample_rows=3)})
    line.again(plan, quality=True)
    verdict = json.loads((folder / "target.json").read_text())
    assert verdict["success"], verdict
    assert (verdict["rows"] < 8, verdict["of"]) == (True, 8)
    assert f"<p>a sample of {verdict['rows']} of 8 rows</p>" in (folder / "report.html").read_text()
    with monkeypatch.context() as patch, line.by_spark():  # a sample too large to be judged in memory
        patch.setattr(quality, "GATHERED_ROWS", 1)
        check(line.job(plan))
    by_spark = json.loads((folder / "target.json").read_text())
    assert by_spark == verdict

    for place in line.places:
        line.query(f"UPDATE {place} SET code = CONCAT('x', id)")
    with pytest.raises(LockstepError) as caught:
        check(line.job(plan))
    assert caught.value.code == "quality.failed"


@given(files=st.lists(st.lists(st.integers(0, 9), max_size=5), max_size=9), most=st.integers(1, 40), run=st.text())
def test_a_sample_is_evenly_spaced_over_all_files_and_never_empty(files: list[list[int]], most: int, run: str) -> None:
    """A row of each file, from the same number on, were none at all where files are shorter than that number."""
    total = sum(map(sum, files))
    numbers = iter(range(total))
    sample = Sample.of(run, {str(path): sum(file) for path, file in enumerate(files)}, most)
    taken = []
    for path, file in enumerate(files):
        batches = [pa.record_batch({"n": pa.array([next(numbers) for _ in range(rows)], pa.int64())}) for rows in file]
        some = spaced(batches, sample.first[str(path)], sample.every)
        taken += [number for batch in some for number in batch.column(0).to_pylist()]
    assert taken == list(range(total))[taken[0] if taken else 0 :: sample.every]
    assert len(taken) == sample.rows <= most
    assert bool(taken) == bool(total)


def test_quality_fails_when_a_staged_order_key_stands_twice(line: TargetLine) -> None:
    plan = line.run(*FIRST, order("c", 20, 20, "twin", 10, 3))
    with pytest.raises(DataAtRisk, match="staged"):
        check(line.job(plan))
    verdict = json.loads((line.stage.root / plan.quality_folder("shards") / "staged.json").read_text())
    failed = [expectation for expectation in verdict["expectations"] if not expectation["success"]]
    assert [expectation["expectation"] for expectation in failed] == ["expect_compound_columns_to_be_unique"]


def test_suites_of_ones_own_fail_the_run_where_they_are_critical_and_are_forgotten_with_their_file(
    line: TargetLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = line.stage.root / "orders.yaml"
    suites = [{"table": "shop.orders", "stage": stage, "path": str(file)} for stage in ("merged", "staged")]
    line.pipeline = line.pipeline.model_copy(update={"quality": Quality.model_validate({"suites": suites})})

    def expect(severity: str, **kwargs: Any) -> None:
        kind = "expect_column_values_to_be_between"
        file.write_text(json.dumps({"expectations": [{"type": kind, "kwargs": kwargs, "severity": severity}]}))

    expect("warning", column="customer", max_value=7)
    plan = line.run(*FIRST, order("d", 8, 8, "c8", 11), order("c", 9, 9, "<b>", 12), quality=True)
    folder = line.stage.root / plan.quality_folder("shards")
    merged = json.loads((folder / "own-0.json").read_text())
    assert (merged["success"], merged["rows"], merged["expectations"][0]["success"]) == (True, 9, False)
    assert merged["expectations"][0]["result"]["partial_unexpected_list"] == [8, 9]
    assert [json.loads((folder / f"own-{n}.json").read_text())["rows"] for n in (0, 1)] == [9, 10]

    # Where a table's values do not fit into the driver's memory, Spark judges them, and finds the same.
    with monkeypatch.context() as patch, line.by_spark():
        patch.setattr(quality, "GATHERED_BYTES", 0)
        check(line.job(plan))
    by_spark = json.loads((folder / "own-0.json").read_text())
    assert (merged["engine"], by_spark["engine"]) == ("pandas", "spark")
    counts = [verdict["expectations"][0]["result"]["partial_unexpected_counts"] for verdict in (merged, by_spark)]
    assert (by_spark["rows"], counts[1]) == (9, counts[0])
    check(line.job(plan))
    assert "orders.yaml on staged shop.orders" in (folder / "report.html").read_text()

    expect("critical", column="customer", max_value=7)
    with pytest.raises(DataAtRisk, match="own-0, own-1") as caught:
        check(line.job(plan))
    assert caught.value.code == "quality.failed"
    expect("critical", colunm="customer", max_value=7)
    with pytest.raises(UsageError, match="colunm"):
        check(line.job(plan))
    line.pipeline = line.pipeline.model_copy(update={"quality": Quality()})
    check(line.job(plan))
    assert sorted(path.name for path in folder.glob("*.json")) == ["merged.json", "staged.json", "target.json"]


@ALSO_BY_SPARK
def test_rows_that_the_target_does_not_take_are_set_aside_with_their_reason_and_nothing_else_suffers(
    line: TargetLine,
) -> None:
    line.change_rule(on_row_error="quarantine")
    line.run(*FIRST, order("c", 20, 20, "to go", 10, 20))
    plan = line.run(
        order("u", 1, 2, "x" * 21, 20, code="c1", customer=1),  # moves to another shard, and does not fit there
        order("u", 2, 3, "moved", 21, code="c2", customer=2),
        order("c", 30, 1, "y" * 30, 22),
        order("d", 20, 20, "z" * 40, 23),
        quality=True,
    )
    line.adds_up(plan)
    _, _, written = line.counts(plan)
    assert sum(counts.quarantined for counts in written) == 2
    found = {row[0]: row[1:] for rows in line.rows().values() for row in rows}
    assert (found[1], found[2]) == ((1, "c1"), (3, "moved"))
    assert {20, 30}.isdisjoint(found)
    folder = line.stage.root / line.job(plan).quarantine("shop.orders")
    aside = ds.dataset(folder, format="parquet").to_table().to_pylist()
    assert {row["id"]: (row["code"], "code" in row["_cdc_reason"]) for row in aside} == {
        1: ("x" * 21, True),
        30: ("y" * 30, True),
    }
    for place in line.places:
        line.query(f"ALTER TABLE {place} MODIFY code VARCHAR(50) COLLATE utf8mb4_bin")
    line.again(plan)
    line.adds_up(plan)
    found = {row[0]: row[1:] for rows in line.rows().values() for row in rows}
    assert (found[1], found[30]) == ((2, "x" * 21), (1, "y" * 30))
    assert sum(row[0] == 1 for rows in line.rows().values() for row in rows) == 1
    assert not list(folder.glob("*.parquet"))


def test_tables_that_must_not_be_altered_are_guarded_by_versions_beside_them(line: TargetLine) -> None:
    line.change_rule(guard={"store": "table"})
    first = line.run(*FIRST)
    line.run(order("u", 1, 2, "moved", 20, code="c1", customer=1), order("d", 2, 2, "c2", 21), quality=True)

    def rows() -> list[list[tuple[Any, ...]]]:
        beside = [place.replace(".", "._lockstep_version_") for place in line.places]
        return [line.query(f"SELECT * FROM {name} ORDER BY 1, 2") for name in (*line.places, *beside)]

    before = rows()
    line.again(first)
    assert rows() == before
    assert sum(map(len, before[-4:])) == 7
    assert line.query("SHOW COLUMNS FROM " + f"{line.prefix}_0.orders_0 LIKE '_cdc_version'") == []


@ALSO_BY_SPARK
def test_an_error_of_a_worker_reaches_the_driver_whole_and_leaves_no_counts(line: TargetLine) -> None:
    line.run(*FIRST)
    with pytest.raises(DataAtRisk) as caught:
        line.run(order("c", 100, 1, "c5", 50))
    assert caught.value.code == "target.unique_conflict"
    assert caught.value.where == f"{line.prefix}_0.orders_1"
    store = open_store(line.stage.uri)
    assert store.stat(counts_path(line.runs[-1].written_folder("shards"))) is None


def test_a_row_that_is_deleted_and_comes_again_in_another_shard_leaves_the_first(line: TargetLine) -> None:
    line.run(*FIRST)
    line.run(order("d", 1, 1, "c1", 20), order("c", 1, 2, "c1", 21), quality=True)
    assert [(at, row) for at, rows in line.rows().items() for row in rows if row[0] == 1] == [("1.0", (1, 2, "c1"))]


class Minimal:
    """A source that logs the primary key and what changed: its rows as (customer, code), and the changes since."""

    def __init__(self, rows: dict[int, tuple[int, str | None]]) -> None:
        self.rows = rows
        self.seq = 10
        self.changes: list[Change] = []

    def _log(self, op: str, row: dict[str, Any], before: dict[str, Any] | None = None) -> None:
        self.seq += 1
        lacking = [name for name in ("customer", "code", "at") if op != "c" and name not in row]
        if before is not None:
            lacking += [f"_before.{name}" for name in ("customer", "code", "at")]
        self.changes.append(Change(op, row, self.seq, before=before, absent=lacking))

    def insert(self, id: int, customer: int, code: str | None) -> None:
        self.rows[id] = (customer, code)
        self._log("c", {"id": id, "customer": customer, "code": code})

    def delete(self, id: int) -> None:
        del self.rows[id]
        self._log("d", {"id": id})

    def update(self, id: int, to: int, **values: Any) -> None:
        customer, code = self.rows.pop(id)
        self.rows[to] = (values.get("customer", customer), values.get("code", code))
        self._log("u", {"id": to, **values}, before={"id": id})

    def taken(self) -> list[Change]:
        changes, self.changes = self.changes, []
        return changes

    def by_shard(self) -> dict[str, list[tuple[Any, ...]]]:
        found: dict[str, list[tuple[Any, ...]]] = {}
        for id, (customer, code) in sorted(self.rows.items()):
            found.setdefault(f"{customer % 4 // 2}.{customer % 4 % 2}", []).append((id, customer, code))
        return dict(sorted(found.items()))


def grown(line: TargetLine, rows: int) -> Minimal:
    """The target has rows that Lockstep never wrote."""
    source = Minimal({id: (id * 3, f"c{id}") for id in range(rows)})
    for id, (customer, code) in source.rows.items():
        line.query(f"INSERT INTO {line.places[customer % 4]} (id, customer, code) VALUES ({id}, {customer}, '{code}')")
    return source


def test_minimal_changes_of_keys_shard_keys_and_values_end_as_at_the_source_and_again_change_nothing(
    line: TargetLine,
) -> None:
    source, dice, plans = grown(line, 6), random.Random(4), []
    for _ in range(3):
        for _ in range(16):
            id, to, customer = dice.randrange(9), dice.randrange(9), dice.randrange(8)
            code = None if dice.random() < 0.2 else f"v{source.seq}"
            some = [{"customer": customer}, {"code": code}, {"customer": customer, "code": code}]
            if id not in source.rows:
                source.insert(id, customer, code)
            elif dice.random() < 0.2:
                source.delete(id)
            elif dice.random() < 0.5 or to in source.rows:
                source.update(id, id, **dice.choice(some))
            else:
                source.update(id, to, **dice.choice([{}, *some]))
        plans.append(line.run(*source.taken()))
        assert dict(sorted(line.rows().items())) == source.by_shard()
        line.adds_up(plans[-1])
    check(line.job(plans[-1]))
    for plan in (plans[1], plans[0]):
        line.again(plan)
        assert dict(sorted(line.rows().items())) == source.by_shard()
        line.adds_up(plan)


def test_a_row_that_moves_takes_along_what_its_changes_lack_where_they_have_both_shard_keys(line: TargetLine) -> None:
    """As with binlog_row_image NOBLOB."""
    source = grown(line, 5)

    def move(id: int, customer: int) -> Change:
        was, code = source.rows[id]
        source.rows[id] = customer, code
        source.seq += 1
        lacking = ["code", "at", "_before.code", "_before.at"]
        row, before = {"id": id, "customer": customer}, {"id": id, "customer": was}
        return Change("u", row, source.seq, before=before, absent=lacking)

    first = line.run(move(1, 4), move(2, 5), move(2, 6), move(3, 8), move(3, 9))
    assert dict(sorted(line.rows().items())) == source.by_shard()
    second = line.run(move(1, 7), move(3, 10), quality=True)
    for plan in (first, second):
        line.again(plan)
        line.adds_up(plan)
        assert dict(sorted(line.rows().items())) == source.by_shard()


def test_keys_that_swap_take_their_rows_along_wherever_they_stand(line: TargetLine) -> None:
    source = grown(line, 4)
    for id, to in ((1, 99), (2, 1), (99, 2), (3, 5), (5, 6), (6, 3)):
        source.update(id, to)
    source.update(2, 2, code="new")
    plan = line.run(*source.taken(), quality=True)
    assert dict(sorted(line.rows().items())) == source.by_shard()
    line.again(plan)
    assert dict(sorted(line.rows().items())) == source.by_shard()


@pytest.mark.parametrize("shard", ["0.1", pytest.param("1.1", marks=pytest.mark.matrix)])
def test_a_run_ends_the_write_of_one_that_was_killed_between_the_shards_of_rows_that_went_to_new_keys(
    line: TargetLine, shard: str
) -> None:
    """Two rows swap keys and shards: whichever is written first takes away what the other had."""
    source = grown(line, 4)
    source.update(1, 99)
    source.update(3, 1, customer=3)
    source.update(99, 3, customer=9)
    first = source.taken()
    line.stage.begin_again()
    line.stage.add("shop.orders", ORDERS, first)
    killed = line.stage.plan("killed", {"shop.orders": ["id"]})
    merge(line.job(killed, target=None))
    job = line.job(killed)
    apply_filter(job)
    (table,) = job.tables()
    d, t = shard.split(".")
    paths = job.filtered_files(table)
    pieces = shard_pieces(job, job.destinations([table])[0], FilteredRows(paths, shards=[2 * int(d) + int(t)]))
    done, error = together(write_pieces(job, pieces))
    assert error is None
    assert [result.counts.written for result in done] == [1]

    source.update(3, 3, code="new")
    changes = [*first, *source.taken()]
    ended = line.stage.root / counts_path(killed.filtered_folder("shards"))
    ended.rename(ended.with_suffix(".away"))
    with pytest.raises(DataAtRisk) as caught:
        line.run(*changes)
    assert caught.value.code == "target.absent_values"
    ended.with_suffix(".away").rename(ended)
    plan = line.run(*changes, quality=True)
    assert dict(sorted(line.rows().items())) == source.by_shard()
    line.adds_up(plan)


def test_no_row_is_set_aside_by_a_rule_of_after_the_plan_if_later_changes_depend_on_it(line: TargetLine) -> None:
    """The error of the write task names the rule, and Airflow repeats that task by itself."""
    source = grown(line, 2)
    source.update(1, 1, code="x" * 21)
    with pytest.raises(DataAtRisk) as caught:
        line.run(*source.taken())
    assert caught.value.code == "target.row_error"
    before = line.rows()
    line.change_rule(on_row_error="quarantine")
    with pytest.raises(Refused) as refused:
        write(line.job(line.runs[-1]))
    assert refused.value.code == "config.table_rule"
    assert line.rows() == before


def test_a_longer_run_over_changes_that_were_applied_in_part_finds_each_row_where_it_stands_by_now(
    line: TargetLine,
) -> None:
    source = grown(line, 4)
    source.update(1, 11)
    source.update(2, 2, customer=7)
    first = source.taken()
    line.run(*first)
    source.update(11, 12, customer=0)
    source.update(2, 22)
    line.run(*first, *source.taken())
    assert dict(sorted(line.rows().items())) == source.by_shard()


def test_a_delete_that_does_not_say_its_shard_lets_no_older_insert_revive_the_row_in_any(line: TargetLine) -> None:
    late = Change("d", {"id": 50}, 40, absent=["customer", "code", "at"])
    line.run(late)
    for customer in range(4):
        line.run(order("c", 50, customer, "old", 30 + customer))
    assert line.rows() == {}


@pytest.mark.parametrize("to", [pytest.param(1, marks=pytest.mark.matrix), 2])
def test_an_update_of_a_row_that_no_shard_has_is_data_at_risk(line: TargetLine, to: int) -> None:
    source = Minimal({1: (1, "c1")})
    source.update(1, to, code="x")
    changes = source.taken()
    with pytest.raises(DataAtRisk, match=f"the key {to}") as caught:
        line.run(*changes)
    assert caught.value.code == "target.absent_values"
    assert line.rows() == {}
    line.query(f"INSERT INTO {line.prefix}_0.orders_1 (id, customer, code) VALUES (1, 1, 'c1')")
    line.run(*changes)
    assert line.rows() == {"0.1": [(to, 1, "x")]}


def test_a_truncate_removes_what_is_older_in_every_shard_and_no_older_change_comes_back(line: TargetLine) -> None:
    line.change_rule(on_truncate="apply")
    line.query(f"INSERT INTO {line.prefix}_0.orders_0 (id, customer) VALUES (80, 80)")  # Lockstep never wrote it
    first = line.run(*FIRST)
    newer = line.run(order("u", 7, 7, "newer", 40, code="c7"))
    plan = line.run(
        order("c", 20, 20, "gone", 20), Change("t", {}, 21), order("c", 30, 30, "stays", 22), Change("t", {}, 15),
        quality=True,
    )  # fmt: skip
    left = {"1.0": [(30, 30, "stays")], "1.1": [(7, 7, "newer")]}
    assert line.rows() == left
    line.adds_up(plan)
    _, _, written = line.counts(plan)
    assert sum(counts.written for counts in written) == 2
    late = line.run(order("u", 3, 3, "late", 19, code="c3"), Change("t", {}, 14))
    for again in (first, plan, newer, late):
        line.again(again)
        line.adds_up(again)
        assert line.rows() == left
    line.run(order("c", 3, 3, "anew", 50))
    assert line.rows() == left | {"1.1": [(3, 3, "anew"), *left["1.1"]]}


def test_rows_of_two_source_tables_under_one_key_stop_the_run_and_none_is_lost(line: TargetLine) -> None:
    fed_by_two(line)
    line.run_of({"shop.p1": [order("c", 1, 1, "a", 10)], "shop.p2": [order("c", 2, 1, "b", 11)]}, quality=True)
    before = line.everything()
    for changes in (
        {"shop.p2": [order("c", 1, 1, "b", 20)]},  # p1 has that key
        {"shop.p2": [order("d", 1, 1, "b", 20)]},  # one that came and went between two runs
        {"shop.p1": [order("c", 9, 1, "x", 20)], "shop.p2": [order("c", 9, 1, "y", 21)]},  # both in one run
    ):
        with pytest.raises(DataAtRisk, match="Two source tables") as caught:
            line.run_of(changes)
        assert caught.value.code == "target.shared_key"
        assert line.everything() == before


def test_a_row_that_moves_from_one_source_table_to_another_stays(line: TargetLine) -> None:
    fed_by_two(line)
    line.run_of({"shop.p1": [order("c", 1, 1, "a", 10), order("c", 2, 1, "b", 11)]})
    moved = line.run_of(
        {  # copied to the archive first, and deleted first
            "shop.p2": [order("c", 1, 1, "a", 20), order("c", 2, 1, "b", 23)],
            "shop.p1": [order("d", 1, 1, "a", 21), order("d", 2, 1, "b", 22)],
        },
        quality=True,
    )
    line.adds_up(moved)
    assert line.rows() == {"0.1": [(1, 1, "a"), (2, 1, "b")]}
    before = line.everything()
    line.again(moved)
    assert line.everything() == before
    line.run_of({"shop.p2": [order("u", 1, 1, "z", 30, code="a"), order("d", 2, 1, "b", 31)]})
    assert line.rows() == {"0.1": [(1, 1, "z")]}


def test_keys_that_mean_the_same_row_in_two_source_tables_may_be_shared(line: TargetLine) -> None:
    fed_by_two(line, "newest")
    line.run_of({"shop.p1": [order("c", 1, 1, "a", 10)], "shop.p2": [order("c", 1, 1, "b", 11)]}, quality=True)
    assert line.rows() == {"0.1": [(1, 1, "b")]}
    line.run_of({"shop.p1": [order("d", 1, 1, "a", 12)]})
    assert line.rows() == {}


@pytest.mark.parametrize("store", ["row", pytest.param("table", marks=pytest.mark.matrix)])
def test_keys_that_the_target_holds_for_equal_are_one_row_in_every_job(line: TargetLine, store: str) -> None:
    """As shop.orders, with a text key in a case-insensitive collation and the shard key outside of it."""
    line.change_rule(guard={"store": store})
    collation = "utf8mb4_uca1400_ai_ci"
    for place in line.places:
        line.query(f"DROP TABLE {place}")
        line.query(f"CREATE TABLE {place} (k VARCHAR(9) COLLATE {collation} PRIMARY KEY, customer INT NOT NULL)")
    column = Column("k", parse_column_type("varchar(9)", charset="utf8mb4", collation=collation), False, 1)
    line.schema = TableSchema("shop", "orders", (column, Column("customer", parse_column_type("int"), False)))

    def run(*changes: Change) -> RunPlan:
        plan = line.run(*changes, quality=True)
        line.adds_up(plan)
        return plan

    def k(op: str, key: str, customer: int, seq: int, /, **before: Any) -> Change:
        row = {"k": key, "customer": customer}
        return Change(op, row, seq, before={**row, **before} if op == "u" else None)

    def rows() -> list[tuple[Any, ...]]:
        return sorted(row for place in line.places for row in line.query(f"SELECT k, customer FROM {place}"))

    run(k("c", "a", 1, 10), k("c", "x", 1, 11), k("c", "m", 2, 12))
    renamed = run(
        k("u", "A", 1, 20, k="a"), k("d", "x", 1, 21), k("c", "X", 1, 22), k("u", "M", 1, 23, k="m", customer=2)
    )
    assert rows() == [("A", 1), ("M", 1), ("X", 1)]
    run(k("u", "A", 2, 30, customer=1), k("u", "X", 3, 31, customer=1), k("u", "x", 1, 32, k="X", customer=3))
    now = rows()
    assert now == [("A", 2), ("M", 1), ("x", 1)]
    for plan in (renamed, *line.runs, renamed):
        line.again(plan)
        assert rows() == now
