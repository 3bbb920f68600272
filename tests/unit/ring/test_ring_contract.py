"""What the ring promises beside what its model says (test_ring_properties.py), and how its two sides wait."""

from __future__ import annotations

import threading
from dataclasses import replace

import pytest

from cdc_core.errors import InternalError, RetryLater, UsageError
from cdc_core.model.block import EntryKind
from cdc_core.model.position import Position
from cdc_core.ring import MEMORY_UNIT, AckPoint, Ring, RingClosed
from tests.lab.made_blocks import Made, at, block, last_of
from tests.lab.refusals import raises

START = at(0)
PART, DDL, UNCAPTURED = EntryKind.PART, EntryKind.DDL, EntryKind.UNCAPTURED


def transactions(count: int, begin: Position = START, rows: int = 1, first_ts: int = 100):
    return block([Made(rows=rows, ts=first_ts + i) for i in range(count)], begin)


def point(entries: int, ts: int, file: str = "binlog.000001") -> AckPoint:
    return AckPoint(file, at(entries).offset, ts)


def end_of(blocks) -> Position:
    return blocks[-1].end


def cursors(ring: Ring) -> tuple[int, int, int]:
    stats = ring.stats()
    return stats.acked, stats.taken, stats.published


@pytest.mark.parametrize("size", [(0,), (3,), (100,), (-4,), (8, 0), (8, 1000), (8, MEMORY_UNIT + 1)])
def test_a_ring_whose_items_are_no_power_of_two_or_whose_bytes_are_no_multiple_of_the_unit_is_refused(size):
    with raises(UsageError, "config.invalid"):
        Ring(*size)


def test_the_byte_limit_is_one_memory_unit_for_each_item_unless_given():
    assert Ring(8).size_bytes == 8 * MEMORY_UNIT


def test_blocks_come_out_in_order_and_complete():
    ring = Ring(64)
    first, second = transactions(2), transactions(3, at(2), first_ts=200)
    ring.put(first)
    ring.put(second)
    assert ring.take() == (first, second)
    assert cursors(ring) == (0, 10, 10)
    ring.ack(point(5, 202))
    assert cursors(ring) == (10, 10, 10)


def test_a_block_larger_than_the_whole_ring_is_accepted_alone():
    ring = Ring(4, 1024)
    huge = block([Made(rows=50, size_bytes=10_000), Made(rows=50, size_bytes=10_000)], START)
    assert ring.put(huge, timeout_s=0)
    assert not ring.put(transactions(1, at(2)), timeout_s=0)
    ring.ack(last_of(ring.take()))
    assert ring.put(transactions(1, at(2)), timeout_s=0)


def test_an_entry_of_ddl_is_taken_alone():
    kinds = [Made(rows=1, ts=1), Made(kind=DDL, rows=0, ts=2), Made(kind=DDL, rows=0, ts=3), Made(rows=1, ts=4)]
    ring = Ring(64)
    ring.put(block(kinds[:3], START))
    ring.put(block(kinds[3:], at(3)))
    assert [end_of(ring.take()) for _ in range(4)] == [at(1), at(2), at(3), at(4)]
    assert ring.take(timeout_s=0) == ()


def test_acking_pieces_that_end_at_one_place_acks_all_that_were_taken():
    ring = Ring(64)
    ring.put(block([Made(rows=1, ts=5), Made(kind=PART, rows=2, ts=9)], START))
    for _ in range(3):  # of no bytes, as what comes out of one event of the log has no places of its own
        piece = block([Made(kind=PART, rows=2, ts=9)], at(2), end=at(2))
        ring.put(replace(piece, entries=replace(piece.entries, end=piece.entries.begin)))
    taken = ring.take()
    ring.put(block([Made(rows=1, ts=9)], at(2)))
    ring.ack(last_of(taken))
    assert ring.stats().depth_items == 2
    ring.ack(last_of(ring.take()))
    assert ring.stats().depth_items == 0


def test_a_block_that_leaves_a_gap_is_refused_and_publishes_nothing():
    ring = Ring(64)
    ring.put(transactions(2))
    for begin in (at(3), at(1), Position(0, "binlog.000002", 104), Position(0, "binlog.000000", 4)):
        with raises(InternalError, "internal.defect"):
            ring.put(transactions(1, begin))
    assert cursors(ring) == (0, 0, 4)
    ring.put(transactions(1, Position(0, "binlog.000002", 4)))
    ring.put(transactions(1, Position(1, "binlog.000001", 900)))


def test_a_block_without_entries_is_refused():
    with raises(InternalError, "internal.defect"):
        Ring(8).put(block([], START))


def test_a_closed_ring_gives_out_what_it_holds_and_then_says_that_it_is_drained():
    ring = Ring(64)
    ring.put(transactions(2))
    ring.close()
    assert not ring.drained
    taken = ring.take()
    assert ring.drained
    assert ring.take() == ()
    ring.ack(last_of(taken))
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
    assert end_of(results[0]) == at(1)


def test_put_and_take_give_up_after_their_timeout():
    ring = Ring(4)
    assert ring.take(timeout_s=0.01) == ()
    ring.put(transactions(2))
    assert not ring.put(transactions(1, at(2)), timeout_s=0.01)
    assert (ring.stats().put_waits, ring.stats().take_waits) == (1, 1)


def test_a_take_from_a_starved_ring_returns_at_once_even_without_a_timeout():
    ring = Ring(4)
    ring.put(transactions(2))
    taken = ring.take()
    consumer, results = background(ring.take)
    waiting(ring, "take")
    producer, put = background(lambda: ring.put(transactions(1, at(2))))
    consumer.join(20)
    assert results == [()]
    assert ring.starved
    ring.ack(last_of(taken))
    producer.join(20)
    assert put == [True]
    assert not ring.starved


def test_a_take_waits_for_the_put_that_an_ack_made_room_for():
    ring = Ring(4)
    ring.put(transactions(2))
    taken = ring.take()
    producer, _ = background(lambda: ring.put(transactions(1, at(2))))
    waiting(ring, "put")
    ring.ack(last_of(taken))
    assert ring.take()
    producer.join(20)


@pytest.mark.parametrize("side", ["put", "take"])
@pytest.mark.parametrize("error", [None, ValueError("broken")])
def test_an_end_or_an_error_wakes_the_side_that_waits(side, error):
    ring = Ring(4)
    if side == "put":
        ring.put(transactions(2))
    thread, results = background(ring.take if side == "take" else lambda: ring.put(transactions(1, at(2))))
    waiting(ring, side)
    ring.fail(error) if error else ring.close()
    thread.join(20)
    if error:
        assert results == [error]
    else:
        assert results == [()] if side == "take" else isinstance(results[0], RingClosed)
