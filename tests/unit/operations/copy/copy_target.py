"""A target in memory, for the model of copies: what a run of the product would write to it.

Real are the merge (cdc_core/history) and the comparison of versions. The guard of a target
is stated here in a few lines (G8 in docs/guarantees.md): a change older than the row, than the tombstone
of its key, or than the last truncate is not written; of changes whose keys the target holds for equal, the newest
counts (targets/tables/target_keys.py).
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from cdc_core.history.history import History
from cdc_core.history.rule import TableRule
from cdc_core.history.truncates import TruncateRule
from cdc_core.model.merged_columns import MergedOp
from cdc_core.model.run_plan import MergeTable, RunPlan, files_to_read
from cdc_core.model.schema import TableSchema
from cdc_core.model.staged_columns import OP, ROW, SEQ, SOURCE, TS, staged_schema
from cdc_core.model.version import Version, encode, newer_or_equal
from cdc_core.stage.layout import parse_copied
from cdc_core.stage.objects import ObjectStore
from cdc_core.stage.staged_events import FileOfEvents, file_events

Key = tuple[Any, ...]
_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
Winners = Sequence[Mapping[str, Any]]


def winners(store: ObjectStore, plan: RunPlan) -> Winners:
    """The merged rows of the only target and table of a plan."""
    return [
        row
        for merge_set in plan.merge_sets
        for table in merge_set.tables
        for row in _merged(store, plan, table).to_pylist()
    ]


def _merged(store: ObjectStore, plan: RunPlan, table: MergeTable) -> pa.Table:
    files = files_to_read(table.files)
    (schema,) = {file.schema_id: plan.schemas[file.schema_id] for file in files}.values()
    rule = TableRule(pa.schema([staged_schema(schema).field(column.name) for column in schema.columns]), table.key)
    names = frozenset([schema.name])
    truncates = TruncateRule(table.table, plan.run_id, table.on_truncate, names, alone=True, shared=False)
    history = History(rule, truncates.last)
    for file in files:
        copied = parse_copied(file.path) is not None
        for events in file_events(store, FileOfEvents(file, schema, file.key_changes, copied, file.seqs), rule):
            history.add(events)
    merged, counts = history.merged(), history.counts
    assert counts.changes + counts.key_changes == merged.rows.num_rows + counts.superseded
    return merged.rows


@dataclass
class Target:
    """key, values: names of columns. rows: with their versions. gone: tombstones. emptied: the version of the last
    truncate, a tombstone of all keys. equal: the same for keys that the target holds for equal; rows and tombstones are
    under that."""

    key: tuple[str, ...]
    values: tuple[str, ...]
    equal: Callable[[Key], Any]
    rows: dict[Any, tuple[bytes, Key, Key]] = field(default_factory=dict)
    gone: dict[Any, bytes] = field(default_factory=dict)
    emptied: bytes = b""

    @classmethod
    def of(cls, schema: TableSchema, equal: Callable[[Key], Any]) -> Target:
        names = [column.name for column in schema.columns]
        return cls(schema.key, tuple(name for name in names if name not in schema.key), equal)

    @property
    def state(self) -> dict[Key, Any]:
        """Of a table with one column beside its key: the values by key."""
        return {key: values[0] for _, key, values in self.rows.values()}

    def write(self, rows: Winners) -> None:
        """One transaction."""
        for row in rows:
            if row[OP] == MergedOp.TRUNCATE and newer_or_equal(_version(row), self.emptied):
                self.emptied = _version(row)
        removed = [at for at, (version, _, _) in self.rows.items() if not newer_or_equal(version, self.emptied)]
        for at in removed:
            del self.rows[at]
        newest: dict[Any, Mapping[str, Any]] = {}
        for row in rows:
            if row[OP] != MergedOp.TRUNCATE:
                at = self.equal(self._key(row))
                newest[at] = row if at not in newest else _newest(newest[at], row)
        for at, row in newest.items():
            self._change(at, row)

    def _key(self, row: Mapping[str, Any]) -> Key:
        return tuple(row[name] for name in self.key)

    def _change(self, at: Any, row: Mapping[str, Any]) -> None:
        version = _version(row)
        known = [self.emptied, self.gone.get(at, b""), self.rows[at][0] if at in self.rows else b""]
        if not all(newer_or_equal(version, held) for held in known):
            return
        if row[OP] == MergedOp.DELETE:
            self.rows.pop(at, None)
            self.gone[at] = version
        else:
            self.rows[at] = version, self._key(row), tuple(row[name] for name in self.values)
            self.gone.pop(at, None)


def _newest(one: Mapping[str, Any], other: Mapping[str, Any]) -> Mapping[str, Any]:
    """Of changes with equal keys; of equal versions the upsert, as the delete of a row's old name is one with it."""
    if _version(one) == _version(other):
        return other if one[OP] == MergedOp.DELETE else one
    return one if newer_or_equal(_version(one), _version(other)) else other


def _version(row: Mapping[str, Any]) -> bytes:
    ts_us = (row[TS] - _EPOCH) // dt.timedelta(microseconds=1)
    return encode(Version(ts_us, row[SEQ], row[ROW], row[SOURCE]))
