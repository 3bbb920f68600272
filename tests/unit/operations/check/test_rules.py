"""What `check` says of patterns and names of the pipeline file that match nothing."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import yaml

from cdc_core.config import parse
from cdc_core.operations.check.findings import Findings
from cdc_core.operations.check.rules import Seen, check_rules

CAPTURED = frozenset({"shop.customers", "shop.orders_1", "shop.orders_2"})
SEEN = Seen(
    CAPTURED | {"shop.secrets"},
    CAPTURED,
    frozenset({"shop.customers.email", "shop.customers.phone", "shop.orders_1.id", "shop.orders_2.id"}),
    lower_case=False,
)
LOGICAL = ("shop.customers", "orders")


def found(tables: dict[str, Any] | None = None, seen: Seen = SEEN, **keys: Any) -> list[tuple[str, str]]:
    pipeline = {
        "pipeline": "shop", "sources": [{"name": "shop", "connection": "env:SHOP", "server_id": 4711}],
        "tables": {"include": [r"shop\..*"]} | (tables or {}),
        "routes": [{"match": r"shop\.orders_\d", "to": "orders"}],
        "stage": {"uri": "file:///stage"}, "meta": {"url": "sqlite:///meta.db"},
    }  # fmt: skip
    findings = Findings()
    check_rules(parse(yaml.safe_dump(pipeline | keys), where="test"), [seen], LOGICAL, findings)
    return [(finding.status, finding.what) for finding in findings.made]


def test_what_a_rule_may_match_in_columns_that_the_account_may_not_see_is_not_decided_and_other_rules_are() -> None:
    unread = replace(SEEN, captured=CAPTURED | {"shop.hidden"}, unread={"shop.hidden": ("hidden",)})
    assert found(seen=unread, tables=masked(r".*\.phone"), targets=target("hidden")) == []
    ((status, what),) = found(seen=unread, tables=masked(r".*\.emial"))
    assert (status, "not the columns of shop.hidden" in what) == ("warn", True)
    for rules in ({"tables": {"exclude": [r"shop\.secret"]}}, {"targets": target("Orders")}):
        assert [status for status, _ in found(seen=unread, **rules)] == ["fail"]


def masked(pattern: str, *others: str) -> dict[str, Any]:
    return {"columns": {"mask": [pattern, *others], "salt": "env:SALT"}}


def target(*names: str) -> list[dict[str, Any]]:
    return [{"name": "copy", "connections": ["env:COPY"], "tables": {name: {"database": "copy"} for name in names}}]


@pytest.mark.parametrize(
    "rules",
    [
        {"tables": masked(r"shop\.customers\.Email", r".*\.phone")},
        {"tables": {"columns": {"exclude": [r".*\.phone"]}, "exclude": [r"shop\.sec.*"]}},
        {"tables": {"rows": [{"match": ".*customers", "where": "id > 1"}]}},
        {"targets": target("orders", "shop.customers")},
        {"targets": target("*")},
    ],
)
def test_nothing_is_said_of_rules_that_match(rules: dict[str, Any]) -> None:
    assert found(**rules) == []


@pytest.mark.parametrize(
    ("rules", "meant"),
    [
        ({"tables": masked(r"shop\.customer\.email")}, "shop.customers.email"),
        ({"tables": masked(r".*\.emial")}, "shop.customers.email"),
        ({"tables": masked("email")}, "shop.customers.email"),
        ({"tables": {"columns": {"exclude": [r"shop\.(customers|x)\.phones"]}}}, "shop.customers.phone"),
        ({"tables": {"exclude": [r"shop\.secret"]}}, "shop.secrets"),
        ({"tables": {"rows": [{"match": r"shop\.customer", "where": "id > 1"}]}}, "shop.customers"),
        (
            {"routes": [{"match": r"shop\.order_\d", "to": "orders"}, {"match": "customers", "to": "c"}]},
            "shop.customers",
        ),
        ({"targets": target("customers")}, "shop.customers"),
        ({"targets": target("Orders", "shop.customers")}, "orders"),
        ({"quality": {"suites": [{"table": "order", "path": "x.yaml"}]}}, "orders"),
    ],
)
def test_a_rule_that_matches_nothing_and_resembles_what_has_none_is_misspelled(
    rules: dict[str, Any], meant: str
) -> None:
    assert [what for status, what in found(**rules) if status == "fail" and f"Did you mean {meant}?" in what]


@pytest.mark.parametrize(
    "rules",
    [
        {"tables": masked(r"shop\.customers\.email", r"shop\.customers\.email2")},  # its like is masked, too
        {"tables": masked(r"shop\.invoices\.iban")},
        {"tables": {"exclude": [r"shop\.tmp_.*"]}},
        {"tables": {"exclude": [r".*\._.*_(old|new)"]}},
        {"tables": {"rows": [{"match": r"shop\.invoices_\d+", "where": "id > 1"}]}},
        {"targets": target("orders", "shop.customers", "order")},
        {"targets": target("*", "invoices")},
    ],
)
def test_a_rule_that_matches_nothing_may_be_for_what_appears_later(rules: dict[str, Any]) -> None:
    ((status, what),) = found(**rules)
    assert (status, what.startswith("no ")) == ("warn", True)


def test_names_are_compared_as_the_server_compares_them() -> None:
    folded = Seen(SEEN.tables, SEEN.captured, SEEN.columns, lower_case=True)
    findings = Findings()
    text = r"""
    pipeline: shop
    sources: [{name: shop, connection: env:SHOP, server_id: 4711}]
    tables: {include: ['shop\..*'], columns: {exclude: ['SHOP\.Customers\.email']}}
    stage: {uri: "file:///stage"}
    meta: {url: "sqlite:///meta.db"}
    """
    check_rules(parse(text, where="test"), [folded], LOGICAL, findings)
    assert findings.made == []
