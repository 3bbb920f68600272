"""The pipeline file is parsed once, strictly; an error names the key path and what is allowed, never a secret."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from cdc_core.config import load, parse
from cdc_core.errors import UsageError
from tests.lab.refusals import raises

MINIMAL: dict[str, Any] = {
    "pipeline": "shop",
    "sources": [{"name": "main", "connection": "env:SHOP", "server_id": 77}],
    "tables": {"include": [r"shop\..*"]},
    "stage": {"uri": "file:///tmp/stage"},
    "meta": {"url": "sqlite:////tmp/meta.db"},
}


def changed(path: str, value: Any) -> str:
    """The minimal pipeline's YAML with one key set; a path such as sources.0.start."""
    data = yaml.safe_load(yaml.safe_dump(MINIMAL))
    *parents, last = [int(part) if part.isdigit() else part for part in path.split(".")]
    place: Any = data
    for part in parents:
        place = place[part] if isinstance(part, int) else place.setdefault(part, {})
    place[last] = value
    return yaml.safe_dump(data)


def problem(path: str, value: Any) -> str:
    with raises(UsageError, "config.invalid") as caught:
        parse(changed(path, value), where="shop.yaml")
    assert caught.value.where == "shop.yaml"
    return caught.value.what


def target(**table: Any) -> dict[str, Any]:
    return {"name": "shards", "connections": ["env:T"], "tables": {"orders": table}}


def lake(**options: Any) -> dict[str, Any]:
    catalog = {"type": "sql", "uri": "env:LAKE", "warehouse": "file:///tmp/lake"}
    return {"name": "lake", "kind": "iceberg", "catalog": catalog, "namespace": "shop", "tables": {"*": {}}, **options}


def test_a_minimal_pipeline_has_hourly_windows_and_starts_at_the_latest_position() -> None:
    pipeline = parse(yaml.safe_dump(MINIMAL), where="shop.yaml")
    assert pipeline.schedule == "0 * * * *"
    assert pipeline.sources[0].start == "latest"
    assert pipeline.targets == ()


