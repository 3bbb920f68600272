"""Positions in a source's binlog, and the order keys made from them.

An order key is a pure function of the log: `timeline << 53 | file number << 33 | offset`. It fits a signed
64-bit integer: 10 bits of timeline, 20 bits of file number, 33 bits of offset (8 GiB). A file number of more bits
carries into the timeline's, so that the next timeline begins above all that the former one has reached (`above`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import total_ordering
from typing import Any

from cdc_core.errors import DataAtRisk, UsageError
from cdc_core.model.json_codec import Natural, TimeUs

TIMELINE_BITS = 10
FILE_BITS = 20
OFFSET_BITS = 33
TIMELINE_SHIFT = FILE_BITS + OFFSET_BITS
MAX_TIMELINE = (1 << TIMELINE_BITS) - 1
_FILES = (1 << FILE_BITS) - 1
MAX_OFFSET = (1 << OFFSET_BITS) - 1
FIRST_OFFSET = 4
"""Offset of the first event of a binlog file, after its 4 magic bytes."""


def file_number(file: str) -> int:
    """The number in a binlog file's name: `binlog.000042` -> 42.

    Raises UsageError for a name without a numeric extension.
    """
    base, dot, digits = file.rpartition(".")
    if not dot or not base or not (digits.isascii() and digits.isdigit()):
        raise UsageError(
            f"{file!r} is not the name of a binlog file, such as 'binlog.000042'.",
            code="usage.argument",
            remedy="give a name that SHOW BINARY LOGS prints",
        )
    return int(digits)


def order_key(timeline: int, number: int, offset: int) -> int:
    """`_cdc_seq` of a transaction whose first event starts at `offset` of binlog file `number`."""
    return begin_of(timeline) + (number << OFFSET_BITS | offset)


def begin_of(timeline: int) -> int:
    """The order key below all of a timeline, and above all of those before it."""
    return timeline << TIMELINE_SHIFT


def above(seq: int) -> int:
    """The first timeline whose order keys are all above one."""
    return (seq >> TIMELINE_SHIFT) + 1


def place_of(seq: int) -> str:
    """An order key in words, for people: it does not hold the name of the file, and file numbers start over at 2^20."""
    timeline, number, offset = _parts(seq)
    return f"timeline {timeline}, file {number}, offset {offset}"


def _parts(seq: int) -> tuple[int, int, int]:
    return seq >> TIMELINE_SHIFT, seq >> OFFSET_BITS & _FILES, seq & MAX_OFFSET


def seq_of_name(name: str) -> int:
    """The order key of a place by its `Position.name`."""
    timeline, number, offset = (int(part) for part in name.split("-"))
    return order_key(timeline, number, offset)


@total_ordering
@dataclass(frozen=True, slots=True, eq=False)
class Position:
    """A place between two events of a source's log: the next event to read starts here.

    timeline: how often the source's numbering has started again (failover, RESET); 0 at first.
    file:     binlog file name, as the server writes it.
    offset:   byte offset in the file, at least 4. Not the 32-bit log_pos of event headers, which wraps.
    """

    timeline: Natural
    file: str
    offset: Natural
    number: int = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "number", file_number(self.file))
        if not 0 <= self.timeline + (self.number >> FILE_BITS) <= MAX_TIMELINE:
            raise DataAtRisk(
                f"Timeline {self.timeline} with file number {self.number} is outside 0..{MAX_TIMELINE}.",
                where=self.file,
                code="source.timeline",
                remedy="give the source another name: its tables are copied again",
            )
        if not FIRST_OFFSET <= self.offset <= MAX_OFFSET:
            raise DataAtRisk(
                f"Offset {self.offset} is outside {FIRST_OFFSET}..{MAX_OFFSET} (8 GiB).",
                where=self.file,
                code="source.log_lost",
                remedy="lower max_binlog_size on the source to 1 GiB or less, and split the transaction that made "
                "this file so large",
            )

    @property
    def seq(self) -> int:
        """The order key of a transaction that starts here."""
        return order_key(self.timeline, self.number, self.offset)

    @property
    def name(self) -> str:
        """Sorts as text in stream order; the name of the manifest of a batch that begins here."""
        timeline, number, offset = _parts(self.seq)
        return f"{timeline:04d}-{number:07d}-{offset:010d}"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Position) and self.seq == other.seq and self.file == other.file

    def __hash__(self) -> int:
        return hash((self.file, self.seq))

    def __lt__(self, other: Position) -> bool:
        return self.seq < other.seq

    @classmethod
    def from_text(cls, text: str) -> Position:
        """The position that `str` printed, such as `binlog.000042:1234`. Raises ValueError; for every time, too."""
        match = re.fullmatch(r"(?:timeline (\d+) )?(.+\.\d+):(\d+)", text, re.ASCII)
        if match is None:
            raise ValueError(f"{text!r} is not a position")
        try:
            return cls(int(match[1] or 0), match[2], int(match[3]))
        except DataAtRisk as error:  # no log has it, so somebody mistyped it
            raise ValueError(f"{text!r} is not a position: {error.what.rstrip('.')}") from None

    def __str__(self) -> str:
        prefix = f"timeline {self.timeline} " if self.timeline else ""
        return f"{prefix}{self.file}:{self.offset}"

    def to_json(self) -> dict[str, Any]:
        return {"timeline": self.timeline, "file": self.file, "offset": self.offset}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Position:
        return cls(data["timeline"], data["file"], data["offset"])


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """A mark that tells the log that was read from another one with the same file names and sizes.

    format_crc: of the FORMAT_DESCRIPTION of `file`: when the file was begun, and by which server.
    file:       that of the position; for a position at the start of a file, the file before it, if that was read.
    begin, end: the trace: the last transaction before the position and what followed it, or as much of its end as fits
                into TRACE_BYTES. Equal where nothing before the position was read.
    crc:        of the trace's events, in order (event_headers.folded).
    """

    format_crc: Natural
    file: str
    begin: Natural = 0
    end: Natural = 0
    crc: Natural = 0

    @property
    def traced(self) -> bool:
        return self.end > self.begin


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A position from which an extractor can resume, with what it must know there.

    gtid_set:     the GTIDs executed before this position in the server's own text form; "" where unknown.
    server:       identity of the server that counted this position: its server_uuid (MySQL) or
                  "server_id=<n>" (MariaDB).
    watermark_us: every transaction before this position belongs to a window before or at this time, in
                  microseconds UTC; the running maximum of commit times, never ahead of the clocks of server and meta.
    floor_us:     if clocks were ahead: windows after this position begin no earlier than the one that holds this
                  time, though the watermark was taken back. Below the watermark it means nothing.
    fingerprint:  of the log before this position; None if unknown.
    """

    position: Position
    gtid_set: str = ""
    server: str = ""
    watermark_us: TimeUs = 0
    fingerprint: Fingerprint | None = None
    floor_us: TimeUs = 0

    def distrusted(self) -> Checkpoint:
        """The same place, up to which nothing is known to be complete: its watermark came from a wrong clock."""
        return replace(self, watermark_us=0, floor_us=max(self.floor_us, self.watermark_us))
