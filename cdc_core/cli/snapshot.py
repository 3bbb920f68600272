"""`lockstep snapshot`: copies the rows that tables had before they were captured, beside the stream."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from cdc_core.cli.extract import extract_sources
from cdc_core.cli.options import (
    DEFAULT_PIPELINES,
    JsonOption,
    PipelineArgument,
    PipelinesOption,
    choose,
    load_pipeline,
)
from cdc_core.cli.output import CliOutput, size, table
from cdc_core.config import Pipeline
from cdc_core.errors import RetryLater, UsageError
from cdc_core.stage.stores import open_stage
from cdc_core.words import counted

if TYPE_CHECKING:
    from cdc_core.extract import DrainResult
    from cdc_core.meta import Meta, TableCopy
    from cdc_core.snapshot.pending import PendingTable
    from cdc_core.snapshot.staging import Staged

WAIT_S = 600.0
"""How long another extractor may take to pass the place that the copy waits for."""
_PAUSE_S = 2.0


def register(app: typer.Typer) -> None:
    app.command()(snapshot)


def snapshot(
    pipeline: PipelineArgument,
    tables: Annotated[
        list[str] | None,
        typer.Argument(metavar="[TABLE]...", help="database.table of the source; default: pending ones."),
    ] = None,
    source: Annotated[str | None, typer.Option("--source", metavar="NAME", help="Only this source.")] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Extract, then show what would be copied; copy nothing.")
    ] = False,
    pipelines: PipelinesOption = DEFAULT_PIPELINES,
    as_json: JsonOption = False,
) -> None:
    """Copy the rows that tables had before they were captured, while the application keeps writing.

    \b
      lockstep snapshot shop --dry-run
      lockstep snapshot shop
      lockstep snapshot shop shop.orders shop.items

    Without TABLE, copies each captured table of which older rows are missing. Tables are read in chunks by key, with
    SELECT only. The rows are staged beside the changes (_cdc_op is r) and reach the targets with the next run; newer
    changes always win. A copy that was interrupted continues after its last chunk.
    """
    output = CliOutput(as_json)
    _, parsed = load_pipeline(pipeline, pipelines)
    names = choose([one.name for one in parsed.sources], [source] if source else None, "source")
    if tables and len(names) > 1:
        raise UsageError(
            f"The pipeline has {len(names)} sources, and TABLE is a table of one of them.",
            where="lockstep snapshot",
            code="cli.usage",
            remedy=f"add --source, one of: {', '.join(names)}",
        )
    from cdc_core.meta import Meta

    extract_sources(parsed, names, None, output)
    with Meta.open(parsed.meta.url) as meta:
        wanted = {name: _wanted(meta, name, tables, parsed.tables.on_new) for name in names}
        if dry_run:
            _show_plan(output, parsed, wanted)
            return
        staged = copy_sources(parsed, meta, wanted, output, named=bool(tables))
    _answer(output, parsed, wanted, staged)


def copy_sources(
    pipeline: Pipeline,
    meta: Meta,
    wanted: dict[str, tuple[PendingTable, ...]],
    output: CliOutput,
    *,
    named: bool = False,
) -> dict[str, Staged]:
    """Copies the tables of each source and stages them; sources with nothing to copy are left alone.

    named: the user named the tables, so that one which cannot be copied is an error; otherwise it is a note.
    """
    from cdc_core.extract.extractor import default_holder
    from cdc_core.snapshot.copier import copier_lease
    from cdc_core.snapshot.staging import Staged
    from cdc_core.snapshot.steps import read_tables, stage_read

    store = open_stage(pipeline.stage)
    found: dict[str, Staged] = {}
    for name, tables in wanted.items():
        if not tables:
            continue
        with copier_lease(meta, pipeline.pipeline, name, default_holder(), pipeline.limits.lease_s) as lease:
            with _watch(output) as watch:
                refused = read_tables(
                    pipeline, name, tables, meta=meta, store=store, lease=lease, environ=os.environ, progressed=watch
                )
            for error in refused.values():
                if named:
                    raise error
                output.note(f"not copied: {error.what} {error.remedy}.")
            if len(refused) == len(tables):
                continue
            deadline_s = time.monotonic() + WAIT_S
            staged = Staged()
            while True:
                _extract_on(pipeline, name, output)
                staged = staged.then(
                    stage_read(pipeline, name, meta=meta, store=store, lease=lease, environ=os.environ)
                )
                if staged.waiting is None or time.monotonic() > deadline_s:
                    break
                time.sleep(_PAUSE_S)
            found[name] = staged
    return found


def copy_pending(pipeline: Pipeline, output: CliOutput) -> dict[str, DrainResult]:
    """Copies what is pending of every source that has been extracted; how far each copied source is extracted then."""
    from cdc_core.meta import Meta
    from cdc_core.snapshot.pending import pending

    with Meta.open(pipeline.meta.url) as meta:
        wanted = {one.name: pending(meta, one.name, on_new=pipeline.tables.on_new) for one in pipeline.sources}
        if not any(wanted.values()):
            return {}
        try:
            staged = copy_sources(pipeline, meta, wanted, output)
        except RetryLater as error:
            if error.code != "snapshot.running":
                raise
            output.note(f"not copied here: {error.what}")
            return {}
    # The coverage of the copied tables, for what is said of partial ones.
    return dict(extract_sources(pipeline, [name for name, one in staged.items() if one.batches], None, output))


def _wanted(meta: Meta, source: str, tables: list[str] | None, on_new: str) -> tuple[PendingTable, ...]:
    from cdc_core.snapshot.pending import chosen, pending

    return chosen(meta, source, tables) if tables else pending(meta, source, on_new=on_new)


def _extract_on(pipeline: Pipeline, source: str, output: CliOutput) -> None:
    """Extracts up to now, unless another extractor is at it."""
    from cdc_core.extract.outcome import ANOTHER_HAS_IT

    try:
        extract_sources(pipeline, [source], None, output)
    except RetryLater as error:
        if error.code not in ANOTHER_HAS_IT:
            raise


def _show_plan(output: CliOutput, pipeline: Pipeline, wanted: dict[str, tuple[PendingTable, ...]]) -> None:
    rows = [(source, one.name, one.rows, one.why) for source, tables in wanted.items() for one in tables]
    document = {
        "pipeline": pipeline.pipeline,
        "tables": [
            {"source": source, "table": name, "rows_estimated": count, "why": why} for source, name, count, why in rows
        ],
    }
    shown = [(source, name, "?" if count is None else f"~{count:,}", why) for source, name, count, why in rows]
    output.answer(
        document,
        table("to copy", ("source", "table", "rows", "why"), shown, numbers=("rows",)) if rows else "Nothing to copy.",
    )


def _answer(
    output: CliOutput, pipeline: Pipeline, wanted: dict[str, tuple[PendingTable, ...]], staged: dict[str, Staged]
) -> None:
    document: dict[str, Any] = {"pipeline": pipeline.pipeline, "sources": []}
    rows = []
    for name, result in staged.items():
        copied = sum(chunk.rows for batch in result.batches for chunk in batch.chunks)
        size_bytes = sum(batch.size_bytes for batch in result.batches)
        document["sources"].append(
            {
                "source": name,
                "tables": list(result.tables),
                "rows": copied,
                "size_bytes": size_bytes,
                "batches": [batch.batch_id for batch in result.batches],
                "waiting_for": None if result.waiting is None else str(result.waiting),
                "dropped": [{"table": one, "why": why} for one, why in result.dropped],
            }
        )
        rows.append((name, len(result.tables), copied, size(size_bytes), len(result.batches)))
    if not rows:
        output.answer(document, "Nothing to copy: every captured table is staged with all of its rows.")
        return
    output.answer(
        document,
        table(
            "copied",
            ("source", "tables", "rows", "size", "batches"),
            rows,
            numbers=("tables", "rows", "size", "batches"),
        ),
    )
    for name, result in staged.items():
        for one, why in result.dropped:
            output.note(f"{one} of {name} was not staged: {why}. Run `lockstep snapshot` again.")
        if result.waiting is not None:
            output.note(
                f"{name}: {counted(len(wanted[name]) - len(result.tables), 'table')} wait until {result.waiting} is "
                "extracted: run `lockstep snapshot` again."
            )


@contextmanager
def _watch(output: CliOutput) -> Iterator[Callable[[TableCopy], None]]:
    """A bar for each table that is being read."""
    if not output.animated:
        yield lambda copy: None
        return
    bars: dict[str, Any] = {}
    columns = (
        SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[rows]}"),
        TimeElapsedColumn(), TimeRemainingColumn(),
    )  # fmt: skip
    with Progress(*columns, console=output.err, transient=True) as progress:

        def update(copy: TableCopy) -> None:
            if copy.table not in bars:
                bars[copy.table] = progress.add_task(copy.table, total=None, rows="")
            total = copy.rows if copy.complete else max(copy.rows_estimated, copy.rows) or None
            progress.update(bars[copy.table], completed=copy.rows, total=total, rows=counted(copy.rows, "row"))

        yield update
