"""A table is merged in memory or by Spark (small_tables.py): both ways write the same rows, columns and counts,
or stop with the same error, whatever the changes."""

from __future__ import annotations

import datetime as dt
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow.dataset as ds
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyspark.sql import SparkSession

from cdc_core.errors import LockstepError
from cdc_core.model.merged import FORMER_SHARD_KEYS
from cdc_core.model.run import MergeCounts, counts_from_bytes, counts_path
from cdc_core.model.schema import TableSchema
from cdc_core.stage.stores import open_store
from spark_jobs import small_tables
from spark_jobs.arrow_changes import expected_bytes
from spark_jobs.job import Job
from spark_jobs.merge import merge
from tests.history_model import BEFORE, Change
from tests.spark.staged_changes import Stage, merge_by, require_merged_columns, table_schema
from tests.spark.test_merge import pipeline

# PySpark leaves the sockets of `collect` to the garbage collector.
pytestmark = [pytest.mark.spark, pytest.mark.filterwarnings("ignore::ResourceWarning")]

KEYS: dict[str, tuple[str, Sequence[Any]]] = {
    "number": ("int", (1, 2, 3)),
    "wide": ("bigint unsigned", (0, 2**64 - 1, 2**63)),
    "text": ("varchar(9)", ("", "a", "A", "a ", "ä", "a\u0308")),
    "bytes": ("varbinary(9)", (b"", b"\0", b"a", b"a ")),
    "date": ("date", (dt.date(1, 1, 1), dt.date(2026, 1, 1), None)),
    "time": ("datetime(6)", (dt.datetime(1000, 1, 1), dt.datetime(1000, 1, 1, 0, 0, 0, 1), None)),
    "exact": ("decimal(9,3)", (Decimal("1.500"), Decimal("-0.001"), Decimal("1.501"))),
    "label": (r"enum('a','')", ("a", "")),
    "no text": ("varchar(9)", ("a", "0xd2", None)),
    "float": ("double", (0.0, -0.0, 1.5)),
}
ODD = {"date": ("0000-00-00", "2024-02-31"), "time": ("0000-00-00 00:00:00.000000",), "label": ("",),
       "no text": ("0xd2", "0xd3")}  # fmt: skip
"""Texts of key values that the typed column does not hold; '' is the error value of an ENUM, 0xd2 a byte that is not
text."""
ROW = {"x": "int", "y": "varchar(9)", "d": "date", "f": "double", "v": "varchar(99)"}
X = st.one_of(st.none(), st.integers(0, 3))
TEXT = st.one_of(st.none(), st.sampled_from(("", "a", '\u00e4\n"')))
DATE = st.sampled_from((None, dt.date(2026, 1, 1), "0000-00-00", "2026-02-31"))
FLOAT = st.sampled_from((None, 0.0, -0.0, 1e300))


@st.composite
def changes(draw: st.DrawFn, kinds: Sequence[str], partial: bool) -> list[Change]:
    """Any changes, also such as no server logs: every rule must have one answer for both ways."""

    def image() -> tuple[dict[str, Any], dict[str, str]]:
        row: dict[str, Any] = {"x": draw(X), "y": draw(TEXT), "f": draw(FLOAT), "v": draw(TEXT)}
        literal = {}
        for name, value in {"d": draw(DATE)}.items():
            row[name] = None if isinstance(value, str) else value
            if isinstance(value, str):
                literal[name] = value
        for at, kind in enumerate(kinds):
            value = row[f"k{at}"] = draw(st.sampled_from(KEYS[kind][1]))
            if kind in ODD and value in (None, ""):
                odd = draw(st.sampled_from(ODD[kind])) if value is None or draw(st.booleans()) else None
                literal |= {} if odd is None else {f"k{at}": odd}
        return row, literal

    names = [*ROW]
    found = []
    for number in range(draw(st.integers(1, 14))):
        op = draw(st.sampled_from("ccruuuudd"))
        row, literal = image()
        before, absent = None, []
        if op == "u":
            before, old = image()
            if draw(st.booleans()):  # its key stays
                for at in range(len(kinds)):
                    before[f"k{at}"] = row[f"k{at}"]
                    old.pop(f"k{at}", None)
                    old |= {f"k{at}": literal[f"k{at}"]} if f"k{at}" in literal else {}
            literal |= {BEFORE + name: text for name, text in old.items()}
        if partial and op in "ud":
            gone = draw(st.sets(st.sampled_from(names), max_size=5))
            absent = [name for name in names if name in gone]
            if op == "u":
                gone = draw(st.sets(st.sampled_from(names), max_size=5))
                absent += [BEFORE + name for name in names if name in gone]
            for name in absent:
                image_ = before if name.startswith(BEFORE) else row
                assert image_ is not None
                image_[name.removeprefix(BEFORE)] = None
                literal.pop(name, None)
        found.append(
            Change(op, row, 10 + number // 3, number % 3, before, ts_us=1000 + draw(st.integers(0, 3)),
                   literal=literal or None, absent=absent)
        )  # fmt: skip
    return found


