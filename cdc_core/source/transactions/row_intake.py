"""The row events of a group: which are of captured tables, and what the others may have changed.

It must keep true that a row event of a captured table is decoded later or stops the source, and that one of another
table is counted under the rule that leaves it out, and marks the captured tables that foreign keys lead to from it.
"""

from __future__ import annotations

from cdc_core.binlog.compressed import plain
from cdc_core.binlog.event_headers import Event
from cdc_core.binlog.rows_event import DELETE, DUMMY_TABLE_ID, INSERT, parse_rows
from cdc_core.binlog.table_map import table_name
from cdc_core.errors import DataAtRisk, Refused
from cdc_core.model.schema import TableName
from cdc_core.source.host import source_faults
from cdc_core.source.schemas.known_definitions import LogPoint
from cdc_core.source.schemas.table_registry import TableRegistry
from cdc_core.source.sql.statement_judge import StatementJudge
from cdc_core.source.transactions.block_builder import ISOLATED, NOT_INCLUDED
from cdc_core.source.transactions.open_group import OpenGroup
from cdc_core.source.transactions.pending_changes import PendingRows
from cdc_core.source.transactions.reading_place import ReadingPlace
from cdc_core.source.transactions.transaction_grammar import GroupState


class RowIntake:
    """In the past (StatementJudge), only rows of XA transactions are wanted, and nothing is judged."""

    def __init__(self, tables: TableRegistry, judge: StatementJudge, place: ReadingPlace) -> None:
        self._tables = tables
        self._judge = judge
        self._cascades = judge.cascades
        self._place = place
        self._past = judge.past

    def map_table(self, group: OpenGroup, event: Event, *, mariadb: bool) -> None:
        """A table map. Raises as TableRegistry.use, unless the table is isolated for that."""
        table_id = event.body[:6]
        if self._past and group.state is not GroupState.XA:
            group.maps[table_id] = None
            return
        point = LogPoint(group.seq, self._place.after)
        try:
            table = self._tables.use(event, point, mariadb=mariadb)
        except (DataAtRisk, Refused) as error:
            if not self._judge.isolates(table_name(event), error, self._place.position(group.start)):
                raise
            table = self._tables.use(event, point, mariadb=mariadb)
        group.maps[table_id] = table
        if table is None and self._tables.is_isolated(event.body):
            group.isolated.add(table_id)
        group.keys[table_id] = event.body[8:]

    def take(self, group: OpenGroup, event: Event) -> PendingRows | None:
        """A row event; None for one of a table that is not captured. Raises DataAtRisk, Refused for one that cannot be
        read, unless its table is isolated for that."""
        table_id, ordinal = event.body[:6], group.ordinal
        group.ordinal += 1
        try:
            table = group.maps[table_id]
        except KeyError:
            rows = parse_rows(plain(event))
            if rows.table_id == DUMMY_TABLE_ID and not rows.images:
                return None
            raise source_faults.inside_transaction(event, self._place.where(event)) from None
        if not self._past:
            self._cascades.heed(int.from_bytes(event.body[6:8], "little"))
        if table is None:
            group.cascaded(self._cascaded(group, event))
            group.left_out[ISOLATED if table_id in group.isolated else NOT_INCLUDED] += 1
            return None
        try:
            return PendingRows.from_event(table, parse_rows(plain(event)), ordinal)
        except (DataAtRisk, Refused) as error:
            if not self._judge.isolates(table.name, error, self._place.position(group.start)):
                raise
            group.left_out[ISOLATED] += 1
            group.cascaded(self._cascades.changed_with(table.name))
            return None

    def heeds(self, key: bytes) -> bool:
        """Whether row events of a table that is not captured matter: foreign keys lead from captured tables to it. key:
        its table map from the names on."""
        name = self._tables.left_out_name(key)
        return name is not None and bool(self._cascades.changed_with(name))

    def _cascaded(self, group: OpenGroup, event: Event) -> frozenset[TableName]:
        """The captured tables that foreign keys may change with rows of a table that is not captured."""
        key = group.keys.get(event.body[:6], b"")
        name = self._tables.left_out_name(key)
        if name is None or self._past or not self.heeds(key):
            return frozenset()
        kind = parse_rows(plain(event)).kind
        return frozenset() if kind == INSERT else self._cascades.changed_by(name, deleted=kind == DELETE)
