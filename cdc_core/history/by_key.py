"""Staged changes, each as a change of one key: the last one of a key says whether the row exists, and how.

An update that changes the key is a delete of the old key and an insert of the new one, with `_before` null in both. A
truncate is a delete of each key that lives, of which it has the key alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from cdc_core.history.codes import Runs, numbered
from cdc_core.history.events import ARRIVED
from cdc_core.history.rule import TableRule
from cdc_core.history.winners import Events
from cdc_core.model.places import repeated
from cdc_core.model.staged_columns import ABSENT, BEFORE, DELETE, INSERT, LITERAL, OP, TRUNCATE, UPDATE, LiteralEntries


def by_key(rows: pa.Table, events: pa.Table, rule: TableRule) -> Iterator[pa.Table]:
    """The changes but truncates. rows: staged changes under the columns of the rule. events: theirs."""
    own, former = events.slice(0, rows.num_rows), events.slice(rows.num_rows)
    moved = pc.and_(own.column(ARRIVED), pc.equal(own.column(OP), UPDATE))
    yield rows.filter(pc.invert(pc.or_(moved, pc.equal(own.column(OP), TRUNCATE))))
    updates = rows.filter(moved)
    for half, op in ((former, DELETE), (own.filter(moved), INSERT)):
        columns = {name: half.column(name) for name in (*rule.columns.names, LITERAL, ABSENT)}
        columns[BEFORE] = pa.nulls(half.num_rows, rows.schema.field(BEFORE).type)
        yield _replaced(updates, columns | {OP: repeated(op, half.num_rows)})


def ended(table: pa.Table, truncates: pa.Table, rule: TableRule) -> pa.Table:
    """A delete of each key that lived when its source table was truncated.

    table: all events of some keys, and the truncates. truncates: these as they are staged, in the same order.
    """
    events = Events(table, rule)
    origin = numbered([events.source.codes, events.table.codes])
    order = np.lexsort((events.row, events.seq, origin))
    marks = order[events.truncate[order]]
    number = np.empty(events.count, np.int64)
    number[order] = np.cumsum(events.truncate[order]) - events.truncate[order]  # of truncates before it
    last = Runs.of(numbered([events.key(), origin, number]), events.seq, events.row).last()
    last = last[~events.delete[last] & ~events.truncate[last] & (number[last] < len(marks))]
    mark = marks[number[last]]
    kept = origin[mark] == origin[last]
    last, mark = last[kept], mark[kept]
    place = np.cumsum(events.truncate) - 1
    columns = {name: events[name].take(pa.array(last)) for name in rule.key}
    entries = LiteralEntries.of(events[LITERAL].take(pa.array(last)))
    columns[LITERAL] = entries.where(entries.among(rule.key)).array(len(last))
    return _replaced(truncates.take(pa.array(place[mark])), columns | {OP: repeated(DELETE, len(last))})


def _replaced(rows: pa.Table, columns: Mapping[str, pa.Array | pa.ChunkedArray]) -> pa.Table:
    every = [columns.get(field.name, rows.column(at)) for at, field in enumerate(rows.schema)]
    return pa.Table.from_arrays(every, rows.schema.names).cast(rows.schema)
