"""A source whose clock is wrong, and then right: all is staged, and no window is complete before it has passed."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest

from cdc_core.meta import Meta
from cdc_core.model.windows import MICROSECONDS
from examples.sandbox.cache import SandboxError
from examples.sandbox.faketime import Clock
from examples.sandbox.mariadb import MariaDb
from examples.sandbox.mysql import MySql
from tests.integration.test_log_identity import Log, Moved

HOUR = 3600
DAY_US = 24 * HOUR * MICROSECONDS


class Wrong:
    """A server with a clock of its own. ahead_s: of ours."""

    def __init__(self, log: Log, clock: Clock) -> None:
        self.log = log
        self._clock = clock

    def set(self, ahead_s: int) -> None:
        self._clock.set(ahead_s)
        ((now_s,),) = self.log.run("SELECT UNIX_TIMESTAMP()", database=False)
        assert abs(float(now_s) - time.time() - ahead_s) < 60, "the server does not go by the clock"


@pytest.fixture(scope="module", params=["mariadb", pytest.param("mysql", marks=pytest.mark.matrix)])
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Wrong]:
    clock = Clock(tmp_path_factory.mktemp("server") / "clock")
    try:
        environment = clock.environment
    except SandboxError as error:
        pytest.skip(f"not tested: {error}")
    if request.param == "mysql":
        request.getfixturevalue("mysql9")
    kind = MariaDb if request.param == "mariadb" else MySql
    with kind.start(server_id=1, env=environment) as sql:
        yield Wrong(Log(request.param, sql, "clocks"), clock)


@pytest.fixture
def wrong(server: Wrong) -> Wrong:
    """As if the server had just been set up, with our clock."""
    server.set(0)
    server.log.reset()
    return server


@pytest.fixture
def line(wrong: Wrong, tmp_path: Path) -> Iterator[Moved]:
    with Moved(tmp_path, wrong.log) as line:
        yield line


def now_us() -> int:
    return time.time_ns() // 1000


def assert_in_order(line: Moved, until_us: int) -> None:
    batches = line.chain
    assert all(one.window_start_us <= other.window_start_us for one, other in pairwise(batches))
    assert batches[-1].window_start_us <= until_us


def test_a_source_that_is_behind_completes_a_window_when_its_own_clock_has_passed_it(
    wrong: Wrong, line: Moved, caplog: pytest.LogCaptureFixture
) -> None:
    until_us = now_us()
    wrong.set(-3 * HOUR)
    wrong.log.insert(1)
    with line.extractor(wrong.log.sql) as extractor:
        assert not extractor.drain(until_us=until_us, budget_s=0.5).done
        assert "Correct the wrong clock" in caplog.text
        wrong.log.insert(2)
        wrong.set(0)
        wrong.log.insert(3)
        assert extractor.drain(until_us=now_us()).done
    assert line.ids() == [1, 2, 3]
    assert line.checkpoint.watermark_us >= until_us
    assert_in_order(line, now_us())


def test_when_both_clocks_were_ahead_reading_goes_on_and_says_so(
    wrong: Wrong, line: Moved, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Of meta the clock is SQLite's, and so that of this process: what the method answers stands in for it."""
    caplog.set_level(logging.WARNING)
    wrong.set(25 * HOUR)
    wrong.log.insert(1)
    with monkeypatch.context() as patched:
        patched.setattr(Meta, "now_us", lambda self: now_us() + DAY_US)
        line.drain(wrong.log.sql)
    assert line.checkpoint.watermark_us > now_us() + DAY_US // 2
    wrong.set(0)
    for number in (2, 3):
        wrong.log.insert(number)
        with line.extractor(wrong.log.sql) as extractor:
            assert not extractor.drain(until_us=now_us() + HOUR * MICROSECONDS, budget_s=0.5).done
            assert extractor.drain().done
        assert line.ids() == list(range(1, number + 1))
        assert line.checkpoint.watermark_us <= now_us()
    assert "because clocks were ahead" in caplog.text
    batches = line.chain
    assert "windows do not go back" in batches[-1].notes[-1]
    assert_in_order(line, now_us() + 2 * DAY_US)
