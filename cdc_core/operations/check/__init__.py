"""Preflight: whether a pipeline can run, as findings that each say how to fix them.

It calls the same functions with which `extract` and `run` refuse, and continues after a failure, so that it reports
everything at once. It changes nothing, except that a probe object shows that the stage can be written.
"""

from __future__ import annotations

import os
import tempfile
from collections import defaultdict
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from urllib.parse import urlsplit

from cdc_core.config import IcebergTarget, Pipeline, Source
from cdc_core.meta import Meta
from cdc_core.model.coverage import TableCoverage
from cdc_core.model.position import Checkpoint
from cdc_core.model.readable import counted
from cdc_core.model.schema import TableSchema
from cdc_core.mysql.connections import answers, is_loopback, require_one_server, resolve
from cdc_core.operations.apply.lost_writes import require_kept
from cdc_core.operations.apply.suites import read_suite
from cdc_core.operations.check.check_sources import (
    CheckedTables,
    check_server,
    check_tables,
    check_throttle,
)
from cdc_core.operations.check.check_targets import check_target, identity, writer_of
from cdc_core.operations.check.findings import CheckFinding, Findings, Report, connected
from cdc_core.operations.check.rules import Seen, check_rules
from cdc_core.operations.open_pipeline import OpenCatalogs, OpenPipeline
from cdc_core.process.account import settled
from cdc_core.source.wire.replica_identity import replica_host
from cdc_core.stage import start_record
from cdc_core.stage.manifest import newest, require_continuable
from cdc_core.stage.objects import ObjectStore, check_writable
from cdc_core.stage.stores import open_stage

__all__ = ["CheckFinding", "Report", "check"]


def check(pipeline: Pipeline, *, spark: Callable[[Findings], None] | None = None) -> Report:
    """Check everything that the pipeline needs. spark: asks executors."""
    findings = Findings()
    home = settled(os.environ)["HOME"]
    if home.startswith(f"{tempfile.gettempdir()}/lockstep-"):
        findings.warn(
            "account",
            f"the user id {os.getuid()} has no home that it can use: Lockstep keeps compiled code and archives "
            f"in {home}, and makes them again if that folder is gone",
            "set HOME, or NUMBA_CACHE_DIR, to a folder that the account can write to",
        )
    with ExitStack() as stack:
        opened_meta = findings.attempt(
            "meta",
            partial(_meta, pipeline, stack),
            lambda found: f"current, with positions of {counted(len(found[1]), 'source')}",
        )
        meta, known = opened_meta if opened_meta is not None else (None, {})
        store = _stage(pipeline, meta, known, findings)
        logical, sources = _sources(pipeline, known, findings)
        catalogs = stack.enter_context(OpenCatalogs())
        for target in pipeline.targets:
            if isinstance(target, IcebergTarget):
                from cdc_core.operations.lake.mirror_tables import check_lake

                check_lake(pipeline, target, logical, findings, catalogs)
                if meta is not None and store is not None:
                    opened = OpenPipeline(pipeline, meta, store, catalogs=catalogs)
                    kept = partial(require_kept, opened, target.name)
                    findings.attempt(f"target {target.name}: committed writes", kept)
                continue
            owner = None
            if meta is not None and store is not None:
                owner = findings.attempt(
                    f"target {target.name}: its stage", partial(writer_of, meta, pipeline, target.name)
                )
            check_target(pipeline, target, logical, sources, findings, owner)
            if meta is not None and store is not None:
                opened = OpenPipeline(pipeline, meta, store)
                findings.attempt(f"target {target.name}: committed writes", partial(require_kept, opened, target.name))
    _untaken(pipeline, logical, findings)
    for suite in pipeline.quality.suites:
        findings.attempt(
            f"suite of {suite.table}",
            partial(read_suite, suite),
            lambda expectations: counted(len(expectations), "expectation"),
        )
    if spark is not None:
        findings.attempt("spark", partial(spark, findings))
    return Report(pipeline.pipeline, tuple(findings.made))


