"""The pipeline of a way back, from a pipeline: what it carries, and what it refuses to carry."""

from __future__ import annotations

import re

import pytest
import yaml

from cdc_core.config import Pipeline, parse
from cdc_core.errors import Refused
from cdc_core.model.position import Position
from cdc_core.operations.cutover.reverse import VERIFIED, ReverseOrigin, reverse_of
from cdc_core.operations.cutover.way_back import carried_by
from tests.lab.refusals import raises
from tests.lab.shell import export

ENVIRON = {
    "SRC": "mysql://u:p@old:3306",
    "ONE": "mysql://u:p@new-1:3306",
    "TWO": "mysql://u:p@new-2:3306",
    "AGAIN": "mysql://u:p@NEW-1:3306",
}
ORIGINS = [
    ReverseOrigin("orders", "shop", "env:SRC", "shop", "orders"),
    ReverseOrigin("items", "shop", "env:SRC", "shop", "it{em}s"),
]


def pipeline(
    tables: str = "", target: str = "", connections: str = "'env:ONE', 'env:TWO'", name: str = "shop"
) -> Pipeline:
    return parse(
        f"""
pipeline: {name}
sources: [{{name: shop, connection: "env:SRC", server_id: 9}}]
tables: {{include: ['shop\\..*'] {tables}}}
routes: [{{match: 'shop\\.(.*)', to: '\\1'}}]
stage: {{uri: "s3://bucket/shop/"}}
meta: {{url: "sqlite:////nowhere/meta.db"}}
targets:
  - name: shards
    connections: [{connections}]
    tables:
      '*':
        {{database: "shop_{{d}}", table: "{{logical}}_{{t}}", sharding: {{key: id, databases: 2, tables: 2}} {target}}}
cutover: {{switch_with: ./switch}}
""",
        where="test",
    )


def made(forward: Pipeline, origins: list[ReverseOrigin] = ORIGINS) -> Pipeline:
    export(ENVIRON)
    reverse = reverse_of(forward, forward.target("shards"), origins)
    starts = {source.name: Position(0, "binlog.000007", 1000 + at) for at, source in enumerate(reverse.sources)}
    return parse(reverse.text(starts), where="way back")


def test_it_reads_exactly_the_tables_of_the_target_and_writes_to_those_that_they_came_from() -> None:
    back = made(pipeline())
    assert back.pipeline == "shop_back"
    assert [(source.connection, source.start.position.offset) for source in back.sources] == [
        ("env:ONE", 1000),
        ("env:TWO", 1001),
    ]
    assert len({source.server_id for source in back.sources}) == 2
    places = [f"shop_{d}.{table}_{t}" for table in ("orders", "items") for d in range(2) for t in range(2)]
    captured = [name for name in [*places, "shop_0.orders_2", "shop_0.ordersx0", "other.orders_0"]
                if any(re.fullmatch(pattern, name) for pattern in back.tables.include)]  # fmt: skip
    assert sorted(captured) == sorted(places)
    for origin in ORIGINS:
        fed = [name for name in places for route in back.routes
               if route.to == origin.logical and re.fullmatch(route.match, name)]  # fmt: skip
        assert fed == [name for name in places if f".{origin.logical}_" in name]
    (target,) = back.targets
    assert target.connections == ("env:SRC",)
    rule = target.tables["items"]
    assert (rule.database.format(), rule.table.format(), rule.guard.store) == ("shop", "it{em}s", "table")
    assert any(re.fullmatch(pattern, "shop_0.orders_0._cdc_version") for pattern in back.tables.columns.exclude)
    assert back.stage.uri == "s3://bucket/shop-back"
    assert back.cutover == pipeline().cutover
    assert (back.verify.schedule, back.verify.mode) == (VERIFIED, "ordered")


def test_a_server_that_two_connections_name_is_read_once() -> None:
    assert [source.connection for source in made(pipeline(connections="'env:ONE', 'env:AGAIN'")).sources] == ["env:ONE"]


def test_its_file_holds_no_password() -> None:
    forward = pipeline()
    export(ENVIRON)
    reverse = reverse_of(forward, forward.target("shards"), ORIGINS)
    text = reverse.text({source.name: Position(0, "binlog.000001", 4) for source in reverse.sources})
    assert "u:p@" not in text
    assert yaml.safe_load(text)["meta"] == {"url": "sqlite:////nowhere/meta.db"}


