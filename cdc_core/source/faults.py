"""The errors that stop a stream because of what stands in the log. `where` is `source, file:offset`."""

from __future__ import annotations

from cdc_core.binlog.events import Event, parse_incident, type_name
from cdc_core.errors import DataAtRisk


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
        remedy="raise limits.ring_mib to four times the size of the transaction and run again: nothing of it was "
        "staged",
    )


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


def xa_unknown(xid: str, where: str) -> DataAtRisk:
    return DataAtRisk(
        f"XA COMMIT {xid}: its XA PREPARE is not in the part of the log that the server still has.",
        where=where,
        code="source.xa_unknown",
        remedy="find out which tables that transaction changed, start behind this position and take a full copy of "
        "them",
    )
