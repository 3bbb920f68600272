"""One logical table, range by range: rows of both sides are read, compared, and judged by the staged changes.

A range is a chunk of a source table and the rows of the target with the same keys. The source's rows of the next range
are read while those of the target are. A table that cannot be cut (ranges) is one range.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, replace

import numpy as np

from cdc_core.config import MysqlTarget, TargetTable
from cdc_core.errors import LockstepError, Refused
from cdc_core.model.block import TableRows
from cdc_core.model.readable import counted
from cdc_core.model.schema import TableSchema
from cdc_core.operations.apply.table_rules import key_of, keys_apart
from cdc_core.operations.copy.key_ranges import Key
from cdc_core.operations.verify import lookup, staged_history
from cdc_core.operations.verify.canonical import values_of
from cdc_core.operations.verify.columnwise import ColumnPiece
from cdc_core.operations.verify.comparison import Comparison, Difference, Verdict
from cdc_core.operations.verify.feeding import Feeding
from cdc_core.operations.verify.modes import Mode
from cdc_core.operations.verify.range_rows import RangeRows
from cdc_core.operations.verify.ranges import why_whole
from cdc_core.operations.verify.results import Finding, TableResult, finding_id
from cdc_core.operations.verify.shape import RowRange, TargetSide, shape_of
from cdc_core.operations.verify.source_rows import Read, SourceTables, Take, columns_of
from cdc_core.operations.verify.staged_batches import Consumed, StagedBatches
from cdc_core.operations.verify.target_rows import ServerSide, TargetTables
from cdc_core.operations.verify.verify_job import VerifyJob, digest
from cdc_core.operations.verify.verify_progress import SourceSpan, Tally, figures_of, joined
from cdc_core.targets.reading.destination import TableUse

KEPT_ROWS = 10_000
"""Findings of a table whose keys are kept, for a repair."""
SHOWN_ROWS = 100
"""Findings of a table whose rows are read again and shown."""
_SAMPLED_ROWS, _SAMPLED_RANGES = 1000, 200
"""The fewest rows of a sample's range, and about how many ranges a larger table has."""


@dataclass(frozen=True, slots=True)
class _Range(RowRange):
    """driver: as in Tally. rows: about how many."""

    driver: int = 0
    rows: int = 0


@dataclass(frozen=True, slots=True)
class _Begun:
    """A range whose source rows have been read."""

    range_: _Range
    rows: RangeRows
    spans: tuple[SourceSpan, ...]


def _chosen_by(seed: str, share: float) -> bool:
    """Whether a sample has a range: the same for the same seed."""
    return random.Random(seed).random() < share


