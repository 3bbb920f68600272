"""The rows of a range compared column by column: nearly all are equal, and those need neither a text nor a hash each.

    columns equal, in the order in which the servers sent the rows    the range is equal
    else: rows joined by their keys, then columns compared            the keys that differ, for `comparison` to judge

Values are compared as Arrow arrays where equal arrays mean equal canonical texts (`ColumnPiece.form`), else as those
texts. The servers compute no sums. Sending 1,000,000 rows of 5 columns costs a MariaDB 11.4 0.46 s of CPU; SHA-256 of
the same texts costs it 1.2 to 1.8 s, and needs equal canonical texts from both servers, in SQL, for each pair of types.

It must keep true that what is called equal here has equal canonical texts, and that every other key is reported: tests
compare it with canonical.row_texts.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from cdc_core.model.schema import Column
from cdc_core.model.staged_columns import LITERAL, LiteralEntries
from cdc_core.operations.verify.canonical import compared_texts, normal_form, row_texts

Form = tuple[pa.DataType, str]


@dataclass(frozen=True)
class ColumnPiece:
    """Rows of one table of a side. columns: those that are compared, in the order of all pieces, as this table declares
    them. key: which of them are the key, by index. errors: as in canonical.row_texts."""

    rows: pa.RecordBatch
    columns: Sequence[Column]
    key: Sequence[int]
    errors: Collection[str]

    @cached_property
    def keys(self) -> pa.StringArray:
        return row_texts(self.rows, [self.columns[at] for at in self.key], self.errors)

    @cached_property
    def texts(self) -> pa.StringArray:
        return row_texts(self.rows, self.columns, self.errors)

    def filter(self, mask: pa.BooleanArray) -> ColumnPiece:
        return ColumnPiece(self.rows.filter(mask), self.columns, self.key, self.errors)

    def form(self, at: int) -> Form | None:
        """Columns of the same form have equal canonical texts where `values` are equal; None: only texts compare."""
        column = self.columns[at]
        kind = self.rows.schema.field(column.name).type
        if column.name in self._literal_names or pa.types.is_nested(kind) or pa.types.is_dictionary(kind):
            return None
        return kind, normal_form(column.type)

    def values(self, at: int) -> pa.Array:
        """Floats as their bits: zeros of both signs are two values, and a NaN is equal to itself."""
        values = self.rows.column(self.columns[at].name)
        bits = {pa.float32(): pa.int32(), pa.float64(): pa.int64()}.get(values.type)
        return values if bits is None else values.view(bits)

    def canonical(self, at: int) -> pa.StringArray:
        return compared_texts(self.rows, self.columns[at], self.errors)

    @cached_property
    def _literal_names(self) -> frozenset[str]:
        if LITERAL not in self.rows.schema.names:
            return frozenset()
        literals = self.rows.column(LITERAL)
        if literals.null_count == len(literals):
            return frozenset()
        return frozenset(pc.unique(LiteralEntries.of(literals).name).to_pylist())


Pieces = Sequence[ColumnPiece]


def equal(source: Pieces, target: Pieces) -> bool:
    """Whether both have the same rows in the same order."""
    if _count(source) != _count(target):
        return False
    if not _count(source):
        return True
    return all(_equal_columns(source, target, at) for at in range(len(source[0].columns)))


def differing_keys(source: Pieces, target: Pieces) -> pa.StringArray | None:
    """The keys that do not have the same row on both sides; None where a side has a key twice, which says nothing of
    the other keys."""
    mine, theirs = _keys(source), _keys(target)
    if pc.count_distinct(mine).as_py() < len(mine) or pc.count_distinct(theirs).as_py() < len(theirs):
        return None
    there = pc.index_in(mine, value_set=theirs)
    missing = mine.filter(pc.is_null(there))
    surplus = theirs.filter(pc.invert(pc.is_in(theirs, value_set=mine)))
    both = pc.is_valid(there)
    at_source, at_target = pa.array(np.flatnonzero(both)), there.filter(both).cast(pa.int64())
    differs = np.zeros(len(at_source), bool)
    if len(at_source):
        for at in range(len(source[0].columns)):
            differs |= _differs(source, target, at, at_source, at_target)
    return pa.concat_arrays([missing, surplus, mine.take(at_source.filter(pa.array(differs)))])


def _count(pieces: Pieces) -> int:
    return sum(piece.rows.num_rows for piece in pieces)


def _keys(pieces: Pieces) -> pa.StringArray:
    return pa.concat_arrays([pa.array([], pa.string()), *(piece.keys for piece in pieces)])


def _shared_form(pieces: Pieces, at: int) -> bool:
    forms = {piece.form(at) for piece in pieces}
    return len(forms) == 1 and None not in forms


def _values(pieces: Pieces, at: int) -> pa.Array:
    return pa.concat_arrays([piece.values(at) for piece in pieces])


def _canonical(pieces: Pieces, at: int) -> pa.StringArray:
    return pa.concat_arrays([piece.canonical(at) for piece in pieces])


def _equal_columns(source: Pieces, target: Pieces, at: int) -> bool:
    if _shared_form([*source, *target], at):
        mine, theirs = (pa.chunked_array([piece.values(at) for piece in side]) for side in (source, target))
        if mine.equals(theirs):
            return True
    mine, theirs = (pa.chunked_array([piece.canonical(at) for piece in side]) for side in (source, target))
    return bool(mine.equals(theirs))


def _differs(
    source: Pieces, target: Pieces, at: int, at_source: pa.Int64Array, at_target: pa.Int64Array
) -> npt.NDArray[np.bool_]:
    """Where a column differs, for each pair of rows."""
    if _shared_form([*source, *target], at):
        found = _unlike(_values(source, at).take(at_source), _values(target, at).take(at_target))
        if not found.any():
            return found
    return _unlike(_canonical(source, at).take(at_source), _canonical(target, at).take(at_target))


def _unlike(mine: pa.Array, theirs: pa.Array) -> npt.NDArray[np.bool_]:
    unlike = pc.fill_null(pc.not_equal(mine, theirs), False)
    one_null = pc.not_equal(pc.is_null(mine), pc.is_null(theirs))
    found: npt.NDArray[np.bool_] = np.asarray(pc.or_(unlike, one_null))
    return found
