"""What the extractor knows of each table's coverage, and which part of it the next manifest must record.

It does no I/O. It may assume that surveys and blocks come in the order in which they were taken. `pending` is emptied
only by the caller, once it is durable; until then an extractor that restarts determines it again.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from dataclasses import replace

from cdc_core.meta import SourceCoverage
from cdc_core.model.block import Block, TableRows
from cdc_core.model.coverage import (
    ANY_TABLE,
    EACH_TABLE,
    Happened,
    How,
    Surveyed,
    TableCoverage,
    TableEvent,
    after,
)
from cdc_core.model.position import Position
from cdc_core.model.staged_columns import OP, SEQ, TRUNCATE, TS
from cdc_core.source.host.table_survey import SourceSurvey

Route = Callable[[str, str], tuple[str, ...]]
Captures = Callable[[str, str], bool]
NOTHING_KNOWN = SourceCoverage()


class CoverageLog:
    """known: the coverage in meta. feeds: the logical tables of a captured table, () for others.

    sought: whether the survey that `known` has looked for a table. One that it did not look for may have existed.
    """

    def __init__(
        self,
        known: SourceCoverage = NOTHING_KNOWN,
        *,
        feeds: Route = lambda database, table: (f"{database}.{table}",),
        sought: Captures = lambda database, table: False,
    ) -> None:
        self._known = dict(known.tables)
        self._feeds = feeds
        self._sought = sought
        self.surveyed = known.surveyed
        self.pending: dict[str, TableCoverage] = {table: known.tables[table] for table in sorted(known.unstaged)}
        """What is not in any manifest yet."""

    @property
    def known(self) -> Mapping[str, TableCoverage]:
        return self._known

    @property
    def whole(self) -> frozenset[str]:
        return frozenset(table for table, coverage in self._known.items() if coverage.whole)

    @property
    def partial(self) -> dict[str, TableCoverage]:
        return {table: coverage for table, coverage in sorted(self._known.items()) if not coverage.whole}

    def survey(self, survey: SourceSurvey, *, captured: str = "") -> None:
        """Adds the result of a survey, before blocks that begin before its position.

        captured: the pipeline's rules, as in Surveyed.
        """
        place, seq = str(survey.position), survey.position.seq - 1
        for table, rows in survey.tables.items():
            covered = self._known.get(table)
            first = TableCoverage(
                How.EXISTING,
                seq,
                survey.at_us,
                place,
                rows,
                absent_seq=self._absent_seq(table),
                appeared=self.surveyed.seq > 0,
            )
            if table in survey.empty:
                # Staged rows may have gone with their parents: that the table is empty does not make these go.
                if covered is None or (covered.how is How.EXISTING and not covered.cascaded_seq):
                    of = covered or first
                    self._set(
                        table, replace(first, how=How.EMPTY, rows=None, absent_seq=of.absent_seq, appeared=of.appeared)
                    )
            elif covered is None:
                self._set(table, first)
            elif covered.how is How.EXISTING and covered.rows is None and rows is not None:
                self._set(table, replace(covered, rows=rows))
            elif covered.gone and not covered.whole:  # it was created again, which the log may not say
                self._set(table, replace(covered, absent_seq=0))
        if survey.complete:
            # A session that does not log can drop a table: without it, no copy is due.
            for table, covered in list(self._known.items()):
                if covered.due and table not in survey.tables:
                    self._set(table, replace(covered, absent_seq=seq))
            self.surveyed, self._sought = Surveyed(seq, captured), lambda database, table: True
        elif not self.surveyed.seq:
            self.surveyed = Surveyed(0, captured)

    def declared_empty(self, tables: Iterable[str], position: Position, at_us: int) -> None:
        """Tables that the pipeline file says were empty at the position where a source that is new begins."""
        for table in tables:
            if table not in self._known and self._logical(table):
                self._set(table, TableCoverage(How.EMPTY, position.seq - 1, at_us, str(position)))

    def left_out(self, position: Position, at_us: int) -> None:
        """Tables that the pipeline no longer captures miss changes from here on."""
        for table, coverage in list(self._known.items()):
            if coverage.how is not How.LEFT_OUT and not self._logical(table):
                self._set(
                    table, TableCoverage(How.LEFT_OUT, position.seq - 1, at_us, str(position), feeds=coverage.feeds)
                )

    def captured_again(self, isolated: Container[str], position: Position, at_us: int) -> None:
        """Tables that were left out or isolated before are captured from here on, except those in `isolated`."""
        for table, coverage in list(self._known.items()):
            if not coverage.how.captured and self._logical(table):
                how = How.ISOLATED if table in isolated else How.CAPTURED_AGAIN
                if how is not coverage.how:
                    self._set(table, TableCoverage(how, position.seq - 1, at_us, str(position)))

    def other_rules(self, tables: Mapping[str, str], position: Position, at_us: int) -> None:
        """Rows of these tables were staged under other rules up to here, unless they had none until now. Where changes
        were missed as well, a copy is due that brings all. tables: with the rules from here on, as in TableCoverage."""
        for table, rules in tables.items():
            covered = self._known.get(table)
            if covered is None or covered.gone or (covered.how is not How.COPIED and covered.seq == position.seq - 1):
                continue
            if covered.how.whole or covered.how is How.EXISTING:
                what = TableCoverage(How.OTHER_RULES, position.seq - 1, at_us, str(position), covered.rows)
                self._set(table, replace(what, cascaded_seq=covered.cascaded_seq, rules=rules))

    def add(self, block: Block) -> None:
        """Takes what a block says."""
        for event in sorted(self._events(block), key=lambda event: (event.seq, event.what is Happened.ROWS)):
            for table in self._meant(event.table):
                covered = self._known.get(table)
                changed = after(covered, event, surveyed_seq=self._absent_seq(table))
                if changed is not None and changed is not covered:
                    self._set(table, changed)
        for table in block.isolated:
            covered = self._known.get(table)
            if covered is None or covered.how is not How.ISOLATED:
                end = block.end
                moment_us = int(block.entries.commit_ts_us.max())
                # Before the end, so that a copy at the end is later.
                self._set(table, TableCoverage(How.ISOLATED, end.seq - 1, moment_us, str(end)))

    def _meant(self, table: str) -> list[str]:
        if table == ANY_TABLE:
            return list(self._known)
        if table.endswith(EACH_TABLE):
            database = table.removesuffix(EACH_TABLE)
            return [name for name in self._known if name.partition(".")[0] == database]
        return [table]

    def _events(self, block: Block) -> Iterator[TableEvent]:
        yield from block.happened
        for part in block.tables:
            if part.schema.name not in self._known:
                yield _event(block, part, 0, Happened.ROWS)
            ops = part.rows.column(OP)
            if TRUNCATE in ops.dictionary.to_pylist():
                numbers = ops.to_pylist()
                for row, op in enumerate(numbers):
                    if op == TRUNCATE:
                        yield _event(block, part, row, Happened.TRUNCATED)

    def _set(self, table: str, coverage: TableCoverage) -> None:
        feeds = self._logical(table) or coverage.feeds
        self._known[table] = self.pending[table] = replace(coverage, feeds=feeds)

    def _absent_seq(self, table: str) -> int:
        """The order key at which a table of which nothing is known did not exist; 0 where that is unknown."""
        database, _, name = table.partition(".")
        return self.surveyed.seq if self._sought(database, name) else 0

    def _logical(self, table: str) -> tuple[str, ...]:
        database, _, name = table.partition(".")
        return self._feeds(database, name)


def _event(block: Block, part: TableRows, row: int, what: Happened) -> TableEvent:
    moment = part.rows.column(TS)[row]
    seq = part.rows.column(SEQ)[row].as_py()
    place = str(block.position_after(int(part.entry[row])))
    return TableEvent(part.schema.name, what, seq, moment.value or 0, place)
