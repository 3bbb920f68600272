"""Updates that move a row to another key, counted in columns: the ledger counts each as two changes.

Keys are compared as the log has them, byte for byte: a change of case under a collation that ignores case is one too.
"""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc

from cdc_core.model.staged_columns import BEFORE, BEFORE_MARK, LITERAL, OP, UPDATE


def key_changes(rows: pa.RecordBatch, key: Sequence[str]) -> int:
    """How many updates among staged rows have another key in `_before` than after; 0 for a table without a key."""
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
