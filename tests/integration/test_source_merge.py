"""Rows of a captured table that are written through a MERGE table are logged under the MERGE table's name."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from cdc_core.check.findings import Findings
from cdc_core.check.sources import check_tables
from cdc_core.config import parse
from cdc_core.errors import DataAtRisk, severity
from cdc_core.init import Wishes, draft
from cdc_core.model.block import Block
from tests.integration.source_origin import Origin, fresh_name
from tests.refusals import refusal

MYISAM = "CREATE TABLE {} (id INT NOT NULL, v INT, KEY (id)) ENGINE=MyISAM"
MERGE = "CREATE TABLE {} (id INT NOT NULL, v INT, KEY (id)) ENGINE=MERGE UNION=({}) INSERT_METHOD=LAST"


@pytest.fixture(params=["FULL", "MINIMAL"])
def metadata(request: pytest.FixtureRequest, origin: Origin) -> Iterator[None]:
    origin.execute_on_server(f"SET GLOBAL binlog_row_metadata = {request.param}")
    yield
    origin.execute_on_server("SET GLOBAL binlog_row_metadata = FULL")


@pytest.fixture
def other(origin: Origin, metadata: None) -> Iterator[str]:
    """A database that is not captured, beside the captured one with the tables t and apart."""
    name = fresh_name()
    origin.execute_on_server(f"CREATE DATABASE {name}")
    origin.execute(MYISAM.format("t"), MYISAM.format("apart"))
    yield name
    origin.execute_on_server(f"DROP DATABASE {name}")


def notes(blocks: Sequence[Block]) -> list[str]:
    return [note for block in blocks for note in block.notes if "needs re-sync" in note]


def staged(blocks: Sequence[Block]) -> list[tuple[str, str, int]]:
    return [
        (part.schema.table, row["_cdc_op"], row["id"])
        for block in blocks
        for part in block.tables
        for row in part.rows.to_pylist()
    ]


CHANGES = {
    "INSERT": "INSERT INTO {o}.m VALUES (1, 1)",
    "UPDATE": "UPDATE {o}.m SET v = v + 1",
    "DELETE": "DELETE FROM {o}.m WHERE id = 0",
    "TRUNCATE": "TRUNCATE TABLE {o}.m",
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_change_through_a_merge_table_is_an_unlogged_change_of_the_captured_table(
    origin: Origin, other: str, change: str
) -> None:
    origin.execute("INSERT INTO t VALUES (0, 0)", MERGE.format(f"{other}.m", f"{origin.name}.t"))
    start = origin.end()
    origin.execute(CHANGES[change].format(o=other))
    for _ in range(2):
        error = refusal(lambda: origin.drain(start))
        assert (severity(type(error)), error.code) == (DataAtRisk, "source.unlogged_change")
        assert (f"{origin.name}.t " in error.what, "apart" in error.what) == (True, False)
        (note,) = notes(origin.drain(start, on_unlogged_change="record"))
        assert f"needs re-sync of table {origin.name}.t:" in note
        if change == "TRUNCATE":
            return  # its text alone says nothing of the tables: what a MERGE table was is known while it is there
        origin.execute(f"DROP TABLE IF EXISTS {other}.m")


BETWEEN = {
    "is altered to unite others": "ALTER TABLE {o}.m UNION=({c}.apart)",
    "is renamed": "RENAME TABLE {o}.m TO {o}.n",
    "becomes another table": "DROP TABLE {o}.m; CREATE TABLE {o}.m (id INT NOT NULL, v INT, KEY (id)) ENGINE=MERGE",
    "is broken": "DROP TABLE {o}.u",
}


def test_a_merge_table_that_cannot_be_read_is_named_in_the_log(
    origin: Origin, other: str, caplog: pytest.LogCaptureFixture
) -> None:
    origin.execute(MYISAM.format(f"{other}.u"), MERGE.format(f"{other}.m", f"{origin.name}.t, {other}.u"))
    start = origin.end()
    origin.drain(start)
    assert "MERGE table" not in caplog.text
    origin.execute(f"DROP TABLE {other}.u")
    origin.drain(start)
    assert f"a TRUNCATE of the MERGE table `{other}`.`m` will not be noticed" in caplog.text


@pytest.mark.parametrize("then", BETWEEN)
def test_also_where_the_merge_table_is_another_one_when_it_is_read(origin: Origin, other: str, then: str) -> None:
    origin.execute(MYISAM.format(f"{other}.u"), MERGE.format(f"{other}.m", f"{origin.name}.t, {other}.u"))
    start = origin.end()
    origin.execute(f"INSERT INTO {other}.m VALUES (1, 1)", *BETWEEN[then].format(c=origin.name, o=other).split("; "))
    error = refusal(lambda: origin.drain(start))
    assert (error.code, f"through {other}.m" in error.what) == ("source.unlogged_change", True)


def test_a_truncate_through_a_merge_table_that_the_log_defines_is_one_too(origin: Origin, other: str) -> None:
    start = origin.end()
    name = f"{other}.m"
    origin.execute(
        MERGE.format(name, f"{origin.name}.apart"),
        f"ALTER TABLE {name} UNION = (t)",
        f"RENAME TABLE {name} TO {name}2",
        f"CREATE TABLE {name}3 LIKE {name}2",
        f"TRUNCATE TABLE {name}2",
        f"TRUNCATE TABLE {name}3",
        f"DROP TABLE {name}2, {name}3",
    )
    found = notes(origin.drain(start, on_unlogged_change="record"))
    assert len([note for note in found if f"table {origin.name}.t:" in note]) == 2
    assert not [note for note in found if "apart" in note]


def test_rows_of_tables_that_are_united_elsewhere_are_read_as_ever(origin: Origin, other: str) -> None:
    origin.execute(
        MYISAM.format(f"{other}.t"), MYISAM.format(f"{other}.gone"), MERGE.format(f"{other}.m", f"{other}.t"),
    )  # fmt: skip
    start = origin.end()
    for n in range(3):
        origin.execute(
            f"INSERT INTO {other}.m VALUES ({n}, 1)", f"INSERT INTO t VALUES ({n}, 1)",
            f"INSERT INTO {other}.gone VALUES ({n}, 1)", f"INSERT INTO apart VALUES ({n}, 1)",
            f"INSERT INTO {other}.t VALUES ({n}, 1)",
        )  # fmt: skip
    origin.execute(f"DROP TABLE {other}.gone", f"TRUNCATE TABLE {other}.m")
    assert sorted(staged(origin.drain(start))) == sorted((table, "c", n) for n in range(3) for table in ("t", "apart"))


def test_a_trigger_that_writes_through_a_merge_table_is_seen(origin: Origin, other: str) -> None:
    if not origin.mariadb:
        return  # with GTIDs MySQL does not let one statement write to both kinds of tables
    origin.execute(
        MERGE.format(f"{other}.m", f"{origin.name}.t"), f"CREATE TABLE {other}.i (id INT PRIMARY KEY)",
        f"CREATE TRIGGER {other}.x AFTER INSERT ON {other}.i FOR EACH ROW INSERT INTO {other}.m VALUES (new.id, 1)",
    )  # fmt: skip
    start = origin.end()
    origin.execute(f"INSERT INTO {other}.i VALUES (1)")
    assert refusal(lambda: origin.drain(start)).code == "source.unlogged_change"


def test_a_session_that_logs_statements_changes_captured_rows_through_it_too(origin: Origin, other: str) -> None:
    origin.execute(MERGE.format(f"{other}.m", f"{origin.name}.t"))
    start = origin.end()
    origin.execute("SET SESSION binlog_format = STATEMENT", f"INSERT INTO {other}.m VALUES (1, 1)")
    assert refusal(lambda: origin.drain(start)).code == "source.unlogged_change"


def test_a_merge_table_itself_is_not_captured(origin: Origin, other: str) -> None:
    origin.execute(MERGE.format("m", f"{origin.name}.t"))
    start = origin.end()
    origin.execute("INSERT INTO m VALUES (1, 1)")
    assert refusal(lambda: origin.drain(start)).code == "source.unsupported_table"
    blocks = origin.drain(start, on_unreadable="isolate", on_unlogged_change="record")
    assert "source.unsupported_table" in blocks[-1].isolated[f"{origin.name}.m"]
    assert (staged(blocks), len(notes(blocks))) == ([], 1)


def test_init_leaves_it_out_and_check_warns_of_it(origin: Origin, other: str, tmp_path: Any) -> None:
    origin.execute(MERGE.format("m", f"{origin.name}.t"))
    environ = {"SOURCE": origin.sql.url}
    made = draft(Wishes("shop", "env:SOURCE", (rf"{origin.name}\..*",), tmp_path), environ=environ)
    assert sorted(name for name, _ in made.captured) == [f"{origin.name}.apart", f"{origin.name}.t"]
    assert [(name, "MERGE" in why) for name, why in made.left_out] == [(f"{origin.name}.m", True)]
    drafted = parse(made.text, where="test")
    pipeline = drafted.model_copy(update={"tables": drafted.tables.model_copy(update={"exclude": ()})})
    findings = Findings()
    check_tables(pipeline, pipeline.sources[0], origin.control, environ, findings)
    (warned,) = [one for one in findings.made if "MERGE" in one.what]
    assert warned.status == "warn"
