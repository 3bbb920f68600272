"""Character sets: bytes of a column to UTF-8, exactly as the server converts them, or not at all.

data/single_byte.tsv and data/collations.tsv were written by real servers (MySQL 9.7, MariaDB 11.4). A code without a
character, and bytes that are not text of their set, are never replaced by '?': the caller learns the row.
"""

from __future__ import annotations

from functools import cache
from importlib import resources

import numpy as np

from cdc_core.binlog.code_tables import SINGLE, CodeTable, wide

UTF8 = frozenset({"utf8mb4", "utf8mb3", "utf8"})
BINARY = "binary"


def _lines(name: str) -> list[list[str]]:
    text = resources.files("cdc_core.binlog").joinpath("data", name).read_text("ascii")
    return [line.split("\t") for line in text.splitlines() if not line.startswith("#")]


@cache
def collations() -> dict[int, tuple[str, str]]:
    """Collation id -> (collation, character set)."""
    return {int(number): (collation, charset) for number, collation, charset in _lines("collations.tsv")}


@cache
def _codes() -> dict[str, str]:
    return dict(_lines("single_byte.tsv"))


@cache
def code_table(charset: str) -> CodeTable | None:
    """The table of a character set; None for UTF-8, binary and a set that is not known."""
    codes = _codes().get(charset)
    if codes is None:
        return wide(charset)
    points = np.array([0 if point == "-" else int(point, 16) for point in codes.split(" ")], np.uint16)
    points.flags.writeable = False
    return CodeTable(SINGLE, points)


def convertible(charset: str) -> bool:
    """Whether texts of this set are converted exactly."""
    return charset in UTF8 or charset == BINARY or code_table(charset) is not None


def decode(raw: bytes, charset: str) -> str | None:
    """One text; None where the bytes are not text of this set, or the set is not convertible."""
    table = code_table(charset)
    if table is not None:
        return table.decode(raw)
    if charset not in UTF8 and charset != BINARY:
        return None
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return None
