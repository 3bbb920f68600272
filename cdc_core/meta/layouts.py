"""How each target's logical tables are distributed over shards: noted before the first run writes to them.

Rows that were written under another layout are in other shards. A run under a new one would leave them there, beside
their newer versions, and nothing in the target would tell: so it is refused before anything is written.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from sqlalchemy import Connection, insert, select, update

from cdc_core.errors import DataAtRisk
from cdc_core.meta import tables
from cdc_core.meta.database import now_us

_layout = tables.target_layout


def known(connection: Connection, target: str) -> dict[str, str]:
    """By logical table, the layout under which rows were written."""
    rows = connection.execute(
        select(_layout.c.table_name, _layout.c.layout).where(_layout.c.target == target).order_by(_layout.c.table_name)
    )
    return {row.table_name: row.layout for row in rows}


def require(connection: Connection, target: str, layouts: Mapping[str, str]) -> None:
    """Raises DataAtRisk (target.layout) for a table whose rows were written under another layout."""
    there = known(connection, target)
    for table, layout in sorted(layouts.items()):
        former = there.get(table, layout)
        if former != layout:
            raise DataAtRisk(
                f"The rows of {table!r} were written to the shards by {former}, and the pipeline now says {layout}: "
                "rows that belong to another shard would stay where they are, beside their newer versions.",
                where=f"targets.{target}.tables.{table}.sharding",
                code="target.layout",
                remedy="restore the former sharding; or give the target a new name and new tables, so that everything "
                "staged is applied to it; or, if every row is where it belongs now, "
                f"`lockstep target layout --target {target} --accept {table}`",
            )


def note(connection: Connection, target: str, layouts: Mapping[str, str], *, accepted: Collection[str] = ()) -> None:
    """Notes the layouts of tables that have none. accepted: tables whose former layout is replaced."""
    there, now = known(connection, target), now_us(connection)
    for table, layout in sorted(layouts.items()):
        mine = (_layout.c.target == target) & (_layout.c.table_name == table)
        if table not in there:
            connection.execute(insert(_layout).values(target=target, table_name=table, layout=layout, since_us=now))
        elif table in accepted:
            connection.execute(update(_layout).where(mine).values(layout=layout, since_us=now))
