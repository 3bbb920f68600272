"""One verification: the tables of a pipeline at one target, one after the other, each range by range.

A range is a chunk of a source table and the rows of the target with the same keys; it is judged as soon as it is read,
and then in meta (progress), so that a killed verification continues after it. A table that cannot be cut (ranges) is
one range. It must keep true that a table is equal, different, or said not to be proven: nothing that was not compared
counts as equal.
"""

from __future__ import annotations

import hashlib
import json
import logging
import random
import re
import secrets
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from cdc_core.apply.plan import key_of, keys_apart
from cdc_core.config import Pipeline, Target
from cdc_core.connections import quote
from cdc_core.errors import LockstepError, Refused, RetryLater, UsageError
from cdc_core.meta import Lease, Meta
from cdc_core.model.batch import Manifest
from cdc_core.model.block import TableRows
from cdc_core.model.schema import Column, TableSchema
from cdc_core.snapshot import keys
from cdc_core.snapshot.keys import Key
from cdc_core.stage import coverage
from cdc_core.stage import manifest as manifests
from cdc_core.stage.objects import ObjectStore
from cdc_core.target.destination import Shard, open_destination
from cdc_core.verify import history, lookup, target_rows
from cdc_core.verify.canonical import has_errors, row_texts, shown_texts, values_of
from cdc_core.verify.columnwise import Piece
from cdc_core.verify.comparison import Comparison, Difference, Kind, Side, Verdict, Wrong
from cdc_core.verify.counts import excess_of, judged
from cdc_core.verify.modes import Mode
from cdc_core.verify.progress import NOTHING, Progress, SourceSpan, Tally, joined, why_again
from cdc_core.verify.range_rows import RangeRows
from cdc_core.verify.ranges import why_whole
from cdc_core.verify.shape import Shape, shape_of
from cdc_core.verify.source_rows import Read, SourceTables, Take, open_source
from cdc_core.verify.target_rows import TargetTables
from cdc_core.windows import from_us
from cdc_core.words import counted

log = logging.getLogger(__name__)

SHOWN_ROWS = 100
"""Findings of a table whose rows are read again and shown."""
KEPT_ROWS = 10_000
"""Findings of a table whose keys are kept, for a repair."""
KEPT_BYTES = 4 << 20
"""Most that the keys of findings take in meta, of all tables of a verification."""
WAIT_S = 600.0
"""How long the stage may take to reach the place up to which the source was read."""
_PAUSE_S = 2.0
_LOOKED_UP = 100
LOOKED_UP_KEYS = 1_000
"""Keys of one statement where only some rows are verified."""
_SAMPLED_ROWS, _SAMPLED_RANGES = 1000, 200
"""Of a sample: the fewest rows of a range, and about how many ranges a larger table has."""


@dataclass(frozen=True, slots=True)
class Finding:
    """id: of the table and the key. key: by column; null for masked ones. columns: those that differ, with the values
    of source and target; both null for masked ones. shards: tables of the target that have the key. Only the first
    SHOWN_ROWS findings of a table have columns and shards."""

    id: str
    table: str
    kind: Kind
    wrong: Wrong
    key: Mapping[str, str | None]
    columns: Mapping[str, tuple[str | None, str | None]]
    source_rows: int
    target_rows: int
    shards: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class TableResult:
    """A table's verification. error: why it could not be verified; then the figures say nothing.

    consumed_until: by source, up to where the target had consumed the staged batches before its rows were read.
    moving, unsettled: as in Verdict; of a count, whether it is explained by changes, or cannot be judged. findings: the
    first `KEPT_ROWS`, or as many as `KEPT_BYTES` take; found: how many there are, by what is wrong. skipped_rows: about
    how many rows of the source a sample left out. ranges: in which the table was read. whole: why it was read in one
    range, "" where it was cut. greatest_differs: of Mode.MAX_ID.
    """

    table: str
    error: LockstepError | None = None
    mode: Mode = Mode.ORDERED
    spans: tuple[SourceSpan, ...] = ()
    consumed_until: Mapping[str, str] = field(default_factory=dict)
    source: Side = NOTHING
    target: Side = NOTHING
    moving: int = 0
    unsettled: int = 0
    found: Mapping[str, int] = field(default_factory=dict)
    findings: tuple[Finding, ...] = ()
    columns: tuple[str, ...] = ()
    left_out: Mapping[str, str] = field(default_factory=dict)
    skipped_rows: int = 0
    ranges: int = 0
    whole: str = ""
    greatest_differs: bool = False
    seconds: float = 0.0

    @property
    def differences(self) -> int:
        return sum(self.found.values())

    @property
    def agrees(self) -> bool:
        """Nothing was found wrong, as far as the mode looks."""
        return self.error is None and not self.differences and not self.unsettled

    @property
    def equal(self) -> bool:
        """Proven, row by row."""
        return self.agrees and self.mode is Mode.ORDERED


