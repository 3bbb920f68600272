"""Tables without a key: the changes of a run as whole rows that come and go, with their numbers.

An update is an old row that goes and a new one that comes; values of the new row that it did not log are as in the old.
The copies of equal rows that come and go are summed up within each batch, never across: a target may have some batches
of a run and lack the others, but has each whole or not at all. Equal rows have the same bits and exact texts.

A merged row is one copy that comes (u) or goes (d). `_cdc_seq` is where its batch begins, `_cdc_row` counts the copies.
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql import types as T  # noqa: N812

from cdc_core.model.batch import at_place
from cdc_core.model.merged import MergedOp
from cdc_core.model.position import seq_of_name
from cdc_core.model.run import MergeTable
from cdc_core.model.staged import BEFORE, BEFORE_MARK, DELETE, LITERAL, OP, ROW, SEQ, SOURCE, TRUNCATE, TS, UPDATE
from cdc_core.stage.layout import parse_copied
from spark_jobs.columns import c
from spark_jobs.key_changes import COUNTS, LACKS, SIDE, lacks, new_literal, old_literal

BATCH, NET = "_cdc_batch", "_cdc_net"
_TRUNCATE = "_cdc_truncate"
_OF_A_BATCH, _OF_SEVERAL = 5, 6
"""Pieces of the names of part files, and of compacted files."""


def batch_of_row(table: MergeTable) -> Column:
    """Where the batch of a staged row begins: as the name of its file says (stage.layout), or, in a file with rows of
    several batches, where the last of them begins that is not after the row. Copied rows are between the batches of
    the log that end and begin at their place: that is the order key that they have."""
    parts = F.split(F.col("_metadata.file_name"), "-")
    begins: dict[str, set[int]] = {}
    for file in table.files:
        if file.of_rows:
            source, _, place = file.batch_id.rpartition("/")
            begins.setdefault(source, set()).add(seq_of_name(place))
    found = F.when(F.size(parts) == _OF_A_BATCH, parts[2].cast("bigint"))
    for source, places in begins.items():
        known = F.array(*[F.lit(place).cast("bigint") for place in sorted(places)])
        last = F.array_max(F.filter(known, lambda place: place <= c(SEQ)))
        found = found.when((F.size(parts) == _OF_SEVERAL) & (c(SOURCE) == source), last)
    return found.otherwise(c(SEQ)).alias(BATCH)


def last_batches(table: MergeTable) -> dict[str, int]:
    """By source, where the last batch of the run that has changes of the table begins."""
    last: dict[str, int] = {}
    for file in table.files:
        source, _, place = at_place(file.batch_id).rpartition("/")
        seq = seq_of_name(place) - (parse_copied(file.path) is not None)
        last[source] = max(seq, last.get(source, seq))
    return last


def nets(changes: DataFrame, columns: T.StructType, *, absent: bool) -> DataFrame:
    """Each different row of each batch, with its net (`_cdc_net`, which may be 0) and COUNTS.

    changes: staged columns, the row's already unified to `columns`, and `_cdc_batch`. absent: some change lacks values.
    """
    names = columns.fieldNames()
    update = c(OP) == UPDATE
    literal, lost = new_literal(), F.lit(False)
    values = [c(name).alias(name) for name in names]
    if absent:
        none = F.create_map().cast(T.MapType(T.StringType(), T.StringType()))
        taken = F.map_filter(old_literal(), lambda name, _: update & F.array_contains(c(LACKS), name))
        literal = F.map_concat(F.coalesce(literal, none), F.coalesce(taken, none))
        values = [F.when(update & lacks(name), c(BEFORE, name)).otherwise(c(name)).alias(name) for name in names]
        unsaid = F.exists(c(LACKS), lambda name: ~update | F.startswith(name, F.lit(BEFORE_MARK)))
        lost = F.coalesce(unsaid, F.lit(False))
    old = [c(BEFORE, name).alias(name) for name in names]
    new_side = _side(F.when(c(OP) == DELETE, F.lit(-1)).otherwise(F.lit(1)), literal, values)
    both = F.array(new_side, _side(F.lit(-1), old_literal(), old))
    sides = changes.select(
        *[c(name) for name in (TS, SOURCE, BATCH)],
        F.when(c(OP) == TRUNCATE, F.lit(MergedOp.TRUNCATE)).alias(_TRUNCATE),
        lost.cast("int").alias(COUNTS[3]),
        F.posexplode(F.when(update, both).otherwise(F.array(new_side))).alias(SIDE, "_cdc_of"),
    )
    row = [_exact(field, "_cdc_of", "row").alias(f"_cdc_value{at}") for at, field in enumerate(columns)]
    counted = sides.groupBy(c(SOURCE), c(BATCH), c(_TRUNCATE), c("_cdc_of", "literal").alias(LITERAL), *row).agg(
        F.sum(c("_cdc_of", "net")).alias(NET),
        F.max(c(TS)).alias(TS),
        F.count(F.lit(1)).alias(COUNTS[0]),
        F.sum(c(SIDE)).cast("bigint").alias(COUNTS[1]),
        F.count(c(_TRUNCATE)).alias(COUNTS[2]),
        F.sum(F.when(c(SIDE) == 0, c(COUNTS[3]))).cast("bigint").alias(COUNTS[3]),
    )
    comes_or_goes = F.when(c(NET) > 0, F.lit(MergedOp.UPSERT)).otherwise(F.lit(MergedOp.DELETE))
    return counted.select(
        *[c(f"_cdc_value{at}").cast(field.dataType).alias(field.name) for at, field in enumerate(columns)],
        F.coalesce(c(_TRUNCATE), comes_or_goes).alias(OP),
        *[c(name) for name in (TS, SOURCE)],
        c(BATCH).alias(SEQ),
        F.map_from_entries(c(LITERAL)).alias(LITERAL),
        c(NET),
        *[c(name) for name in COUNTS],
    )


def _side(net: Column, literal: Column, row: list[Column]) -> Column:
    entries = F.when(F.size(literal) > 0, F.array_sort(F.map_entries(literal)))
    return F.struct(net.alias("net"), entries.alias("literal"), F.struct(*row).alias("row"))


def _exact(field: T.StructField, *inside: str) -> Column:
    """A value to group by. As numbers, 0.0 and -0.0 would be one group; their texts lead back to the same bits."""
    value = c(*inside, field.name)
    if isinstance(field.dataType, T.FloatType | T.DoubleType):
        return value.cast("string")
    if isinstance(field.dataType, T.ArrayType):
        return value.cast("array<string>")
    return value


def each_copy(rows: DataFrame) -> DataFrame:
    """A row for each copy that comes or goes."""
    numbers = F.explode(F.sequence(F.lit(0).cast("bigint"), F.abs(c(NET)) - 1)).alias(ROW)
    return rows.where(c(NET) != 0).select("*", numbers).drop(NET)


def copy_identity(merged: T.StructType) -> Column:
    """Identifies a merged copy among all others of the run by its values, batch and number, and a truncate, whose
    values are those of a row of nulls."""
    different = [field for field in merged if field.name not in (OP, TS)]
    values = [_exact(field).alias(f"v{at}") for at, field in enumerate(different)]
    return F.sha2(F.to_json(F.struct((c(OP) == MergedOp.TRUNCATE).alias("t"), *values)), 256)
