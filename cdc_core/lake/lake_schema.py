"""The columns of a mirror and of its changes table: from the types of merged rows to Iceberg's, and how they follow the
source's definitions.

A column keeps its field id for life, under every name: so files that were written before it was renamed, widened or
moved are read right. A column that the source dropped stays, nullable, after those that it has. The columns of
BOOKKEEPING are last, and stay as they are.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import count

import pyarrow as pa
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.schema import Schema
from pyiceberg.types import (
    BinaryType,
    BooleanType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IcebergType,
    IntegerType,
    ListType,
    LongType,
    NestedField,
    StringType,
    TimestampType,
    TimestamptzType,
)

from cdc_core.errors import Refused
from cdc_core.model.staged_columns import ABSENT, LITERAL, OP, ROW, SEQ, SOURCE, SOURCE_TABLE, TS
from cdc_core.model.version import VERSION_COLUMN

DELETED, DELETED_AT = "_cdc_deleted", "_cdc_deleted_at"
"""In a mirror that keeps deleted rows: whether the row is deleted, and the time of the commit that deleted it."""
CHANGES_KEY = (SEQ, ROW, SOURCE, OP)
"""Where a row of a changes table is in the log. The operation tells the two keys of a change apart."""
_OF_CHANGES: dict[str, IcebergType] = {
    OP: StringType(),
    TS: TimestamptzType(),
    SOURCE: StringType(),
    SOURCE_TABLE: StringType(),
    SEQ: LongType(),
    ROW: LongType(),
    LITERAL: StringType(),
    ABSENT: StringType(),
}
BOOKKEEPING = frozenset({DELETED, DELETED_AT, VERSION_COLUMN, *_OF_CHANGES})
"""Columns that are not of the source. A mirror has both of the first two, or none."""
_OTHER_NAME = (
    "give the mirror another name (`table` of its rule), copy the table again (`lockstep snapshot PIPELINE TABLE`), "
)
ANOTHER_MIRROR = f"{_OTHER_NAME}and replay (`lockstep run PIPELINE --replay --target TARGET`): the new mirror"
"""The beginning of a remedy, where a mirror cannot become what its rule is now. Without the replay, runs stop: what
ledgers say was written is not in the new one."""
COPIED_MIRROR = (
    f"{_OTHER_NAME}and say that the copy has all rows (`lockstep meta accept PIPELINE --target TARGET`): the new mirror"
)
"""The same, where the staged changes of the table have no one key, or type of a column: no run can replay them all."""
_PLAIN: dict[pa.DataType, IcebergType] = {
    pa.bool_(): BooleanType(),
    pa.int8(): IntegerType(),
    pa.int16(): IntegerType(),
    pa.int32(): IntegerType(),
    pa.int64(): LongType(),
    pa.float32(): FloatType(),
    pa.float64(): DoubleType(),
    pa.date32(): DateType(),
    pa.timestamp("us"): TimestampType(),
    pa.timestamp("us", tz="UTC"): TimestamptzType(),
    pa.string(): StringType(),
    pa.binary(): BinaryType(),
}


def _lake_type(kind: pa.DataType, ids: Iterable[int]) -> IcebergType:
    if pa.types.is_decimal(kind):
        return DecimalType(kind.precision, kind.scale)
    if pa.types.is_list(kind):
        element = _lake_type(kind.value_type, ids)
        return ListType(element_id=next(iter(ids)), element_type=element, element_required=False)
    return _PLAIN[kind]


def first_schema(
    columns: Iterable[pa.Field], key: Sequence[str], *, rows: bool = True, flagged: bool = False
) -> Schema:
    """The schema of a new table. columns: of merged rows. rows: whether it has rows, whose key is required; a table of
    tombstones has one without a key for a TRUNCATE. flagged: whether deleted rows stay."""
    ids = count(1)
    fields = [
        NestedField(next(ids), column.name, _lake_type(column.type, ids), required=rows and column.name in key)
        for column in columns
    ]
    if flagged:  # required: a reader's NOT _cdc_deleted leaves no row out
        fields.append(NestedField(next(ids), DELETED, BooleanType(), required=True))
        fields.append(NestedField(next(ids), DELETED_AT, TimestamptzType(), required=False))
    fields.append(NestedField(next(ids), VERSION_COLUMN, BinaryType(), required=True))
    return Schema(*fields, identifier_field_ids=_identifiers(fields, key) if rows else [])


def first_changes_schema(columns: Iterable[pa.Field]) -> Schema:
    """The schema of a new changes table. columns: of the rows. A TRUNCATE has none of their values."""
    ids = count(1)
    fields = [NestedField(next(ids), column.name, _lake_type(column.type, ids), required=False) for column in columns]
    for name, kind in _OF_CHANGES.items():
        fields.append(NestedField(next(ids), name, kind, required=name not in (LITERAL, ABSENT)))
    return Schema(*fields)


def _identifiers(fields: Sequence[NestedField], key: Sequence[str]) -> list[int]:
    """Iceberg's identifier fields; none where the key has a type that it does not allow."""
    key_fields = [field for field in fields if field.name in key]
    allowed = not any(isinstance(field.field_type, FloatType | DoubleType | ListType) for field in key_fields)
    return [field.field_id for field in key_fields] if allowed else []


