"""A source at the server that an extractor is connected to: where reading begins, and what is known of the tables."""

from __future__ import annotations

import logging
from collections.abc import Container, Mapping
from dataclasses import dataclass

from cdc_core.config import Source, StartConfig
from cdc_core.meta import Lease, Meta, SourceCoverage
from cdc_core.model.coverage import How, TableCoverage
from cdc_core.model.position import Checkpoint
from cdc_core.mysql import connections
from cdc_core.operations.extract import abandoned_log, hosts
from cdc_core.operations.extract.coverage_changes import CoverageLog
from cdc_core.operations.extract.stager import chain_moved
from cdc_core.operations.open_pipeline import OpenPipeline
from cdc_core.source.capture import Capture
from cdc_core.source.host import source_server
from cdc_core.source.host.failover import Failover, after_loss, fail_over, is_other_server
from cdc_core.source.host.start_position import find_start
from cdc_core.source.host.table_survey import SourceSurvey, survey_tables
from cdc_core.source.schemas.captured_definitions import captured_tables
from cdc_core.source.schemas.cascades import require_seen_cascades
from cdc_core.source.sql.capture_policy import CapturePolicy
from cdc_core.stage import manifest as manifests
from cdc_core.stage import start_record
from cdc_core.stage.isolated import isolated
from cdc_core.stage.manifest import chain
from cdc_core.stage.objects import ObjectStore

log = logging.getLogger(__name__)


def recover(meta: Meta, store: ObjectStore, lease: Lease) -> Checkpoint | None:
    """The stored checkpoint, after adopting a start or batches that are on the stage but not in meta.

    Raises Refused (stage.other_pipeline; meta.behind when the stage holds batches of this source and meta knows
    none), DataAtRisk (stage.chain, stage.damaged) when meta knows some that the stage has lost.
    """
    start_record.require_own(store, lease.source, lease.pipeline)
    stored = meta.positions.checkpoint(lease.source)
    manifests.require_continuable(store, lease.source, None if stored is None else stored.position)
    if stored is None:
        begun = start_record.read(store, lease.source)
        if begun is not None:
            log.info("%s: starting where an earlier extractor began: %s", lease.source, begun.position)
            meta.positions.advance_watermark(lease, begun)
        return begun
    for manifest in chain(store, lease.source, after=stored.position):
        if manifest.copied:  # at the position itself, whether it is recorded or not; meta knows what holds there
            meta.batches.commit(lease, manifest)
            continue
        log.info("%s: adopting the batch %s, which is staged but not recorded", lease.source, manifest.batch_id)
        meta.batches.commit(lease, manifest)
        stored = manifest.end
    return stored


@dataclass(frozen=True, slots=True)
class AttachedSource:
    """server: its address. control: a connection to it. facts: of it, as it was connected to."""

    opened: OpenPipeline
    source: Source
    lease: Lease
    capture: Capture
    server: connections.Server
    control: connections.SafeConnection
    facts: source_server.ServerFacts

    def require_seen_cascades(self, policy: CapturePolicy) -> None:
        # A copy brings what they change, if the pipeline file says so.
        level = logging.INFO if policy.on_unlogged_change == "resync" else logging.WARNING
        captures, source = self.capture.captures, self.source.name
        for unlogged in require_seen_cascades(self.control, captures, source=source, policy=policy):
            log.log(level, "%s: %s", source, unlogged)

    def begin(self, stored: Checkpoint | None, abandon: tuple[str, int] | None) -> Checkpoint:
        """Where to read from, made durable if it is new: "latest" must mean the same moment after a crash.

        abandon: file and offset of the stored position, if what the log has from there on is to be given up.
        """
        source, store, meta = self.source, self.opened.store, self.opened.meta
        if abandon is not None and abandoned_log.is_due(abandon, stored, store, source.name):
            assert stored is not None
            moved = after_loss(source, self.control, self.server, self.facts, stored)
            covered = meta.coverages.find(source.name).tables
            survey = self._survey(moved.start, covered)
            return self._led_on(stored, moved, abandoned_log.missed(covered, survey, moved.start))
        if stored is not None and is_other_server(stored, self.facts):
            return self._led_on(stored, fail_over(source, self.control, self.server, self.facts, stored), {})
        start = find_start(source, self.control, stored, server=self.server)
        if stored is None:
            start = start_record.put(store, source.name, start, pipeline=self.opened.name, asked=source.start_text)
            log.info("%s: starting at %s", source.name, start.position)
            meta.positions.advance_watermark(self.lease, start)
        return start

    def _led_on(self, stored: Checkpoint, moved: Failover, coverage: Mapping[str, TableCoverage]) -> Checkpoint:
        """From one log to another, durably; where to read from."""
        left_out = isolated(self.opened.store, self.source.name)
        bridge = hosts.bridge(self.opened.pipeline, self.lease, stored, moved, left_out, coverage)
        if not manifests.commit(self.opened.store, bridge).ours:
            raise chain_moved(bridge)
        self.opened.meta.batches.commit(self.lease, bridge)
        return moved.start

    def coverage(self, start: Checkpoint, left_out: Mapping[str, str]) -> CoverageLog:
        """The coverage of the source's tables from the start on; unknown ones are read from the server. left_out:
        tables that are isolated, and why."""
        coverages = self.opened.meta.coverages
        covered = coverages.find(self.source.name)
        sought = Capture.by_names(covered.surveyed.captured)
        log_of = CoverageLog(covered, feeds=self.capture.route, sought=sought.captures)
        begin = self.source.start.position if isinstance(self.source.start, StartConfig) else None
        if begin is not None and (begin.file, begin.offset) == (start.position.file, start.position.offset):
            log_of.declared_empty(begin.empty, start.position, start.watermark_us)
        log_of.left_out(start.position, start.watermark_us)
        log_of.captured_again(left_out, start.position, start.watermark_us)
        of_log = {table for table, coverage in log_of.known.items() if coverage.how is not How.EXISTING}
        survey = self._survey(start, of_log)
        if survey.complete or not covered.surveyed.seq:  # then the rules are kept with it
            log_of.other_rules(self._under_other_rules(covered), start.position, start.watermark_us)
        log_of.survey(survey, captured=self.capture.rules)
        if log_of.pending:
            coverages.keep(self.lease, log_of.pending, log_of.surveyed)
        return log_of

    def _survey(self, start: Checkpoint, covered: Container[str]) -> SourceSurvey:
        """covered: tables of which it need not be asked whether they are empty."""
        return survey_tables(
            self.control,
            self.capture.captures,
            known=covered,
            grants=self.facts.grants,
            end_of_log=lambda: source_server.end_position(self.control, start.position.timeline),
        )

    def _under_other_rules(self, covered: SourceCoverage) -> dict[str, str]:
        """Captured tables whose rules are not those by which rows were staged before, with their rules of now."""
        former = Capture.by_rules(covered.surveyed.captured)
        if former is None or former.rules == self.capture.rules:
            return {}
        here = captured_tables(
            self.control,
            lambda database, table: f"{database}.{table}" in covered.tables and self.capture.captures(database, table),
        )
        schemas = [schema for schema, _ in here.values() if schema is not None]
        return {
            schema.name: self.capture.rules_of(schema)
            for schema in schemas
            if former.captures(schema.database, schema.table)
            and former.rules_of(schema) != self.capture.rules_of(schema)
        }
