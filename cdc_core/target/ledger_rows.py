"""The ledger rows in a target's databases, for comparison with the ledgers that meta has closed.

Each write leaves a row in the transaction of the rows that it writes (`target.write.note`): a server without this row
does not have the rows either. The row of a write in parts counts from the last part on.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import pymysql

from cdc_core.config import Target
from cdc_core.connections import connect, quote, resolve, sensible
from cdc_core.server_errors import Kind, kind_of
from cdc_core.target.faults import translating
from cdc_core.target.prepare import LEDGER
from cdc_core.target.sharding import ShardTable, shard_tables

Shard = tuple[str, str]
"""A logical table, and the name of one of its physical tables (`database.table`)."""
_AT_ONCE = 200


def ledger_rows(
    target: Target, wanted: Mapping[Shard, Collection[str] | None], environ: Mapping[str, str] | None = None
) -> dict[Shard, dict[str, int]]:
    """The numbers of the transactions that the shards' ledgers have, by run; one query per database and 200 shards.

    wanted: the runs to look for; None: all. Shards that the target's rules do not name any more are left out.
    Raises what connections.connect raises, and what target.faults makes of the servers' errors.
    """
    places: dict[int, dict[str, list[tuple[Shard, ShardTable]]]] = {}
    for logical in sorted({logical for logical, _ in wanted}):
        if target.table(logical) is None:
            continue
        for one in shard_tables(target, logical):
            if (logical, one.name) in wanted:
                places.setdefault(one.connection, {}).setdefault(one.database, []).append(((logical, one.name), one))
    found: dict[Shard, dict[str, int]] = {}
    for number, databases in sorted(places.items()):
        reference = target.connections[number]
        server = resolve(reference, environ)
        where = f"{reference} ({server})"
        with translating(where), sensible(reference), connect(server, where=reference) as connection:
            for database, shards in databases.items():
                by_table = {one.table: shard for shard, one in shards}
                found |= {shard: {} for shard in by_table.values()}
                for table, run_id, at in _rows(connection, database, [(one.table, wanted[s]) for s, one in shards]):
                    found[by_table[table]][run_id] = at
    return found


def _rows(
    connection: pymysql.Connection[Any], database: str, wanted: Sequence[tuple[str, Collection[str] | None]]
) -> Iterator[tuple[str, str, int]]:
    """Tables, runs and numbers. A database or ledger that does not exist has no rows."""
    with connection.cursor() as cursor:
        for start in range(0, len(wanted), _AT_ONCE):
            conditions, arguments = [], []
            for table, runs in wanted[start : start + _AT_ONCE]:
                for run_id in [None] if runs is None else runs:
                    conditions.append("table_name = %s" + ("" if run_id is None else " AND run_id = %s"))
                    arguments += [table] if run_id is None else [table, run_id]
            if not conditions:
                continue
            try:
                cursor.execute(
                    f"SELECT table_name, run_id, number FROM {quote(database, LEDGER)} "
                    f"WHERE number > 0 AND (({') OR ('.join(conditions)}))",
                    arguments,
                )
            except pymysql.err.MySQLError as error:
                if kind_of(error) is not Kind.ALTERED:
                    raise
                return
            for table, run_id, number in cursor.fetchall():
                yield str(table), str(run_id), int(number)
