"""One logical table, range by range: rows of both sides are read, compared, and judged by the staged changes.

A range is a chunk of a source table and the rows of the target with the same keys. The source's rows of the next range
are read while those of the target are. A table that cannot be cut (ranges) is one range.
"""

from __future__ import annotations

import random
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from cdc_core.errors import LockstepError, Refused
from cdc_core.model.block import TableRows
from cdc_core.model.readable import counted
from cdc_core.model.schema import TableSchema
from cdc_core.operations.apply.plan import key_of, keys_apart
from cdc_core.operations.copy import key_ranges as keys
from cdc_core.operations.copy.key_ranges import Key
from cdc_core.operations.verify import lookup, staged_history, target_rows
from cdc_core.operations.verify.canonical import has_errors
from cdc_core.operations.verify.columnwise import ColumnPiece
from cdc_core.operations.verify.comparison import Comparison, Difference, Verdict
from cdc_core.operations.verify.counting import CountedTable
from cdc_core.operations.verify.feeding import Feeding
from cdc_core.operations.verify.modes import Mode
from cdc_core.operations.verify.opened_findings import OpenedFindings
from cdc_core.operations.verify.range_rows import RangeRows
from cdc_core.operations.verify.ranges import why_whole
from cdc_core.operations.verify.results import TableResult
from cdc_core.operations.verify.shape import Shape, shape_of
from cdc_core.operations.verify.source_rows import Read, SourceTables, Take, columns_of
from cdc_core.operations.verify.staged_batches import Consumed, StagedBatches
from cdc_core.operations.verify.target_rows import TargetTables
from cdc_core.operations.verify.verify_job import VerifyJob, digest
from cdc_core.operations.verify.verify_progress import SourceSpan, Tally, figures_of, joined
from cdc_core.targets.reading.destination import Shard, TableUse, open_destination

KEPT_ROWS = 10_000
"""Findings of a table whose keys are kept, for a repair."""
LOOKED_UP_KEYS = 1_000
"""Keys of one statement where only some rows are verified."""
_SAMPLED_ROWS, _SAMPLED_RANGES = 1000, 200
"""Of a sample: the fewest rows of a range, and about how many ranges a larger table has."""


@dataclass(frozen=True, slots=True)
class _Range:
    """Keys after `above`. driver: as in Tally. through: None for all that follow. rows: about how many. wanted: only
    rows with these keys, texts of `row_texts`, wherever they are."""

    above: Key
    driver: int
    through: Key | None
    rows: int = 0
    wanted: Sequence[str] | None = None


@dataclass(frozen=True, slots=True)
class _Begun:
    """A range whose source rows have been read."""

    range_: _Range
    rows: RangeRows
    spans: tuple[SourceSpan, ...]


def _pieces(keys: Sequence[str]) -> Iterator[Sequence[str]]:
    for at in range(0, len(keys), LOOKED_UP_KEYS):
        yield keys[at : at + LOOKED_UP_KEYS]


def _chosen_by(seed: str, share: float) -> bool:
    """Whether a sample has a range: the same for the same seed."""
    return random.Random(seed).random() < share


