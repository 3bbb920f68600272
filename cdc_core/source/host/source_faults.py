"""The errors that stop a stream: what is in the log, or what the server says. `where` is `source, file:offset`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pymysql

from cdc_core.binlog.event_headers import Event, parse_incident, type_name
from cdc_core.errors import (
    GIVE_UP,
    ConnectionLost,
    DamagedBytes,
    DataAtRisk,
    LockstepError,
    NoEventHere,
    Refused,
    RetryLater,
    UndoneAfterParts,
    UsageError,
)
from cdc_core.mysql.server_errors import ErrorKind, explained, kind_of

_UNSTAGED = "Nothing after this position was staged"


def inside_transaction(event: Event, where: str) -> DataAtRisk:
    return DataAtRisk(
        f"The position is inside a transaction: the first events that belong to {type_name(event.header.type)} are "
        "missing.",
        where=where,
        code="source.bad_position",
        remedy="start where a transaction begins: at a GTID event (SHOW BINLOG EVENTS lists them)",
    )


def grammar(what: str, where: str) -> DataAtRisk:
    return DataAtRisk(
        f"The log does not consist of whole transactions: {what}.",
        where=where,
        code="source.log_damaged",
        remedy="read this position with mysqlbinlog; if the log is intact, report this as a defect with the "
        f"server's version. {_UNSTAGED}",
    )


def undone_after_parts(why: str, where: str) -> UndoneAfterParts:
    return UndoneAfterParts(
        f"A transaction was rolled back after parts of it were read, and {why}.",
        where=where,
        remedy="run again: the extractor reads the transaction again and leaves it out. Nothing of it was staged",
    )


def history_changed(how: str, where: str) -> DataAtRisk:
    return DataAtRisk(
        f"The log is not the one that was read before: {how}.",
        where=where,
        code="source.other_log",
        remedy="if another server answers here, point the connection back at the right one; if the log was reset or "
        f"the data restored from a backup, {GIVE_UP}",
    )


@contextmanager
def scratch() -> Iterator[None]:
    """Turns errors in writing temporary files into RetryLater."""
    try:
        yield
    except OSError as error:
        raise RetryLater(
            f"A transaction larger than memory cannot be written to a temporary file: {error.strerror or error}.",
            code="disk.error",
            remedy="free space, or set TMPDIR to another directory; then run again",
        ) from error


def incident(event: Event, where: str) -> DataAtRisk:
    found = parse_incident(event)
    return DataAtRisk(
        f"The source lost changes before it logged them: {found.message or 'it gives no reason'}.",
        where=where,
        code="source.log_lost",
        remedy=f"the log can no longer reproduce the source: {GIVE_UP}",
    )


def unknown_event(event: Event, where: str) -> DataAtRisk:
    return DataAtRisk(
        f"Lockstep does not know the event type {type_name(event.header.type)}.",
        where=where,
        code="source.unknown_event",
        remedy="report the server's version and what writes such events; Lockstep never skips an event that it does "
        "not know",
    )


def unlogged_change(verb: str, names: str, why: str, words: str, where: str) -> DataAtRisk:
    return DataAtRisk(
        f"{verb} changed rows of {names} without row events, or may have ({why}): {words}",
        where=where,
        code="source.unlogged_change",
        remedy="to continue, set tables.on_unlogged_change to resync: Lockstep then copies these tables again. Or set "
        "it to record: target and source then differ until you copy the tables (`lockstep snapshot`). If sessions log "
        "statements, SET GLOBAL binlog_format = 'ROW' on the source and end them",
    )


def accepted_at(file: str, offset: int) -> str:
    """How a manifest's note says that an operator has accepted an event."""
    return f"accepted by an operator at {file}:{offset}"


def nothing_to_accept(where: str) -> UsageError:
    return UsageError(
        "There is nothing to accept here: nothing at this position stops the source.",
        where=where,
        code="usage.argument",
        remedy="copy the file and offset from the error that stopped the source; if it no longer stops, run without "
        "--accept",
    )


def xa_unknown(xid: str, where: str) -> DataAtRisk:
    return DataAtRisk(
        f"The server no longer has the log with the XA PREPARE of XA COMMIT {xid}.",
        where=where,
        code="source.log_lost",
        remedy=f"what that transaction changed is unknown: {GIVE_UP}",
    )


def hole(what: str, where: str) -> DataAtRisk:
    return DamagedBytes(
        f"The log has a gap: {what}.",
        where=where,
        remedy="read this position with mysqlbinlog; if the file is intact, report this as a defect with the "
        f"server's version. {_UNSTAGED}",
    )


def protocol(what: str, where: str) -> DataAtRisk:
    return DamagedBytes(
        f"The stream is not a binary log: {what}.",
        where=where,
        remedy="check what is between Lockstep and the server, such as a proxy that does not support replication; if "
        "nothing is, report the server's version",
    )


def connection_lost(why: str, where: str) -> RetryLater:
    return ConnectionLost(
        f"The stream of the log ended: {why}.",
        where=where,
        remedy="nothing is lost; the next attempt continues from the last durable position",
    )


_FATAL = 1236
"""ER_MASTER_FATAL_ERROR_READING_BINLOG: one number for every failure of the dump thread; its text says which."""


def dump_error(number: int, text: str, where: str) -> LockstepError:
    """The error that the server sent instead of the log, or instead of an answer while the stream was opened."""
    lower, error = text.lower(), pymysql.err.OperationalError(number, text)
    if kind_of(error) is ErrorKind.DENIED:
        return Refused(
            f"The account may not read the log: {text}.",
            where=where,
            code="connection.grant",
            remedy="GRANT REPLICATION SLAVE ON *.* to the account on the source",
        )
    if number != _FATAL:
        return explained(error, where=where)
    if "could not find first log" in lower or "purged" in lower:
        return DataAtRisk(
            f"The server has purged the log from this position on: {text}.",
            where=where,
            code="source.log_lost",
            remedy=f"{GIVE_UP}. Keep the log longer (binlog_expire_logs_seconds)",
        )
    if "> file size" in lower or "impossible position" in lower:
        return DataAtRisk(
            f"The log ends before this position: {text}.",
            where=where,
            code="source.other_log",
            remedy="compare SHOW BINARY LOGS with the position. If the server's log was reset, or lost its end, "
            f"{GIVE_UP}",
        )
    if "same server_uuid/server_id" in lower or "same server-id" in lower or "same server_id" in lower:
        return Refused(
            f"Another replica connected with our server_id: {text}.",
            where=where,
            code="source.server_id_taken",
            remedy="give each replica and each source in the pipeline file its own server_id",
        )
    if "bogus data" in lower or "did not pass" in lower or "read past" in lower:
        return NoEventHere(
            f"The server cannot read its log here: {text}.",
            where=where,
            remedy="if the position was set by hand, use one at which an event begins (SHOW BINLOG EVENTS); otherwise "
            f"the file is damaged (mysqlbinlog --verify-binlog-checksum): {GIVE_UP}",
        )
    return NoEventHere(
        f"The server stopped the stream: {text}.",
        where=where,
        remedy="fix the cause that the server's message names; nothing after this position was staged",
    )
