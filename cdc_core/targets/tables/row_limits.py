"""What a target table must offer: an engine that can roll back, and columns, bytes and names left under its limits.

The server itself checks the limits, on empty tables that only this session sees: the one into which rows are loaded,
and a copy of the table with the column that is added to it. So every limit is the server's own, and nothing of the
target changes.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import pymysql

from cdc_core.errors import Refused
from cdc_core.model.version import VERSION_BYTES, VERSION_COLUMN
from cdc_core.mysql.connections import quote, sensible
from cdc_core.targets.reading.table_facts import TableFacts
from cdc_core.targets.reading.target_faults import translating
from cdc_core.targets.writing.load import TEMPORARY, Layout, column_sql, create_temporary, documents_of, target_name
from cdc_core.targets.writing.prepare import indexable

_COPY = "_lockstep_copy"


Engine = tuple[str | None, str, str | None]
"""A table's storage engine, its kind (BASE TABLE, VIEW), and whether the engine has transactions (YES)."""


@sensible("target")
def engines_of(connection: pymysql.Connection[Any], database: str, tables: Collection[str]) -> dict[str, Engine]:
    """The storage engines of those tables that exist."""
    if not tables:
        return {}
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT t.TABLE_NAME, t.ENGINE, t.TABLE_TYPE, e.TRANSACTIONS FROM information_schema.TABLES t "
            "LEFT JOIN information_schema.ENGINES e ON e.ENGINE = t.ENGINE "
            f"WHERE t.TABLE_SCHEMA = %s AND t.TABLE_NAME IN ({', '.join(['%s'] * len(tables))})",
            [database, *tables],
        )
        return {table: (engine, kind, transactions) for table, engine, kind, transactions in cursor.fetchall()}


def require_engine(facts: TableFacts, found: Engine | None) -> None:
    """Raises Refused (target.definition) for a table that cannot be written in a transaction, and for a view."""
    if found is None or found[2] == "YES":
        return
    engine, kind, _ = found
    shown = f"has the storage engine {engine}" if engine else f"is a {str(kind).lower()}"
    raise Refused(
        f"{facts.name} {shown}, which cannot roll back: a write that fails half-way would leave rows there.",
        where=facts.name,
        code="target.definition",
        remedy=f"ALTER TABLE {quote(facts.database)}.{quote(facts.table)} ENGINE=InnoDB"
        if engine
        else "name a table, not a view",
    )


def require_room(
    connection: pymysql.Connection[Any], facts: TableFacts, columns: Sequence[str], *, shared: bool = False
) -> None:
    """Raises Refused (target.limit), and what target.faults makes of other errors.

    columns: what is loaded, as the rows name them. shared: as in load.Layout.
    """
    with translating(facts.name), connection.cursor() as cursor:
        cursor.execute(f"USE {quote(facts.database)}")
        layout = Layout(facts.key, tuple(columns), shared=shared, documents=documents_of(facts, columns))
        create_temporary(cursor, facts, layout)
        cursor.execute(f"DROP TEMPORARY TABLE {TEMPORARY}")
        if not (facts.beside or facts.keyless or facts.versioned):
            key = {name.lower() for name in facts.key if indexable(facts, facts.key)}
            own = [column_sql(column, key=column.name.lower() in key) for column in facts.columns]
            own.append(f"{VERSION_COLUMN} VARBINARY({VERSION_BYTES})")
            if key:  # a server may require one for each table (sql_require_primary_key)
                own.append(f"PRIMARY KEY ({', '.join(target_name(facts, name) for name in facts.key)})")
            cursor.execute(f"DROP TEMPORARY TABLE IF EXISTS {_COPY}")
            cursor.execute(f"CREATE TEMPORARY TABLE {_COPY} ({', '.join(own)}) ENGINE=InnoDB")
            cursor.execute(f"DROP TEMPORARY TABLE {_COPY}")
