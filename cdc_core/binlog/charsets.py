"""Character sets: bytes of a column to UTF-8, exactly as the server converts them, or not at all.

data/single_byte.tsv and data/collations.tsv were written by real servers (MySQL 9.7, MariaDB 11.4); multi-byte sets are
in wide.py. A code without a character, and bytes that are not text of their set, are never replaced by '?': the caller
learns the row.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from importlib import resources

import numpy as np
import numpy.typing as npt

from cdc_core.binlog.wide import wide

UTF8 = frozenset({"utf8mb4", "utf8mb3", "utf8"})
BINARY = "binary"


@dataclass(frozen=True, slots=True)
class SingleByte:
    """width: bytes in UTF-8 of each of the 256 codes, 0 for a code without a character. utf8: [256, 4], those bytes."""

    width: npt.NDArray[np.int64]
    utf8: npt.NDArray[np.uint8]

    @property
    def complete(self) -> bool:
        return bool((self.width > 0).all())

    def decode(self, raw: bytes) -> str | None:
        """One text; None when a code has no character."""
        if any(self.width[code] == 0 for code in raw):
            return None
        return b"".join(self.utf8[code, : self.width[code]].tobytes() for code in raw).decode()


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
def single_byte(charset: str) -> SingleByte | None:
    """The table of a single-byte character set, None for any other."""
    codes = _codes().get(charset)
    if codes is None:
        return None
    width = np.zeros(256, np.int64)
    utf8 = np.zeros((256, 4), np.uint8)
    for code, point in enumerate(codes.split(" ")):
        if point != "-":
            raw = chr(int(point, 16)).encode()
            width[code] = len(raw)
            utf8[code, : len(raw)] = list(raw)
    return SingleByte(width, utf8)


def convertible(charset: str) -> bool:
    """Whether texts of this set are converted exactly."""
    return charset in UTF8 or charset == BINARY or (single_byte(charset) or wide(charset)) is not None


def decode(raw: bytes, charset: str) -> str | None:
    """One text; None where the bytes are not text of this set, or the set is not convertible."""
    table = single_byte(charset) or wide(charset)
    if table is not None:
        return table.decode(raw)
    if charset not in UTF8 and charset != BINARY:
        return None
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return None
