"""Clocks that are ahead, behind, or step: windows stay in the order of the log, and none is complete too early."""

from __future__ import annotations

import tempfile
from contextlib import closing
from itertools import pairwise
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from cdc_core.model.position import Checkpoint, Position
from cdc_core.model.windows import CLOCK_TOLERANCE_US
from tests.lab.made_blocks import ENTRY_BYTES, Made, block
from tests.unit.operations.extract.test_stager import MINUTE, NOON, House, row

HOUR = 60 * MINUTE


class World:
    """A source whose log grows, read through two clocks that err. Minutes are the windows."""

    def __init__(self, house: House) -> None:
        self.house = house
        self.real_us = NOON
        self.server_off = self.meta_off = 0
        self.log: list[int] = []
        self.read = 0
        self.highest_us = NOON
        """The most that both clocks ever agreed to have passed when something was read."""

    @property
    def now_us(self) -> int:
        """As SourceClock.read."""
        return self.real_us + min(self.server_off, self.meta_off)

    def commit(self, session_off: int = 0) -> None:
        self.log.append(self.real_us + self.server_off + session_off)

    def drain(self, until_us: int) -> bool:
        """As Extractor.drain, whose server has nothing more."""
        stager, now_us = self.house.stager, self.now_us
        self.highest_us = max(self.highest_us, now_us)
        stager.trust_watermark(now_us)
        if self.read < len(self.log) and (now_us >= until_us or stager.reached.watermark_us < until_us):
            made = [Made([row(self.read + k)], ts=ts) for k, ts in enumerate(self.log[self.read :])]
            stager.add(block(made, stager.reached.position), now_us=now_us)
            self.read = len(self.log)
        complete = now_us >= until_us
        if complete or stager.reached.watermark_us >= until_us:
            stager.commit(watermark_us=until_us if complete else 0)
            return True
        return False


hours = st.one_of(st.just(0), st.integers(-30, 30)).map(lambda number: number * HOUR)
steps = st.one_of(
    st.tuples(st.just("server"), hours),
    st.tuples(st.just("meta"), hours),
    st.tuples(st.just("passes"), st.integers(1, 200).map(lambda minutes: minutes * MINUTE // 10)),
    st.tuples(st.just("commit"), st.sampled_from([0, 0, 0, 26 * HOUR, -5 * HOUR])),
    st.tuples(st.just("drain"), st.integers(-90, 90).map(lambda minutes: minutes * MINUTE)),
    st.tuples(st.just("again"), st.just(0)),
)


@settings(deadline=None, max_examples=20)
@given(st.lists(steps, max_size=25))
def test_whatever_the_clocks_do_windows_do_not_go_back_and_none_is_complete_before_both_have_passed_it(
    walk: list[tuple[str, int]],
) -> None:
    with tempfile.TemporaryDirectory() as directory, closing(House(Path(directory))) as house:
        world = World(house)
        for what, much in walk:
            if what == "server":
                world.server_off = much
            elif what == "meta":
                world.meta_off = much
            elif what == "passes":
                world.real_us += much
            elif what == "commit":
                world.commit(much)
            elif what == "again":  # the process ends, and another reads on from what is durable
                house.stager.abort()
                stored = house.meta.positions.checkpoint("shop") or Checkpoint(
                    Position(0, "binlog.000001", 4), watermark_us=NOON
                )
                world.read = (stored.position.offset - 4) // ENTRY_BYTES
                house.stager = house.new_stager(stored)
            else:
                until_us = world.real_us + much
                if world.drain(until_us):
                    assert until_us <= world.now_us + CLOCK_TOLERANCE_US
            stored = house.meta.positions.checkpoint("shop")
            if stored is not None:
                assert stored.watermark_us <= world.highest_us
        world.server_off = world.meta_off = 0
        world.real_us += MINUTE
        world.commit()
        assert world.drain(world.real_us)
        assert world.read == len(world.log)
        assert house.meta.positions.checkpoint("shop").watermark_us == world.real_us
        batches = house.batches
        assert sum(batch.rows for batch in batches) == len(world.log)
        assert all(one.window_start_us <= other.window_start_us for one, other in pairwise(batches))
        assert all(batch.window_start_us <= world.highest_us for batch in batches)
        last = batches[-1]
        if house.meta.positions.checkpoint("shop").floor_us <= world.real_us:
            assert last.window_start_us == house.pipeline.windows.containing(world.real_us)[0]
        else:
            assert any("windows do not go back" in note for note in last.notes)


def test_a_commit_time_ahead_of_the_clock_counts_as_now_and_completes_nothing_that_comes_later() -> None:
    """The case: the source's clock 25 hours ahead for a moment, that of meta right."""
    with tempfile.TemporaryDirectory() as directory, closing(House(Path(directory))) as house:
        world = World(house)
        world.server_off = 25 * HOUR
        world.commit()
        assert world.drain(world.real_us)
        world.server_off = 0
        world.real_us += 10 * MINUTE
        world.commit()
        assert not world.drain(world.real_us + HOUR)
        assert world.drain(world.real_us)
        assert [batch.window_start_us for batch in house.batches] == [NOON, NOON + 10 * MINUTE]
        assert house.batches[-1].notes == ()
