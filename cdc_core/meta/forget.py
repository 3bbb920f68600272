"""Drops meta's rows about purged history.

May assume that every batch before its source's horizon is purged, and that no reader looks there.
Keeps true: the first batches of a source are dropped, each with its files and records, so that the rest is one chain.
Definitions stay: later batches use them too.
"""

from __future__ import annotations

from collections.abc import Mapping

from sqlalchemy import ColumnElement, Connection, Table, and_, delete, func, or_, select

from cdc_core.meta import tables
from cdc_core.meta.runs import ended
from cdc_core.model.position import Position

_batch, _run = tables.batch, tables.run


def batches(connection: Connection, horizons: Mapping[str, Position], before_us: int, *, dry_run: bool) -> int:
    """See Meta.forget_batches."""
    forgotten = 0
    for source, horizon in horizons.items():
        mine = _batch.c.source == source
        kept = connection.execute(
            select(func.min(_batch.c.begin_seq)).where(mine, _batch.c.window_end_us > before_us)
        ).scalar_one()
        end_seq = horizon.seq if kept is None else min(kept, horizon.seq)
        forgotten += _delete(
            connection,
            _batch,
            mine & or_(_batch.c.end_seq < end_seq, and_(_batch.c.end_seq == end_seq, _batch.c.chunk == 0)),
            (tables.batch_file, tables.consume_record),
            dry_run=dry_run,
        )
    return forgotten


def runs(connection: Connection, pipeline: str, before_us: int, *, dry_run: bool) -> int:
    """See Meta.forget_runs."""
    old = ended(connection, pipeline, before_us)
    return _delete(connection, _run, old, (tables.apply_ledger,), dry_run=dry_run)


def _delete(
    connection: Connection, table: Table, chosen: ColumnElement[bool], below: tuple[Table, ...], *, dry_run: bool
) -> int:
    """Deletes rows of a table, after those of tables that refer to its key; how many of its own. dry_run: counts."""
    if dry_run:
        return int(connection.execute(select(func.count()).select_from(table).where(chosen)).scalar_one())
    _, key = table.primary_key
    for one in below:
        connection.execute(delete(one).where(one.c[key.name].in_(select(key).where(chosen))))
    return connection.execute(delete(table).where(chosen)).rowcount