@pytest.mark.parametrize(
    ("tables", "target", "why"),
    [
        (", columns: {mask: ['.*email'], salt: 'env:SALT'}", "", "masked"),
        (", columns: {exclude: ['.*note']}", "", "left out"),
        (", rows: [{match: '.*', where: id > 5}]", "", "rows are left out"),
        (", processors: [{match: '.*', use: mine}]", "", "processors"),
        ("", ", on_row_error: quarantine", "set aside"),
    ],
)
def test_what_does_not_arrive_unchanged_is_not_carried_back(tables: str, target: str, why: str) -> None:
    with raises(Refused, "cutover.no_way_back", match=why):
        made(pipeline(tables, target))


def test_a_rule_for_tables_without_a_key_is_no_obstacle_to_those_that_have_one() -> None:
    """What has none is refused by its proof."""
    made(pipeline("", ", no_key: rows"))


def test_rows_of_which_nothing_says_where_they_came_from_are_not_carried_back() -> None:
    with pytest.raises(Refused, match="2 tables feed orders"):
        made(pipeline(), [*ORIGINS, ReverseOrigin("orders", "shop", "env:SRC", "shop", "orders_2020")])


def test_a_name_that_would_be_too_long_is_refused() -> None:
    with pytest.raises(Refused, match="longer than 48 characters"):
        made(pipeline(name="a" * 48))


def test_it_is_verified_at_the_pace_of_the_pipeline() -> None:
    forward = pipeline()
    chosen = {"mode": "initial", "chunk_mib": 4, "throttle": {"threads_running": 9, "query": "SELECT 0"}}
    document = forward.model_dump(mode="json", exclude_unset=True) | {"snapshot": chosen}
    back = made(Pipeline.model_validate(document))
    assert (back.snapshot.mode, back.snapshot.chunk_mib) == ("none", 4)
    assert (back.snapshot.throttle.threads_running, back.snapshot.throttle.query) == (9, None)
    assert made(forward).snapshot.model_dump(exclude_unset=True) == {}


def test_its_files_are_purged_and_its_rows_repaired_and_read_back_as_those_of_the_pipeline() -> None:
    forward = pipeline(", on_unlogged_change: resync")
    chosen = {
        "retention": {"keep": "7d", "compact": "day"},
        "repair": {"max_rows_per_day": 5},
        "quality": {"sample_rows": 1000, "suites": [{"path": "suite.json", "table": "orders"}]},
        "reverse_query": {"older_than": "10s"},
    }
    back = made(Pipeline.model_validate(forward.model_dump(mode="json", exclude_unset=True) | chosen))
    assert (back.retention.keep, back.retention.compact, back.repair.max_rows_per_day) == ("7d", "day", 5)
    # Rows that are not as expected stop it: a person decides, and its servers are asked for nothing more.
    assert (back.quality.sample_rows, back.quality.suites, back.reverse_query) == (1000, (), None)
    assert back.tables.on_unlogged_change == "stop"
    assert not {"retention", "repair", "quality"} & made(forward).model_fields_set


@pytest.mark.parametrize(
    ("before", "after", "same"),
    [
        ("  include:\n", "  on_unlogged_change: resync\n  on_unreadable: isolate\n  include:\n", True),
        ("      guard:\n", "      on_new_column: add\n      guard:\n", True),
        ("- name: shop_back_shop\n", "- name: shop_back_shop\n  sessions: 4\n", True),
        ("      guard:\n", "      on_row_error: quarantine\n      guard:\n", False),
        ("      table: orders\n", "      table: others\n", False),
        ("  include:\n", "  include:\n  - shop_0.more\n", False),
    ],
)
def test_a_person_may_choose_what_the_way_back_does_about_errors_and_not_what_it_carries(
    before: str, after: str, same: bool
) -> None:
    forward = pipeline()
    export(ENVIRON)
    reverse = reverse_of(forward, forward.target("shards"), ORIGINS)
    text = reverse.text({source.name: Position(0, "binlog.000007", 1000) for source in reverse.sources})
    assert before in text
    chosen = parse(text.replace(before, after, 1), where="way back")
    assert (carried_by(chosen) == carried_by(made(forward))) is same
