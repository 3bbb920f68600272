"""Erases the rows of some keys of a logical table from everything that Lockstep keeps.

    source      does not have the rows any more, and all that it logged until it was asked is staged; or the caller
                says that they go although they exist
    leases      of extraction, copies, purges and compactions, and verifications: nobody else writes or reads
    record      on the stage: from now on, no run is planned
    asked       no run is under way and no copy; every target has committed the changes, and has none of the rows;
                each change is about the named keys alone. Otherwise nothing was changed, and the record goes again
    staged      files, records, manifests and meta (`erase_staged`)
    derived     files of runs, findings, what interrupted verifications keep, and what was read ahead of the logs
                (`erase_derived`)
    traces      tombstones in targets (`erase_traces`), snapshots of lakes (`erase_lake`), and values of the keys in
                errors that meta keeps
    proof       everything is read again: no row of the keys is left
    record      has ended

Killed at any moment, it is repeated with the same keys, or the same condition, and finds what is left. Repeated with
other keys, it brings meta and the stage together again, and ends the record of the first one as one that may have left
rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace

from cdc_core.errors import DataAtRisk, LeaseHeld, UsageError
from cdc_core.meta import Lease
from cdc_core.meta.task_failures import FORGET
from cdc_core.model.readable import counted, some_of
from cdc_core.operations.apply import retention
from cdc_core.operations.apply.turn import turn_at
from cdc_core.operations.copy.copier import copier_lease
from cdc_core.operations.forget import erase_derived, erase_staged
from cdc_core.operations.forget.erasable import (
    ask_sources,
    require_alone,
    require_applied,
    require_idle,
    require_known,
)
from cdc_core.operations.forget.erase_staged import StagedErasure
from cdc_core.operations.forget.erased_keys import ErasedKeys, key_columns, texts_of, texts_where
from cdc_core.operations.forget.erased_places import (
    ErasedPlace,
    ErasureFindings,
    files_of,
    find_places,
    staged_paths,
)
from cdc_core.operations.open_pipeline import OpenPipeline
from cdc_core.operations.verify.target_rows import TargetTables
from cdc_core.operations.verify.verify_job import digest, verifier_lease
from cdc_core.stage import erasures
from cdc_core.stage.erasures import ID_CHARS, Erasure
from cdc_core.stage.layout import parse_part


@dataclass(frozen=True, slots=True)
class ErasureReport:
    """request: id of the record. others: sources that the pipeline does not have, and whose files of the table were not
    looked at; "" for files that no source has written. also: other logical tables that source tables of this one feed,
    which have the rows, too."""

    request: str
    table: str
    keys: int
    places: tuple[ErasedPlace, ...]
    others: tuple[str, ...]
    also: tuple[str, ...] = ()


def forget(
    opened: OpenPipeline,
    table: str,
    given: Sequence[str],
    *,
    where: str = "",
    although_it_exists: bool = False,
    dry_run: bool = False,
) -> ErasureReport:
    """given: the keys, as `--key` has them. where: an SQL condition on columns, for the keys of all rows that it was
    ever true of. although_it_exists: the source is not asked. dry_run: only says where the rows are.

    Raises UsageError (usage.argument, usage.unknown_name, stage.sql), Refused (stage.key, stage.not_committed,
    stage.other_pipeline), RetryLater (lease.held, stage.behind), DataAtRisk (stage.damaged), and what the sources, the
    targets and the stage raise.
    """
    keys, condition = _keys(opened, table, given, where)
    work = _Forgetting(opened, keys, condition)
    if not although_it_exists:
        ask_sources(opened, keys, wait=not dry_run)
    with TargetTables() as sessions:
        if dry_run:
            findings = find_places(opened, keys, sessions)
            require_alone(keys, findings)
            return work.report(findings)
        with ExitStack() as held:
            return work.erase(work.leases(held), sessions, although_it_exists=although_it_exists)


def _keys(opened: OpenPipeline, table: str, given: Sequence[str], where: str) -> tuple[ErasedKeys, str]:
    """The keys, and a digest of the condition. Those that an erasure by the same condition had found, and that was
    killed, are among them."""
    files = files_of(opened, table)
    columns = key_columns(files)
    texts, condition = texts_of(given, columns), digest([table, where]) if where else ""
    if where:
        texts |= texts_where(opened, files, columns, where)
        texts = texts.union(*(erasure.found for erasure in _own_unended(opened) if erasure.condition == condition))
    if not texts:
        raise UsageError(
            f"No staged change of {table} is of rows that the condition is true of." if where else "No key is given.",
            where="--where" if where else "--key",
            code="usage.unknown_name" if where else "usage.argument",
            remedy="look at its staged changes, which `stage sql` shows" if where else "give --key, --keys or --where",
        )
    return ErasedKeys(table, columns, texts), condition


def _own_unended(opened: OpenPipeline) -> list[Erasure]:
    return [erasure for erasure in erasures.unended(opened.store) if erasure.pipeline == opened.name]


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
    condition: str = ""

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
        begun = [one.target for one in opened.meta.verifications.all() if one.progress]  # some of former targets
        names = dict.fromkeys([*(target.name for target in opened.pipeline.targets), *begun])
        verifiers = {name: held.enter_context(verifier_lease(opened, name)) for name in names}
        return _Leases(turn, extractors, copiers, verifiers)

    def erase(self, leases: _Leases, sessions: TargetTables, *, although_it_exists: bool) -> ErasureReport:
        opened, keys = self.opened, self.keys
        now_us = opened.meta.now_us()
        former = _own_unended(opened)
        record = Erasure(opened.name, keys.table, len(keys.texts), keys.sha256(opened.name), now_us)
        if self.condition:
            record = replace(record, condition=self.condition, found=tuple(sorted(keys.texts)))
        begun = erasures.read(opened.store, record.request)
        known = begun or erasures.read(opened.store, record.request, ended=True)
        record.begin(opened.store)
        opened.meta.failures.keep(FORGET, record.request, erasures.under_way(opened.store, record))
        try:
            require_idle(opened)
            retention.finish(opened)  # purged files with these rows may be left
            findings = find_places(opened, keys, sessions)
            require_alone(keys, findings)
            if known is None:
                require_known(keys, findings)
            require_applied(opened, keys, findings, although_it_exists=although_it_exists)
        except BaseException:
            if begun is None:  # nothing was changed
                record.withdraw(opened.store)
                opened.meta.failures.clear(FORGET, record.request)
            raise
        for staged in findings.staged:
            StagedErasure(opened, record.request, leases.turn).erase(staged)
            erase_staged.sweep_orphans(
                opened,
                staged.source,
                extractor=leases.extractors[staged.source],
                copier=leases.copiers[staged.source],
                turn=leases.turn,
            )
        self._erase_derived(findings, leases)
        for trace in findings.traces:
            trace.erase()
        for lake in findings.lakes:
            lake.erase(opened)
        opened.meta.errors.rewrite(keys.without_values)
        rows = self._require_gone(record.request, sessions)
        for other in former:
            if other.request != record.request:
                whole = bool(other.found) and other.table == keys.table and keys.texts.issuperset(other.found)
                replace(other, ended_us=opened.meta.now_us(), whole=whole).end(opened.store)
                opened.meta.failures.clear(FORGET, other.request)
                if not whole:
                    opened.progress.note(f"An erasure of rows of {other.table} was killed: erase those rows again.")
        replace(record, ended_us=opened.meta.now_us(), rows=rows).end(opened.store)
        opened.meta.failures.clear(FORGET, record.request)
        return self.report(findings)

    def report(self, findings: ErasureFindings) -> ErasureReport:
        keys, opened = self.keys, self.opened
        own = {source.name for source in opened.pipeline.sources}
        others = sorted({source for _, source in staged_paths(opened, keys.table)} - own)
        also = sorted({table for staged in findings.staged for table in staged.fed} - {keys.table})
        request = keys.sha256(opened.name)[:ID_CHARS]
        return ErasureReport(request, keys.table, len(keys.texts), findings.places, tuple(others), tuple(also))

    def _erase_derived(self, findings: ErasureFindings, leases: _Leases) -> None:
        for run in findings.runs:
            for path in run.paths:
                self.opened.store.delete(path)
        for path, _ in findings.evidence:
            erase_derived.erase_evidence(self.opened.store, path, self.keys)
        erase_derived.discard_temporary(self.opened)
        for lease in leases.extractors.values():  # which costs only time
            self.opened.meta.positions.keep_read_ahead(lease, "")
        for target, lease in leases.verifiers.items():
            verification = self.opened.meta.verifications.find(target)
            if verification is not None and verification.progress:
                self.opened.meta.verifications.keep_progress(lease, target, None)

    def _require_gone(self, request: str, sessions: TargetTables) -> int:
        """Everything is read again; how many staged rows the manifests say this erasure took. Raises DataAtRisk
        (stage.damaged)."""
        findings = find_places(self.opened, self.keys, sessions)
        left = [place.where for place in findings.places]
        for staged in findings.staged:
            named = set(staged.files) | {part.path for each in staged.manifests for part in each.parts}
            end = staged.manifests[-1].end.position.seq if staged.manifests else 0
            for path, source in staged_paths(self.opened, self.keys.table):
                name = parse_part(path)
                if path not in named and source == staged.source and (name is None or name.seq < end):
                    left.append(path)
        if left:
            raise DataAtRisk(
                f"{counted(len(left), 'place')} still may have rows of these keys: {some_of(left, 5)}.",
                where=self.opened.store.uri,
                code="stage.damaged",
                remedy="erase the same keys again; if rows are left again, report this",
            )
        erased = (each for staged in findings.staged for batch in staged.manifests for each in batch.erased)
        return sum(each.rows for each in erased if each.request == request)
