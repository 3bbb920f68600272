"""One verification: the tables of a pipeline at one target, one after the other.

It must keep true that a table is equal, different, or said not to be proven: nothing that was not compared counts as
equal.
"""

from __future__ import annotations

import hashlib
import logging
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import pyarrow as pa

from cdc_core.apply.plan import key_of, keys_apart
from cdc_core.config import Pipeline, Target
from cdc_core.errors import LockstepError, RetryLater, UsageError
from cdc_core.meta import Meta
from cdc_core.model.batch import Manifest
from cdc_core.model.block import TableRows
from cdc_core.model.position import Position
from cdc_core.model.schema import Column, TableSchema
from cdc_core.stage import coverage
from cdc_core.stage import manifest as manifests
from cdc_core.stage.objects import ObjectStore
from cdc_core.target.destination import Shard, open_destination
from cdc_core.verify import history, lookup, target_rows
from cdc_core.verify.canonical import column_texts, row_texts, values_of
from cdc_core.verify.comparison import Comparison, Difference, Kind, Side, Wrong
from cdc_core.verify.shape import Shape, shape_of
from cdc_core.verify.source_rows import Read, SourceTables, open_source

log = logging.getLogger(__name__)

SHOWN_ROWS = 100
"""Findings of a table whose rows are read again and shown."""
KEPT_ROWS = 10_000
"""Findings of a table whose keys are kept, for a repair."""
WAIT_S = 600.0
"""How long the stage may take to reach the place up to which the source was read."""
_PAUSE_S = 2.0
_LOOKED_UP = 100
LOOKED_UP_KEYS = 1_000
"""Keys of one statement where only some rows are verified."""


NOTHING = Side(0, "")


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
class SourceSpan:
    """Between which places of a source's log its rows were read: the lowest `low`, the highest `high`."""

    source: str
    low: Position
    high: Position


@dataclass(frozen=True, slots=True)
class TableResult:
    """A table's verification. error: why it could not be verified; then the figures say nothing.

    consumed_until: by source, up to where the target had consumed the staged batches before its rows were read.
    moving, unsettled: as in Verdict. findings: the first `KEPT_ROWS`; found: how many there are, by what is wrong.
    """

    table: str
    error: LockstepError | None = None
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
    seconds: float = 0.0

    @property
    def differences(self) -> int:
        return sum(self.found.values())

    @property
    def equal(self) -> bool:
        return self.error is None and not self.differences and not self.unsettled


@dataclass(frozen=True, slots=True)
class Job:
    """What a verification works with. extract_on: extracts a source up to now, unless another process does."""

    pipeline: Pipeline
    target: Target
    meta: Meta
    store: ObjectStore
    extract_on: Callable[[str], object]
    environ: Mapping[str, str] | None = None
    progressed: Callable[[str, str, int], None] = lambda table, side, rows: None
    wait_s: float = WAIT_S


def finding_id(table: str, key: str) -> str:
    """The name of a finding. key: a text of `row_texts`."""
    return hashlib.sha256(f"{table}\0{key}".encode()).hexdigest()[:12]


def verify(job: Job, tables: Sequence[str] | None = None) -> list[TableResult]:
    """Verifies these logical tables of the target, or all that it takes and that have a source table.

    Raises UsageError (verify.unknown_table), and what opening the sources raises. What concerns one table alone is its
    result's error.
    """
    with ExitStack() as opened:
        sources = [
            opened.enter_context(open_source(job.pipeline, one.name, job.meta, job.environ))
            for one in job.pipeline.sources
        ]
        feeding = _feeding(job, sources)
        results = []
        for name in _chosen(job, feeding, tables):
            started_s = time.monotonic()
            try:
                result = _Table(job, name, feeding[name]).result()
            except LockstepError as error:
                if error.retriable and not error.code.startswith(("verify.", "results.", "snapshot.")):
                    raise
                result = TableResult(name, error=error)
            results.append(replace(result, seconds=time.monotonic() - started_s))
        return results


