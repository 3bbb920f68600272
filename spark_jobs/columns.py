"""Staged columns as Spark sees them, and one set of columns for files of different definitions.

Spark has no unsigned types: it reads them as the next wider signed one, BIGINT UNSIGNED as decimal(20,0); values
stay exact. Columns are those that the source tables have now; a column that was added later is null in older rows, a
column that was dropped is left out. A type that changed is widened where every value survives, else refused.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import reduce

import pyarrow as pa
from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it
from pyspark.sql import types as T  # noqa: N812

from cdc_core.errors import Refused
from cdc_core.model.schema import TableSchema
from cdc_core.model.staged import BEFORE, BOOKKEEPING

_SIMPLE: dict[pa.DataType, T.DataType] = {
    pa.int8(): T.ByteType(), pa.int16(): T.ShortType(), pa.int32(): T.IntegerType(), pa.int64(): T.LongType(),
    pa.uint8(): T.ShortType(), pa.uint16(): T.IntegerType(), pa.uint32(): T.LongType(),
    pa.uint64(): T.DecimalType(20, 0), pa.float32(): T.FloatType(), pa.float64(): T.DoubleType(),
    pa.bool_(): T.BooleanType(), pa.string(): T.StringType(), pa.binary(): T.BinaryType(), pa.date32(): T.DateType(),
    pa.timestamp("us"): T.TimestampNTZType(), pa.timestamp("us", tz="UTC"): T.TimestampType(),
}  # fmt: skip
_INTEGERS = (T.ByteType, T.ShortType, T.IntegerType, T.LongType)
_DIGITS = {T.ByteType: 3, T.ShortType: 5, T.IntegerType: 10, T.LongType: 19}


def spark_type(kind: pa.DataType) -> T.DataType:
    """The type under which Spark reads a staged column."""
    if pa.types.is_dictionary(kind):
        return spark_type(kind.value_type)
    if pa.types.is_decimal(kind):
        return T.DecimalType(kind.precision, kind.scale)
    if pa.types.is_list(kind):
        return T.ArrayType(spark_type(kind.value_type))
    if pa.types.is_map(kind):
        return T.MapType(spark_type(kind.key_type), spark_type(kind.item_type))
    return _SIMPLE[kind]


def staged_struct(schema: TableSchema) -> T.StructType:
    """The Spark schema of the staged files of a definition: nothing is inferred, so no footer is read for it."""
    row = [T.StructField(column.name, spark_type(column.type.arrow)) for column in schema.columns]
    notes = [T.StructField(field.name, spark_type(field.type)) for field in BOOKKEEPING]
    return T.StructType([*row, T.StructField(BEFORE, T.StructType(row)), *notes])


def c(*path: str) -> Column:
    """A column by its exact name, or a field of a struct, whatever characters the names have."""
    return F.col(".".join("`" + name.replace("`", "``") + "`" for name in path))


def unified(table: str, current: Sequence[TableSchema], all_schemas: Iterable[TableSchema]) -> T.StructType:
    """The row columns of the merged table. Raises Refused (spark.schema_conflict)."""
    names: dict[str, str] = {}
    for schema in current:
        for column in schema.columns:
            names.setdefault(column.name.lower(), column.name)
    kinds: dict[str, list[T.DataType]] = {name: [] for name in names}
    for schema in all_schemas:
        for column in schema.columns:
            if column.name.lower() in kinds:
                kinds[column.name.lower()].append(spark_type(column.type.arrow))
    return T.StructType([T.StructField(name, _widest(table, name, kinds[lower])) for lower, name in names.items()])


def _widest(table: str, column: str, kinds: Sequence[T.DataType]) -> T.DataType:
    def wider(a: T.DataType, b: T.DataType) -> T.DataType:
        found = _common(a, b)
        if found is None:
            raise Refused(
                f"The column {column} is {a.simpleString()} in some staged files and {b.simpleString()} in others.",
                where=table,
                code="spark.schema_conflict",
                remedy="apply the batches before the change of type and those after it in two runs, or re-sync the "
                "table",
            )
        return found

    return reduce(wider, kinds)


def _common(a: T.DataType, b: T.DataType) -> T.DataType | None:
    if a == b:
        return a
    if isinstance(a, _INTEGERS) and isinstance(b, _INTEGERS):
        return a if _DIGITS[type(a)] >= _DIGITS[type(b)] else b
    if {type(a), type(b)} == {T.FloatType, T.DoubleType}:
        return T.DoubleType()
    left, right = _as_decimal(a), _as_decimal(b)
    if left is not None and right is not None:
        scale = max(left.scale, right.scale)
        whole = max(left.precision - left.scale, right.precision - right.scale)
        return T.DecimalType(whole + scale, scale) if whole + scale <= 38 else None
    return None


def _as_decimal(kind: T.DataType) -> T.DecimalType | None:
    if isinstance(kind, T.DecimalType):
        return kind
    return T.DecimalType(_DIGITS[type(kind)], 0) if isinstance(kind, _INTEGERS) else None
