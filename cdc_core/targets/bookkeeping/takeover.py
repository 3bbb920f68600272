"""Takes over tables that another pipeline has written to before a cutover.

Versions of different sources compare by commit time (model/version.py), and those times come from the clocks of two
servers. After a cutover only one pipeline writes to the tables, so its changes are newer than everything that others
have left there, whatever the clocks said. For example, a source whose clock is ahead has deleted a row, and the
application has inserted it again at the new place: that insert must be carried back. So the versions of others get the
commit time 0, and lose their origin, because other tables feed these now. Versions of one source still compare with
each other by their place in its log: when the other pipeline takes the tables over again, its earlier changes are still
older than these.

Versions in the rows (guard.store: row) stay: a way back ignores them (destination.py), and no two pipelines keep their
versions there.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from contextlib import closing
from typing import Any

from cdc_core.config import MysqlTarget
from cdc_core.model.version import TAKEN_OVER, VERSION_COLUMN
from cdc_core.mysql.connections import bytes_literal, quote, utf8_literal
from cdc_core.targets.bookkeeping.table_states import TRUNCATES, alone
from cdc_core.targets.reading.target_faults import translating
from cdc_core.targets.writing.prepare import ours_beside, tombstones_table, versions_table

_AT_ONCE = 100_000
"""Rows that one transaction changes."""


@translating("versions that others have left")
def take_over(target: MysqlTarget, logical: Sequence[str], sources: Collection[str]) -> None:
    """Makes the versions of all other sources than these count as older. Safe to repeat, also after half of it was
    done. Raises as table_states.change_states."""
    with closing(alone(target, logical)) as places:
        for cursor, database, tables in places:
            names = [place.table for _, place in tables]
            there = ours_beside(cursor.connection, database, names)
            for name in names:
                for beside in (tombstones_table(name), versions_table(name)):
                    if beside in there:
                        _age(cursor, f"{quote(database)}.{quote(beside)}", VERSION_COLUMN, sources)
                if TRUNCATES in there:
                    _age(cursor, f"{quote(database)}.{quote(TRUNCATES)}", "version", sources, name)


def _age(cursor: Any, table: str, version: str, sources: Collection[str], of: str = "") -> None:
    """of: only rows of this table."""
    # A source's name may be followed by a zero byte and an origin.
    own = ", ".join(bytes_literal(name.encode()) for name in sources)
    which = f"table_name = {utf8_literal(of)} AND" if of else ""
    taken_over, changed = bytes_literal(TAKEN_OVER), _AT_ONCE
    while changed == _AT_ONCE:
        changed = cursor.execute(
            f"UPDATE {table} SET {version} = CONCAT({taken_over}, SUBSTRING({version}, 9)) WHERE {which} "
            f"LENGTH({version}) > 24 AND SUBSTRING({version}, 1, 8) <> {taken_over} "
            f"AND SUBSTRING_INDEX(SUBSTRING({version}, 25), X'00', 1) NOT IN ({own}) LIMIT {_AT_ONCE}"
        )
