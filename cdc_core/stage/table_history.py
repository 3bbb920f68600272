"""The staged changes of a table under one schema, as they are or each as a change of one key (`history/by_key.py`)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import pyarrow as pa
import pyarrow.compute as pc

from cdc_core.history.by_key import by_key, ended
from cdc_core.history.codes import whole
from cdc_core.history.events import LOST, events
from cdc_core.history.rule import TableRule
from cdc_core.model.position import Position
from cdc_core.model.staged_columns import OP, SOURCE_TABLE, TRUNCATE
from cdc_core.stage.event_parts import parts_of_events
from cdc_core.stage.intact import open_intact
from cdc_core.stage.objects import ObjectStore
from cdc_core.stage.parquet import read_rows
from cdc_core.stage.removed import unless_removed
from cdc_core.stage.table_files import TableFiles, begins_of, require_key
from cdc_core.stage.unify import StagedPart, align, unified_schema

_BATCH_ROWS = 1 << 16


def history_schema(files: TableFiles) -> pa.Schema:
    """That of all changes, and `_cdc_source_table`. Raises Refused (stage.schema_conflict)."""
    return unified_schema(files.table, files.definitions).append(pa.field(SOURCE_TABLE, pa.string()))


def by_key_rows(store: ObjectStore, files: TableFiles, key: Sequence[str]) -> Iterator[pa.Table]:
    """In any order: `history_schema`.

    Raises DataAtRisk (stage.damaged), RetryLater (stage.removed), Refused (stage.key).
    """
    rule, schema = TableRule(pa.schema(files.columns()), key), history_schema(files)
    truncates, lost = [schema.empty_table()], 0
    for rows in history_rows(store, files):
        found = events(rows, None, rule)
        lost += whole(found.column(LOST)).true_count
        truncates.append(rows.filter(pc.equal(rows.column(OP), TRUNCATE)))
        yield from by_key(rows, found, rule)
    require_key(files.table, key, lost)
    of_all = pa.concat_tables(truncates).unify_dictionaries().combine_chunks()
    if of_all.num_rows:
        keys = TableRule(pa.schema([rule.columns.field(name) for name in key]), key)
        with parts_of_events(store, files, keys) as parts:
            for some in parts:
                yield ended(pa.concat_tables(some).unify_dictionaries(), of_all, keys)


def history_rows(store: ObjectStore, files: TableFiles) -> Iterator[pa.Table]:
    """All changes, in the order of the files: `history_schema`. Raises DataAtRisk (stage.damaged), RetryLater
    (stage.removed)."""
    schema = history_schema(files)
    begins, at = begins_of(files.manifests), schema.get_field_index(SOURCE_TABLE)
    for part, condition in files.conditions():
        for rows in aligned_rows(store, begins, part, schema, condition, _BATCH_ROWS):
            yield rows.set_column(at, schema.field(at), pa.array([part.schema.name] * rows.num_rows, pa.string()))


def aligned_rows(
    store: ObjectStore,
    begins: Mapping[str, Position],
    part: StagedPart,
    schema: pa.Schema,
    condition: pc.Expression | None,
    most: int,
) -> Iterator[pa.Table]:
    """The rows of a part that meet the condition, at most so many at a time. begins: as in unless_removed."""
    with unless_removed(store, begins, [part.part.path]), open_intact(store, part.part) as file:
        for batch in read_rows(file, most):
            rows = align(pa.Table.from_batches([batch]), schema)
            yield rows if condition is None else rows.filter(condition)
