"""Random columns: types with edge values as SQL, and how a server and a Parquet file show the same value alike."""

from __future__ import annotations

import datetime as dt
import random
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

MYSQL, MARIADB = "mysql", "mariadb"
TEXTS = (
    "", " ", "  ", "a", "A", "á", "a ", "ß", "ss", "SS", "ﬀ", "ff", "µ", "ÿ", "õ", "апельсин", "Апельсин", "яблоке",
    "ć", "c", "č", "đ", "😀", "🚀", "\t", "\x01", "i", "I", "ı", "İ", "zażółć",
    "\\", "'", '"', "`", "%", "_", "\n", "0",
    "é", "e\u0301", "ｶ", "カ", "か", "がが", "a" * 40, "a" * 39 + "b",
    "a" * 600 + "b", "a" * 600 + "c",
)  # fmt: skip
"""Many are equal under one collation and differ under another."""
CHARSETS = ("utf8mb4", "utf8mb3", "latin1", "cp1251", "ucs2", "utf16", "gbk", "ascii", "latin2")
MOMENTS = (
    "1970-01-01 00:00:01",
    "1999-12-31 23:59:59.999999",
    "2024-02-29 12:00:00.5",
    "2026-03-29 02:30:00",
    "2038-01-19 03:14:07",
)


@dataclass(frozen=True)
class Kind:
    """A column's type. base: its family, which says how values are compared. sql: with character set and collation.
    values: as SQL."""

    base: str
    sql: str
    values: Sequence[str]
    keyable: bool = True
    prefix: int = 0
    """Bytes of a key over it, where an index needs a length; 0: none."""


def quoted(text: str) -> str:
    return f"CONVERT(X'{text.encode().hex()}' USING utf8mb4)"


