"""The version of a row, and the one comparison that decides whether a change may touch it (G8 of docs/guarantees.md).

A version is bytes, kept in the target beside the row and in the tombstone of a deleted key:

    commit_ts_us   8 bytes, big-endian
    seq            8 bytes, big-endian     `_cdc_seq`
    row            8 bytes, big-endian     `_cdc_row`
    source         UTF-8 text              `_cdc_source`
    origin         a zero byte, 8 letters  of rows that several source tables feed: which one (see ORIGIN)

Two changes of one source compare by (seq, row): the order of its log, whatever its clock did. Changes of different
sources compare by (commit_ts_us, source). Empty bytes mean a row that Lockstep never wrote, older than all.
Source and origin are one name here. Equal counts as newer, so that writing a change again is the same as writing it
once.

Between sources the order is only as good as their clocks: when a source's clock steps back, and another source
wrote the same key in between, there is no order that both rules agree on. Sources that share keys need a clock
that does not run backwards (docs/architecture.md).

The same comparisons in SQL: targets/writing/guard_sql.py.
"""

from __future__ import annotations

import hashlib
import struct
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

VERSION_COLUMN = "_cdc_version"
"""The target's column for the version."""
VERSION_PATTERN = rf".*\.{VERSION_COLUMN}"
"""For `tables.columns.exclude`, where sources have been targets: the column is Lockstep's, and no row lacks
anything."""
VERSION_BYTES = 84
"""Width of the VARBINARY column: 24 bytes of numbers and a source name, which has at most 48 (config.NAME)."""
ORIGIN_BYTES = 8
"""A name's length, after its zero byte: a hash of the source and its table. Only tables that several source tables feed
have origins. Rows that two of them have under one key are two rows, and the target can hold only one. A version that
was taken over (targets/bookkeeping/takeover.py), whose commit time is 0, says none: other tables feed this one now."""
TAKEN_OVER = bytes(8)
"""The commit time of such a version."""
_NUMBERS = struct.Struct(">qqq")
_SEQ = 8
_SOURCE = 24
SHORTEST_WITH_ORIGIN = _SOURCE + 1 + 1 + ORIGIN_BYTES
"""The shortest version that says its origin: a source's name is not empty."""


@dataclass(frozen=True, slots=True)
class Version:
    """A version in parts. All numbers are 0 or more, which makes byte order their order."""

    commit_ts_us: int
    seq: int
    row: int
    source: str
    origin: str = ""


def encode(version: Version) -> bytes:
    origin = b"\0" + version.origin.encode() if version.origin else b""
    return _NUMBERS.pack(version.commit_ts_us, version.seq, version.row) + version.source.encode() + origin


def decode(raw: bytes) -> Version:
    """The parts of a version that is not empty."""
    commit_ts_us, seq, row = _NUMBERS.unpack_from(raw)
    source, _, origin = raw[_SOURCE:].decode().partition("\0")
    return Version(commit_ts_us, seq, row, source, origin)


def origin_name(source: str, table: str) -> str:
    """The origin of the rows of a source's table (`database.table`)."""
    return hashlib.sha256(f"{source}/{table}".encode()).hexdigest()[:ORIGIN_BYTES]


def other_origin(a: bytes, b: bytes) -> bool:
    """Whether both versions say their origins, and these differ."""
    return origin_of(a) != origin_of(b) and b"" not in (origin_of(a), origin_of(b))


def origin_of(raw: bytes) -> bytes:
    """The origin that a version says; b"" if it says none."""
    # Shorter ones have numbers there, and longer ones without an origin a name, which holds no zero byte.
    said = len(raw) >= SHORTEST_WITH_ORIGIN and raw[-ORIGIN_BYTES - 1] == 0 and raw[:_SEQ] != TAKEN_OVER
    return raw[-ORIGIN_BYTES:] if said else b""


def name_in(raw: bytes) -> bytes:
    """The source and origin that a version says: those of one name are in the order of one log."""
    return raw[_SOURCE:]


def other_names(a: pa.BinaryArray, b: pa.BinaryArray) -> pa.BooleanArray:
    """Whether the names in both versions of each pair differ; False where one is null."""
    names_a, names_b = (pc.binary_slice(versions, _SOURCE, VERSION_BYTES) for versions in (a, b))
    return pc.fill_null(pc.not_equal(names_a, names_b), False)


def encode_numbers(
    commit_ts_us: npt.NDArray[np.int64], seq: npt.NDArray[np.int64], row: npt.NDArray[np.int64]
) -> npt.NDArray[np.uint8]:
    """The leading 24 bytes of many versions: shape (n, 24)."""
    table = np.empty((len(seq), 3), dtype=">i8")
    table[:, 0], table[:, 1], table[:, 2] = commit_ts_us, seq, row
    return table.view(np.uint8).reshape(len(seq), _SOURCE)


def newer_or_equal(a: bytes, b: bytes) -> bool:
    """Whether a change of version `a` may replace what has version `b`."""
    if a[_SOURCE:] == b[_SOURCE:]:
        return a[_SEQ:_SOURCE] >= b[_SEQ:_SOURCE]
    return a[:_SEQ] + a[_SOURCE:] >= b[:_SEQ] + b[_SOURCE:]


def newer_or_equal_each(a: pa.BinaryArray, b: pa.BinaryArray) -> pa.BooleanArray:
    """newer_or_equal of many pairs; null where `b` is. No `a` is null or empty."""
    if b.null_count == len(b):
        return pa.nulls(len(b), pa.bool_())
    # Empty bytes are older than all: a version is newer than these, as it is than itself. They cannot be sliced.
    known = pc.if_else(pc.greater(pc.fill_null(pc.binary_length(b), 0), 0), b, a)
    names_a, names_b = pc.binary_slice(a, _SOURCE, VERSION_BYTES), pc.binary_slice(known, _SOURCE, VERSION_BYTES)
    newer = pc.greater_equal(pc.binary_slice(a, _SEQ, _SOURCE), pc.binary_slice(known, _SEQ, _SOURCE))
    of_one_log = pc.equal(names_a, names_b)
    if of_one_log.false_count:
        by_clock = pc.greater_equal(
            pc.binary_join_element_wise(pc.binary_slice(a, 0, _SEQ), names_a, b""),
            pc.binary_join_element_wise(pc.binary_slice(known, 0, _SEQ), names_b, b""),
        )
        newer = pc.if_else(of_one_log, newer, by_clock)
    return pc.if_else(b.is_valid(), newer, pa.scalar(None, pa.bool_()))


def latest_places(versions: pa.BinaryArray) -> dict[str, int]:
    """The greatest `_cdc_seq` of each source's versions. Nulls and empty bytes say nothing."""
    known = versions.filter(pc.fill_null(pc.greater(pc.binary_length(versions), 0), False))
    names = pc.binary_slice(known, _SOURCE, VERSION_BYTES)
    found: dict[str, int] = {}
    for name in pc.unique(names):
        seqs = pc.binary_slice(known.filter(pc.equal(names, name)), _SEQ, _SEQ + 8)
        source = name.as_py().partition(b"\0")[0].decode()
        found[source] = max(found.get(source, 0), int.from_bytes(pc.max(seqs).as_py()))
    return found
