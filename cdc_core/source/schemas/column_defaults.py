"""What an INSERT stores in the columns that it leaves out, as the server does now: literal and implicit defaults.

INFORMATION_SCHEMA cannot be trusted with them: it loses characters outside the BMP and bytes, rounds FLOAT, and MySQL
shows a TIMESTAMP in the time zone of the session that created it. The command COM_FIELD_LIST returns the same record
that an INSERT starts from, on MySQL and MariaDB, reads no row, and covers the implicit defaults of NOT NULL columns too
(https://dev.mysql.com/doc/dev/mysql-server/latest/page_protocol_com_field_list.html).
It must keep true that a default is exact or missing from the answer, never approximate.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pymysql
from pymysql.constants import COMMAND

from cdc_core.model.schema import Column, TableSchema
from cdc_core.mysql.connections import quote
from cdc_core.source.host.server_facts import as_text, explained, query

_COLUMNS = """
SELECT COLUMN_NAME, EXTRA, COLUMN_DEFAULT FROM INFORMATION_SCHEMA.COLUMNS
 WHERE TABLE_SCHEMA = %s AND TABLE_NAME = %s
"""
_LITERAL = re.compile(r"^(?:NULL|[nN]?'.*'|[bxBX]'.*'|[-+]?[0-9.]+(?:[eE][-+]?[0-9]+)?)$", re.DOTALL)
"""How MariaDB shows a default that is not an expression."""


def column_defaults(connection: pymysql.Connection, table: TableSchema) -> Mapping[str, str | None]:
    """The current defaults of a table's columns; without those that are expressions, generated, or not exactly known.

    connection: of `connections.connect`: text in utf8mb4, time zone UTC.
    Text, None for NULL; hex of bytes, seconds of a TIMESTAMP, the number of a BIT. Empty where the table is gone.
    Raises RetryLater (connection.unreachable), Refused (connection.grant).
    """
    mariadb = "mariadb" in str(query(connection, "SELECT VERSION()")[0][0]).lower()
    rows = query(connection, _COLUMNS, (table.database, table.table))
    declared = {as_text(name) for name, _, default in rows if default is not None}
    literal = {
        as_text(name)
        for name, extra, default in rows
        if "GENERATED" not in as_text(extra or "").upper()
        and (default is None or not mariadb or _LITERAL.match(as_text(default)))
    }
    wanted = [column for column in table.columns if not column.generated and column.name in literal]
    if mariadb:
        # Without a default MariaDB stores the first member of an ENUM, and a zero TIMESTAMP; but '' and the current
        # time where the table has a BEFORE INSERT trigger.
        wanted = [
            column
            for column in wanted
            if column.type.base not in ("enum", "timestamp") or column.nullable or column.name in declared
        ]
    record = _record(connection, table.database, table.table)
    defaults: dict[str, str | None] = {}
    columns: list[Column] = []
    for column in wanted:
        raw = record.get(column.name, b"")
        if column.name in record and raw is None:
            defaults[column.name] = None
        elif raw is not None and column.name in record and (raw == b"0" or column.type.base != "float"):
            with suppress(ValueError):  # the server's table was redefined in the meantime
                defaults[column.name] = _value(column, raw)
        else:
            columns.append(column)  # the server shows six digits of a FLOAT, perhaps nothing of an invisible column
    for column in columns:
        with suppress(LookupError):
            defaults[column.name] = _evaluated(connection, table, column)
    return defaults


def _record(connection: pymysql.Connection, database: str, table: str) -> dict[str, bytes | None]:
    """The record that an INSERT starts from; invisible columns may be missing."""
    packets = []
    wire: Any = connection  # PyMySQL has no public way to send a command
    try:
        connection.select_db(database)
        wire._execute_command(COMMAND.COM_FIELD_LIST, table.encode() + b"\0")
        while not (packet := wire._read_packet()).is_eof_packet():
            packets.append(packet)
    except pymysql.err.MySQLError as error:
        raised = explained(error, "COM_FIELD_LIST")
        if isinstance(raised, pymysql.err.MySQLError):
            return {}  # the table is gone, or the server does not know the command
        raise raised from None
    defaults: dict[str, bytes | None] = {}
    for packet in packets:
        names = [packet.read_length_coded_string() for _ in range(6)]  # catalog to original name
        packet.advance(13)  # of fixed length
        defaults[(names[5] or b"").decode()] = packet.read_length_coded_string()
    return defaults


def _value(column: Column, raw: bytes) -> str:
    kind = column.type
    if pa.types.is_binary(kind.arrow):
        return raw.hex()
    if kind.base == "vector":
        raise ValueError(column.name)
    if kind.base == "bit":
        return str(int.from_bytes(raw, "big"))
    value = raw.decode()
    if kind.base == "timestamp":
        whole, dot, fraction = value.partition(".")
        if whole.startswith("0000"):
            return "0" + dot + fraction
        seconds = datetime.fromisoformat(whole).replace(tzinfo=UTC).timestamp()
        return f"{int(seconds)}{dot}{fraction}"
    return str(int(value)) if pa.types.is_integer(kind.arrow) else value  # ZEROFILL shows zeros


_FORMS = {"timestamp": "UNIX_TIMESTAMP({})", "bit": "{} + 0", "year": "{} + 0", "float": "{} + 0e0"}


def _evaluated(connection: pymysql.Connection, table: TableSchema, column: Column) -> str | None:
    """The default as an expression. A server shows that of a NOT NULL column only in a row of the table, or, on an
    empty table, in an aggregate (MySQL) or the row that an outer join makes up (MariaDB).

    Raises LookupError where it is not available.
    """
    name, source = quote(column.name), quote(table.database, table.table)
    form = "HEX({})" if pa.types.is_binary(column.type.arrow) else _FORMS.get(column.type.base, "CAST({} AS CHAR)")
    term = form.format(f"DEFAULT(t.{name})")
    ways = [f"SELECT {term} FROM (SELECT 1 AS one) o LEFT JOIN {source} t ON 1 = 0"]
    if not column.nullable:
        key = quote((*table.key, column.name)[0])
        ways += [
            f"SELECT {term} FROM {source} t LIMIT 1",
            f"SELECT {term} FROM {source} t RIGHT JOIN (SELECT 1 AS one) o ON t.{key} IS NULL LIMIT 1",
            f"SELECT ANY_VALUE({term}), COUNT(*) FROM {source} t",
        ]
    for way in ways:
        try:
            rows = query(connection, way)
        except pymysql.err.MySQLError:
            continue
        if rows and (column.nullable or rows[0][0] is not None):
            return None if rows[0][0] is None else as_text(rows[0][0])
    raise LookupError(column.name)
