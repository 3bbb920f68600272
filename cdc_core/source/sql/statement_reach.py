"""Which captured tables a statement may change whose rows are not in the log: the rule, and what it asks the server.

    the server names the databases that it changed (MySQL does), and none of them has a captured table     none
    it changes no more than it names (below)                                  the captured tables that it names
    else                                         every captured table, of those databases if the server names them

A statement changes more than it names through a view, a routine, a trigger, a foreign key or a MERGE table. Where one
of these comes first is all that is asked; nobody follows where it leads. The server knows only what it has now. So the
log is read ahead to its end: if a later statement drops or redefines what a name may have been, nobody knows either.
It must keep true that a table is left out only when it is certain that the statement did not change it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import pymysql

from cdc_core.binlog.event_headers import Event
from cdc_core.model.coverage import ANY_TABLE, EACH_TABLE
from cdc_core.model.position import Position
from cdc_core.model.schema import TableName
from cdc_core.mysql.connections import answers
from cdc_core.source.capture import SYSTEM_SCHEMAS
from cdc_core.source.host.server_facts import as_text, parse_grants, query
from cdc_core.source.schemas.foreign_keys import foreign_keys
from cdc_core.source.schemas.merge_tables import ENGINE
from cdc_core.source.schemas.table_registry import TableRegistry
from cdc_core.source.sql.client_text import is_known, lower_cased
from cdc_core.source.sql.log_ahead import LaterStatements, LogAhead
from cdc_core.source.sql.logged_statement import ServerDialect, read_statement
from cdc_core.source.sql.statement_classes import Action, Statement

_DROPS = frozenset({
    "DROP TABLE", "RENAME TABLE", "CREATE OR REPLACE TABLE", "DROP DATABASE", "CREATE OR REPLACE DATABASE",
})  # fmt: skip
_REDEFINES = _DROPS | {"ALTER TABLE"}
_KINDS = f"""
SELECT TABLE_NAME, IF(ENGINE = '{ENGINE}', 'MERGE TABLE', TABLE_TYPE) FROM INFORMATION_SCHEMA.TABLES
 WHERE TABLE_SCHEMA = %s AND TABLE_NAME IN ({{marks}})
