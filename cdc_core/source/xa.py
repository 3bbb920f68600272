"""XA transactions that are prepared at a server."""

from __future__ import annotations

import pymysql

from cdc_core.connections import sensible
from cdc_core.source.facts import query


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