Watch = Callable[[str, str, int], None]
"""Told the table, the side that is read and the rows of it so far."""


@dataclass(frozen=True, slots=True)
class Job:
    """What a verification works with. extract_on: extracts a source up to now, unless another process does.

    lease: the verifier's; without one, nothing is kept in meta, and nothing continued. restart: begins from the start.
    sample_percent, seed: of Mode.RANDOM; None for the pipeline's share, and for a seed of chance. said: takes a line
    for people.
    """

    pipeline: Pipeline
    target: Target
    meta: Meta
    store: ObjectStore
    extract_on: Callable[[str], object]
    environ: Mapping[str, str] | None = None
    progressed: Watch = lambda table, side, rows: None
    wait_s: float = WAIT_S
    lease: Lease | None = None
    mode: Mode = Mode.ORDERED
    restart: bool = False
    sample_percent: float | None = None
    seed: int | None = None
    said: Callable[[str], None] = log.info

    @property
    def share(self) -> float:
        """Of the ranges that a sample reads."""
        percent = self.pipeline.verify.sample_percent if self.sample_percent is None else self.sample_percent
        return percent / 100


@dataclass(frozen=True, slots=True)
class Verified:
    """seed: of a sample. started_us: when it began, also if it was interrupted since; µs UTC, by meta's clock.
    all_tables: of the target, not only some that were asked for."""

    results: tuple[TableResult, ...]
    started_us: int
    seed: int
    all_tables: bool = True


def finding_id(table: str, key: str) -> str:
    """The name of a finding. key: a text of `row_texts`."""
    return hashlib.sha256(f"{table}\0{key}".encode()).hexdigest()[:12]


def verify(job: Job, tables: Sequence[str] | None = None) -> Verified:
    """Verifies these logical tables of the target, or all that it takes and that have a source table.

    Raises UsageError (verify.unknown_table), RetryLater (verify.paused), and what opening the sources raises. What
    concerns one table alone is its result's error.
    """
    with ExitStack() as opened:
        sources = [
            opened.enter_context(open_source(job.pipeline, one.name, job.meta, job.environ, waiting(job, one.name)))
            for one in job.pipeline.sources
        ]
        targets = opened.enter_context(TargetTables())
        feeding = feeding_of(job, sources)
        chosen = _chosen(job, feeding, tables)
        kept = _Kept(job, chosen)
        results = []
        for name in chosen:
            started_s = time.monotonic()
            try:
                result = _verified(job, name, feeding[name], targets, kept)
            except LockstepError as error:
                if error.code == "verify.paused" or (
                    error.retriable and not error.code.startswith(("verify.", "results.", "snapshot."))
                ):
                    raise
                result = TableResult(name, error, job.mode, seconds=time.monotonic() - started_s)
            results.append(result)
        return Verified(tuple(results), kept.progress.started_us, kept.progress.seed, set(chosen) == set(feeding))


def waiting(job: Job, source: str) -> Callable[[str], None]:
    """Says why nothing of a source may be read, for `open_source`."""
    return lambda why: job.said(f"{source}: waiting: {why}")


