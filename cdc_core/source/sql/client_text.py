"""A statement's bytes as text, in the session's character set, and names as the server compares them.

It must keep true that a byte is read as syntax only if the server read it as syntax, and that an undecodable character
becomes a lone surrogate, so that a name that contains one is known to be unknown. Where servers do not agree about the
syntax of a text, nobody reads it.
"""

from __future__ import annotations

import re
from functools import cache

from cdc_core.binlog.charsets import BINARY, UTF8, code_table, collations
from cdc_core.binlog.code_tables import FORMS

UNKNOWN_CHARACTER = "\udcff"
_SWE7 = "swe7"
"""Its letters have the codes of ASCII's brackets and braces. Servers read these as letters of a name, and convert a
quoted name, but not an unquoted one: t[] is a table of that name, and `t[]` is tÄÅ."""
_SWE7_LETTERS = re.compile(rb"[\[\]\\^{}~@]|``")

_SECOND_BYTES = {
    "big5": ((0xA1, 0xF9), ((0x40, 0x7E), (0xA1, 0xFE))),
    "cp932": ((0x81, 0xFC), ((0x40, 0x7E), (0x80, 0xFC))),
    "sjis": ((0x81, 0xFC), ((0x40, 0x7E), (0x80, 0xFC))),
    "euckr": ((0x81, 0xFE), ((0x41, 0x5A), (0x61, 0x7A), (0x81, 0xFE))),
    "gbk": ((0x81, 0xFE), ((0x40, 0x7E), (0x80, 0xFE))),
    "gb18030": ((0x81, 0xFE), ((0x40, 0x7E), (0x80, 0xFE))),
}
"""First and second bytes that the server reads as one character, assigned or not (strings/ctype-*.cc): the second may
be a backslash or a backquote. The other sets have no second byte below 128."""


def charset_of(client_collation: int) -> str:
    """The character set of a collation id: UTF-8 where the event does not say, ASCII for an id that is not known."""
    if not client_collation:
        return "utf8mb4"
    return collations().get(client_collation, ("", "ascii"))[1]


def decode(sql: bytes, client_collation: int) -> str | None:
    """The text of a statement; bytes that its character set does not assign become lone surrogates.

    None where servers disagree about where names end: MariaDB ends a quoted name at a backquote even if that is the
    second byte of a character; and in swe7 a name has other letters with quotes and without.
    """
    charset = charset_of(client_collation)
    if charset == _SWE7 and _SWE7_LETTERS.search(sql):
        return None
    if sql.isascii():
        return sql.decode("ascii")
    if charset in UTF8 or charset == BINARY:
        return sql.decode("utf-8", "surrogateescape")
    if charset in FORMS and charset in _wide_clients():
        return _decode_wide(sql, charset)
    table = _single_byte_characters(charset)
    return "".join([table[code] for code in sql])


@cache
def _wide_clients() -> frozenset[str]:
    """Multi-byte sets in which a client may send statements: those that contain ASCII unchanged."""
    return frozenset(FORMS) - {"ucs2", "utf16", "utf16le", "utf32"}


@cache
def _single_byte_characters(charset: str) -> tuple[str, ...]:
    """The character of each byte. A byte above 127 is never syntax, whatever it looks like."""
    table = code_table(charset)
    characters = [chr(code) for code in range(128)]
    for code in range(128, 256):
        text = "" if table is None else table.decode(bytes([code])) or ""
        characters.append(text if text and not text.isascii() else chr(0xDC00 + code))
    return tuple(characters)


def _decode_wide(sql: bytes, charset: str) -> str | None:
    table = code_table(charset)
    assert table is not None
    first, seconds = _SECOND_BYTES.get(charset, ((1, 0), ()))
    found: list[str] = []
    at = 0
    while at < len(sql):
        if sql[at] < 128:
            found.append(chr(sql[at]))
            at += 1
            continue
        if charset in _SECOND_BYTES and sql[at + 1 : at + 2] == b"`":
            return None
        for length in (1, 2, 3, 4):
            text = table.decode(sql[at : at + length]) if at + length <= len(sql) else None
            if text is not None:
                break
        else:
            two = first[0] <= sql[at] <= first[1] and at + 1 < len(sql)
            length = 2 if two and any(low <= sql[at + 1] <= high for low, high in seconds) else 1
            text = UNKNOWN_CHARACTER * length
        found.append(text if not text.isascii() else UNKNOWN_CHARACTER)
        at += length
    return "".join(found)


def is_known(name: str) -> bool:
    """Whether all characters of a name were decoded."""
    return not any("\ud800" <= character <= "\udfff" for character in name)


_KEPT = (
    (0x220, 0x220), (0x23A, 0x37F), (0x3CF, 0x3D8), (0x3F4, 0x3FF), (0x48A, 0x48A), (0x4C0, 0x4C0), (0x4C5, 0x4C5),
    (0x4C9, 0x4C9), (0x4CD, 0x4CD), (0x4F6, 0x4F6), (0x4FA, 0x52E), (0x10A0, 0x1CBF), (0x1E9E, 0x1E9E),
    (0x1EFA, 0x1EFE), (0x2132, 0x2132), (0x2183, 0x2183), (0x2C00, 0xA7F5),
)  # fmt: skip
"""Letters that Unicode added after the servers' utf8mb3_general_ci was made: it leaves them as they are."""


def lower_cased(name: str) -> str:
    """A name of a table or database as a server with lower_case_table_names 1 or 2 compares it."""
    if name.isascii():
        return name.lower()
    return "".join([_lower(character) for character in name])


def _lower(character: str) -> str:
    code = ord(character)
    if code == 0x130:
        return "i"
    if code > 0xFFFF or any(low <= code <= high for low, high in _KEPT):
        return character
    return character.lower()
