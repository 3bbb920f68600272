"""Merge against a plain fold in Python: the last change of each key, key changes split, everything counted."""

from __future__ import annotations

import datetime as dt
import json
from pathlib import Path
from typing import Any

import pyarrow.dataset as ds
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyspark.sql import SparkSession

from cdc_core.config import Pipeline, parse
from cdc_core.errors import DataAtRisk, Refused
from cdc_core.model.run import MergeCounts, counts_from_bytes, counts_path
from cdc_core.stage.objects import open_store
from spark_jobs.job import Job
from spark_jobs.merge import merge
from tests.spark.staged_changes import Change, Stage, require_merged_columns, table_schema

# PySpark leaves the sockets of `collect` to the garbage collector.
pytestmark = [pytest.mark.spark, pytest.mark.filterwarnings("ignore::ResourceWarning")]
ITEMS = table_schema("shop.items", {"a": "int", "b": "varchar(10)", "n": "int"}, ["a", "b"])


def pipeline(root: Path, routes: str = "") -> Pipeline:
    return parse(
        f"""
pipeline: shop
{routes}
sources: [{{name: one, connection: "env:SRC", server_id: 9}}]
tables: {{include: ['shop\\..*']}}
stage: {{uri: "file://{root}"}}
meta: {{url: "sqlite:///{root}/meta.db"}}
targets: [{{name: shards, connections: ["env:TGT"], tables: {{"*": {{database: "db"}}}}}}]
""",
        where="test",
    )


def merged(
    spark: SparkSession, stage: Stage, key: list[str], *, on_truncate: str = "stop", routes: str = ""
) -> tuple[list[dict], MergeCounts]:
    plan = stage.plan("r", dict.fromkeys(stage.files, key), on_truncate=on_truncate)
    job = Job(spark, pipeline(stage.root, routes), plan, open_store(stage.uri), set_name="0")
    merge(job)
    counts = counts_from_bytes(job.store.get(counts_path(plan.merged_folder("0"))), MergeCounts)
    table = next(iter(stage.files))
    files = ds.dataset(stage.root / job.merged(table), format="parquet")
    require_merged_columns(job, job.merge_set.tables[0])
    rows = files.to_table().to_pylist()
    return rows, next(one for one in counts if one.table == table)


HISTORY = st.lists(
    st.tuples(
        st.sampled_from("cudrk"),  # k: an update that changes the key
        st.integers(0, 3),
        st.sampled_from(["x", "y"]),
        st.integers(0, 9),
        st.sampled_from(["one", "two"]),
        st.booleans(),  # a new transaction begins
    ),
    min_size=1,
    max_size=80,
)


