"""XA transactions between their PREPARE and their end: those of the log, and those that a server lists."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pymysql

from cdc_core.model.schema import TableName
from cdc_core.mysql.connections import sensible
from cdc_core.source.host.server_facts import query
from cdc_core.source.transactions.spilled_changes import SpillableChanges


class PreparedTransactions:
    """Those that the log has prepared and not ended yet, by xid: their changes, and the tables that foreign keys change
    once they are committed.

    find: the changes of those that were prepared before this stream began; asked at most once. None: there are none.
    """

    def __init__(self, find: Callable[[], Mapping[str, SpillableChanges]] | None) -> None:
        self.changes: dict[str, SpillableChanges] = {}
        self._cascades: dict[str, list[TableName]] = {}
        self._find = find

    @property
    def memory_bytes(self) -> int:
        return sum(changes.memory_bytes for changes in self.changes.values())

    def keep(self, xid: str, changes: SpillableChanges, cascades: list[TableName]) -> None:
        self.changes[xid], self._cascades[xid] = changes, cascades

    def commit(self, xid: str) -> tuple[SpillableChanges | None, list[TableName] | None]:
        """Ends one; what it changed, None where that is not known."""
        if xid not in self.changes and self._find is not None:
            self.changes = {**self._find(), **self.changes}
            self._find = None
        return self.changes.pop(xid, None), self._cascades.pop(xid, None)

    def roll_back(self, xid: str) -> None:
        """Ends one, and drops what it changed."""
        self._cascades.pop(xid, None)
        if (changes := self.changes.pop(xid, None)) is not None:
            changes.truncate(0)


@sensible("source")
def prepared(connection: pymysql.Connection, *, mariadb: bool) -> frozenset[str]:
    """As statements name them (`XA COMMIT X'...',X'...',1`). At a MariaDB also those that are committed in the log and
    not in the engine. Raises as `query`, and PyMySQL's errors."""
    found = set()
    for number, gtrid_bytes, bqual_bytes, data in query(connection, f"XA RECOVER{'' if mariadb else ' CONVERT XID'}"):
        if mariadb:
            text = data if isinstance(data, bytes) else str(data).encode("utf-8", "surrogateescape")
        else:
            text = bytes.fromhex(str(data).removeprefix("0x"))
        gtrid, bqual = text[:gtrid_bytes], text[gtrid_bytes : gtrid_bytes + bqual_bytes]
        found.add(f"X'{gtrid.hex()}',X'{bqual.hex()}',{number}")
    return frozenset(found)
