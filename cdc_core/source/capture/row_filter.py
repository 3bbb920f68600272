"""Filters the rows of a table by its conditions, using both images of a change.

The pipeline captures the table that `SELECT ... WHERE` would show on the source. So an update becomes a delete if only
the row before meets the conditions, an insert if only the row after does, and is left out if neither does. A condition
that is unknown, as with a null, is not met. A filter never guesses: it stops where it needs a value that the log does
not contain, or that its typed column cannot hold.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from functools import reduce

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from cdc_core.errors import UsageError
from cdc_core.model.block import TableRows
from cdc_core.model.condition import (
    ColumnComparison,
    ColumnName,
    Condition,
    Joined,
    Member,
    Not,
    Null,
    Value,
    columns_of,
    literals_of,
)
from cdc_core.model.schema import Column, ColumnType
from cdc_core.model.staged_columns import ABSENT, BEFORE_MARK, DELETE, INSERT, OP, TRUNCATE, absent_text, lacking
from cdc_core.source.capture.images import Images, unknown_value

Image = Mapping[str, pa.Array]
Bools = npt.NDArray[np.bool_]

_KERNELS: Mapping[str, Callable[..., pa.BooleanArray]] = {
    "==": pc.equal, "!=": pc.not_equal, "<": pc.less, "<=": pc.less_equal, ">": pc.greater, ">=": pc.greater_equal,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Filter:
    """conditions: all must be met. text: of the conditions, for messages."""

    conditions: tuple[Condition, ...]
    text: str

    def apply(self, part: TableRows) -> TableRows:
        """The rows that meet the conditions, with their `entry`.

        Raises UsageError (config.invalid) for a column that the table has not, or a value that its column cannot have;
        DataAtRisk (sink.unknown_value).
        """
        condition = self.conditions[0] if len(self.conditions) == 1 else Joined(True, self.conditions)
        names = {column.name for column in part.schema.columns}
        for name in columns_of(condition):
            if name not in names:
                raise self._wrong(part, f"the table has no column {name!r}, only {', '.join(sorted(names))}")
        for name, value in literals_of(condition):
            if part.schema.column(name).type.base == "year" and _is_short_year(value):
                raise self._wrong(part, f"{name} is a YEAR, and to a server {value!r} is another one than {value}")
        images = Images.of(part.rows, part.schema)
        columns = [part.schema.column(name) for name in dict.fromkeys(columns_of(condition))]
        images.require_known((column.name for column in columns), part, f"tables.rows ({self.text})")
        try:
            now = _met(condition, _numbers(images.after, columns))
            was = _met(condition, _numbers(images.before, columns)) & _bools(images.updated)
        except pa.ArrowException as error:
            raise self._wrong(part, str(error)) from None
        return _judged(part, images, now, was, self.text)

    def _wrong(self, part: TableRows, why: str) -> UsageError:
        return UsageError(
            f"The condition {self.text!r} does not fit {part.schema.name}: {why}.",
            where="tables.rows",
            code="config.invalid",
            remedy="fix the condition, or narrow its `match` to the tables that it fits",
        )


def _is_short_year(value: Value) -> bool:
    """A server takes 26 for 2026, 99 for 1999, and '0' for 2000."""
    return len(value) < 4 if isinstance(value, str) else 0 < value < 100


def _judged(part: TableRows, images: Images, now: Bools, was: Bools, text: str) -> TableRows:
    updated = _bools(images.updated)
    left, entered = was & ~now, updated & now & ~was
    kept = now | left | _bools(pc.equal(images.notes[OP], TRUNCATE))
    rows = part.rows
    if (left | entered).any():
        rows = _turned(part, images, left, entered, text).rows(part.schema)
    if kept.all():
        return replace(part, rows=rows)
    return replace(part, rows=rows.filter(pa.array(kept)), entry=part.entry[kept])


def _turned(part: TableRows, images: Images, left: Bools, entered: Bools, text: str) -> Images:
    """Updates whose row no longer meets the conditions become deletes; those whose row newly meets them, inserts."""
    gone, come = pa.array(left), pa.array(entered)
    ops = pc.if_else(gone, DELETE, pc.if_else(come, INSERT, images.notes[OP].cast(pa.string())))
    index, sets = lacking(part.rows)
    own = [[name for name in sorted(names) if not name.startswith(BEFORE_MARK)] for names in sets]
    old = [[name[len(BEFORE_MARK) :] for name in sorted(names) if name.startswith(BEFORE_MARK)] for names in sets]
    whole = pa.array([not names for names in own]).take(index) if sets else None
    if whole is not None and pc.any(pc.and_(come, pc.invert(whole))).as_py():
        names = next(names for names in own if names)
        raise unknown_value(part, f"a row newly meets {text}, and the log does not contain its {', '.join(names)}")
    absent = images.notes[ABSENT].cast(pa.string())
    if sets:
        texts = pa.array([absent_text(names) for names in old], pa.string())
        absent = pc.if_else(gone, texts.take(index), pc.if_else(come, None, absent))
    entries = images.literals
    before = pc.starts_with(entries.name, BEFORE_MARK).to_numpy(False)
    entries = entries.where(np.where(left[entries.row], before, before & ~entered[entries.row] | ~before))
    bare = pc.if_else(
        pa.array(left[entries.row]), pc.utf8_slice_codeunits(entries.name, len(BEFORE_MARK)), entries.name
    )
    after = {name: pc.if_else(gone, images.before[name], values) for name, values in images.after.items()}
    turned = replace(images, after=after, updated=pc.and_not(images.updated, pc.or_(gone, come)))
    turned = turned.with_notes(**{OP: ops.dictionary_encode(), ABSENT: absent.dictionary_encode()})
    return turned.with_literals(replace(entries, name=bare))


def _numbers(image: Image, columns: Sequence[Column]) -> Image:
    """The values of these columns as a server compares them: a FLOAT as a DOUBLE, and digits as a number."""
    return {column.name: _number(image[column.name], column.type) for column in columns}


def _number(values: pa.Array, kind: ColumnType) -> pa.Array:
    if values.type == pa.float32():
        return values.cast(pa.float64())
    if kind.base == "decimal" and pa.types.is_string(values.type):
        return values.cast(pa.decimal256(kind.precision, kind.scale))
    return values


def _bools(values: pa.BooleanArray) -> Bools:
    found: Bools = pc.fill_null(values, False).to_numpy(False)
    return found


def _met(condition: Condition, image: Image) -> Bools:
    return _bools(_holds(condition, image))


def _holds(condition: Condition, image: Image) -> pa.BooleanArray:
    """True, false, or null where it is unknown, as in SQL."""
    match condition:
        case Joined(every, parts):
            return reduce(pc.and_kleene if every else pc.or_kleene, (_holds(part, image) for part in parts))
        case Not(part):
            return pc.invert(_holds(part, image))
        case Null(column):
            return pc.is_null(image[column.name])
        case Member(column, values):
            have = image[column.name]
            scalars = [_scalar(value, have.type, column.name) for value in values]
            if pa.types.is_floating(have.type):  # is_in tells zeros of both signs apart
                return reduce(pc.or_, (pc.equal(have, scalar) for scalar in scalars))
            among = pa.array([scalar.as_py() for scalar in scalars], have.type)
            return pc.if_else(pc.is_valid(have), pc.is_in(have, among), None)
        case ColumnComparison(op, left, right):
            return _KERNELS[op](_side(left, right, image), _side(right, left, image))


def _side(one: ColumnName | Value, other: ColumnName | Value, image: Image) -> pa.Array | pa.Scalar:
    if not isinstance(one, ColumnName):
        assert isinstance(other, ColumnName)  # guaranteed by the grammar
        return _scalar(one, image[other.name].type, other.name)
    mine = image[one.name]
    if isinstance(other, ColumnName) and image[other.name].type != mine.type:
        raise pa.ArrowInvalid(f"{one.name} is {mine.type}, and {other.name} is {image[other.name].type}")
    return mine


def _scalar(value: Value, kind: pa.DataType, column: str) -> pa.Scalar:
    """A literal as a value of the column's type, exactly. Raises ArrowInvalid."""
    is_text = isinstance(value, str)
    try:
        if pa.types.is_boolean(kind) and value in (0, 1):
            return pa.scalar(bool(value))
        if pa.types.is_integer(kind) and isinstance(value, int):
            return pa.scalar(int(value), kind)
        if pa.types.is_decimal(kind) and not is_text:
            return pa.scalar(Decimal(value), kind)
        if pa.types.is_floating(kind) and not is_text:
            return pa.scalar(float(value), kind)
        if is_text and not (pa.types.is_primitive(kind) and not pa.types.is_temporal(kind)):
            return pa.scalar(value).cast(kind)
    except (pa.ArrowException, ArithmeticError, TypeError) as error:
        raise pa.ArrowInvalid(f"{_shown(value)} is not a value of {column}: {error}") from None
    raise pa.ArrowInvalid(f"{_shown(value)} is not a value of {column}, which is {kind}")


def _shown(value: Value) -> str:
    """As a condition writes it."""
    return repr(value) if isinstance(value, str) else str(value)
