"""The present rows of a mirror, as readers of the lake see them: each range is of one snapshot, which no run changes.

What Iceberg's types do not hold is null in a mirror (zero dates, bytes that are not text), and is compared as null.
Keys are compared byte by byte, so that a table whose key the source orders by a collation is read as a whole.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from decimal import Decimal, InvalidOperation
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import NoSuchTableError
from pyiceberg.table import Table

from cdc_core.config import IcebergTarget
from cdc_core.errors import FilesLost, TableUnready
from cdc_core.history.codes import whole
from cdc_core.lake.catalogs import catalog_answers, identifier, name_of
from cdc_core.lake.lake_schema import BOOKKEEPING
from cdc_core.lake.lake_tables import MirrorRule
from cdc_core.lake.lake_tables import opened as opened_tables
from cdc_core.lake.ordered_rows import Apart, Flags, KeySpan, Mask, SnapshotRows, beyond, comparable
from cdc_core.lake.snapshots import LiveFiles, head, latest_schema, table_files
from cdc_core.model.merged_columns import merged_type
from cdc_core.model.schema import BINARY_BASES, INTEGER_BYTES, TEXT_BASES, Column, ColumnType, TableSchema
from cdc_core.model.staged_columns import LITERAL, LiteralEntries
from cdc_core.operations.copy.key_ranges import DOWN, Key, downwards
from cdc_core.operations.verify.canonical import has_errors, row_texts, values_of
from cdc_core.operations.verify.ranges import ordered_apart
from cdc_core.operations.verify.shape import RowRange, Shape, SideRows, TargetSide

_NUMBERS = frozenset({*INTEGER_BYTES, "bit", "year"})
_MOMENTS = frozenset({"datetime", "timestamp"})


class MirrorRows:
    """The rows of a mirror at the snapshot that readers saw last: `number`; None while it is empty. Snapshots of other
    writers count, too: a verification is to find what differs in them. key: as the mirror spells it."""

    def __init__(self, table: Table, key: Sequence[str]) -> None:
        self.table, self._schema = table, latest_schema(table)
        spelled = {name.lower(): name for name in self._schema.column_names}
        self.key = tuple(spelled.get(name.lower(), name) for name in key)
        self._look_up()

    def renew(self) -> None:
        """At what readers see now."""
        self.table = self.table.catalog.load_table(self.table.name())
        snapshot = head(self.table)
        if self.number != (None if snapshot is None else snapshot.snapshot_id):
            self._look_up()

    def _look_up(self) -> None:
        snapshot = head(self.table)
        self.number = None if snapshot is None else snapshot.snapshot_id
        files = table_files(self.table, self._schema, self.key)
        self.columns = files.columns
        self.rows = SnapshotRows(files, LiveFiles(self.table, snapshot, self.key).files)


@dataclass(frozen=True, kw_only=True)
class LakeSide(TargetSide):
    """config: of the target."""

    config: IcebergTarget
    mirror: MirrorRows

    @classmethod
    def opened(cls, config: IcebergTarget, catalog: Catalog, rule: MirrorRule, *, shared: bool) -> LakeSide:
        """Raises Refused (target.table, target.existing, target.definition), DataAtRisk (lake.foreign_write), and as
        `catalog_answers`."""
        name = identifier(config, rule.logical)
        with catalog_answers(config):
            mirror = MirrorRows(opened_tables(catalog, name, replace(rule, changes=False)).rows, rule.key)
        return cls(
            target=config.name,
            logical=rule.logical,
            key=rule.key,
            places=(name_of(name),),
            shared=shared,
            config=config,
            mirror=mirror,
        )

    @property
    def rows(self) -> SnapshotRows:
        return self.mirror.rows

    def renew(self) -> None:
        with catalog_answers(self.config):
            self.mirror.renew()

    def has(self, column: str) -> bool:
        return self._field(column) is not None

    def tells_errors(self, column: str) -> bool:
        return False

    def why_whole(self, schema: TableSchema) -> str:
        for name in self.key:
            field = self._field(name)
            if field is None or not _ordered_alike(schema.column(name).type, field.type):
                return ordered_apart(schema.name, self.places[0], name)
        with self._reading():
            return f"others have written the files of {self.places[0]} in another order" if self.rows.deep else ""

    def definition(self, shape: Shape) -> object:
        return [
            str(self.mirror.table.metadata.table_uuid),
            [[column.name, str(column.type), str(self._field(column.name))] for column in shape.columns],
        ]

    def as_held(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Without values that are null in a mirror. No row of a mirror has such a key."""
        at = rows.schema.get_field_index(LITERAL)
        if at < 0 or rows.column(at).null_count == rows.num_rows:
            return rows
        entries = LiteralEntries.of(rows.column(at))
        return rows.set_column(at, LITERAL, entries.where(entries.among(self.key)).array(rows.num_rows))

    def batches(self, shape: Shape, range_: RowRange) -> Iterator[SideRows]:
        """Raises as `catalog_answers`; RetryLater (verify.unsettled)."""
        names = [self._name(column) for column in shape.columns]
        with self._reading():
            if range_.wanted is not None:
                tables = self.rows.select(names, *matching(shape, range_.wanted))
            elif range_.above or range_.through:
                tables = iter([self.rows.between(names, self._span(shape, range_))])
            else:
                tables = self.rows.all(names)
            for table in tables:
                yield 0, fitted(table, shape.columns), shape.columns

    def count(self, shape: Shape) -> int:
        with self._reading():
            return self.rows.count()

    def reaches(self, shape: Shape, last: Key) -> bool:
        bound, down = self._bound(shape, last), downwards(last)

        def placed(keys: pa.Table) -> tuple[Flags, Flags]:
            return beyond([comparable(whole(column)) for column in keys.columns], bound, down)

        def mask(keys: pa.Table) -> Flags:
            after, equal = placed(keys)
            return after | equal

        with self._reading():
            found = [placed(keys) for keys in self.rows.select(self.mirror.key, mask, KeySpan(bound, (), down).apart)]
        return bool(found) and not any(after.any() for after, _ in found)

    @contextmanager
    def _reading(self) -> Iterator[None]:
        """Around reads of the snapshot, which maintenance may remove meanwhile."""
        try:
            with catalog_answers(self.config):
                yield
        except FilesLost:
            number = self.mirror.number
            with catalog_answers(self.config):
                there = self.mirror.table.catalog.load_table(self.mirror.table.name()).metadata
            if number is None or there.snapshot_by_id(number) is not None:
                raise
            raise TableUnready(
                f"The snapshot {number} of {self.places[0]} expired while it was verified.",
                where=self.places[0],
                code="verify.unsettled",
                remedy="verify again",
            ) from None

    def _field(self, column: str) -> pa.Field | None:
        """The field of the mirror's column for one of the source."""
        by_name = {
            mirrored.name.lower(): mirrored for mirrored in self.mirror.columns if mirrored.name not in BOOKKEEPING
        }
        return by_name.get(column.lower())

    def _name(self, column: Column) -> str:
        field = self._field(column.name)
        assert field is not None  # shape_of leaves others out
        return str(field.name)

    def _span(self, shape: Shape, range_: RowRange) -> KeySpan:
        above, through = (self._bound(shape, bound) for bound in (range_.above, range_.through))
        return KeySpan(above, through, downwards(range_.through or range_.above))

    def _bound(self, shape: Shape, key: Key) -> tuple[Any, ...]:
        if not key:
            return ()
        columns = zip(shape.key_columns, key, strict=True)
        return tuple(_value(column.type, _text(column.type, literal.removesuffix(DOWN))) for column, literal in columns)