class _Kept:
    """The progress of a verification, in meta after each range."""

    def __init__(self, job: Job, tables: Sequence[str]) -> None:
        self._job = job
        now_us = job.meta.now_us()
        seed = secrets.randbits(32) if job.seed is None else job.seed
        share = [job.share, job.seed] if job.mode is Mode.RANDOM else []
        scope = digest([config_digest(job.pipeline), job.mode, sorted(tables), share])
        self.progress = Progress(scope, now_us, seed)
        known = job.meta.verification(job.pipeline.pipeline, job.target.name) if job.lease is not None else None
        if known is None or not known.progress:
            return
        found = Progress.from_text(known.progress)
        if job.restart:
            again = "you asked for it (--restart)"
        elif found is None:
            again = "another version of Lockstep began it"
        else:
            again = why_again(found, scope, now_us, job.pipeline.verify.resume_within)
        if again or found is None:
            job.said(f"The verification that was interrupted begins from the start: {again}.")
            return
        self.progress = found
        job.said(f"The verification of {from_us(found.started_us):%Y-%m-%d %H:%M:%S} UTC continues.")

    def tally(self, table: str, definition: str) -> Tally:
        """What is known of a table; of none, or of one that is defined otherwise now, nothing."""
        known = self.progress.tables.get(table)
        if known is not None and known.definition != definition:
            self._job.said(f"{table} begins from the start: it was redefined since its verification was interrupted.")
            known = None
        return known or Tally(definition)

    def bytes_left(self, table: str) -> int:
        """What the keys of a table's findings may take beside those of other tables."""
        return KEPT_BYTES - sum(one.first_bytes for name, one in self.progress.tables.items() if name != table)

    def keep(self, table: str, tally: Tally) -> None:
        """Raises RetryLater (meta.lease_lost)."""
        job = self._job
        self.progress = self.progress.with_table(table, tally)
        if job.lease is not None:
            job.meta.keep_progress(job.lease, job.pipeline.pipeline, job.target.name, self.progress.to_text())


def config_digest(pipeline: Pipeline) -> str:
    """Of a pipeline's definition."""
    return digest(pipeline.model_dump(mode="json"))


def digest(document: object) -> str:
    return hashlib.sha256(json.dumps(document, sort_keys=True).encode()).hexdigest()


class TableKeys:
    """Single rows of one logical table: what a repair looks at.

    feeding: the source tables that feed it, with their definitions before the pipeline's rules.
    """

    def __init__(self, job: Job, sources: Sequence[SourceTables], table: str) -> None:
        """Raises UsageError (verify.unknown_table), and what opening the destination raises."""
        feeding = feeding_of(job, sources)
        _chosen(job, feeding, [table])
        self.feeding: Sequence[tuple[SourceTables, TableSchema]] = feeding[table]
        self._targets = TargetTables()
        self._table = _Table(job, table, self.feeding, self._targets)
        self.shape = self._table.shape

    def verify(self, keys: Sequence[str]) -> TableResult:
        """Compares the rows with these keys, texts of `row_texts`, in one range, of which nothing is kept in meta.

        Raises what verifying a table raises.
        """
        with self._targets:
            return self._table.compared(keys)


def feeding_of(job: Job, sources: Sequence[SourceTables]) -> dict[str, list[tuple[SourceTables, TableSchema]]]:
    """By logical table of the target: the source tables that feed it."""
    found: dict[str, list[tuple[SourceTables, TableSchema]]] = {}
    for source in sources:
        for schema in source.schemas():
            for logical in source.capture.route(schema.database, schema.table):
                if job.target.table(logical) is not None:
                    found.setdefault(logical, []).append((source, schema))
    return found


def _chosen(
    job: Job, feeding: Mapping[str, list[tuple[SourceTables, TableSchema]]], tables: Sequence[str] | None
) -> list[str]:
    if not tables:
        return sorted(feeding)
    for name in tables:
        if name not in feeding:
            raise UsageError(
                f"No source table feeds a table {name!r} of the target {job.target.name!r}.",
                where="lockstep verify",
                code="verify.unknown_table",
                remedy=f"give logical tables, of: {', '.join(sorted(feeding)) or '(none)'}",
            )
    return list(dict.fromkeys(tables))


