"""Answers of a target as Arrow columns: small ones through PyMySQL, larger ones through the compiled reader.

PyMySQL makes Python objects for each row. The kernels of the compiled reader take about a second to load, which a small
run does not wait for.
"""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from cdc_core.mysql.connections import SafeConnection

SMALL_ROWS = 2_000


def columns_of(
    connection: SafeConnection, sql: str, kinds: Sequence[pa.DataType], *, rows: int, where: str
) -> list[pa.Array]:
    """The columns of an answer that has at most so many rows. The connection is one of load.open_session.

    Raises what PyMySQL raises; for a larger answer, what results.read_columns raises.
    """
    if rows <= SMALL_ROWS:
        with connection.cursor() as cursor:
            cursor.execute(sql)
            found = cursor.fetchall()
        return [pa.array([row[at] for row in found], kind) for at, kind in enumerate(kinds)]
    from cdc_core.results import read_columns

    table = pa.Table.from_batches(list(read_columns(connection, sql, where=where)))
    return [table.column(at).combine_chunks().cast(kind) for at, kind in enumerate(kinds)]
