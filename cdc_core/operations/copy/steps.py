"""The steps of a copy: extract, read, stage. The command line takes them in one process, Airflow in two tasks.

A step may be repeated after a kill at any moment, and by another process: how far a copy is, is in meta. A step that
fails for a source, and a table that cannot be copied, are kept in meta for `lockstep status` and for the page, until
they succeed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from cdc_core.errors import Refused
from cdc_core.meta import Lease, TableCopy
from cdc_core.meta.task_failures import COPY, COPY_TABLE, copied_table
from cdc_core.model.coverage import How, lacks
from cdc_core.operations.copy.copier import copy_tables
from cdc_core.operations.copy.pending import PendingTable, copied_by_runs
from cdc_core.operations.copy.staging import Staged, finish_decided, stage_due
from cdc_core.operations.extract.outcome import keep_failure
from cdc_core.operations.open_pipeline import OpenPipeline
from cdc_core.source.capture import Capture
from cdc_core.stage import manifest as manifests
from cdc_core.stage.layout import batch_path


def due(opened: OpenPipeline, source: str) -> tuple[PendingTable, ...]:
    """What a copy would be started for: the tables that runs copy, but not those that the last one could not copy; and
    isolated ones that the pipeline file has read again."""
    meta, pipeline = opened.meta, opened.pipeline
    refused = {failure.subject for failure in meta.failures.find() if failure.task == COPY_TABLE}
    again: tuple[PendingTable, ...] = ()
    if pipeline.tables.on_unreadable == "resync":
        again = tuple(
            PendingTable(table, lacks(table, source, coverage), coverage.rows, coverage.how)
            for table, coverage in meta.coverages.find(source).tables.items()
            if coverage.how is How.ISOLATED
        )
    pending = (*copied_by_runs(meta, pipeline, source), *again)
    return tuple(table for table in pending if copied_table(source, table.name) not in refused)


def copied_since(opened: OpenPipeline, source: str, moment_us: int) -> frozenset[str]:
    """Source tables whose copies were staged at or after a moment, by the clock of whoever staged them."""
    copied: set[str] = set()
    for batch in opened.meta.batches.find(source):
        if batch.created_us >= moment_us and batch.copied:
            path = batch_path(batch.batch_id)
            chunks = manifests.parse(opened.store.get(path), path, opened.store.uri).chunks
            copied.update(chunk.table for chunk in chunks if not chunk.by_key)  # single rows are not a copy
    return frozenset(copied)


def read_tables(
    opened: OpenPipeline,
    source: str,
    tables: Sequence[PendingTable],
    lease: Lease,
    progressed: Callable[[TableCopy], None] = lambda copy: None,
) -> dict[str, Refused]:
    """Reads tables to their ends; why those that cannot be copied were left out, by name.

    lease: the copier's. Raises what `copy_tables` raises.
    """
    with _kept(opened, source):
        finish_decided(opened.meta, opened.store, source, lease)
        refused = copy_tables(opened, source, [_split(table.name) for table in tables], lease, progressed)
    for table in tables:
        subject = copied_table(source, table.name)
        if table.name in refused:
            opened.meta.failures.keep(COPY_TABLE, subject, refused[table.name])
        else:
            opened.meta.failures.clear(COPY_TABLE, subject)
    return refused


def stage_read(opened: OpenPipeline, source: str, lease: Lease) -> Staged:
    """Stages the copies that are read and that the chain has passed. lease: the copier's.

    Raises what `stage_due` raises.
    """
    with _kept(opened, source):
        capture = Capture(opened.pipeline.tables, opened.pipeline.routes)
        return stage_due(opened, source, lease, capture=capture)


@contextmanager
def _kept(opened: OpenPipeline, source: str) -> Iterator[None]:
    """An error of the block is kept in meta, until a block has succeeded."""
    try:
        yield
    except Exception as error:
        keep_failure(opened, source, error, task=COPY)
        raise
    opened.meta.failures.clear(COPY, source)


def _split(name: str) -> tuple[str, str]:
    database, _, table = name.partition(".")
    return database, table
