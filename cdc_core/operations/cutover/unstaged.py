"""Changes of a target's tables that the stage does not have: no comparison of what is staged finds their rows.

A table may be isolated or left out, so that its changes are in the log and nowhere else; its rows may have changed
without row events, or with a log that was given up. What is known of that is in meta, as far as the log was read:
the coverage of each table, and the notes of each batch.

    not captured now                              refused: nothing proves the table, however often it is verified
    a copy is due, or under way                   refused: it brings rows, and comes with the next run
    anything of that since a place, and over now  verifications up to that place do not count
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from cdc_core.config import MysqlTarget, Pipeline
from cdc_core.errors import LockstepError, Refused
from cdc_core.meta import BatchRow, Meta
from cdc_core.model.coverage import How, TableCoverage, lacks
from cdc_core.model.position import Position
from cdc_core.operations.copy.pending import copied_by_runs
from cdc_core.source.capture import Capture
from cdc_core.stage import manifest as manifests
from cdc_core.stage.isolated import notes
from cdc_core.stage.objects import ObjectStore


@dataclass(frozen=True, slots=True)
class StagedTables:
    """The source tables that a pipeline brings to some of its targets."""

    pipeline: Pipeline
    targets: Sequence[MysqlTarget]
    meta: Meta

    def refused(self) -> Iterator[LockstepError]:
        """Tables whose changes are not staged, or that a copy is due for."""
        yield from self.not_captured()
        for source in self.pipeline.sources:
            coverage = self.meta.coverages.find(source.name).tables
            for run in copied_by_runs(self.meta, self.pipeline, source.name):
                if run.name not in coverage or self._taken(coverage[run.name], run.name):
                    yield Refused(
                        f"{run.name} waits for a copy: {run.why}.",
                        where=f"source {source.name}",
                        code="cutover.copy_due",
                        remedy="nothing was switched. `lockstep run` copies it; then begin again",
                    )

    def not_captured(self) -> Iterator[LockstepError]:
        """Tables whose changes are not staged."""
        for source in self.pipeline.sources:
            for table, coverage in sorted(self.meta.coverages.find(source.name).tables.items()):
                if not coverage.how.captured and self._taken(coverage, table):
                    yield Refused(
                        f"Changes of {table} are not staged, so no comparison would find them: "
                        f"{lacks(table, source.name, coverage)}.",
                        where=f"source {source.name}",
                        code="table.not_captured",
                        remedy="nothing was switched. Fix the cause, and copy the table (`lockstep snapshot --source "
                        f"{source.name} {table}`). Then begin again, which verifies every row first",
                    )

    def missed(self, places: Mapping[str, Position], store: ObjectStore) -> str:
        """Why rows may have changed after these places, by source, without a staged change; "" where nothing says so.

        Raises what reading manifests raises.
        """
        for source, place in places.items():
            batches = self.meta.batches.find(source)
            first = next((batch for batch in batches if not batch.copied), None)
            if first is not None and first.begin > place:
                return f"what source {source} had from {place} on is purged, up to {first.begin}"
            for batch in batches:
                if batch.end > place and (said := _noted(batch, store)):
                    return f"the log of source {source} has more than changes of rows: {said}"
            for table, coverage in sorted(self.meta.coverages.find(source).tables.items()):
                lost = (
                    coverage.cascaded or coverage.how is not How.EMPTY
                )  # one that is seen to be empty has lost no change
                if lost and coverage.latest_seq >= place.seq and self._taken(coverage, table):
                    return _happened(table, source, coverage)
        return ""

    def _taken(self, coverage: TableCoverage, table: str) -> bool:
        """Whether rows of a source table go to the targets. One that the pipeline leaves out on purpose feeds none."""
        feeds = coverage.feeds
        if coverage.how is How.LEFT_OUT:
            database, _, name = table.partition(".")
            # Which way the server compares names is not asked here: a table is taken if it is in either.
            either = [
                Capture(self.pipeline.tables, self.pipeline.routes, lower_case=lower_case)
                for lower_case in (False, True)
            ]
            feeds = tuple(logical for capture in either for logical in capture.route(database, name))
        gone = coverage.gone and coverage.how.captured  # one that is not may have been created again unseen
        return not gone and any(target.table(logical) is not None for target in self.targets for logical in feeds)


def _noted(batch: BatchRow, store: ObjectStore) -> str:
    """Its notes, but those about isolated tables: coverage says which of these concern us."""
    if batch.copied or not batch.notes:
        return ""
    isolated = notes(manifests.read(store, batch.source, batch.begin).isolated)
    return "; ".join(note for note in batch.notes if note not in isolated)


def _happened(table: str, source: str, coverage: TableCoverage) -> str:
    if coverage.cascaded:
        return lacks(table, source, coverage)
    match coverage.how:
        case How.TRUNCATED:
            return f"{table} (source {source}) was emptied at {coverage.place}"
        case How.CREATED:
            return f"{table} (source {source}) was created at {coverage.place}"
        case How.COPIED:
            return f"{table} (source {source}) was copied again at {coverage.place}"
    return lacks(table, source, coverage)