@given(history=HISTORY, files=st.integers(1, 4), clock=st.randoms(use_true_random=False))
@settings(max_examples=6, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_merge_is_the_fold_of_the_changes(
    spark: SparkSession, tmp_path_factory: pytest.TempPathFactory, history: list[Any], files: int, clock: Any
) -> None:
    stage = Stage(tmp_path_factory.mktemp("stage"))
    changes: list[Change] = []
    seq = ordinal = 0
    for op, a, b, n, source, begins in history:
        seq, ordinal = (seq + 1, 0) if begins else (seq, ordinal + 1)
        row, before = {"a": a, "b": b, "n": n}, None
        if op == "k":
            op, before = "u", {"a": (a + 1) % 4, "b": b, "n": n - 1}
        elif op == "u":
            before = {"a": a, "b": b, "n": n - 1}
        changes.append(Change(op, row, seq, ordinal, before, source, ts_us=1000 + seq // 2))
    fold: dict[tuple[int, str], dict[str, tuple[tuple[int, int], str, Change]]] = {}
    split = 0
    for change in changes:
        sides = [(change.row, "d" if change.op == "d" else "u")]
        if change.before and change.before["a"] != change.row["a"]:
            sides.append((change.before, "d"))
            split += 1
        for row, op in sides:
            fold.setdefault((row["a"], row["b"]), {})[change.source] = ((change.seq, change.ordinal), op, change)
    expected = {}
    for key, by_source in fold.items():
        order, op, change = max(by_source.values(), key=lambda one: (one[2].ts_us, one[2].source))
        n = change.row["n"] if (change.row["a"], change.row["b"]) == key else change.before["n"]
        expected[key] = (op, n, *order, change.source)

    clock.shuffle(changes)
    for number in range(files):
        part = changes[number::files]
        if part:
            # The source in a file's batch is what tells the merge that there is more than one.
            for source in ("one", "two"):
                mine = [change for change in part if change.source == source]
                if mine:
                    stage.add("shop.items", ITEMS, mine)
    rows, counts = merged(spark, stage, ["a", "b"])
    found = {
        (row["a"], row["b"]): (row["_cdc_op"], row["n"], row["_cdc_seq"], row["_cdc_row"], row["_cdc_source"])
        for row in rows
    }
    assert found == expected
    assert len(rows) == len(expected) == counts.winners
    assert (counts.rows, counts.key_changes) == (len(changes), split)
    assert counts.rows + counts.key_changes == counts.winners + counts.superseded


def test_an_added_column_is_null_before_and_a_wider_type_keeps_every_value(spark: SparkSession, tmp_path: Path) -> None:
    stage = Stage(tmp_path)
    old = table_schema("shop.items", {"id": "int", "n": "int unsigned", "gone": "int"}, ["id"])
    new = table_schema("shop.items", {"id": "bigint", "n": "bigint unsigned", "more": "varchar(5)"}, ["id"])
    stage.add("shop.items", old, [Change("c", {"id": 1, "n": 2**32 - 1, "gone": 7}, 10)])
    stage.add("shop.items", new, [Change("c", {"id": 2**40, "n": 2**64 - 1, "more": "x"}, 20)])
    rows, _ = merged(spark, stage, ["id"])
    found = sorted((row["id"], int(row["n"]), row["more"]) for row in rows)
    assert found == [(1, 2**32 - 1, None), (2**40, 2**64 - 1, "x")]
    assert "gone" not in rows[0]


def test_a_type_that_cannot_be_widened_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    stage = Stage(tmp_path)
    for seq, kind, value in ((10, "int", 1), (20, "varchar(9)", "x")):
        schema = table_schema("shop.items", {"id": "int", "n": kind}, ["id"])
        stage.add("shop.items", schema, [Change("c", {"id": 1, "n": value}, seq)])
    with pytest.raises(Refused) as caught:
        merged(spark, stage, ["id"])
    assert caught.value.code == "stage.schema_conflict"


SPLIT = "routes: [{match: 'shop\\.items_\\d+', to: shop.items}]"


@pytest.mark.parametrize(("on_truncate", "routes"), [("stop", ""), ("apply", SPLIT)])
def test_a_truncate_is_refused_and_leaves_no_counts(
    spark: SparkSession, tmp_path: Path, on_truncate: str, routes: str
) -> None:
    stage = Stage(tmp_path)
    stage.add("shop.items", ITEMS, [Change("c", {"a": 1, "b": "x", "n": 1}, 10), Change("t", {}, 20)])
    with pytest.raises(Refused) as caught:
        merged(spark, stage, ["a", "b"], on_truncate=on_truncate, routes=routes)
    assert caught.value.code == "spark.truncate"
    assert list(tmp_path.rglob("counts.json")) == []


@given(
    history=st.lists(st.tuples(st.sampled_from("cudt"), st.integers(0, 3), st.booleans()), min_size=1, max_size=30),
    files=st.integers(1, 3),
    on_truncate=st.sampled_from(["apply", "ignore"]),
)
@settings(max_examples=5, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_truncate_undoes_what_was_before_it_or_is_left_out(
    spark: SparkSession, tmp_path_factory: pytest.TempPathFactory, history: list[Any], files: int, on_truncate: str
) -> None:
    stage, changes = Stage(tmp_path_factory.mktemp("stage")), []
    fold: dict[tuple[int | None, str | None], tuple[str, int, int]] = {}
    seq = ordinal = 0
    for op, a, begins in [*history, ("t", 0, True)]:
        seq, ordinal = (seq + 1, 0) if begins else (seq, ordinal + 1)
        row = {} if op == "t" else {"a": a, "b": "x", "n": seq}
        changes.append(Change(op, row, seq, ordinal, {**row, "n": -1} if op == "u" else None))
        if op == "t" and on_truncate == "apply":
            fold = {(None, None): ("t", seq, ordinal)}
        elif op != "t":
            fold[a, "x"] = ("d" if op == "d" else "u", seq, ordinal)
    for number in range(files):
        if changes[number::files]:
            stage.add("shop.items", ITEMS, changes[number::files])
    rows, counts = merged(spark, stage, ["a", "b"], on_truncate=on_truncate)
    assert {(row["a"], row["b"]): (row["_cdc_op"], row["_cdc_seq"], row["_cdc_row"]) for row in rows} == fold
    assert (counts.rows, counts.winners, counts.superseded) == (len(changes), len(fold), len(changes) - len(fold))


def test_a_file_with_other_rows_than_its_manifest_says_is_data_at_risk(spark: SparkSession, tmp_path: Path) -> None:
    stage = Stage(tmp_path)
    changes = [Change("c", {"a": a, "b": "x", "n": 1}, 10, a) for a in range(5)]
    stage.add("shop.items", ITEMS, changes)
    place = tmp_path / stage.files["shop.items"][0].path
    whole = place.read_bytes()
    short = Stage(tmp_path)
    short.add("shop.items", ITEMS, changes[:4])
    assert place.read_bytes() != whole
    with pytest.raises(DataAtRisk) as caught:
        merged(spark, stage, ["a", "b"])
    assert caught.value.code == "spark.rows_differ"


def test_times_and_literals_go_through_unchanged(spark: SparkSession, tmp_path: Path) -> None:
    import datetime as dt

    schema = table_schema("shop.items", {"d": "date", "at": "datetime(6)", "ts": "timestamp(6)"}, ["d"])
    at = dt.datetime(1000, 1, 1, 0, 0, 0, 1)
    ts = dt.datetime(2026, 3, 29, 1, 30, tzinfo=dt.UTC)
    stage = Stage(tmp_path)
    stage.add(
        "shop.items",
        schema,
        [
            Change("c", {"d": dt.date(1, 1, 1), "at": at, "ts": ts}, 10),
            Change("c", {"d": None}, 11, literal={"d": "0000-00-00"}),
            Change("c", {"d": None}, 12, literal={"d": "2024-02-31", "at": "0000-00-00 00:00:00"}),
            Change("u", {"d": None}, 13, literal={"d": "2024-02-30", "_before.d": "0000-00-00"}, before={"d": None}),
        ],
    )
    rows, counts = merged(spark, stage, ["d"])
    found = {dict(row["_cdc_literal"] or {}).get("d") or row["d"]: row for row in rows}
    assert counts.key_changes == 1
    assert {key: row["_cdc_op"] for key, row in found.items()} == {
        dt.date(1, 1, 1): "u",
        "0000-00-00": "d",
        "2024-02-31": "u",
        "2024-02-30": "u",
    }
    assert (found[dt.date(1, 1, 1)]["at"], found[dt.date(1, 1, 1)]["ts"]) == (at, ts)
    assert dict(found["2024-02-31"]["_cdc_literal"])["at"] == "0000-00-00 00:00:00"
    assert dict(found["2024-02-30"]["_cdc_literal"]) == {"d": "2024-02-30"}


WIDE = table_schema("shop.wide", {"id": "int", "x": "int", "y": "varchar(9)", "d": "date"}, ["id"])
PARTIAL = st.lists(
    st.tuples(
        st.sampled_from("cuuudmm"),  # m: an update that moves the row to another key
        st.integers(0, 4),
        st.integers(0, 4),
        st.sets(st.sampled_from("xyd"), max_size=2),
        st.booleans(),
    ),
    min_size=1,
    max_size=60,
)


@given(history=PARTIAL, files=st.integers(1, 3), clock=st.randoms(use_true_random=False))
@settings(max_examples=8, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_absent_values_are_the_rows_older_ones_through_key_changes_and_what_none_has_stays_absent(
    spark: SparkSession, tmp_path_factory: pytest.TempPathFactory, history: list[Any], files: int, clock: Any
) -> None:
    """A plain fold: an update keeps what it lacks; ("?", key) is a value that only the target has, under that key."""
    rows_now: dict[int, dict[str, Any]] = {key: dict.fromkeys("xyd", ("?", key)) for key in range(3)}
    touched: set[int] = set()
    changes: list[Change] = []
    for seq, (op, key, other, some, odd) in enumerate(history):
        row = {"x": None if odd else seq, "y": None if odd else f"v{seq}", "d": None if odd else dt.date(2026, 1, 1)}
        literal = {"d": f"2026-02-{seq + 30}"} if odd else None
        shown = row | (literal or {})
        if op == "c" and key not in rows_now:
            changes.append(Change("c", {"id": key, **row}, seq, literal=literal))
            rows_now[key] = shown
        elif key in rows_now and (op == "u" or (op == "m" and other not in rows_now)):
            to = key if op == "u" else other
            images = {"id": to, **{name: row[name] for name in some}}
            change = Change(
                "u", images, seq, before={"id": key}, literal=literal if "d" in some else None,
                absent=[*sorted(set("xyd") - some), "_before.x", "_before.y", "_before.d"],
            )  # fmt: skip
            changes.append(change)
            rows_now[to] = rows_now.pop(key) | {name: shown[name] for name in some}
            touched.add(to)
        elif op == "d" and key in rows_now:
            changes.append(Change("d", {"id": key}, seq, absent=["x", "y", "d"]))
            del rows_now[key]
        else:
            continue
        touched.add(key)
    if not changes:
        return
    stage = Stage(tmp_path_factory.mktemp("stage"))
    clock.shuffle(changes)
    for number in range(files):
        if changes[number::files]:
            stage.add("shop.wide", WIDE, changes[number::files])
    rows, counts = merged(spark, stage, ["id"])
    found = {}
    for row in rows:
        if row["_cdc_op"] == "d":
            found[row["id"]] = None
            continue
        values = {name: dict(row["_cdc_literal"] or {}).get(name, row[name]) for name in "xyd"}
        absent = json.loads(row["_cdc_absent"] or "[]")
        assert all(values[name] is None for name in absent)
        links = row.get("_cdc_key_chain") or [{"id": row["id"]}]
        found[row["id"]] = values | dict.fromkeys(absent, ("?", links[-1]["id"]))
    assert found == {key: rows_now.get(key) for key in touched}
    moved = sum(change.before is not None and change.before["id"] != change.row["id"] for change in changes)
    assert (counts.rows, counts.key_changes) == (len(changes), moved)
    assert counts.rows + moved == counts.winners + counts.superseded


def test_an_absent_value_is_filled_from_the_other_source_that_wrote_the_key(
    spark: SparkSession, tmp_path: Path
) -> None:
    stage = Stage(tmp_path)
    stage.add("shop.wide", WIDE, [Change("c", {"id": 1, "x": 1, "y": "a"}, 1, source="one", ts_us=10)])
    stage.add(
        "shop.wide", WIDE,
        [Change("u", {"id": 1, "x": 2}, 1, before={"id": 1}, source="two", ts_us=20, absent=["y", "d"])],
    )  # fmt: skip
    rows, _ = merged(spark, stage, ["id"])
    assert [(row["x"], row["y"], row["_cdc_absent"]) for row in rows] == [(2, "a", None)]


@pytest.mark.parametrize(("absent", "before"), [(["id"], {"id": 2}), (["_before.id"], {"id": None})])
def test_changes_that_do_not_say_their_key_stop(
    spark: SparkSession, tmp_path: Path, absent: list[str], before: dict[str, Any]
) -> None:
    stage = Stage(tmp_path)
    stage.add("shop.wide", WIDE, [Change("u", {"id": 1, "x": 2}, 1, before=before, absent=absent)])
    with pytest.raises(DataAtRisk) as stopped:
        merged(spark, stage, ["id"])
    assert stopped.value.code == "spark.absent_values"
