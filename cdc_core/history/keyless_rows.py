"""Tables without a key: whole rows that come and go, with their numbers.

An update is an old row that goes and a new one that comes. For a run, the copies of equal rows that come and go are
summed up within each batch, never across: a target may have some batches of a run and lack the others, but has each
whole or not at all. For a state, they are summed up over everything (`TableRule.totals`). Equal rows have the same bits
and exact texts.

A merged row is one copy that comes (u) or goes (d). `_cdc_row` counts the copies; `_cdc_seq` is where the batch begins,
or, over everything, the place of the last copy that came.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from cdc_core.history.codes import Flags, Numbers, Runs, codes, filled, numbered, whole
from cdc_core.history.events import BATCH, LOST
from cdc_core.history.rule import TableRule
from cdc_core.history.truncates import Counting
from cdc_core.history.winners import Events, Merged, absent_names, counting_events
from cdc_core.model.merged_columns import MergedOp, merged_schema
from cdc_core.model.staged_columns import ABSENT, LITERAL, OP, ROW, SEQ, SOURCE, TS, LiteralEntries

COPIES = "_cdc_copies"
"""How many copies of the row come, or go."""


def nets(table: pa.Table, rule: TableRule, counting: Counting) -> Merged:
    """What the events of a table without a key leave: each different row, of each batch, once, with COPIES, which is
    not 0. With `rule.unmatched` also ABSENT, the names of such columns that no event of the row has."""
    events, last = counting_events(table, rule, counting)
    runs = Runs.of(_alike(events), events.ts, events.seq)
    row = runs.last()
    if rule.totals:
        came = runs.last_where(~events.delete)
        row = np.where(came >= 0, came, row)
    net = runs.total(np.where(events.delete, -1, 1))
    kind = np.where(events.truncate[row], 1, np.where(net > 0, 2, 0))
    columns = {name: events.at(name, row) for name in rule.matched}
    unknown = {}
    for name, lacks in events.lacks(rule.unmatched).items():
        at = runs.last_where(~(lacks | _has_text(events[LITERAL], name)))
        columns[name], unknown[name] = events.at(name, at), at < 0
    columns[OP] = pa.array([MergedOp.DELETE, MergedOp.TRUNCATE, MergedOp.UPSERT], pa.string()).take(pa.array(kind))
    columns[TS] = events[TS].take(pa.array(row))
    columns[SOURCE] = events.source.array(row)
    columns[SEQ] = events[BATCH].take(pa.array(row))
    columns[ROW] = pa.array(np.zeros(len(row), np.int64))
    columns[LITERAL] = _sorted(events[LITERAL].take(pa.array(row)), rule.unmatched)
    schema = merged_schema(list(rule.columns), ())
    found = pa.Table.from_arrays([columns[field.name] for field in schema], schema=schema)
    if rule.unmatched:
        found = found.append_column(ABSENT, absent_names(unknown, len(row))[0])
    found = found.append_column(COPIES, pa.array(net)).filter(pa.array(net != 0))
    superseded = table.num_rows - int(np.abs(net).sum())
    return Merged(found, superseded, int(events.flags(LOST).sum()), last)


def each_copy(rows: pa.Table) -> pa.Table:
    """A row for each copy that comes or goes, numbered."""
    count = np.abs(filled(whole(rows.column(COPIES))))
    first = np.repeat(np.cumsum(count) - count, count)
    rows = rows.drop_columns([COPIES]).take(pa.array(np.repeat(np.arange(rows.num_rows), count)))
    at = rows.schema.get_field_index(ROW)
    return rows.set_column(at, rows.schema.field(at), pa.array(np.arange(len(first)) - first))


def _alike(events: Events) -> Numbers:
    """The same number for rows that are equal, in the same batch if batches are apart."""
    columns = [events.truncate.astype(np.int64)]
    if not events.rule.totals:
        columns += [events.source.codes, codes(events[BATCH])]
    columns += [codes(events[name], bits=True) for name in events.rule.matched]
    literal = events[LITERAL]
    if literal.null_count < len(literal):
        entries = LiteralEntries.of(literal)
        for name in {*pc.unique(entries.name).to_pylist()} - {*events.rule.unmatched}:
            named = entries.where(entries.among([name]))
            text = np.full(events.count, -1, np.int64)
            text[named.row] = codes(named.text)
            columns.append(text)
    return numbered(columns)


def _has_text(literal: pa.MapArray, name: str) -> Flags:
    """Which rows have an exact text of the column: its value is not in the column."""
    entries, found = LiteralEntries.of(literal), np.zeros(len(literal), bool)
    found[entries.row[entries.among([name])]] = True
    return found


def _sorted(literal: pa.MapArray, unmatched: Sequence[str]) -> pa.MapArray:
    """The map in the order of the columns' names, so that equal rows have equal maps; without texts of some columns."""
    if literal.null_count == len(literal):
        return literal
    entries = LiteralEntries.of(literal)
    entries = entries.where(~entries.among(unmatched))
    rows = pa.table({"row": entries.row, "name": entries.name})
    order = pc.sort_indices(rows, sort_keys=[("row", "ascending"), ("name", "ascending")])
    return LiteralEntries(entries.row[order.to_numpy()], entries.name.take(order), entries.text.take(order)).array(
        len(literal)
    )
