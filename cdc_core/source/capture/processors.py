"""Functions of a user's own on the columns of a table, found by entry point (group `lockstep.processors`).

`function(rows, table, **options) -> rows`: a record batch of the row's columns and `database.table` in, a record batch
of as many rows out. It is called for the row after each change and, apart, for the rows before updates, and with no
rows where only the columns are needed. It may change, add and remove columns, but no part of the key; it must be a pure
function of its arguments, or the same log would not give the same files. It never receives bookkeeping columns, nor a
TRUNCATE, which has no row.
"""

from __future__ import annotations

import logging
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from importlib.metadata import entry_points
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from cdc_core.config import Processor
from cdc_core.errors import Refused, UsageError
from cdc_core.model.block import TableRows
from cdc_core.model.schema import Column, TableSchema, type_of
from cdc_core.model.staged_columns import BEFORE_MARK, OP, TRUNCATE
from cdc_core.source.capture.images import Images

log = logging.getLogger(__name__)

GROUP = "lockstep.processors"
Function = Callable[..., pa.RecordBatch]


def function_of(name: str) -> Function:
    """The function that an entry point names. Raises UsageError (install.missing)."""
    points = {point.name: point for point in entry_points(group=GROUP)}
    try:
        function: Function = points[name].load()
    except (KeyError, ImportError, AttributeError) as error:
        why = (
            f"cannot be loaded: {error}"
            if name in points
            else f"is not installed; installed are: {', '.join(sorted(points)) or 'none'}"
        )
        raise UsageError(
            f"The processor {name!r} {why}.",
            where="tables.processors",
            code="install.missing",
            remedy=f"where the source is read, install the package that has this entry point in the group {GROUP}",
        ) from None
    return function


@dataclass(frozen=True, slots=True)
class Process:
    """One processor, applied to rows."""

    rule: Processor
    function: Function

    def apply(self, part: TableRows) -> TableRows:
        """Raises Refused (config.function), and DataAtRisk (sink.unknown_value) where the log lacks values."""
        images = Images.of(part.rows, part.schema)
        names = [column.name for column in part.schema.columns]
        images.require_carried(names, part, f"the processor {self.rule.use}")
        after = self._made(images.after, pc.not_equal(images.notes[OP], TRUNCATE).to_numpy(False), part.schema)
        before = self._made(images.before, images.updated.to_numpy(False), part.schema)
        for name in part.schema.key:
            if _changes(name, images.after, after) or _changes(name, images.before, before):
                raise self._wrong(part.schema, f"it changes the column {name}, which is part of the key")
        if before.schema != after.schema:
            raise self._wrong(part.schema, "it returns other columns for the rows before updates")
        schema = self._shape(part.schema, after.schema)
        made = replace(
            images,
            after=dict(zip(after.schema.names, after.columns, strict=True)),
            before=dict(zip(before.schema.names, before.columns, strict=True)),
        )
        return replace(part, schema=schema, rows=_without_spent_literals(made, part.schema).rows(schema))

    def _made(self, image: Mapping[str, pa.Array], there: npt.NDArray[np.bool_], schema: TableSchema) -> pa.RecordBatch:
        """What the function returns for the rows that exist; null for the others."""
        if there.all():
            return self._called(image, schema)
        at = np.flatnonzero(there)
        made = self._called({name: values.take(pa.array(at)) for name, values in image.items()}, schema)
        index = pa.array(np.cumsum(there) - 1, mask=~there)
        return pa.RecordBatch.from_arrays([values.take(index) for values in made.columns], schema=made.schema)

    def _called(self, image: Mapping[str, pa.Array], schema: TableSchema) -> pa.RecordBatch:
        rows = pa.RecordBatch.from_pydict(dict(image))
        try:
            made = self.function(rows, schema.name, **self.rule.options)
        except Exception as error:
            # Its message may quote values of a row: only debug logs show it.
            log.debug("the processor %s", self.rule.use, exc_info=True)
            place = traceback.extract_tb(error.__traceback__)[-1]
            at = f"{Path(place.filename).name}:{place.lineno}"
            why = f"it raised {type(error).__name__} at {at} (-vv shows the message)"
            raise self._wrong(schema, why) from None
        if not isinstance(made, pa.RecordBatch):
            raise self._wrong(schema, f"it returns {type(made).__name__}, not a RecordBatch")
        if made.num_rows != rows.num_rows:
            raise self._wrong(schema, f"it returns {made.num_rows} rows for {rows.num_rows}")
        return made

    def _shape(self, schema: TableSchema, made: pa.Schema) -> TableSchema:
        by_name = {column.name: column for column in schema.columns}
        if not set(made.names).issuperset(schema.key):
            raise self._wrong(schema, f"a column of the key ({', '.join(schema.key)}) is missing")
        if len({name.lower() for name in made.names}) < len(made.names):
            raise self._wrong(schema, "two of its columns have one name, of which the letter case does not matter")
        columns = []
        for field in made:
            old = by_name.get(field.name)
            if old is not None and old.type.arrow == field.type:
                columns.append(old)
            else:
                columns.append(Column(field.name, type_of(field.type), key_part=old.key_part if old else None))
        return replace(schema, columns=tuple(columns))

    def _wrong(self, schema: TableSchema, why: str) -> Refused:
        return Refused(
            f"The processor {self.rule.use!r} cannot be used on {schema.name}: {why}.",
            where="tables.processors",
            code="config.function",
            remedy="fix the function, or narrow its `match`; nothing of these rows was staged",
        )


def _changes(name: str, given: Mapping[str, pa.Array], made: pa.RecordBatch) -> bool:
    """Whether the values of a column are others. By a key that the source does not have, rows that are looked up there
    (repair, reverse_query) would be taken for gone. Another type is not looked up."""
    at = made.schema.get_field_index(name)
    return at >= 0 and made.column(at).type == given[name].type and not made.column(at).equals(given[name])


def _without_spent_literals(images: Images, schema: TableSchema) -> Images:
    """Without the exact texts of columns that now have a value, or were removed."""
    entries = images.literals
    kept = np.zeros(len(entries.row), np.bool_)
    for column in schema.columns:
        for mark, image in (("", images.after), (BEFORE_MARK, images.before)):
            if column.name in image:
                still = pc.is_null(image[column.name]).to_numpy(False)
                kept |= entries.among([mark + column.name]) & still[entries.row]
    return images.with_literals(entries.where(kept))
