"""A part while it is written, with what its manifest will say of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from itertools import count
from pathlib import Path
from typing import TypeVar

import numpy as np
import pyarrow as pa

from cdc_core.model.batch import Part
from cdc_core.model.schema import TableSchema
from cdc_core.model.staged_columns import ABSENT, OP, SEQ, staged_schema
from cdc_core.stage.keychange import key_changes
from cdc_core.stage.layout import CompactedName, CopiedName, PartName
from cdc_core.stage.objects import ObjectStore, PartOutput
from cdc_core.stage.parquet import ROW_GROUP_BYTES, PartFile

_NUMBERS = 10_000
"""More than the parts of one batch, chunk or range."""
_Name = TypeVar("_Name", PartName, CopiedName, CompactedName)


@dataclass(slots=True)
class OpenPart:
    """Rows of one logical table under one definition."""

    table: str
    schema: TableSchema
    file: PartFile
    arrow: pa.Schema
    rows: int = 0
    ops: Counter[str] = field(default_factory=Counter)
    key_changes: int = 0
    absent_rows: int = 0
    min_seq: int = 2**63 - 1
    max_seq: int = 0

    def add(self, rows: pa.RecordBatch) -> None:
        seq = rows.column(SEQ).to_numpy()
        self.rows += len(seq)
        self.min_seq = min(self.min_seq, int(seq.min()))
        self.max_seq = max(self.max_seq, int(seq.max()))
        self.ops += _counts(rows.column(OP))
        self.key_changes += key_changes(rows, self.schema.key)
        self.absent_rows += len(seq) - rows.column(ABSENT).null_count
        self.file.add(rows)

    def listed(self, path: str) -> Part:
        return Part(
            table=self.table,
            path=path,
            rows=self.rows,
            size_bytes=self.file.size_bytes,
            sha256=self.file.sha256,
            schema_id=self.schema.id,
            min_seq=self.min_seq,
            max_seq=self.max_seq,
            ops=dict(sorted(self.ops.items())),
            key_changes=self.key_changes,
            absent_rows=self.absent_rows,
        )


def open_part(
    store: ObjectStore,
    table: str,
    schema: TableSchema,
    name: _Name,
    path_of: Callable[[_Name], str],
    *,
    level: int,
    scratch: Path,
    group_bytes: int = ROW_GROUP_BYTES,
) -> OpenPart:
    """A part at the path of its name; or of the name with a higher number, where an earlier attempt of the epoch left a
    file. level: of the compression."""
    arrow = staged_schema(schema)

    def open_output() -> PartOutput:
        names = (replace(name, part=name.part + attempt * _NUMBERS) for attempt in count())
        return store.open_output(map(path_of, names), scratch)

    return OpenPart(table, schema, PartFile(arrow, schema.key, open_output, level, group_bytes), arrow)


def _counts(ops: pa.DictionaryArray) -> Counter[str]:
    numbers = np.bincount(ops.indices.to_numpy(), minlength=len(ops.dictionary))
    return Counter({op: int(n) for op, n in zip(ops.dictionary.to_pylist(), numbers, strict=True) if n})
