"""The errors that stop a stream: what stands in the log, or what the server says. `where` is `source, file:offset`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from cdc_core.binlog.events import Event, parse_incident, type_name
from cdc_core.errors import DataAtRisk, LockstepError, Refused, RetryLater, UsageError
from cdc_core.source.facts import DENIED


def inside_transaction(event: Event, where: str) -> DataAtRisk:
    return DataAtRisk(
        f"{type_name(event.header.type)} comes without what must precede it: the position lies inside a transaction.",
        where=where,
        code="source.inside_transaction",
        remedy="start where a transaction begins: at a GTID event (SHOW BINLOG EVENTS lists them)",
    )


def grammar(what: str, where: str) -> DataAtRisk:
    return DataAtRisk(
        f"The log is not made of whole transactions: {what}.",
        where=where,
        code="source.grammar",
        remedy="read the place with mysqlbinlog; if the log is whole, report this as a defect with the server's "
        "version. Nothing of the transaction was staged",
    )


def undone_after_parts(why: str, where: str) -> DataAtRisk:
    return DataAtRisk(
        f"A transaction too large for memory cannot be undone any more, and {why}.",
        where=where,
        code="source.undone_after_parts",
        remedy="nothing of it was staged; the extractor reads it again and leaves it out, so run it again",
    )


FULL_COPY = "take a new full copy of the captured tables, and start behind it under a new timeline"


def history_changed(how: str, where: str) -> DataAtRisk:
    return DataAtRisk(
        f"The log is not the one that was read before: {how}.",
        where=where,
        code="source.history_changed",
        remedy="the log was reset, the data were restored from a backup, or another server answers here. If it is the "
        f"wrong server, point the connection back at the right one; else {FULL_COPY}",
    )


@contextmanager
def scratch() -> Iterator[None]:
    """Around the writing of temporary files."""
    try:
        yield
    except OSError as error:
        raise RetryLater(
            f"A transaction larger than memory cannot be kept in a temporary file: {error.strerror or error}.",
            code="source.scratch",
            remedy="make room for temporary files, or name another directory in the variable TMPDIR; then run again",
        ) from error


def incident(event: Event, where: str) -> DataAtRisk:
    found = parse_incident(event)
    return DataAtRisk(
        f"The source says that it lost changes before it could log them: {found.message or 'no reason given'}.",
        where=where,
        code="source.incident",
        remedy="no reader of the log can be equal to the source from here on: start behind this position with a full "
        "copy of all tables",
    )


def unknown_event(event: Event, where: str) -> DataAtRisk:
    return DataAtRisk(
        f"{type_name(event.header.type)} is not an event that Lockstep reads.",
        where=where,
        code="source.unknown_event",
        remedy="report the server's version and what writes such events; nothing may be skipped for being unknown",
    )


def unknown_statement(words: str, where: str) -> DataAtRisk:
    return DataAtRisk(
        f"A statement that Lockstep does not know: {words}",
        where=where,
        code="source.unknown_statement",
        remedy="look whether it changed rows of captured tables, and report it. To go on, start behind it with a full "
        "copy of the tables that it changed",
    )


def statement_dml(words: str, where: str) -> DataAtRisk:
    return DataAtRisk(
        f"Rows were changed by a statement, and the log does not say which: {words}",
        where=where,
        code="source.statement_dml",
        remedy="SET GLOBAL binlog_format = 'ROW' on the source and end the sessions that set it otherwise; then start "
        "behind this position with a full copy of the tables that it changed",
    )


def unlogged_change(verb: str, names: str, why: str, words: str, where: str) -> DataAtRisk:
    return DataAtRisk(
        f"{verb} changed rows of {names} without row events ({why}): {words}",
        where=where,
        code="source.unlogged_change",
        remedy="set tables.on_unlogged_change to record to go on, then copy the tables anew (needs re-sync); until "
        "then target and source differ",
    )


def through_merge_table(merge: str, names: str, where: str) -> DataAtRisk:
    return DataAtRisk(
        f"Rows of {names} were written through {merge}, which is a MERGE table, or may have been one if the server has "
        "it no more: the log has them under its name only.",
        where=where,
        code="source.unlogged_change",
        remedy="write to the tables themselves; then set tables.on_unlogged_change to record to go on, and copy the "
        "tables again (needs re-sync); until then target and source differ",
    )


def accepted_at(file: str, offset: int) -> str:
    """How a manifest's note says that an operator has accepted an event."""
    return f"accepted by an operator at {file}:{offset}"


