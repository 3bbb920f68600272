"""Which statement of the log stops a source, or makes a copy due: the rule for all changes that row events do not show.

    the statement is                                                   then
    transaction control, or known to change no row of a table:         the source continues
      accounts, views, routines, triggers, maintenance, temporary tables
    a definition of tables that are not captured                       the source continues
    a definition of captured tables that leaves every value in its     the definition is followed
      row, and every row in its table (`statement_classes`,
      `alter_clauses`, `modified_columns`)
    any other definition of captured tables                            their rows changed unlogged
    anything else: DML in statement format, and every statement        captured tables that it may have changed
      that Lockstep does not know (`statement_reach`)                  changed unlogged; without any, it is left out

    rows of a table changed unlogged, and on_unlogged_change is
      resync    a note in the batch; the next copy of the table replaces its rows
      record    a note in the batch; the table is partial until somebody copies it
      stop      the source stops (source.unlogged_change), unless an operator has accepted the place

A TRUNCATE is a change of its own where on_truncate is `stage`. A captured table that a MERGE table unites cannot be
captured (source.unsupported_table): rows written through that are in the log under its name only.
It must keep true that no such change passes silently, and that a table which is not captured stops nothing.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from dataclasses import replace

from cdc_core.errors import LockstepError
from cdc_core.model.block import EntryKind
from cdc_core.model.coverage import ANY_TABLE, Happened
from cdc_core.model.position import Position
from cdc_core.model.schema import TableName, TableSchema
from cdc_core.source.host import source_faults
from cdc_core.source.schemas.cascades import Cascades
from cdc_core.source.schemas.definition_history import Change
from cdc_core.source.schemas.known_definitions import LogPoint
from cdc_core.source.schemas.merge_tables import united_table
from cdc_core.source.schemas.table_registry import TableRegistry
from cdc_core.source.sql.accepted_places import AcceptedPlaces
from cdc_core.source.sql.capture_policy import CapturePolicy
from cdc_core.source.sql.ddl_effects import define_tables, drops
from cdc_core.source.sql.logged_statement import LoggedStatement
from cdc_core.source.sql.statement_classes import Action, Statement
from cdc_core.source.sql.statement_reach import Reach
from cdc_core.source.transactions.open_group import OpenGroup
from cdc_core.source.transactions.reading_place import EventPlace

log = logging.getLogger(__name__)

STATEMENT_LEFT_OUT = "statement on a table not included"

_PERHAPS_TEMPORARY = (
    "all rows were removed, unless the session had a temporary table of that name, which the log does not show"
)


class StatementJudge:
    """reach: which captured tables a statement may change (statement_reach.StatementReach.of). cascades: what foreign
    keys change unlogged. past: judges nothing, as everything was judged when it was first read."""

    def __init__(
        self,
        source: str,
        tables: TableRegistry,
        policy: CapturePolicy,
        reach: Callable[[Statement, frozenset[str] | None, Position], Reach],
        accepted: AcceptedPlaces,
        *,
        cascades: Cascades,
        past: bool,
    ) -> None:
        self._source = source
        self._tables = tables
        self._policy = policy
        self._reach = reach
        self._accepted = accepted
        self.cascades = cascades
        self.past = past

    def define(self, group: OpenGroup, logged: LoggedStatement, at: EventPlace) -> TableSchema | None:
        """DDL: redefines the tables, and judges what it did to rows. Returns the definition of the table that it
        empties, if that is staged as a change of its own. Raises DataAtRisk (source.unlogged_change), Refused
        (source.unsupported_table)."""
        statement, on_truncate = logged.statement, self._policy.on_truncate
        if statement.temporary:  # such a TRUNCATE must empty nothing
            statement, on_truncate = replace(statement, unlogged=_PERHAPS_TEMPORARY), "unlogged"
            logged = replace(logged, statement=statement)
        if statement.queries:  # which may call what changes rows
            self.judge_rows(group, replace(logged, statement=replace(statement, tables=())), at)
        self._refuse_united(group, statement, at)
        effect = define_tables(
            statement,
            self._tables,
            LogPoint(group.seq, at.after),
            group.commit_ts_us,
            stops_at_cascades=self.cascades.active and self._policy.on_unlogged_change == "stop",
            on_truncate=on_truncate,
        )
        group.happened += effect.happened
        if not self.past:
            group.cascaded(self.cascades.define(statement, at.after, group.commit_ts_us))
        if effect.unnamed:
            group.notes.append(f"{statement.verb} {effect.unnamed} at {at.where}: no table in it is known")
        if effect.tables == ():
            return None
        group.without_rows = EntryKind.DDL
        if effect.truncated is not None:
            return effect.truncated
        if effect.unlogged:
            # Where nothing has `happened`, the staged rows are complete; those of the targets are not.
            stale = not effect.happened and self._policy.on_unlogged_change == "resync"
            self._changed(group, logged, effect.tables or (), effect.unlogged, at, partial=stale)
        else:
            self._note_definition(group, logged, effect.names, at)
        return None

    def _note_definition(self, group: OpenGroup, logged: LoggedStatement, names: str, at: EventPlace) -> None:
        log.info("%s: the definition of %s changed at %s: %s", self._source, names, at.where, logged.words)
        if drops(logged.statement):
            group.notes.append(f"{names} dropped on the source at {at.where}; the rows stay in the targets")

    def judge_rows(self, group: OpenGroup, logged: LoggedStatement, at: EventPlace) -> None:
        """DML as a statement, or an unknown one: the log does not show what it did to rows. Raises DataAtRisk
        (source.unlogged_change)."""
        if self.past:
            return
        statement, point = logged.statement, LogPoint(group.seq, at.after)
        unknown = statement.action is Action.UNKNOWN
        if unknown:
            self._tables.meet(statement, point)
        # Whether a statement that nobody knows tells its databases is not known either.
        reach = self._reach(statement, None if unknown else logged.databases, at.after)
        if reach.tables:
            why = "Lockstep does not know the statement" if unknown else "the log has the statement, not its rows"
            self._changed(group, logged, reach.tables, f"{why}; {reach.why}" if reach.why else why, at, partial=True)
            if unknown:
                self._tables.redefined(None, point, Change())
        elif unknown:
            note = f"a statement that Lockstep does not know names no captured table, at {at.where}: {logged.words}"
            log.warning("%s: %s", self._source, note)
            group.notes.append(note)
        else:
            group.left_out[STATEMENT_LEFT_OUT] += 1

    def _changed(
        self,
        group: OpenGroup,
        logged: LoggedStatement,
        tables: Iterable[str],
        why: str,
        at: EventPlace,
        *,
        partial: bool,
    ) -> None:
        """Rows of tables changed unlogged; all tables, where none is given. partial: their coverage ends here."""
        tables = [table for table in tables if table != ANY_TABLE]
        names, policy = ", ".join(tables) or "any captured table", self._policy.on_unlogged_change
        if policy == "stop":
            error = source_faults.unlogged_change(logged.statement.verb, names, why, logged.words, at.where)
            self.stop(error, at, group, tables)
            return
        note = f"needs re-sync of table {names}: {why}, at {at.where}"
        if policy == "resync":
            note = f"changed without row events, so that the next copy replaces it: table {names}: {why}, at {at.where}"
        log.warning("%s: %s", self._source, note)
        group.notes.append(f"{note}: {logged.words}")
        if partial:
            group.happened += [(table, Happened.UNLOGGED) for table in tables or [ANY_TABLE]]

    def _refuse_united(self, group: OpenGroup, statement: Statement, at: EventPlace) -> None:
        for name in statement.union if not self.past else ():
            if self._tables.captures(*name):
                error = united_table(name, (statement.tables or (("", "a MERGE table"),))[0], at.where)
                if not self.isolates(name, error, f"{replace(at.after, offset=group.start)}"):
                    self.stop(error, at, group, [".".join(name)])

    def stop(self, error: LockstepError, at: EventPlace, group: OpenGroup, tables: Iterable[str] = ()) -> None:
        """Raises the error with the command that accepts it, unless an operator has accepted it: then adds a note.

        tables: captured tables that may have changed; if empty, any may have.
        """
        names = list(tables)
        note = self.require_accepted(error, at, ", ".join(names) or "any captured table")
        if note:
            group.notes.append(note)
            group.happened += [(table, Happened.UNLOGGED) for table in names or [ANY_TABLE]]

    def require_accepted(self, error: LockstepError, at: EventPlace, names: str) -> str:
        """Raises the error, unless an operator has accepted it; then returns the note about it."""
        if self.past:
            return ""
        place = at.file, at.offset
        if place not in self._accepted:
            raise self._accepted.explain(error, place) from None
        self._accepted.use(place)
        note = f"needs re-sync of table {names}: {source_faults.accepted_at(*place)}: {error.what} ({error.code})"
        log.warning("%s: %s", self._source, note)
        return note

    def isolates(self, name: TableName, error: LockstepError, since: str) -> bool:
        """Isolates a table from now on, if the pipeline says so; its rows in the open group are dropped too."""
        if self._policy.on_unreadable == "stop":
            return False
        log.error("%s: table %s is isolated since %s and needs re-sync: %s", self._source, ".".join(name), since, error)
        self._tables.isolate(name, f"since {since}: {error.what} ({error.code})")
        return True
