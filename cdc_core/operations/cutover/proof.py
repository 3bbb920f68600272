"""Proves that a target has what its sources have, at the end of the log, without reading everything once more.

A full verification has compared every row at its time. Since then, rows changed only by what is staged: where the log
says otherwise, the proof is refused (unstaged.py); a row that was changed at the source without the log, or at the
target by somebody else, is what the next full verification finds. So every key that is in a batch staged since then is
compared, row by row, as `lockstep verify` does. Greatest keys, and numbers of rows of small tables, are compared as
well.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from cdc_core.config import Pipeline
from cdc_core.errors import DataAtRisk, Refused, RetryLater, combined
from cdc_core.meta import BatchRow
from cdc_core.model.position import Position
from cdc_core.mysql.connections import resolve
from cdc_core.operations.apply.plan import definitions
from cdc_core.operations.cutover.unstaged import StagedTables
from cdc_core.operations.repair.repaired_keys import LOOKED_UP
from cdc_core.operations.verify.canonical import has_errors, row_texts
from cdc_core.operations.verify.changed_keys import as_read, changed_keys, key_columns
from cdc_core.operations.verify.feeding import feeding_of
from cdc_core.operations.verify.results import TableResult
from cdc_core.operations.verify.source_rows import SourceTables, open_sources
from cdc_core.operations.verify.table import ComparedTable
from cdc_core.operations.verify.target_rows import TargetTables
from cdc_core.operations.verify.verify_job import VerifyJob

COUNTED_ROWS = 200_000
"""Tables with more rows, by the source's estimate, are not counted while writes are stopped."""


@dataclass(frozen=True, slots=True)
class Since:
    """Up to where each source's log is proven to be applied, by its name. tables: logical ones that were verified.

    settled: no row differed, not even for the time being. Then rows that were copied at one of the places need not be
    compared again: a copy is true as of its place, so that it differs from a row only where a later change does.
    """

    places: Mapping[str, Position]
    tables: frozenset[str]
    settled: bool = False

    @classmethod
    def of_evidence(cls, document: Mapping[str, Any]) -> Since:
        """From a full verification: the lowest place that one of its tables was read at, or had consumed."""
        places: dict[str, Position] = {}
        for table in document["tables"]:
            said = [(read["source"], read["low"]) for read in table["read"]]
            for source, text in [*said, *table["consumed_until"].items()]:
                place = Position.from_text(text) if text else None
                if place is not None and (source not in places or place < places[source]):
                    places[source] = place
        tables = frozenset(str(table["table"]) for table in document["tables"])
        return cls(places, tables, all(table["moving"] == 0 for table in document["tables"]))


@dataclass(frozen=True, slots=True)
class Proof:
    """What was compared. keys: by logical table. unsettled: keys that no staged change explains yet. counted: tables
    whose numbers of rows were compared. since: for the next proof."""

    since: Since
    keys: Mapping[str, int] = field(default_factory=dict)
    unsettled: int = 0
    counted: tuple[str, ...] = ()


