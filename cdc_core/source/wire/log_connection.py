"""The connection that a source's log comes by: opened where the log is the one that was read, and again after a loss.

It must keep true that no other log is read in place of the known one, and that the server ends the stream of a
connection that is closed.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace

import pymysql

from cdc_core.config import Source
from cdc_core.errors import ConnectionLost, DamagedBytes, LockstepError, NoEventHere
from cdc_core.model.position import Checkpoint, Fingerprint, Position
from cdc_core.mysql import connections
from cdc_core.source.host import source_faults
from cdc_core.source.host.gtid_sets import GtidSet
from cdc_core.source.host.server_facts import BinlogFile, binlog_files, facts
from cdc_core.source.host.source_answers import SourceAnswers
from cdc_core.source.host.source_server import require_all
from cdc_core.source.host.start_position import Search, require_available
from cdc_core.source.wire import replica_identity
from cdc_core.source.wire.backoff import Backoff
from cdc_core.source.wire.log_reader import LogReader

log = logging.getLogger(__name__)


class LogConnection:
    """start: of the whole stream. answers: on an ordinary connection to the same server. losses: how many were retried.

    replica_host: the name under which we register (replica_identity.replica_host).
    """

    def __init__(
        self, source: Source, server: connections.Server, answers: SourceAnswers, start: Checkpoint, replica_host: str
    ) -> None:
        self._source = source
        self._server = server
        self._answers = answers
        self._start = start
        self._replica_host = replica_host
        self._reader: LogReader | None = None
        self._backoff = Backoff(source.reconnect_s)
        self._resume_s = 0.0
        self._damaged_at: Position | None = None
        self.losses = 0

    def open(self) -> None:
        """At the start. Raises what LogReader raises."""
        files = binlog_files(self._answers.connection())
        self._reader = self._open(self._start.position, self._start.fingerprint, files)

    def reader(self, place: Position, fingerprint: Fingerprint | None) -> LogReader | None:
        """Continues at a place, where the last whole transaction ended, if server and log are still the ones that were
        read; None before the next attempt is due. fingerprint: of the log before the place.

        Raises what connect, require_available, require_all and LogReader do.
        """
        if self._reader is None and time.monotonic() >= self._resume_s:
            control = self._answers.connection()
            server_facts, files = facts(control), binlog_files(control)
            require_available(replace(self._start, position=place), files, server_facts, control, self._source)
            require_all(server_facts.without_replica(self._replica_host), self._source)
            self._reader = self._open(place, fingerprint, files)
            log.info("%s: reconnected, continuing from %s", self._source.name, place)
        return self._reader

    def reached(self, file: int, offset: int) -> None:
        """As Backoff.reached."""
        self._backoff.reached(file, offset)

    def drop(self) -> None:
        """After an error, which may mean that the server hangs: it is not asked to end the stream."""
        if self._reader is not None:
            self._reader.close()
            self._reader = None
        self._answers.close()

    def may_return(self, error: Exception, place: Position) -> bool:
        """After an error, and `drop`: whether to continue at a place after a pause. False when the error is final."""
        # A log that is reset under a stream ends the stream with some read error: connecting again compares the logs.
        once = isinstance(error, DamagedBytes | NoEventHere)
        if not once and not isinstance(error, ConnectionLost):
            return False
        if once and place == self._damaged_at:
            return False
        if once:
            self._damaged_at = place
        pause_s = self._backoff.pause_s()
        if pause_s is None:
            log.error("%s: giving up after %g s (reconnect_s)", self._source.name, self._source.reconnect_s)
            return False
        self.losses += 1
        self._resume_s = time.monotonic() + pause_s
        log.warning("%s: trying again in %.1f s, from %s: %s", self._source.name, pause_s, place, error)
        return True

    def close(self) -> None:
        """Makes the server end the stream now; otherwise it would notice only at its next write, and keep our server_id
        and its open log file until then."""
        if self._reader is not None and self._answers.connected:
            with suppress(LockstepError, pymysql.err.MySQLError, OSError):
                replica_identity.end_connection(self._answers.connection(), self._reader.connection_id)
        self.drop()

    def _open(self, begin: Position, fingerprint: Fingerprint | None, files: Sequence[BinlogFile]) -> LogReader:
        """Opens the log if it is the known one. A log that cannot be read where it was read before is not; it is read
        twice, as bytes may be damaged in transit."""
        source = self._source
        if fingerprint is not None and fingerprint.file not in [file.name for file in files]:
            # Of a file that ended right before us, purged since.
            self._require_proven_by_gtids(begin, files, fingerprint)
            fingerprint = None
        for again in (True, False):
            try:
                return LogReader(self._server, begin, source, replica_host=self._replica_host, known=fingerprint)
            except (DamagedBytes, NoEventHere) as error:
                if fingerprint is None:
                    raise
                if not again:
                    raise source_faults.history_changed(
                        f"{fingerprint.file} cannot be read from {fingerprint.begin} on: {error.what}",
                        f"{source.name}, {begin}",
                    ) from error
        raise AssertionError("unreachable")

    def _require_proven_by_gtids(self, begin: Position, files: Sequence[BinlogFile], fingerprint: Fingerprint) -> None:
        """Where the file before us is gone, that ours says that exactly what was read was executed before it.

        Nothing else tells it from a file of the same name in a log that began again: its first event is not known.
        """
        control, checkpoint = self._answers.connection(), self._start
        head = Search(self._source, control, self._server, files, facts(control)).head(begin.file)
        before, read = GtidSet.parse(head.previous), GtidSet.parse(checkpoint.gtid_set)
        same = before.contains(read) and read.contains(before)
        if begin != checkpoint.position or not checkpoint.gtid_set or not same:
            raise source_faults.history_changed(
                f"{fingerprint.file} is purged, so that it cannot be compared with what was read, and {begin.file} "
                "does not prove itself by GTIDs "
                f"(before it {head.previous or 'none'}, read {checkpoint.gtid_set or 'none'})",
                f"{self._source.name}, {begin}",
            )
        log.info("%s: %s is purged; %s is proven by its GTIDs", self._source.name, fingerprint.file, begin.file)
