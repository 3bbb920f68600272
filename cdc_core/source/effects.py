"""Which captured tables a statement may change, if the log does not contain its changes as rows.

A statement names tables, but changes others too: through views, triggers, stored functions and foreign keys. The
server knows only their current definitions; so the log is read ahead to its end, and if a later statement drops or
redefines anything that the answer depends on, the answer is unknown. MySQL logs with each statement the databases in
which it changed anything, directly or not: then tables of other databases are not affected.
It must keep true that a table is left out only when it is certain that the statement did not change it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass

import pymysql

from cdc_core.binlog.events import Event
from cdc_core.connections import answers
from cdc_core.model.position import Position
from cdc_core.source import merge_tables
from cdc_core.source.client_text import lower_cased
from cdc_core.source.facts import parse_grants, query
from cdc_core.source.foreign_keys import foreign_keys
from cdc_core.source.later_statements import LaterStatements, LogAhead, statement_of
from cdc_core.source.mentioned_names import Mentions, Table, mentioned_in
from cdc_core.source.statements import Action, Statement

_REMOVES = frozenset({"ALTER TABLE", "DROP TABLE", "RENAME TABLE", "CREATE OR REPLACE TABLE", "DROP DATABASE"})
_SYSTEM = frozenset({"mysql", "information_schema", "performance_schema", "sys"})


@dataclass(frozen=True, slots=True)
class Effect:
    """tables: captured tables that it may change. unknown: why it may change others too, "" if it does not."""

    tables: tuple[Table, ...] = ()
    unknown: str = ""


class Effects:
    """connect: an ordinary connection to the server. end: of the log, now."""

    def __init__(
        self,
        captures: Callable[[str, str], bool],
        connect: Callable[[], pymysql.Connection],
        ahead: LogAhead,
        end: Callable[[], Position],
    ) -> None:
        self.lower_case = False
        self._captures = captures
        self._connect = connect
        self._present: Present | None = None
        self._known_up_to: Position | None = None
        """Where the log ended when the server was first asked for its current definitions."""
        self._end = end
        self._ahead = LaterStatements(ahead, self._doubtful)

    def of(self, statement: Statement, databases: frozenset[str] | None, after: Position) -> Effect:
        """databases: the only ones in which it changed anything, where the event says so. after: where the next event
        begins. Raises what a query to the server raises.
        """
        if self._present is None or self._known_up_to is None or not self._in_reach(after):
            self._known_up_to = self._end()
            self._present = Present(self._connect, lower_case=self.lower_case)
        present = self._present
        asked = present.questions
        walk = _Walk(present, self._captures, databases)
        walk.follow(statement)
        ahead = self._ahead.of(after, fresh=present.questions > asked)
        for other in ahead:
            walk.doubt(other)
        return walk.effect(statement)

    def _doubtful(self, event: Event) -> Statement | None:
        """The statement of an event, if it may define or drop anything."""
        found = statement_of(event, lower_case=self.lower_case, heed_temporary=False)
        return found if found is not None and _defines(found) else None

    def _in_reach(self, after: Position) -> bool:
        known = self._known_up_to
        return known is not None and known.timeline == after.timeline and after <= known


class Present:
    """What the server has now; each question is asked once."""

    def __init__(self, connect: Callable[[], pymysql.Connection], *, lower_case: bool) -> None:
        self._connect = connect
        self._lower_case = lower_case
        self._kinds: dict[Table, str] = {}
        self._routines: dict[Table, list[str | None]] | None = None
        self._triggers: dict[str, dict[Table, list[str]]] = {}
        self._sees_triggers: bool | None = None
        self._views: dict[Table, str] = {}
        self._children: dict[Table, list[Table]] | None = None
        self._databases: frozenset[str] | None = None
        self._tables_in: dict[str, list[str]] = {}
        self.questions = 0

    def _ask(self, sql: str, arguments: Sequence[object] = ()) -> list[tuple[str | None, ...]]:
        self.questions += 1
        with answers("source"):
            return [tuple(map(_text, row)) for row in query(self._connect(), sql, arguments)]

    def _name(self, database: str | None, name: str | None) -> Table:
        found = database or "", name or ""
        return (lower_cased(found[0]), lower_cased(found[1])) if self._lower_case else found

    def kinds(self, names: Iterable[Table]) -> dict[Table, str]:
        """The kind of each that exists: 'BASE TABLE', 'VIEW', 'MERGE', ..."""
        wanted: dict[str, list[str]] = {}
        names = list(names)
        for database, name in names:
            if (database, name) not in self._kinds:
                wanted.setdefault(database, []).append(name)
                self._kinds[database, name] = ""
        for database, listed in wanted.items():
            if database not in self.databases():
                continue
            for at in range(0, len(listed), 500):
                part = listed[at : at + 500]
                marks = ", ".join(["%s"] * len(part))
                for row in self._ask(
                    f"SELECT TABLE_SCHEMA, TABLE_NAME, IF(ENGINE = '{merge_tables.ENGINE}', 'MERGE', TABLE_TYPE) "
                    "FROM INFORMATION_SCHEMA.TABLES "
                    f"WHERE TABLE_SCHEMA = %s AND TABLE_NAME IN ({marks})",
                    (database, *part),
                ):
                    self._kinds[self._name(row[0], row[1])] = row[2] or ""
        return {name: kind for name in names if (kind := self._kinds[name])}

    def united_by(self, table: Table) -> list[Table]:
        """The tables that a MERGE table unites; none of one that is broken."""
        self.questions += 1
        with suppress(pymysql.err.MySQLError):
            return [self._name(*name) for name in merge_tables.union_of(self._connect(), *table)]
        return []

    def databases(self) -> frozenset[str]:
        if self._databases is None:
            rows = self._ask("SELECT SCHEMA_NAME FROM INFORMATION_SCHEMA.SCHEMATA")
            self._databases = frozenset(self._name(row[0], "")[0] for row in rows)
        return self._databases

    def tables_in(self, database: str) -> list[str]:
        """All tables and views of a database."""
        if database not in self._tables_in:
            rows = self._ask(
                "SELECT TABLE_NAME FROM INFORMATION_SCHEMA.TABLES WHERE TABLE_SCHEMA = %s AND TABLE_TYPE <> 'VIEW'",
                (database,),
            )
            self._tables_in[database] = [self._name(database, row[0])[1] for row in rows]
        return self._tables_in[database]

    def may_see_triggers(self) -> bool:
        """Whether the account may see all triggers: without the privilege a table with them looks like one without."""
        if self._sees_triggers is None:
            grants = parse_grants([row[0] or "" for row in self._ask("SHOW GRANTS")])
            self._sees_triggers = grants.has("TRIGGER")
        return self._sees_triggers

    def triggers(self, table: Table) -> list[str]:
        """The statements that its triggers run."""
        database = table[0]
        if database not in self._triggers:
            found: dict[Table, list[str]] = {}
            for row in self._ask(
                "SELECT EVENT_OBJECT_SCHEMA, EVENT_OBJECT_TABLE, ACTION_STATEMENT FROM INFORMATION_SCHEMA.TRIGGERS "
                "WHERE EVENT_OBJECT_SCHEMA = %s",
                (database,),
            ):
                found.setdefault(self._name(row[0], row[1]), []).append(row[2] or "")
            self._triggers[database] = found
        return self._triggers[database].get(table, [])

    def view(self, view: Table) -> str:
        """Its definition, "" where the account may not see it."""
        if view not in self._views:
            rows = self._ask(
                "SELECT VIEW_DEFINITION FROM INFORMATION_SCHEMA.VIEWS WHERE TABLE_SCHEMA = %s AND TABLE_NAME = %s", view
            )
            self._views[view] = (rows[0][0] or "") if rows else ""
        return self._views[view]

    def routines(self) -> dict[Table, list[str | None]]:
        """The bodies of all routines and packages, None for one that the account may not see. Their names are
        case-insensitive, even if those of tables are not."""
        if self._routines is None:
            self._routines = {}
            for row in self._ask(
                "SELECT ROUTINE_SCHEMA, ROUTINE_NAME, ROUTINE_DEFINITION FROM INFORMATION_SCHEMA.ROUTINES"
            ):
                database = self._name(row[0], "")[0]
                self._routines.setdefault((database, lower_cased(row[1] or "")), []).append(row[2])
        return self._routines

    def children(self, parent: Table) -> list[Table]:
        """Tables whose rows change with rows of this one, through their foreign keys."""
        if self._children is None:
            self._children = {}
            self.questions += 1
            for key in foreign_keys(self._connect()):
                if key.changes_rows:
                    self._children.setdefault(self._name(*key.parent), []).append(self._name(*key.child))
        return self._children.get(parent, [])


class _Walk:
    """Follows the names in a statement to everything that it may change."""

    def __init__(
        self, present: Present, captures: Callable[[str, str], bool], databases: frozenset[str] | None
    ) -> None:
        self._present = present
        self._captures = captures
        self._databases = databases
        self._written: set[Table] = set()
        self._named: set[Table] = set()
        """All names found: tables, views, routines, and words that are none of these."""
        self._run: set[Table] = set()
        self._hit: set[Table] = set()
        self._found: set[Table] = set()
        """Names of something that exists."""
        self._why = ""
        self._lost_captured = False
        """Databases in which a captured table was dropped or redefined since."""

    def effect(self, statement: Statement) -> Effect:
        if statement.action is Action.UNKNOWN and not self._found:
            self._unknown("it names nothing that exists")
        if self._databases is None:
            return Effect(tuple(sorted(self._hit)), self._why)
        if not self._lost_captured and not self._may_hold_captured():
            return Effect()
        return Effect(tuple(sorted(table for table in self._hit if table[0] in self._databases)), self._why)

    def _may_hold_captured(self) -> bool:
        return any(self._has_captured(database) for database in self._databases or ())

    def follow(self, statement: Statement) -> None:
        if self._databases is not None and not self._may_hold_captured():
            return
        mentions = statement.mentions
        if not mentions.known:
            self._unknown("a name in it cannot be decoded")
        if statement.action is Action.UNKNOWN:
            self._whole_databases(mentions)
        if statement.action is Action.DATA:
            for table in statement.tables or ():
                self._write(table, certain=True)
        # What a DDL statement creates is judged as DDL; its query only reads, if it calls nothing.
        runs = mentions.names if statement.action is Action.UNKNOWN else mentions.calls
        self._mentioned(mentions, runs, writes=statement.tables is None)

    def doubt(self, ahead: Statement) -> None:
        """A later statement in the log may have removed an object that is missing now."""
        if ahead.action is Action.HARMLESS:
            if not ahead.verb.startswith(("DROP ", "ALTER ", "CREATE ")) or ahead.tables == ():
                return
            here = {name[0] for name in self._named}
            if ahead.tables is None or any(name[0] in here for name in ahead.tables):
                self._unknown(f"a later {ahead.verb} may have removed what it ran")
            return
        names = ahead.mentions.names if ahead.action is Action.UNKNOWN else ahead.tables
        if ahead.action is Action.DEFINITION and ahead.verb not in _REMOVES and ahead.tables is not None:
            return
        lost = names is None or any(name in self._named for name in names)
        lost = lost or (ahead.verb in ("DROP DATABASE", "CREATE OR REPLACE DATABASE") and any(
            name[0] == ahead.database for name in self._named))  # fmt: skip
        if self._databases is None:  # what MySQL says includes the tables that foreign keys lead to
            lost = lost or ahead.drops_constraint
            dropped = ahead.verb in _REMOVES - {"ALTER TABLE"}
            lost = lost or (dropped and any(self._captures(*name) for name in names or ()))
        elif ahead.database in self._databases or any(
            name[0] in self._databases and self._captures(*name) for name in names or ()
        ):
            lost = self._lost_captured = True
        if lost:
            self._unknown(f"a later statement ({ahead.verb}) may have changed what it named")

    def _unknown(self, why: str) -> None:
        self._why = self._why or why

    def _has_captured(self, database: str) -> bool:
        if database in _SYSTEM:
            return False
        return any(self._captures(database, name) for name in self._present.tables_in(database))

    def _whole_databases(self, mentions: Mentions) -> None:
        for database in mentions.databases & self._present.databases():
            self._found.add((database, ""))
            self._hit |= {
                (database, name) for name in self._present.tables_in(database) if self._captures(database, name)
            }

    def _mentioned(self, mentions: Mentions, runs: frozenset[Table], *, writes: bool) -> None:
        """writes: each name may be of a table that is written. runs: names that may be of routines."""
        if not mentions.known:
            self._unknown("a name in what it runs cannot be decoded")
        new = mentions.names - (self._named if not writes else frozenset())
        self._named |= mentions.names
        kinds = self._present.kinds(new)
        self._found |= kinds.keys()
        for name, kind in kinds.items():
            if writes:
                self._write(name, certain=False)
            elif kind == "VIEW":
                self._view(name, writes=False)
        routines = self._present.routines()
        for named in runs:
            routine = (named[0], lower_cased(named[1]))
            if routine in routines and routine not in self._run:
                self._run.add(routine)
                self._found.add(routine)
                for body in routines[routine]:
                    self._body(body, routine[0], "the routine " + ".".join(routine))

    def _body(self, body: str | None, database: str, what: str) -> None:
        if not body:
            self._unknown(f"the account may not see {what} (GRANT SHOW VIEW, TRIGGER, SELECT ON *.*)")
            return
        mentions = mentioned_in(body, database)  # where a procedure may be called without parentheses
        self._mentioned(mentions, mentions.names, writes=True)

    def _write(self, table: Table, *, certain: bool) -> None:
        if table in self._written:
            return
        self._written.add(table)
        self._named.add(table)
        kind = self._present.kinds([table]).get(table)
        if kind is None:
            if certain:
                self._unknown(f"{'.'.join(table)} no longer exists, or the account may not see it")
            if certain and self._captures(*table):
                self._hit.add(table)
            return
        self._found.add(table)
        if kind == "VIEW":
            self._view(table, writes=True)
            return
        if self._captures(*table):
            self._hit.add(table)
        if table[0] in _SYSTEM:
            return
        if not self._present_triggers_visible():
            self._unknown(f"the account may not see triggers of {'.'.join(table)} (GRANT TRIGGER ON *.*)")
        for body in self._present.triggers(table):
            self._body(body, table[0], f"the triggers of {'.'.join(table)}")
        for child in self._present.children(table):
            self._write(child, certain=True)
        if kind == "MERGE":
            for united in self._present.united_by(table):
                self._write(united, certain=True)

    def _present_triggers_visible(self) -> bool:
        return self._present.may_see_triggers()

    def _view(self, view: Table, *, writes: bool) -> None:
        if view[0] in _SYSTEM:
            return
        self._body_of_view(self._present.view(view), view, writes=writes)

    def _body_of_view(self, definition: str, view: Table, *, writes: bool) -> None:
        if not definition:
            self._unknown(f"the account may not see the view {'.'.join(view)} (GRANT SHOW VIEW ON *.*)")
            return
        mentions = mentioned_in(definition, view[0])
        self._mentioned(mentions, mentions.calls, writes=writes)


def _defines(statement: Statement) -> bool:
    """Whether the statement defines or drops anything, or may."""
    if statement.action is Action.HARMLESS:
        return statement.tables != ()
    return statement.action in (Action.DEFINITION, Action.UNKNOWN)


def _text(value: object) -> str | None:
    if value is None or isinstance(value, str):
        return value
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)
