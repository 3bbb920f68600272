"""The wire: a replication connection that mysql-replication opens, read for as long as the caller wants.

mysql-replication does the handshake, checksum and heartbeat negotiation, registration and the dump command; from
there on the socket is ours, and `framer` turns its bytes into events. It must keep true that a dead connection is
noticed, and that a caller never waits longer than it said. MariaDB is asked for its ANNOTATE_ROWS events too: it would
silently omit them, and positions could not be counted.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pymysql
from pymysqlreplication import BinLogStreamReader
from pymysqlreplication.exceptions import BinLogNotEnabled

from cdc_core.binlog.event_headers import Event
from cdc_core.config import Source
from cdc_core.errors import LockstepError
from cdc_core.model.position import Fingerprint, Position
from cdc_core.mysql import connections
from cdc_core.source.host import source_faults
from cdc_core.source.host.server_facts import log_off
from cdc_core.source.wire import replica_identity
from cdc_core.source.wire.event_framer import MAX_DUMP_OFFSET, EventFramer

_ENOUGH = 2 << 20
"""Bytes received at once before they are looked at, as long as more keep coming."""
_STEADY = 32 << 10
"""A receive that returns less has emptied the connection."""
_MOMENT_S = 0.001
_COM_BINLOG_DUMP = 0x12
_SEND_ANNOTATE_ROWS = 0x02
# Each event has a checksum, and a heartbeat comes when there is none.
_STREAM = (
    "SET @master_binlog_checksum = 'CRC32', @source_binlog_checksum = 'CRC32', "
    "@source_heartbeat_period = {heartbeat_ns}"
)


class EndOfLog(Exception):
    """Everything that the server has was read; only raised for a reader that does not wait."""


class LogReader:
    """Events from `start` on, in order, each with its position in the log.

    replica_host: the name under which this replica registers itself and claims the source's server_id: the server ends
                  an older stream of the same id. "": a passing look at the log, which ends no other, and for which
                  `events` raises EndOfLog at the end of the log instead of waiting there.
    known:        of the log before `start`: it is compared before the reader is used, and another log is refused.
    Raises while opening: Refused (connection.denied, connection.grant, connection.setting), RetryLater
    (connection.unreachable); Refused (source.server_id_taken) before another extractor's stream is ended; with `known`
    DataAtRisk (source.other_log) and what `events` raises.
    """

    def __init__(
        self,
        server: connections.Server,
        start: Position,
        source: Source,
        *,
        replica_host: str = "",
        known: Fingerprint | None = None,
        max_dump_offset: int = MAX_DUMP_OFFSET,
    ) -> None:
        self._source = source
        self._waits = bool(replica_host)
        self.framer = EventFramer(start, source.name, known=known, max_dump_offset=max_dump_offset)
        self._silent_s = 0.0
        self._connection = self._open(server, replica_host)
        self._socket: Any = self._connection._sock  # type: ignore[attr-defined]
        self._unread = False
        """What came with the proof was not examined yet; it takes precedence over the later fate of the connection."""
        try:
            while not self.framer.prove():
                self.receive(source.read_timeout_s)
        except BaseException:
            self.close()
            raise
        self._unread = known is not None

    def _open(self, server: connections.Server, host: str) -> pymysql.Connection:
        source = self._source
        statement = _STREAM.format(heartbeat_ns=int(source.heartbeat_s * 1e9))
        opened: list[pymysql.Connection] = []

        def connect(**_: object) -> pymysql.Connection:
            connection = connections.connect(server, where=source.name, read_timeout=source.read_timeout_s)
            opened.append(connection)
            connection.query(statement)
            if connections.is_mariadb(connection):
                _ask_for_annotations(connection)
            if host:
                replica_identity.claim(connection, source.server_id, host, source=source.name)
            return connection

        reader = BinLogStreamReader(
            connection_settings={"read_timeout": source.read_timeout_s},
            server_id=source.server_id if host else 0,
            blocking=self._waits,
            resume_stream=True,
            log_file=self.framer.file,
            log_pos=self.framer.offset,
            slave_heartbeat=source.heartbeat_s,
            report_slave=host or None,
            # Never is_mariadb: it would ignore file and position. The plain dump command serves both flavors.
            is_mariadb=False,
            pymysql_wrapper=connect,
            enable_logging=False,
        )
        try:
            # fetchone would open it too, and read, decode and drop events: we take the connection as it is opened.
            reader._BinLogStreamReader__connect_to_stream()
        except BinLogNotEnabled:
            raise log_off() from None
        except (pymysql.err.MySQLError, OSError) as error:
            for connection in opened:
                connection._force_close()  # type: ignore[attr-defined]
            raise self._explained(error) from None
        except LockstepError:
            for connection in opened:
                connection._force_close()  # type: ignore[attr-defined]
            raise
        return opened[-1]

    def close(self) -> None:
        """Ends the stream; the server notices at its next write."""
        with suppress(OSError, pymysql.err.MySQLError):
            self._connection._force_close()  # type: ignore[attr-defined]

    @property
    def connection_id(self) -> int:
        """The server's number of this stream."""
        return int(self._connection.thread_id())  # type: ignore[no-untyped-call]

    def events(self, wait_s: float) -> Iterator[Event]:
        """What has come, waiting at most `wait_s` for the first byte.

        Raises EndOfLog; RetryLater (connection.unreachable) when neither event nor heartbeat came for the read
        timeout or the connection ended; else as EventFramer.next_event does.
        """
        self.receive(wait_s)
        return self.framer.events()

    def receive(self, wait_s: float) -> bool:
        """Waits at most `wait_s` for bytes, and gives `framer` what has come; whether any did. Raises as `events`."""
        if self._unread:
            self._unread = False
            return True
        self._require_more()
        received = size = self._receive(self.framer.buffer.get_buffer(), wait_s)
        self.framer.buffer.buffer_updated(size)
        # Examine what has come before an end of the connection is reported: the last bytes may say why.
        with suppress(OSError):
            while size >= _STEADY and received < _ENOUGH:
                self._socket.settimeout(_MOMENT_S)
                size = self._socket.recv_into(self.framer.buffer.get_buffer())
                self.framer.buffer.buffer_updated(size)
                received += size
        return received > 0

    def _require_more(self) -> None:
        if self.framer.ended and self._waits:
            raise source_faults.connection_lost("the server ended it", self.framer.where)
        if self.framer.ended:
            raise EndOfLog

    def _receive(self, room: memoryview, wait_s: float) -> int:
        started_s = time.monotonic()
        self._socket.settimeout(max(wait_s, _MOMENT_S))
        try:
            size: int = self._socket.recv_into(room)
        except TimeoutError:
            # Only time spent waiting counts: a caller may stay away for long.
            self._silent_s += time.monotonic() - started_s
            if self._silent_s >= self._source.read_timeout_s:
                raise source_faults.connection_lost(
                    f"neither event nor heartbeat for {self._silent_s:.0f} s", self.framer.where
                ) from None
            return 0
        except OSError as error:
            raise source_faults.connection_lost(str(error), self.framer.where) from None
        if not size:
            raise source_faults.connection_lost("the server closed it", self.framer.where)
        self._silent_s = 0.0
        return size

    def _explained(self, error: Exception) -> LockstepError:
        number = error.args[0] if error.args and isinstance(error.args[0], int) else 0
        return source_faults.dump_error(number, str(error.args[-1]) if error.args else str(error), self.framer.where)


def _ask_for_annotations(connection: pymysql.Connection) -> None:
    """Sets a flag in the dump command that the library writes: it supports the flag only with GTID positions.

    Packet: length u24, number u8, command u8, offset u32, flags u16, server id u32, file name.
    """
    write = connection._write_bytes  # type: ignore[attr-defined]

    def flagged(data: bytes) -> None:
        if len(data) > 11 and data[4] == _COM_BINLOG_DUMP:
            data = data[:9] + bytes([data[9] | _SEND_ANNOTATE_ROWS]) + data[10:]
        write(data)

    connection._write_bytes = flagged  # type: ignore[attr-defined]