def outcome(job: Job, way: str, monkeypatch: pytest.MonkeyPatch) -> Any:
    """What a way of merging leaves: rows, columns and counts, or an error."""
    with monkeypatch.context() as patch:
        merge_by(way, patch)
        if way != "spark":
            patch.setattr("spark_jobs.merge.merge_table", None)
            patch.setattr(small_tables, "PART_ROWS", 2)
        try:
            merge(job)
        except LockstepError as error:
            return error.code, str(error)
    table = job.merge_set.tables[0]
    schema = require_merged_columns(job, table)
    (counts,) = counts_from_bytes(job.store.get(counts_path(job.plan.merged_folder("0"))), MergeCounts)
    files = ds.dataset(job.store.location(job.merged(table.table)).removeprefix("file://"), format="parquet")
    rows = []
    for row in files.to_table().to_pylist():
        for name, values in (row.get(FORMER_SHARD_KEYS) or {}).items():
            row[FORMER_SHARD_KEYS][name] = sorted(values, key=repr)
        for name in [name for name in ("_cdc_literal",) if row[name] is not None]:
            row[name] = sorted(row[name])
        for link in row.get("_cdc_key_chain") or ():
            link["_cdc_literal"] = link["_cdc_literal"] and sorted(link["_cdc_literal"])
        rows.append(repr(sorted(row.items())))
    return sorted(schema.names), Counter(rows), counts


