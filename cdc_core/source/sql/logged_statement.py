"""A statement as the log records it, read from its event."""

from __future__ import annotations

from dataclasses import dataclass

from cdc_core.binlog.compressed import plain
from cdc_core.binlog.event_headers import Event, EventType, Query, parse_query
from cdc_core.source.sql.shown_statement import shown
from cdc_core.source.sql.statement_classes import Action, Statement, classify

QUERIES = frozenset({EventType.QUERY, EventType.MARIADB_QUERY_COMPRESSED, EventType.EXECUTE_LOAD_QUERY})
"""The events that hold a statement."""
_SHOWN_ACTIONS = frozenset({Action.DATA, Action.DEFINITION, Action.UNKNOWN})
_FLAG_THREAD_SPECIFIC = 0x04
"""The flag of a statement that uses temporary tables. In a routine it stays on: what follows there has it, too."""
_UPDATED_DATABASES = 12
"""The status variable in which MySQL names the databases that a statement changed; absent when it does not know."""


@dataclass(frozen=True, slots=True)
class ServerDialect:
    """How the server that writes a log reads a statement. lower_case: it compares names of tables in lower case."""

    mariadb: bool = False
    lower_case: bool = False


@dataclass(frozen=True, slots=True)
class LoggedStatement:
    """databases: the only ones in which it changed anything, None where the event does not say. words: the part of its
    text that may be shown."""

    statement: Statement
    databases: frozenset[str] | None = None
    words: str = ""


NO_STATEMENT = LoggedStatement(Statement(Action.HARMLESS, ""))
"""For an event without a statement."""
BEGIN = LoggedStatement(Statement(Action.BEGIN, "BEGIN"))


def read_statement(event: Event, dialect: ServerDialect) -> LoggedStatement:
    """The statement of an event; NO_STATEMENT where it has none."""
    code = event.header.type
    if code not in QUERIES:
        return NO_STATEMENT
    if event.body.endswith(b"\0BEGIN"):
        return BEGIN  # one for each transaction of MySQL: not worth parsing its text
    if code == EventType.MARIADB_QUERY_COMPRESSED:
        event = plain(event)
    elif code == EventType.EXECUTE_LOAD_QUERY:
        # A QUERY with 13 more bytes after its post-header of 13: file id, the span of its name, duplicates.
        event = Event(event.header, event.body[:13] + event.body[26:], event.file, event.start)
    query = parse_query(event)
    temporary = bool(event.header.flags & _FLAG_THREAD_SPECIFIC)
    if not dialect.mariadb:  # it names the databases for a TRUNCATE of a temporary table: Sql_cmd_truncate_table
        temporary = temporary and _UPDATED_DATABASES in query.status
    statement = classify(
        query.sql,
        query.database,
        client_collation=query.client_collation,
        sql_mode=query.sql_mode,
        lower_case=dialect.lower_case,
        mariadb=dialect.mariadb,
        temporary=temporary,
    )
    words = ""
    if statement.action in _SHOWN_ACTIONS:
        words = shown(
            statement,
            query.sql,
            client_collation=query.client_collation,
            sql_mode=query.sql_mode,
            mariadb=dialect.mariadb,
        )
    return LoggedStatement(statement, _updated_databases(query), words)


def _updated_databases(query: Query) -> frozenset[str] | None:
    names = query.status.get(_UPDATED_DATABASES, b"")
    return frozenset(name.decode("utf-8", "surrogateescape") for name in names.split(b"\0")) if names else None