def mirrors_with_rows(config: IcebergTarget, catalog: Catalog, logical: Sequence[str]) -> dict[str, str]:
    """As target_rows.tables_with_rows."""
    found: dict[str, str] = {}
    with catalog_answers(config):
        for name in logical:
            with suppress(NoSuchTableError):
                table = catalog.load_table(identifier(config, name))
                schema = latest_schema(table)
                live = LiveFiles(table, head(table), (schema.fields[0].name,)).files
                files = table_files(table, schema, ())
                if SnapshotRows(files, live).count():
                    found[name] = name_of(identifier(config, name))
    return found


def matching(shape: Shape, wanted: Sequence[str]) -> tuple[Mask, Apart]:
    """What SnapshotRows.select takes, for the rows with these keys, texts of `row_texts`."""
    texts = pa.array([name for name in wanted if not has_errors(name)], pa.string())

    def mask(keys: pa.Table) -> Flags:
        here = row_texts(fitted(keys, shape.key_columns), shape.key_columns, shape.errors)
        return np.asarray(pc.is_in(here, value_set=texts))

    return mask, _apart_from(shape.key_columns[0].type, texts.to_pylist())


def fitted(rows: pa.Table, columns: Sequence[Column]) -> pa.RecordBatch:
    """With the names and types of the source, as far as these hold the values: then columns are compared whole."""
    arrays = [_cast(whole(rows.column(at)), column.type.arrow) for at, column in enumerate(columns)]
    return pa.RecordBatch.from_arrays(arrays, names=[column.name for column in columns])


