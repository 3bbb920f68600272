"""An operator's way past an event that stops a source: --accept FILE:OFFSET, and what it leaves behind."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from cdc_core.cli.app import app
from cdc_core.errors import DataAtRisk, UsageError
from cdc_core.model.coverage import How
from tests.lab.lab import Lab
from tests.lab.origin import Origin
from tests.lab.refusals import raises
from tests.lab.staged_tables import table_state
from tests.lab.waiting import wait_until


class Stopped(Lab):
    """A pipeline that has something in its log that stops it."""

    def cli(self, *options: str) -> Result:
        return CliRunner().invoke(
            app, ["extract", "shop", "--pipelines", str(self.folder), *options], env={"SOURCE": self.origin.sql.url}
        )

    def accept(self, *places: tuple[str, int]) -> None:
        self.extract(accept=places)

    def stopped_at(self, code: str = "source.unlogged_change") -> tuple[str, int]:
        """Where it stops: the place that the error's remedy names."""
        with raises(DataAtRisk, code) as raised:
            self.extract()
        found = re.search(r"lockstep extract shop --source shop --accept (\S+):(\d+)`$", raised.value.remedy)
        assert found, raised.value.remedy
        assert f"{found[1]}:{found[2]}" in raised.value.where
        return found[1], int(found[2])


@pytest.fixture
def line(origin: Origin, tmp_path: Path) -> Iterator[Stopped]:
    with Stopped(tmp_path, origin) as line:
        origin.execute("CREATE TABLE t (id INT PRIMARY KEY, v INT)", "CREATE TABLE u (id INT PRIMARY KEY)")
        origin.execute("INSERT INTO t VALUES (1, 1)")
        yield line


def by_statement(line: Stopped) -> None:
    with line.origin.session() as run:
        run("SET SESSION binlog_format = STATEMENT", "INSERT INTO t VALUES (50, 50)")


def by_definition(line: Stopped) -> None:
    line.origin.execute("TRUNCATE TABLE t")


def by_compressed_statement(line: Stopped) -> None:
    if not line.origin.mariadb:
        pytest.skip("MySQL does not compress a transaction that holds a statement")
    begin = line.origin.end().position
    with line.origin.session() as run:
        run("SET GLOBAL log_bin_compress = ON", "SET GLOBAL log_bin_compress_min_len = 10")
        run("SET SESSION binlog_format = STATEMENT", f"INSERT INTO t VALUES (50, LENGTH('{'x' * 300}'))")
        run("SET GLOBAL log_bin_compress = DEFAULT", "SET GLOBAL log_bin_compress_min_len = DEFAULT")
        events = [row[2] for row in run(f"SHOW BINLOG EVENTS IN '{begin.file}' FROM {begin.offset}")]
    assert "Query_compressed" in events


@pytest.mark.parametrize("stop", [by_statement, by_definition, by_compressed_statement])
def test_an_accepted_event_is_passed_and_noted_and_what_is_after_it_is_staged(
    line: Stopped, stop: Callable[[Stopped], None]
) -> None:
    stop(line)
    line.origin.execute("INSERT INTO t VALUES (2, 2)", "INSERT INTO u VALUES (9)")
    place = line.stopped_at()
    assert line.stopped_at() == place, "it stops again, at the same place"
    assert line.changed_ids() == [1]
    line.accept(place)
    assert line.changed_ids() == [1, 2]
    (note,) = line.notes
    assert note.startswith(
        f"needs re-sync of table {line.origin.name}.t: accepted by an operator at {place[0]}:{place[1]}"
    )
    line.accept(place)
    line.extract()
    assert len(line.notes) == 1
    assert line.changed_ids() == [1, 2]
    assert line.coverage == {"t": How.UNLOGGED, "u": How.CREATED}


def test_a_statement_does_nothing_to_values_before_it_is_accepted(line: Stopped) -> None:
    """The batch before it knows the new definition already, as it may not be known later."""
    line.origin.execute("ALTER TABLE t RENAME COLUMN v TO w, ADD COLUMN v INT", "INSERT INTO u VALUES (9)")
    place = line.stopped_at()

    def values() -> list[dict[str, int | None]]:
        batches = line.chain
        return table_state(line.store, batches, "t", partial=True).select(["id", "v"]).to_pylist()

    assert values() == [{"id": 1, "v": 1}]
    line.accept(place)
    assert values() == [{"id": 1, "v": None}]


def test_each_acceptance_is_for_one_event(line: Stopped) -> None:
    by_definition(line)
    first = line.stopped_at()
    by_statement(line)
    failed = line.cli("--accept", "{}:{}".format(*first), "--json")
    assert isinstance(failed.exception, DataAtRisk), failed.output
    found = re.search(r"--accept (\S+:\d+)", failed.exception.remedy)
    assert found
    done = line.cli("--accept", "{}:{}".format(*first), "--accept", found[1], "--json")
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["sources"][0]["done"]
    assert len(line.notes) == 2


def test_what_is_not_durable_was_not_accepted(line: Stopped) -> None:
    by_definition(line)
    place = line.stopped_at()
    with line.extractor(accept=[place]) as extractor:
        wait_until(lambda: extractor._stream._accepted.used)  # type: ignore[union-attr]
    assert line.notes == []
    assert line.stopped_at() == place
    line.accept(place)
    assert len(line.notes) == 1


def test_a_place_where_nothing_stops_is_an_error_and_costs_nothing(line: Stopped) -> None:
    before = line.origin.end().position
    line.origin.execute("INSERT INTO t VALUES (2, 2)")
    for offset in (before.offset, before.offset + 1):
        with raises(UsageError, "usage.argument") as raised:
            line.accept((before.file, offset))
        assert f"{before.file}:{offset}" in raised.value.where
    line.extract()
    assert line.changed_ids() == [1, 2]


def test_a_place_that_was_passed_or_does_not_come_is_an_error(line: Stopped) -> None:
    start = line.origin.end().position
    line.origin.execute("INSERT INTO t VALUES (2, 2)")
    line.extract()
    with pytest.raises(UsageError) as raised:
        line.accept((start.file, start.offset))
    assert (raised.value.code, "is before" in raised.value.where) == ("usage.argument", True)
    with raises(UsageError, "usage.argument") as raised:
        line.accept((start.file, 8_000_000))
    line.extract()
    assert line.changed_ids() == [1, 2]
    assert line.notes == []


def test_an_incident_is_accepted_with_all_tables_in_doubt(line: Stopped) -> None:
    line.origin.execute("CREATE TABLE m (id INT PRIMARY KEY, b VARCHAR(200)) ENGINE=MyISAM")
    sizes = ("binlog_stmt_cache_size", "max_binlog_stmt_cache_size")
    try:
        line.origin.execute(*(f"SET GLOBAL {size} = 4096" for size in sizes))
        with pytest.raises(Exception, match="max_binlog_stmt_cache_size"):
            line.origin.execute(
                "INSERT INTO m WITH RECURSIVE n AS (SELECT 1 i UNION ALL SELECT i + 1 FROM n WHERE i < 500) "
                "SELECT i, REPEAT('z', 150) FROM n"
            )
    finally:
        line.origin.execute(*(f"SET GLOBAL {size} = DEFAULT" for size in reversed(sizes)))
    line.origin.execute("INSERT INTO t VALUES (2, 2)")
    line.accept(line.stopped_at("source.log_lost"))
    assert line.changed_ids() == [1, 2]
    (note,) = line.notes
    assert note.startswith("needs re-sync of table any captured table: accepted by an operator at")
    assert set(line.coverage.values()) == {How.UNLOGGED}
