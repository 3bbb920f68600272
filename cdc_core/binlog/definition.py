"""A table's definition as of its table map: what the server logs, completed by what INFORMATION_SCHEMA knew."""

from __future__ import annotations

from cdc_core.binlog.table_map import TableMap
from cdc_core.model.schema import TableSchema


def schema_of(table_map: TableMap, known: TableSchema | None, *, mariadb: bool = False) -> TableSchema:
    """The definition that the row images behind `table_map` follow.

    known:   what INFORMATION_SCHEMA says of the table, as near to this position as was to be had; None if unread.
    mariadb: the log is MariaDB's (where JSON is LONGTEXT, and VECTOR, UUID and INET are binary on the wire).
    Raises Refused `binlog.schema_mismatch` when they contradict, `binlog.row_metadata` when both say too little.
    """
    raise NotImplementedError