@pytest.mark.parametrize(
    ("path", "value", "expected"),
    [
        ("pipeline", "Shop", "pipeline: must be 1 to 48 of a-z"),
        ("sources", [], "sources: "),
        ("sources.0.server_id", 0, "sources.0.server_id: "),
        ("sources.0.server_id", 2**32, "sources.0.server_id: "),
        ("sources.0.heartbeat_s", 16.0, "at least twice heartbeat_s"),
        ("sources.0.start", "soon", "sources.0.start: must be 'earliest' or 'latest' (got 'soon')"),
        ("sources.0.start", {}, "sources.0.start: give exactly one of position, gtid, timestamp"),
        ("sources.0.start", {"gtid": "0-1-1", "timestamp": "2026-01-01T00:00:00Z"}, "exactly one of"),
        ("sources.0.start", {"position": {"file": "binlog.000001", "offset": 3}}, "start.position.offset"),
        ("sources.0.start", {"timestamp": "2026-01-01T00:00:00"}, "has no zone"),
        ("sources.0.start", {"timestamp": "yesterday"}, "is not an ISO 8601 time"),
        ("retention", {"keep": "30d", "keep_meta": "4w"}, "retention: keep_meta '4w': less than keep, '30d'"),
        ("tables.include", ["shop.("], "tables.include.0: is not a regular expression"),
        ("tables.include", [], "tables.include: "),
        ("tables.exlude", ["x"], "tables.exlude: there is no such key; did you mean 'exclude'?"),
        ("targets", [lake(tables={"orders": {"no_key": "rows"}})], "no_key: there is no such key; did you mean 'key'?"),
        ("targets", [lake(connections=["env:T"])], "no such key; allowed are catalog, keep"),
        ("stage.bucket", "x", "stage.bucket: there is no such key; allowed are compression_level, s3_endpoint"),
        ("sources.0.server_id", "abc", "sources.0.server_id: must be a whole number (got 'abc')"),
        ("sources.0.heartbeat_s", "often", "sources.0.heartbeat_s: must be a number (got 'often')"),
        ("tables", ["shop"], "tables: must be keys with values, such as {key: value}"),
        ("targets", [{"name": "t", "connections": "env:T", "tables": {}}], "targets.0.connections: must be a list"),
        ("stage.uri", "/tmp/stage", "must begin with file:/// or s3://bucket"),
        ("stage.uri", "file:///tmp/lake[12]", "for a pattern, and would read the files of other folders"),
        ("stage.uri", "file:///tmp/lake%5B12%5D", "for a pattern"),
        ("stage.uri", "s3://bucket/a*b", "for a pattern"),
        ("stage.uri", "s3://bucket/{a,b}", "for a pattern"),
        ("schedule", "hourly", "schedule: 'hourly' is not a cron expression"),
        ("limits.ring_items", 1000, "ring_items 1000: must be a power of two"),
        ("routes", [{"match": "a", "to": r"\1"}], "has no group 1"),
        ("routes", [{"match": "(?P<n>a)", "to": r"\g<m>"}], "has no group m"),
        ("routes", [{"match": "a", "to": r"\0"}], "has no group 0"),
        ("routes", [{"match": "a", "to": r"x\d"}], r"bad escape \d"),
        ("routes", [{"match": "(a)", "to": r"\g<1"}], "missing >"),
        ("targets", [target(table="{shard}")], "targets.0.tables.orders.table: may use {logical}"),
        ("targets", [target(sharding={"key": "id", "tables": 2})], "2 tables per sharding need {t} in the template"),
        ("targets", [target(sharding={"key": "id", "databases": 2})], "need {d} in the template"),
        ("targets", [target(on_truncate="apply", guard={"store": "table"})], "apply needs guard.store: row"),
        ("targets", [target(no_key="rows", freshness="at")], "takes neither freshness nor on_row_error: quarantine"),
        ("targets", [target(no_key="rows", on_row_error="quarantine")], "takes neither freshness nor on_row_error"),
        ("targets", [target(key=[])], "targets.0.tables.orders.key: "),
        ("targets", [target(key=[""])], "targets.0.tables.orders.key.0: "),
        ("targets", [target(key=["id", "ID"])], "key ['id', 'ID']: a column is named twice"),
        ("targets", [target(sharding={"key": ""})], "targets.0.tables.orders.sharding.key: "),
        ("limits.lease_s", float("inf"), "limits.lease_s: "),
        ("limits.batch_age_s", float("nan"), "limits.batch_age_s: "),
        ("targets", [target(), target()], "targets: the name 'shards' is used twice"),
        (
            "targets",
            [target(database="s{d}", sharding={"key": "id", "databases": 3}) | {"connections": ["env:A", "env:B"]}],
            "2 connections, but tables.orders is sharded over 3 databases",
        ),
        (
            "sources",
            [{**MINIMAL["sources"][0], "name": "a"}, {**MINIMAL["sources"][0], "name": "b"}],
            "two read env:SHOP as server_id 77",
        ),
    ],
)
def test_a_problem_names_its_key_path_and_what_is_allowed(path: str, value: Any, expected: str) -> None:
    assert expected in problem(path, value)


def test_all_problems_are_reported_together() -> None:
    text = yaml.safe_dump({**MINIMAL, "pipeline": "1", "stage": {}, "metal": 1})
    with pytest.raises(UsageError, match=r"3 problems in the pipeline"):
        parse(text, where="shop.yaml")


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("sources.0.connection", "mysql://root:geheim@db"),
        ("sources.0.connection", "mysql://root:ge/heim@db"),
        ("meta.url", "postgresql://lockstep:geheim@db/meta"),
        ("stage.uri", "s3://key:geheim@bucket"),
    ],
)
def test_a_password_in_the_file_is_refused_and_not_repeated(path: str, value: str) -> None:
    text = problem(path, value)
    assert path in text
    assert "heim" not in text