def integer(chance: random.Random) -> Kind:
    name, bits = chance.choice([("TINYINT", 8), ("SMALLINT", 16), ("MEDIUMINT", 24), ("INT", 32), ("BIGINT", 64)])
    unsigned = chance.random() < 0.4
    low, high = (0, 2**bits - 1) if unsigned else (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
    values = [low, high, 0, 1, 2, high // 2, *(chance.randint(low, high) for _ in range(20))]
    return Kind("int", name + (" UNSIGNED" if unsigned else ""), [str(value) for value in values])


def decimal(chance: random.Random) -> Kind:
    precision = chance.choice([1, 5, 18, 19, 38, 39, 65])
    scale = chance.choice([0, min(2, precision), min(30, precision)])
    units = [0, 1, 10**precision - 1, *(chance.randrange(10**precision) for _ in range(12))]
    signed = [unit * chance.choice([1, -1]) for unit in units]
    return Kind(
        "decimal",
        f"DECIMAL({precision},{scale})",
        [f"{Decimal(number).scaleb(-scale):f}" if precision < 28 else _fixed(number, scale) for number in signed],
    )


def _fixed(units: int, scale: int) -> str:
    digits = f"{abs(units):0{scale + 1}d}"
    return ("-" if units < 0 else "") + (f"{digits[:-scale]}.{digits[-scale:]}" if scale else digits)


def real(chance: random.Random) -> Kind:
    if chance.random() < 0.5:
        return Kind("float", "FLOAT", ["0", "-0.0", "0.1", "1e30", "-2.5", "16777217", "3e-39"], keyable=False)
    return Kind(
        "double", "DOUBLE", ["0", "-0.0", "0.1", "1e308", "-2.5", "4.9e-324", "0.30000000000000004"], keyable=False
    )


def moment(chance: random.Random) -> Kind:
    fsp = chance.choice([0, 3, 6])
    kind = chance.choice(["DATE", "DATETIME", "TIMESTAMP", "TIME", "YEAR"])
    if kind == "DATE":
        return Kind(
            "date",
            "DATE",
            ["'1000-01-01'", "'9999-12-31'", "'2024-02-29'", "'0000-00-00'", "'2024-02-31'", "'2024-00-01'"],
        )
    if kind == "DATETIME":
        values = [
            f"'{literal}'"
            for literal in (*MOMENTS, "0000-00-00 00:00:00", "9999-12-31 23:59:59", "2024-02-31 01:02:03")
        ]
        return Kind("datetime", f"DATETIME({fsp})", values)
    if kind == "TIMESTAMP":
        return Kind(
            "timestamp",
            f"TIMESTAMP({fsp}) NULL",
            [f"'{literal}'" for literal in MOMENTS[1:4]] + ["'0000-00-00 00:00:00'"],
        )
    if kind == "TIME":
        return Kind(
            "time", f"TIME({fsp})", ["'-838:59:59'", "'838:59:59'", "'00:00:00'", "'-00:00:01.5'", "'23:59:59.999999'"]
        )
    return Kind("year", "YEAR", ["1901", "2155", "2026", "0"])


def text(chance: random.Random, collations: Sequence[str]) -> Kind:
    """collations: that the server has."""
    collation = chance.choice(collations)
    charset = collation.partition("_")[0]
    length = chance.choice([1, 3, 40, 190, 700])
    name = chance.choice(
        [f"CHAR({min(length, 190)})", f"VARCHAR({length})", f"VARCHAR({length})", "TINYTEXT", "TEXT", "MEDIUMTEXT"]
    )
    return Kind(
        "text",
        f"{name} CHARACTER SET {charset} COLLATE {collation}",
        [quoted(literal[:length]) for literal in TEXTS],
        prefix=0 if "(" in name else 60,
    )


def binary(chance: random.Random) -> Kind:
    name = chance.choice(["BINARY(4)", "VARBINARY(9)", "BLOB", "TINYBLOB"])
    raws = [b"", b"\0", b"\0\0", b"a", b"A", b"a ", b"\xff\xfe", b"\xb5", "õ".encode(), bytes(range(4)), b"    "]
    return Kind("binary", name, [f"X'{raw[:4].hex()}'" for raw in raws], prefix=0 if "(" in name else 9)


def label(chance: random.Random) -> Kind:
    labels = chance.sample(["a", "B", "c c", "it''s", "é", "0", "1", "x"], chance.randint(1, 5))
    listed = ",".join(f"'{name}'" for name in labels)
    if chance.random() < 0.5:
        return Kind("text", f"ENUM({listed}) CHARACTER SET utf8mb4", [str(n) for n in range(1, len(labels) + 1)])
    return Kind("text", f"SET({listed}) CHARACTER SET utf8mb4", [str(n) for n in range(2 ** len(labels))])


def bit(chance: random.Random) -> Kind:
    size = chance.choice([1, 7, 8, 33, 64])
    return Kind("bit", f"BIT({size})", [str(number) for number in (0, 1, 2**size - 1, 2 ** (size - 1))])


def document(_: random.Random) -> Kind:
    texts = (
        "{}",
        "[]",
        "null",
        '"õ 😀"',
        '{"a": [1, 2.5, true, null], "b": {"c": "d"}}',
        "-1",
        "1e3",
        "18446744073709551615",
    )
    return Kind("json", "JSON", [quoted(literal) for literal in texts], keyable=False)


def spot(_: random.Random) -> Kind:
    return Kind(
        "geometry",
        "GEOMETRY",
        ["ST_GeomFromText('POINT(1 2)')", "ST_GeomFromText('LINESTRING(0 0,1 1)')"],
        keyable=False,
    )


def any_kind(chance: random.Random, collations: Sequence[str]) -> Kind:
    make = chance.choice(
        [integer, integer, decimal, real, moment, moment, text, text, text, binary, label, bit, document, spot]
    )
    return make(chance, collations) if make is text else make(chance)


def shown(base: str, column: str) -> str:
    """An expression whose text is the same at every server for the same value, in a session whose time zone is UTC."""
    if base in ("binary", "geometry"):
        return f"HEX({column})"
    if base in ("text", "json"):
        return f"HEX(CONVERT({column} USING utf8mb4))"
    if base == "bit":
        return f"CAST({column} AS UNSIGNED)"
    if base in ("float", "double"):
        return f"{column} + 0e0"
    return f"CAST({column} AS CHAR)"


def of_server(base: str, value: Any) -> str | None:
    """The canonical text of what `shown` selects."""
    if value is None:
        return None
    text = value.decode() if isinstance(value, bytes) else str(value)
    if base in ("float", "double"):
        return repr(float(text) + 0.0)
    if base in ("int", "bit", "year"):
        return str(int(text))
    if base in ("datetime", "timestamp", "time"):
        return _padded(text)
    return text


def of_file(base: str, value: Any) -> str | None:
    """The canonical text of a value of an exported Parquet file."""
    if value is None:
        return None
    if base in ("float", "double"):
        return repr(float(value) + 0.0)
    if base in ("int", "bit", "year"):
        return str(int(value))
    if base == "decimal":
        return value if isinstance(value, str) else f"{value:f}"
    if base in ("text", "json"):
        return value.encode().hex().upper()
    if isinstance(value, bytes):
        return value.hex().upper()
    if isinstance(value, dt.datetime):
        return _padded(value.replace(tzinfo=None).isoformat(" "))
    if isinstance(value, dt.date):
        return value.isoformat()
    return _padded(str(value)) if base in ("datetime", "timestamp", "time") else str(value)


def _padded(text: str) -> str:
    """A time of day with six fractional digits and three of hours."""
    head, _, fraction = text.partition(".")
    sign = "-" if head.startswith("-") else ""
    day, _, clock = head.lstrip("-").rpartition(" ")
    hours, _, rest = clock.partition(":")
    return f"{day} {sign}{hours:0>3}:{rest}.{fraction:0<6}"
