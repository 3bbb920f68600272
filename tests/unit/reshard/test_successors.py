"""Some of the former shards, which are moved by a pipeline of their own."""

from __future__ import annotations

import pytest

from cdc_core.config import Pipeline, parse
from cdc_core.operations.reshard.new_layout import NewLayout
from cdc_core.operations.reshard.successors import ShardPart, successor_document
from tests.lab.refusals import refusal


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


def test_the_copy_of_the_shards_keeps_to_the_limits_of_the_pipeline() -> None:
    forward = parse(
        """
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
    tables:
      orders: {database: "shop_{d}", table: orders, sharding: {key: id, databases: 2, tables: 1}}
""",
        where="test",
    )
    environ = {"SRC": "mysql://u:p@old:3306", "NEW": "mysql://u:p@new:3306"}
    old = forward.target("shards")
    document = successor_document(forward, old, NewLayout(4, 1), ("orders",), "wide", ShardPart(), environ)
    made = Pipeline.model_validate(document)
    assert (made.snapshot.mode, made.snapshot.readers, made.snapshot.throttle.threads_running) == ("initial", 1, 9)
    assert (made.snapshot.throttle.replicas, made.snapshot.throttle.query) == ((), None)
    assert made.target("wide").sessions == 4
    assert made.retention == forward.retention