def test_a_source_is_one_server_or_several() -> None:
    source = parse(changed("sources.0.connection", "env:A"), where="x").sources[0]
    several = parse(changed("sources.0.connection", ["env:A", "airflow:b"]), where="x").sources[0]
    assert (source.connections, several.connections) == (("env:A",), ("env:A", "airflow:b"))
    assert "1 problem in the pipeline" in problem("sources.0.connection", ["env:A", "mysql://x@y"])
    assert "at least 1 item" in problem("sources.0.connection", [])


def test_a_meta_url_may_name_a_user_without_a_password() -> None:
    assert parse(changed("meta.url", "postgresql://lockstep@db/meta"), where="x").meta.url.endswith("@db/meta")


@pytest.mark.parametrize(
    "written", ["2026-11-21T04:00:00Z", "'2026-11-21T05:00:00+01:00'", "2026-11-21 04:00:00+00:00"]
)
def test_a_start_time_means_the_same_quoted_or_not(written: str) -> None:
    text = changed("sources.0.start", "HERE").replace("HERE", f"{{timestamp: {written}}}")
    start = parse(text, where="x").sources[0].start
    assert not isinstance(start, str)
    assert start.timestamp == "2026-11-21T04:00:00Z"


def test_a_key_written_twice_is_refused_with_its_line() -> None:
    with raises(UsageError, "config.invalid", match=r"'pipeline' is written twice[\s\S]*line 2"):
        parse("pipeline: a\npipeline: b\n", where="x")


@pytest.mark.parametrize(
    "text",
    ["a: [", "a: b: c", "!!python/object:os.system {}", "when: 2026-13-45T00:00:00Z", "", "# nothing yet", "- a", "7"],
)
def test_text_that_is_not_a_mapping_of_yaml_is_refused(text: str) -> None:
    with raises(UsageError, "config.invalid"):
        parse(text, where="x")


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    (tmp_path / "latin1.yaml").write_bytes(b"pipeline: \xe4")
    for name in ("absent.yaml", "latin1.yaml", "."):
        with raises(UsageError, "config.invalid") as caught:
            load(tmp_path / name)
        assert caught.value.where == str(tmp_path / name)


def test_a_file_says_what_its_text_says_but_for_paths_which_are_absolute(tmp_path: Path) -> None:
    quality = {"sample_rows": 3, "suites": [{"table": "orders", "path": "own/orders.yaml"}]}
    text = changed("quality", quality)
    file = tmp_path / "shop.yaml"
    file.write_text(text)
    quality["suites"] = [{"table": "orders", "path": str(tmp_path / "own/orders.yaml")}]
    assert load(file) == parse(changed("quality", quality), where="shop.yaml")


def test_a_star_takes_the_tables_that_have_no_rule_of_their_own() -> None:
    pipeline = parse(changed("targets", [{**target(), "tables": {"orders": {}, "*": {"table": "x"}}}]), where="x")
    assert pipeline.targets[0].table("orders") != pipeline.targets[0].table("other")
    without = parse(changed("targets", [target()]), where="x")
    assert without.targets[0].table("other") is None


@pytest.mark.parametrize(
    ("routes", "alone"),
    [
        ([], True),
        ([{"match": r"shop\.orders", "to": "shop.orders"}], True),
        ([{"match": r"shop\.orders_\d+", "to": "shop.orders"}], False),
        ([{"match": r"(shop\.o.*)", "to": r"\1"}], False),
        ([{"match": r"crm\..*", "to": "people"}], True),
    ],
)
def test_which_table_feeds_a_logical_one_alone_is_told_by_the_routes(routes: list[Any], alone: bool) -> None:
    pipeline = parse(changed("routes", routes), where="test")
    assert pipeline.feeds_alone("shop.orders", "shop.orders") is alone


