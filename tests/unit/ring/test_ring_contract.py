"""The ring's contract, sentence by sentence, without threads where none are needed."""

from __future__ import annotations

import threading
from dataclasses import replace

import pytest

from cdc_core.errors import InternalError, RetryLater, UsageError
from cdc_core.model.block import EntryKind
from cdc_core.model.position import Position
from cdc_core.ring import MEMORY_UNIT, AckPoint, Edge, Ring, RingClosed
from tests.lab.made_blocks import ENTRY_BYTES, Made, block

START = Position(0, "binlog.000001", 4)
PART, DDL, UNCAPTURED = EntryKind.PART, EntryKind.DDL, EntryKind.UNCAPTURED


def at(entries: int, file: str = "binlog.000001") -> Position:
    """The position behind so many made entries."""
    return Position(0, file, 4 + ENTRY_BYTES * entries)


def transactions(count: int, begin: Position = START, rows: int = 1, first_ts: int = 100):
    return block([Made(rows=rows, ts=first_ts + i) for i in range(count)], begin)


def point(entries: int, ts: int, file: str = "binlog.000001") -> AckPoint:
    return AckPoint(file, at(entries).offset, ts)


def cursors(ring: Ring) -> tuple[int, int, int]:
    stats = ring.stats()
    return stats.acked, stats.taken, stats.published


@pytest.mark.parametrize("items", [0, 3, 100, -4])
def test_a_ring_whose_items_are_no_power_of_two_is_refused(items):
    with pytest.raises(UsageError, match="items") as caught:
        Ring(items, 8 * MEMORY_UNIT)
    assert caught.value.code == "config.invalid"


@pytest.mark.parametrize("size_bytes", [0, 1000, MEMORY_UNIT + 1])
def test_a_byte_limit_that_is_no_multiple_of_the_memory_unit_is_refused(size_bytes):
    with pytest.raises(UsageError):
        Ring(8, size_bytes)


def test_the_byte_limit_is_one_memory_unit_for_each_item_unless_given():
    assert Ring(8).size_bytes == 8 * MEMORY_UNIT


def test_an_item_is_a_row_or_an_entry_end():
    ring = Ring(64)
    ring.put(block([Made(rows=3), Made(rows=0, kind=UNCAPTURED), Made(rows=5)], START))
    assert ring.stats().published == 3 + 1 + 0 + 1 + 5 + 1


def test_blocks_come_out_in_order_and_complete_with_their_range():
    ring = Ring(64)
    first, second = transactions(2), transactions(3, at(2), first_ts=200)
    ring.put(first)
    ring.put(second)
    taken = ring.take()
    assert taken.blocks == (first, second)
    assert (taken.range.start, taken.range.end) == (START, at(5))
    assert taken.range.last == taken.range.ack == point(5, 202)
    assert not taken.range.continues
    assert (taken.items, taken.size_bytes) == (10, 5000)


def test_try_put_of_a_block_that_does_not_fit_returns_false_and_publishes_nothing():
    ring = Ring(8)
    assert ring.try_put(transactions(3))
    assert not ring.try_put(transactions(2, at(3)))
    assert cursors(ring) == (0, 0, 6)
    assert ring.try_put(transactions(1, at(3)))


def test_bytes_bound_the_ring_as_well_in_mode_both_and_not_in_mode_items():
    heavy = [Made(rows=1, size_bytes=3000)]
    both, items = Ring(64, 4096), Ring(64, 4096, mode="items")
    for ring, second in ((both, False), (items, True)):
        assert ring.try_put(block(heavy, START))
        assert ring.try_put(block(heavy, at(1))) is second


def test_room_is_given_back_by_ack_and_not_by_take():
    ring = Ring(4)
    ring.put(transactions(2))
    ring.take()
    assert not ring.try_put(transactions(1, at(2)))
    ring.ack(point(1, 100))
    assert ring.try_put(transactions(1, at(2)))
    assert ring.stats().depth_items == 4


def test_a_block_larger_than_the_whole_ring_is_accepted_alone_and_counted():
    ring = Ring(4, 1024)
    huge = block([Made(rows=50, size_bytes=10_000), Made(rows=50, size_bytes=10_000)], START)
    assert ring.try_put(huge)
    assert not ring.try_put(transactions(1, at(2)))
    assert ring.stats().oversized == 1
    taken = ring.take()
    ring.ack(taken.range.last)
    assert ring.try_put(transactions(1, at(2)))
    assert ring.stats().oversized == 1


