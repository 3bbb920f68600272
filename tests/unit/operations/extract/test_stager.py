"""Blocks into batches: windows, limits, and what is durable when. On a real directory and a real SQLite file."""

from __future__ import annotations

import random
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from cdc_core.errors import Refused, RetryLater
from cdc_core.meta import Meta
from cdc_core.model.block import EntryKind
from cdc_core.model.position import Checkpoint, Position
from cdc_core.model.schema import Column, TableSchema, parse_column_type
from cdc_core.operations.extract import Extractor
from cdc_core.operations.extract.drained import StagingTotals
from cdc_core.operations.extract.stager import Stager
from cdc_core.operations.open_pipeline import OpenPipeline
from cdc_core.ring import AckPoint
from cdc_core.stage import start_record
from cdc_core.stage.manifest import chain
from cdc_core.stage.stores import open_store
from tests.lab.made_blocks import Change, Made, at, block
from tests.lab.made_line import pipeline
from tests.lab.opened import empty_meta, opened
from tests.lab.pipeline_file import keys
from tests.lab.refusals import raises

MINUTE = 60_000_000
NOON = 1_795_000_020_000_000 // MINUTE * MINUTE
LATER = NOON + 600 * MINUTE
START = at(0)
TABLE = TableSchema("shop", "t", (Column("id", parse_column_type("int"), nullable=False, key_part=1),))
PART, UNCAPTURED = EntryKind.PART, EntryKind.UNCAPTURED


def row(key: int) -> Change:
    return Change(TABLE, "c", {"id": key})


class House:
    """A stager on a directory and a SQLite file, and what it acknowledged."""

    def __init__(self, directory: Path, limits: str = "", holder: str = "a") -> None:
        self.pipeline = pipeline(directory, pipeline="shop", schedule="* * * * *", limits=keys(limits))
        self.store = open_store(self.pipeline.stage.uri)
        if not (directory / "meta.db").exists():
            (directory / "meta.db").write_bytes(empty_meta())
        self.meta = Meta.open(self.pipeline.meta.url, self.pipeline.pipeline)
        self.lease = self.meta.leases.acquire("shop", holder, ttl_s=60)
        begun = start_record.put(self.store, "shop", Checkpoint(START, watermark_us=NOON), pipeline="line")
        self.acknowledged: list[AckPoint] = []
        self.directory = directory
        self.stager = self.new_stager(self.meta.positions.checkpoint("shop") or begun)

    def add(self, *made: Made, begin: Position = START, now_us: int = LATER, **options: Any) -> None:
        self.stager.add(block(made, begin, **options), now_us=now_us)

    def new_stager(self, start: Checkpoint) -> Stager:
        return Stager(
            OpenPipeline(self.pipeline, self.meta, self.store),
            lease=self.lease,
            start=start,
            scratch=self.directory,
            acknowledge=self.acknowledged.append,
        )

    def close(self) -> None:
        self.meta.close()

    @property
    def batches(self) -> list:
        return list(chain(self.store, "shop"))

    def files(self) -> list[str]:
        return [info.path for info in self.store.list("changes/")]


@pytest.fixture
def house(tmp_path):
    with closing(House(tmp_path)) as made:
        yield made


def test_nothing_is_recorded_or_acknowledged_before_the_batch_is_committed(house):
    house.add(Made([row(1)], ts=NOON))
    assert house.meta.positions.checkpoint("shop") is None
    assert house.acknowledged == []
    assert house.batches == []


def test_a_committed_batch_has_files_manifest_and_position_and_is_acknowledged_last(house):
    house.add(Made([row(1), row(2)], ts=NOON + 7))
    manifest = house.stager.commit()
    assert [batch.batch_id for batch in house.batches] == [manifest.batch_id]
    assert manifest.rows == 2
    assert house.meta.positions.checkpoint("shop") == Checkpoint(at(1), watermark_us=NOON + 7)
    assert house.acknowledged == [AckPoint("binlog.000001", at(1).offset, NOON + 7)]


