"""Row images that do not hold every value (binlog_row_image MINIMAL, NOBLOB, FULL_NODUP): what stands for the rest.

An update's after image leaves out what did not change: its before image has it, or else the value is absent, which is
not null. An INSERT leaves out what it left to a literal default; expressions are logged. The image of a delete and the
one before an update must hold the key, and all columns where there is no key, or nobody could tell which row it is.
MariaDB leaves virtual columns out even where they change, so that no older value may stand for one that is absent.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from cdc_core.binlog import scan
from cdc_core.binlog.rows_event import INSERT, UPDATE
from cdc_core.errors import Refused
from cdc_core.model.schema import Column, TableSchema
from cdc_core.model.staged import absent_text

Bools = npt.NDArray[np.bool_]

Defaults = Callable[[Sequence[str]], Mapping[str, str | None]]
"""Default of each named column as the server shows it: text, None for NULL; hex of bytes, seconds of a TIMESTAMP,
the number of a BIT. It raises where it cannot know them."""


@dataclass(frozen=True, slots=True, eq=False)
class Group:
    """Events of one kind with one pair of bitmaps. present: columns of the (before) image; after: of the last one.

    differences: after images of JSON may be differences from the before image.
    """

    events: npt.NDArray[np.int64]
    kind: int
    differences: bool
    bitmaps: tuple[bytes, bytes]
    present: Bools
    after: Bools

    @property
    def known(self) -> Bools:
        """Columns whose value after the change some image holds."""
        found: Bools = self.present | self.after
        return found

    @property
    def whole(self) -> bool:
        return bool(self.present.all() and self.after.all()) and not self.differences

    def names(self, schema: TableSchema, lacking: Bools) -> list[Column]:
        return [column for column, there in zip(schema.columns, lacking, strict=True) if not there]

    def omitted(self, schema: TableSchema) -> list[str]:
        """Columns that take their default: the log has no value of them."""
        if self.kind != INSERT:
            return []
        return [column.name for column in self.names(schema, self.known) if not column.generated]

    def absent(self, schema: TableSchema) -> str | None:
        after = self.names(schema, self.known)
        if self.kind == INSERT:
            after = [column for column in after if column.generated]
        before = self.names(schema, self.present) if self.kind == UPDATE else []
        return absent_text([column.name for column in after], [column.name for column in before])


def groups_of(
    kind: npt.NDArray[np.uint8],
    shape: npt.NDArray[np.int32],
    differences: Bools,
    bitmaps: Sequence[tuple[bytes, bytes]],
    columns: int,
) -> list[Group]:
    """The events by form, kind and bitmaps."""
    number = shape.astype(np.int64) * 8 + differences * 4 + kind
    found = []
    for one in np.unique(number):
        present_bits, after_bits = bitmaps[int(one) >> 3]
        present = scan.present_columns(present_bits, columns)
        after = scan.present_columns(after_bits or present_bits, columns)
        events, pair = np.flatnonzero(number == one), (present_bits, after_bits)
        found.append(Group(events, int(one) & 3, bool(one & 4), pair, present, after))
    return found


def require_identity(schema: TableSchema, group: Group, where: str) -> None:
    """Refused (binlog.row_image) where an image does not tell which row it is."""
    if group.kind == INSERT:
        needed, there = set(schema.key), group.known
    else:
        needed = set(schema.key) or {column.name for column in schema.columns if not column.generated}
        there = group.present
    lacking = [column.name for column in group.names(schema, there) if column.name in needed]
    if lacking:
        raise Refused(
            f"Row images of {schema.name} lack {', '.join(lacking)}, without which nobody can tell which row changed.",
            where=where,
            code="binlog.row_image",
            remedy="SET GLOBAL binlog_row_image = FULL on the source (sessions keep the old value until they "
            "reconnect), or give the table a primary key; then start after this transaction with a full sync of it",
        )


def find(
    groups: Sequence[Group],
    images: scan.Images,
    shape_of: Callable[[Group], scan.Shape],
    rows: scan.Longs,
    columns: int,
) -> scan.Places | None:
    """As scan.find, for groups of several shapes: a value that is in no image has the length of a null."""
    first = np.cumsum(rows) - rows
    update = np.repeat(images.kind == UPDATE, rows)
    number = np.cumsum(update) - 1
    total, updates = len(update), int(update.sum())
    offset, length = np.zeros((columns, total), np.int64), np.full((columns, total), -1, np.int32)
    before_offset, before_length = np.zeros((columns, updates), np.int64), np.full((columns, updates), -1, np.int32)
    before_end = np.zeros(updates, np.int64)
    for group in groups:
        events, counts = group.events, rows[group.events]
        found = scan.find(images.of(events), shape_of(group), int(counts.sum()))
        if found is None:
            return None
        at = np.repeat(first[events] - (np.cumsum(counts) - counts), counts) + np.arange(int(counts.sum()))
        now = np.ix_(np.flatnonzero(group.after), at)
        offset[now], length[now] = found.offset, found.length
        if group.kind == UPDATE:
            was = np.ix_(np.flatnonzero(group.present), number[at])
            before_offset[was], before_length[was] = found.before_offset, found.before_length
            before_end[number[at]] = found.before_end
            same = np.flatnonzero(group.present & ~group.after)
            now, was = np.ix_(same, at), np.ix_(same, number[at])
            offset[now], length[now] = before_offset[was], before_length[was]
    return scan.Places(rows, offset, length, before_offset, before_length, np.flatnonzero(update), before_end)


def differing(
    groups: Sequence[Group], buffer: scan.Bytes, places: scan.Places, rows: scan.Longs, json: int
) -> scan.Longs:
    """The updates (by their number) whose after image of a JSON column, the `json`-th of the table, is a difference.

    Behind the before image stands a byte, 1 where a bit for each JSON column of the table follows.
    """
    event_of_row = np.repeat(np.arange(len(rows)), rows)
    events = [group.events for group in groups if group.differences]
    if not events:
        return np.zeros(0, np.int64)
    update = np.flatnonzero(np.isin(event_of_row[places.before_row], np.concatenate(events)))
    at = places.before_end[update]
    marked = buffer[at] == 1
    update, at = update[marked], at[marked]
    found: scan.Longs = update[buffer[at + 1 + (json >> 3)] >> (json & 7) & 1 > 0]
    return found


def with_default(column: Column, values: pa.Array, rows: Bools, default: str | None) -> tuple[pa.Array, str | None]:
    """The column with its default in `rows` (null until now), and the default's exact text where no Arrow type
    holds it."""
    if default is None:
        return values, None
    kind = column.type.arrow
    if column.type.base == "timestamp":
        seconds, _, fraction = default.partition(".")
        if not int(seconds):
            return values, "0000-00-00 00:00:00" + ("." + "0" * column.type.fsp if column.type.fsp else "")
        scalar = pa.scalar(int(seconds) * 1_000_000 + int(fraction.ljust(6, "0")[:6]), pa.int64()).cast(kind)
    elif pa.types.is_binary(kind):
        scalar = pa.scalar(bytes.fromhex(default), kind)
    else:
        try:
            scalar = pa.scalar(default).cast(kind)
        except pa.ArrowInvalid:
            return values, default
    return pc.if_else(pa.array(rows), scalar, values), None
