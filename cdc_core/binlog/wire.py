"""A cursor over the bytes of one event: little-endian reads that can never pass the end.

A read that would, or a byte left over when a parser is done, raises DataAtRisk `source.log_damaged` with the event's
type and position: a decoder that guesses loses data.
"""

from __future__ import annotations

from cdc_core.errors import DamagedBytes, DataAtRisk


def malformed(what: str, where: str) -> DataAtRisk:
    """The one error for bytes that do not have the required layout."""
    remedy = (
        "read this position with mysqlbinlog (mariadb-binlog). If that fails too, the log or the connection is "
        "damaged; "
        "if not, report this as a defect with the server's version. Nothing of this event was staged"
    )
    return DamagedBytes(what, where=where, remedy=remedy)


class WireCursor:
    """Reads `data`; `at`: up to where. `what` and `where` name the event in errors."""

    __slots__ = ("at", "data", "what", "where")

    def __init__(self, data: bytes, what: str, where: str) -> None:
        self.data = data
        self.at = 0
        self.what = what
        self.where = where

    @property
    def left(self) -> int:
        return len(self.data) - self.at

    def error(self, problem: str) -> DataAtRisk:
        return malformed(f"{self.what}: {problem} (byte {self.at} of {len(self.data)})", self.where)

    def take(self, size: int) -> bytes:
        end = self.at + size
        if size < 0 or end > len(self.data):
            raise self.error(f"needs {size} bytes and has {self.left}")
        part = self.data[self.at : end]
        self.at = end
        return part

    def uint(self, size: int) -> int:
        return int.from_bytes(self.take(size), "little")

    def u8(self) -> int:
        return self.uint(1)

    def lenenc(self) -> int:
        """A length-encoded integer: < 251 itself, 252 two bytes, 253 three, 254 eight."""
        first = self.u8()
        if first < 251:
            return first
        if first in (251, 255):
            raise self.error(f"{first} cannot be the first byte of a length-encoded integer")
        return self.uint({252: 2, 253: 3, 254: 8}[first])

    def varlen(self) -> int:
        """An unsigned integer of libs/mysql/serialization: as many bytes as the first byte has trailing ones, + 1."""
        first = self.u8()
        ones = 0
        while ones < 8 and first >> ones & 1:
            ones += 1
        rest = self.uint(ones)
        return rest if ones == 8 else (first >> (ones + 1)) | rest << (7 - ones)

    def varlen_signed(self) -> int:
        """The signed kind: the sign in the lowest bit, a negative number's bits inverted."""
        coded = self.varlen()
        return ~(coded >> 1) if coded & 1 else coded >> 1

    def zero_terminated(self, size: int) -> bytes:
        """`size` bytes and the NUL that must follow them."""
        text = self.take(size)
        if self.u8() != 0:
            raise self.error("a name without its NUL")
        return text

    def name(self, raw: bytes) -> str:
        """A name of a file, database, table or column: always UTF-8."""
        try:
            return raw.decode()
        except UnicodeDecodeError:
            raise self.error(f"the name {raw!r} is not UTF-8") from None

    def rest(self) -> bytes:
        return self.take(self.left)

    def end(self) -> None:
        """Requires that the event is read to its end."""
        if self.left:
            raise self.error(f"{self.left} bytes are left over")