def test_a_block_larger_than_the_ring_waits_until_all_before_it_is_acked():
    ring = Ring(4)
    ring.put(transactions(1))
    assert not ring.try_put(transactions(9, at(1)))
    ring.take()
    ring.ack(point(1, 100))
    assert ring.try_put(transactions(9, at(1)))


def test_take_cuts_a_block_at_an_entry_boundary_where_a_limit_is_reached():
    ring = Ring(64)
    ring.put(transactions(5))
    assert ring.take(max_items=5).range.end == at(2)
    assert ring.take(max_bytes=2999).range.end == at(4)
    assert ring.take(max_items=5).range.end == at(5)


def test_takes_of_any_number_of_entries_of_a_block_meet():
    for first in range(1, 8):
        ring = Ring(32)
        ring.put(transactions(8))
        one, rest = ring.take(max_items=2 * first), ring.take()
        assert (one.range.end, rest.range.start, rest.range.end) == (at(first), at(first), at(8))


def test_take_gives_at_least_one_entry_however_small_the_limits():
    ring = Ring(64)
    ring.put(block([Made(rows=20), Made(rows=20)], START))
    taken = ring.take(max_items=1, max_bytes=1)
    assert (taken.range.start, taken.range.end) == (START, at(1))


def test_an_entry_of_ddl_is_taken_alone_where_isolation_is_on():
    kinds = [Made(rows=1, ts=1), Made(kind=DDL, rows=0, ts=2), Made(kind=DDL, rows=0, ts=3), Made(rows=1, ts=4)]
    isolating, other = Ring(64), Ring(64, ddl_isolation=False)
    for ring in (isolating, other):
        ring.put(block(kinds[:3], START))
        ring.put(block(kinds[3:], at(3)))
    assert [isolating.take().range.end for _ in range(4)] == [at(1), at(2), at(3), at(4)]
    assert isolating.try_take() is None
    assert other.take().range.end == at(4)


def test_a_ddl_at_the_start_of_a_later_block_ends_the_take_before_it():
    ring = Ring(64)
    ring.put(transactions(2))
    ring.put(block([Made(kind=DDL, rows=0)], at(2)))
    assert ring.take().range.end == at(2)
    assert ring.take().range.end == at(3)


def test_ack_is_accepted_at_any_entry_boundary_of_any_taken_block():
    ring = Ring(64)
    ring.put(transactions(2))
    ring.put(transactions(3, at(2), first_ts=200))
    ring.take()
    for entries, ts in ((1, 100), (3, 200), (5, 202)):
        ring.ack(point(entries, ts))
        assert ring.stats().acked == 2 * entries
        assert ring.resume_position == at(entries)


@pytest.mark.parametrize(
    "wrong",
    [
        AckPoint("binlog.000001", 203, 101),  # inside an entry
        AckPoint("binlog.000002", 204, 101),  # another file
        AckPoint("binlog.000001", 204, 999),  # another time
        AckPoint("binlog.000001", 104, 100),  # acked already
        AckPoint("binlog.000001", 504, 104),  # published, not taken
        AckPoint("binlog.000001", 904, 109),  # never published
    ],
)
def test_ack_of_an_unknown_position_is_refused_and_moves_nothing(wrong):
    ring = Ring(64)
    ring.put(transactions(5))
    ring.take(max_items=8)
    ring.ack(point(1, 100))
    before = (cursors(ring), ring.first_position(), ring.latest_position(), ring.resume_position)
    with pytest.raises(InternalError) as caught:
        ring.ack(wrong)
    assert caught.value.code == "internal.defect"
    assert str(wrong) in str(caught.value)
    assert (cursors(ring), ring.first_position(), ring.latest_position(), ring.resume_position) == before
    ring.ack(point(4, 103))


def test_the_boundary_behind_a_rotation_is_named_in_the_next_file():
    ring = Ring(64)
    following = Position(0, "binlog.000002", 4)
    ring.put(block([Made(rows=1, ts=7), Made(kind=UNCAPTURED, rows=0)], START, end=following))
    ring.put(transactions(1, following))
    taken = ring.take(max_items=3)
    assert taken.range.last == AckPoint("binlog.000002", 4, 0)
    with pytest.raises(InternalError):
        ring.ack(AckPoint("binlog.000001", 204, 0))
    ring.ack(taken.range.last)
    assert ring.resume_position == following


