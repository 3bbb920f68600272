"""The stream of one source: opened at a checkpoint, read to blocks for as long as its caller wants.

It joins the wire (dump), the transactions (assembly) and a second, ordinary connection for definitions. It must keep
true that a block is handed on soon (a second at most after its first event), that its caller's stop is heard soon,
and that stopping and going on loses and repeats nothing.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from types import TracebackType
from typing import Literal

import pymysql

from cdc_core import connections
from cdc_core.config import Limits, Source
from cdc_core.model.block import Block
from cdc_core.model.position import FIRST_OFFSET, Checkpoint, Position
from cdc_core.model.schema import TableSchema
from cdc_core.source.assembly import Assembly
from cdc_core.source.definitions import table_schema
from cdc_core.source.dump import EndOfLog, LogReader
from cdc_core.source.facts import binlog_files, query
from cdc_core.source.gather import HeldRows
from cdc_core.source.server import our_host
from cdc_core.source.tables import Tables

log = logging.getLogger(__name__)

POLL_S = 0.1
"""How long a read waits; what was gathered leaves when nothing came for so long."""
FLUSH_S = 1.0
"""A block leaves at this age though more is coming."""
BLOCK_BYTES = 16 << 20
"""Decoded size of a block, about; never more than a quarter of the ring."""


class SourceStream:
    """Blocks of a source from `start` on. A context manager; not for two threads at once.

    captures:           whether a table is captured.
    on_unlogged_change: 'stop', or 'record' a note in the block, when DDL changed rows without row events.
    limits:             of the ring; they bound the size of a block.
    Raises, on entering, what LogReader raises.
    """

    def __init__(
        self,
        source: Source,
        *,
        server: connections.Server,
        start: Checkpoint,
        captures: Callable[[str, str], bool],
        on_unlogged_change: Literal["stop", "record"] = "stop",
        limits: Limits | None = None,
        block_bytes: int = BLOCK_BYTES,
    ) -> None:
        self._source = source
        self._server = server
        self._start = start.position
        self._captures = captures
        self._on_unlogged_change = on_unlogged_change
        self._block_bytes = min(block_bytes, ((limits or Limits()).ring_mib << 20) // 4)
        self._reader: LogReader | None = None
        self._control: pymysql.Connection | None = None
        self._assembly = self._assemble(self._start)
        self.position = self._start
        """Behind the last block that was handed on."""

    def __enter__(self) -> SourceStream:
        source = self._source
        self._reader = LogReader(
            self._server, self._start, source=source.name, server_id=source.server_id,
            heartbeat_s=source.heartbeat_s, read_timeout_s=source.read_timeout_s, host=our_host(source),
        )  # fmt: skip
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._reader is not None:
            self._reader.close()
        if self._control is not None:
            self._control.close()
            self._control = None

    def blocks(self, stop: Callable[[], bool]) -> Iterator[Block]:
        """Blocks in stream order until `stop()` is true; call again to go on where it left off.

        Raises RetryLater (source.connection_lost), DataAtRisk and Refused as the log or the server demand. What was
        read before such an error and makes whole transactions is handed on first.
        """
        assert self._reader is not None, "enter the context first"
        assembly = self._assembly
        due_s = 0.0
        while not stop():
            try:
                events = self._reader.events(POLL_S)
                assembly.mariadb = self._reader.mariadb
                for event in events:
                    assembly.feed(event)
                    yield from self._handed_on()
            except Exception:
                assembly.flush()
                yield from self._handed_on()
                raise
            now_s = time.monotonic()
            if not assembly.gather:
                due_s = now_s + FLUSH_S
            elif not events or now_s >= due_s:
                assembly.flush()
                yield from self._handed_on()
                due_s = now_s + FLUSH_S
        assembly.flush()
        yield from self._handed_on()

    def _handed_on(self) -> Iterator[Block]:
        ready = self._assembly.ready
        while ready:
            block = ready.pop(0)
            self.position = block.end
            yield block

    def _assemble(self, begin: Position) -> Assembly:
        return Assembly(
            self._source.name, begin, Tables(self._captures, self._known),
            on_unlogged_change=self._on_unlogged_change, triggers=self._triggers, prepared=self._prepared,
            block_bytes=self._block_bytes,
        )  # fmt: skip

    # What the assembly asks

    def _asked(self) -> pymysql.Connection:
        if self._control is None:
            self._control = connections.connect(self._server, where=self._source.name)
        return self._control

    def _known(self, database: str, table: str) -> TableSchema | None:
        return table_schema(self._asked(), database, table)

    def _triggers(self, database: str, table: str) -> bool:
        return bool(
            query(
                self._asked(),
                "SELECT 1 FROM INFORMATION_SCHEMA.TRIGGERS WHERE EVENT_OBJECT_SCHEMA = %s AND EVENT_OBJECT_TABLE = %s "
                "LIMIT 1",
                (database, table),
            )
        )

    def _prepared(self, xid: str) -> list[HeldRows] | None:
        """Rows of an XA transaction prepared before this stream began: the log before it is read once more."""
        source = self._source
        log.info("%s: looking for the XA PREPARE of %s before %s", source.name, xid, self._start)
        oldest = binlog_files(self._asked())[0].name
        begin = Position(self._start.timeline, oldest, FIRST_OFFSET)
        if begin >= self._start:
            return None
        past = Assembly(
            source.name, begin, Tables(self._captures, self._known), on_unlogged_change="record",
            triggers=lambda *_: False, prepared=lambda _: [], block_bytes=1 << 62,
        )  # fmt: skip
        # Read before, judged before: only what was prepared and not ended matters here.
        with closing(
            LogReader(self._server, begin, source=source.name, read_timeout_s=source.read_timeout_s)
        ) as reader:
            while True:
                try:
                    events = reader.events(POLL_S)
                except EndOfLog:
                    return past.held.get(xid)
                past.mariadb = reader.mariadb
                for event in events:
                    if event.start >= 0 and Position(begin.timeline, event.file, event.start) >= self._start:
                        return past.held.get(xid)
                    past.feed(event)
                    past.discard()
