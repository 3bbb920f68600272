"""A captured table that a MERGE table unites is refused: rows written through that are logged under its name only."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from cdc_core.config import parse
from cdc_core.errors import DataAtRisk, Refused, severity
from cdc_core.model.block import Block
from cdc_core.operations.check.check_sources import check_tables
from cdc_core.operations.check.findings import Findings
from cdc_core.operations.new_pipeline import Wishes, draft
from tests.lab.databases import own_database
from tests.lab.origin import Origin, changes_in
from tests.lab.refusals import refusal
from tests.lab.shell import export

MYISAM = "CREATE TABLE {} (id INT NOT NULL, v INT, KEY (id)) ENGINE=MyISAM"
MERGE = "CREATE TABLE {} (id INT NOT NULL, v INT, KEY (id)) ENGINE=MERGE UNION=({}) INSERT_METHOD=LAST"


@pytest.fixture
def other(origin: Origin) -> Iterator[str]:
    """A database that is not captured, beside the captured one with the tables t and apart."""
    with own_database(origin.sql) as name:
        origin.execute(MYISAM.format("t"), MYISAM.format("apart"))
        yield name


def staged(blocks: Sequence[Block]) -> list[tuple[str, int]]:
    return sorted((schema.table, row["id"]) for schema, row in changes_in(blocks))


@pytest.mark.parametrize("gone", [False, True])
@pytest.mark.parametrize("before", [False, True])
def test_a_table_that_a_merge_table_unites_stops_the_source_or_is_isolated(
    origin: Origin, other: str, before: bool, gone: bool
) -> None:
    """before: the MERGE table is there when reading begins, else the log makes it. gone: it is dropped again."""
    made = MERGE.format(f"{other}.m", f"{other}.m0"), f"ALTER TABLE {other}.m UNION=({origin.name}.t)"
    origin.execute(MYISAM.format(f"{other}.m0"))
    start = origin.end()
    origin.execute(*made, f"INSERT INTO {other}.m VALUES (1, 1)", "INSERT INTO apart VALUES (2, 2)")
    if before:
        start = origin.end()
        origin.execute("INSERT INTO apart VALUES (3, 3)")
    if gone:
        origin.execute(f"DROP TABLE {other}.m")
        if before:
            return  # it was refused for as long as it was there
    error = refusal(lambda: origin.drain(start))
    assert (severity(type(error)), error.code) == (Refused, "source.unsupported_table")
    assert (f"{origin.name}.t " in error.what, "apart" in error.what) == (True, False)
    blocks = origin.drain(start, on_unreadable="isolate")
    assert list(blocks[-1].isolated) == [f"{origin.name}.t"]
    assert staged(blocks) == [("apart", 3 if before else 2)]


def test_a_merge_table_that_cannot_be_read_is_named_in_the_log(
    origin: Origin, other: str, caplog: pytest.LogCaptureFixture
) -> None:
    origin.execute(MYISAM.format(f"{other}.u"), MERGE.format(f"{other}.m", f"{other}.u"))
    start = origin.end()
    origin.drain(start)
    assert "MERGE table" not in caplog.text
    origin.execute(f"DROP TABLE {other}.u")
    origin.drain(start)
    assert f"which tables the MERGE table `{other}`.`m` unites is unknown" in caplog.text


def test_rows_of_tables_that_are_united_elsewhere_are_read_as_ever(origin: Origin, other: str) -> None:
    origin.execute(MYISAM.format(f"{other}.t"), MERGE.format(f"{other}.m", f"{other}.t"))
    start = origin.end()
    for n in range(3):
        origin.execute(
            f"INSERT INTO {other}.m VALUES ({n}, 1)", f"INSERT INTO t VALUES ({n}, 1)",
            f"INSERT INTO apart VALUES ({n}, 1)", f"INSERT INTO {other}.t VALUES ({n}, 1)",
        )  # fmt: skip
    origin.execute(f"TRUNCATE TABLE {other}.m")
    assert staged(origin.drain(start)) == sorted((table, n) for n in range(3) for table in ("t", "apart"))


def test_a_merge_table_itself_is_not_captured(origin: Origin, other: str) -> None:
    origin.execute(MYISAM.format(f"{other}.u"), MERGE.format("m", f"{other}.u"))
    start = origin.end()
    origin.execute("INSERT INTO m VALUES (1, 1)")
    assert refusal(lambda: origin.drain(start)).code == "source.unsupported_table"
    blocks = origin.drain(start, on_unreadable="isolate")
    assert "source.unsupported_table" in blocks[-1].isolated[f"{origin.name}.m"]
    assert staged(blocks) == []


def test_a_place_where_the_log_makes_a_merge_table_can_be_accepted(origin: Origin, other: str) -> None:
    start = origin.end()
    origin.execute(MERGE.format(f"{other}.m", f"{origin.name}.t"), f"DROP TABLE {other}.m")
    error = refusal(lambda: origin.drain(start))
    assert not isinstance(error, DataAtRisk)
    assert f"--accept {start.position.file}:" in str(error)


def test_init_leaves_both_out_and_check_warns_of_them(origin: Origin, other: str, tmp_path: Any) -> None:
    origin.execute(MERGE.format("m", f"{origin.name}.t"))
    export({"SOURCE": origin.sql.url})
    made = draft(Wishes("shop", "env:SOURCE", (rf"{origin.name}\..*",), tmp_path))
    assert [name for name, _ in made.captured] == [f"{origin.name}.apart"]
    left = [f"{origin.name}.m", f"{origin.name}.t"]
    assert [(name, "MERGE" in why) for name, why in made.left_out] == [(name, True) for name in left]
    drafted = parse(made.text, where="test")
    pipeline = drafted.model_copy(update={"tables": drafted.tables.model_copy(update={"exclude": ()})})
    findings = Findings()
    check_tables(pipeline, pipeline.sources[0], origin.control, findings)
    warned = [finding for finding in findings.made if "MERGE" in finding.what]
    assert [finding.status for finding in warned] == ["warn", "warn"]