@pytest.mark.parametrize(("to", "alone"), [("orders", True), ("shop.orders", False), ("other.orders", True)])
def test_a_table_that_has_the_name_of_a_logical_one_feeds_it_too(to: str, alone: bool) -> None:
    pipeline = parse(changed("routes", [{"match": r"shop\.o", "to": to}]), where="test")
    assert pipeline.feeds_alone("shop.o", to) is alone


@pytest.mark.parametrize(
    "names",
    [
        ("airflow:shop-a", "airflow:shop_a"),
        ("airflow:shop_a", "airflow:SHOP.A"),
        ("env:LOCKSTEP_CONN_SHOP_A", "airflow:shop-a"),
    ],
)
def test_two_servers_that_are_read_from_one_variable_are_refused(names: tuple[str, str]) -> None:
    """The last one would win: a source read, or a target written, at another server."""
    among_sources = changed("sources.0.connection", list(names))
    between = yaml.safe_load(changed("sources.0.connection", names[0]))
    between["targets"] = [{"name": "t", "connections": [names[1]], "tables": {"orders": {}}}]
    for text in (among_sources, yaml.safe_dump(between)):
        with pytest.raises(UsageError, match="are both read from the variable") as caught:
            parse(text, where="shop.yaml")
        assert all(name in caught.value.what for name in names)


def test_one_server_may_be_source_and_target() -> None:
    data = yaml.safe_load(changed("sources.0.connection", "airflow:shop"))
    data["targets"] = [{"name": "t", "connections": ["airflow:shop"], "tables": {"orders": {}}}]
    assert parse(yaml.safe_dump(data), where="shop.yaml").targets[0].connections == ("airflow:shop",)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("url: ", "url: 'mysql://u@h/db?password=s3cret' #"),
        ("url: ", "url: 'postgresql://h/db?user=u&sslpassword=s3cret' #"),
        ("url: ", "url: 'env:mysql://u:s3cret@h/db' #"),
        ("stage: {", "stage: {s3_endpoint: 'http://key:s3cret@h:9000', "),
        ("stage: {", "stage: {s3_endpoint: s3cret, "),
        ("stage: {", "stage: {s3_endpoint: 'https://h/?k=s3cret', "),
        ("tables:", "spark: {conf: {spark.hadoop.fs.s3a.secret.key: s3cret}}\ntables:"),
        ("tables:", "spark: {conf: {spark.hadoop.fs.s3a.bucket.b.access.key: s3cret}}\ntables:"),
        ("tables:", "spark: {conf: {spark.authenticate.secret: s3cret}}\ntables:"),
        ("tables:", "spark: {conf: {spark.executorEnv.DB: 'mysql://u:s3cret@h'}}\ntables:"),
        *(
            ("[x]", f"[x], columns: {{mask: [y], salt: {salt}}}")
            for salt in ("s3cret", "env:s3cret-", "airflow:s3cret", "{x: s3cret}")
        ),
    ],
)
def test_a_secret_in_any_place_of_the_file_is_refused_and_not_repeated(before: str, after: str) -> None:
    text = (
        "pipeline: shop\nsources: [{name: a, connection: env:A, server_id: 1}]\ntables: {include: [x]}\n"
        "stage: {uri: 's3://b/p'}\nmeta:\n  url: sqlite:////m.db\n"
    )
    parse(text, where="x.yaml")
    assert before in text
    with raises(UsageError, "config.invalid") as caught:
        parse(text.replace(before, after, 1), where="x.yaml")
    assert "s3cret" not in str(caught.value)


def test_every_connection_of_a_pipeline_is_among_its_references() -> None:
    """Airflow gives tasks the connections that are named there, and no others."""
    text = yaml.safe_load(changed("snapshot", {"throttle": {"replicas": ["airflow:throttle"]}}))
    text["sources"][0] |= {"connection": ["airflow:first", "airflow:second"]}
    text["targets"] = [target()]
    written = yaml.safe_dump(text)
    named = {word for word in written.replace("'", " ").split() if word.startswith(("airflow:", "env:"))}
    assert set(parse(written, where="test").references) == named
    assert len(named) == 4
