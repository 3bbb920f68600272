"""What Airflow's OpenLineage provider emits about a run: from its own file transport, after a run on real servers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from cdc_core import config
from lockstep_airflow.lineage import Name, staged_name
from tests.dags.airflow_line import AirflowLine, ended, fill, now, require_ids_and_counts_only
from tests.dags.lineage_events import completed, emitting

COMMIT = "cdc_lineage.to_main.commit"
_SUITE = """\
{"expectations": [{"type": "expect_column_values_to_not_be_null", "kwargs": {"column": "v"}}]}
"""


def test_a_run_says_from_which_tables_and_columns_its_rows_came_how_many_and_what_the_suites_found(
    line: Callable[..., AirflowLine], source_database: Any, mariadb_target: Any, tmp_path: Path
) -> None:
    place = f"{source_database.name}_to"
    suite = tmp_path / "suite.json"
    suite.write_text(_SUITE)
    table = f"{source_database.name}.t"
    sharded = {"database": place, "table": "t_{t}", "sharding": {"key": "id", "databases": 1, "tables": 2}}
    tables = {table: sharded, "*": {"database": place}}
    target = {
        "name": "main", "connections": ["airflow:lineage_to"], "on_missing_table": "create", "tables": tables,
    }  # fmt: skip
    run = line(
        "lineage",
        mode="reschedule",
        tables={"columns": {"mask": [rf"{source_database.name}\.t\.mail"], "salt": "env:SALT"}},
        targets=[target],
        quality={"suites": [{"table": table, "stage": "merged", "path": str(suite)}]},
        spark="connection: spark_default",
    )
    events_file = tmp_path / "events.json"
    run.environ |= emitting(events_file) | {"AIRFLOW_CONN_LINEAGE_TO": mariadb_target.url, "SALT": "grain"}
    source_database.execute(
        "CREATE TABLE t (id BIGINT PRIMARY KEY, v INT, mail VARCHAR(50))",
        "CREATE TABLE other (id INT PRIMARY KEY)",
        *(f"INSERT INTO t VALUES ({n}, {n}, 'a@b')" for n in range(5)),
        "INSERT INTO other VALUES (1), (2)",
        "DELETE FROM t WHERE id = 4",
    )
    mariadb_target.run(f"CREATE DATABASE {place}")
    try:
        # Some seconds from now: the first poke finds that the window's end has not come, and gives the worker back.
        with ended(run.start(now() + timedelta(seconds=10))) as process:
            run.wait_for(lambda: COMMIT in completed(events_file), process)
    finally:
        mariadb_target.run(f"DROP DATABASE {place}")

    require_ids_and_counts_only(run, 8, source_database.server.password)
    complete = completed(events_file)
    for kept in (events_file.read_text(), run.output):
        assert source_database.server.password not in kept
    assert "settings, logins or code are not those it began with" not in run.output, "the run's Spark was started again"
    server = f"mysql://{source_database.server.host}:{source_database.server.port}"
    to, other = f"mysql://{mariadb_target.host}:{mariadb_target.port}", f"{source_database.name}.other"

    def named(datasets: list[Any]) -> dict[tuple[str, str], Any]:
        return {(dataset["namespace"], dataset["name"]): dataset for dataset in datasets}

    extract = complete["cdc_lineage.extract"]
    assert set(named(extract["inputs"])) == {(server, table), (server, other)}
    staged = named(extract["outputs"])
    folder = {name: ("file", f"{tmp_path}/stage/changes/cdc_table={name}") for name in (table, other)}
    assert set(staged) == set(folder.values())
    assert staged[folder[table]]["outputFacets"]["outputStatistics"]["rowCount"] == 6
    origins = staged[folder[table]]["facets"]["columnLineage"]["fields"]

    def origin(fields: Mapping[str, Any], column: str) -> tuple[str, str, str, bool]:
        ((field,),) = (fields[column]["inputFields"],)
        (how,) = field["transformations"]
        return field["name"], field["field"], how["subtype"], how["masking"]

    assert origin(origins, "v") == (table, "v", "IDENTITY", False)
    assert origin(origins, "mail") == (table, "mail", "TRANSFORMATION", True)

    committed = named(complete[COMMIT]["outputs"])
    logical = ("lockstep://lineage", f"main.{table}")
    assert set(committed) == {logical, (to, f"{place}.other")}
    shards = committed[logical]["facets"]["symlinks"]["identifiers"]
    assert [(shard["namespace"], shard["name"]) for shard in shards] == [(to, f"{place}.t_{n}") for n in range(2)]
    assert committed[logical]["outputFacets"]["outputStatistics"]["rowCount"] == 4
    assert committed[to, f"{place}.other"]["outputFacets"]["outputStatistics"]["rowCount"] == 2
    inputs = named(complete[COMMIT]["inputs"]).items()
    read = {name: dataset["inputFacets"]["inputStatistics"]["rowCount"] for name, dataset in inputs}
    assert read == {folder[table]: 6, folder[other]: 2}
    (origin_field,) = committed[logical]["facets"]["columnLineage"]["fields"]["v"]["inputFields"]
    assert (origin_field["namespace"], origin_field["name"]) == folder[table]

    judged = named(complete["cdc_lineage.to_main.quality"]["inputs"])
    assert all(
        assertion["success"] for assertion in judged[logical]["inputFacets"]["dataQualityAssertions"]["assertions"]
    )
    found = judged[folder[table]]["inputFacets"]["dataQualityAssertions"]["assertions"]
    own = [assertion for assertion in found if assertion.get("column") == "v"]
    assert [(assertion["assertion"], assertion["success"]) for assertion in own] == [
        ("expect_column_values_to_not_be_null", True)
    ]
    assert len(judged[folder[other]]["inputFacets"]["dataQualityAssertions"]["assertions"]) == len(found) - 1


@pytest.mark.matrix
def test_a_copy_says_from_which_table_its_rows_came(
    line: Callable[..., AirflowLine], source_database: Any, tmp_path: Path
) -> None:
    fill(source_database, 30)
    run = replace(line("older_lineage", snapshot="mode: initial"), suffix="_snapshot")
    run.environ |= emitting(tmp_path / "events.json")
    copy = f"{run.dag_id}.copy"
    with ended(run.start(None)) as process:
        run.wait_for(lambda: copy in completed(tmp_path / "events.json"), process)
    event = completed(tmp_path / "events.json")[copy]
    assert [dataset["name"] for dataset in event["inputs"]] == [f"{source_database.name}.t"]
    assert [output["outputFacets"]["outputStatistics"]["rowCount"] for output in event["outputs"]] == [30]


@pytest.mark.parametrize(
    ("uri", "name"),
    [
        ("file:///data/stage", Name("file", "/data/stage/changes/cdc_table=shop.orders")),
        ("s3://lake", Name("s3://lake", "changes/cdc_table=shop.orders")),
        ("s3://lake/cdc/", Name("s3://lake", "cdc/changes/cdc_table=shop.orders")),
    ],
)
def test_a_staged_table_is_named_by_its_folder(uri: str, name: Name, write_pipeline: Any) -> None:
    pipeline = config.load(write_pipeline("named"))
    stage = pipeline.stage.model_copy(update={"uri": uri})
    assert staged_name(pipeline.model_copy(update={"stage": stage}), "shop.orders") == name
