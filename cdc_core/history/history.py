"""The history of one part of a table's keys: events in, in any order; merged rows out."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

import pyarrow as pa
import pyarrow.compute as pc

from cdc_core.history.codes import whole
from cdc_core.history.events import FORMER, event_schema
from cdc_core.history.keyless_rows import nets
from cdc_core.history.rule import TableRule
from cdc_core.history.truncates import Counting
from cdc_core.history.winners import Merged, merged, reduced
from cdc_core.model.staged_columns import OP, TRUNCATE

REDUCED_ROWS, REDUCED_BYTES = 1 << 18, 64 << 20
"""So many events, or bytes of events, are gathered before those that do not matter any more are looked for."""


@dataclass(slots=True)
class Counts:
    """Figures of the events that a part has seen, each counted on its own.

    changes: staged changes. key_changes: those that touch two keys (of a table without a key: updates), counted where
    the key is that the row left. superseded: events that became no row. lost: changes without their key.
    """

    changes: int = 0
    key_changes: int = 0
    superseded: int = 0
    lost: int = 0

    def __iadd__(self, other: Counts) -> Counts:
        for field in fields(self):
            setattr(self, field.name, getattr(self, field.name) + getattr(other, field.name))
        return self


class History:
    """The history of one part. counting: gives the truncates that count. first: the part counts them, which are in
    every part. reduced_rows: in place of REDUCED_ROWS."""

    def __init__(
        self, rule: TableRule, counting: Counting, *, first: bool = True, reduced_rows: int | None = None
    ) -> None:
        self._rule, self._counting, self._first = rule, counting, first
        self._events: list[pa.Table] = []
        self._rows = self._bytes = 0
        self._rows_at, self._bytes_at = reduced_rows or REDUCED_ROWS, REDUCED_BYTES
        self._of_others = 0
        self.counts = Counts()

    def add(self, events: pa.Table) -> None:
        """More events of the part, in any order."""
        of_others = 0 if self._first else whole(pc.equal(events.column(OP), TRUNCATE)).true_count
        former = whole(events.column(FORMER)).true_count
        self.counts += Counts(events.num_rows - former - of_others, former)
        self._of_others += of_others
        self._events.append(events)
        self._rows += events.num_rows
        self._bytes += events.nbytes
        if self._rule.key and (self._rows >= self._rows_at or self._bytes >= self._bytes_at):
            few = reduced(self._together(), self._rule)
            self.counts.superseded += self._rows - few.num_rows
            self._events, self._rows, self._bytes = [few], few.num_rows, few.nbytes
            self._rows_at, self._bytes_at = max(self._rows_at, 2 * self._rows), max(self._bytes_at, 2 * self._bytes)

    def merged(self) -> Merged:
        """What all of them leave, once they are there. Without a key: with `keyless_rows.COPIES`. Raises what
        `counting` raises."""
        found = (merged if self._rule.key else nets)(self._together(), self._rule, self._counting)
        rows = found.rows if self._first else found.rows.filter(pc.not_equal(found.rows.column(OP), TRUNCATE))
        of_others = self._of_others - (found.rows.num_rows - rows.num_rows)
        self.counts += Counts(superseded=found.superseded - of_others, lost=found.lost)
        return replace(found, rows=rows)

    def _together(self) -> pa.Table:
        return pa.concat_tables([event_schema(self._rule).empty_table(), *self._events]).unify_dictionaries()