class Prover:
    """The tables of one target, ready to be compared: `prover`."""

    def __init__(self, job: VerifyJob, sources: Sequence[SourceTables]) -> None:
        self._job = job
        self._staged = StagedTables(job.pipeline, [job.pipeline.database(job.target.name)], job.meta)
        fed = feeding_of(job, sources)
        if fed.uncompared:
            raise combined(list(fed.uncompared.values()))
        self.feeding = fed.tables
        self._targets = TargetTables()
        self._tables = {name: ComparedTable(job, name, fed.tables[name], self._targets) for name in fed.tables}
        for name, table in self._tables.items():
            if not table.shape.key or any(column.type.base not in LOOKED_UP for column in table.shape.key_columns):
                raise Refused(
                    f"Rows of {name} cannot be compared one by one: it has no key, or one that cannot be looked up.",
                    where=name,
                    code="verify.not_comparable",
                    remedy="leave the table out of the pipeline that is switched, or give it another key",
                )

    def prove(self, since: Since, *, still: bool) -> Proof:
        """Compares every key that changed since. still: nothing is written, and everything is applied: no key may be
        moving, and numbers of rows and greatest keys are compared as well.

        Raises DataAtRisk (verify.differs), Refused (cutover.verify_again, table.not_captured), RetryLater
        (run.taken_over), and what verifying raises.
        """
        staged = {source: self._batches(source, since) for source in since.places}
        batches = {source: self._consumed(source, of_source) for source, of_source in staged.items()}
        self._require_all_staged(since)
        wanted = self._keys([batch for of_source in batches.values() for batch in of_source])
        with self._targets:
            results = [self._tables[name].compared(sorted(keys)) for name, keys in wanted.items() if keys]
            self._require_equal(results, still=still)
            counted = self._require_counts() if still else []
        reached = {
            source: of_source[-1].end if of_source else since.places[source] for source, of_source in batches.items()
        }
        # A key that is moving is explained by a change in a later batch, with which it is compared again. One that is
        # unsettled is explained by nothing.
        unsettled = sum(result.unsettled for result in results)
        settled = not any(result.moving for result in results) and (since.settled or batches == staged)
        proven = since if unsettled else Since(reached, since.tables, settled)
        return Proof(proven, {name: len(keys) for name, keys in wanted.items()}, unsettled, tuple(counted))

    def _require_all_staged(self, since: Since) -> None:
        """Once the batches that are compared are known: what extractors note of them is known, too.

        Raises Refused (table.not_captured, cutover.verify_again)."""
        for error in self._staged.not_captured():
            raise error
        why = self._staged.missed(since.places, self._job.opened.store)
        if why:
            raise verify_again(
                f"Rows may have changed since the last full verification without a staged change: {why}.",
                self._job.target.name,
                "Begin again: every row is verified first",
            )

    def _require_counts(self) -> list[str]:
        """While nothing is written, and everything is applied; the tables that were counted. Raises DataAtRisk
        (verify.differs)."""
        unless = "though no row that changed since the last full verification differs"
        for name, table in self._tables.items():
            if table.ends_alike() is False:
                raise self._differs(f"The greatest key of {name} is not the same in source and target, {unless}.")
        counts = {name: self._tables[name].counts() for name, feeding in self.feeding.items() if _countable(feeding)}
        for name, (there, here) in counts.items():
            if there != here:
                raise self._differs(f"{name} has {there:,} rows at the source, and {here:,} in the target, {unless}.")
        return list(counts)

    def _consumed(self, source: str, batches: Sequence[BatchRow]) -> list[BatchRow]:
        """The batches before the first that the target has not consumed."""
        target = self._job.target.name
        pending = self._job.meta.plans.find("", [source], [target], None).pending[target]
        return list(itertools.takewhile(lambda batch: batch.batch_id not in pending, batches))

    def _batches(self, source: str, since: Since) -> list[BatchRow]:
        """What may have changed rows since then, in the order of the log."""
        place, batches = since.places[source], self._job.meta.batches.find(source)
        return [
            batch for batch in batches if batch.end > place or (batch.begin == batch.end == place and not since.settled)
        ]

    def _keys(self, batches: Sequence[BatchRow]) -> dict[str, set[str]]:
        """The keys of the rows that these batches change, by logical table."""
        files = self._job.meta.batches.files([batch.batch_id for batch in batches])
        listed = [file for of_batch in files.values() for file in of_batch if file.table in self._tables]
        known = self._job.meta.schemas.find(sorted({file.schema_id for file in listed}))
        schemas = definitions(known, files, batches, self._job.opened.store)
        found: dict[str, set[str]] = {}
        for file in as_read(self._job.opened.store, listed):
            schema, shape = schemas[file.schema_id], self._tables[file.table].shape
            keys = found.setdefault(file.table, set())
            columns = key_columns(schema)
            truncated = _again(file.table, "all of its rows were removed at once")
            if schema.key != shape.key or [column.type for column in columns] != [
                column.type for column in shape.key_columns
            ]:
                raise _again(file.table, "its key was redefined")
            for some in changed_keys(self._job.opened.store, file, schema, on_truncate=truncated):
                keys.update(row_texts(some, columns, shape.errors).to_pylist())
            if any(map(has_errors, keys)):
                raise _again(file.table, "a key has the error value of an ENUM, by which no row is found")
        return found

    def _require_equal(self, results: Sequence[TableResult], *, still: bool) -> None:
        errors = [result.error for result in results if result.error is not None]
        if errors:
            raise errors[0]
        different = [result for result in results if result.differences]
        if different:
            raise self._differs(
                f"{sum(result.differences for result in different)} rows of "
                f"{', '.join(result.table for result in different)} differ between source and target."
            )
        unclear = sum(result.moving + result.unsettled for result in results) if still else 0
        if unclear:
            raise RetryLater(
                f"{unclear} rows are not applied yet, although nothing writes any more.",
                where=self._job.target.name,
                code="run.taken_over",
                remedy="nothing was switched. Look for runs of the pipeline that do not end, then begin again",
            )

    def _differs(self, what: str) -> DataAtRisk:
        return DataAtRisk(
            what,
            where=self._job.target.name,
            code="verify.differs",
            remedy="nothing was switched. `lockstep verify` names the rows, `lockstep repair` repairs them",
        )


def reference_of(pipeline: Pipeline, source: SourceTables) -> str:
    """How the pipeline names the server that is read: of a primary and its standbys, one."""
    address = replace(source.address, identity="")  # which the server has told
    return next(connection for connection in pipeline.source(source.name).connections if resolve(connection) == address)


def _countable(feeding: Sequence[tuple[SourceTables, Any]]) -> bool:
    """Several tables may share keys, so that their rows are more than the target's."""
    return len(feeding) == 1 and sum(source.rows_estimated(schema) for source, schema in feeding) <= COUNTED_ROWS


def verify_again(what: str, where: str, remedy: str) -> Refused:
    """The error for rows that the last full verification does not cover."""
    return Refused(what, where=where, code="cutover.verify_again", remedy=f"nothing was switched. {remedy}")


def _again(table: str, why: str) -> Refused:
    return verify_again(
        f"The changes in {table} since its last full verification cannot be compared row by row: {why}.",
        table,
        "Verify the target again (`lockstep verify`), then begin again",
    )


@contextmanager
def prover(job: VerifyJob) -> Iterator[Prover]:
    """Sessions at the sources, for the block. Raises as verifying, and Refused for tables that cannot be compared."""
    with open_sources(job) as sources:
        yield Prover(job, sources)