def evolved(
    schema: Schema, last_id: int, columns: Sequence[pa.Field], renames: Iterable[tuple[str, str]], *, table: str
) -> Schema | None:
    """The schema that takes rows with these columns; None if this one does. last_id: the highest field id that the
    table ever had. renames: (old, new), in the order of the log. Raises Refused (target.definition)."""
    ids = count(last_id + 1)
    by_name = {field.name.lower(): field for field in schema.fields if field.name not in BOOKKEEPING}
    wanted = {column.name.lower() for column in columns}
    for old, new in ((before.lower(), after.lower()) for before, after in renames):
        if old in by_name and old not in wanted and new not in by_name:
            by_name[new] = by_name.pop(old)
    fields = [_followed(by_name.pop(column.name.lower(), None), column, ids, table) for column in columns]
    fields += [field.model_copy(update={"required": False}) for field in by_name.values()]
    fields += [field for field in schema.fields if field.name in BOOKKEEPING]
    fitted = Schema(*fields, identifier_field_ids=schema.identifier_field_ids)
    return None if fitted.fields == schema.fields else fitted


def _followed(field: NestedField | None, column: pa.Field, ids: Iterable[int], table: str) -> NestedField:
    if field is None:
        return NestedField(next(iter(ids)), column.name, _lake_type(column.type, ids), required=False)
    kind = field.field_type
    wanted = _lake_type(column.type, [kind.element_id] if isinstance(kind, ListType) else ())
    if not _takes(kind, wanted):
        if not _takes(wanted, kind):
            raise Refused(
                f"The column {column.name} of {table} has the type {kind}; the source's is {wanted} now, and Iceberg "
                "changes no column so.",
                where=table,
                code="target.definition",
                remedy=f"{COPIED_MIRROR} has the new type",
            )
        kind = wanted
    return field.model_copy(update={"name": column.name, "field_type": kind})


def _takes(kind: IcebergType, other: IcebergType) -> bool:
    """Whether a column of a type may hold the values of another one, which Iceberg may also widen to it."""
    if isinstance(kind, DecimalType) and isinstance(other, DecimalType):
        return kind.precision >= other.precision and kind.scale == other.scale
    wider = {(LongType(), IntegerType()), (DoubleType(), FloatType())}
    return kind == other or (kind, other) in wider


def arrow_schema(schema: Schema) -> pa.Schema:
    """The Arrow schema of the data files, with field ids."""
    return pa.schema([field.with_type(_small(field.type)) for field in schema_to_pyarrow(schema)])


def _small(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_large_list(kind):
        return pa.list_(kind.value_field)
    return {pa.large_string(): pa.string(), pa.large_binary(): pa.binary()}.get(kind, kind)