def nothing_to_accept(where: str) -> UsageError:
    return UsageError(
        "Nothing that stops the source is there to be accepted.",
        where=where,
        code="extract.accept",
        remedy="take file and offset from the error that stopped the source; if it no longer stops, run without "
        "--accept",
    )


def xa_unknown(xid: str, where: str) -> DataAtRisk:
    return DataAtRisk(
        f"XA COMMIT {xid}: its XA PREPARE is not in the part of the log that the server still has.",
        where=where,
        code="source.xa_unknown",
        remedy="find out which tables that transaction changed, start behind this position and take a full copy of "
        "them",
    )


def hole(what: str, where: str) -> DataAtRisk:
    return DataAtRisk(
        f"The log has a hole: {what}.",
        where=where,
        code="source.hole",
        remedy="read the place with mysqlbinlog; if the file is whole, report this as a defect with the server's "
        "version. Nothing behind the place was staged",
    )


def protocol(what: str, where: str) -> DataAtRisk:
    return DataAtRisk(
        f"The stream is not a binlog: {what}.",
        where=where,
        code="source.protocol",
        remedy="check what stands between us and the server (a proxy does not pass replication on); if it is the "
        "server itself, report its version",
    )


def connection_lost(why: str, where: str) -> RetryLater:
    return RetryLater(
        f"The stream of the log ended: {why}.",
        where=where,
        code="source.connection_lost",
        remedy="nothing is lost; the next attempt goes on from the last durable position",
    )


_FATAL = 1236
"""ER_MASTER_FATAL_ERROR_READING_BINLOG: one number for all that the dump thread cannot do; its text tells which."""


def dump_error(number: int, text: str, where: str) -> LockstepError:
    """What the server said instead of the log, or of an answer while the stream was opened."""
    lower = text.lower()
    if number in DENIED:
        return Refused(
            f"The account may not read the log: {text}.",
            where=where,
            code="source.missing_grant",
            remedy="GRANT REPLICATION SLAVE ON *.* to the account on the source",
        )
    if number != _FATAL:
        return connection_lost(text, where)
    if "could not find first log" in lower or "purged" in lower:
        return DataAtRisk(
            f"The server no longer has the log from here on: {text}.",
            where=where,
            code="source.purged",
            remedy="changes are lost to the log: take a new full copy and start behind it; keep the log longer "
            "(binlog_expire_logs_seconds)",
        )
    if "> file size" in lower or "impossible position" in lower:
        return DataAtRisk(
            f"The log ends before this position: {text}.",
            where=where,
            code="source.position_beyond_end",
            remedy="the server's log was reset or lost its end: compare SHOW BINARY LOGS with the position, then take "
            "a new full copy",
        )
    if "same server_uuid/server_id" in lower or "same server-id" in lower or "same server_id" in lower:
        return Refused(
            f"Another replica came with our server_id: {text}.",
            where=where,
            code="source.server_id_taken",
            remedy="give each replica and each source of a pipeline file a server_id of its own",
        )
    if "bogus data" in lower or "did not pass" in lower or "read past" in lower:
        return DataAtRisk(
            f"The server cannot read its log here: {text}.",
            where=where,
            code="source.bad_position",
            remedy="if the position was given by hand, it must be where an event begins (SHOW BINLOG EVENTS); else the "
            "file is damaged (mysqlbinlog --verify-binlog-checksum): take a new full copy",
        )
    return DataAtRisk(
        f"The server stopped the stream: {text}.",
        where=where,
        code="source.dump_refused",
        remedy="mend what the server's message names; nothing behind the position was staged",
    )
