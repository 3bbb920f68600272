"""Blocks into batches: windows, limits, and what is durable when. On a real directory and a real SQLite file."""

from __future__ import annotations

import random
from contextlib import closing
from pathlib import Path

import pytest

from cdc_core.config import Pipeline, parse
from cdc_core.errors import Refused, RetryLater
from cdc_core.meta import Meta
from cdc_core.model.block import EntryKind
from cdc_core.model.position import Checkpoint, Position
from cdc_core.model.schema import Column, TableSchema, parse_column_type
from cdc_core.operations.extract import Extractor
from cdc_core.operations.extract.stager import Stager, StagingTotals
from cdc_core.ring import AckPoint
from cdc_core.stage import start_record as starts
from cdc_core.stage.manifest import chain
from cdc_core.stage.stores import open_store
from tests.lab.made_blocks import ENTRY_BYTES, Change, Made, block
from tests.lab.opened import opened

MINUTE = 60_000_000
NOON = 1_795_000_020_000_000 // MINUTE * MINUTE
LATER = NOON + 600 * MINUTE
START = Position(0, "binlog.000001", 4)
TABLE = TableSchema("shop", "t", (Column("id", parse_column_type("int"), nullable=False, key_part=1),))
PART, UNCAPTURED = EntryKind.PART, EntryKind.UNCAPTURED


def row(key: int) -> Change:
    return Change(TABLE, "c", {"id": key})


def at(entries: int) -> Position:
    return Position(0, "binlog.000001", 4 + ENTRY_BYTES * entries)


