"""Every character set of the servers: each of its characters, and each code without one, is in the log as SELECT says,
and read of a table as it is in the log."""

from __future__ import annotations

from cdc_core.binlog import charsets as text
from cdc_core.binlog.code_tables import PLUS_FOUR, SINGLE
from examples.sandbox.charsets import charsets_of, codes, four, said
from examples.sandbox.sql_server import SqlServer
from tests.integration.selected_rows import inserted, opened, read, require_equal
from tests.unit.binlog.reading import decoded, events_since, known_schema, mark

_TOGETHER = 16
_UNICODE = {"ucs2": "utf-16-be", "utf16": "utf-16-be", "utf16le": "utf-16-le", "utf32": "utf-32-be"}


def _codes_of(charset: str) -> list[bytes]:
    table = text.code_table(charset)
    form = None if table is None else table.form
    if form == SINGLE:
        return [bytes([code]) for code in range(256)]
    if form is not None and form <= PLUS_FOUR:
        beyond = [four(number) for number in range(189_000, 1_237_576, 997)] if form == PLUS_FOUR else []
        return [raw for _, raw in codes(form)] + beyond
    points = [*range(0xD800), *range(0xE000, 0x10000), *([] if charset == "ucs2" else range(0x10000, 0x110000, 997))]
    return [chr(point).encode(_UNICODE.get(charset, "utf-8")) for point in points]


def _rows_of(server: SqlServer, charset: str) -> tuple[list[bytes], int]:
    """Characters, many to a row, then codes without one, alone and behind a character; and how many rows are whole."""
    raw = _codes_of(charset)
    known = said(server, charset, raw)
    characters = [code for code, character in zip(raw, known, strict=True) if character is not None]
    gaps = [code for code, character in zip(raw, known, strict=True) if character is None]
    assert len(characters) > 100
    joined = [b"".join(characters[at : at + _TOGETHER]) for at in range(0, len(characters), _TOGETHER)]
    return [*joined, *gaps, *(characters[-1] + code for code in gaps[::50])], len(joined)


def _check(server: SqlServer, charset: str) -> None:
    database = f"set_{charset}"
    since = mark(server)
    with server.connect(autocommit=True, charset="utf8mb4") as connection, connection.cursor() as cursor:
        cursor.execute("SET SESSION sql_mode = ''")
        cursor.execute(f"CREATE DATABASE {database}")
        cursor.execute(f"CREATE TABLE {database}.t (id INT PRIMARY KEY, v VARCHAR(80) CHARACTER SET {charset})")
        cursor.execute(f"CREATE TEMPORARY TABLE {database}.raw (n INT PRIMARY KEY, b VARBINARY(80))")
        rows, whole = _rows_of(server, charset)
        for begin in range(0, len(rows), 20_000):
            values = ",".join(f"({begin + n},X'{raw.hex()}')" for n, raw in enumerate(rows[begin : begin + 20_000]))
            cursor.execute(f"INSERT INTO {database}.raw VALUES {values}")
        # What the server itself bends on the way in never comes to the log.
        cursor.execute(
            f"INSERT INTO {database}.t SELECT n, CONVERT(b USING {charset}) FROM {database}.raw "
            f"WHERE CAST(CONVERT(b USING {charset}) AS BINARY) = b"
        )
        cursor.execute(f"SELECT id, HEX(v), HEX(CONVERT(v USING utf8mb4)) FROM {database}.t ORDER BY id")
        server_says = cursor.fetchall()
        known = known_schema(server, database, "t")
        with opened(server) as reader:
            selected = read(server, database, "t", reader)
        cursor.execute(f"DROP DATABASE {database}")
    schema, found = decoded(events_since(server, since), known, mariadb=server.mariadb)
    require_equal(selected, inserted(schema, found))
    assert len(found) == len(server_says) >= whole
    for row, (value, literal) in enumerate(zip(found.after[1].to_pylist(), found.literal.to_pylist(), strict=True)):
        _, raw, utf8 = server_says[row]
        if value is None:
            assert row >= whole
            # No character there: the server shows a ? that is not in the text, cuts it off, or makes no UTF-8 of it.
            assert dict(literal) == {"v": "0x" + raw.lower()}
            shown = bytes.fromhex(utf8).decode(errors="replace")
            assert "?" in shown or "\ufffd" in shown or len(shown) < 2
        else:
            assert literal is None
            assert value.encode().hex().upper() == utf8


def test_every_character_of_every_set_is_what_select_says(any_server: SqlServer) -> None:
    names = [name for name in charsets_of(any_server) if name != text.BINARY]
    assert len(names) > 30
    for charset in names:
        _check(any_server, charset)
