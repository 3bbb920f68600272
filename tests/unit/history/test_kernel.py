"""The kernel of histories against the model, whatever the order of changes, their parts, and how often it reduces."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cdc_core.errors import Refused
from cdc_core.history import history as module
from cdc_core.history.codes import codes
from cdc_core.history.events import INHERITS, events
from cdc_core.history.history import Counts, History
from cdc_core.history.keyless_rows import COPIES, each_copy
from cdc_core.history.parts import Parts, hashes_of, key_links, split
from cdc_core.history.rule import TableRule
from cdc_core.history.truncates import Counting, TruncateRule
from cdc_core.model.schema import TableSchema
from cdc_core.stage.open_part import key_changes
from tests import history_model
from tests.history_model import BEFORE, COLUMNS, KEY, NAMES, TRUNCATE_KEY, Change, Unknown, histories, winners
from tests.lab.refusals import raises
from tests.spark.staged_changes import staged_table, table_schema

ITEMS = table_schema("shop.items", COLUMNS, KEY)
ROW = pa.schema([(column.name, column.type.arrow) for column in ITEMS.columns])
CASES = {
    "two sources": (histories(sources=2), "stop"),
    "minimal images": (histories(minimal=True), "stop"),
    "truncates": (histories(truncates=True, minimal=True), "apply"),
    "truncates left out": (histories(truncates=True), "ignore"),
}


def truncates(policy: str, *, shared: bool = False) -> Counting:
    return TruncateRule("shop.items", "r", policy, frozenset({"shop.items"}), alone=True, shared=shared).last


def rule_of(changes: Sequence[Change], key: Sequence[str] = KEY) -> TableRule:
    partial = any(change.absent for change in changes)
    return TableRule(ROW, key, fill=[name for name in NAMES if name not in KEY] if partial and key else [])


def events_of(changes: Sequence[Change], rule: TableRule, schema: TableSchema = ITEMS, **more: Any) -> pa.Table:
    batches = None if rule.key else pa.array([change.seq for change in changes], pa.int64())
    return events(staged_table(schema, changes), schema, rule, batches=batches, **more)


def in_files(changes: Sequence[Change], files: int, data: st.DataObject) -> Iterator[Sequence[Change]]:
    """In any order, in so many files."""
    mine = data.draw(st.permutations(changes))
    for number in range(min(files, len(mine))):
        yield mine[number::files]


def answers(rows: Sequence[dict[str, Any]]) -> dict[Any, Any]:
    found = {}
    for row in rows:
        key = TRUNCATE_KEY if row["_cdc_op"] == "t" else (row["a"], row["b"])
        assert key not in found
        found[key] = (row["_cdc_op"], (row["_cdc_seq"], row["_cdc_row"]), row["_cdc_source"], model_values(row))
    return found


def model_values(row: dict[str, Any]) -> dict[str, Any] | None:
    """The values of a merged row as the model has them; None but for an upsert."""
    if row["_cdc_op"] != "u":
        return None
    absent = json.loads(row["_cdc_absent"] or "[]")
    assert all(row[name] is None for name in absent)
    oldest = (row.get("_cdc_key_chain") or [row])[-1]
    values = {name: dict(row["_cdc_literal"] or []).get(name, row[name]) for name in NAMES}
    return values | dict.fromkeys(absent, Unknown(tuple(oldest[name] for name in KEY)))


@pytest.mark.parametrize("case", CASES)
@given(data=st.data(), files=st.integers(1, 4), parts=st.integers(1, 5), reduced_at=st.integers(1, 100))
@settings(max_examples=150)
def test_what_a_history_leaves_is_what_the_model_says(
    case: str, files: int, parts: int, reduced_at: int, data: st.DataObject
) -> None:
    drawn, policy = CASES[case]
    changes = data.draw(drawn).changes
    rule = rule_of(changes)
    given_ = [events_of(some, rule) for some in in_files(changes, files, data)]
    cut = (
        Parts(parts).with_links(np.concatenate([key_links(part, rule) for part in given_]))
        if rule.fill
        else Parts(parts)
    )
    of_part = [History(rule, truncates(policy), first=not at, reduced_rows=reduced_at) for at in range(parts)]
    for part in given_:
        for at, piece in split(part, rule, cut):
            of_part[at].add(piece)
    rows = [row for history in of_part for row in history.merged().rows.to_pylist()]
    counts = Counts()
    for history in of_part:
        counts += history.counts

    last = winners([change for change in changes if policy == "apply" or change.op != "t"], NAMES, KEY)
    assert answers(rows) == {
        key: (change.op, change.order, change.source, dict(change.values) if change.op == "u" else None)
        for key, change in last.items()
    }
    # As the stage counts them in a file, by which a reader knows whether it needs the values before.
    moved = sum(key_changes(staged_table(ITEMS, [change]).to_batches()[0], KEY) for change in changes)
    assert (counts.changes, counts.key_changes, counts.lost) == (len(changes), moved, 0)
    assert counts.superseded == len(changes) + moved - len(last)


@given(drawn=histories(keyed=False, truncates=True), files=st.integers(1, 4), parts=st.integers(1, 5), data=st.data())
@settings(max_examples=100)
def test_rows_without_a_key_come_and_go_as_the_model_counts_them(
    drawn: history_model.History, files: int, parts: int, data: st.DataObject
) -> None:
    rule = rule_of(drawn.changes, ())
    of_part = [History(rule, truncates("apply"), first=not at) for at in range(parts)]
    for some in in_files(drawn.changes, files, data):
        for at, piece in split(events_of(some, rule), rule, Parts(parts)):
            of_part[at].add(piece)
    rows = [row for history in of_part for row in each_copy(history.merged().rows).to_pylist()]
    net: Counter[Any] = Counter()
    for row in rows:
        if row["_cdc_op"] != "t":
            values = tuple(dict(row["_cdc_literal"] or []).get(name, row[name]) for name in NAMES)
            net[values] += 1 if row["_cdc_op"] == "u" else -1
    assert {row: count for row, count in net.items() if count} == history_model.nets(drawn.changes, NAMES)
    counts = Counts()
    for history in of_part:
        counts += history.counts
    updates = sum(change.op == "u" for change in drawn.changes)
    assert (counts.changes, counts.key_changes) == (len(drawn.changes), updates)
    assert counts.superseded == len(drawn.changes) + updates - len(rows)


@pytest.mark.parametrize(("bound", "most"), [("REDUCED_ROWS", 10), ("REDUCED_BYTES", 1_500)])
def test_a_key_with_many_changes_takes_the_memory_of_few(
    bound: str, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, bound, most)
    rule = replace(rule_of([]), fill=["n", "y", "d"], moving=["n"])
    history = History(rule, truncates("stop"))
    row = {"a": 1, "b": "x", "n": 1, "y": "y", "d": None}
    for at in range(50):
        before = row | {"n": at % 2}
        some = [Change("u", row | {"n": (at + 1) % 2}, 10 + at, number, before, absent=["y"]) for number in range(8)]
        history.add(events_of(some, rule))
        assert history._rows <= 20
    (left,) = history.merged().rows.to_pylist()
    assert (left["_cdc_seq"], left["n"], left["_cdc_absent"]) == (59, 0, '["y"]')
    assert sorted(left["_cdc_former_shard_keys"]["n"]) == [0, 1]
    assert (history.counts.changes, history.counts.superseded) == (400, 399)


def test_a_chain_of_keys_is_in_one_part() -> None:
    rule = TableRule(ROW, KEY, fill=["n", "y", "d"])
    keys = [{"a": at, "b": "x"} for at in range(50)]
    changes = [Change("c", keys[0] | {"n": 1, "y": "y", "d": None}, 1)]
    for at in range(49):
        changes.append(
            Change("u", keys[at + 1], at + 2, 0, keys[at], absent=["n", "y", "d", f"{BEFORE}n", f"{BEFORE}y"])
        )
    given_ = events_of(changes, rule)
    parts = Parts(7).with_links(key_links(given_, rule))
    pieces = dict(split(given_, rule, parts))
    assert len(pieces) == 1
    assert pa.compute.sum(given_.column(INHERITS)).as_py() == 98
    (part,) = pieces.values()
    history = History(rule, truncates("stop"))
    history.add(part)
    rows = {row["a"]: row for row in history.merged().rows.to_pylist()}
    assert (rows[49]["_cdc_op"], rows[49]["n"], rows[49]["y"], rows[49]["_cdc_absent"]) == ("u", 1, "y", None)
    assert {rows[at]["_cdc_op"] for at in range(49)} == {"d"}


def test_a_truncate_is_refused_in_every_part() -> None:
    rule = rule_of([])
    for first in (True, False):
        history = History(rule, truncates("stop"), first=first)
        history.add(events_of([Change("t", {}, 5)], rule))
        with raises(Refused, "config.table_rule"):
            history.merged()


def test_a_copy_that_begins_a_table_again_counts_whatever_the_policy() -> None:
    rule = rule_of([])
    history = History(rule, truncates("stop"))
    row = {"a": 1, "b": "x", "n": 1, "y": None, "d": None}
    history.add(events_of([Change("c", row, 1)], rule))
    history.add(events_of([Change("t", {}, 5)], rule, renews=True))
    merged = history.merged()
    assert [row["_cdc_op"] for row in merged.rows.to_pylist()] == ["t"]
    assert [truncate.renews for truncate in merged.truncates] == [True]
    assert history.counts.superseded == 1


def test_definitions_that_spell_columns_in_two_ways_are_one_table() -> None:
    other = table_schema("shop.items", {"A": "int", "B": "varchar(10)", "N": "int"}, ["A", "B"])
    rule = TableRule(ROW, KEY, fill=["n", "y", "d"])
    history = History(rule, truncates("stop"))
    history.add(events_of([Change("c", {"a": 1, "b": "x", "n": 5, "y": "y", "d": None}, 1)], rule))
    update = Change("u", {"A": 1, "B": "x", "N": None}, 2, 0, {"A": 1, "B": "x"}, absent=["N", f"{BEFORE}N"])
    history.add(events_of([update], rule, other))
    (row,) = history.merged().rows.to_pylist()
    assert (row["_cdc_seq"], row["n"], row["_cdc_absent"]) == (2, 5, None)


def test_an_absent_value_is_filled_from_the_other_source_that_wrote_the_key() -> None:
    rule = TableRule(ROW, KEY, fill=["n", "y", "d"])
    history = History(rule, truncates("stop"))
    change = Change("c", {"a": 1, "b": "x", "n": 5, "y": "y", "d": None}, 1, source="one", ts_us=10)
    two = Change("u", {"a": 1, "b": "x", "n": 6}, 1, 0, {"a": 1, "b": "x"}, "two", 20, absent=["y", "d"])
    history.add(events_of([change, two], rule))
    (row,) = history.merged().rows.to_pylist()
    assert (row["n"], row["y"], row["_cdc_absent"]) == (6, "y", None)


def test_a_row_without_a_key_whose_values_nothing_says_is_lost() -> None:
    rule = rule_of([], ())
    history = History(rule, truncates("stop"))
    history.add(events_of([Change("d", {"a": 1, "b": "x", "n": 5}, 1, absent=["y", "d"])], rule))
    history.merged()
    assert (history.counts.changes, history.counts.lost) == (1, 1)


def test_a_value_from_before_its_column_was_dropped_does_not_count() -> None:
    rule = TableRule(ROW, KEY, fill=["n", "y", "d"])
    old = Change("c", {"a": 1, "b": "x", "n": 5, "y": "y", "d": None}, 1, literal={"d": "0000-00-00"})
    new = Change("u", {"a": 1, "b": "x", "n": 6}, 9, 0, {"a": 1, "b": "x"}, absent=["y", "d"])
    found = events_of([old, new], rule, emptied={"y": 9, "d": 5})
    history = History(rule, truncates("stop"))
    history.add(found)
    (row,) = history.merged().rows.to_pylist()
    assert (row["n"], row["y"], row["d"], row["_cdc_literal"], row["_cdc_absent"]) == (6, None, None, None, None)


KINDS = {
    pa.int64(): st.integers(-(2**63), 2**63 - 1),
    pa.uint8(): st.integers(0, 255),
    pa.string(): st.text(max_size=5),
    pa.binary(): st.binary(max_size=5),
    pa.decimal128(20, 2): st.decimals(-(10**17), 10**17, places=2),
    pa.bool_(): st.booleans(),
    pa.date32(): st.dates(),
    pa.float64(): st.sampled_from([0.0, -0.0, 1.5, -1.5e300]),
    pa.list_(pa.float32()): st.lists(st.sampled_from([0.0, 1.5, 2.5]), max_size=3),
}


@pytest.mark.parametrize("kind", KINDS, ids=str)
@given(data=st.data())
def test_equal_values_have_one_number_and_one_part_wherever_they_are_in_an_array(
    kind: pa.DataType, data: st.DataObject
) -> None:
    values = data.draw(st.lists(st.none() | KINDS[kind], min_size=1, max_size=20))
    first = pa.array(values, kind)
    shifted = pa.array([None, *values, None], kind).slice(1, len(values))
    for array in (first, shifted):
        number = codes(array).tolist()
        part = hashes_of([array]).tolist()
        for at, value in enumerate(values):
            for other, again in enumerate(values):
                assert (number[at] == number[other]) == (value == again)
                assert value != again or part[at] == part[other]
        assert [at for at, value in enumerate(values) if value is None] == [
            at for at, code in enumerate(number) if code < 0
        ]
    assert hashes_of([first]).tolist() == hashes_of([shifted]).tolist()


def test_rows_that_are_counted_tell_zeros_apart() -> None:
    zeros = pa.array([0.0, -0.0, 0.0])
    assert codes(zeros).tolist() == [0, 0, 0]
    assert codes(zeros, bits=True).tolist() == [0, 1, 0]


@pytest.mark.parametrize("kind", ["int", "text", "two"])
def test_many_keys_are_spread_over_all_parts(kind: str) -> None:
    numbers = pa.array(range(100_000))
    columns = {"int": [numbers], "text": [numbers.cast(pa.string())], "two": [numbers, numbers]}[kind]
    counts = np.bincount(Parts(16).of(columns), minlength=16)
    assert counts.min() > 5_000
    assert counts.max() < 7_500


def test_parts_are_ranges_of_about_as_many_keys_unless_a_key_is_too_frequent() -> None:
    keys = np.repeat(np.arange(1000), 3)
    parts = Parts.of_ranges(4, keys)
    numbers = parts.of([pa.array(np.arange(1000))])
    assert (np.diff(numbers) >= 0).all()
    assert np.bincount(numbers).min() > 200
    assert Parts.of_ranges(4, np.zeros(1000, np.int64)).bounds is None
    assert Parts.of_ranges(4, np.zeros(0, np.int64)).bounds is None


def test_copies_of_equal_rows_are_summed_up_batch_by_batch() -> None:
    rule = rule_of([], ())
    row = {"a": 1, "b": "x", "n": 1, "y": None, "d": None}
    history = History(rule, truncates("stop"))
    history.add(events_of([Change("c", row, 1, at) for at in range(3)], rule))
    history.add(events_of([Change("d", row, 2)], rule))
    rows = history.merged().rows
    assert sorted(zip(rows.column("_cdc_seq").to_pylist(), rows.column(COPIES).to_pylist(), strict=True)) == [
        (1, 3), (2, -1),
    ]  # fmt: skip
    assert sorted(row["_cdc_row"] for row in each_copy(rows).to_pylist()) == [0, 0, 1, 2]
