"""The steps of a copy: extract, read, stage. The command line takes them in one process, Airflow in one task each.

A step may be repeated after a kill at any moment, and by another process: how far a copy is, is in meta. A step that
fails for a source, and a table that cannot be copied, are kept in meta for `lockstep status` and for the page, until
they succeed.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

from cdc_core.config import Pipeline
from cdc_core.errors import AnotherProcess, Refused
from cdc_core.extract import Extractor
from cdc_core.extract.outcome import keep_failure
from cdc_core.meta import Lease, Meta
from cdc_core.meta.failures import COPY, COPY_TABLE, copied_table
from cdc_core.model.coverage import How, lacks
from cdc_core.sink import Capture
from cdc_core.snapshot.copier import Progressed, copy_tables
from cdc_core.snapshot.pending import PendingTable, copied_by_runs
from cdc_core.snapshot.staging import Staged, finish_decided, stage_due
from cdc_core.stage import manifest as manifests
from cdc_core.stage.layout import batch_path
from cdc_core.stage.objects import ObjectStore

log = logging.getLogger(__name__)


def due(meta: Meta, pipeline: Pipeline, source: str) -> tuple[PendingTable, ...]:
    """What a copy would be started for: the tables that runs copy, but not those that the last one could not copy; and
    isolated ones that the pipeline file has read again."""
    refused = {one.subject for one in meta.failures(pipeline.pipeline) if one.task == COPY_TABLE}
    again: tuple[PendingTable, ...] = ()
    if pipeline.tables.on_unreadable == "resync":
        again = tuple(
            PendingTable(table, lacks(table, source, one), one.rows, one.how)
            for table, one in meta.coverage(source).tables.items()
            if one.how is How.ISOLATED
        )
    found = (*copied_by_runs(meta, pipeline, source), *again)
    return tuple(one for one in found if copied_table(source, one.name) not in refused)


def copied_since(meta: Meta, store: ObjectStore, source: str, moment_us: int) -> frozenset[str]:
    """Source tables whose copies were staged at or after a moment, by the clock of whoever staged them."""
    found: set[str] = set()
    for batch in meta.batches(source):
        if batch.created_us >= moment_us and batch.copied:
            path = batch_path(batch.batch_id)
            chunks = manifests.parse(store.get(path), path, store.uri).chunks
            found.update(chunk.table for chunk in chunks if not chunk.by_key)  # single rows are not a copy
    return frozenset(found)


def extract_to_now(pipeline: Pipeline, source: str, meta: Meta, *, holder: str, budget_s: float | None = None) -> bool:
    """Extracts what is committed now, for at most budget_s; False if another extractor has the source.

    Raises what an extract raises; the error is kept in meta.
    """
    try:
        with Extractor(pipeline, source, meta=meta, holder=holder) as extractor:
            extractor.drain(until_us=None, budget_s=budget_s)
    except AnotherProcess as error:
        log.info("%s: another extractor has the source: %s", source, error.what)
        return False
    except Exception as error:
        keep_failure(meta, pipeline.pipeline, source, error)
        raise
    return True


def read_tables(
    pipeline: Pipeline,
    source: str,
    tables: Sequence[PendingTable],
    *,
    meta: Meta,
    store: ObjectStore,
    lease: Lease,
    environ: Mapping[str, str],
    progressed: Progressed = lambda copy: None,
) -> dict[str, Refused]:
    """Reads tables to their ends; why those that cannot be copied were left out, by name.

    lease: the copier's. Raises what `copy_tables` raises.
    """
    name = pipeline.pipeline
    with _kept(meta, name, source):
        finish_decided(meta, store, source, lease)
        refused = copy_tables(
            pipeline, source, [_split(one.name) for one in tables],
            meta=meta, store=store, lease=lease, environ=environ, progressed=progressed,
        )  # fmt: skip
    for one in tables:
        subject = copied_table(source, one.name)
        if one.name in refused:
            meta.failed(name, COPY_TABLE, subject, refused[one.name])
        else:
            meta.succeeded(name, COPY_TABLE, subject)
    return refused


def stage_read(
    pipeline: Pipeline, source: str, *, meta: Meta, store: ObjectStore, lease: Lease, environ: Mapping[str, str]
) -> Staged:
    """Stages the copies that are read and that the chain has passed. lease: the copier's.

    Raises what `stage_due` raises.
    """
    with _kept(meta, pipeline.pipeline, source):
        capture = Capture(pipeline.tables, pipeline.routes, environ)
        return stage_due(meta, store, pipeline, source, lease, capture=capture)


@contextmanager
def _kept(meta: Meta, pipeline: str, source: str) -> Iterator[None]:
    """An error of the block is kept in meta, until a block has succeeded."""
    try:
        yield
    except Exception as error:
        keep_failure(meta, pipeline, source, error, task=COPY)
        raise
    meta.succeeded(pipeline, COPY, source)


def _split(name: str) -> tuple[str, str]:
    database, _, table = name.partition(".")
    return database, table
