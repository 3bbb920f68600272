"""Decides, by the pipeline's policy, about changes that row events do not show and tables that cannot be read.

It must keep true that no such change passes silently: it stops the stream, or an operator has accepted it, or a note
and the coverage of each table say so, or the tables are isolated.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from cdc_core.errors import LockstepError
from cdc_core.model.block import EntryKind
from cdc_core.model.coverage import ANY_TABLE, Happened
from cdc_core.model.position import Position
from cdc_core.model.schema import TableSchema
from cdc_core.source import faults
from cdc_core.source.accepted_places import AcceptedPlaces
from cdc_core.source.capture_policy import CapturePolicy
from cdc_core.source.cascades import Cascades
from cdc_core.source.ddl_effects import DdlEffect, define_tables, drops
from cdc_core.source.effects import Effect
from cdc_core.source.history import Change, LogPoint
from cdc_core.source.logged_statement import LoggedStatement
from cdc_core.source.open_group import OpenGroup
from cdc_core.source.pending_changes import Name
from cdc_core.source.statements import Statement
from cdc_core.source.tables import TableRegistry

log = logging.getLogger(__name__)

STATEMENT_LEFT_OUT = "statement on a table not included"

_PERHAPS_TEMPORARY = (
    "all rows were removed, unless the session had a temporary table of that name, which the log does not show"
)


@dataclass(frozen=True, slots=True)
class EventPlace:
    """The position of an event: the file and offset that an operator can name (those of the compressed transaction, for
    an event inside one), and the position after it."""

    source: str
    file: str
    offset: int
    after: Position

    @property
    def where(self) -> str:
        return f"{self.source}, {self.file}:{self.offset}"


class StatementJudge:
    """effects: which captured tables a statement may change (effects.Effects.of). cascades: what foreign keys change
    unlogged. past: judges nothing, as everything was judged when it was first read."""

    def __init__(
        self,
        source: str,
        tables: TableRegistry,
        policy: CapturePolicy,
        effects: Callable[[Statement, frozenset[str] | None, Position], Effect],
        accepted: AcceptedPlaces,
        *,
        cascades: Cascades,
        past: bool,
    ) -> None:
        self._source = source
        self._tables = tables
        self._policy = policy
        self._effects = effects
        self._accepted = accepted
        self._cascades = cascades
        self._past = past
        self._temporary: set[tuple[int, Name]] = set()
        """Temporary tables with names of captured ones, by the session's connection id: as far as the log was read."""

    def follow_temporary(self, logged: LoggedStatement) -> None:
        """A statement makes or drops temporary tables."""
        statement = logged.statement
        names = {(logged.thread, name) for name in statement.temporaries if self._tables.captures(*name)}
        if statement.verb.startswith("CREATE"):
            self._temporary |= names
        else:
            self._temporary -= names

    def server_started(self) -> None:
        """It has no temporary tables yet, and gives out the same connection ids as before."""
        self._temporary.clear()

    def define(self, group: OpenGroup, logged: LoggedStatement, at: EventPlace) -> TableSchema | None:
        """DDL: redefines the tables, and judges what it did to rows. Returns the definition of the table that it
        empties, if that is staged as a change of its own. Raises DataAtRisk (source.unlogged_change)."""
        statement, on_truncate = logged.statement, self._policy.on_truncate
        if statement.temporary and statement.tables is not None:
            (truncated,) = statement.tables
            if (logged.thread, truncated) in self._temporary:
                return None
            # The session may have made the temporary table before what was read: such a TRUNCATE must empty nothing.
            statement, on_truncate = replace(statement, unlogged=_PERHAPS_TEMPORARY), "unlogged"
            logged = replace(logged, statement=statement)
        if statement.queries:
            self.judge_data(group, replace(logged, statement=replace(statement, tables=())), at)
        effect = define_tables(
            statement, self._tables, LogPoint(group.seq, at.after), group.commit_ts_us,
            stops_at_cascades=self._cascades.active and self._policy.on_unlogged_change == "stop",
            on_truncate=on_truncate,
        )  # fmt: skip
        group.happened += effect.happened
        if not self._past:
            group.cascaded(self._cascades.define(statement, at.after, group.commit_ts_us))
        if effect.unnamed:
            group.notes.append(f"{statement.verb} {effect.unnamed} at {at.where}: no table in it is known")
        if effect.tables == ():
            return None
        group.without_rows = EntryKind.DDL
        if effect.truncated is None:
            self._note_definition(group, logged, effect, at)
        return effect.truncated

    def _note_definition(self, group: OpenGroup, logged: LoggedStatement, effect: DdlEffect, at: EventPlace) -> None:
        statement, words, where, names = logged.statement, logged.words, at.where, effect.names
        policy = self._policy.on_unlogged_change
        if not effect.unlogged:
            log.info("%s: the definition of %s changed at %s: %s", self._source, names, where, words)
            if self._policy.on_definition == "note":
                group.notes.append(f"the definition of {names} changed at {where}: {words}")
            if drops(statement):
                group.notes.append(f"{names} dropped on the source at {where}; the rows stay in the targets")
        elif policy == "stop":
            error = faults.unlogged_change(statement.verb, names, effect.unlogged, words, where)
            self.stop(error, at, group, effect.tables or ())
        else:
            note = self._needs_resync(names, f"{effect.unlogged}, at {where}")
            log.warning("%s: %s", self._source, note)
            group.notes.append(f"{note}: {words}")
            if policy == "resync" and not effect.happened:
                # The staged rows are complete; those of the targets are not.
                group.happened += [(table, Happened.UNLOGGED) for table in effect.tables or (ANY_TABLE,)]

    def _needs_resync(self, names: str, why: str) -> str:
        if self._policy.on_unlogged_change == "resync":
            return f"changed without row events, so that the next copy replaces it: table {names}: {why}"
        return f"needs re-sync of table {names}: {why}"

    def judge_data(self, group: OpenGroup, logged: LoggedStatement, at: EventPlace) -> None:
        """DML as a statement: the log does not show what it did to rows. Raises Refused (source.unlogged_change)."""
        if self._past:
            return
        statement = logged.statement
        captured = tuple(table for table in statement.tables or () if self._tables.captures(*table))
        effect = self._effects(statement, logged.databases, at.after)
        effect = Effect(tuple({*effect.tables, *captured}), effect.unknown)
        self._isolate_or_stop(group, effect, faults.statement_dml(logged.words, at.where), at)
        group.left_out[STATEMENT_LEFT_OUT] += 1

    def judge_unknown(self, group: OpenGroup, logged: LoggedStatement, at: EventPlace) -> None:
        """Leaves the statement out only if it names existing things and cannot refer to a captured table. Raises
        DataAtRisk (source.unlogged_change)."""
        if self._past:
            return
        words, where, point = logged.words, at.where, LogPoint(group.seq, at.after)
        self._tables.meet(logged.statement, point)
        effect = self._effects(logged.statement, None, at.after)
        if effect.tables or effect.unknown:
            self._isolate_or_stop(group, effect, faults.unknown_statement(words, where), at)
            self._tables.redefined(None, point, Change())
        else:
            log.warning("%s: left out a statement that Lockstep does not know, at %s: %s", self._source, where, words)
            group.notes.append(f"a statement that Lockstep does not know names no captured table, at {where}: {words}")

    def judge_merge_table(self, group: OpenGroup, key: bytes, united: frozenset[Name], at: EventPlace) -> None:
        """Rows were logged under the name of what may be a MERGE table; noted once a transaction. Raises DataAtRisk
        (source.unlogged_change)."""
        merge = ".".join(self._tables.merge_tables.name_of(key))
        names = sorted({".".join(one.name) for one in group.maps.values() if one is not None and one.name in united})
        if not names or merge in group.through:
            return
        group.through.add(merge)
        error = faults.through_merge_table(merge, ", ".join(names), at.where)
        if self._policy.on_unlogged_change == "stop":
            self.stop(error, at, group, names)
            return
        note = self._needs_resync(", ".join(names), f"{error.what} ({at.where})")
        log.warning("%s: %s", self._source, note)
        group.notes.append(note)
        group.happened += [(name, Happened.UNLOGGED) for name in names]

    def _isolate_or_stop(self, group: OpenGroup, effect: Effect, error: LockstepError, at: EventPlace) -> None:
        """Isolates the tables that a statement may have changed, if the pipeline says so and all of them are known."""
        captured = tuple(table for table in sorted(effect.tables) if self._tables.captures(*table))
        if not captured and not effect.unknown:
            return
        accepts = (at.file, at.offset) in self._accepted
        if effect.unknown and not accepts:
            error = error.with_text(what=f"{error.what} Which captured tables it changed is unknown: {effect.unknown}.")
        if effect.unknown or accepts:
            self.stop(error, at, group, [".".join(table) for table in captured] if not effect.unknown else ())
            return
        since = f"{replace(at.after, offset=group.start)}"
        for table in captured:
            if not self.isolates(table, error, since):
                self.stop(error, at, group, [".".join(one) for one in captured])
                return

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
        if self._past:
            return ""
        place = at.file, at.offset
        if place not in self._accepted:
            raise self._accepted.explain(error, place) from None
        self._accepted.use(place)
        note = f"needs re-sync of table {names}: {faults.accepted_at(*place)}: {error.what} ({error.code})"
        log.warning("%s: %s", self._source, note)
        return note

    def isolates(self, name: Name, error: LockstepError, since: str) -> bool:
        """Isolates a table from now on, if the pipeline says so; its rows in the open group are dropped too."""
        if self._policy.on_unreadable == "stop":
            return False
        log.error("%s: table %s is isolated since %s and needs re-sync: %s", self._source, ".".join(name), since, error)
        self._tables.isolate(name, f"since {since}: {error.what} ({error.code})")
        return True
