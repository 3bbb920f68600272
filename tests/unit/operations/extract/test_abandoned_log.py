"""A log that an operator gives up: where that is still to be done, and of which tables it makes the history partial."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cdc_core.errors import UsageError
from cdc_core.model.coverage import How, TableCoverage
from cdc_core.model.position import Checkpoint, Position
from cdc_core.operations.extract.abandoned_log import is_due, missed
from cdc_core.source.host.table_survey import SourceSurvey
from cdc_core.stage import start_record
from cdc_core.stage.manifest import commit
from cdc_core.stage.objects import ObjectStore
from cdc_core.stage.stores import open_store
from tests.lab.made_batches import START_US, manifest
from tests.lab.refusals import raises

STOPPED = manifest(0).end
NEXT_LOG = Checkpoint(Position(1, "binlog.000001", 4))
PLACE = (STOPPED.position.file, STOPPED.position.offset)


@pytest.fixture
def store(tmp_path) -> ObjectStore:
    """A batch has been staged, up to STOPPED."""
    made = open_store(f"file://{tmp_path}/stage")
    start_record.put(made, "shop", manifest(0).begin, pipeline="line")
    assert commit(made, manifest(0, tables={})).ours
    return made


def led_on(store: ObjectStore) -> None:
    assert commit(store, replace(manifest(1, tables={}), end=NEXT_LOG)).ours


def test_a_log_is_given_up_where_reading_stopped(store) -> None:
    assert is_due(PLACE, STOPPED, store, "shop")


def test_a_log_is_given_up_once(store) -> None:
    led_on(store)
    assert not is_due(PLACE, NEXT_LOG, store, "shop")


@pytest.mark.parametrize("place", [("binlog.000001", 4), ("binlog.000002", PLACE[1]), (PLACE[0], PLACE[1] + 1)])
@pytest.mark.parametrize("given_up_before", [False, True])
def test_a_log_is_not_given_up_elsewhere(store, place, given_up_before) -> None:
    stored = STOPPED
    if given_up_before:
        led_on(store)
        stored = replace(NEXT_LOG, position=Position(1, "binlog.000001", 900))
    with raises(UsageError, "usage.argument") as raised:
        is_due(place, stored, store, "shop")
    assert str(stored.position) in str(raised.value)


def test_a_batch_that_begins_there_and_stays_in_the_log_does_not_give_it_up(store) -> None:
    """Otherwise a second --abandon with an old position would count as done."""
    assert commit(store, manifest(1, tables={})).ours
    with pytest.raises(UsageError):
        is_due(PLACE, manifest(1).end, store, "shop")


def test_nothing_is_given_up_of_a_source_that_was_never_read(store) -> None:
    with pytest.raises(UsageError, match="nothing is staged"):
        is_due(PLACE, None, store, "items")


def test_captured_tables_lack_what_was_given_up() -> None:
    known = {
        "shop.orders": TableCoverage(How.CREATED, 5, START_US, "", feeds=("all.orders",)),
        "shop.copied": TableCoverage(How.COPIED, 5, START_US, ""),
        "shop.dropped": TableCoverage(How.CREATED, 5, START_US, ""),
        "shop.left": TableCoverage(How.LEFT_OUT, 5, START_US, ""),
        "shop.odd": TableCoverage(How.ISOLATED, 5, START_US, ""),
    }
    survey = SourceSurvey(
        {"shop.orders": 7, "shop.copied": None, "shop.new": 1}, frozenset(), True, NEXT_LOG.position, START_US + 1
    )
    made = missed(known, survey, NEXT_LOG)
    seq = NEXT_LOG.position.seq
    assert set(made) == {"shop.orders", "shop.copied", "shop.dropped"}
    assert {coverage.how for coverage in made.values()} == {How.ABANDONED}
    assert {coverage.seq for coverage in made.values()} == {seq - 1}
    assert (made["shop.orders"].rows, made["shop.orders"].feeds) == (7, ("all.orders",))
    assert {table: coverage.absent_seq for table, coverage in made.items()} == {
        "shop.orders": 0, "shop.copied": 0, "shop.dropped": seq,
    }  # fmt: skip


def test_a_table_that_the_account_may_just_not_see_is_not_taken_for_gone() -> None:
    known = {"shop.orders": TableCoverage(How.CREATED, 5, START_US, "")}
    survey = SourceSurvey({}, frozenset(), False, NEXT_LOG.position, START_US)
    assert missed(known, survey, NEXT_LOG)["shop.orders"].absent_seq == 0
