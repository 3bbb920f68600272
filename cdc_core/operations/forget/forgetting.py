"""Erases the rows of some keys of a logical table from everything that Lockstep keeps.

    source      does not have the rows any more, and all that it logged until it was asked is staged; or the caller
                says that they go although they exist
    leases      of extraction, copies, purges and compactions, and verifications: nobody else writes or reads
    record      on the stage: from now on, no run is planned
    asked       no run is under way and no copy; every target has committed the changes, and has none of the rows;
                each change is about the named keys alone. Otherwise nothing was changed, and the record goes again
    staged      files, records, manifests and meta (`erase_staged`)
    derived     files of runs, findings, what interrupted verifications keep (`erase_derived`)
    traces      tombstones in targets (`erase_traces`)
    proof       everything is read again: no row of the keys is left
    record      has ended

Killed at any moment, it is repeated with the same keys, and finds what is left. Repeated with other keys, it brings
meta and the stage together again, and ends the record of the first one as one that may have left rows.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace

from cdc_core.errors import DataAtRisk, LeaseHeld, LockstepError, Refused, UsageError
from cdc_core.meta import Lease
from cdc_core.meta.task_failures import FORGET
from cdc_core.model.block import TableRows
from cdc_core.model.readable import counted, some_of
from cdc_core.model.schema import TableSchema
from cdc_core.operations.apply.compact import ABANDONED_US
from cdc_core.operations.apply.consumed import committed
from cdc_core.operations.apply.turn import turn_at
from cdc_core.operations.copy.copier import copier_lease
from cdc_core.operations.extract.side_by_side import extract_up_to
from cdc_core.operations.forget import erase_derived, erase_staged
from cdc_core.operations.forget.erase_derived import RunFiles
from cdc_core.operations.forget.erase_staged import StagedErasure, StagedRows
from cdc_core.operations.forget.erase_traces import TargetTraces, find_traces, require_no_lake
from cdc_core.operations.forget.erased_keys import ErasedKeys, keys_of
from cdc_core.operations.open_pipeline import OpenPipeline
from cdc_core.operations.verify import lookup
from cdc_core.operations.verify.feeding import read_feeding
from cdc_core.operations.verify.source_rows import Read, SourceTables, open_source
from cdc_core.operations.verify.target_rows import TargetTables
from cdc_core.operations.verify.verify_job import WAIT_S, verifier_lease
from cdc_core.stage import erasures, start_record
from cdc_core.stage.erasures import ID_CHARS, Erasure
from cdc_core.stage.layout import (
    compacted_prefix,
    copied_prefix,
    parse_compacted,
    parse_copied,
    parse_part,
    table_prefix,
)
from cdc_core.stage.manifest import chain
from cdc_core.stage.table_files import TableFiles
from cdc_core.stage.unify import latest_definitions

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ErasedPlace:
    """Where rows of the keys are, or were. kind: `staged`, `copied`, `compacted`, `run`, `evidence`, `tombstone`. rows:
    with one of the keys, there."""

    kind: str
    where: str
    rows: int


@dataclass(frozen=True, slots=True)
class ErasureReport:
    """request: id of the record. others: sources that the pipeline does not have, and whose files of the table were not
    looked at; "" for files that no source has written."""

    request: str
    table: str
    keys: int
    places: tuple[ErasedPlace, ...]
    others: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Found:
    """What there is of the keys."""

    staged: Sequence[StagedRows]
    runs: Sequence[RunFiles]
    evidence: Sequence[tuple[str, int]]
    traces: Sequence[TargetTraces]

    @property
    def places(self) -> tuple[ErasedPlace, ...]:
        files = [file for one in self.staged for file in one.affected]
        kinds = {"changes": "staged", "snapshot": "copied"}
        found = [
            ErasedPlace(kinds.get(file.part.path.split("/")[0], "compacted"), file.part.path, len(file.found.places))
            for file in files
        ]
        found += [ErasedPlace("run", one.folder, one.rows) for one in self.runs]
        found += [ErasedPlace("evidence", path, rows) for path, rows in self.evidence]
        found += [ErasedPlace("tombstone", one.target, len(one.tombstones)) for one in self.traces if one.tombstones]
        return tuple(found)


def forget(
    opened: OpenPipeline, table: str, given: Sequence[str], *, although_it_exists: bool = False, dry_run: bool = False
) -> ErasureReport:
    """given: the keys, as `--key` has them. although_it_exists: the source is not asked. dry_run: only says where the
    rows are.

    Raises UsageError (usage.argument, usage.unknown_name), Refused (config.table_rule, stage.key,
    stage.not_committed, stage.other_pipeline), RetryLater (lease.held, stage.behind), DataAtRisk (stage.damaged), and
    what the sources, the targets and the stage raise.
    """
    require_no_lake(opened.pipeline, table)
    keys = keys_of(_files_of(opened, table), given)
    work = _Forgetting(opened, keys)
    if not although_it_exists:
        work.ask_sources(wait=not dry_run)
    with TargetTables() as sessions:
        if dry_run:
            found = work.find(sessions)
            work.require_alone(found)
            return work.report(found)
        with ExitStack() as held:
            return work.erase(work.leases(held), sessions, although_it_exists=although_it_exists)


def _files_of(opened: OpenPipeline, table: str) -> TableFiles:
    for source in opened.pipeline.sources:
        start_record.require_own(opened.store, source.name, opened.name)
    manifests = [one for source in opened.pipeline.sources for one in chain(opened.store, source.name)]
    return TableFiles.at(manifests, table, None)


@dataclass(frozen=True, slots=True)
class _Leases:
    """extractors, copiers: by source. verifiers: by target."""

    turn: Lease
    extractors: dict[str, Lease]
    copiers: dict[str, Lease]
    verifiers: dict[str, Lease]


@dataclass(frozen=True, slots=True)
class _Forgetting:
    opened: OpenPipeline
    keys: ErasedKeys

    def ask_sources(self, *, wait: bool) -> None:
        """No source has a row with one of the keys, and what it logged until then is staged, if that is waited for.

        Raises UsageError (usage.argument), RetryLater (stage.behind), and what reading the sources raises.
        """
        for one in self.opened.pipeline.sources:
            with open_source(self.opened, one.name) as source:
                fed, _ = read_feeding([source], lambda logical: logical == self.keys.table)
                feeding = fed.feeding(self.keys.table) if self.keys.table in fed.names else ()
                reads = [read for _, schema in feeding for read in self._asked(source, schema)]
            for read in reads if wait else ():
                extract_up_to(self.opened, one.name, read.high, WAIT_S, where=self.keys.table)

    def _asked(self, source: SourceTables, schema: TableSchema) -> list[Read]:
        """schema: of a table that feeds the logical one, before the pipeline's rules."""
        keys, shape = self.keys, source.capture.shape(schema)
        there_now = {column.name.lower(): column for column in shape.columns}
        if any(name.lower() not in there_now for name in keys.key):
            raise Refused(
                f"{schema.name} does not have the key ({', '.join(keys.key)}) any more.",
                where=source.name,
                code="stage.key",
                remedy="copy the table again (`lockstep snapshot PIPELINE TABLE`), and purge what was staged before "
                "(`lockstep stage purge`)",
            )
        columns = [there_now[name.lower()] for name in keys.key]
        if any(column.type is not schema.column(column.name).type for column in columns):
            raise Refused(
                f"The key of {keys.table} is masked, so its rows cannot be looked up in the source.",
                where=keys.table,
                code="stage.key",
                remedy="give the keys as they are staged, and --although-it-exists once the rows are gone",
            )
        there: list[TableRows] = []
        reads = [
            source.lookup(schema, keys.table, lookup.condition(columns, some), there.append)
            for some in lookup.pieces(sorted(keys.texts))
        ]
        if there:
            raise UsageError(
                f"{schema.name} still has {counted(sum(rows.rows.num_rows for rows in there), 'row')} of these keys. "
                "Nothing was erased.",
                where=source.name,
                code="usage.argument",
                remedy="delete them at the source, and run `lockstep run PIPELINE`; or give --although-it-exists, to "
                "erase what is staged of them until now",
            )
        return reads

    def leases(self, held: ExitStack) -> _Leases:
        """Raises RetryLater (lease.held)."""
        opened, lease_s = self.opened, self.opened.pipeline.limits.lease_s
        turn = held.enter_context(turn_at(opened))
        extractors, copiers = {}, {}
        for source in opened.pipeline.sources:
            copiers[source.name] = held.enter_context(copier_lease(opened, source.name))
            taken = LeaseHeld(
                f"The source {source.name!r} is being extracted.",
                where=source.name,
                remedy=f"stop the extractor or, if it is dead, wait {lease_s:g} s for its lease to expire",
            )
            extractors[source.name] = held.enter_context(
                opened.meta.leases.held(source.name, opened.holder, lease_s, taken=taken)
            )
        verifiers = {one.name: held.enter_context(verifier_lease(opened, one.name)) for one in opened.pipeline.targets}
        return _Leases(turn, extractors, copiers, verifiers)

    def find(self, sessions: TargetTables) -> _Found:
        opened, keys = self.opened, self.keys
        staged = [erase_staged.find(opened.store, source.name, keys) for source in opened.pipeline.sources]
        schemas = (
            latest_definitions(_files_of(opened, keys.table).described) if any(one.files for one in staged) else ()
        )
        return _Found(
            staged,
            tuple(erase_derived.find_runs(opened.store, opened.name, keys)),
            tuple(erase_derived.find_evidence(opened.store, opened.name, keys)),
            tuple(find_traces(opened.pipeline, keys, schemas, sessions)),
        )

    def erase(self, leases: _Leases, sessions: TargetTables, *, although_it_exists: bool) -> ErasureReport:
        opened, keys = self.opened, self.keys
        now_us = opened.meta.now_us()
        former = [one for one in erasures.unended(opened.store) if one.pipeline == opened.name]
        record = Erasure(opened.name, keys.table, len(keys.texts), keys.sha256(opened.name), now_us)
        begun = erasures.read(opened.store, record.request)
        known = begun or erasures.read(opened.store, record.request, ended=True)
        record.begin(opened.store)
        opened.meta.failures.keep(FORGET, record.request, erasures.under_way(opened.store, record))
        try:
            self._require_idle()
            found = self.find(sessions)
            self.require_alone(found)
            self._require_known(found, known)
            self._require_applied(found, although_it_exists=although_it_exists)
        except LockstepError:
            if begun is None:
                record.withdraw(opened.store)
                opened.meta.failures.clear(FORGET, record.request)
            raise
        for one in found.staged:
            StagedErasure(opened, record.request, leases.turn).erase(one)
            erase_staged.sweep_orphans(
                opened,
                one.source,
                extractor=leases.extractors[one.source],
                copier=leases.copiers[one.source],
                turn=leases.turn,
            )
        self._erase_derived(found, leases)
        for trace in found.traces:
            trace.erase()
        rows = self._require_gone(record.request, sessions)
        for other in former:
            if other.request != record.request:
                replace(other, ended_us=opened.meta.now_us(), whole=False).end(opened.store)
                opened.meta.failures.clear(FORGET, other.request)
                opened.progress.note(f"An erasure of rows of {other.table} was killed: erase those rows again.")
        replace(record, ended_us=opened.meta.now_us(), rows=rows).end(opened.store)
        opened.meta.failures.clear(FORGET, record.request)
        return self.report(found)

    def report(self, found: _Found) -> ErasureReport:
        keys, opened = self.keys, self.opened
        own = {source.name for source in opened.pipeline.sources}
        others = sorted({name for path in self._files() if (name := _source_of(path)) not in own})
        request = keys.sha256(opened.name)
        return ErasureReport(request[:ID_CHARS], keys.table, len(keys.texts), found.places, tuple(others))

    def _files(self) -> Iterator[str]:
        """All files of the table on the stage, whoever names them."""
        for prefix in (table_prefix, copied_prefix, compacted_prefix):
            for info in self.opened.store.list(prefix(self.keys.table)):
                yield info.path

    def _erase_derived(self, found: _Found, leases: _Leases) -> None:
        for run in found.runs:
            for path in run.paths:
                self.opened.store.delete(path)
        for path, _ in found.evidence:
            erase_derived.erase_evidence(self.opened.store, path, self.keys)
        for target, lease in leases.verifiers.items():
            known = self.opened.meta.verifications.find(target)
            if known is not None and known.progress:
                self.opened.meta.verifications.keep_progress(lease, target, None)

    def require_alone(self, found: _Found) -> None:
        """Raises Refused (stage.key)."""
        others = {text for one in found.staged for file in one.files.values() for text in file.found.others}
        others -= self.keys.texts
        if others:
            raise Refused(
                f"Rows of {self.keys.table} had one of these keys and also another one: before it, after it, or in "
                "letters of another case.",
                where=self.keys.table,
                code="stage.key",
                remedy="name both keys, if all rows that ever had them are to be erased: "
                + some_of([f"--key {self.keys.shown(text)}" for text in sorted(others)], 20, "keys"),
            )

    def _require_known(self, found: _Found, known: Erasure | None) -> None:
        """Raises UsageError (usage.unknown_name) for a key that nothing has: it may be misspelled."""
        there = {text for one in found.staged for file in one.files.values() for text in file.found.keys}
        unknown = self.keys.texts - there
        if unknown and known is None:
            shown = some_of([self.keys.shown(text) for text in sorted(unknown)], 5)
            raise UsageError(
                f"No staged change of {self.keys.table} has the key {shown}. Nothing was erased.",
                where="--key",
                code="usage.unknown_name",
                remedy="write the values as the staged files have them, which `stage sql` shows",
            )

    def _require_idle(self) -> None:
        """Raises Refused (stage.not_committed)."""
        opened = self.opened
        runs = opened.meta.runs.unfinished(opened.meta.now_us() - ABANDONED_US)
        if runs:
            raise _not_yet(
                f"The run {runs[0].run_id} is not finished, and may be reading the files.",
                f"run {runs[0].run_id}",
                "let it finish, or repeat it to its end",
            )
        for source in opened.pipeline.sources:
            meta = opened.meta
            if meta.copies.find(source.name) or meta.copies.chunks(source.name) or meta.copied.decided(source.name):
                raise _not_yet(
                    f"A copy of tables of {source.name} is not staged completely.",
                    source.name,
                    "finish it: `lockstep snapshot PIPELINE`",
                )

    def _require_applied(self, found: _Found, *, although_it_exists: bool) -> None:
        """Raises Refused (stage.not_committed): a target that has not taken the delete would keep the row."""
        for one in found.staged:
            batches = one.batches(self.keys.table)
            ready, held_by = committed(self.opened.meta, self.opened.pipeline, one.manifests)
            if any(batch.batch_id not in {each.batch_id for each in ready} for batch in batches):
                raise _not_yet(
                    f"Changes of these rows are not applied: {held_by}.", one.source, "run `lockstep run PIPELINE`"
                )
        for trace in found.traces:
            rows = [each for each in trace.rows if each.row is not None]
            if rows and not although_it_exists:
                raise _not_yet(
                    f"The target {trace.target!r} still has {counted(len(rows), 'row')} of these keys.",
                    trace.target,
                    "apply the deletes (`lockstep run PIPELINE`, or a replay to a target for replays only); or delete "
                    "rows there that somebody else wrote",
                )

    def _require_gone(self, request: str, sessions: TargetTables) -> int:
        """Everything is read again; how many staged rows the manifests say this erasure took. Raises DataAtRisk
        (stage.damaged)."""
        found = self.find(sessions)
        left = [one.where for one in found.places]
        for one in found.staged:
            named = set(one.files) | {part.path for each in one.manifests for part in each.parts}
            end = one.manifests[-1].end.position.seq if one.manifests else 0
            for path in self._files():
                name = parse_part(path)
                if path not in named and _source_of(path) == one.source and (name is None or name.seq < end):
                    left.append(path)
        if left:
            raise DataAtRisk(
                f"{counted(len(left), 'place')} still may have rows of these keys: {some_of(left, 5)}.",
                where=self.opened.store.uri,
                code="stage.damaged",
                remedy="erase the same keys again; if rows are left again, report this",
            )
        erased = (each for one in found.staged for batch in one.manifests for each in batch.erased)
        return sum(each.rows for each in erased if each.request == request)


def _source_of(path: str) -> str:
    """The source of a staged file; "" for any other file."""
    name = parse_part(path) or parse_copied(path) or parse_compacted(path)
    return "" if name is None else name.source


def _not_yet(what: str, where: str, remedy: str) -> Refused:
    return Refused(
        f"{what} Nothing was erased.", where=where, code="stage.not_committed", remedy=f"{remedy}; then erase again"
    )
