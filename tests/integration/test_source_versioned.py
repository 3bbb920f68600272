"""System-versioned tables of MariaDB: their old versions are in the log as rows of the live row's key, so that they are
refused wherever a captured one could be met."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from cdc_core.config import parse
from cdc_core.errors import Refused
from cdc_core.operations.check.check_sources import check_tables
from cdc_core.operations.check.findings import Findings
from cdc_core.operations.new_pipeline import Wishes, draft
from cdc_core.source.host.table_survey import find_tables
from tests.lab.origin import Origin, own_origin
from tests.lab.refusals import raises, refusal
from tests.lab.shell import export

SHAPES = {
    "columns that the server adds": "(id INT PRIMARY KEY, v INT) WITH SYSTEM VERSIONING",
    "columns of its own": "(id INT PRIMARY KEY, v INT, s TIMESTAMP(6) GENERATED ALWAYS AS ROW START, "
    "e TIMESTAMP(6) GENERATED ALWAYS AS ROW END, PERIOD FOR SYSTEM_TIME (s, e)) WITH SYSTEM VERSIONING",
    "one column": "(id INT PRIMARY KEY, v INT WITH SYSTEM VERSIONING, w INT)",
    "no key": "(id INT, v INT) WITH SYSTEM VERSIONING",
    "partitions": "(id INT PRIMARY KEY, v INT) WITH SYSTEM VERSIONING PARTITION BY SYSTEM_TIME LIMIT 1 "
    "(PARTITION p0 HISTORY, PARTITION p1 HISTORY, PARTITION pn CURRENT)",
}
CHANGES = ("INSERT INTO t (id, v) VALUES (1, 1)", "UPDATE t SET v = 2", "DELETE HISTORY FROM t", "DELETE FROM t")


@pytest.fixture
def origin(mariadb: Any) -> Iterator[Origin]:
    with own_origin(mariadb) as origin:
        yield origin
    mariadb.run("SET GLOBAL binlog_row_metadata = FULL")


@pytest.mark.parametrize("metadata", ["FULL", "MINIMAL"])
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_no_change_of_a_system_versioned_table_is_staged(origin: Origin, shape: str, metadata: str) -> None:
    origin.execute_on_server(f"SET GLOBAL binlog_row_metadata = {metadata}")
    origin.execute(f"CREATE TABLE t {shape}", "CREATE TABLE u (id INT PRIMARY KEY)")
    for change in CHANGES:
        start = origin.end()
        origin.execute(change, "INSERT INTO u VALUES (1)", "DELETE FROM u")
        assert refusal(lambda start=start: origin.drain(start)).code == "source.unsupported_table"  # type: ignore[misc]
        blocks = origin.drain(start, on_unreadable="isolate")
        assert [part.schema.table for block in blocks for part in block.tables] == ["u"]
        assert "source.unsupported_table" in blocks[-1].isolated[f"{origin.name}.t"]
        origin.drain(start, include=[rf"{origin.name}\.u"])


@pytest.mark.parametrize("removal", ["DROP TABLE t", "ALTER TABLE t DROP SYSTEM VERSIONING"])
def test_nor_is_one_that_is_gone_or_versioned_no_more_when_it_is_read(origin: Origin, removal: str) -> None:
    origin.execute(f"CREATE TABLE t {SHAPES['columns that the server adds']}")
    start = origin.end()
    origin.execute(*CHANGES, removal)
    with raises(Refused, "source.unsupported_table"):
        origin.drain(start, on_unlogged_change="record")


def test_a_table_whose_own_columns_have_these_names_is_read(origin: Origin) -> None:
    origin.execute("CREATE TABLE t (id INT PRIMARY KEY, row_start TIMESTAMP(6) NULL, row_end TIMESTAMP(6) NULL)")
    start = origin.end()
    origin.execute("INSERT INTO t (id) VALUES (1)")
    assert [part.schema.table for block in origin.drain(start) for part in block.tables] == ["t"]


def test_init_leaves_it_out_and_check_warns_of_it(origin: Origin, tmp_path: Any) -> None:
    origin.execute(f"CREATE TABLE t {SHAPES['columns of its own']}", "CREATE TABLE u (id INT PRIMARY KEY)")
    (found_table,) = [
        table for table in find_tables(origin.control, lambda d, t: d == origin.name) if table.table == "t"
    ]
    assert (found_table.kind, found_table.schema) == ("table", None)
    export({"SOURCE": origin.sql.url})
    made = draft(Wishes("shop", "env:SOURCE", (rf"{origin.name}\..*",), tmp_path))
    assert [name for name, _ in made.captured] == [f"{origin.name}.u"]
    assert [(name, why.partition(":")[0]) for name, why in made.left_out] == [(f"{origin.name}.t", "system-versioned")]
    drafted = parse(made.text, where="test")
    # With the table in the patterns all the same:
    pipeline = drafted.model_copy(update={"tables": drafted.tables.model_copy(update={"exclude": ()})})
    findings = Findings()
    checked = check_tables(pipeline, pipeline.sources[0], origin.control, findings)
    assert [schema.table for schemas in checked.logical.values() for schema in schemas] == ["u"]
    (warned,) = [finding for finding in findings.made if "system-versioned" in finding.what]
    assert (warned.status, "tables.exclude" in warned.remedy) == ("warn", True)
