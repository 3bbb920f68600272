"""Whether a range of keys means the same rows on both sides, so that a table can be verified range by range.

Bounds are literals that the source's server has written (key_ranges); each server compares them with its own rows.
It must keep true that a table is cut only where all servers order its keys alike: otherwise a row would be in one range
at the source and in another at the target, and be taken for missing.
"""

from __future__ import annotations

from collections.abc import Sequence

from cdc_core.errors import Refused
from cdc_core.model.collations import UNCERTAIN
from cdc_core.model.schema import INTEGER_BYTES, TEXT_BASES, ColumnType, TableSchema
from cdc_core.operations.copy import key_ranges
from cdc_core.operations.verify.shape import Shape


def why_whole(shape: Shape, sources: Sequence[TableSchema]) -> str:
    """Why the table cannot be verified range by range, for people; "" if it can.

    sources: the definitions of the source tables that feed it, before the pipeline's rules.
    """
    if not shape.key:
        return "its rows have no key"
    if not shape.masked.isdisjoint(shape.key):
        return "its key is masked"
    for schema in sources:
        if schema.key != shape.key:
            return f"the key of {schema.name} is not the target's"
        try:
            key_ranges.key_columns(schema)
        except Refused as error:
            return error.what
        if why := shape.side.why_whole(schema):
            return why
    return ""


def ordered_apart(source: str, target: str, column: str) -> str:
    """As why_whole. source, target: names of the tables."""
    return f"{source} and {target} may order the column {column} differently"


def ordered_alike(one: ColumnType, other: ColumnType) -> bool:
    if one.base in INTEGER_BYTES:
        return other.base in INTEGER_BYTES
    if one.base in TEXT_BASES:
        same = (one.charset, one.collation) == (other.charset, other.collation)
        return other.base in TEXT_BASES and same and one.collation != UNCERTAIN
    return one.base == other.base and one.labels == other.labels