def test_rollback_gives_everything_since_the_last_ack_again():
    ring = Ring(64)
    ring.put(transactions(4))
    ring.take(max_items=4)
    ring.ack(point(1, 100))
    ring.take()
    assert ring.rollback() == at(1)
    again = ring.take()
    assert (again.range.start, again.range.end) == (at(1), at(4))


def test_acking_inside_an_open_transaction_frees_memory_and_leaves_the_resume_position():
    ring = Ring(8)
    ring.put(block([Made(rows=1, ts=5), Made(kind=PART, rows=2, ts=9), Made(kind=PART, rows=2, ts=9)], START))
    taken = ring.take()
    assert taken.range.continues
    assert taken.range.ack == point(1, 5)
    ring.ack(taken.range.last)
    assert ring.stats().depth_items == 0
    assert ring.resume_position == at(1)
    ring.put(block([Made(kind=PART, rows=3, ts=9)], at(3)))
    assert ring.take().range.ack is None
    assert ring.rollback() == at(3)
    ring.put(block([Made(rows=1, ts=9)], at(4)))
    taken = ring.take()
    assert not taken.range.continues
    ring.ack(taken.range.last)
    assert ring.resume_position == at(5)


def test_acking_pieces_that_end_at_one_place_acks_all_that_were_taken():
    ring = Ring(64)
    ring.put(block([Made(rows=1, ts=5), Made(kind=PART, rows=2, ts=9)], START))
    for _ in range(3):  # of no bytes, as what comes out of one event of the log has no places of its own
        piece = block([Made(kind=PART, rows=2, ts=9)], at(2), end=at(2))
        ring.put(replace(piece, entries=replace(piece.entries, end=piece.entries.begin)))
    taken = ring.take()
    ring.put(block([Made(rows=1, ts=9)], at(2)))
    ring.ack(taken.range.last)
    assert ring.stats().depth_items == 2
    assert ring.resume_position == at(1)
    ring.ack(ring.take().range.last)
    assert ring.resume_position == at(3)


def test_clean_until_acks_the_taken_entries_that_end_by_then():
    ring = Ring(64)
    ring.put(transactions(2))
    ring.put(transactions(2, at(2)))
    ring.take()
    assert ring.clean_until(Position(0, "binlog.000001", at(3).offset + 1)) == 6
    assert ring.first_position() == Edge(at(3), True)
    assert ring.clean_until(at(1)) == 0
    assert ring.clean_until(at(4)) == 2


def test_clean_until_a_position_that_was_not_taken_is_refused_and_moves_nothing():
    ring = Ring(64)
    ring.put(transactions(4))
    ring.take(max_items=4)
    with pytest.raises(InternalError, match="never taken"):
        ring.clean_until(at(3))
    assert cursors(ring) == (0, 4, 8)


def test_clear_drops_all_and_lets_the_next_block_begin_anywhere():
    ring = Ring(8)
    ring.put(transactions(4))
    ring.take(max_items=4)
    ring.ack(point(1, 100))
    ring.clear()
    assert ring.stats().depth_items == ring.stats().depth_bytes == 0
    assert ring.try_take() is None
    assert ring.resume_position == at(1)
    assert ring.first_position() == ring.latest_position() == Edge(at(1), False)
    ring.put(transactions(4, at(1)))
    assert ring.take().range.start == at(1)


def test_a_block_that_leaves_a_gap_is_refused_and_publishes_nothing():
    ring = Ring(64)
    ring.put(transactions(2))
    for begin in (at(3), at(1), Position(0, "binlog.000002", 104), Position(0, "binlog.000000", 4)):
        with pytest.raises(InternalError) as caught:
            ring.put(transactions(1, begin))
        assert caught.value.code == "internal.defect"
    assert cursors(ring) == (0, 0, 4)
    ring.put(transactions(1, Position(0, "binlog.000002", 4)))
    ring.put(transactions(1, Position(1, "binlog.000001", 900)))


def test_a_block_without_entries_is_refused():
    with pytest.raises(InternalError) as caught:
        Ring(8).put(block([], START))
    assert caught.value.code == "internal.defect"


def test_first_and_latest_position_say_whether_their_entry_is_still_held():
    ring = Ring(64)
    assert ring.first_position() is None
    assert ring.latest_position() is None
    ring.put(transactions(2))
    assert (ring.first_position(), ring.latest_position()) == (Edge(START, True), Edge(at(2), True))
    ring.take()
    ring.ack(point(1, 100))
    assert (ring.first_position(), ring.latest_position()) == (Edge(at(1), True), Edge(at(2), True))
    ring.ack(point(2, 101))
    assert (ring.first_position(), ring.latest_position()) == (Edge(at(2), False), Edge(at(2), False))