def test_a_block_over_two_windows_becomes_two_batches_that_meet_at_a_transaction_end(house):
    house.add(Made([row(1)], ts=NOON), Made([row(2)], ts=NOON + MINUTE), Made([row(3)], ts=NOON + MINUTE))
    house.stager.commit()
    first, second = house.batches
    assert (first.window_start_us, second.window_start_us) == (NOON, NOON + MINUTE)
    assert (first.rows, second.rows) == (1, 2)
    assert first.end.position == second.begin.position == at(1)


def test_a_commit_time_ahead_of_the_servers_clock_counts_as_now(house):
    house.add(Made([row(1)], ts=NOON + 100 * MINUTE), now_us=NOON + 5)
    manifest = house.stager.commit()
    assert manifest.window_start_us == NOON
    assert manifest.end.watermark_us == NOON + 5


def test_a_stretch_without_rows_waits_for_the_next_windows_batch(house):
    house.add(Made(kind=UNCAPTURED, ts=NOON), Made([row(1)], ts=NOON + MINUTE), left_out={"rule": 3})
    house.stager.commit()
    (batch,) = house.batches
    assert batch.begin.position == START
    assert batch.window_start_us == NOON + MINUTE
    assert batch.left_out == {"rule": 3}
    assert all(f"cdc_date={'2026'}" in path for path in house.files())


def test_a_batch_without_rows_still_stands_in_the_chain_when_the_position_moved(house):
    house.add(Made(kind=UNCAPTURED))
    manifest = house.stager.commit(watermark_us=NOON + MINUTE)
    assert manifest.parts == ()
    assert house.meta.positions.checkpoint("shop") == Checkpoint(at(1), watermark_us=NOON + MINUTE)


def test_a_batch_without_rows_belongs_to_the_window_that_its_end_completes(house):
    house.add(Made(kind=UNCAPTURED))
    manifest = house.stager.commit(watermark_us=NOON + 5 * MINUTE)
    assert (manifest.window_start_us, manifest.window_end_us) == (NOON + 4 * MINUTE, NOON + 5 * MINUTE)


def test_the_checkpoint_keeps_the_gtids_that_were_passed(house):
    house.add(Made([row(1)], ts=NOON, gtid="0-1-7"), Made([row(2)], ts=NOON, gtid="0-1-8"))
    house.stager.commit()
    assert house.meta.positions.checkpoint("shop").gtid_set == "0-1-8"


def test_where_the_position_did_not_move_only_the_watermark_does(house):
    assert house.stager.commit(watermark_us=NOON + MINUTE) is None
    assert house.batches == []
    assert house.meta.positions.checkpoint("shop") == Checkpoint(START, watermark_us=NOON + MINUTE)


def test_what_comes_after_a_watermark_never_joins_a_window_before_it(house):
    house.stager.commit(watermark_us=NOON + MINUTE)
    house.add(Made([row(1)], ts=NOON + 1))
    assert house.stager.commit().window_start_us == NOON + MINUTE


def test_a_full_batch_closes_at_the_next_transaction_end(tmp_path):
    with closing(House(tmp_path, limits="batch_rows: 2")) as house:
        house.add(Made([row(1), row(2)], kind=PART, ts=NOON))
        assert house.stager.inside_transaction
        assert house.batches == []
        house.add(Made([row(3)], ts=NOON, seq=START.seq, first_row=2), begin=at(1))
        (batch,) = house.batches
        assert (batch.rows, batch.transactions) == (3, 1)
        assert not house.stager.inside_transaction


def test_what_was_staged_is_counted_over_all_batches(house):
    house.add(Made([row(1)], ts=NOON))
    first = house.stager.commit()
    house.add(Made([row(2), row(3)], ts=NOON), begin=at(1))
    second = house.stager.commit()
    size = sum(part.size_bytes for batch in (first, second) for part in batch.parts)
    events = first.events + second.events
    assert house.stager.staged == StagingTotals(batches=2, files=2, rows=3, events=events, size_bytes=size)


