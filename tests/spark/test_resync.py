"""Copies that take the place of older rows, at a sharded target: rows that are gone go, and nothing else does."""

from __future__ import annotations

import itertools
import random
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest

from cdc_core.errors import DataAtRisk
from cdc_core.model.run_plan import RunPlan
from tests.history_model import Change
from tests.spark.target_line import FIRST, ORDERS, TargetLine, fed_by_two, order

pytestmark = [pytest.mark.spark, pytest.mark.filterwarnings("ignore::ResourceWarning")]


def run(
    line: TargetLine,
    copied: Mapping[str, Sequence[Change]],
    logged: Mapping[str, Sequence[Change]] | None = None,
    *,
    quality: bool = True,
) -> RunPlan:
    """A run over copies that begin tables again, and changes of the log."""
    line.stage.begin_again()
    for renews, changes in ((True, copied), (False, logged or {})):
        for name, some in changes.items():
            schema = replace(ORDERS, table=name.partition(".")[2])
            if renews:
                line.stage.add("shop.orders", schema, [Change("t", {}, some[0].seq)], copied=True)
            line.stage.add("shop.orders", schema, some, copied=renews)
    plan = line.plan()
    line.again(plan, quality=quality)
    line.adds_up(plan)
    return plan


def copy(id: int, customer: int, code: str, seq: int, ordinal: int = 1) -> Change:
    return order("r", id, customer, code, seq, ordinal)


def ids(line: TargetLine) -> list[int]:
    return [row[0] for row in everything(line)]


def everything(line: TargetLine) -> list[tuple[Any, ...]]:
    return sorted(row for place in line.places for row in line.query(f"SELECT id, customer, code FROM {place}"))


@pytest.mark.parametrize(
    ("on_truncate", "store"),
    [
        ("stop", "row"),
        pytest.param("ignore", "table", marks=pytest.mark.matrix),
        pytest.param("apply", "row", marks=pytest.mark.matrix),
    ],
)
def test_a_copy_that_begins_a_table_again_removes_what_is_gone_from_every_shard(
    line: TargetLine, on_truncate: str, store: str
) -> None:
    line.change_rule(on_truncate=on_truncate, guard={"store": store})
    line.query(f"INSERT INTO {line.prefix}_0.orders_0 (id, customer) VALUES (80, 80)")  # Lockstep never wrote it
    first = line.run(*FIRST)
    newer = line.run(order("u", 7, 7, "newer", 40, code="c7"))
    # 1 stays, 2 is in another shard, 3 has the unique value of 4, which is gone; 9 is new; 8 was deleted meanwhile.
    copied = [
        copy(1, 1, "c1", 20), copy(2, 5, "c2", 20, 2), copy(3, 3, "c4", 20, 3), copy(7, 7, "c7", 20, 4),
        copy(8, 8, "c8", 20, 5), copy(9, 9, "c9", 22, 6),
    ]  # fmt: skip
    plan = run(line, {"shop.orders": copied}, {"shop.orders": [order("d", 8, 8, "c8", 30), order("c", 4, 4, "c3", 19)]})
    left = [(1, 1, "c1"), (2, 5, "c2"), (3, 3, "c4"), (7, 7, "newer"), (9, 9, "c9")]
    assert everything(line) == left
    before = line.everything() if store == "row" else {}
    late = run(line, {"shop.orders": [copy(5, 5, "c5", 15), copy(6, 6, "c6", 15, 2)]})
    assert everything(line) == left
    for again in (first, plan, newer, late, plan):
        line.again(again)
        line.adds_up(again)
    assert everything(line) == left
    if store == "row":
        rows = [at for at in before if "." in at]
        assert {at: line.everything()[at] for at in rows} == {at: before[at] for at in rows}
    line.run(order("c", 4, 4, "again", 50))
    assert (4, 4, "again") in everything(line)


