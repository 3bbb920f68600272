"""Rows of a target read back by the compiled reader, and compared with what they should be as Arrow columns.

It finds rows that are as they should be, and nothing else: whoever calls asks the server about all others. So it must
keep true only that a row which is found here has the value of every column and the version that the server's own
comparison (`compare`) would find equal. A table is compared here if `readable` says so, for all of its rows.

Keys are asked for by one range where they lie so densely in it that the range cannot have many other rows, else by
their values.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from cdc_core.model.merged_columns import MergedOp
from cdc_core.model.places import at_places
from cdc_core.model.row_versions import version_bytes
from cdc_core.model.schema import BINARY_BASES, INTEGER_BYTES, TEXT_BASES, Column, ColumnType, TableSchema
from cdc_core.model.staged_columns import LITERAL, OP, lacking
from cdc_core.model.version import VERSION_BYTES, VERSION_COLUMN
from cdc_core.mysql.connections import SafeConnection
from cdc_core.targets.reading.table_facts import TableFacts, table_name
from cdc_core.targets.writing.load import Layout, target_name

RANGE_ROWS = 4
"""A range is read if it cannot hold more rows than this for each one that is asked for."""
KEYS_AT_ONCE = 900
"""Fewer than MariaDB makes a subquery of, and than MySQL looks up without giving up for lack of memory."""
_ONE_CODE_CHARSETS = frozenset({"utf8mb4", "utf8mb3", "utf8", "latin1", "ascii"})
"""In these a text has one form in bytes: equal texts are equal bytes."""
_VERSION = Column(VERSION_COLUMN, ColumnType("varbinary", length=VERSION_BYTES))
Mask = npt.NDArray[np.bool_]


def readable(facts: TableFacts, rows: pa.Schema, layout: Layout) -> bool:
    """Whether rows of a table are compared here: its primary key is one whole number, its rows have their versions, and
    equal values of each column are equal to the server, too."""
    if facts.keyless or facts.beside or len(layout.key) != 1:
        return False
    key = facts.by_name[layout.key[0].lower()]
    primary = [unique_key for unique_key in facts.unique_keys if unique_key.name == "PRIMARY"]
    if not primary or not primary[0].whole or primary[0].columns != (key.name.lower(),):
        return False
    if key.type.base not in INTEGER_BYTES:
        return False
    return all(_is_plain(rows.field(name).type, facts.by_name[name.lower()].type) for name in layout.columns)


def _is_plain(loaded: pa.DataType, there: ColumnType) -> bool:
    """Whether a value of this type, as the reader has the column, is equal to the column's value if the arrays say so.
    Not for types that have several texts or bytes for one value, or that round what is loaded."""
    base = there.base
    if pa.types.is_dictionary(loaded):
        loaded = loaded.value_type
    whole = bool(pa.types.is_integer(loaded) or (pa.types.is_decimal128(loaded) and loaded.scale == 0))
    if base in INTEGER_BYTES or base == "year":
        return whole
    if base == "bit":
        return bool(pa.types.is_boolean(loaded)) if (there.length or 1) == 1 else whole
    if base == "decimal":
        return bool(pa.types.is_decimal128(loaded) and pa.types.is_decimal128(there.arrow))
    if base in ("float", "double"):
        return there.precision is None and bool(loaded == there.arrow)
    if base == "date":
        return bool(loaded == pa.date32())
    if base in ("datetime", "timestamp"):
        return bool(pa.types.is_timestamp(loaded))
    if base in BINARY_BASES:
        return bool(pa.types.is_binary(loaded))
    if base in TEXT_BASES or base in ("enum", "set"):
        # An ENUM with the label '' has two values of one text.
        plain = there.charset in _ONE_CODE_CHARSETS and not (base == "enum" and "" in there.labels)
        return plain and bool(pa.types.is_string(loaded))
    return base == "json" and bool(pa.types.is_string(loaded))


def as_expected(connection: SafeConnection, facts: TableFacts, rows: pa.RecordBatch, layout: Layout) -> Mask:
    """For each row, whether the target was found to have it in this version with these values, or not to have it any
    more; False for the others, whatever they are. `rows` are what a write takes, of a table that is `readable`.

    Raises what TableReader.batches raises.
    """
    from cdc_core.results import TableReader  # its kernels take about a second to load

    nothing = np.zeros(rows.num_rows, bool)
    columns = tuple(_column(facts, name) for name in layout.columns)
    try:
        expected = [
            _as_read(rows.column(name), column.type.arrow) for name, column in zip(layout.columns, columns, strict=True)
        ]
    except pa.ArrowInvalid:  # a value that the column cannot hold
        return nothing
    key_at = layout.columns.index(layout.key[0])
    asked = np.flatnonzero(_is_valid(expected[key_at]) & ~_has_literal(rows))
    keys = expected[key_at].take(pa.array(asked)).to_numpy(zero_copy_only=False)
    order = np.argsort(keys, kind="stable")
    asked, keys = asked[order], keys[order]
    if not len(keys) or (keys[1:] == keys[:-1]).any():
        return nothing
    expectation = _Expectation(rows, layout, columns, (*expected, version_bytes(rows)))
    there, equal = nothing.copy(), nothing.copy()
    reader = TableReader(connection, TableSchema(facts.database, facts.table, (*columns, _VERSION)))
    for condition in _conditions(target_name(facts, layout.key[0]), keys):
        for batch in reader.batches(f"FROM {table_name(facts)} FORCE INDEX (PRIMARY) WHERE {condition}"):
            read = batch.column(key_at).to_numpy(zero_copy_only=False)
            place = np.minimum(np.searchsorted(keys, read), len(keys) - 1)
            mine = keys[place] == read
            if not mine.all():
                batch, place = batch.filter(pa.array(mine)), place[mine]
            at = asked[place]
            there[at] = True
            equal[at] = expectation.equal(at, batch)
    gone = nothing.copy()
    gone[asked] = True
    removed = np.asarray(pc.not_equal(rows.column(OP).cast(pa.string()), MergedOp.UPSERT))
    return np.where(removed, gone & ~there, equal)


def _column(facts: TableFacts, name: str) -> Column:
    there = facts.by_name[name.lower()]
    return Column(there.name, there.type, there.nullable)


def _as_read(values: pa.Array, kind: pa.DataType) -> pa.Array:
    """Values in the type that the reader gives. Raises pa.ArrowInvalid for a value that it does not hold exactly."""
    if values.type == kind:
        return values
    if pa.types.is_dictionary(values.type):
        values = values.cast(values.type.value_type)
    if pa.types.is_timestamp(kind):  # the same moment, whatever the zone in which it is shown
        return values.cast(pa.timestamp("us", values.type.tz)).view(pa.int64()).view(kind)
    return values.cast(kind)


def _is_valid(values: pa.Array) -> Mask:
    return np.asarray(values.is_valid())


def _has_literal(rows: pa.RecordBatch) -> Mask:
    """Rows with a value that its Arrow type does not hold."""
    at = rows.schema.get_field_index(LITERAL)
    return np.zeros(rows.num_rows, bool) if at < 0 else _is_valid(rows.column(at))


def _conditions(key: str, keys: npt.NDArray[np.integer]) -> Iterator[str]:
    """Rows with these keys, which ascend; perhaps others, but not many."""
    low, high = int(keys[0]), int(keys[-1])
    if high - low < RANGE_ROWS * len(keys):
        yield f"{key} BETWEEN {low} AND {high}"
        return
    for first in range(0, len(keys), KEYS_AT_ONCE):
        yield f"{key} IN ({', '.join(map(str, keys[first : first + KEYS_AT_ONCE].tolist()))})"


class _Expectation:
    """What rows should be: their values as the reader gives them, the version last."""

    def __init__(
        self, rows: pa.RecordBatch, layout: Layout, columns: Sequence[Column], expected: Sequence[pa.Array]
    ) -> None:
        self._expected = expected
        self._enums = frozenset(at for at, column in enumerate(columns) if column.type.base == "enum")
        index, sets = lacking(rows)
        self._shape = np.asarray(index.fill_null(len(sets)))
        self._lacking = [
            np.array([*(name in absent for absent in sets), False]) if any(name in names for names in sets) else None
            for name in layout.columns
        ]

    def equal(self, at: npt.NDArray[np.int64], read: pa.RecordBatch) -> Mask:
        """Which of the read rows have the values of the rows `at`. Values that a row lacks are not compared."""
        found = ~_has_literal(read)
        for number, expected in enumerate(self._expected):
            values = read.column(number)
            mine = at_places(expected, at)
            unlike = None if mine.equals(values) else _unlike(mine, values)
            if number in self._enums:
                # The error value, which no text can be loaded as.
                error = np.asarray(pc.fill_null(pc.equal(values, ""), False))
                unlike = error if unlike is None else unlike | error
            if unlike is None:
                continue
            shapes = self._lacking[number] if number < len(self._lacking) else None
            found &= ~unlike if shapes is None else ~unlike | shapes[self._shape[at]]
        return found


def _unlike(mine: pa.Array, theirs: pa.Array) -> Mask:
    equal = pc.fill_null(pc.equal(mine, theirs), False)
    return ~np.asarray(pc.or_(equal, pc.and_(pc.is_null(mine), pc.is_null(theirs))))
