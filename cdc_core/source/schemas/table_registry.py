"""Which tables of the stream are captured, and their definitions as of the last DDL in the stream.

It must keep true that a definition is read when a table is first seen after a DDL of it, that one which is not in the
log comes from the history as of its place, and that equal table maps cost one dictionary look-up.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress

from cdc_core.binlog.event_headers import Event
from cdc_core.binlog.image_shapes import Defaults
from cdc_core.binlog.row_definition import schema_of
from cdc_core.binlog.table_map import parse_table_map, table_name
from cdc_core.errors import Refused
from cdc_core.model.position import Position
from cdc_core.model.schema import DefinedSince, TableName, TableSchema
from cdc_core.model.staged_columns import require_unreserved
from cdc_core.source.schemas.captured_definitions import system_versioned
from cdc_core.source.schemas.definition_history import Change, SchemaHistory
from cdc_core.source.schemas.known_definitions import LogPoint
from cdc_core.source.sql.statement_classes import Statement
from cdc_core.source.transactions.pending_changes import MappedTable

_SEQUENCE = (
    "next_not_cached_value", "minimum_value", "maximum_value", "start_value", "increment", "cache_size",
    "cycle_option", "cycle_count",
)  # fmt: skip
"""The columns of a sequence, whose steps MariaDB logs as rows."""


class TableRegistry:
    """captures: whether a table is captured. may_be_in: whether a captured one may be in a database. known: the current
    definition of a table in INFORMATION_SCHEMA.

    history: what tables were. isolated: tables that are left out because they cannot be read, `database.table` -> since
    where, and why.
    """

    def __init__(
        self,
        captures: Callable[[str, str], bool],
        known: Callable[[str, str], TableSchema | None],
        history: SchemaHistory,
        isolated: Mapping[str, str] | None = None,
        may_be_in: Callable[[str], bool] = lambda database: True,
    ) -> None:
        self._captures = captures
        self.may_be_in = may_be_in
        self.isolated = dict(isolated or {})
        self.generation = 0
        """Grows when a definition is forgotten: earlier knowledge of table maps is no longer valid."""
        self._ask = known
        self._history = history
        self._former: dict[TableName, TableSchema] = {}
        """The definition that forgotten tables had at their last rows."""
        self._uses: dict[bytes, MappedTable | None] = {}
        self._known: dict[TableName, TableSchema | None] = {}
        self._left_out: set[bytes] = set()
        self._names: dict[bytes, TableName] = {}
        """The names in table maps of tables that are not captured."""

    def captures(self, database: str, table: str) -> bool:
        return self._captures(database, table) and f"{database}.{table}" not in self.isolated

    def isolate(self, name: TableName, why: str) -> None:
        """From now on the table is not captured."""
        self.isolated[".".join(name)] = why
        self.forget([name])
        self.generation += 1

    def is_isolated(self, event_body: bytes) -> bool:
        """Whether a TABLE_MAP with this body, for which `use` returned None, is of an isolated table."""
        return event_body[8:] in self._left_out

    def left_out_name(self, key: bytes) -> TableName | None:
        """The name in a table map, given from its names on, for which `use` returned None."""
        return self._names.get(key)

    def use(self, event: Event, point: LogPoint, *, mariadb: bool) -> MappedTable | None:
        """The captured table that a TABLE_MAP event at a point describes; None for one that is not captured.

        Raises Refused (source.incomplete_rows, source.unsupported_table, ...).
        """
        key = event.body[8:]  # after table id and flags
        try:
            return self._uses[key]
        except KeyError:
            mapped = self._uses[key] = self._find(event, point, mariadb=mariadb)
            return mapped

    def known_use(self, body: bytes) -> MappedTable | None:
        """What `use` returned for a TABLE_MAP with this body."""
        return self._uses[body[8:]]

    def _find(self, event: Event, point: LogPoint, *, mariadb: bool) -> MappedTable | None:
        name = table_name(event)
        if not self.captures(*name):
            self._names[event.body[8:]] = name
            if ".".join(name) in self.isolated:
                self._left_out.add(event.body[8:])
            return None
        table_map = parse_table_map(event, mariadb=mariadb)
        if table_map.names is None:
            self._known[name] = self._history.at(name, point)
        elif name not in self._known:
            self._known[name] = self._ask(*name)
        definition = self._known[name]
        if definition is None and table_map.names is None:
            self._ask(*name)  # it says why
        schema = schema_of(table_map, definition, mariadb=mariadb)
        if mariadb and _was_versioned(schema, definition):
            raise system_versioned(*name)
        if mariadb and tuple(column.name for column in schema.columns) == _SEQUENCE:
            self._names[event.body[8:]] = name
            return None
        require_unreserved(schema)
        self._history.saw(schema, point)
        return MappedTable(schema, table_map, self._defaults_of(schema, point))

    def _defaults_of(self, schema: TableSchema, point: LogPoint) -> Defaults:
        """Reads each column's default once: it is valid until the table is forgotten after its next DDL."""
        known: dict[str, str | None] = {}

        def defaults(names: Sequence[str]) -> Mapping[str, str | None]:
            if not set(names) <= known.keys():
                known.update(self._history.defaults_at(schema, point, names))
            return known

        return defaults

    def definition(self, name: TableName) -> TableSchema | None:
        """A captured table's definition as of its last rows; if none came since its last DDL, the server's."""
        for use in self._uses.values():
            if use is not None and (use.schema.database, use.schema.table) == name:
                return use.schema
        if name in self._former:
            return self._former[name]
        with suppress(Refused):
            return self._ask(*name)
        return None

    def before(self, name: TableName, point: LogPoint) -> TableSchema | None:
        """The definition that a captured table had just before a statement at a point, if that is certain."""
        for use in self._uses.values():
            if use is not None and use.name == name:
                return use.schema
        return self._history.known.before(name, point)

    def of_database(self, database: str) -> tuple[TableName, ...]:
        """Tables of a database that were ever seen or known."""
        return tuple(
            dict.fromkeys(name for name in (*self._known, *self._history.known.names()) if name[0] == database)
        )

    def has_captured(self, database: str) -> bool:
        """Whether a database has a captured table, or had one."""
        return any(name[0] == database and self.captures(*name) for name in self._history.met())

    def meet(self, statement: Statement, point: LogPoint) -> None:
        """A statement may define tables: to be called before anything else of its point."""
        self._history.meet(statement, point)

    def change(self, statement: Statement, names: Sequence[TableName], point: LogPoint, ts_us: int) -> Change:
        """What a statement at a point does to captured tables besides defining them. names: those it touches."""
        history = self._history
        left = statement.vacates if not statement.database else names
        vacated = frozenset(
            name
            for name in left
            if not (statement.guarded or statement.database)
            or history.known.existed(name, point)
            or name in self._known
        )
        moves_no_rows = not statement.unlogged
        if statement.columns is None or not names:
            made = names if statement.verb == "CREATE TABLE" and self._makes(statement, point) else ()
            return Change(
                vacated, frozenset(left) - vacated, ts_us=ts_us, made=frozenset(made), moves_no_rows=moves_no_rows
            )
        name, columns = names[0], statement.columns
        schema = next((use.schema for use in self._uses.values() if use and use.schema.name == ".".join(name)), None)
        there = None if schema is None else {column.name.lower() for column in schema.columns}
        dropped = (
            *columns.dropped,
            *(column for column in columns.perhaps_dropped if there is None or column.lower() in there),
        )
        before = history.known.dropped(name, point) | {column.lower() for column in dropped}
        emptied = tuple(column for column in columns.added if column.lower() in before)
        return Change(
            vacated,
            frozenset(),
            {name: dropped},
            {name: emptied},
            ts_us,
            moves_no_rows=moves_no_rows,
            renamed={name: tuple(columns.renamed)},
        )

    def _makes(self, statement: Statement, point: LogPoint) -> bool:
        """Whether a CREATE TABLE has certainly made a table, without a row, and without rows of an earlier one."""
        if statement.unlogged or not statement.tables or self.lived(statement, point):
            return False
        return not statement.guarded or self._history.known.is_gone(statement.tables[0], point)

    def lived(self, statement: Statement, point: LogPoint) -> bool:
        """Whether a CREATE TABLE comes after rows of an earlier table of that name."""
        if statement.verb not in ("CREATE TABLE", "CREATE OR REPLACE TABLE") or not statement.tables:
            return False
        return self._history.known.lived(statement.tables[0], point, guarded=statement.guarded)

    def redefined(self, names: Iterable[TableName] | None, point: LogPoint, change: Change) -> None:
        """A statement at a point has defined these tables again, or any (None)."""
        self.forget(names)
        self._history.redefined(names, point, self.captures, change)

    def learned(self, reached: Position) -> tuple[DefinedSince, ...]:
        """What the history learned since the last call. reached: the log is read up to there."""
        return self._history.learned(reached)

    def forget(self, names: Iterable[TableName] | None) -> None:
        """After DDL of these tables, or of any (None)."""
        gone = frozenset(self._known if names is None else names)
        for name in gone:
            self._known.pop(name, None)
        kept = {
            key: use
            for key, use in self._uses.items()
            if use is None or (use.schema.database, use.schema.table) not in gone
        }
        for key, use in self._uses.items():
            if use is not None and key not in kept:
                self._former[use.schema.database, use.schema.table] = use.schema
        self.generation += len(kept) < len(self._uses)
        self._uses = kept


def _was_versioned(schema: TableSchema, former: TableSchema | None) -> bool:
    """Whether rows have the two columns that MariaDB adds to a system-versioned table and INFORMATION_SCHEMA does not
    show: the table may be gone since, or no longer versioned."""
    last = [(column.name.lower(), column.type.base) for column in schema.columns[-2:]]
    if last != [("row_start", "timestamp"), ("row_end", "timestamp")]:
        return False
    return former is None or "row_end" not in [column.name.lower() for column in former.columns]
