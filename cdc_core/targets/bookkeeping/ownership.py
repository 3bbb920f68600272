"""Which stages may write to a table of a target: the row that table_states.py has of the table names them.

A table may have rows from before the first run of a stage: somebody's own, or those of a stage that is gone, with its
versions, deleted keys and marks. No copy and no change contains a row that the stage does not know, so no run would
ever remove it. So the first run of a stage stops before such a table, until `existing` of the target says what to do:
`replace` empties the table, `keep` leaves it as it is. The run then notes the stage, and no later run asks again; a
stage keeps its name (start_record) when meta is lost and rebuilt.

A table that this pipeline has written, by meta, is its own, whatever is noted: it may have been renamed. A target that
somebody has filled by other means (`lockstep stage purge --seeded`) is the pipeline's own, too, and so is a table whose
purged history the target has, by the stage. `replace` empties a table only if the stage brings all of its rows.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from cdc_core.config import MysqlTarget
from cdc_core.errors import ExistingRows
from cdc_core.mysql.connections import SafeConnection, quote, resolve, utf8_literal
from cdc_core.targets.bookkeeping.fence import require_let_through
from cdc_core.targets.bookkeeping.table_states import (
    LEDGER,
    MARKS,
    NOTHING,
    STAGES_CHARS,
    STATES,
    TRUNCATES,
    TableState,
    create,
    note,
    states_in,
    tables_locked,
)
from cdc_core.targets.reading.sharding import PlacedTable, ShardTable, by_server
from cdc_core.targets.writing.load import altering_session
from cdc_core.targets.writing.prepare import Ours, ours_beside, tombstones_table, versions_table

_AT_ONCE = 100_000
"""Rows that one statement removes."""
_ASKED = 200
"""Tables that one statement asks for."""


@dataclass(frozen=True, slots=True)
class Writer:
    """The pipeline that is about to write. stages: the names in the starts of its sources. written: logical tables that
    it has written, by meta, or whose purged history the target has. seeded: somebody has filled the target by other
    means, and has said so. in_part: logical tables of which the run leaves out what no later run brings."""

    pipeline: str
    stages: frozenset[str]
    written: frozenset[str] = frozenset()
    seeded: bool = False
    in_part: frozenset[str] = frozenset()

    def is_in(self, state: TableState) -> bool:
        return not self.stages.isdisjoint(state.stages)

    def owns(self, logical: str, state: TableState = NOTHING) -> bool:
        return self.seeded or logical in self.written or self.is_in(state)


def holding(connection: SafeConnection, database: str, tables: Sequence[str], there: Ours) -> set[str]:
    """The tables that have rows, or beside which Lockstep has left something. there: from ours_beside."""
    found: set[str] = set()
    with connection.cursor() as cursor:
        for at in range(0, len(tables), _ASKED):
            queries = [
                f"SELECT {number} WHERE EXISTS(SELECT 1 FROM {place}{where})"
                for number, table in enumerate(tables[at : at + _ASKED], at)
                for place, where in _left(database, table, there).items()
            ]
            cursor.execute(" UNION ALL ".join(queries))
            found |= {tables[number] for (number,) in cursor.fetchall()}
    return found


def _left(database: str, table: str, there: Ours, *others: str) -> dict[str, str]:
    """Others that tables have in common, those beside the table, and itself: where rows of it are, and which."""
    beside = [name for name in (tombstones_table(table), versions_table(table)) if name in there]
    of_it = f" WHERE table_name = {utf8_literal(table)}"
    shared = [name for name in (*others, TRUNCATES, MARKS) if name in there]
    places: Mapping[str, str] = {**dict.fromkeys(shared, of_it), **dict.fromkeys(beside, ""), table: ""}
    return {quote(database, name): where for name, where in places.items()}


def require_answer(target: MysqlTarget, writer: Writer, logical: str, table: str) -> None:
    """For a table that has rows, and is not the writer's. Raises Refused (target.existing)."""
    if target.existing == "replace" and logical in writer.in_part:
        raise ExistingRows(
            "The table has rows to be replaced, and the run leaves out changes that no later run brings.",
            where=table,
            remedy=f"nothing was written. First replay all of it: `lockstep run {writer.pipeline} --replay --target "
            f"{target.name} --table {logical}`, without --from; or, where batches were purged, copy its source "
            f"tables again: `lockstep snapshot`. Or keep the rows: `existing: keep` in targets.{target.name}",
        )
    if target.existing is None:
        raise ExistingRows(
            "The table has rows, or versions and deleted keys of rows, that this stage has not written. Those that the "
            "source does not have would stay for ever, because no run knows of them.",
            where=table,
            remedy=f"nothing was written. Set `existing` in targets.{target.name} of the pipeline file: with replace, "
            "the first run empties such tables before it writes the copied rows; with keep, their rows stay until the "
            "source changes them",
        )


def take(target: MysqlTarget, tables: Collection[PlacedTable], writer: Writer) -> None:
    """Notes that the writer may write to tables, which come with their logical names. If the target says `replace`, it
    first empties those that the writer has never written and brings as a whole. Safe to repeat, and beside others that
    do the same. Raises Refused (target.fenced), RetryLater (target.busy), and what altering_session raises."""
    for reference, placed in by_server(target, tables):
        with altering_session(resolve(reference), reference) as connection, connection.cursor() as cursor:
            for database in dict.fromkeys(place.database for _, place in placed):
                create(cursor, database, (STATES,))
            for logical, place in placed:
                empties = target.existing == "replace" and not (writer.owns(logical) or logical in writer.in_part)
                with tables_locked(cursor, [place.name]):
                    _take(connection, cursor, place, writer, empties=empties)


def _take(connection: SafeConnection, cursor: Any, place: ShardTable, writer: Writer, *, empties: bool) -> None:
    """Under the table's lock."""
    before = states_in(cursor, place.database, place.table).get(place.table)
    state = before or NOTHING
    if writer.is_in(state):
        return  # another run has taken it meanwhile, and may have written to it
    require_let_through(state, place.name, writer.pipeline)
    if empties:
        there = ours_beside(connection, place.database, [place.table])
        # The ledger first: a pipeline that still writes here finds that its rows are gone (apply.lost_writes).
        for name, where in _left(place.database, place.table, there, LEDGER).items():
            removed = _AT_ONCE
            while removed == _AT_ONCE:
                removed = cursor.execute(f"DELETE FROM {name}{where} LIMIT {_AT_ONCE}")
    stages = " ".join([*sorted(writer.stages), *state.stages])
    if len(stages) > STAGES_CHARS:
        stages = stages[:STAGES_CHARS].rpartition(" ")[0]
    after = replace(state, placement=place.placement, stages=tuple(stages.split()))
    note(cursor, place.database, place.table, before, after)