class House:
    """A stager on a directory and a SQLite file, and what it acknowledged."""

    def __init__(self, directory: Path, limits: str = "", holder: str = "a") -> None:
        self.pipeline: Pipeline = parse(
            f"""
            pipeline: shop
            schedule: "* * * * *"
            sources: [{{name: shop, connection: env:X, server_id: 5}}]
            tables: {{include: ['shop\\..*']}}
            stage: {{uri: {(directory / "stage").as_uri()}}}
            meta: {{url: "sqlite:///{directory}/meta.db"}}
            limits: {{{limits}}}
            """,
            where="test",
        )
        self.store = open_store(self.pipeline.stage.uri)
        self.meta = Meta.open(self.pipeline.meta.url, self.pipeline.pipeline)
        self.lease = self.meta.leases.acquire("shop", holder, ttl_s=60)
        begun = starts.put(self.store, "shop", Checkpoint(START, watermark_us=NOON), pipeline="line")
        self.acknowledged: list[AckPoint] = []
        self.directory = directory
        self.stager = self.new_stager(self.meta.positions.checkpoint("shop") or begun)

    def new_stager(self, start: Checkpoint) -> Stager:
        return Stager(
            self.pipeline,
            store=self.store,
            meta=self.meta,
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
    house.stager.add(block([Made([row(1)], ts=NOON)], START), now_us=LATER)
    assert house.meta.positions.checkpoint("shop") is None
    assert house.acknowledged == []
    assert house.batches == []


def test_a_committed_batch_has_files_manifest_and_position_and_is_acknowledged_last(house):
    house.stager.add(block([Made([row(1), row(2)], ts=NOON + 7)], START), now_us=LATER)
    manifest = house.stager.commit()
    assert [batch.batch_id for batch in house.batches] == [manifest.batch_id]
    assert manifest.rows == 2
    assert house.meta.positions.checkpoint("shop") == Checkpoint(at(1), watermark_us=NOON + 7)
    assert house.acknowledged == [AckPoint("binlog.000001", at(1).offset, NOON + 7)]


def test_a_block_over_two_windows_becomes_two_batches_that_meet_at_a_transaction_end(house):
    house.stager.add(
        block([Made([row(1)], ts=NOON), Made([row(2)], ts=NOON + MINUTE), Made([row(3)], ts=NOON + MINUTE)], START),
        now_us=LATER,
    )
    house.stager.commit()
    first, second = house.batches
    assert (first.window_start_us, second.window_start_us) == (NOON, NOON + MINUTE)
    assert (first.rows, second.rows) == (1, 2)
    assert first.end.position == second.begin.position == at(1)


def test_a_commit_time_before_the_running_maximum_stays_in_the_later_window(house):
    house.stager.add(block([Made([row(1)], ts=NOON + MINUTE), Made([row(2)], ts=NOON)], START), now_us=LATER)
    house.stager.commit()
    (batch,) = house.batches
    assert (batch.window_start_us, batch.rows) == (NOON + MINUTE, 2)


def test_a_commit_time_ahead_of_the_servers_clock_counts_as_now(house):
    house.stager.add(block([Made([row(1)], ts=NOON + 100 * MINUTE)], START), now_us=NOON + 5)
    manifest = house.stager.commit()
    assert manifest.window_start_us == NOON
    assert manifest.end.watermark_us == NOON + 5


def test_a_stretch_without_rows_waits_for_the_next_windows_batch(house):
    house.stager.add(
        block([Made(kind=UNCAPTURED, ts=NOON), Made([row(1)], ts=NOON + MINUTE)], START, left_out={"rule": 3}),
        now_us=LATER,
    )
    house.stager.commit()
    (batch,) = house.batches
    assert batch.begin.position == START
    assert batch.window_start_us == NOON + MINUTE
    assert batch.left_out == {"rule": 3}
    assert all(f"cdc_date={'2026'}" in path for path in house.files())


def test_a_batch_without_rows_still_stands_in_the_chain_when_the_position_moved(house):
    house.stager.add(block([Made(kind=UNCAPTURED)], START), now_us=LATER)
    manifest = house.stager.commit(watermark_us=NOON + MINUTE)
    assert manifest.parts == ()
    assert house.meta.positions.checkpoint("shop") == Checkpoint(at(1), watermark_us=NOON + MINUTE)


def test_a_batch_without_rows_belongs_to_the_window_that_its_end_completes(house):
    house.stager.add(block([Made(kind=UNCAPTURED)], START), now_us=LATER)
    manifest = house.stager.commit(watermark_us=NOON + 5 * MINUTE)
    assert (manifest.window_start_us, manifest.window_end_us) == (NOON + 4 * MINUTE, NOON + 5 * MINUTE)


def test_the_checkpoint_keeps_the_gtids_that_were_passed(house):
    house.stager.add(
        block([Made([row(1)], ts=NOON, gtid="0-1-7"), Made([row(2)], ts=NOON, gtid="0-1-8")], START), now_us=LATER
    )
    house.stager.commit()
    assert house.meta.positions.checkpoint("shop").gtid_set == "0-1-8"


def test_where_the_position_did_not_move_only_the_watermark_does(house):
    assert house.stager.commit(watermark_us=NOON + MINUTE) is None
    assert house.batches == []
    assert house.meta.positions.checkpoint("shop") == Checkpoint(START, watermark_us=NOON + MINUTE)


def test_what_comes_after_a_watermark_never_joins_a_window_before_it(house):
    house.stager.commit(watermark_us=NOON + MINUTE)
    house.stager.add(block([Made([row(1)], ts=NOON + 1)], START), now_us=LATER)
    assert house.stager.commit().window_start_us == NOON + MINUTE


def test_a_full_batch_closes_at_the_next_transaction_end(tmp_path):
    with closing(House(tmp_path, limits="batch_rows: 2")) as house:
        house.stager.add(block([Made([row(1), row(2)], kind=PART, ts=NOON)], START), now_us=LATER)
        assert house.stager.inside_transaction
        assert house.batches == []
        house.stager.add(block([Made([row(3)], ts=NOON, seq=START.seq, first_row=2)], at(1)), now_us=LATER)
        (batch,) = house.batches
        assert (batch.rows, batch.transactions) == (3, 1)
        assert not house.stager.inside_transaction


def test_what_was_staged_is_counted_over_all_batches(house):
    house.stager.add(block([Made([row(1)], ts=NOON)], START), now_us=LATER)
    first = house.stager.commit()
    house.stager.add(block([Made([row(2), row(3)], ts=NOON)], at(1)), now_us=LATER)
    second = house.stager.commit()
    size = sum(part.size_bytes for batch in (first, second) for part in batch.parts)
    events = first.events + second.events
    assert house.stager.staged == StagingTotals(batches=2, files=2, rows=3, events=events, size_bytes=size)


def test_a_batch_closes_when_its_files_are_large(tmp_path):
    table = TableSchema("shop", "l", (*TABLE.columns, Column("v", parse_column_type("longblob"))))
    with closing(House(tmp_path, limits="batch_mib: 1")) as house:
        house.stager.add(block([Made([row(1)], ts=NOON)], START), now_us=LATER)
        assert house.batches == []
        large = Change(table, "c", {"id": 1, "v": random.Random(1).randbytes(2 << 20)})
        house.stager.add(block([Made([large], ts=NOON)], at(1)), now_us=LATER)
        (batch,) = house.batches
        assert batch.rows == 2


def test_pieces_of_a_transaction_stay_in_the_window_of_the_first_even_if_the_clock_moves_on(house):
    ahead = NOON + 100 * MINUTE
    house.stager.add(block([Made([row(1)], kind=PART, ts=ahead)], START), now_us=NOON + MINUTE - 1)
    house.stager.add(
        block([Made([row(2)], ts=ahead, seq=START.seq), Made([row(3)], ts=ahead)], at(1)), now_us=NOON + MINUTE + 1
    )
    house.stager.commit()
    first, second = house.batches
    assert (first.window_start_us, first.rows) == (NOON, 2)
    assert (second.window_start_us, second.rows) == (NOON + MINUTE, 1)


def test_inside_a_transaction_release_frees_the_ring_and_commits_nothing(house):
    house.stager.add(block([Made([row(1)], kind=PART, ts=NOON)], START), now_us=LATER)
    house.stager.release()
    assert house.acknowledged == [AckPoint("binlog.000001", at(1).offset, NOON)]
    assert house.batches == []
    assert house.meta.positions.checkpoint("shop") is None


def test_release_at_a_transaction_end_commits(house):
    house.stager.add(block([Made([row(1)], ts=NOON)], START), now_us=LATER)
    house.stager.release()
    assert len(house.batches) == 1


def test_abort_leaves_no_file_of_what_was_not_committed(house):
    house.stager.add(block([Made([row(1)], ts=NOON)], START), now_us=LATER)
    house.stager.abort()
    assert house.files() == []


def test_who_finds_the_batchs_place_taken_stops_and_leaves_no_file(tmp_path):
    with closing(House(tmp_path)) as slow:
        slow.stager.add(block([Made([row(1)], ts=NOON)], START), now_us=LATER)
        slow.meta.leases.release(slow.lease)
        with closing(House(tmp_path, holder="b")) as fast:
            fast.stager.add(block([Made([row(1)], ts=NOON), Made([row(2)], ts=NOON)], START), now_us=LATER)
            fast.stager.commit()
        with pytest.raises(RetryLater) as caught:
            slow.stager.commit()
        assert caught.value.code == "lease.lost"
        (batch,) = slow.batches
        assert batch.rows == 2
        assert slow.files() == [part.path for part in batch.parts]
        assert slow.meta.positions.checkpoint("shop").position == at(2)


def test_who_lost_the_lease_moves_nothing_in_meta_even_if_its_manifest_is_first(tmp_path):
    with closing(House(tmp_path)) as old:
        old.stager.add(block([Made([row(1)], ts=NOON)], START), now_us=LATER)
        old.meta.leases.release(old.lease)
        with closing(House(tmp_path, holder="b")) as new:
            with pytest.raises(RetryLater) as caught:
                old.stager.commit()
            assert caught.value.code == "lease.lost"
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
    with pytest.raises(RetryLater) as lost:
        extractor._keep_ahead("what was found")
    assert lost.value.code == "lease.lost"
