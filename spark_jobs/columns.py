"""Staged columns as Spark sees them.

Spark has no unsigned types: it reads them as the next wider signed type, BIGINT UNSIGNED as decimal(20,0); values
stay exact.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it
from pyspark.sql import types as T  # noqa: N812

from cdc_core.model.schema import TableSchema
from cdc_core.model.staged import BEFORE, BOOKKEEPING, LITERAL

Work = Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]
"""What a worker does with the batches of a partition."""

_SIMPLE: dict[pa.DataType, T.DataType] = {
    pa.int8(): T.ByteType(), pa.int16(): T.ShortType(), pa.int32(): T.IntegerType(), pa.int64(): T.LongType(),
    pa.uint8(): T.ShortType(), pa.uint16(): T.IntegerType(), pa.uint32(): T.LongType(),
    pa.uint64(): T.DecimalType(20, 0), pa.float32(): T.FloatType(), pa.float64(): T.DoubleType(),
    pa.bool_(): T.BooleanType(), pa.string(): T.StringType(), pa.binary(): T.BinaryType(), pa.date32(): T.DateType(),
    pa.timestamp("us"): T.TimestampNTZType(), pa.timestamp("us", tz="UTC"): T.TimestampType(),
}  # fmt: skip


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


def map_in_arrow(rows: DataFrame, work: Work, schema: T.StructType | str) -> DataFrame:
    """DataFrame.mapInArrow of rows with literals and columns of any name.

    It would take `a.b` for a field, so numbers replace the names. Null literals become empty ones: Spark asks for a
    batch's size after each row, and then walks all null maps after the last other one (ListVector.setValueCount).
    """
    names = rows.columns
    none = F.create_map().cast(T.MapType(T.StringType(), T.StringType()))
    rows = rows.withColumn(LITERAL, F.coalesce(c(LITERAL), none))

    def named(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return work(batch.rename_columns(names) for batch in batches)

    return rows.toDF(*(f"c{number}" for number in range(len(names)))).mapInArrow(named, schema)
