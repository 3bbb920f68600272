"""What tables were, as of each place of a log that does not name their columns (binlog_row_metadata other than FULL).

INFORMATION_SCHEMA says what a table is now. That is what it was at a place when no statement behind it, up to the log's
present end, defines the table anew: the log is read ahead to see that. So it is asked as early as can be: of every
captured table where reading begins, and of a table right behind each statement that defines it. What became known goes
with the blocks into the manifests and meta, and holds after a restart, whatever happens to the table meanwhile.
It must keep true that a definition is never given for a place of which it is not certain.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from cdc_core.binlog.compressed import plain
from cdc_core.binlog.definition import SCHEMA_REMEDY
from cdc_core.binlog.events import Event, EventType, parse_query
from cdc_core.errors import Refused
from cdc_core.model.position import FILE_BITS, OFFSET_BITS, Position
from cdc_core.model.schema import DefinedSince, TableSchema
from cdc_core.source.statements import Action, Statement, Table, classify

_QUERIES = frozenset({EventType.QUERY, EventType.MARIADB_QUERY_COMPRESSED})


@dataclass(frozen=True, slots=True)
class Place:
    """Of an event: the order key of its transaction, and where the next event begins."""

    seq: int
    behind: Position


class History:
    """known: what was learned before, in the order of the log. ask: what a table is now. events: of the log from a
    position to its present end."""

    def __init__(
        self,
        known: Iterable[DefinedSince],
        ask: Callable[[str, str], TableSchema | None],
        events: Callable[[Position], Iterator[Event]],
    ) -> None:
        self._ask = ask
        self._ahead = _Ahead(events)
        self._since: dict[Table, list[DefinedSince]] = {}
        self._new: list[DefinedSince] = []
        for one in known:
            self._since.setdefault(_name(one.schema), []).append(one)

    def names(self) -> Sequence[Table]:
        return list(self._since)

    def learned(self) -> tuple[DefinedSince, ...]:
        """What is new since the last call."""
        found, self._new = tuple(self._new), []
        return found

    def begin(self, schemas: Iterable[TableSchema], place: Place) -> None:
        """What all captured tables are now, where reading begins: good for those that no statement ahead defines."""
        new = [schema for schema in schemas if self._as_of(_name(schema), place.seq) is None]
        redefined = self._ahead.of(place.behind) if new else ()
        for schema in new:
            if not any(_touches(statement, _name(schema)) for statement in redefined):
                self._learn(place.seq, schema)

    def at(self, name: Table, place: Place) -> TableSchema | None:
        """What a table was at a place; None where it is not there any more, and nothing is known.

        Raises Refused (binlog.schema_mismatch) where it was defined anew since, and nothing is known.
        """
        known = self._as_of(name, place.seq)
        if known is not None:
            return known
        now = self._ask(*name)
        if any(_touches(statement, name) for statement in self._ahead.of(place.behind)):
            raise Refused(
                f"The log does not name the columns of {'.'.join(name)}, and the table was defined anew behind these "
                "rows, before anybody asked what it was.",
                where=f"{place.behind}",
                code="binlog.schema_mismatch",
                remedy=SCHEMA_REMEDY,
            )
        if now is not None:
            self._learn(place.seq, now)
        return now

    def redefined(self, names: Iterable[Table] | None, place: Place, captures: Callable[[str, str], bool]) -> None:
        """A statement at a place defines these tables, or any (None): what they are from there on, if that can still
        be told. Of a table that is not captured any more nothing is known then."""
        if not self._since:
            return
        mine = [
            name
            for name in (self.names() if names is None else names)
            if (name in self._since or captures(*name))
            and place.seq not in [one.seq for one in self._since.get(name, ())]
        ]
        now = {name: self._ask(*name) for name in mine}
        redefined = self._ahead.of(place.behind) if mine else ()
        for name, schema in now.items():
            certain = schema is not None and not any(_touches(statement, name) for statement in redefined)
            self._learn(place.seq, schema if schema is not None and certain else TableSchema(*name, ()))

    def _learn(self, seq: int, schema: TableSchema) -> None:
        one = DefinedSince(seq, schema)
        self._since.setdefault(_name(schema), []).append(one)
        self._new.append(one)

    def _as_of(self, name: Table, seq: int) -> TableSchema | None:
        """The last that holds there, of this timeline: the log of another server is another one."""
        timeline = seq >> FILE_BITS + OFFSET_BITS << FILE_BITS + OFFSET_BITS
        known = [one for one in self._since.get(name, ()) if timeline <= one.seq <= seq]
        last = sorted(known, key=lambda one: one.seq)[-1:]
        return last[0].schema if last and last[0].schema.columns else None


class _Ahead:
    """Statements that define tables, in a stretch of the log that grows with it: none is read twice."""

    def __init__(self, events: Callable[[Position], Iterator[Event]]) -> None:
        self._events = events
        self._begin: Position | None = None
        self._end: Position | None = None
        self._found: list[tuple[Position, Statement]] = []

    def of(self, behind: Position) -> Sequence[Statement]:
        """Those between a place and the log's present end."""
        if self._begin is None or self._end is None or not self._begin <= behind <= self._end:
            self._begin, self._end, self._found = behind, behind, []
        for event in self._events(self._end):
            here = Position(behind.timeline, event.file, event.start + event.header.length)
            if event.start < 0 or here <= self._end:
                continue
            self._end = here
            statement = _statement(event)
            if statement is not None:
                self._found.append((here, statement))
        return [statement for here, statement in self._found if here > behind]


def _statement(event: Event) -> Statement | None:
    """What a statement defines; None where it defines nothing."""
    if event.header.type not in _QUERIES or event.body.endswith(b"\0BEGIN"):
        return None
    query = parse_query(plain(event))
    found = classify(query.sql, query.database, client_collation=query.client_collation, sql_mode=query.sql_mode)
    return found if found.action in (Action.DEFINITION, Action.UNKNOWN) else None


def _touches(statement: Statement, name: Table) -> bool:
    return statement.tables is None or name in statement.tables or statement.database == name[0]


def _name(schema: TableSchema) -> Table:
    return schema.database, schema.table