def test_a_batch_closes_when_its_files_are_large(tmp_path):
    table = TableSchema("shop", "l", (*TABLE.columns, Column("v", parse_column_type("longblob"))))
    with closing(House(tmp_path, limits="batch_mib: 1")) as house:
        house.add(Made([row(1)], ts=NOON))
        assert house.batches == []
        large = Change(table, "c", {"id": 1, "v": random.Random(1).randbytes(2 << 20)})
        house.add(Made([large], ts=NOON), begin=at(1))
        (batch,) = house.batches
        assert batch.rows == 2


def test_pieces_of_a_transaction_stay_in_the_window_of_the_first_even_if_the_clock_moves_on(house):
    ahead = NOON + 100 * MINUTE
    house.add(Made([row(1)], kind=PART, ts=ahead), now_us=NOON + MINUTE - 1)
    house.add(Made([row(2)], ts=ahead, seq=START.seq), Made([row(3)], ts=ahead), begin=at(1), now_us=NOON + MINUTE + 1)
    house.stager.commit()
    first, second = house.batches
    assert (first.window_start_us, first.rows) == (NOON, 2)
    assert (second.window_start_us, second.rows) == (NOON + MINUTE, 1)


def test_inside_a_transaction_release_frees_the_ring_and_commits_nothing(house):
    house.add(Made([row(1)], kind=PART, ts=NOON))
    house.stager.release()
    assert house.acknowledged == [AckPoint("binlog.000001", at(1).offset, NOON)]
    assert house.batches == []
    assert house.meta.positions.checkpoint("shop") is None


def test_release_at_a_transaction_end_commits(house):
    house.add(Made([row(1)], ts=NOON))
    house.stager.release()
    assert len(house.batches) == 1


def test_abort_leaves_no_file_of_what_was_not_committed(house):
    house.add(Made([row(1)], ts=NOON))
    house.stager.abort()
    assert house.files() == []


def test_who_finds_the_batchs_place_taken_stops_and_leaves_no_file(tmp_path):
    with closing(House(tmp_path)) as slow:
        slow.add(Made([row(1)], ts=NOON))
        slow.meta.leases.release(slow.lease)
        with closing(House(tmp_path, holder="b")) as fast:
            fast.add(Made([row(1)], ts=NOON), Made([row(2)], ts=NOON))
            fast.stager.commit()
        with raises(RetryLater, "lease.lost"):
            slow.stager.commit()
        (batch,) = slow.batches
        assert batch.rows == 2
        assert slow.files() == [part.path for part in batch.parts]
        assert slow.meta.positions.checkpoint("shop").position == at(2)


def test_who_lost_the_lease_moves_nothing_in_meta_even_if_its_manifest_is_first(tmp_path):
    with closing(House(tmp_path)) as old:
        old.add(Made([row(1)], ts=NOON))
        old.meta.leases.release(old.lease)
        with closing(House(tmp_path, holder="b")) as new:
            with raises(RetryLater, "lease.lost"):
                old.stager.commit()
            assert new.meta.positions.checkpoint("shop") is None
            assert [batch.rows for batch in new.batches] == [1]


def test_what_could_not_be_kept_of_the_log_ahead_ends_only_who_has_lost_the_lease(house, monkeypatch):
    extractor = Extractor(opened(house.pipeline, house.meta), "shop")
    extractor._lease = house.lease

    def refused(_: object) -> None:
        raise Refused(
            "Got a packet bigger than 'max_allowed_packet' bytes.", where="", code="connection.statement", remedy=""
        )

    with monkeypatch.context() as patch:
        patch.setattr(house.meta._database, "write", refused)
        extractor._keep_ahead("what was found")
    house.meta.leases.release(house.lease)
    with raises(RetryLater, "lease.lost"):
        extractor._keep_ahead("what was found")
