"""The state of a table: the rows that its staged changes leave. cdc_core/history says which.

A value that no staged change has is null, and named in the state's `_cdc_absent`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa
import pyarrow.compute as pc

from cdc_core.history.history import History
from cdc_core.history.keyless_rows import each_copy
from cdc_core.history.rule import TableRule
from cdc_core.history.truncates import last_of_each
from cdc_core.model.merged_columns import MergedOp
from cdc_core.model.staged_columns import ABSENT, BOOKKEEPING, LITERAL, OP, SEQ, TS
from cdc_core.stage.event_parts import PART_ROWS, parts_of_events
from cdc_core.stage.objects import ObjectStore
from cdc_core.stage.table_files import TableFiles, require_key


def state_schema(columns: Sequence[pa.Field]) -> pa.Schema:
    """The columns of a state with these row columns."""
    bookkeeping = {field.name: field for field in BOOKKEEPING}
    return pa.schema(
        [*columns, bookkeeping[SEQ], bookkeeping[TS], bookkeeping[LITERAL], bookkeeping[ABSENT].with_type(pa.string())]
    )


def state_rule(files: TableFiles, given: Sequence[str] | None = None, *, dropped: bool = False) -> TableRule:
    """files: those that the state needs. given: a key, instead of the table's own. dropped: also columns that the table
    no longer has. Raises Refused (stage.schema_conflict, stage.key)."""
    columns = files.state_columns(dropped=dropped)
    names, key = [field.name for field in columns], files.key(columns, given)
    if key:
        return TableRule(
            pa.schema(columns),
            key,
            fill=[name for name in names if name not in key and files.absent],
            shared=files.shared,
        )
    # Not every image of a row has the values of generated columns; what they are computed from says which row it is.
    every = [column for part in files.parts for column in part.schema.columns]
    computed = {column.name.lower() for column in every if column.generated}
    computed -= {column.name.lower() for column in every if not column.generated}
    return TableRule(
        pa.schema(columns),
        shared=files.shared,
        totals=True,
        unmatched=[name for name in names if name.lower() in computed],
    )


def state_order(rule: TableRule) -> list[str]:
    """The columns that a state is ordered by."""
    return list(rule.key or [SEQ, *rule.matched])


def state_rows(store: ObjectStore, files: TableFiles, rule: TableRule) -> Iterator[pa.Table]:
    """The rows of a state, in any order: `state_schema`.

    Raises DataAtRisk (stage.damaged), RetryLater (stage.removed), Refused (stage.key).
    """
    schema, lost = state_schema(list(rule.columns)), 0
    with parts_of_events(store, files, rule) as parts:
        for events in parts:
            history = History(rule, last_of_each, reduced_rows=PART_ROWS)
            for some in events:
                history.add(some)
            rows = history.merged().rows
            rows = rows.filter(pc.equal(rows.column(OP), MergedOp.UPSERT))
            if not rule.key:
                rows = each_copy(rows)
            if ABSENT not in rows.column_names:
                rows = rows.append_column(ABSENT, pa.nulls(rows.num_rows, pa.string()))
            lost += history.counts.lost
            yield rows.select(schema.names).cast(schema)
    if rule.key:
        require_key(files.table, rule.key, lost)
