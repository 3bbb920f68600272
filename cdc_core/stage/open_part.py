"""A part while it is written, with what its manifest will say of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import count
from pathlib import Path
from typing import TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from cdc_core.model.batch import Part
from cdc_core.model.schema import TableSchema
from cdc_core.model.staged_columns import (
    ABSENT,
    BEFORE,
    BEFORE_MARK,
    LITERAL,
    OP,
    SEQ,
    UPDATE,
    staged_schema,
)
from cdc_core.stage.layout import CompactedName, CopiedName, PartName
from cdc_core.stage.objects import ObjectStore, PartOutput
from cdc_core.stage.parquet import ROW_GROUP_BYTES, PartFile

_NUMBERS = 10_000
"""More than the parts of one batch, chunk or range."""
_Name = TypeVar("_Name", bound=PartName | CopiedName | CompactedName)


@dataclass(slots=True)
class RowCounts:
    """Of staged rows, what a manifest says of a part."""

    rows: int = 0
    ops: Counter[str] = field(default_factory=Counter)
    key_changes: int = 0
    absent_rows: int = 0
    plain_bytes: int = 0

    def add(self, rows: pa.RecordBatch, key: Sequence[str], plain_bytes: int) -> None:
        """plain_bytes: of the rows."""
        self.rows += rows.num_rows
        self.plain_bytes += plain_bytes
        self.ops += _counts(rows.column(OP))
        self.key_changes += key_changes(rows, key)
        self.absent_rows += rows.num_rows - rows.column(ABSENT).null_count

    def of(self, part: Part) -> Part:
        """The part with these counts."""
        return replace(
            part,
            rows=self.rows,
            ops=dict(sorted(self.ops.items())),
            key_changes=self.key_changes,
            absent_rows=self.absent_rows,
            plain_bytes=self.plain_bytes,
        )


@dataclass(slots=True)
class OpenPart:
    """Rows of one logical table under one definition."""

    table: str
    schema: TableSchema
    file: PartFile
    arrow: pa.Schema
    counts: RowCounts = field(default_factory=RowCounts)
    min_seq: int = 2**63 - 1
    max_seq: int = 0

    def add(self, rows: pa.RecordBatch) -> None:
        seq = rows.column(SEQ).to_numpy()
        self.counts.add(rows, self.schema.key, self.file.add(rows))
        self.min_seq = min(self.min_seq, int(seq.min()))
        self.max_seq = max(self.max_seq, int(seq.max()))

    def listed(self, path: str) -> Part:
        return self.counts.of(
            Part(
                table=self.table,
                path=path,
                rows=0,
                size_bytes=self.file.size_bytes,
                plain_bytes=0,
                sha256=self.file.sha256,
                schema_id=self.schema.id,
                min_seq=self.min_seq,
                max_seq=self.max_seq,
                ops={},
            )
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


def bounded(part: Part, former: Sequence[Part]) -> Part:
    """A part in which the rows of former ones are: from the first of their order keys to the last, also where rows were
    erased since. Batches find their rows in a compacted file by these."""
    return replace(part, min_seq=former[0].min_seq, max_seq=former[-1].max_seq)


def _counts(ops: pa.DictionaryArray) -> Counter[str]:
    numbers = np.bincount(ops.indices.to_numpy(), minlength=len(ops.dictionary))
    return Counter({op: int(n) for op, n in zip(ops.dictionary.to_pylist(), numbers, strict=True) if n})


def key_changes(rows: pa.RecordBatch, key: Sequence[str]) -> int:
    """How many updates among staged rows have another key in `_before` than after; 0 for a table without a key.

    Keys are compared as the log has them, byte for byte: a change of case under a collation that ignores case is one
    too."""
    if not key:
        return 0
    updates = pc.equal(rows.column(OP), UPDATE)
    if not pc.any(updates).as_py():
        return 0
    before = rows.column(BEFORE)
    changed = pa.repeat(pa.scalar(False), len(rows))
    for name in key:
        new = rows.column(name)
        old = pc.struct_field(before, [before.type.get_field_index(name)])
        values_differ = pc.fill_null(pc.not_equal(new, old), False)
        nulls_differ = pc.xor(pc.is_null(new), pc.is_null(old))
        changed = pc.or_(changed, pc.or_(values_differ, nulls_differ))
        both_null = pc.and_(pc.is_null(new), pc.is_null(old))
        untold = both_null
        if pa.types.is_string(new.type):  # '' is a label of an ENUM, or its error value
            untold = pc.or_(both_null, pc.fill_null(pc.and_(pc.equal(new, ""), pc.equal(old, "")), False))
        in_doubt = pc.and_(pc.and_(untold, updates), pc.is_valid(rows.column(LITERAL)))
        if pc.any(in_doubt).as_py():
            changed = pc.or_(changed, _literals_differ(rows.column(LITERAL), in_doubt, name))
    return int(pc.sum(pc.and_(changed, updates)).as_py() or 0)


def _literals_differ(literals: pa.MapArray, where: pa.BooleanArray, name: str) -> pa.BooleanArray:
    """Row by row, and rare: keys that only their literal tells, such as '0000-00-00' or the error value of an ENUM."""
    answers = []
    for literal, asked in zip(literals, where, strict=True):
        texts = dict(literal.as_py()) if asked.as_py() else {}
        answers.append(texts.get(name) != texts.get(BEFORE_MARK + name))
    return pa.array(answers, pa.bool_())
