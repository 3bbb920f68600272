"""Tables that a pipeline takes over from another one, whose server's clock was ahead, on real servers."""

from __future__ import annotations

from typing import Any

import pytest

from cdc_core.errors import RetryLater
from cdc_core.model.version import Version, encode
from cdc_core.targets.bookkeeping import takeover
from cdc_core.targets.bookkeeping.takeover import take_over
from cdc_core.targets.writing.prepare import tombstones_table
from tests.lab.target_rows import Table, shop, target_of

AHEAD_US = 4_000_000_000_000_000
OTHER = {"source": "other", "ts": AHEAD_US}


def test_what_another_pipeline_has_deleted_with_a_clock_ahead_can_be_inserted(table: Table) -> None:
    table.write([shop("u", 1, "a", 1, 10, **OTHER), shop("d", 2, None, None, 11, **OTHER)])
    # The application inserts the row again, and it is carried here.
    assert table.write([shop("u", 2, "b", 2, 5)]).stale == 1
    for _ in range(2):
        take_over(target_of(table), ["shop.t"], ["one"])
    assert table.write([shop("u", 2, "b", 2, 5)]).written == 1


def test_the_former_changes_of_the_other_pipeline_stay_older_than_its_later_ones(table: Table) -> None:
    table.write([shop("d", 1, None, None, 10, **OTHER)])
    take_over(target_of(table), ["shop.t"], ["one"])
    take_over(target_of(table), ["shop.t"], ["other"])
    assert table.write([shop("u", 1, "a", 1, 9, **OTHER)]).stale == 1  # a replay
    assert table.write([shop("u", 1, "a", 1, 11, **OTHER)]).written == 1


def test_versions_of_the_pipeline_itself_stay_as_they_are(table: Table) -> None:
    own = encode(Version(12, 12, 0, "one", "12345678"))
    table.write([shop("u", 1, "a", 1, 10), shop("d", 2, None, None, 11)])
    tombstones = f"{table.facts.database}.{tombstones_table(table.facts.table)}"
    table.query(f"UPDATE {tombstones} SET _cdc_version = X'{own.hex()}'")
    before = table.everything()
    take_over(target_of(table), ["shop.t"], ["one"])
    assert table.everything() == before


def test_rows_that_another_pipeline_has_truncated_can_be_inserted(table: Table) -> None:
    truncates = f"{table.facts.database}._lockstep_truncate"
    ahead = encode(Version(AHEAD_US, 10, 0, "other"))
    for name in (table.facts.table, "another"):
        table.query(f"INSERT INTO {truncates} VALUES ('{name}', '', X'{ahead.hex()}')")
    assert table.write([shop("u", 1, "a", 1, 5)]).stale == 1
    take_over(target_of(table), ["shop.t"], ["one"])
    assert table.write([shop("u", 1, "a", 1, 5)]).written == 1
    assert table.query(f"SELECT version FROM {truncates} WHERE table_name = 'another'") == [(ahead,)]


@pytest.mark.filterwarnings("error::pytest.PytestUnraisableExceptionWarning")
def test_a_server_that_ends_the_session_is_asked_again(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    def killed(connection: Any, *_: object) -> set[str]:
        with connection.cursor() as cursor:
            cursor.execute("KILL CONNECTION_ID()")
        return set()

    monkeypatch.setattr(takeover, "ours_beside", killed)
    with pytest.raises(RetryLater):
        take_over(target_of(table), ["shop.t"], ["one"])