def _cast(values: pa.Array, kind: pa.DataType) -> pa.Array:
    if values.type == kind:
        return values
    try:
        found = values.cast(kind)
        return found if found.cast(values.type).equals(values) else values
    except pa.ArrowException:
        return values  # somebody wrote a value that the source cannot have


def _ordered_alike(source: ColumnType, mirror: pa.DataType) -> bool:
    """Whether the source orders its values as `comparable` does those of the mirror."""
    if source.base in _NUMBERS:
        known = merged_type(source.arrow)
        integers = pa.types.is_integer(known) and pa.types.is_integer(mirror)
        return bool(mirror == known or integers)
    if source.base == "decimal":
        return bool(pa.types.is_decimal(mirror) and mirror.scale == (source.scale or 0))
    return source.base in BINARY_BASES | _MOMENTS | {"date"} and bool(source.arrow == mirror)


def _text(kind: ColumnType, literal: str) -> str:
    """The canonical text of a literal of key_ranges."""
    if kind.base in BINARY_BASES:
        return literal[2:-1]
    return literal.strip("'")


def _value(kind: ColumnType, text: str) -> Any:
    """A value's canonical text in the form that `comparable` gives it. Raises ValueError for types that are not
    ordered, or a text that is not of the type."""
    if kind.base in _NUMBERS and not pa.types.is_decimal(merged_type(kind.arrow)):
        return int(text)
    if kind.base in _NUMBERS or kind.base == "decimal":
        return Decimal(text)
    if kind.base in BINARY_BASES:
        return bytes.fromhex(text)
    if kind.base in _MOMENTS:
        whole_seconds, _, fraction = text.partition(".")
        return f"{whole_seconds}.{fraction:0<6}"
    if kind.base == "date" or kind.base in TEXT_BASES:
        return text
    raise ValueError(f"the order of {kind} is not known")


def _apart_from(kind: ColumnType, keys: Sequence[str]) -> Apart:
    """Finds rows that have none of these keys, texts of `row_texts`, as far as their first column tells."""
    try:
        firsts = sorted({_value(kind, values_of(key)[0] or "") for key in keys})
    except (ValueError, InvalidOperation):
        return lambda low, high: False

    def apart(low: tuple[Any, ...], high: tuple[Any, ...]) -> bool:
        at = bisect_left(firsts, low[0])
        return at == len(firsts) or bool(firsts[at] > high[0])

    return apart