def require_twins(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    assert outcome(job, "in memory", monkeypatch) == outcome(job, "spark", monkeypatch)


MOVING = "database: 'db{d}', sharding: {key: x, databases: 2}"
"""The shard key is not in the key: a row may move to another shard."""
SHARED = "routes: [{match: 'shop\\.(items|other)', to: shop.items}]"
"""Two tables feed one."""


@pytest.mark.parametrize("shape", ["plain", "partial", "truncates", "moving", "sources", "shared"])
@given(data=st.data())
@settings(max_examples=3, deadline=None, suppress_health_check=list(HealthCheck))
def test_both_ways_merge_any_changes_alike(
    spark: SparkSession,
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
    shape: str,
    data: st.DataObject,
) -> None:
    exact = [kind for kind in KEYS if kind != "float"]
    kinds = data.draw(st.lists(st.sampled_from(exact), min_size=1, max_size=2))
    key = [f"k{at}" for at in range(len(kinds))]
    columns = {**{name: KEYS[kind][0] for name, kind in zip(key, kinds, strict=True)}, **ROW}
    stage = Stage(tmp_path_factory.mktemp("stage"))
    schema = table_schema("shop.items", columns, key)
    drawn = data.draw(changes(kinds, shape != "plain"))
    if shape == "truncates":
        at = data.draw(st.lists(st.integers(10, 15), max_size=3, unique=True))
        drawn += [Change("t", {}, seq, 9, ts_us=1001) for seq in at]
    if data.draw(st.booleans()):
        begins = data.draw(st.integers(1, 15))
        stage.add("shop.items", schema, [Change("t", {}, begins, 11, ts_us=1001)], copied=True)
        copied = [_copied(one, begins, 12 + number) for number, one in enumerate(drawn) if one.op == "c"]
        if copied:
            stage.add("shop.items", schema, copied, copied=True)
    drawn = data.draw(st.permutations(drawn))
    other = table_schema("shop.other", columns, key) if shape == "shared" else schema
    for number, part in enumerate((drawn[::2], drawn[1::2])):
        if number and shape == "sources":
            part = [replace(one, source="two") for one in part]
        if part:
            stage.add("shop.items", other if number else schema, part)
    on_truncate = data.draw(st.sampled_from(("apply", "apply", "ignore", "stop")))
    plan = stage.plan("r", {"shop.items": key}, on_truncate=on_truncate)
    made = pipeline(
        stage.root, routes=SHARED if shape == "shared" else "", rule=MOVING if shape == "moving" else "database: db"
    )
    require_twins(Job(lambda: spark, made, plan, open_store(stage.uri), set_name="0"), monkeypatch)


def test_a_row_has_no_value_of_the_one_that_another_source_table_had_under_its_key(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was created in the other table before that row was changed a last time and deleted, then got another key."""
    stage = Stage(tmp_path)
    old, new = (table_schema(f"shop.{name}", {"id": "int", "y": "varchar(9)"}, ["id"]) for name in ("items", "other"))
    keyed = {"id": 1, "y": None}
    leaving = Change("u", keyed | {"y": "old"}, 10, 1, keyed, absent=[f"{BEFORE}y"])
    moving = Change("u", {"id": 2, "y": None}, 11, 0, keyed, absent=["y", f"{BEFORE}y"])
    stage.add("shop.items", old, [leaving, Change("d", keyed, 10, 2, absent=["y"])])
    stage.add("shop.items", new, [Change("c", keyed | {"y": "moved"}, 10, 0), moving])
    made = pipeline(stage.root, routes=SHARED, rule="database: db")
    plan = stage.plan("r", {"shop.items": ["id"]})
    job = Job(lambda: spark, made, plan, open_store(stage.uri), set_name="0")
    require_twins(job, monkeypatch)
    files = ds.dataset(job.store.location(job.merged("shop.items")).removeprefix("file://"), format="parquet")
    rows = files.to_table(["id", "y", "_cdc_op"]).to_pylist()
    assert sorted(tuple(row.values()) for row in rows) == [(1, "moved", "d"), (2, "moved", "u")]


def _copied(change: Change, seq: int, ordinal: int) -> Change:
    return replace(change, op="r", seq=seq, ordinal=ordinal)


def counted(job: Job, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The tables that Spark merges one by one."""
    from spark_jobs import merge as module

    seen: list[str] = []
    own = module.merge_table

    def noted(job: Job, table: Any) -> MergeCounts:
        seen.append(table.table)
        return own(job, table)

    monkeypatch.setattr(module, "merge_table", noted)
    merge(job)
    return seen


@pytest.mark.parametrize(("driver_mib", "large"), [(0, ["shop.large"]), (64, [])])
def test_tables_whose_rules_arrow_does_not_have_exactly_go_to_spark(
    driver_mib: int, large: list[str], spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage = Stage(tmp_path)

    def add(name: str, columns: dict[str, str], *rows: dict[str, Any]) -> TableSchema:
        schema = table_schema(f"shop.{name}", columns, ["id"])
        stage.add(f"shop.{name}", schema, [Change("c", row, 10, at) for at, row in enumerate(rows)])
        return schema

    add("small", {"id": "int"}, {"id": 1})
    add("float", {"id": "double"}, {"id": 0.0}, {"id": -0.0})
    add("nokey", {"id": "int"}, {"id": 1}, {"id": 1})
    add("spelled", {"id": "int", "n": "int"}, {"id": 1})
    add("spelled", {"id": "int", "N": "int"}, {"id": 2})
    add("large", {"id": "int"}, *({"id": id} for id in range(small_tables.SMALL_ROWS + 1)))
    add("long", {"id": "int", "y": "longtext"}, *({"id": id, "y": "x" * 100_000} for id in range(1_000)))
    keys = {table: [] if table == "shop.nokey" else ["id"] for table in stage.files}
    plan = stage.plan("r", keys)
    made = pipeline(tmp_path)
    made = made.model_copy(update={"spark": made.spark.model_copy(update={"driver_mib": driver_mib})})
    job = Job(lambda: spark, made, plan, open_store(stage.uri), set_name="0")
    # The estimate of `long` is small, because its file has the long value once; what the rows take is found in time.
    assert job.small is (driver_mib > 0)
    by_spark = ["shop.float", "shop.long", "shop.nokey", "shop.spelled", *large]
    assert sorted(counted(job, monkeypatch)) == sorted(by_spark)
    rows = {table.table: sum(job.rows_of(job.merged_files(table))) for table in job.merge_set.tables}
    assert rows.keys() == stage.files.keys()
    assert (rows["shop.float"], rows["shop.nokey"]) == (1, 2)


@pytest.mark.parametrize(("spare", "jobs"), [(0, 1), (1, 0)])
def test_many_small_tables_are_at_most_one_spark_job_and_what_a_killed_attempt_left_is_gone(
    spare: int, jobs: int, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage = Stage(tmp_path)
    for number in range(20):
        schema = table_schema(f"shop.t{number}", {"id": "int"}, ["id"])
        stage.add(f"shop.t{number}", schema, [Change("c", {"id": id}, 10, id) for id in range(3)])
    plan = stage.plan("r", {table: ["id"] for table in stage.files})
    job = Job(lambda: spark, pipeline(tmp_path), plan, open_store(stage.uri), set_name="0")
    needed = sum(expected_bytes(table, job.schemas(table)) for table in job.tables())
    monkeypatch.setattr(Job, "driver_bytes", property(lambda _: needed + spare))
    left = [f"{job.merged('shop.t3')}/{name}" for name in ("part-0.parquet", "_temporary/0/part-1.parquet")]
    for path in left:
        job.store.put(path, b"half")
    context = spark.sparkContext
    context.setJobGroup(str(tmp_path), "merge")
    try:
        merge(job)
        assert len(context.statusTracker().getJobIdsForGroup(str(tmp_path))) == jobs
    finally:
        context.setJobGroup("", "")
    assert not any(job.store.stat(path) for path in left)
    assert {job.rows_in(job.merged(table)) for table in stage.files} == {3}
    assert {len(job.files_in(job.merged(table))) for table in stage.files} == {1}
