"""What time it is for a source: the clocks of its server and of meta, which can be set while the log is read."""

from __future__ import annotations

import logging
import time

import pymysql

from cdc_core.meta import Meta
from cdc_core.model.windows import CLOCK_TOLERANCE_US, from_us
from cdc_core.source.host import source_server

log = logging.getLogger(__name__)

READ_S = 30.0
"""How often the clocks are read again."""


class SourceClock:
    """The earlier of both clocks: if only one of them is ahead, it does no harm. due: the clocks should be read."""

    def __init__(self, source: str, meta: Meta) -> None:
        self._source = source
        self._meta = meta
        self._ahead_us = 0
        """How far the source's clock is ahead of this process's monotonic one."""
        self._due_s = 0.0
        self._differ = False

    @property
    def now_us(self) -> int:
        """The source's time, by the clocks as they were last read."""
        return self._ahead_us + time.monotonic_ns() // 1000

    @property
    def due(self) -> bool:
        return time.monotonic() >= self._due_s

    def expire(self) -> None:
        """The clocks are due now."""
        self._due_s = 0.0

    def read(self, control: pymysql.Connection) -> None:
        server_us, meta_us = source_server.now_us(control), self._meta.now_us()
        self._ahead_us = min(server_us, meta_us) - time.monotonic_ns() // 1000
        self._due_s = time.monotonic() + READ_S
        differ = abs(server_us - meta_us) > CLOCK_TOLERANCE_US
        if differ and not self._differ:
            log.warning(
                "%s: the clock of the source is at %s, and that of meta at %s: the earlier one decides which window a "
                "change belongs to, and when a window is over. Correct the wrong clock (NTP)",
                self._source,
                from_us(server_us).isoformat(),
                from_us(meta_us).isoformat(),
            )
        self._differ = differ
