"""The ledger rows in a target's databases, for comparison with the ledgers that meta has closed.

Each write leaves a row in the transaction of the rows that it writes (`row_writer.note`): a server without this row
does not have the rows either. The row of a write in parts counts from the last part on.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from cdc_core.config import MysqlTarget
from cdc_core.mysql.connections import resolve
from cdc_core.targets.bookkeeping.table_states import LEDGER, read
from cdc_core.targets.reading.sharding import by_server, placed_tables
from cdc_core.targets.writing.load import asking_session

Shard = tuple[str, str]
"""A logical table, and the name of one of its physical tables (`database.table`)."""
_AT_ONCE = 200


def ledger_rows(target: MysqlTarget, wanted: Mapping[Shard, Collection[str] | None]) -> dict[Shard, dict[str, int]]:
    """The numbers of the transactions that the shards' ledgers have, by run; one query per database and 200 shards.

    wanted: the runs to look for; None: all. Shards that the target's rules do not name any more are left out.
    Raises what connections.connect raises, and what target_faults makes of the servers' errors.
    """
    logicals = [name for name in sorted({name for name, _ in wanted}) if target.table(name) is not None]
    found: dict[Shard, dict[str, int]] = {}
    tables = [(name, place) for name, place in placed_tables(target, logicals) if (name, place.name) in wanted]
    for reference, places in by_server(target, tables):
        found |= {(name, place.name): {} for name, place in places}
        with asking_session(resolve(reference), reference) as connection, connection.cursor() as cursor:
            for database in dict.fromkeys(place.database for _, place in places):
                shards = {place.table: (name, place.name) for name, place in places if place.database == database}
                for table, run_id, number in _rows(cursor, database, [(t, wanted[s]) for t, s in shards.items()]):
                    found[shards[table]][run_id] = number
    return found


def _rows(
    cursor: Any, database: str, wanted: Sequence[tuple[str, Collection[str] | None]]
) -> Iterator[tuple[str, str, int]]:
    """Tables, runs and numbers."""
    for start in range(0, len(wanted), _AT_ONCE):
        conditions, arguments = [], []
        for table, runs in wanted[start : start + _AT_ONCE]:
            for run_id in [None] if runs is None else runs:
                conditions.append("table_name = %s" + ("" if run_id is None else " AND run_id = %s"))
                arguments += [table] if run_id is None else [table, run_id]
        if conditions:
            where = f"number > 0 AND (({') OR ('.join(conditions)}))"
            for table, run_id, number in read(cursor, database, LEDGER, "table_name, run_id, number", where, arguments):
                yield str(table), str(run_id), int(number)
