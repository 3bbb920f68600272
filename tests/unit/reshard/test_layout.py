"""A target in another layout: the same tables by the same key, under names of their own."""

from __future__ import annotations

from typing import Any

import pytest

from cdc_core.config import Target
from cdc_core.errors import LockstepError
from cdc_core.operations.reshard.new_layout import (
    NewLayout,
    new_rule,
    new_target,
    parse_layout,
    require_apart,
    words_of,
)
from cdc_core.targets.reading.sharding import shard_tables


def target(name: str = "shards", **changed: Any) -> Target:
    rule = {
        "database": "shop_{d}",
        "table": "{table}_{t:02d}",
        "sharding": {"key": "id", "databases": 8, "tables": 8, "function": "hash"},
        "on_row_error": "quarantine",
    }
    single = {"database": "shop_all", "table": "{table}"}
    document = {"name": name, "connections": ["env:T"], "tables": {"shop.orders": rule, "*": single}, **changed}
    return Target.model_validate(document)


SERVER = {"T": "mysql://a@one:3306", "U": "mysql://a@two:3306"}


def test_a_layout_is_two_numbers() -> None:
    assert parse_layout("16x16") == (16, 16)
    for text in ("16", "x16", "0x4", "4X4", "4x4x4", "-1x4"):
        with pytest.raises(LockstepError) as caught:
            parse_layout(text)
        assert caught.value.code == "usage.argument"


def test_a_new_target_has_the_rules_of_the_old_one_and_other_tables() -> None:
    old = target()
    new = Target.model_validate(new_target(old, NewLayout(16, 16), "wide"))
    assert (new.name, new.replay_only, new.on_missing_table) == ("wide", True, "create")
    rule = new.tables["shop.orders"]
    assert (rule.database, rule.table, rule.on_row_error) == ("shop_{d}_16x16", "{table}_{t:02d}", "quarantine")
    assert rule.layout == "hash(id) over 16 x 16"
    assert new.tables["*"].database == "shop_all_16x16"
    assert len({one.name for one in shard_tables(new, "shop.orders")}) == 256
    require_apart(new, ["shop.orders", "shop.rates"], [(old, ["shop.orders", "shop.rates"])], SERVER)


def test_numbers_are_added_to_names_that_had_none() -> None:
    rule = {"database": "shop", "table": "{table}_{t}", "sharding": {"key": "id", "tables": 4}}
    old = target(tables={"*": rule})
    new = Target.model_validate(new_target(old, NewLayout(2, 4), "wide"))
    assert new.tables["*"].database == "shop_2x4_{d}"


def test_tables_that_another_target_has_are_refused() -> None:
    old = target()
    new = Target.model_validate(new_target(old, NewLayout(16, 16, database="SHOP_{d}"), "wide"))
    with pytest.raises(LockstepError) as caught:
        require_apart(new, ["shop.orders"], [(old, ["shop.orders"])], SERVER)
    assert caught.value.code == "reshard.layout"
    elsewhere = new.model_copy(update={"connections": ("env:U",)})
    require_apart(elsewhere, ["shop.orders"], [(old, ["shop.orders"])], SERVER)


@pytest.mark.parametrize(
    ("rule", "new"),
    [
        ({"sharding": {"key": "id", "function": "range", "bounds": [5], "tables": 2}, "table": "t{t}"}, {}),
        ({}, {}),
        ({"sharding": {"key": "id", "tables": 2}, "table": "t{t}"}, {"connections": ("env:A", "env:B", "env:C")}),
    ],
)
def test_what_nothing_tells_is_asked_for(rule: dict[str, Any], new: dict[str, Any]) -> None:
    with pytest.raises(LockstepError) as caught:
        new_target(target(tables={"*": rule}), NewLayout(2, 4, **new), "wide")
    assert caught.value.code == "reshard.layout"


def test_templates_are_written_out_for_one_logical_table() -> None:
    rule = target().tables["shop.orders"]
    made = new_rule(rule, NewLayout(16, 16), words_of("shop.orders"))
    assert (made["database"], made["table"]) == ("shop_{d}_16x16", "orders_{t:02d}")
    odd = rule.model_copy(update={"table": "{logical:.4}{{x}}_{t}"})
    assert new_rule(odd, NewLayout(16, 16), words_of("a{b}c.d"))["table"] == "a{{b}}{{x}}_{t}"
