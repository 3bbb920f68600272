"""`lockstep snapshot`: copies tables of which rows or changes are missing, beside the stream."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cdc_core.cli.output import listing, table
from cdc_core.cli.pipeline_command import PipelineCall, pipeline_command
from cdc_core.errors import LockstepError, RetryLater, UsageError, combined, to_document
from cdc_core.model.readable import size

if TYPE_CHECKING:
    from cdc_core.operations.copy.copy_sources import Copied
    from cdc_core.operations.copy.pending import PendingTable
    from cdc_core.operations.open_pipeline import OpenPipeline


app = typer.Typer()


@pipeline_command(app)
def snapshot(
    call: PipelineCall,
    tables: Annotated[
        list[str] | None,
        typer.Argument(metavar="[TABLE]...", help="database.table of the source; default: pending ones."),
    ] = None,
    source: Annotated[str | None, typer.Option("--source", metavar="NAME", help="Only this source.")] = None,
    everything: Annotated[
        bool,
        typer.Option("--all", help="Copy every captured table."),
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what would be copied.")] = False,
    pause: Annotated[bool, typer.Option("--pause", help="Pause all copies until --resume.")] = False,
    resume: Annotated[bool, typer.Option("--resume", help="Let paused copies continue.")] = False,
) -> None:
    """Copy existing rows while the application keeps writing.

    \b
      lockstep snapshot shop --dry-run
      lockstep snapshot shop shop.orders shop.items

    Without TABLE, copies every captured table that lacks rows or changes. Reads with SELECT only, in chunks by key. The
    next run applies the rows; newer changes win. An interrupted copy continues after its last chunks. Exit codes: 3 a
    table cannot be copied, the others are; 75 rows that were read are not staged, run it again.
    """
    names = call.sources([source] if source else None)
    if tables and len(names) > 1:
        raise UsageError(
            f"TABLE belongs to one source, but the pipeline has {len(names)}.",
            where="lockstep snapshot",
            code="usage.argument",
            remedy=f"add --source, one of: {', '.join(names)}",
        )
    if sum((bool(tables), everything, pause, resume)) > 1 or (dry_run and (pause or resume)):
        raise UsageError(
            "Give only one of TABLE, --all, --pause and --resume; --dry-run goes with a copy.",
            where="lockstep snapshot",
            code="usage.argument",
            remedy="give one of them",
        )
    from cdc_core.operations.copy import copy_sources

    with call.opened() as ready:
        if pause or resume:
            _switch(call, ready, names, pause=pause)
            return
        copy_sources.extract_before_copying(ready, names, known_will_do=dry_run)
        if not dry_run:
            copy_sources.read_isolated_again(ready, names, tables or ())
        wanted: dict[str, tuple[PendingTable, ...]] = {}
        left: dict[str, dict[str, str]] = {}
        for name in names:
            wanted[name], left[name] = copy_sources.tables_to_copy(ready, name, tables, everything=everything)
        if dry_run:
            _show_plan(call, ready, wanted, left)
            return
        copied = copy_sources.copy_sources(ready, wanted)
        error = combined(list(copied.refused.values())) if copied.refused else None
        if error is not None and not copied.staged:
            raise error
        _answer(call, ready, left, copied, error)
    if error is not None:
        raise typer.Exit(error.exit_code)
    if any(staged.dropped or staged.waiting is not None for staged in copied.staged.values()):
        raise typer.Exit(RetryLater.exit_code)


def _switch(call: PipelineCall, ready: OpenPipeline, sources: list[str], *, pause: bool) -> None:
    """Pauses the copies of these sources, or resumes them."""
    lines = []
    for source in sources:
        if pause:
            ready.meta.copies.pause(source, ready.holder)
            lines.append(f"Copies of {source} are paused: no chunk is read until `lockstep snapshot --resume`.")
        elif ready.meta.copies.resume(source):
            lines.append(f"Copies of {source} may continue: run `lockstep snapshot`, or wait for the next run.")
        else:
            lines.append(f"Copies of {source} were not paused.")
    call.answer({"sources": sources, "paused": pause}, "\n".join(lines))


def _left_out(left: Mapping[str, Mapping[str, str]]) -> list[dict[str, str]]:
    return [{"source": source, "table": name, "why": why} for source, of in left.items() for name, why in of.items()]


def _note_left_out(call: PipelineCall, left: Mapping[str, Mapping[str, str]]) -> None:
    for document in _left_out(left):
        call.output.note(f"left out: {document['why']}")


def _show_plan(
    call: PipelineCall,
    ready: OpenPipeline,
    wanted: dict[str, tuple[PendingTable, ...]],
    left: Mapping[str, Mapping[str, str]],
) -> None:
    found = [
        {"source": source, "table": planned.name, "rows_estimated": planned.rows, "why": planned.why}
        for source, tables in wanted.items()
        for planned in tables
    ]
    paused = [source for source in sorted(wanted) if ready.meta.copies.paused(source) is not None]
    document = {"tables": found, "paused": paused, "left_out": _left_out(left)}
    keys = "source table rows_estimated why"
    call.answer(document, listing("to copy", found, keys) if found else "Nothing to copy.")
    _note_left_out(call, left)
    for source in paused:
        call.output.note(f"Copies of {source} are paused (`lockstep snapshot --resume`).")


def _answer(
    call: PipelineCall,
    ready: OpenPipeline,
    left: Mapping[str, Mapping[str, str]],
    copied: Copied,
    error: LockstepError | None,
) -> None:
    """left: by source and table, why tables were not to be copied. error: of those that could not be."""
    from cdc_core.operations.copy.copy_sources import note_refused

    document: dict[str, Any] = {"sources": [], "left_out": _left_out(left)}
    if error is not None:
        document |= to_document(error)
    rows = []
    for name, result in copied.staged.items():
        staged_rows = sum(chunk.rows for batch in result.batches for chunk in batch.chunks)
        size_bytes = sum(batch.size_bytes for batch in result.batches)
        document["sources"].append(
            {
                "source": name,
                "tables": list(result.tables),
                "rows": staged_rows,
                "size_bytes": size_bytes,
                "batches": [batch.batch_id for batch in result.batches],
                "waiting_for": None if result.waiting is None else str(result.waiting),
                "dropped": [{"table": dropped, "why": why} for dropped, why in result.dropped],
            }
        )
        rows.append((name, len(result.tables), staged_rows, size(size_bytes), len(result.batches)))
    if not rows:
        call.answer(document, "Nothing to copy: every captured table is staged with all of its rows.")
        _note_left_out(call, left)
        return
    columns = ("source", "tables", "rows", "size", "batches")
    call.answer(document, table("copied", columns, rows))
    note_refused(ready, copied)
    _note_left_out(call, left)
    for name, result in copied.staged.items():
        for dropped, why in result.dropped:
            call.output.note(f"{dropped} of {name} was not staged: {why}. Run `lockstep snapshot` again.")
        if result.waiting is not None:
            call.output.note(
                f"{name}: the rows that are not staged yet wait until {result.waiting} is extracted: run `lockstep "
                "snapshot` again."
            )