def _sources(
    pipeline: Pipeline, stored: Mapping[str, _Known], findings: Findings
) -> tuple[Mapping[str, list[TableSchema]], set[str]]:
    """The captured tables of each logical table, and the identities of the servers. stored: what meta knows."""
    logical: dict[str, list[TableSchema]] = defaultdict(list)
    seen: list[Seen] = []
    servers: set[str] = set()
    for source in pipeline.sources:
        tables: CheckedTables | None = None
        known = stored.get(source.name)
        for reference in source.connections:
            subject = f"source {source.name}" + (f" at {reference}" if len(source.connections) > 1 else "")
            with connected(findings, subject, reference) as connection:
                if connection is None:
                    continue
                address = resolve(reference)
                findings.attempt(f"{subject}: address", partial(require_one_server, address, where=subject))
                host = replica_host(pipeline.pipeline, source.name, known.identity) if known else ""
                check_server(source, address, connection, known.checkpoint if known else None, findings, subject, host)
                if tables is None:
                    check_throttle(pipeline, source, connection, findings, subject)
                    covered = known.covered if known else None
                    tables = check_tables(pipeline, source, connection, findings, covered)
                with answers(subject):
                    servers.add(identity(connection))
        if tables is not None:
            for name, schemas in tables.logical.items():
                logical[name] += schemas
            seen += [tables.seen] if tables.seen is not None else []
    if len(seen) == len(pipeline.sources):
        check_rules(pipeline, seen, logical, findings)
    return logical, servers


@dataclass(frozen=True, slots=True)
class _Known:
    """What meta knows of a source: how far it is staged, the names of its extractors on the server, and the coverage of
    its tables."""

    checkpoint: Checkpoint
    identity: str
    covered: Mapping[str, TableCoverage]


def _meta(pipeline: Pipeline, stack: ExitStack) -> tuple[Meta, dict[str, _Known]]:
    """Opened, with the sources that were extracted."""
    meta = stack.enter_context(Meta.open(pipeline.meta.url, pipeline.pipeline, upgrade=False))
    checkpoints = {source.name: meta.positions.checkpoint(source.name) for source in pipeline.sources}
    return meta, {
        name: _Known(checkpoint, meta.leases.identity(name), meta.coverages.find(name).tables)
        for name, checkpoint in checkpoints.items()
        if checkpoint is not None
    }


def _stage(
    pipeline: Pipeline, meta: Meta | None, stored: Mapping[str, _Known], findings: Findings
) -> ObjectStore | None:
    """None if it cannot be read. meta: None where it could not be asked."""

    def probe() -> ObjectStore:
        store = open_stage(pipeline.stage)
        check_writable(store)
        return store

    store = findings.attempt("stage", probe, lambda found: f"{found.uri} can be written, with conditional writes")
    endpoint = urlsplit(pipeline.stage.s3_endpoint or "")
    if endpoint.scheme == "http" and not is_loopback(endpoint.hostname or ""):
        findings.warn(
            "stage",
            f"{endpoint.geturl()} is reached in plain text: anyone in between can read and change all rows, and use a "
            "session's token",
            "give the server TLS and write s3_endpoint: https://...",
        )
    if store is None or meta is None:
        return store
    for source in pipeline.sources:
        findings.attempt(
            f"source {source.name}: staged batches",
            partial(_require_continuable, pipeline.pipeline, meta, store, source.name, stored.get(source.name)),
            lambda _: "the stage and the meta database agree",
        )
        if source.name in stored:
            findings.attempt(
                f"source {source.name}: start", partial(_warn_of_start, source, store, stored[source.name], findings)
            )
    return store


def _require_continuable(pipeline: str, meta: Meta, store: ObjectStore, source: str, known: _Known | None) -> None:
    start_record.require_own(store, source, pipeline)
    recorded = None if known is None else known.checkpoint.position
    if recorded is None and newest(store, source) is not None:
        # A first extractor may have started since meta was asked; it records its start before it stages anything.
        begun = meta.positions.checkpoint(source)
        recorded = None if begun is None else begun.position
    require_continuable(store, source, recorded)


def _warn_of_start(source: Source, store: ObjectStore, known: _Known, findings: Findings) -> None:
    """`start` counts only until a source is first extracted: a later change of it would be ignored silently."""
    begun = start_record.load(store, source.name)
    if begun is None:
        return
    place = begun.checkpoint.position
    # `latest` is the default: whoever removes `start` asks for nothing.
    if source.start_text in ("latest", begun.asked, f"{place.file}:{place.offset}"):
        return
    findings.warn(
        f"source {source.name}: start",
        f"start: {source.start_text} is ignored: the source was first extracted from {place}"
        f"{f' ({begun.asked})' if begun.asked else ''}, and continues at {known.checkpoint.position}",
        "restore `start` in the pipeline file; to begin elsewhere, use an empty stage and a new source name",
    )


def _untaken(pipeline: Pipeline, logical: Mapping[str, list[TableSchema]], findings: Findings) -> None:
    for name in logical:
        if pipeline.targets and all(target.table(name) is None for target in pipeline.targets):
            findings.warn(
                f"table {name}",
                "it is staged, but no target takes it",
                "add it to targets.*.tables, or exclude it with tables.exclude",
            )
