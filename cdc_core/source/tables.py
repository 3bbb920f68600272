"""Which tables of the stream are captured, and their definitions as of the last DDL that was passed.

It must keep true that a definition is asked for when a table is first seen after a DDL of it, and that equal table
maps cost one dictionary look-up.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from cdc_core.binlog.definition import schema_of
from cdc_core.binlog.events import Event
from cdc_core.binlog.table_map import parse_table_map
from cdc_core.model.schema import TableSchema
from cdc_core.model.staged import require_unreserved
from cdc_core.source.gather import TableUse

Name = tuple[str, str]


class Tables:
    """captures: whether a table is captured. known: the definition that INFORMATION_SCHEMA has of it now."""

    def __init__(self, captures: Callable[[str, str], bool], known: Callable[[str, str], TableSchema | None]) -> None:
        self.captures = captures
        self.generation = 0
        """Grows when a definition is forgotten: what was known of table maps before does not hold."""
        self._ask = known
        self._uses: dict[bytes, TableUse | None] = {}
        self._known: dict[Name, TableSchema | None] = {}

    def use(self, event: Event, *, mariadb: bool) -> TableUse | None:
        """What a TABLE_MAP event says of a captured table; None for one that is not captured.

        Raises Refused (binlog.schema_mismatch, schema.reserved_column, ...).
        """
        key = event.body[8:]  # behind table id and flags
        try:
            return self._uses[key]
        except KeyError:
            found = self._uses[key] = self._find(event, mariadb)
            return found

    def known_use(self, body: bytes) -> TableUse | None:
        """What `use` has answered to a TABLE_MAP of this body."""
        return self._uses[body[8:]]

    def _find(self, event: Event, mariadb: bool) -> TableUse | None:
        table_map = parse_table_map(event, mariadb=mariadb)
        name = (table_map.database, table_map.table)
        if not self.captures(*name):
            return None
        if name not in self._known:
            self._known[name] = self._ask(*name)
        schema = schema_of(table_map, self._known[name], mariadb=mariadb)
        require_unreserved(schema)
        return TableUse(schema, table_map)

    def seen(self, database: str) -> tuple[Name, ...]:
        """Captured tables of a database whose rows have come since the stream began."""
        return tuple(name for name in self._known if name[0] == database)

    def forget(self, names: Iterable[Name] | None) -> None:
        """After DDL of these tables, or of any (None)."""
        gone = frozenset(self._known if names is None else names)
        for name in gone:
            self._known.pop(name, None)
        kept = {
            key: use
            for key, use in self._uses.items()
            if use is None or (use.schema.database, use.schema.table) not in gone
        }
        self.generation += len(kept) < len(self._uses)
        self._uses = kept
