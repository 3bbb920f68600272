"""Where reading of a source begins: at the stored checkpoint, else where the pipeline file says.

It must keep true that a position is only returned if the server still has the log from there on, without gaps: a
position that is purged, beyond the end, or of another server or history raises an error that says how much is missing.
Reading never silently begins at the first file instead.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from datetime import datetime

import pymysql

from cdc_core.binlog.event_headers import Event, EventType
from cdc_core.binlog.event_headers import format_crc as format_crc_of
from cdc_core.binlog.gtid import parse_gtid, parse_mariadb_gtid, parse_mariadb_gtid_list, parse_previous_gtids
from cdc_core.config import Source, StartConfig
from cdc_core.errors import GIVE_UP, DataAtRisk, NoEventHere, Refused, ServerChanged, UsageError
from cdc_core.model.position import FIRST_OFFSET, Checkpoint, Fingerprint, Position, file_number
from cdc_core.model.windows import MICROSECONDS, from_us, to_us
from cdc_core.mysql import connections
from cdc_core.process.leaving import leave_if_told
from cdc_core.source.host.gtid_sets import GtidSet
from cdc_core.source.host.server_facts import (
    BinlogFile,
    ServerFacts,
    binlog_files,
    end_position,
    facts,
    gtid_at,
    log_off,
    log_status,
    logged_gtids,
    now_us,
)
from cdc_core.source.host.source_faults import history_changed
from cdc_core.source.wire.log_reader import EndOfLog, LogReader

log = logging.getLogger(__name__)

_MYSQL_GTIDS = frozenset({EventType.GTID, EventType.ANONYMOUS_GTID, EventType.GTID_TAGGED})
_BETWEEN = _MYSQL_GTIDS | {
    EventType.MARIADB_GTID, EventType.ROTATE, EventType.STOP, EventType.PREVIOUS_GTIDS, EventType.MARIADB_GTID_LIST,
    EventType.MARIADB_BINLOG_CHECKPOINT, EventType.MARIADB_START_ENCRYPTION, EventType.FORMAT_DESCRIPTION,
}  # fmt: skip
"""Events that never occur inside a transaction."""


def find_start(
    source: Source,
    connection: pymysql.Connection,
    stored: Checkpoint | None,
    *,
    server: connections.Server,
) -> Checkpoint:
    """The checkpoint to read from: `stored` if there is one, else by `source.start`.

    server: where to open the log for a start by position, GTID or time.
    Raises DataAtRisk (source.log_lost, source.other_log, source.bad_position), UsageError
    (config.invalid, usage.argument), Refused (connection.setting).
    """
    server_facts = facts(connection)
    files = binlog_files(connection)
    if not files:
        raise log_off()
    if stored is not None:
        require_available(stored, files, server_facts, connection, source)
        return stored
    start = _asked(source, Search(source, connection, server, files, server_facts), files[0].name)
    return replace(start, position=replace(start.position, timeline=source.timeline))


def _asked(source: Source, search: Search, oldest: str) -> Checkpoint:
    if source.start == "latest":
        return search.latest()
    if source.start == "earliest":
        return search.at_file(oldest)
    start: StartConfig = source.start
    if start.position is not None:
        return search.at_position(start.position.file, start.position.offset)
    if start.timestamp is not None:
        return search.at_time(start.timestamp)
    assert start.gtid is not None
    return search.after_gtids(start.gtid)


def require_available(
    checkpoint: Checkpoint,
    files: Sequence[BinlogFile],
    server_facts: ServerFacts,
    connection: pymysql.Connection,
    source: Source,
) -> None:
    """Requires that the server still has the log from a checkpoint on, and that it is the checkpoint's log.

    Raises DataAtRisk (source.log_lost, source.other_log).
    """
    where = f"{source.name}, {checkpoint.position}"
    if checkpoint.server and checkpoint.server != server_facts.identity:
        raise ServerChanged(
            f"The position belongs to the log of server {checkpoint.server}, but this is {server_facts.identity}, "
            "where the same file and offset mean another position.",
            where=where,
            remedy=f"point {', '.join(source.connections)} at the server that was read before; if it is gone, "
            f"{GIVE_UP}",
        )
    require_in_files(checkpoint.position, files, where)
    if checkpoint.gtid_set:
        if server_facts.mariadb:
            before = gtid_at(connection, checkpoint.position, mariadb=True)
        else:
            before = logged_gtids(connection, mariadb=False)
        if not GtidSet.parse(before).contains(GtidSet.parse(checkpoint.gtid_set)):
            raise history_changed(f"it has {before or 'nothing'} here, and the checkpoint {checkpoint.gtid_set}", where)


def require_in_files(position: Position, files: Sequence[BinlogFile], where: str, remedy: str = "") -> None:
    """Requires that a position is within the files. remedy: where nothing was read that could be given up.

    Raises DataAtRisk (source.log_lost, source.other_log).
    """
    sizes = {file.name: file.size_bytes for file in files}
    oldest, newest = files[0].name, files[-1].name
    if position.file in sizes:
        if position.offset <= sizes[position.file]:
            return
        what = f"the file has only {sizes[position.file]} bytes"
    elif position.number < file_number(oldest):
        gone = file_number(oldest) - position.number
        raise DataAtRisk(
            f"The log at {position} is purged: the oldest file left is {oldest}, and the {gone} "
            f"file{'s' if gone > 1 else ''} before it {'are' if gone > 1 else 'is'} missing.",
            where=where,
            code="source.log_lost",
            remedy=remedy or f"{GIVE_UP}; keep the log longer (binlog_expire_logs_seconds)",
        )
    else:
        what = f"the newest file is {newest}"
    raise DataAtRisk(
        f"The log ends before {position}: {what}.",
        where=where,
        code="source.other_log",
        remedy=remedy or f"compare with SHOW BINARY LOGS. If the log was reset, or lost its end in a crash, {GIVE_UP}",
    )


@dataclass(frozen=True, slots=True)
class Begin:
    """A transaction's first event. commit_ts_us: when this server committed it; original_ts_us: when the first server
    did, which is the same where the log does not say."""

    position: Position
    commit_ts_us: int
    gtid: str
    original_ts_us: int


@dataclass(frozen=True, slots=True)
class Head:
    """The header of a file: when it was started, and the GTIDs executed before it. format_crc: see Fingerprint."""

    begun_us: int
    previous: str
    format_crc: int


class Search:
    """Finds a position in the log by reading the log."""

    def __init__(
        self,
        source: Source,
        connection: pymysql.Connection,
        server: connections.Server,
        files: Sequence[BinlogFile],
        known: ServerFacts,
    ) -> None:
        self._source = source
        self.control = connection
        self._server = server
        self.files = files
        self.known = known

    def latest(self) -> Checkpoint:
        watermark_us = now_us(self.control)
        row = log_status(self.control)
        if row is None:
            raise log_off()
        position = Position(0, str(row[0]), int(row[1]))
        if self.known.mariadb:
            gtids = gtid_at(self.control, position, mariadb=True)
        else:
            gtids = str(row[4] or "").replace("\n", "") if len(row) > 4 else ""
        return self.checkpoint(position, gtids, watermark_us)

    def at_file(self, file: str) -> Checkpoint:
        head = self.head(file)
        return self.checkpoint(Position(0, file, FIRST_OFFSET), head.previous, head.begun_us)

    def at_position(self, file: str, offset: int) -> Checkpoint:
        """Reads the log from the start of the file to verify that a transaction begins at the offset."""
        position = Position(0, file, offset)
        remedy = "correct `start` in the pipeline file: a position in SHOW BINARY LOGS, or earliest, or latest"
        require_in_files(position, self.files, f"{self._source.name}, start.position", remedy)
        if offset == FIRST_OFFSET:
            return self.at_file(file)
        head = self.head(file)
        gtids: list[str] = []
        watermark_us = head.begun_us
        reached = FIRST_OFFSET
        for event in self._events(file):
            if event.file != file or event.start < 0:
                break
            if event.start >= offset:
                if event.start > offset or event.header.type not in _BETWEEN:
                    raise self._no_boundary(position)
                reached = offset
                break
            begin = _begin_of(event)
            if begin is not None:
                gtids.append(begin.gtid)
                watermark_us = max(watermark_us, begin.commit_ts_us)
            reached = event.start + event.header.length
        if reached != offset:
            raise self._no_boundary(position)
        return self.checkpoint(position, _with(head.previous, gtids), watermark_us)

    def _no_boundary(self, position: Position) -> DataAtRisk:
        return NoEventHere(
            f"No transaction begins at {position}.",
            where=f"{self._source.name}, start.position",
            remedy="give the Pos of a Gtid or Anonymous_Gtid event of SHOW BINLOG EVENTS",
        )

    def at_time(self, text: str) -> Checkpoint:
        """Before the first transaction that was committed at or after a time; the end of the log if there is none."""
        moment_us = _moment(text, self._source)
        if moment_us > now_us(self.control):
            raise _bad_time(text, "is later than the server's clock", self._source)
        file = self.file_at(moment_us)
        if file is None and file_number(self.files[0].name) > 1:
            raise self.begun_later(moment_us, f"{self._source.name}, start.timestamp")
        if file is None:
            return self.at_file(self.files[0].name)
        return self.first(file, lambda begin: latest_us(begin.commit_ts_us) >= moment_us)

    def file_at(self, moment_us: int) -> str | None:
        """The file that the server was writing at a time; None if that file is purged."""
        low, high = 0, len(self.files)
        while low < high:  # the first file that may have been started at the time or after it
            middle = (low + high) // 2
            if latest_us(self.head(self.files[middle].name).begun_us) >= moment_us:
                high = middle
            else:
                low = middle + 1
        return self.files[low - 1].name if low else None

    def begun_later(self, moment_us: int, where: str) -> DataAtRisk:
        oldest = self.files[0].name
        begun_us = self.head(oldest).begun_us
        return DataAtRisk(
            f"The log at {from_us(moment_us).isoformat()} is purged: the oldest file left, {oldest}, was started at "
            f"{from_us(begun_us).isoformat()}.",
            where=where,
            code="source.log_lost",
            remedy=f"use a later time; `lockstep snapshot` copies the rows from before it. In a failover, {GIVE_UP}",
        )

    def after_gtids(self, text: str) -> Checkpoint:
        """Before the first transaction that is not in a GTID set; the end of the log if there is none."""
        wanted = GtidSet.parse(text)
        if not self.known.mariadb and self.known.gtid_mode != "ON":
            raise Refused(
                f"gtid_mode is {self.known.gtid_mode or 'OFF'}, so Lockstep cannot search the log for a GTID.",
                where=f"{self._source.name}, start.gtid",
                code="connection.setting",
                remedy="use start.position or start.timestamp, or set gtid_mode = ON on the source",
            )
        logged = logged_gtids(self.control, mariadb=self.known.mariadb)
        if not GtidSet.parse(logged).contains(wanted):
            raise DataAtRisk(
                f"The server has logged {logged or 'nothing'}, which lacks some of {text}.",
                where=f"{self._source.name}, start.gtid",
                code="source.other_log",
                remedy="check that this is the server that the set came from, or a replica that has caught up with it",
            )
        for file in reversed(self.files):
            if wanted.contains(GtidSet.highest(self.head(file.name).previous)):
                return self.first(file.name, lambda begin: not begin.gtid or not wanted.has(begin.gtid))
        oldest = self.files[0].name
        raise DataAtRisk(
            f"The log after {text or 'the first transaction'} is purged: the oldest file left, {oldest}, begins after "
            f"{self.head(oldest).previous}.",
            where=f"{self._source.name}, start.gtid",
            code="source.log_lost",
            remedy="use a later start; `lockstep snapshot` copies the rows from before it",
        )

    def first(self, file: str, fits: Callable[[Begin], bool]) -> Checkpoint:
        """Before the first transaction from `file` on that fits."""
        head = self.head(file)
        gtids: list[str] = []
        watermark_us = head.begun_us
        end = end_position(self.control, 0)
        for begin in self.begins(file):
            if fits(begin):
                end = begin.position
                break
            if begin.position >= end:  # logged after the search began
                break
            gtids.append(begin.gtid)
            watermark_us = max(watermark_us, begin.commit_ts_us)
        return self.checkpoint(end, _with(head.previous, gtids), watermark_us)

    def checkpoint(self, position: Position, gtids: str, watermark_us: int) -> Checkpoint:
        return Checkpoint(
            position,
            gtid_set=gtids,
            server=self.known.identity,
            watermark_us=min(watermark_us, now_us(self.control)),
            fingerprint=Fingerprint(self.head(position.file).format_crc, position.file),
        )

    def _open(self, file: str) -> LogReader:
        return LogReader(self._server, Position(0, file, FIRST_OFFSET), self._source)

    def head(self, file: str) -> Head:
        with closing(self._open(file)) as reader:
            begun_us = format_crc = 0
            for event in _all_events(reader):
                code = event.header.type
                if code == EventType.FORMAT_DESCRIPTION:
                    begun_us = event.header.timestamp * 1_000_000
                    format_crc = format_crc_of(event)
                elif code == EventType.PREVIOUS_GTIDS:
                    return Head(begun_us, parse_previous_gtids(event), format_crc)
                elif code == EventType.MARIADB_GTID_LIST:
                    return Head(begun_us, ",".join(parse_mariadb_gtid_list(event)), format_crc)
                elif code in _MYSQL_GTIDS or code == EventType.MARIADB_GTID:
                    break
        return Head(begun_us, "", format_crc)

    def _events(self, file: str) -> Iterator[Event]:
        """From the start of a file to the end of the log."""
        log.info("%s: searching the log from %s on for the start position", self._source.name, file)
        with closing(self._open(file)) as reader:
            yield from _all_events(reader)

    def begins(self, file: str) -> Iterator[Begin]:
        return (begin for event in self._events(file) if (begin := _begin_of(event)) is not None)


def latest_us(logged_us: int) -> int:
    """The latest time that a time in the log may mean. MariaDB, MySQL before 8.0, and the heads of files have whole
    seconds, with the fraction cut off."""
    return logged_us if logged_us % MICROSECONDS else logged_us + MICROSECONDS - 1


def _with(previous: str, gtids: list[str]) -> str:
    """The GTIDs before a position: those before its file (known even if there are none), and later ones."""
    return str(GtidSet.parse(previous).union(GtidSet.parse(",".join(gtids))))


def _begin_of(event: Event) -> Begin | None:
    code = event.header.type
    if code == EventType.MARIADB_GTID:
        gtid, moment_us, original_us = parse_mariadb_gtid(event).text, 0, 0
    elif code in _MYSQL_GTIDS:
        named = parse_gtid(event)
        gtid, moment_us, original_us = named.text, named.immediate_commit_ts_us, named.original_commit_ts_us
    else:
        return None
    moment_us = moment_us or event.header.timestamp * 1_000_000
    return Begin(Position(0, event.file, event.start), moment_us, gtid, original_us or moment_us)


def _all_events(reader: LogReader) -> Iterator[Event]:
    while True:
        leave_if_told()
        try:
            events = reader.events(1.0)
        except EndOfLog:
            return
        yield from events


def _moment(text: str, source: Source) -> int:
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise _bad_time(text, "is not ISO 8601", source) from None
    if moment.tzinfo is None:
        raise _bad_time(text, "has no zone", source)
    return to_us(moment)


def _bad_time(text: str, why: str, source: Source) -> UsageError:
    return UsageError(
        f"The start time {text!r} {why}.",
        where=f"{source.name}, start.timestamp",
        code="config.invalid",
        remedy="write it like 2026-11-21T04:00:00+00:00",
    )