class ComparedTable:
    """One logical table."""

    def __init__(self, job: VerifyJob, name: str, feeding: Feeding, targets: TargetTables) -> None:
        self._job = job
        self._name = name
        self._feeding = feeding
        self._targets = targets
        schemas = [source.capture.shape(schema) for source, schema in feeding]
        rule = job.target.table(name)
        assert rule is not None
        key = key_of(job.target, name, schemas)
        shared = keys_apart(job.pipeline, name, key, rule.shared_keys, schemas)
        use = TableUse(key=key, writing=False, shared=shared, pipeline=job.opened.name)
        destination = open_destination(job.target, name, schemas, use, job.opened.environ)
        self._shape = shape_of(destination, schemas, [schema for _, schema in feeding])
        self._whole = why_whole(self._shape, [schema for _, schema in feeding])
        self._batches = StagedBatches(job, name, [source.name for source, _ in feeding])
        self._read = {"source": 0, "target": 0}

    @property
    def shape(self) -> Shape:
        return self._shape

    @property
    def definition(self) -> str:
        """A digest of what is compared, where it is, and how it is cut."""
        shards = [
            [shard.server.host, shard.server.port, shard.table.name, target_rows.schema_of(self._shape, shard).id]
            for shard in self._shape.destination.shards
        ]
        sources = [[source.name, schema.name, schema.id] for source, schema in self._feeding]
        return digest([sources, shards, self._whole])

    def ranges(self, tally: Tally, seed: int, most_bytes: int) -> Iterator[Tally]:
        """What is known after each range, from what is known already, until nothing is left. most_bytes: that the keys
        of findings may take."""
        job, sampled = self._job, self._job.mode is Mode.RANDOM
        if sampled and self._whole:
            raise Refused(
                f"{self._name} cannot be sampled: {self._whole}.",
                where=self._name,
                code="verify.mode",
                remedy="verify the table with --mode ordered",
            )
        if tally.ranges:
            job.opened.progress.note(f"{self._name}: continues after {counted(tally.source.rows, 'verified row')}.")
        self._read = {"source": tally.source.rows, "target": tally.target.rows}
        yield from self._sample(tally, seed, most_bytes) if sampled else self._every_range(tally, most_bytes)

    def _every_range(self, tally: Tally, most_bytes: int) -> Iterator[Tally]:
        """The source's rows of the next range are read while those of the target are."""
        ahead: _Begun | None = None
        with ThreadPoolExecutor(1, thread_name_prefix="verify") as beside:
            try:
                while not tally.complete:
                    began_s = time.monotonic()
                    begun = ahead or self._begun(self._next(tally.driver, tally.reached, None))
                    ahead, failed = None, None
                    with closing(begun.rows):
                        consumed = self._batches.consumed()
                        differing = beside.submit(self._compared, begun)
                        try:
                            if begun.range_.through is not None:
                                ahead = self._begun(self._next(begun.range_.driver, begun.range_.through, None))
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
        most_rows = self._sampled_rows()
        while not tally.complete:
            began_s = time.monotonic()
            range_ = self._next(tally.driver, tally.reached, most_rows)
            ended = range_.through is None
            place = f"{seed}/{self._name}/{range_.driver}/{tally.reached}"
            # Of a table without a chosen range, the last one is read.
            if _chosen_by(place, self._job.share) or (ended and not tally.ranges):
                found = replace(self._found(range_), seconds=time.monotonic() - began_s)
                tally = tally.plus(found, most_first=KEPT_ROWS, most_bytes=most_bytes)
            else:
                tally = replace(
                    tally, driver=range_.driver, reached=range_.through or tally.reached,
                    skipped_rows=tally.skipped_rows + range_.rows, complete=ended,
                )  # fmt: skip
            yield tally

    def counted(self) -> TableResult:
        """Of the modes that only count."""
        return self._counting().counted()

    def ends_alike(self) -> bool | None:
        """Whether both sides have the same greatest key, if nothing is written; None where keys do not tell, or the
        source has no rows."""
        if self._whole or len(self._feeding) != 1:
            return None
        ((source, schema),) = self._feeding
        last = source.last_key(schema)
        return self._counting().reaches(last) if last else None

    def _counting(self) -> CountedTable:
        job, whole = self._job, self._whole
        return CountedTable(job, self._name, self._shape, self._feeding, self._targets, self._batches, whole)

    def compared(self, keys: Sequence[str]) -> TableResult:
        """What the rows with these keys show, texts of `row_texts`."""
        return self.result(self._found(_Range((), 0, None, wanted=keys)))

    def looked_at_again(self, tally: Tally, earlier: Sequence[Difference]) -> Tally:
        """Without those differences that were found before an interruption, and that somebody has repaired since."""
        shape = self._shape
        keys = [one.key for one in earlier if not has_errors(one.key)]
        if not keys or not shape.key or shape.masked & set(shape.key):
            return tally
        return tally.judged_again(keys, self._found(_Range((), 0, None, wanted=keys)))

    def _found(self, range_: _Range) -> Tally:
        """What a range alone has shown."""
        begun = self._begun(range_)
        with closing(begun.rows):
            consumed = self._batches.consumed()
            return self._judged(begun, self._compared(begun), consumed)

    def _range_rows(self) -> RangeRows:
        def opened(stack: ExitStack) -> Comparison:
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="lockstep-verify-"))
            shape = self._shape
            return stack.enter_context(Comparison(Path(folder), keyed=bool(shape.key), apart=shape.destination.shared))

        return RangeRows(opened)

    def _sampled_rows(self) -> int:
        """Rows of a range of a sample: so few that there are many ranges to choose from."""
        estimated = sum(source.rows_estimated(schema) for source, schema in self._feeding)
        return max(_SAMPLED_ROWS, estimated // _SAMPLED_RANGES)

    @property
    def _reads_ahead(self) -> bool:
        """Whether reading a range finds its end: one table feeds it, so that the rows are those of the range."""
        return not self._whole and len(self._feeding) == 1 and self._job.mode is not Mode.RANDOM

    def _next(self, driver: int, above: Key, most_rows: int | None) -> _Range:
        """The range after a key. Its end is found here, or by reading it."""
        if self._whole:
            return _Range((), 0, None)
        if self._reads_ahead:
            source, schema = self._feeding[0]
            return _Range(above, 0, None, source.chunk_rows(schema))
        for number in range(driver, len(self._feeding)):
            source, schema = self._feeding[number]
            rows = source.chunk_rows(schema)
            rows = rows if most_rows is None else min(rows, most_rows)
            through = source.edge(schema, above, rows)
            if through is not None:
                return _Range(above, number, through, rows)
        return _Range(above, len(self._feeding), None)

    def _begun(self, range_: _Range) -> _Begun:
        """The source's rows of a range, and where it ends."""
        rows = self._range_rows()
        try:
            range_, spans = self._read_source(rows, range_)
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
        found = Tally(
            self.definition, range_.driver, range_.through or range_.above, range_.through is None,
            ranges=1, spans=begun.spans, consumed_until=consumed.until,
            source=rows.side("source"), target=rows.side("target"),
        )  # fmt: skip
        if not differing:
            return found
        verdict = self._verdict(rows.comparison, begun.spans, consumed.batches)
        # Where nothing tells what the target has, a row of any earlier moment would pass for one that lags.
        moving = verdict.moving if consumed.known else 0
        return replace(
            found,
            moving=moving,
            unsettled=verdict.unsettled + verdict.moving - moving,
            found=verdict.by_wrong,
            first=verdict.first,
        )

    def _verdict(self, comparison: Comparison, spans: Sequence[SourceSpan], consumed: frozenset[str]) -> Verdict:
        chains = self._batches.chains_until(spans)
        bounds = {span.source: (span.low.seq, span.high.seq) for span in spans}
        differences = comparison.differences()
        for events in staged_history.events(
            self._job.opened.store, chains, self._shape, consumed, comparison.differing_keys(), bounds,
            known_from=differences.known_from,
        ):  # fmt: skip
            differences.add(events)
        return differences.judge(whole=self._batches.is_whole(chains), most=KEPT_ROWS)

    def result(self, tally: Tally) -> TableResult:
        """What the ranges have shown together, once the tally is complete."""
        opened = OpenedFindings(self._name, self._shape, self._feeding, self._targets).opened(tally.first)
        return TableResult(
            self._name,
            mode=self._job.mode,
            findings=tuple(opened),
            columns=tuple(column.name for column in self._shape.columns),
            left_out=self._shape.left_out,
            whole=self._whole,
            unreplayed=tally.unsettled > 0 and not self._batches.consumed().known,
            **figures_of(tally),
        )

    def _read_source(self, into: RangeRows, range_: _Range) -> tuple[_Range, tuple[SourceSpan, ...]]:
        """The range with its end, and between which places it was read."""
        spans: tuple[SourceSpan, ...] = ()
        shape = self._shape
        names = [column.name for column in shape.columns]
        key = [names.index(column.name) for column in shape.key_or_all]

        def take(rows: TableRows) -> None:
            columns = columns_of(rows)
            piece = ColumnPiece(rows.rows, [columns[name] for name in names], key, shape.errors)
            into.add("source", piece, shape.destination.shard_numbers(rows.rows))

        for number, (source, schema) in enumerate(self._feeding):
            reads: Iterable[Read]
            if range_.wanted is not None:
                reads = self._looked_up(source, schema, range_.wanted, take)
            elif self._whole:
                reads = source.read(schema, self._name, take)
            elif self._reads_ahead:
                one, through = source.read_next(schema, self._name, range_.above, range_.rows, take)
                reads, range_ = [one], replace(range_, through=through)
            elif range_.through is None:
                # Of the table that has cut the ranges, fewer rows than a chunk has are left.
                reads = source.read_after(schema, self._name, range_.above, take, at_once=len(self._feeding) == 1)
            else:
                at_once = number == range_.driver
                reads = source.read_range(schema, self._name, range_.above, range_.through, take, at_once=at_once)
            for read in reads:
                self._read["source"] += read.rows
                self._job.report(self._name, "source", self._read["source"])
                spans = joined(spans, [SourceSpan(source.name, read.low, read.high)])
        return range_, spans

    def _looked_up(self, source: SourceTables, schema: TableSchema, keys: Sequence[str], take: Take) -> Iterator[Read]:
        own = {column.name: column for column in schema.columns}
        for some in _pieces(keys):
            where = lookup.condition([own[name] for name in self._shape.key], some, self._shape.errors)
            yield source.lookup(schema, self._name, where, take)

    def _read_target(self, into: RangeRows, range_: _Range) -> None:
        shape = self._shape
        names = [column.name for column in shape.columns]
        key = [names.index(column.name) for column in shape.key_or_all]
        for number, shard in enumerate(shape.destination.shards):
            for tail in self._tails(shard, range_):
                for batch, columns in self._targets.batches(shape, shard, tail):
                    into.add("target", ColumnPiece(batch, columns, key, shape.errors), np.full(batch.num_rows, number))
                    self._read["target"] += batch.num_rows
                    self._job.report(self._name, "target", self._read["target"])

    def _tails(self, shard: Shard, range_: _Range) -> Iterator[str]:
        """What follows the table's name in the statements that read the range."""
        if range_.wanted is not None:
            for some in _pieces(range_.wanted):
                yield f"WHERE {target_rows.condition(self._shape, shard, some)}"
        elif self._whole:
            yield ""
        else:
            schema = target_rows.schema_of(self._shape, shard)
            where = f"WHERE {keys.after(schema, range_.above)} AND {keys.up_to(schema, range_.through or ())}"
            down = keys.downwards(range_.through or range_.above)
            yield f"{where} ORDER BY {keys.ordered(schema, down)}" if self._reads_ahead and down else where
