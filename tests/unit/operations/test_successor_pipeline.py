"""The pipeline that moves shards to more of them."""

from __future__ import annotations

from typing import Any

import pytest

from cdc_core.config import MysqlTarget, Pipeline, parse
from cdc_core.operations.successor_pipeline import NewLayout, ShardPart, successor_document
from tests.lab.refusals import refusal
from tests.lab.shell import export


@pytest.mark.parametrize(
    ("text", "suffix", "numbers"),
    [
        ("3", "_s3", {3}),
        ("0-2", "_s0_2", {0, 1, 2}),
        ("0-1,12", "_s0_1_s12", {0, 1, 12}),
        ("0,1-2,12", "_s0_2_s12", {0, 1, 2, 12}),
        ("0,2-12", "_s0_s2_12", {0, *range(2, 13)}),
        ("5-5", "_s5", {5}),
        ("12,2,0-1", "_s0_2_s12", {0, 1, 2, 12}),
    ],
)
def test_shards_are_named_by_numbers_and_ranges(text: str, suffix: str, numbers: set[int]) -> None:
    assert ShardPart.parse(text) == ShardPart(suffix, frozenset(numbers))


@pytest.mark.parametrize("text", ["", "7-3", "-1", "1-", "1,,2", "a", "0-9999999", "1 2"])
def test_what_names_no_shards_is_refused_before_anything_is_written(text: str) -> None:
    assert refusal(lambda: ShardPart.parse(text)).code == "usage.argument"


def test_a_layout_is_two_numbers() -> None:
    assert NewLayout.parse("16x16") == NewLayout(16, 16)
    for text in ("16", "x16", "0x4", "4X4", "4x4x4", "-1x4"):
        assert refusal(lambda text=text: NewLayout.parse(text)).code == "usage.argument"


FORWARD = """
pipeline: shop
sources: [{name: shop, connection: "env:SRC", server_id: 9}]
tables: {include: ['shop\\..*']}
stage: {uri: "s3://bucket/shop/"}
meta: {url: "sqlite:////nowhere/meta.db"}
retention: {keep: 7d}
snapshot: {mode: initial, readers: 1, throttle: {threads_running: 9, replicas: ["env:STANDBY"], query: SELECT 0}}
targets:
  - name: shards
    connections: ["env:NEW"]
    sessions: 4
    tables: {orders: {database: "shop_{d}", table: orders, sharding: {key: id, databases: 2, tables: 1}}}
"""
ENVIRON = {"SRC": "mysql://u:p@old:3306", "NEW": "mysql://u:p@new:3306", "TWO": "mysql://u:p@two:3306"}


def successor(new: NewLayout, part: ShardPart | None = None, logical: str = "orders", **target: Any) -> Pipeline:
    """target: what the old one has otherwise."""
    export(ENVIRON)
    forward = parse(FORWARD, where="test")
    old = MysqlTarget.model_validate(forward.target("shards").model_dump(mode="json", exclude_unset=True) | target)
    return Pipeline.model_validate(successor_document(forward, old, [logical], new, part or ShardPart()))


def test_the_copy_of_the_shards_keeps_to_the_limits_of_the_pipeline() -> None:
    made = successor(NewLayout(4, 1))
    assert (made.snapshot.mode, made.snapshot.readers, made.snapshot.throttle.threads_running) == ("initial", 1, 9)
    assert (made.snapshot.throttle.replicas, made.snapshot.throttle.query) == ((), None)
    assert made.target("shards_4x1").sessions == 4
    assert made.retention == parse(FORWARD, where="test").retention


def test_each_former_shard_is_a_table_of_its_own_whose_rule_names_its_successors() -> None:
    made = successor(NewLayout(4, 2), ShardPart("_s1", frozenset({1})))
    assert (made.pipeline, [route.to for route in made.routes]) == ("shop_4x2_s1", ["orders_shard_1"])
    rule = made.targets[0].tables["orders_shard_1"]
    assert (rule.database, rule.table) == ("shop_{d}_4x2", "orders_{t}")  # names that had no number have one
    assert rule.layout == "mod(id) over 4 x 2, of shard 1 of 2"


def test_what_templates_say_of_the_logical_table_is_written_out() -> None:
    sharding = {"key": "id", "databases": 1, "tables": 2}
    tables = {"*": {"database": "{database}", "table": "{logical:.4}{{x}}_{t}", "sharding": sharding}}
    made = successor(NewLayout(1, 4), logical="a{b}c.d", tables=tables)
    rule = made.targets[0].tables["a{b}c.d_shard_0"]
    assert (rule.database, rule.table) == ("a{{b}}c_1x4", "a{{b}}{{x}}_{t}")


def test_the_servers_of_the_old_databases_have_the_new_ones() -> None:
    two = {"connections": ["env:NEW", "env:TWO"]}
    assert successor(NewLayout(4, 1), **two).targets[0].connections == ("env:NEW", "env:TWO") * 2


@pytest.mark.parametrize(
    ("new", "target"),
    [
        (NewLayout(3, 1), {}),  # no multiple of two shards
        (NewLayout(1, 4), {"connections": ["env:NEW", "env:TWO"]}),
        (
            NewLayout(2, 2),
            {"tables": {"orders": {"database": "d{d}", "sharding": {
                "key": "id", "function": "range", "bounds": [5], "databases": 2}}}},
        ),
    ],
)  # fmt: skip
def test_a_layout_that_the_shards_have_no_successors_in_is_refused(new: NewLayout, target: dict[str, Any]) -> None:
    assert refusal(lambda: successor(new, **target)).code == "reshard.layout"
