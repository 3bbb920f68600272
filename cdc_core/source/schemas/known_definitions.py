"""What is known of tables at the places of a log: definitions, names that tables left, and columns that they dropped.

It asks nobody and reads nothing (definition_history does). Rows of a table that was dropped and created again, and
values of a column that was dropped and added again, are gone without a row event.
It must keep true that a definition is never given for a position unless it is certain there.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from cdc_core.model.position import Position, begin_of
from cdc_core.model.schema import DefinedSince, TableName, TableSchema


@dataclass(frozen=True, slots=True)
class LogPoint:
    """The place of an event: the order key of its transaction, and the position at which the next event begins."""

    seq: int
    after: Position


class KnownDefinitions:
    """known: what was learned before, in log order."""

    def __init__(self, definitions: Iterable[DefinedSince]) -> None:
        self._since: dict[TableName, list[DefinedSince]] = {}
        self._new: dict[tuple[TableName, int], DefinedSince] = {}
        for definition in definitions:
            self._since.setdefault(name_of(definition.schema), []).append(definition)

    def __contains__(self, name: TableName) -> bool:
        return name in self._since

    def names(self) -> Sequence[TableName]:
        return list(self._since)

    def begins_at(self, name: TableName, seq: int) -> bool:
        """Whether something that is known of a table holds from just this order key on."""
        return seq in [definition.seq for definition in self._since.get(name, ())]

    def pop_new(self) -> tuple[DefinedSince, ...]:
        """What is new since the last call."""
        new, self._new = tuple(self._new.values()), {}
        return new

    def learn(self, definition: DefinedSince) -> None:
        """Takes what holds from an order key on."""
        definitions = self._since.setdefault(name_of(definition.schema), [])
        for i, other in enumerate(definitions):
            if other.seq == definition.seq:  # one entry with both the marks and the definition
                definition = replace(
                    definition,
                    gone=other.gone,
                    dropped=other.dropped,
                    emptied=other.emptied,
                    ts_us=other.ts_us,
                    renamed=other.renamed,
                )
                del definitions[i]
                break
        definitions.append(definition)
        self._new[name_of(definition.schema), definition.seq] = definition

    def _sorted(self, name: TableName) -> list[DefinedSince]:
        return sorted(self._since.get(name, ()), key=lambda definition: definition.seq)

    def last(self, name: TableName, seq: int) -> DefinedSince | None:
        """The latest that is known of a table at an order key."""
        definitions = [definition for definition in self._sorted(name) if definition.seq <= seq]
        return definitions[-1] if definitions else None

    def as_of(self, name: TableName, seq: int, timeline: int) -> TableSchema | None:
        """The last definition up to an order key on its timeline: another server has another log."""
        last = self.last(name, seq)
        if last is None or not in_one_log(last.seq, timeline) or not last.schema.columns:
            return None
        return last.schema

    def before(self, name: TableName, point: LogPoint) -> TableSchema | None:
        """A table's definition just before a point; None where it is not certain."""
        return self.as_of(name, point.seq - 1, point.after.timeline) if self.existed(name, point) else None

    def lived(self, name: TableName, point: LogPoint, *, guarded: bool) -> bool:
        """Whether a CREATE TABLE at a point follows rows of an earlier table of that name, which are gone.

        guarded: IF NOT EXISTS.
        """
        last = self.last(name, point.seq - 1)
        if last is None or last.rowless:
            return False
        if last.gone:
            return True
        # The log of another server may repeat what was read from the previous one.
        return not guarded and in_one_log(last.seq, point.after.timeline)

    def existed(self, name: TableName, point: LogPoint) -> bool:
        """Whether a table of that name is known to exist just before a point."""
        last = self.last(name, point.seq - 1)
        return last is not None and not last.gone

    def is_gone(self, name: TableName, point: LogPoint) -> bool:
        """Whether it is known that no table has that name just before a point."""
        last = self.last(name, point.seq - 1)
        return last is not None and last.gone

    def dropped(self, name: TableName, point: LogPoint) -> frozenset[str]:
        """Columns, in lower case, that the table had before a point, and that were dropped."""
        columns: set[str] = set()
        for definition in self._sorted(name):
            if definition.seq < point.seq:
                columns = set() if definition.gone else columns
                columns |= {column.lower() for column in definition.dropped}
                columns -= {column.lower() for column in definition.emptied}
        return frozenset(columns)


def in_one_log(seq: int, timeline: int) -> bool:
    """Whether an order key, of no later place than one on a timeline, is on it too."""
    return seq >= begin_of(timeline)


def name_of(schema: TableSchema) -> TableName:
    return schema.database, schema.table