def _verified(
    job: Job, name: str, feeding: Sequence[tuple[SourceTables, TableSchema]], targets: TargetTables, kept: _Kept
) -> TableResult:
    table = _Table(job, name, feeding, targets)
    if job.mode in (Mode.COUNT, Mode.MAX_ID):
        return table.counted()
    tally = kept.tally(name, table.definition)
    earlier = tally.first
    for latest in table.ranges(tally, kept.progress.seed, kept.bytes_left(name)):
        kept.keep(name, latest)
        tally = latest
    return table.result(table.looked_at_again(tally, earlier))


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


class _Table:
    """One logical table."""

    def __init__(
        self, job: Job, name: str, feeding: Sequence[tuple[SourceTables, TableSchema]], targets: TargetTables
    ) -> None:
        self._job = job
        self._name = name
        self._feeding = feeding
        self._targets = targets
        schemas = [source.capture.shape(schema) for source, schema in feeding]
        rule = job.target.table(name)
        assert rule is not None
        key = key_of(job.target, name, schemas)
        shared = keys_apart(job.pipeline, name, key, rule.shared_keys, schemas)
        destination = open_destination(
            job.target, name, schemas, key=key, ready=False, writing=False, shared=shared, environ=job.environ
        )
        self._shape = shape_of(destination, schemas, [schema for _, schema in feeding])
        self._whole = why_whole(self._shape, [schema for _, schema in feeding])
        self._known: set[str] = set()
        self._chains: dict[str, list[Manifest]] = {}
        self._read = {"source": 0, "target": 0}

    @property
    def shape(self) -> Shape:
        return self._shape

    @property
    def definition(self) -> str:
        """A digest of what is compared, and how it is cut."""
        shards = [
            [shard.table.name, target_rows.schema_of(self._shape, shard).id] for shard in self._shape.destination.shards
        ]
        sources = [[source.name, schema.name, schema.id] for source, schema in self._feeding]
        return digest([sources, shards, self._whole])

    def ranges(self, tally: Tally, seed: int, most_bytes: int) -> Iterator[Tally]:
        """What is known after each range, from what is known already, until nothing is left. most_bytes: that the keys
        of findings may take."""
        job, sampled = self._job, self._job.mode is Mode.RANDOM
        if sampled and self._whole:
            raise Refused(
                f"No sample of {self._name} can be taken: {self._whole}.",
                where=self._name,
                code="verify.not_sampled",
                remedy="verify the table with --mode ordered",
            )
        if tally.ranges:
            job.said(f"{self._name}: continues after {counted(tally.source.rows, 'verified row')}.")
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
                        consumed, consumed_until = self._consumed()
                        differing = beside.submit(self._compared, begun)
                        try:
                            if begun.range_.through is not None:
                                ahead = self._begun(self._next(begun.range_.driver, begun.range_.through, None))
                        except LockstepError as error:
                            failed = error  # of the next range: this one counts
                        found = self._judged(begun, differing.result(), consumed, consumed_until)
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
            consumed, consumed_until = self._consumed()
            return self._judged(begun, self._compared(begun), consumed, consumed_until)

    def _range_rows(self) -> RangeRows:
        def opened(stack: ExitStack) -> Comparison:
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="lockstep-verify-"))
            return stack.enter_context(Comparison(Path(folder), keyed=bool(self._shape.key)))

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

    def _judged(
        self, begun: _Begun, differing: int, consumed: frozenset[str], consumed_until: Mapping[str, str]
    ) -> Tally:
        """What a range has shown whose rows of both sides have been read."""
        range_, rows = begun.range_, begun.rows
        found = Tally(
            self.definition, range_.driver, range_.through or range_.above, range_.through is None, 1,
            spans=begun.spans, consumed_until=consumed_until, source=rows.side("source"), target=rows.side("target"),
        )  # fmt: skip
        if not differing:
            return found
        verdict = self._verdict(rows.comparison, begun.spans, consumed)
        return replace(
            found,
            moving=verdict.moving,
            unsettled=verdict.unsettled,
            found=verdict.by_wrong,
            first=tuple(rows.comparison.findings(KEPT_ROWS)),
        )

    def _verdict(self, comparison: Comparison, spans: Sequence[SourceSpan], consumed: frozenset[str]) -> Verdict:
        chains = self._chains_until(spans)
        lows = {span.source: span.low.seq for span in spans}
        for events in history.events(
            self._job.store, chains, self._shape, consumed,
            wanted=comparison.differing_keys(), known_from=lambda: comparison.known_from(lows),
        ):  # fmt: skip
            comparison.add_events(events)
        bounds = {span.source: (span.low.seq, span.high.seq) for span in spans}
        return comparison.judge(bounds, whole=self._is_whole(chains))

    def counted(self) -> TableResult:
        """Of the modes that only count."""
        started_s = time.monotonic()
        self._require_countable()
        spans: tuple[SourceSpan, ...] = ()
        last: Key = ()
        rows = 0
        for source, schema in self._feeding:
            count, last, read = source.count(schema)
            rows += count
            self._job.progressed(self._name, "source", rows)
            spans = joined(spans, [SourceSpan(source.name, read.low, read.high)])
        consumed, consumed_until = self._consumed()
        shards = self._shape.destination.shards
        there = sum(self._targets.count(self._shape, shard) for shard in shards)
        self._job.progressed(self._name, "target", there)
        reached = self._job.mode is not Mode.MAX_ID or not last or self._reaches(last)
        chains = self._chains_until(spans)
        excess = excess_of(chains, self._name, {one.source: (one.low, one.high) for one in spans}, consumed)
        verdict = judged(rows, there, excess, reached=reached)
        return TableResult(
            self._name, mode=self._job.mode, spans=spans,
            consumed_until=consumed_until, source=Side(rows, ""), target=Side(there, ""), moving=verdict.moving,
            unsettled=verdict.unsettled, found={Wrong.UNKNOWN: verdict.differences} if verdict.differences else {},
            ranges=1, greatest_differs=verdict.differences > 0 and not reached, seconds=time.monotonic() - started_s,
        )  # fmt: skip

    def _require_countable(self) -> None:
        """Raises Refused (verify.not_counted)."""
        names = [schema.name for _, schema in self._feeding]
        why = ""
        if any(re.fullmatch(rule.match, name) for rule in self._job.pipeline.tables.rows for name in names):
            why = "a filter leaves out rows of the source"
        elif len(names) > 1 and self._shape.destination.shared:
            why = "source tables may share keys, so that their rows are fewer in the target"
        elif self._job.mode is Mode.MAX_ID and len(names) > 1:
            why = "several source tables feed it"
        elif self._job.mode is Mode.MAX_ID:
            why = self._whole
        if why:
            raise Refused(
                f"{self._name} cannot be verified in the mode {self._job.mode}: {why}.",
                where=self._name,
                code="verify.not_counted",
                remedy="verify the table with --mode ordered",
            )

    def _reaches(self, last: Key) -> bool:
        """Whether the target has this key, and none that is greater."""
        found = False
        for shard in self._shape.destination.shards:
            schema = target_rows.schema_of(self._shape, shard)
            if self._targets.count(self._shape, shard, f"WHERE {keys.after(schema, last)}"):
                return False
            same = " AND ".join(f"{quote(name)} = {value}" for name, value in zip(schema.key, last, strict=True))
            found = found or bool(self._targets.count(self._shape, shard, f"WHERE {same}"))
        return found

    def result(self, tally: Tally) -> TableResult:
        """What the ranges have shown together, once the tally is complete."""
        return TableResult(
            self._name,
            mode=self._job.mode,
            spans=tally.spans,
            consumed_until=tally.consumed_until,
            source=tally.source,
            target=tally.target,
            moving=tally.moving,
            unsettled=tally.unsettled,
            found=tally.found,
            findings=tuple(self._opened(tally.first)),
            columns=tuple(column.name for column in self._shape.columns),
            left_out=self._shape.left_out,
            skipped_rows=tally.skipped_rows,
            ranges=tally.ranges,
            whole=self._whole,
            seconds=tally.seconds,
        )

    def _read_source(self, into: RangeRows, range_: _Range) -> tuple[_Range, tuple[SourceSpan, ...]]:
        """The range with its end, and between which places it was read."""
        spans: tuple[SourceSpan, ...] = ()
        shape = self._shape
        names = [column.name for column in shape.columns]
        key = [names.index(column.name) for column in shape.key_or_all]

        def take(rows: TableRows) -> None:
            columns = self._columns_of(rows)
            piece = Piece(rows.rows, [columns[name] for name in names], key, shape.errors)
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
                self._job.progressed(self._name, "source", self._read["source"])
                spans = joined(spans, [SourceSpan(source.name, read.low, read.high)])
        return range_, spans

    def _looked_up(self, source: SourceTables, schema: TableSchema, keys: Sequence[str], take: Take) -> Iterator[Read]:
        own = {column.name: column for column in schema.columns}
        for some in _pieces(keys):
            where = lookup.condition([own[name] for name in self._shape.key], some, self._shape.errors)
            yield source.lookup(schema, self._name, where, take)

    def _columns_of(self, rows: TableRows) -> dict[str, Column]:
        return {column.name: column for column in rows.schema.columns}

    def _read_target(self, into: RangeRows, range_: _Range) -> None:
        shape = self._shape
        names = [column.name for column in shape.columns]
        key = [names.index(column.name) for column in shape.key_or_all]
        for number, shard in enumerate(shape.destination.shards):
            for tail in self._tails(shard, range_):
                for batch, columns in self._targets.batches(shape, shard, tail):
                    into.add("target", Piece(batch, columns, key, shape.errors), np.full(batch.num_rows, number))
                    self._read["target"] += batch.num_rows
                    self._job.progressed(self._name, "target", self._read["target"])

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
            yield f"{where} ORDER BY {keys.ordered(schema)}" if self._reads_ahead else where

    def _consumed(self) -> tuple[frozenset[str], dict[str, str]]:
        """Batches that the target has consumed by now; by source, where the first that it has not begins."""
        job = self._job
        until: dict[str, str] = {}
        for source in sorted({source.name for source, _ in self._feeding}):
            batches = job.meta.batches(source)
            open_ones = [batch.batch_id for batch in batches if batch.batch_id not in self._known]
            records: dict[str, list[bool]] = {}
            for record in job.meta.records(job.target.name, open_ones):
                records.setdefault(record.batch_id, []).append(record.state.consumed)
            self._known |= {batch for batch, states in records.items() if all(states)}
            first = next((batch for batch in batches if batch.batch_id not in self._known), None)
            place = first.begin if first is not None else batches[-1].end if batches else None
            until[source] = "" if place is None else str(place)
        return frozenset(self._known), until

    def _chains_until(self, spans: Sequence[SourceSpan]) -> list[Manifest]:
        """All batches of the sources, once they reach as far as the sources were read.

        Raises RetryLater (verify.not_staged).
        """
        job, deadline_s = self._job, time.monotonic() + self._job.wait_s
        for span in spans:
            while True:
                staged = job.meta.checkpoint(span.source)
                if staged is not None and staged.position >= span.high:
                    break
                job.extract_on(span.source)
                staged = job.meta.checkpoint(span.source)
                if staged is not None and staged.position >= span.high:
                    break
                if time.monotonic() > deadline_s:
                    raise RetryLater(
                        f"The stage did not reach {span.high} within {job.wait_s:.0f} s, up to which {span.source} was "
                        "read, so that rows that differ may have changed meanwhile.",
                        where=self._name,
                        code="verify.not_staged",
                        remedy="see in `lockstep status` whether the source is extracted; then verify again",
                    )
                time.sleep(_PAUSE_S)
        for source in sorted({source.name for source, _ in self._feeding}):
            known = {batch.batch_id for batch in self._chains.get(source, ())}
            if not known or known != {batch.batch_id for batch in job.meta.batches(source)}:
                self._chains[source] = list(manifests.chain(job.store, source))
        return [batch for source in sorted(self._chains) for batch in self._chains[source]]

    def _is_whole(self, chains: Sequence[Manifest]) -> bool:
        """Whether every row of the table was staged."""
        store = self._job.store
        if coverage.purged_of(store, chains, [self._name]):
            return False
        return not coverage.missing_of(store, chains, [self._name]).get(self._name)

    def _opened(self, found: Sequence[Difference]) -> Iterator[Finding]:
        """The findings; the first SHOWN_ROWS with the rows as both sides have them now."""
        shown = found[:SHOWN_ROWS]
        for at in range(0, len(shown), _LOOKED_UP):
            some = shown[at : at + _LOOKED_UP]
            source, target = self._rows_at_source(some), self._rows_at_target(some)
            for one in some:
                yield self._finding(one, source.get(one.key, []), target.get(one.key, []))
        for one in found[SHOWN_ROWS:]:
            yield self._finding(one, [], [])

    def _finding(
        self,
        one: Difference,
        source: Sequence[Sequence[str | None]],
        target: Sequence[tuple[str, Sequence[str | None]]],
    ) -> Finding:
        shape = self._shape
        columns: dict[str, tuple[str | None, str | None]] = {}
        if len(source) == 1 and len(target) == 1:
            for column, mine, theirs in zip(shape.columns, source[0], target[0][1], strict=True):
                if mine != theirs:
                    columns[column.name] = (None, None) if column.name in shape.masked else (mine, theirs)
        key = dict(zip((column.name for column in shape.key_or_all), values_of(one.key), strict=True))
        key = {name: None if name in shape.masked else value for name, value in key.items()}
        shards = tuple(place for place, _ in target)
        name = finding_id(self._name, one.key)
        return Finding(name, self._name, one.kind, one.wrong, key, columns, one.source_rows, one.target_rows, shards)

    def _rows_at_source(self, some: Sequence[Difference]) -> dict[str, list[list[str | None]]]:
        """Values by key, in the order of the shape's columns; none where rows cannot be found by their keys."""
        shape = self._shape
        found: dict[str, list[list[str | None]]] = {}
        if not shape.key:
            return found

        def take(rows: TableRows) -> None:
            columns = self._columns_of(rows)
            keys_ = row_texts(rows.rows, [columns[name] for name in shape.key], shape.errors)
            values = [
                shown_texts(rows.rows, columns[column.name], shape.errors).to_pylist() for column in shape.columns
            ]
            for key, *row in zip(keys_.to_pylist(), *values, strict=True):
                found.setdefault(key, []).append(row)

        for source, schema in self._feeding:
            own = {column.name: column for column in schema.columns}
            if all(name in own and name not in shape.masked for name in shape.key):
                where = lookup.condition([own[name] for name in shape.key], [one.key for one in some], shape.errors)
                source.lookup(schema, self._name, where, take)
        return found

    def _rows_at_target(self, some: Sequence[Difference]) -> dict[str, list[tuple[str, list[str | None]]]]:
        shape = self._shape
        found: dict[str, list[tuple[str, list[str | None]]]] = {}
        if not shape.key:
            return found
        for shard in shape.destination.shards:
            where = target_rows.condition(shape, shard, [one.key for one in some])
            for batch, columns in self._targets.batches(shape, shard, f"WHERE {where}"):
                keys_ = row_texts(batch, target_rows.key_columns(shape, shard), shape.errors)
                values = [shown_texts(batch, column, shape.errors).to_pylist() for column in columns]
                for key, *row in zip(keys_.to_pylist(), *values, strict=True):
                    found.setdefault(key, []).append((shard.table.name, row))
        return found