def test_a_closed_ring_gives_out_what_it_holds_and_then_says_that_it_is_drained():
    ring = Ring(64)
    ring.put(transactions(2))
    ring.close()
    assert not ring.drained
    taken = ring.take()
    assert ring.drained
    assert ring.take() is None
    ring.ack(taken.range.last)
    with pytest.raises(RingClosed):
        ring.put(transactions(1, at(2)))


def test_a_failed_ring_raises_the_first_error_on_both_sides():
    ring = Ring(64)
    ring.put(transactions(2))
    error = RetryLater("The connection was lost.", code="source.lost", remedy="wait")
    ring.fail(error)
    ring.fail(ValueError("later"))
    with pytest.raises(RetryLater) as caught:
        ring.take()
    assert caught.value is error
    with pytest.raises(RetryLater):
        ring.put(transactions(1, at(2)))


def background(call) -> tuple[threading.Thread, list[object]]:
    """Runs a call in a thread; its result or exception is appended to the list."""
    results: list[object] = []

    def run() -> None:
        try:
            results.append(call())
        except (ValueError, RingClosed) as error:
            results.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    return thread, results


def waiting(ring: Ring, side: str) -> None:
    """Returns once a put or take has begun to wait."""
    pause = threading.Event()
    while not getattr(ring.stats(), f"{side}_waits"):
        pause.wait(0.001)


def test_a_put_that_waits_goes_on_when_room_is_acked():
    ring = Ring(4)
    ring.put(transactions(2))
    thread, results = background(lambda: ring.put(transactions(1, at(2))))
    waiting(ring, "put")
    ring.take()
    ring.ack(point(1, 100))
    thread.join(20)
    assert results == [True]


def test_a_take_that_waits_goes_on_when_something_is_put():
    ring = Ring(4)
    thread, results = background(ring.take)
    waiting(ring, "take")
    ring.put(transactions(1))
    thread.join(20)
    assert results[0].range.end == at(1)


def test_put_and_take_give_up_after_their_timeout():
    ring = Ring(4)
    assert ring.take(timeout_s=0.01) is None
    ring.put(transactions(2))
    assert not ring.put(transactions(1, at(2)), timeout_s=0.01)
    stats = ring.stats()
    assert (stats.put_waits, stats.take_waits) == (1, 1)
    assert stats.put_wait_s > 0
    assert stats.take_wait_s > 0


def test_a_take_from_a_starved_ring_returns_none_at_once_even_without_a_timeout():
    ring = Ring(4)
    ring.put(transactions(2))
    taken = ring.take()
    consumer, results = background(ring.take)
    waiting(ring, "take")
    producer, put = background(lambda: ring.put(transactions(1, at(2))))
    consumer.join(20)
    assert results == [None]
    assert ring.starved
    ring.ack(taken.range.last)
    producer.join(20)
    assert put == [True]
    assert not ring.starved


def test_a_take_waits_for_the_put_that_an_ack_made_room_for():
    ring = Ring(4)
    ring.put(transactions(2))
    taken = ring.take()
    producer, _ = background(lambda: ring.put(transactions(1, at(2))))
    waiting(ring, "put")
    ring.ack(taken.range.last)
    assert ring.take() is not None
    producer.join(20)


@pytest.mark.parametrize("side", ["put", "take"])
def test_close_wakes_the_side_that_waits(side):
    ring = Ring(4)
    if side == "put":
        ring.put(transactions(2))
    thread, results = background(ring.take if side == "take" else lambda: ring.put(transactions(1, at(2))))
    waiting(ring, side)
    ring.close()
    thread.join(20)
    assert results == [None] if side == "take" else isinstance(results[0], RingClosed)


@pytest.mark.parametrize("side", ["put", "take"])
def test_fail_wakes_the_side_that_waits_with_the_error(side):
    ring = Ring(4)
    if side == "put":
        ring.put(transactions(2))
    thread, results = background(ring.take if side == "take" else lambda: ring.put(transactions(1, at(2))))
    waiting(ring, side)
    error = ValueError("broken")
    ring.fail(error)
    thread.join(20)
    assert results == [error]
