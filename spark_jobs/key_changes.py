"""Each change under the keys that it touches: once, and a change of its key a second time as the delete of the old one.

Bookkeeping that it adds: `_cdc_side` (1 for the delete of the old key), `_cdc_arrived` (the change brings its key to
life), `_cdc_inherits` (a change of the key that lacks values, which are under the old one), `_cdc_lost` (1 if a
change does not have its key), `_cdc_shard_unknown` (a change of a shard key, or a delete, does not have the old one).
`_cdc_lacks`, which it expects, names the columns without a value; for the old side, those of the before image.
"""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql import types as T  # noqa: N812

from cdc_core.model.merged import KEY_CHAIN, ORIGIN, SHARD_UNKNOWN
from cdc_core.model.staged import (
    BEFORE,
    BEFORE_MARK,
    DELETE,
    INSERT,
    LITERAL,
    OP,
    ROW,
    SEQ,
    SNAPSHOT,
    SOURCE,
    TS,
    UPDATE,
)
from spark_jobs.columns import c

SIDE, ARRIVED, INHERITS, LOST, LACKS = "_cdc_side", "_cdc_arrived", "_cdc_inherits", "_cdc_lost", "_cdc_lacks"
COUNTS = ("_cdc_changes", "_cdc_key_changes", "_cdc_truncates", LOST)
"""Counts of what a merge makes one row from: its sides, second sides and truncates among them, those without their
key."""

NO_LABEL = "\0" * 256
"""Labels of an ENUM have at most 255 characters, and may be a NUL."""
NO_TEXT = "\0" * 257
"""Before the hexadecimal digits of bytes that are not text of their character set."""


def exact(kind: T.DataType, name: str, *, before: bool = False) -> Column:
    """A key column as it is compared: by its text, if the type has values that it cannot hold."""
    value = c(BEFORE, name) if before else c(name)
    literal = c(LITERAL)[(BEFORE_MARK if before else "") + name]
    if isinstance(kind, T.DateType | T.TimestampType | T.TimestampNTZType):
        return F.coalesce(literal, value.cast("string"))
    if isinstance(kind, T.StringType):
        # An ENUM's error value, which has the text of its label ''; bytes that are not text have no value.
        text = F.coalesce(value, F.concat(F.lit(NO_TEXT), literal))
        return F.when((value == "") & literal.isNotNull(), F.lit(NO_LABEL)).otherwise(text)
    return value


def keys(columns: T.StructType, key: Sequence[str]) -> list[Column]:
    """The key columns as they are compared: `_cdc_key0` and so on."""
    return [exact(columns[name].dataType, name).alias(name_) for name, name_ in zip(key, key_names(key), strict=True)]


def key_names(key: Sequence[str]) -> list[str]:
    return [f"_cdc_key{at}" for at in range(len(key))]


def lacks(name: str, *inside: str) -> Column:
    """Whether a change lacks a column; null-safe."""
    return F.coalesce(F.array_contains(c(*inside, LACKS), name), F.lit(False))


def split(changes: DataFrame, columns: T.StructType, key: Sequence[str], moving: Sequence[str] = ()) -> DataFrame:
    """See the module's docstring. moving: shard keys outside the key. `_cdc_key_chain` goes with the own side."""
    unchanged = F.lit(True)
    for name in key:
        kind = columns[name].dataType
        unchanged = unchanged & exact(kind, name).eqNullSafe(exact(kind, name, before=True))
    key_change = (c(OP) == UPDATE) & c(BEFORE).isNotNull() & ~unchanged
    sides = changes.withColumn("_cdc_key_change", key_change).withColumn(
        SIDE, F.explode(F.when(c("_cdc_key_change"), F.array(F.lit(0), F.lit(1))).otherwise(F.array(F.lit(0))))
    )
    old = c(SIDE) == 1
    lost, shard_unknown = F.lit(False), F.lit(False)
    for name in key:
        lost = lost | lacks(name) | lacks(BEFORE_MARK + name)
    for name in moving:
        unsaid = lacks(BEFORE_MARK + name)
        moved = unsaid & ~lacks(name) & ~c("_cdc_key_change")
        gone = (c(OP) == DELETE) & lacks(name)
        shard_unknown = shard_unknown | F.when(old, unsaid).when(c(OP) == UPDATE, moved).otherwise(gone)
    own = F.filter(c(LACKS), lambda name: ~F.startswith(name, F.lit(BEFORE_MARK)))
    before = F.transform(F.filter(c(LACKS), lambda name: F.startswith(name, F.lit(BEFORE_MARK))), _unmarked)
    literal = F.when(old, old_literal()).otherwise(new_literal())
    return sides.select(
        *[F.when(old, c(BEFORE, field.name)).otherwise(c(field.name)).alias(field.name) for field in columns],
        c(BEFORE),
        F.when(old, F.lit(DELETE)).otherwise(c(OP)).alias(OP),
        *[c(name) for name in (TS, SOURCE, SEQ, ROW, *([ORIGIN] if ORIGIN in changes.columns else []))],
        F.when(F.size(literal) > 0, literal).alias(LITERAL),
        F.when(old, before).otherwise(own).alias(LACKS),
        *([F.when(~old, c(KEY_CHAIN)).alias(KEY_CHAIN)] if KEY_CHAIN in changes.columns else []),
        F.when(~old & lost, F.lit(1)).otherwise(F.lit(0)).alias(LOST),
        shard_unknown.alias(SHARD_UNKNOWN),
        (c("_cdc_key_change") & (F.size(own) > 0)).alias(INHERITS),
        c(SIDE),
        (c(OP).isin(INSERT, SNAPSHOT) | (c("_cdc_key_change") & ~old)).alias(ARRIVED),
    )


def new_literal() -> Column:
    """The literals of the image after (of a delete: before)."""
    return F.map_filter(c(LITERAL), lambda name, _: ~F.startswith(name, F.lit(BEFORE_MARK)))


def old_literal() -> Column:
    """The literals of an update's image before, by the columns' names."""
    before = F.map_filter(c(LITERAL), lambda name, _: F.startswith(name, F.lit(BEFORE_MARK)))
    return F.transform_keys(before, lambda name, _: _unmarked(name))


def _unmarked(name: Column) -> Column:
    return F.substring(name, len(BEFORE_MARK) + 1, 2**31 - 1)