def test_whatever_the_order_of_runs_a_copy_and_the_log_end_with_the_same_rows(line: TargetLine) -> None:
    chance = random.Random(7)
    batches: list[tuple[bool, list[Change]]] = [
        (False, FIRST[:5]),
        (False, [order("d", 1, 1, "c1", 15), order("u", 2, 2, "two", 16, code="c2"), order("c", 20, 20, "gone", 17)]),
        (True, [copy(2, 2, "two", 20), copy(3, 3, "unlogged", 20, 2), copy(30, 30, "unseen", 20, 3)]),
        (False, [order("u", 3, 3, "three", 25, code="unlogged"), order("c", 4, 4, "back", 26)]),
    ]
    left = [(2, 2, "two"), (3, 3, "three"), (4, 4, "back"), (30, 30, "unseen")]
    for some in chance.sample(list(itertools.permutations(batches)), 2):
        for d in (0, 1):
            there = {name for (name,) in line.query(f"SHOW TABLES IN {line.prefix}_{d}")}
            rows = {"orders_0", "orders_1", "_lockstep_truncate"}
            rows |= {"_lockstep_tombstone_orders_0", "_lockstep_tombstone_orders_1"}
            for table in there & rows:
                line.query(f"DELETE FROM {line.prefix}_{d}.{table}")
        for renews, changes in some:
            tables = {"shop.orders": changes}
            run(line, tables if renews else {}, {} if renews else tables, quality=False)
        assert everything(line) == left, some


def test_of_several_source_tables_a_copy_removes_only_its_own_rows(line: TargetLine) -> None:
    fed_by_two(line)
    line.run_of(
        {
            "shop.p1": [order("c", 1, 1, "a", 10), order("c", 2, 2, "b", 10, 1), order("c", 3, 3, "c", 10, 2)],
            "shop.p2": [order("c", 11, 1, "A", 11), order("c", 12, 2, "B", 11, 1)],
        }
    )
    copied = run(line, {"shop.p1": [copy(2, 2, "b2", 20)]})
    assert ids(line) == [2, 11, 12]
    # Both at once; 2 went from p1 to p2 without row events, and 12 from p2 to p1.
    both = run(line, {"shop.p1": [copy(12, 2, "B", 30)], "shop.p2": [copy(2, 2, "b2", 31), copy(11, 1, "A", 31, 2)]})
    left = [(2, 2, "b2"), (11, 1, "A"), (12, 2, "B")]
    assert everything(line) == left
    for again in (copied, both, copied):
        line.again(again)
    assert everything(line) == left
    with pytest.raises(DataAtRisk) as caught:
        line.run_of({"shop.p1": [order("c", 11, 1, "x", 40)]})  # p2 has that key
    assert caught.value.code == "target.shared_key"


def test_a_row_whose_source_table_nobody_knows_is_not_removed_with_those_of_one(line: TargetLine) -> None:
    fed_by_two(line)
    line.run_of({"shop.p1": [order("c", 1, 1, "a", 10)], "shop.p2": [order("c", 12, 2, "B", 11, 1)]})
    line.query(f"INSERT INTO {line.prefix}_0.orders_0 (id, customer) VALUES (80, 80)")
    before = line.everything()
    with pytest.raises(DataAtRisk) as caught:
        run(line, {"shop.p1": [copy(2, 2, "b", 20)]})
    assert caught.value.code == "target.unknown_origin"
    assert line.everything()["0.0"] == before["0.0"]
    run(line, {"shop.p1": [copy(2, 2, "b", 20)], "shop.p2": [copy(80, 80, "z", 21)]})
    assert everything(line) == [(2, 2, "b"), (80, 80, "z")]


def test_rows_that_stay_keep_what_only_the_target_has_and_a_fresher_row_of_the_past_does_not_stop_them(
    line: TargetLine,
) -> None:
    for place in line.places:
        line.query(f"ALTER TABLE {place} ADD COLUMN mine VARCHAR(9)")
    line.change_rule(freshness="code")
    line.run(*FIRST)
    line.query(f"UPDATE {line.prefix}_0.orders_1 SET mine = 'note'")
    kept = [row[0] for row in line.query(f"SELECT id FROM {line.prefix}_0.orders_1 ORDER BY id")]
    run(line, {"shop.orders": [copy(id, id, f"b{id}", 20, id) for id in kept[1:]]})
    assert everything(line) == [(id, id, f"b{id}") for id in kept[1:]]
    found = line.query(f"SELECT id, mine FROM {line.prefix}_0.orders_1 ORDER BY id")
    assert found == [(id, "note") for id in kept[1:]]