"""
_TRIGGERS = """
SELECT TRIGGER_NAME FROM INFORMATION_SCHEMA.TRIGGERS WHERE EVENT_OBJECT_SCHEMA = %s AND EVENT_OBJECT_TABLE = %s
"""


@dataclass(frozen=True, slots=True)
class Reach:
    """tables: `database.table`, `database.*` (EACH_TABLE) or ANY_TABLE; empty: no captured table. why: it may change
    more than what it names, else ""."""

    tables: tuple[str, ...] = ()
    why: str = ""


@dataclass(frozen=True, slots=True)
class _ReachAnswer:
    """way: how a statement may change more than what it names, else "". written: the tables that it may write by name,
    where there is no way."""

    way: str
    written: tuple[TableName, ...] = ()


class StatementReach:
    """connect: an ordinary connection to the server. end: of the log, now."""

    def __init__(
        self,
        tables: TableRegistry,
        connect: Callable[[], pymysql.Connection],
        ahead: LogAhead,
        end: Callable[[], Position],
    ) -> None:
        self.dialect = ServerDialect()
        self._tables = tables
        self._connect = connect
        self._ahead = LaterStatements(ahead, self._redefining)
        self._end = end
        self._said: dict[tuple[frozenset[TableName], tuple[TableName, ...] | None], _ReachAnswer] = {}
        """Answers by the names in a statement."""
        self._said_at: Position | None = None
        """Where the log ended before the server said any of it."""

    def of(self, statement: Statement, databases: frozenset[str] | None, after: Position) -> Reach:
        """databases: the only ones in which it changed anything, where the event says so. after: where the next event
        begins. Raises what a query to the server raises.
        """
        if databases is not None:
            databases = frozenset(filter(self._tables.has_captured, databases))
            if not databases:
                return Reach()
        said = self._answer(statement, after)
        if said.way:
            every = (
                (ANY_TABLE,) if databases is None else tuple(database + EACH_TABLE for database in sorted(databases))
            )
            return Reach(every, said.way)
        named = {
            ".".join(name)
            for name in said.written
            if self._tables.captures(*name) and (databases is None or name[0] in databases)
        }
        if statement.action is Action.UNKNOWN:  # it may be about a whole database
            named |= {word + EACH_TABLE for _, word in statement.names if self._tables.has_captured(word)}
        return Reach(tuple(sorted(named)))

    def _answer(self, statement: Statement, after: Position) -> _ReachAnswer:
        if not all(is_known("".join(name)) for name in statement.names):
            return _ReachAnswer("a name in it cannot be decoded")
        said_at = self._said_at
        if said_at is None or said_at.timeline != after.timeline or after > said_at:
            self._said_at, self._said = self._end(), {}
        key = statement.names, statement.tables
        fresh = key not in self._said
        if fresh:
            with answers("source"):
                kinds = self._kinds(statement.names)
                # Where it is not obvious what it writes, it may write each table in it.
                written = tuple(sorted(kinds)) if statement.tables is None else statement.tables
                self._said[key] = _ReachAnswer(next(self._ways(statement, kinds, written), ""), written)
        if not self._said[key].way:
            for later in self._ahead.of(after, fresh=fresh):
                if self._may_have_ended(later, statement.names):
                    return _ReachAnswer(f"a later statement ({later.verb}) may have changed what it named")
        return self._said[key]

    def _ways(
        self, statement: Statement, kinds: Mapping[TableName, str], written: Iterable[TableName]
    ) -> Iterator[str]:
        """How it may change more than what it names, by what the server has now; none where it certainly does not.

        Asks in the order of what it costs."""
        # Tables of the system have no triggers, and nobody writes through its views.
        written = [name for name in written if name[0] not in SYSTEM_SCHEMAS]
        for name, kind in sorted(kinds.items()):
            if kind in ("VIEW", "MERGE TABLE"):
                yield f"{'.'.join(name)} is a {kind.lower()}"
        for name in written:
            if name not in kinds:
                yield f"{'.'.join(name)} no longer exists, or the account may not see it"
        routines = self._routines()
        called = [name for name in sorted(statement.names) if (name[0], lower_cased(name[1])) in routines]
        if called:
            yield f"{'.'.join(called[0])} is a routine"
        if statement.action is Action.UNKNOWN and not kinds:
            yield "it names nothing that exists"
        if written and not parse_grants([grant for (grant, *_) in self._ask("SHOW GRANTS")]).has("TRIGGER"):
            yield f"the account may not see triggers of {'.'.join(written[0])} (GRANT TRIGGER ON *.*)"
        for name in written:
            if self._ask(_TRIGGERS, name):
                yield f"{'.'.join(name)} has triggers"
        for key in foreign_keys(self._connect()) if written else ():
            if key.changes_rows and self._name(*key.parent) in written:
                yield f"a foreign key changes rows of {'.'.join(key.child)} with it"

    def _may_have_ended(self, later: Statement, names: frozenset[TableName]) -> bool:
        """Whether a later statement may have ended a way that is missing now."""
        databases = {database for database, _ in names}
        if later.action is Action.UNKNOWN:
            return bool(later.names & names)
        if later.action is Action.HARMLESS:  # of a view, a trigger or a routine
            return later.tables is None or any(database in databases for database, _ in later.tables)
        if later.tables is None or later.drops_constraint or later.database in databases:
            return True
        if later.verb in _DROPS and any(self._tables.captures(*name) for name in later.tables):
            return True  # with its foreign keys
        return later.verb in _REDEFINES and any(name in names for name in later.tables)

    def _redefining(self, event: Event) -> Statement | None:
        """The statement of an event, if it may drop or redefine anything."""
        statement = read_statement(event, self.dialect).statement
        if statement.action not in (Action.DEFINITION, Action.UNKNOWN, Action.HARMLESS):
            return None
        return None if statement.action is Action.HARMLESS and statement.tables == () else statement

    # What the server has now

    def _ask(self, sql: str, arguments: Sequence[object] = ()) -> list[tuple[str, ...]]:
        return [tuple(as_text(cell) for cell in row) for row in query(self._connect(), sql, arguments)]

    def _name(self, database: str, name: str) -> TableName:
        return (lower_cased(database), lower_cased(name)) if self.dialect.lower_case else (database, name)

    def _kinds(self, names: Iterable[TableName]) -> dict[TableName, str]:
        """Those that are tables or views, with their kinds: 'BASE TABLE', 'VIEW', 'MERGE TABLE', ..."""
        listed: dict[str, list[str]] = {}
        for database, name in names:
            if database not in SYSTEM_SCHEMAS:
                listed.setdefault(database, []).append(name)
        present = {
            self._name(database, "")[0]
            for (database,) in self._ask("SELECT SCHEMA_NAME FROM INFORMATION_SCHEMA.SCHEMATA")
        }
        return {
            self._name(database, name): kind
            for database in sorted(present & listed.keys())
            for name, kind in self._ask(
                _KINDS.format(marks=", ".join(["%s"] * len(listed[database]))), (database, *listed[database])
            )
        }

    def _routines(self) -> frozenset[TableName]:
        """Their names are case-insensitive, even if those of tables are not."""
        rows = self._ask("SELECT ROUTINE_SCHEMA, ROUTINE_NAME FROM INFORMATION_SCHEMA.ROUTINES")
        return frozenset((self._name(database, "")[0], lower_cased(name)) for database, name in rows)