class ComparedTable:
    """One logical table. targets: the target's sessions, which several tables may share; the caller closes them.

    whole: why it cannot be cut into ranges, for people; "" where it can. Raises Refused (verify.not_comparable), and
    what opening the destination raises.
    """

    def __init__(self, job: VerifyJob, name: str, feeding: Feeding, targets: TargetTables) -> None:
        self.job = job
        self.name = name
        self.feeding = feeding
        schemas = [source.capture.shape(schema) for source, schema in feeding]
        self.batches = StagedBatches(job, name, [source.name for source, _ in feeding])
        self.shape = shape_of(self._side(schemas, targets), schemas, [schema for _, schema in feeding])
        self.whole = why_whole(self.shape, [schema for _, schema in feeding])
        self._read = {"source": 0, "target": 0}

    @property
    def rule(self) -> TargetTable:
        """What the target decides about the table."""
        table = self.job.target.table(self.name)
        assert table is not None  # no other table is compared
        return table

    def _side(self, schemas: Sequence[TableSchema], targets: TargetTables) -> TargetSide:
        """The target's table. Raises what opening it raises."""
        job, target, key = self.job, self.job.target, key_of(self.job.target, self.name, schemas)
        shared, pipeline = keys_apart(job.pipeline, self.name, key, self.rule.shared_keys, schemas), job.opened.name
        if isinstance(target, MysqlTarget):
            use = TableUse(key=key, writing=False, shared=shared, pipeline=pipeline)
            return ServerSide.opened(target, self.name, schemas, use, targets)
        catalog = targets.catalog(target)
        from cdc_core.lake.lake_tables import mirror_rule  # needs an extra
        from cdc_core.operations.verify.lake_rows import LakeSide

        return LakeSide.opened(target, catalog, mirror_rule(target, pipeline, self.name, key), shared=shared)

    def consumed(self) -> Consumed:
        """What the target has, at least, when its rows are read after this."""
        consumed = self.batches.consumed()
        self.shape.side.renew()
        return consumed

    @property
    def definition(self) -> str:
        """A digest of what is compared, where it is, and how it is cut."""
        sources = [[source.name, schema.name, schema.id] for source, schema in self.feeding]
        return digest([sources, self.shape.side.definition(self.shape), self.whole])

    def ranges(self, tally: Tally, seed: int, most_bytes: int) -> Iterator[Tally]:
        """What is known after each range, from what is known already, until nothing is left. most_bytes: that the keys
        of findings may take."""
        job, sampled = self.job, self.job.mode is Mode.RANDOM
        if sampled and self.whole:
            raise Refused(
                f"{self.name} cannot be sampled: {self.whole}.",
                where=self.name,
                code="verify.mode",
                remedy="verify the table with --mode ordered",
            )
        if tally.ranges:
            job.opened.progress.note(f"{self.name}: continues after {counted(tally.source_rows, 'verified row')}.")
        self._read = {"source": tally.source_rows, "target": tally.target_rows}
        yield from self._sample(tally, seed, most_bytes) if sampled else self._every_range(tally, most_bytes)

    def _every_range(self, tally: Tally, most_bytes: int) -> Iterator[Tally]:
        """The source's rows of the next range are read while those of the target are."""
        ahead: _Begun | None = None
        with ThreadPoolExecutor(1, thread_name_prefix="verify") as beside:
            try:
                while not tally.complete:
                    began_s = time.monotonic()
                    begun = ahead or self._begun(self._next(tally.driver, tally.reached))
                    ahead, failed = None, None
                    with closing(begun.rows):
                        consumed = self.consumed()
                        differing = beside.submit(self._compared, begun)
                        try:
                            if begun.range_.through:
                                ahead = self._begun(self._next(begun.range_.driver, begun.range_.through))
                        except LockstepError as error:
                            failed = error  # of the next range: this one counts
                        found = self._judged(begun, differing.result(), consumed)
                    found = replace(found, seconds=time.monotonic() - began_s)
                    tally = tally.plus(found, most_first=KEPT_ROWS, most_bytes=most_bytes)
                    yield tally
                    if failed is not None:
                        raise failed
            finally:
                if ahead is not None:
                    ahead.rows.close()

    def _sample(self, tally: Tally, seed: int, most_bytes: int) -> Iterator[Tally]:
        # So few rows a range that there are many ranges to choose from.
        estimated = sum(source.rows_estimated(schema) for source, schema in self.feeding)
        most_rows = max(_SAMPLED_ROWS, estimated // _SAMPLED_RANGES)
        while not tally.complete:
            began_s = time.monotonic()
            range_ = self._next(tally.driver, tally.reached, most_rows)
            place = f"{seed}/{self.name}/{range_.driver}/{tally.reached}"
            # Of a table without a chosen range, the last one is read.
            if _chosen_by(place, self.job.share) or not (range_.through or tally.ranges):
                found = replace(self._found(range_), seconds=time.monotonic() - began_s)
                tally = tally.plus(found, most_first=KEPT_ROWS, most_bytes=most_bytes)
            else:
                tally = replace(
                    tally,
                    driver=range_.driver,
                    reached=range_.through or tally.reached,
                    skipped_rows=tally.skipped_rows + range_.rows,
                    complete=not range_.through,
                )
            yield tally

    def compared(self, keys: Sequence[str]) -> TableResult:
        """What the rows with these keys show, texts of `row_texts`: in one range, of which nothing is kept in meta."""
        return self.result(self._found(_Range(wanted=keys)))

    def counts(self) -> tuple[int, int]:
        """How many rows the sources have, and the target: one after the other, so that they are of the same place of
        the log only if nothing is written."""
        return sum(source.count(schema)[0] for source, schema in self.feeding), self.target_rows()

    def target_rows(self) -> int:
        """How many rows the target has, in all shards."""
        return self.shape.side.count(self.shape)

    def ends_alike(self) -> bool | None:
        """Whether both sides have the same greatest key, if nothing is written; None where keys do not tell, or the
        source has no rows."""
        if self.whole or len(self.feeding) != 1:
            return None
        ((source, schema),) = self.feeding
        last = source.last_key(schema)
        return self.reaches(last) if last else None

    def reaches(self, last: Key) -> bool:
        """Whether the target has this key, and none after it."""
        return self.shape.side.reaches(self.shape, last)

    def _found(self, range_: _Range) -> Tally:
        """What a range alone has shown."""
        begun = self._begun(range_)
        with closing(begun.rows):
            consumed = self.consumed()
            return self._judged(begun, self._compared(begun), consumed)

    def _next(self, driver: int, above: Key, most_rows: int | None = None) -> _Range:
        """The range after a key. most_rows: of a sample, where it has exactly as many."""
        if self.whole:
            return _Range()
        for number in range(driver, len(self.feeding)):
            source, schema = self.feeding[number]
            rows = None if most_rows is None else min(source.chunk_rows(schema), most_rows)
            through = source.end_of_range(schema, above, rows)
            if through:
                return _Range(above, through, driver=number, rows=rows or 0)
        return _Range(above, driver=len(self.feeding))

    def _begun(self, range_: _Range) -> _Begun:
        """The source's rows of a range."""
        rows = RangeRows(keyed=bool(self.shape.key), apart=self.shape.side.shared)
        try:
            spans = self._read_source(rows, range_)
        except BaseException:
            rows.close()
            raise
        return _Begun(range_, rows, spans)

    def _compared(self, begun: _Begun) -> int:
        """Reads the target's rows of a range; how many keys differ."""
        self._read_target(begun.rows, begun.range_)
        return begun.rows.differing()

    def _judged(self, begun: _Begun, differing: int, consumed: Consumed) -> Tally:
        """What a range has shown whose rows of both sides have been read."""
        range_, rows = begun.range_, begun.rows
        tally = Tally(
            self.definition,
            range_.driver,
            range_.through or range_.above,
            not range_.through,
            ranges=1,
            spans=begun.spans,
            consumed_until=consumed.until,
            source_rows=rows.rows["source"],
            target_rows=rows.rows["target"],
        )
        if not differing:
            return tally
        verdict = self._verdict(rows.comparison, begun.spans, consumed.batches)
        return replace(
            tally,
            moving=verdict.moving,
            unsettled=verdict.unsettled,
            found=verdict.by_wrong,
            first=verdict.first,
        )

    def _verdict(self, comparison: Comparison, spans: Sequence[SourceSpan], consumed: frozenset[str]) -> Verdict:
        chains = self.batches.chains_until(spans)
        bounds = {span.source: (span.low.seq, span.high.seq) for span in spans}
        differences = comparison.differences()
        for events in staged_history.events(
            self.job.opened.store,
            chains,
            self.shape,
            consumed,
            comparison.differing_keys(),
            bounds,
            known_from=differences.known_from,
        ):
            differences.add(events)
        return differences.judge(whole=self.batches.is_whole(chains), most=KEPT_ROWS)

    def result(self, tally: Tally) -> TableResult:
        """What the ranges have shown together, once the tally is complete."""
        return TableResult(
            self.name,
            mode=self.job.mode,
            findings=tuple(self._findings(tally.first)),
            columns=tuple(column.name for column in self.shape.columns),
            left_out=self.shape.left_out,
            whole=self.whole,
            **figures_of(tally),
        )

    def _findings(self, differences: Sequence[Difference]) -> Iterator[Finding]:
        """The first SHOWN_ROWS with the rows as both sides have them now, where they are found by their keys."""
        shape, shown = self.shape, [difference.key for difference in differences[:SHOWN_ROWS]]
        source: dict[str, list[tuple[int, list[str | None]]]] = {}
        target = source
        if shown and shape.key and shape.masked.isdisjoint(shape.key):
            begun = self._begun(_Range(wanted=shown))
            with closing(begun.rows):
                self._read_target(begun.rows, begun.range_)
                source, target = begun.rows.values("source"), begun.rows.values("target")
        for difference in differences:
            mine, theirs = source.get(difference.key, []), target.get(difference.key, [])
            columns: dict[str, tuple[str | None, str | None]] = {}
            if len(mine) == 1 and len(theirs) == 1:
                for column, here, there in zip(shape.columns, mine[0][1], theirs[0][1], strict=True):
                    if here != there:
                        columns[column.name] = (None, None) if column.name in shape.masked else (here, there)
            key = dict(zip((column.name for column in shape.key_or_all), values_of(difference.key), strict=True))
            key = {name: None if name in shape.masked else value for name, value in key.items()}
            shards = tuple(shape.side.places[place] for place, _ in theirs)
            name = finding_id(self.name, difference.key)
            yield Finding(
                name,
                self.name,
                difference.kind,
                difference.wrong,
                key,
                columns,
                difference.source_rows,
                difference.target_rows,
                shards,
            )

    def _read_source(self, into: RangeRows, range_: _Range) -> tuple[SourceSpan, ...]:
        """Between which places the range was read."""
        spans: tuple[SourceSpan, ...] = ()
        shape = self.shape
        names = [column.name for column in shape.columns]
        key = [names.index(column.name) for column in shape.key_or_all]

        def take(rows: TableRows) -> None:
            columns = columns_of(rows)
            held = shape.side.as_held(rows.rows)
            piece = ColumnPiece(held, [columns[name] for name in names], key, shape.errors)
            into.add("source", piece, shape.side.shard_numbers(held))

        for number, (source, schema) in enumerate(self.feeding):
            reads: Iterable[Read]
            if range_.wanted is not None:
                reads = self._looked_up(source, schema, range_.wanted, take)
            else:
                # Of each table, the last range has fewer rows than a chunk; others are those of the table that cuts.
                at_once = not self.whole and (number == range_.driver or not range_.through)
                reads = source.read(schema, self.name, take, range_.above, range_.through, at_once=at_once)
            for read in reads:
                self._read["source"] += read.rows
                self.job.report(self.name, "source", self._read["source"])
                spans = joined(spans, [SourceSpan(source.name, read.low, read.high)])
        return spans

    def _looked_up(self, source: SourceTables, schema: TableSchema, keys: Sequence[str], take: Take) -> Iterator[Read]:
        own = {column.name: column for column in schema.columns}
        for some in lookup.pieces(keys):
            where = lookup.condition([own[name] for name in self.shape.key], some, self.shape.errors)
            yield source.lookup(schema, self.name, where, take)

    def _read_target(self, into: RangeRows, range_: _Range) -> None:
        shape = self.shape
        names = [column.name for column in shape.columns]
        key = [names.index(column.name) for column in shape.key_or_all]
        for place, batch, columns in shape.side.batches(shape, range_):
            into.add("target", ColumnPiece(batch, columns, key, shape.errors), np.full(batch.num_rows, place))
            self._read["target"] += batch.num_rows
            self.job.report(self.name, "target", self._read["target"])
