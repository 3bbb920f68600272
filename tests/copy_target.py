"""A target in memory, for the model of copies: what a run of the product would write to it.

Real are the merge (the one in memory, spark_jobs/arrow_merge.py) and the comparison of versions. The guard of a target
is stated here in a few lines (G26, G28 and G29 in docs/guarantees.md): a change older than the row, than the tombstone
of its key, or than the last truncate is not written.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from cdc_core.model.merged import MergedOp
from cdc_core.model.run import MergeTable, RunPlan, files_to_read
from cdc_core.model.schema import TableSchema
from cdc_core.model.staged import OP, ROW, SEQ, SOURCE, TS, staged_schema
from cdc_core.model.version import Version, encode, newer_or_equal
from cdc_core.stage.layout import parse_copied
from cdc_core.stage.objects import ObjectStore
from spark_jobs.arrow_changes import BeforeRule, changes_of, read_rows
from spark_jobs.arrow_merge import ArrowRule, merged, without_undone
from spark_jobs.truncates import TruncateRule, may_have

Key = tuple[Any, ...]
_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
Winners = Sequence[Mapping[str, Any]]


def winners(store: ObjectStore, plan: RunPlan) -> Winners:
    """The merged rows of the only target and table of a plan."""
    return [row for one in plan.merge_sets for table in one.tables for row in _merged(store, plan, table).to_pylist()]


def _merged(store: ObjectStore, plan: RunPlan, table: MergeTable) -> pa.Table:
    schemas = [plan.schemas[file.schema_id] for file in files_to_read(table.files)]
    (schema,) = {one.id: one for one in schemas}.values()
    columns = pa.schema([staged_schema(schema).field(column.name) for column in schema.columns])
    staged = []
    for file in files_to_read(table.files):
        copied = parse_copied(file.path) is not None
        renews = copied if may_have(file, renews=copied) else None
        before = BeforeRule(columns, table.key, (), every=False)
        with store.open_input(file.path) as source, pq.ParquetFile(source) as parquet:
            staged.append(read_rows(parquet, schema, renews, lambda *_: None, before, file.seqs))
    rule = TruncateRule(table.table, plan.run_id, table.on_truncate, frozenset([schema.name]), alone=True, shared=False)
    kept, _ = without_undone(changes_of(staged, columns), rule)
    rows, found = merged(kept, ArrowRule(columns, table.key))
    assert found.rows + found.key_changes == rows.num_rows + found.superseded
    return rows


@dataclass
class Target:
    """key, values: names of columns. rows: with their versions. gone: tombstones. emptied: the version of the last
    truncate, a tombstone of all keys."""

    key: tuple[str, ...]
    values: tuple[str, ...]
    rows: dict[Key, tuple[bytes, Key]] = field(default_factory=dict)
    gone: dict[Key, bytes] = field(default_factory=dict)
    emptied: bytes = b""

    @classmethod
    def of(cls, schema: TableSchema) -> Target:
        names = [column.name for column in schema.columns]
        return cls(schema.key, tuple(name for name in names if name not in schema.key))

    @property
    def state(self) -> dict[Any, Any]:
        """Of a table with one column beside its key of one column: the values by key."""
        return {key[0]: values[0] for key, (_, values) in self.rows.items()}

    def write(self, rows: Winners) -> None:
        """One transaction."""
        for row in rows:
            if row[OP] == MergedOp.TRUNCATE and newer_or_equal(_version(row), self.emptied):
                self.emptied = _version(row)
        removed = [key for key, (version, _) in self.rows.items() if not newer_or_equal(version, self.emptied)]
        for key in removed:
            del self.rows[key]
        for row in rows:
            if row[OP] != MergedOp.TRUNCATE:
                self._change(row)

    def _change(self, row: Mapping[str, Any]) -> None:
        key, version = tuple(row[name] for name in self.key), _version(row)
        known = [self.emptied, self.gone.get(key, b""), self.rows[key][0] if key in self.rows else b""]
        if not all(newer_or_equal(version, one) for one in known):
            return
        if row[OP] == MergedOp.DELETE:
            self.rows.pop(key, None)
            self.gone[key] = version
        else:
            self.rows[key] = version, tuple(row[name] for name in self.values)
            self.gone.pop(key, None)


def _version(row: Mapping[str, Any]) -> bytes:
    ts_us = (row[TS] - _EPOCH) // dt.timedelta(microseconds=1)
    return encode(Version(ts_us, row[SEQ], row[ROW], row[SOURCE]))