def _pieces(keys: Sequence[str]) -> Iterator[Sequence[str]]:
    for at in range(0, len(keys), LOOKED_UP_KEYS):
        yield keys[at : at + LOOKED_UP_KEYS]


class TableKeys:
    """Single rows of one logical table: what a repair looks at.

    feeding: the source tables that feed it, with their definitions before the pipeline's rules.
    """

    def __init__(self, job: Job, sources: Sequence[SourceTables], table: str) -> None:
        """Raises UsageError (verify.unknown_table), and what opening the destination raises."""
        feeding = _feeding(job, sources)
        _chosen(job, feeding, [table])
        self.feeding: Sequence[tuple[SourceTables, TableSchema]] = feeding[table]
        self._table = _Table(job, table, self.feeding)
        self.shape = self._table.shape

    def verify(self, keys: Sequence[str]) -> TableResult:
        """Compares the rows with these keys, texts of `row_texts`. Raises what verifying a table raises."""
        return self._table.result(keys)


def _feeding(job: Job, sources: Sequence[SourceTables]) -> dict[str, list[tuple[SourceTables, TableSchema]]]:
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


class _Table:
    """One logical table."""

    def __init__(self, job: Job, name: str, feeding: Sequence[tuple[SourceTables, TableSchema]]) -> None:
        self._job = job
        self._name = name
        self._feeding = feeding
        schemas = [source.capture.shape(schema) for source, schema in feeding]
        rule = job.target.table(name)
        assert rule is not None
        key = key_of(job.target, name, schemas)
        shared = keys_apart(job.pipeline, name, key, rule.shared_keys, schemas)
        destination = open_destination(
            job.target, name, schemas, key=key, ready=False, shared=shared, environ=job.environ
        )
        self._shape = shape_of(destination, schemas, [schema for _, schema in feeding])

    @property
    def shape(self) -> Shape:
        return self._shape

    def result(self, keys: Sequence[str] | None = None) -> TableResult:
        """keys: of the rows that are compared; None for all."""
        job, shape = self._job, self._shape
        with (
            tempfile.TemporaryDirectory(prefix="lockstep-verify-") as folder,
            Comparison(Path(folder), keyed=bool(shape.key)) as comparison,
        ):
            spans = self._read_source(comparison, keys)
            consumed, consumed_until = self._consumed()
            self._read_target(comparison, keys)
            told = TableResult(
                self._name,
                spans=spans,
                consumed_until=consumed_until,
                columns=tuple(column.name for column in shape.columns),
                left_out=shape.left_out,
            )
            if not comparison.differing():
                return replace(told, source=comparison.side("source"), target=comparison.side("target"))
            chains = self._chains_until(spans)
            for events in history.events(job.store, chains, shape, consumed):
                comparison.add_events(events)
            bounds = {span.source: (span.low.seq, span.high.seq) for span in spans}
            verdict = comparison.judge(bounds, whole=self._whole(chains))
            return replace(
                told,
                source=verdict.source,
                target=verdict.target,
                moving=verdict.moving,
                unsettled=verdict.unsettled,
                found=verdict.by_wrong,
                findings=tuple(self._opened(comparison.findings(KEPT_ROWS))),
            )

    def _read_source(self, comparison: Comparison, wanted: Sequence[str] | None) -> tuple[SourceSpan, ...]:
        spans: dict[str, SourceSpan] = {}

        def take(rows: TableRows) -> None:
            columns = self._columns_of(rows)
            keys = row_texts(rows.rows, [columns[column.name] for column in self._shape.key_or_all])
            texts = row_texts(rows.rows, [columns[column.name] for column in self._shape.columns])
            comparison.add("source", keys, texts, pa.array(self._shape.destination.shard_numbers(rows.rows)))

        def reads(source: SourceTables, schema: TableSchema) -> Iterator[Read]:
            if wanted is None:
                yield from source.read(schema, self._name, take)
                return
            own = {column.name: column for column in schema.columns}
            for some in _pieces(wanted):
                where = lookup.condition([own[name] for name in self._shape.key], some)
                yield source.lookup(schema, self._name, where, take)

        count = 0
        for source, schema in self._feeding:
            for read in reads(source, schema):
                count += read.rows
                self._job.progressed(self._name, "source", count)
                known = spans.get(source.name, SourceSpan(source.name, read.low, read.high))
                spans[source.name] = SourceSpan(source.name, min(known.low, read.low), max(known.high, read.high))
        return tuple(spans[name] for name in sorted(spans))

    def _columns_of(self, rows: TableRows) -> dict[str, Column]:
        return {column.name: column for column in rows.schema.columns}

    def _read_target(self, comparison: Comparison, wanted: Sequence[str] | None) -> None:
        shape, count = self._shape, 0
        for number, shard in enumerate(shape.destination.shards):
            for batch, columns in self._target_batches(shard, wanted):
                by_source = dict(zip((column.name for column in shape.columns), columns, strict=True))
                keys = row_texts(batch, [by_source[column.name] for column in shape.key_or_all])
                texts = row_texts(batch, columns)
                comparison.add("target", keys, texts, pa.array(np.full(batch.num_rows, number)))
                count += batch.num_rows
                self._job.progressed(self._name, "target", count)

    def _target_batches(
        self, shard: Shard, wanted: Sequence[str] | None
    ) -> Iterator[tuple[pa.RecordBatch, tuple[Column, ...]]]:
        shape = self._shape
        if wanted is None:
            yield from target_rows.batches(shape, shard)
            return
        for some in _pieces(wanted):
            yield from target_rows.batches(shape, shard, f"WHERE {target_rows.condition(shape, shard, some)}")

    def _consumed(self) -> tuple[frozenset[str], dict[str, str]]:
        """Batches that the target has consumed by now; by source, where the first that it has not begins."""
        job = self._job
        consumed: set[str] = set()
        until: dict[str, str] = {}
        for source in sorted({source.name for source, _ in self._feeding}):
            batches = list(manifests.chain(job.store, source))
            records: dict[str, list[bool]] = {}
            for record in job.meta.records(job.target.name, [batch.batch_id for batch in batches]):
                records.setdefault(record.batch_id, []).append(record.state.consumed)
            mine = {batch for batch, states in records.items() if all(states)}
            consumed |= mine
            first = next((batch for batch in batches if batch.batch_id not in mine), None)
            place = first.begin if first is not None else batches[-1].end if batches else None
            until[source] = "" if place is None else str(place.position)
        return frozenset(consumed), until

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
        return [
            batch
            for source in sorted({s.name for s, _ in self._feeding})
            for batch in manifests.chain(job.store, source)
        ]

    def _whole(self, chains: Sequence[Manifest]) -> bool:
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
            keys = row_texts(rows.rows, [columns[name] for name in shape.key])
            values = [column_texts(rows.rows, columns[column.name]).to_pylist() for column in shape.columns]
            for key, *row in zip(keys.to_pylist(), *values, strict=True):
                found.setdefault(key, []).append(row)

        for source, schema in self._feeding:
            own = {column.name: column for column in schema.columns}
            if all(name in own and name not in shape.masked for name in shape.key):
                where = lookup.condition([own[name] for name in shape.key], [one.key for one in some])
                source.lookup(schema, self._name, where, take)
        return found

    def _rows_at_target(self, some: Sequence[Difference]) -> dict[str, list[tuple[str, list[str | None]]]]:
        shape = self._shape
        found: dict[str, list[tuple[str, list[str | None]]]] = {}
        if not shape.key:
            return found
        for shard in shape.destination.shards:
            where = target_rows.condition(shape, shard, [one.key for one in some])
            for batch, columns in target_rows.batches(shape, shard, f"WHERE {where}"):
                keys = row_texts(batch, target_rows.key_columns(shape, shard))
                values = [column_texts(batch, column).to_pylist() for column in columns]
                for key, *row in zip(keys.to_pylist(), *values, strict=True):
                    found.setdefault(key, []).append((shard.table.name, row))
        return found
