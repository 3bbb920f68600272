"""`python -m examples.sandbox.charsets`: writes cdc_core/binlog/data/wide.npz, what the servers themselves say.

Every code of every character set of more than one byte is converted by MySQL 9 and by MariaDB. Where both have a
set they must agree on all of it, or nothing is written. The arrays are laid out as cdc_core/binlog/code_tables.py says,
as differences between neighbours, which pack better.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from cdc_core.binlog.code_tables import BEYOND, FIRST_PLANE, FORMS, PLUS_8F, PLUS_FOUR, UTF32
from examples.sandbox.mariadb import MariaDb
from examples.sandbox.mysql import MySql
from examples.sandbox.sql_server import SqlServer

DATA = Path(__file__).parents[2] / "cdc_core" / "binlog" / "data" / "wide.npz"
_ROWS = 20_000
_UNICODE = {"utf8mb3", "utf8mb4", *(name for name, form in FORMS.items() if form > PLUS_FOUR)}


def codes(form: int) -> Iterator[tuple[int, bytes]]:
    """(index in the array, bytes) of every code that a set of this form could have."""
    for code in range(1, 256):
        yield code, bytes([code])
    for code in range(0x8000, 0x10000):
        yield code, code.to_bytes(2, "big")
    if form == PLUS_8F:
        for code in range(0x8080, 0x10000):
            yield BEYOND + code, b"\x8f" + code.to_bytes(2, "big")
    if form == PLUS_FOUR:
        yield from ((BEYOND + number, four(number)) for number in range(FIRST_PLANE))


def four(number: int) -> bytes:
    """The code of four bytes of gb18030 with this number."""
    number, fourth = divmod(number, 10)
    number, third = divmod(number, 126)
    first, second = divmod(number, 10)
    return bytes([0x81 + first, 0x30 + second, 0x81 + third, 0x30 + fourth])


def said(server: SqlServer, charset: str, raw: Sequence[bytes]) -> list[str | None]:
    """What the server makes of each code: its character, None where it is none."""
    found: list[str | None] = []
    with server.connect(charset="utf8mb4") as connection, connection.cursor() as cursor:
        cursor.execute("SET sql_mode = ''")
        cursor.execute("CREATE TEMPORARY TABLE mysql.lockstep_codes (n INT PRIMARY KEY, b VARBINARY(4))")
        for begin in range(0, len(raw), _ROWS):
            rows = ",".join(f"({n},X'{code.hex()}')" for n, code in enumerate(raw[begin : begin + _ROWS]))
            cursor.execute("DELETE FROM mysql.lockstep_codes")
            cursor.execute(f"INSERT INTO mysql.lockstep_codes VALUES {rows}")
            # Ill-formed bytes are cut off or replaced by the conversion to the set: then they are not the same bytes.
            cursor.execute(
                f"SELECT b = CAST(CONVERT(b USING {charset}) AS BINARY), "
                f"CONVERT(CONVERT(b USING {charset}) USING utf8mb4) FROM mysql.lockstep_codes ORDER BY n"
            )
            for code, (same, text) in zip(raw[begin:], cursor.fetchall(), strict=False):
                # A code without a character is shown as ? or, in a few sets, as U+FFFD.
                replaced = (text == "?" and code != b"?") or (text == "\ufffd" and charset not in _UNICODE)
                is_character = same and text and len(text) == 1 and not replaced
                found.append(text if is_character else None)
    return found


def charsets_of(server: SqlServer) -> list[str]:
    with server.connect() as connection, connection.cursor() as cursor:
        cursor.execute("SHOW CHARACTER SET")
        return [str(row[0]) for row in cursor.fetchall()]


def points_of(server: SqlServer, charset: str) -> npt.NDArray[np.uint16]:
    form = FORMS[charset]
    index, raw = zip(*codes(form), strict=True)
    points = np.zeros({PLUS_8F: 2 * BEYOND, PLUS_FOUR: BEYOND + FIRST_PLANE}.get(form, BEYOND), np.uint16)
    points[list(index)] = [ord(text) if text else 0 for text in said(server, charset, raw)]
    return points


def main() -> None:
    tables: dict[str, npt.NDArray[np.uint16]] = {}
    with MySql.start(server_id=1) as mysql, MariaDb.start(server_id=2) as mariadb:
        for server in (mysql, mariadb):
            for charset in charsets_of(server):
                if FORMS.get(charset, UTF32) > PLUS_FOUR:
                    continue
                points = points_of(server, charset)
                print(f"{type(server).__name__} {charset}: {np.count_nonzero(points)} characters")
                if not (points[1:128] == np.arange(1, 128)).all():
                    raise SystemExit(f"{charset}: a byte below 128 is not itself")
                if not np.array_equal(tables.setdefault(charset, points), points):
                    raise SystemExit(f"{charset}: the servers differ")
    packed: dict[str, Any] = {name: np.diff(points, prepend=np.uint16(0)) for name, points in tables.items()}
    np.savez_compressed(DATA, **packed)
    print(f"{DATA}: {DATA.stat().st_size} bytes")


if __name__ == "__main__":
    main()
