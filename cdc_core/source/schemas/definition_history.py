"""Table definitions as of each position of a log that lacks them: what the server says, and from where on it counts.

Where binlog_row_metadata is not FULL the log does not name columns; it never says what an INSERT stores in columns
that its image leaves out. INFORMATION_SCHEMA has a table's current definition. It also held at an earlier position if
no statement after that position, up to where the log ended when the server was asked, redefines the table. So the
server is asked as early as possible: for every captured table where reading begins, and for a table right after each
statement that defines it. The answer counts once the log is read up to where it ended then, without such a statement
on the way; only where it is needed sooner, because the log does not name the columns of a row or lacks values of one,
the log is read ahead. Known definitions go with the blocks into the manifests and meta, and hold after a restart,
whatever happens to the table meanwhile (known_definitions).
It must keep true that a definition or a default is never given for a position unless it is certain there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from cdc_core.binlog.event_headers import Event
from cdc_core.binlog.row_definition import SCHEMA_REMEDY
from cdc_core.errors import RESYNC, Refused
from cdc_core.model.collations import spell_out_utf8
from cdc_core.model.position import Position
from cdc_core.model.schema import DefinedSince, TableName, TableSchema
from cdc_core.source.schemas.known_definitions import KnownDefinitions, LogPoint, in_one_log, name_of
from cdc_core.source.sql.log_ahead import LaterStatements, LogAhead
from cdc_core.source.sql.logged_statement import ServerDialect, read_statement
from cdc_core.source.sql.statement_classes import Action, Statement


@dataclass(frozen=True, slots=True)
class _DefinitionAnswer:
    """What the server said of a table: true from the order key `since` on, unless a statement between that and `until`,
    where the log ended then, redefines the table."""

    schema: TableSchema
    defaults: Mapping[str, str | None] | None
    since: int
    until: Position


AskDefaults = Callable[[TableSchema], Mapping[str, str | None]]


class SchemaHistory:
    """known: what was learned before, in log order. ask: returns a table's current definition. end: of the log,
    now. ask_defaults: returns a table's current defaults (column_defaults). excludes: as SourceStream's.

    early: asks for definitions and defaults when reading begins and after each statement that defines a table, since
           the log does not have them. Otherwise the log has everything except what single sessions leave out.
    """

    def __init__(
        self,
        known: Iterable[DefinedSince],
        ask: Callable[[str, str], TableSchema | None],
        ahead: LogAhead,
        end: Callable[[], Position],
        ask_defaults: AskDefaults = lambda schema: {},
        excludes: Callable[[TableSchema, str], bool] = lambda schema, column: False,
    ) -> None:
        self._ask = ask
        self._excludes = excludes
        self._end = end
        self._ask_defaults = ask_defaults
        self.early = True
        self.early_defaults = False
        self.dialect = ServerDialect()
        self._ahead = LaterStatements(ahead, self._defining)
        self.known = KnownDefinitions(known)
        self._answers: dict[TableName, _DefinitionAnswer] = {}
        """Answers that do not count yet."""
        self._present: set[TableName] = set()
        """The captured tables that the server had where reading began."""

    def met(self) -> frozenset[TableName]:
        """The captured tables that there are, or were."""
        return frozenset(self.known.names()) | self._present

    def learned(self, reached: Position) -> tuple[DefinedSince, ...]:
        """What is new since the last call. reached: the log is read up to there."""
        self._reach(reached.seq)
        return self.known.pop_new()

    def begin(self, schemas: Iterable[TableSchema], point: LogPoint) -> None:
        """Takes the current definitions, where reading begins."""
        schemas = list(schemas)
        self._present |= set(map(name_of, schemas))
        self._wait(
            [schema for schema in schemas if self._unknown(name_of(schema), point.seq, point.after.timeline)], point
        )

    def _wait(self, schemas: Sequence[TableSchema], point: LogPoint) -> None:
        """The server has just said this, and what a point begins is the last that is known of the tables."""
        defaults = [self._defaults_now(schema) for schema in schemas]
        # After the answers: whatever a server shows of a table, its log has by then.
        until = self._end() if schemas else point.after
        for schema, of_table in zip(schemas, defaults, strict=True):
            self._answers[name_of(schema)] = _DefinitionAnswer(schema, of_table, point.seq, until)

    def meet(self, statement: Statement, point: LogPoint) -> None:
        """Takes a statement that may define tables, before anything else is asked or said of its point."""
        self._reach(point.seq)
        for name, answer in list(self._answers.items()):
            if answer.since < point.seq and _touches(statement, name):
                del self._answers[name]

    def _reach(self, seq: int) -> None:
        """Learns the answers that count once the log is read up to an order key."""
        for name, answer in list(self._answers.items()):
            if answer.until.seq <= seq:
                self._count(name, answer.until.seq - 1)

    def _count(self, name: TableName, seq: int) -> None:
        answer = self._answers.pop(name)
        if self._unknown(name, seq, answer.until.timeline):
            last = self.known.last(name, seq)
            # Where the log names columns, it is enough to record that the table exists.
            kept = answer.schema if self.early else TableSchema(*name, ())
            rowless = last is not None and last.rowless and not last.gone
            self.known.learn(DefinedSince(seq, kept, answer.defaults, rowless=rowless))

    def _need(self, name: TableName, point: LogPoint) -> None:
        """What the server said of a table is needed at a point: reads ahead to where the log ended then."""
        answer = self._answers.get(name)
        if answer is not None and answer.since < point.seq:
            if any(_touches(statement, name) for statement in self._ahead.of(point.after, until=answer.until)):
                del self._answers[name]
            else:
                self._count(name, point.seq)

    def at(self, name: TableName, point: LogPoint) -> TableSchema | None:
        """A table's definition at a point; None where the table no longer exists, and nothing is known.

        Raises Refused (source.incomplete_rows) where it was redefined since, and nothing is known, and where the
        server has another definition that no statement of the log explains.
        """
        self._need(name, point)
        schema = self.known.as_of(name, point.seq, point.after.timeline)
        now = self._ask(*name)
        if schema is not None:
            for _, error in self.unexplained([] if now is None else [now], point):
                raise error
            return schema
        defaults = None if now is None else self._defaults_now(now)
        if self._redefined_after(name, point):
            raise Refused(
                f"The log does not name the columns of {'.'.join(name)}, and the table was redefined after these rows, "
                "before Lockstep read its definition.",
                where=f"{point.after}",
                code="source.incomplete_rows",
                remedy=SCHEMA_REMEDY,
            )
        if now is not None:
            self.known.learn(DefinedSince(point.seq, now, defaults))
        return now

    def defaults_at(self, schema: TableSchema, point: LogPoint, names: Sequence[str]) -> Mapping[str, str | None]:
        """What an INSERT at a point stored in these columns, which its image leaves out.

        Raises Refused (source.incomplete_rows) where that is unknown.
        """
        name = name_of(schema)
        self._need(name, point)
        last = self.known.last(name, point.seq)
        defaults = last.defaults if last is not None and in_one_log(last.seq, point.after.timeline) else None
        now = self._ask_defaults(schema)
        defined_again = self._redefined_after(name, point)
        if defaults is None or not set(names) <= defaults.keys():
            if defined_again:
                raise _defaults_unknown(
                    schema,
                    names,
                    point,
                    "a later statement in the log redefines the table, so that the defaults of that time are unknown",
                )
            defaults = {**now, **(defaults or {})}
        elif not defined_again and any(now.get(column, defaults[column]) != defaults[column] for column in names):
            why = "the server now has other defaults, but no statement in the log changed them (sql_log_bin = 0?)"
            raise _defaults_unknown(schema, names, point, why)
        lacking = [column for column in names if column not in defaults]
        if lacking:
            raise _defaults_unknown(schema, lacking, point, "the server does not show the exact defaults")
        return defaults

    def saw(self, schema: TableSchema, point: LogPoint) -> None:
        """Records that a row of the table was logged at a point, and, where the log itself names the columns, the
        definition that it follows."""
        name = name_of(schema)
        last, definition = self.known.last(name, point.seq), self.known.as_of(name, point.seq, point.after.timeline)
        told = TableSchema(*name, tuple(column for column in schema.columns if not self._excludes(schema, column.name)))
        if last is None or last.gone or last.rowless or (not self.early and definition != told):
            defaults = last.defaults if last is not None and last.rowless and definition is not None else None
            kept = definition or TableSchema(*name, ()) if self.early else told
            self.known.learn(DefinedSince(point.seq, kept, defaults))

    def unexplained(self, now: Iterable[TableSchema], point: LogPoint) -> list[tuple[TableName, Refused]]:
        """Tables whose definition on the server is not the one at a point, although no later statement changes it, with
        the error to raise (source.incomplete_rows).

        now: current definitions, read after the point was reached. A table that is gone has no more rows to misread.
        """
        refusals = []
        for schema in now:
            name = name_of(schema)
            definition = self.known.as_of(name, point.seq, point.after.timeline)
            if definition is None or _same(definition, schema) or self._redefined_after(name, point):
                continue
            # A table that is left out must be copied again: ask once more, and read the log again after the server.
            again = self._ask(*name)
            if again is not None and not _same(definition, again) and not self._redefined_after(name, point):
                refusals.append((name, _unexplained(definition, again, point)))
        return refusals

    def redefined(
        self, names: Iterable[TableName] | None, point: LogPoint, captures: Callable[[str, str], bool], change: Change
    ) -> None:
        """A statement at a point defines these tables, or any (None): asks for their definitions from there on. For a
        table that is no longer captured they are not known."""
        mine = [
            name
            for name in (self.known.names() if names is None else names)
            if (name in self.known or captures(*name))
            and name not in change.absent
            and not self.known.begins_at(name, point.seq)
        ]
        for name in mine:
            before = self.known.last(name, point.seq - 1)
            defined = DefinedSince(
                point.seq,
                TableSchema(*name, ()),
                gone=name in change.vacated,
                dropped=change.dropped.get(name, ()),
                emptied=change.emptied.get(name, ()),
                ts_us=change.ts_us,
                rowless=name in change.made or (change.moves_no_rows and before is not None and before.rowless),
                renamed=change.renamed.get(name, ()),
            )
            self.known.learn(defined)
        now = [self._ask(*name) for name in mine if name not in change.vacated] if self.early else []
        self._wait([schema for schema in now if schema is not None], point)

    def _defaults_now(self, schema: TableSchema) -> Mapping[str, str | None] | None:
        return self._ask_defaults(schema) if self.early_defaults else None

    def _defining(self, event: Event) -> Statement | None:
        """The statement of an event, if it may define a table that is not temporary."""
        statement = read_statement(event, self.dialect).statement
        return (
            statement if statement.action in (Action.DEFINITION, Action.UNKNOWN) and not statement.temporary else None
        )

    def _redefined_after(self, name: TableName, point: LogPoint) -> bool:
        return any(_touches(statement, name) for statement in self._ahead.of(point.after))

    def _unknown(self, name: TableName, seq: int, timeline: int) -> bool:
        if self.early:
            return self.known.as_of(name, seq, timeline) is None
        last = self.known.last(name, seq)
        return last is None or last.gone


@dataclass(frozen=True, slots=True)
class Change:
    """What a statement did besides defining tables: as the fields of DefinedSince, by table. ts_us: when.

    absent: tables that it would have dropped, had they existed. made: tables that it created, without rows.
    moves_no_rows: a table that was empty before is empty after it.
    """

    vacated: frozenset[TableName] = frozenset()
    absent: frozenset[TableName] = frozenset()
    dropped: Mapping[TableName, tuple[str, ...]] = field(default_factory=dict)
    emptied: Mapping[TableName, tuple[str, ...]] = field(default_factory=dict)
    ts_us: int = 0
    made: frozenset[TableName] = frozenset()
    moves_no_rows: bool = False
    renamed: Mapping[TableName, tuple[tuple[str, str], ...]] = field(default_factory=dict)


def _same(one: TableSchema, other: TableSchema | None) -> bool:
    return other is not None and _plain(one) == _plain(other)


def _plain(schema: TableSchema) -> TableSchema:
    """Without what an upgrade of the server renames."""
    columns = []
    for column in schema.columns:
        kind = column.type
        charset, collation = spell_out_utf8(kind.charset), spell_out_utf8(kind.collation)
        columns.append(replace(column, type=replace(kind, charset=charset, collation=collation)))
    return replace(schema, columns=tuple(columns))


def _unexplained(former: TableSchema, now: TableSchema, point: LogPoint) -> Refused:
    were, are = ([(column.name, str(column.type)) for column in schema.columns] for schema in (former, now))
    how = "its keys, NULLs, character sets or generated columns differ"
    if were != are:
        how = f"its columns were {_listed(were)} and are now {_listed(are)}"
    return Refused(
        f"{former.name} was altered without a statement in the log (sql_log_bin = 0?): {how}. Since the log does not "
        "name columns, values could end up in the wrong columns.",
        where=f"{point.after}",
        code="source.incomplete_rows",
        remedy=SCHEMA_REMEDY + ". Rows that were staged shortly before this position may already be wrong",
    )


def _listed(columns: Sequence[tuple[str, str]]) -> str:
    return ", ".join(f"{name} {kind}" for name, kind in columns)


def _defaults_unknown(schema: TableSchema, names: Sequence[str], point: LogPoint, why: str) -> Refused:
    return Refused(
        f"An INSERT left {', '.join(names)} to the defaults, and {why}.",
        where=f"{schema.name}, {point.after}",
        code="source.incomplete_rows",
        remedy=f"SET GLOBAL binlog_row_image = FULL on the source, and {RESYNC}",
    )


def _touches(statement: Statement, name: TableName) -> bool:
    return statement.tables is None or name in statement.tables or statement.database == name[0]
