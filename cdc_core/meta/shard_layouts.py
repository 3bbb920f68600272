"""How each target's logical tables are distributed over shards: noted before the first run writes to them.

Rows that were written under another layout are in other shards. A run under a new one would leave them there, beside
their newer versions, and nothing in the target would tell: so it is refused before anything is written.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from sqlalchemy import insert, select, update

from cdc_core.errors import DataAtRisk
from cdc_core.meta.meta_schema import target_layout as _layout
from cdc_core.meta.repository import Repository, reads, writes


class ShardLayouts(Repository):
    @reads
    def find(self, target: str) -> dict[str, str]:
        """By logical table, the layout under which rows were written."""
        rows = self.execute(
            select(_layout.c.table_name, _layout.c.layout)
            .where(_layout.c.target == target)
            .order_by(_layout.c.table_name)
        )
        return {row.table_name: row.layout for row in rows}

    @reads
    def require(self, target: str, layouts: Mapping[str, str]) -> None:
        """Raises DataAtRisk (target.layout) for a table whose rows were written under another layout."""
        there = self.find(target)
        for table, layout in sorted(layouts.items()):
            former = there.get(table, layout)
            if former != layout:
                raise DataAtRisk(
                    f"The rows of {table!r} were written to the shards by {former}, and the pipeline now says "
                    f"{layout}: rows that belong to another shard would stay where they are, beside their newer "
                    "versions.",
                    where=f"targets.{target}.tables.{table}.sharding",
                    code="target.layout",
                    remedy="restore the former sharding; or give the target a new name and new tables, so that "
                    "everything staged is applied to it; or, if every row is where it belongs now, "
                    f"`lockstep target layout --target {target} --accept {table}`",
                )

    @writes
    def note(self, target: str, layouts: Mapping[str, str]) -> None:
        """From now on, rows may be in the shards where these layouts have them. Raises DataAtRisk (target.layout)."""
        self.require(target, layouts)
        self._note(target, layouts, accepted=())

    @writes
    def accept(self, target: str, layouts: Mapping[str, str]) -> None:
        """All rows of these tables are in the shards where these layouts have them."""
        self._note(target, layouts, accepted=layouts)

    def _note(self, target: str, layouts: Mapping[str, str], *, accepted: Collection[str]) -> None:
        """Notes the layouts of tables that have none. accepted: tables whose former layout is replaced."""
        there, now = self.find(target), self.now_us()
        for table, layout in sorted(layouts.items()):
            mine = (_layout.c.target == target) & (_layout.c.table_name == table)
            if table not in there:
                self.execute(insert(_layout).values(target=target, table_name=table, layout=layout, since_us=now))
            elif table in accepted:
                self.execute(update(_layout).where(mine).values(layout=layout, since_us=now))
