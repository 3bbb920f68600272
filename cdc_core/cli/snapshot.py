"""`lockstep snapshot`: copies tables of which rows or changes are missing, beside the stream."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cdc_core.cli.copy_progress import progress_text
from cdc_core.cli.extract import extract_sources
from cdc_core.cli.options import (
    DEFAULT_PIPELINES,
    JsonOption,
    PipelineArgument,
    PipelinesOption,
    choose,
    load_pipeline,
)
from cdc_core.cli.output import CliOutput, duration, error_document, size, table
from cdc_core.errors import AnotherProcess, LeaseHeld, LockstepError, Paused, Refused, RetryLater, UsageError, combined
from cdc_core.stage.stores import open_stage
from cdc_core.words import counted

if TYPE_CHECKING:
    from cdc_core.config import Pipeline
    from cdc_core.extract import DrainResult
    from cdc_core.meta import ChunkRetries, Meta, TableCopy
    from cdc_core.snapshot.pending import PendingTable
    from cdc_core.snapshot.progress import Figures
    from cdc_core.snapshot.staging import Staged

WAIT_S = 600.0
"""How long another extractor may take to pass the place that the copy waits for."""
_PAUSE_S = 2.0
NOTE_S = 10.0
"""Between two reports of progress without a terminal."""


def register(app: typer.Typer) -> None:
    app.command()(snapshot)


def snapshot(
    pipeline: PipelineArgument,
    tables: Annotated[
        list[str] | None,
        typer.Argument(metavar="[TABLE]...", help="database.table of the source; default: pending ones."),
    ] = None,
    source: Annotated[str | None, typer.Option("--source", metavar="NAME", help="Only this source.")] = None,
    everything: Annotated[
        bool,
        typer.Option(
            "--all", help="Every captured table, whether rows of it are missing or not; says which others it leaves."
        ),
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show what would be copied, and how long it may take; copy nothing.")
    ] = False,
    pause: Annotated[
        bool, typer.Option("--pause", help="Let no process read chunks any more, until --resume.")
    ] = False,
    resume: Annotated[bool, typer.Option("--resume", help="Let copies continue.")] = False,
    pipelines: PipelinesOption = DEFAULT_PIPELINES,
    as_json: JsonOption = False,
) -> None:
    """Copy tables of which rows or changes are missing, while the application keeps writing.

    \b
      lockstep snapshot shop --dry-run
      lockstep snapshot shop
      lockstep snapshot shop shop.orders shop.items

    Without TABLE, copies each captured table that had rows before its capture, that changed without row events, that
    was not captured for a while, or whose rules were edited; of the latter three, rows that no longer exist are removed
    as well. Tables are read in chunks by key, with SELECT only; one without a key in a single read (on MySQL its table
    is locked for a moment). The rows are staged beside the changes (_cdc_op is r) and reach the targets with the next
    run; newer changes always win. A copy that was interrupted continues after its last chunks. --pause stops the copies
    of a source wherever they run, after the chunks that they are at; it lasts until --resume. Exit code 3: a table
    cannot be copied; the others are. 75: rows that were read are not staged; run the command again.
    """
    output = CliOutput(as_json)
    _, parsed = load_pipeline(pipeline, pipelines)
    names = choose([one.name for one in parsed.sources], [source] if source else None, "source")
    if tables and len(names) > 1:
        raise UsageError(
            f"The pipeline has {len(names)} sources, and TABLE is a table of one of them.",
            where="lockstep snapshot",
            code="usage.argument",
            remedy=f"add --source, one of: {', '.join(names)}",
        )
    if sum((bool(tables), everything, pause, resume)) > 1 or (dry_run and (pause or resume)):
        raise UsageError(
            "TABLE, --all, --pause and --resume exclude each other, and --dry-run is about a copy.",
            where="lockstep snapshot",
            code="usage.argument",
            remedy="give one of them",
        )
    from cdc_core.meta import Meta

    with Meta.open(parsed.meta.url, parsed.pipeline) as meta:
        if pause or resume:
            _switch(output, parsed, meta, names, pause=pause)
            return
        _extract_first(parsed, meta, names, output, needed=not dry_run)
        if not dry_run:
            _read_again(parsed, meta, names, output)
        wanted: dict[str, tuple[PendingTable, ...]] = {}
        left: dict[str, dict[str, str]] = {}
        for name in names:
            wanted[name], left[name] = _wanted(meta, name, tables, on_new=parsed.tables.on_new, everything=everything)
        if dry_run:
            _show_plan(output, parsed, meta, wanted, left)
            return
        copied = copy_sources(parsed, meta, wanted, output)
    error = combined(list(copied.refused.values())) if copied.refused else None
    if error is not None and not copied.staged:
        raise error
    _answer(output, parsed, left, copied, error)
    if error is not None:
        raise typer.Exit(error.exit_code)
    if any(one.dropped or one.waiting is not None for one in copied.staged.values()):
        raise typer.Exit(RetryLater.exit_code)


@dataclass(frozen=True, slots=True)
class Copied:
    """staged: by source. refused: by table, why it was not copied. retries: by source and table, of its chunks."""

    staged: Mapping[str, Staged]
    refused: Mapping[str, Refused]
    retries: Mapping[str, Mapping[str, ChunkRetries]]


def copy_sources(
    pipeline: Pipeline,
    meta: Meta,
    wanted: Mapping[str, tuple[PendingTable, ...]],
    output: CliOutput,
) -> Copied:
    """Copies the tables of each source and stages them; sources with nothing to copy are left alone.

    What another process has copied while this one was waiting for the lease, or copying another source, is not copied
    once more.
    """
    from cdc_core.snapshot.copier import copier_lease
    from cdc_core.snapshot.pending import still_pending
    from cdc_core.snapshot.staging import Staged
    from cdc_core.snapshot.steps import read_tables, stage_read

    store = open_stage(pipeline.stage)
    found: dict[str, Staged] = {}
    left_out: dict[str, Refused] = {}
    retries: dict[str, Mapping[str, ChunkRetries]] = {}
    for name, asked in wanted.items():
        if not asked:
            continue
        with copier_lease(meta, pipeline, name) as lease:
            tables = still_pending(meta, name, asked)
            if not tables:
                continue
            with _watch(output, tables) as watch:
                refused = read_tables(
                    pipeline, name, tables, meta=meta, store=store, lease=lease, environ=os.environ, progressed=watch
                )
            retries[name] = meta.chunk_retries(name)
            left_out |= {f"{name}: {table}": error for table, error in refused.items()}
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
    return Copied(found, left_out, retries)


def copy_pending(pipeline: Pipeline, output: CliOutput) -> dict[str, DrainResult]:
    """Copies what is pending of every source that has been extracted; how far each copied source is extracted then."""
    from cdc_core.meta import Meta
    from cdc_core.snapshot.pending import copied_by_runs

    done: list[str] = []
    with Meta.open(pipeline.meta.url, pipeline.pipeline) as meta:
        _read_again(pipeline, meta, [source.name for source in pipeline.sources], output)
        for source in pipeline.sources:
            wanted = copied_by_runs(meta, pipeline, source.name)
            try:
                copied = copy_sources(pipeline, meta, {source.name: wanted}, output)
            except (LeaseHeld, Paused) as error:
                output.note(f"not copied here: {error.what}")
                continue
            _note_refused(output, copied)
            done += [name for name, one in copied.staged.items() if one.batches]
    # The coverage of the copied tables, for what is said of partial ones.
    return dict(extract_sources(pipeline, done, None, output)) if done else {}


def _note_refused(output: CliOutput, copied: Copied) -> None:
    for error in copied.refused.values():
        output.note(f"not copied: {error.what} {error.remedy}.")


def _switch(output: CliOutput, pipeline: Pipeline, meta: Meta, names: list[str], *, pause: bool) -> None:
    """Pauses the copies of these sources, or resumes them."""
    from cdc_core.extract.extractor import default_holder

    lines = []
    for name in names:
        if pause:
            meta.pause_copies(name, default_holder())
            lines.append(f"Copies of {name} are paused: no chunk is read until `lockstep snapshot --resume`.")
        elif meta.resume_copies(name):
            lines.append(f"Copies of {name} may continue: run `lockstep snapshot`, or wait for the next run.")
        else:
            lines.append(f"Copies of {name} were not paused.")
    output.answer({"pipeline": pipeline.pipeline, "sources": names, "paused": pause}, "\n".join(lines))


def _extract_first(pipeline: Pipeline, meta: Meta, names: list[str], output: CliOutput, *, needed: bool) -> None:
    """Which tables there are, and what they lack, the extractor knows; where another one is running, it is waited for
    later. needed: False if what was extracted before will do."""
    fresh = [name for name in names if meta.checkpoint(name) is None]
    if fresh:
        extract_sources(pipeline, fresh, None, output)
    if needed:
        for name in names:
            if name not in fresh:
                _extract_on(pipeline, name, output)


def _read_again(pipeline: Pipeline, meta: Meta, sources: list[str], output: CliOutput) -> None:
    """Has isolated tables captured again where the pipeline says so, and says which cannot be read even now."""
    from cdc_core.extract.extractor import default_holder
    from cdc_core.snapshot.readmission import readmit
    from cdc_core.stage.isolated import isolated

    store = open_stage(pipeline.stage)
    for name in sources:
        if readmit(meta, store, pipeline, name, default_holder()):
            _extract_on(pipeline, name, output)
            for table_name, why in isolated(store, name).items():
                output.note(f"not copied: {table_name} of {name} still cannot be read: {why}")


def _wanted(
    meta: Meta, source: str, tables: list[str] | None, *, on_new: str, everything: bool = False
) -> tuple[tuple[PendingTable, ...], dict[str, str]]:
    """The tables to copy; of --all, why others are left out."""
    from cdc_core.snapshot.pending import captured, chosen, pending

    if everything:
        return captured(meta, source)
    return chosen(meta, source, tables) if tables else pending(meta, source, on_new=on_new), {}


def _left_out(left: Mapping[str, Mapping[str, str]]) -> list[dict[str, str]]:
    return [{"source": source, "table": name, "why": why} for source, of in left.items() for name, why in of.items()]


def _note_left_out(output: CliOutput, left: Mapping[str, Mapping[str, str]]) -> None:
    for one in _left_out(left):
        output.note(f"left out: {one['why']}")


def _extract_on(pipeline: Pipeline, source: str, output: CliOutput) -> None:
    """Extracts up to now, unless another extractor is at it."""
    with suppress(AnotherProcess):
        extract_sources(pipeline, [source], None, output)


def _show_plan(
    output: CliOutput,
    pipeline: Pipeline,
    meta: Meta,
    wanted: dict[str, tuple[PendingTable, ...]],
    left: Mapping[str, Mapping[str, str]],
) -> None:
    from cdc_core.snapshot.estimate import estimate

    found: list[dict[str, Any]] = []
    shown = []
    for source, tables in wanted.items():
        estimates = estimate(pipeline, source, [one.name for one in tables], meta, os.environ) if tables else {}
        for one in tables:
            known = estimates.get(one.name)
            rows = one.rows if known is None or (known.refused and not known.rows) else known.rows
            why = one.why if known is None or not known.refused else f"cannot be copied: {known.refused}"
            found.append(
                {
                    "source": source,
                    "table": one.name,
                    "rows_estimated": rows,
                    "bytes_estimated": None if known is None else known.size_bytes,
                    "chunks_estimated": None if known is None else known.chunks,
                    "seconds_estimated": None if known is None else known.seconds,
                    "why": why,
                }
            )
            last = found[-1]
            seconds = last["seconds_estimated"]
            shown.append((
                source, one.name, "?" if rows is None else f"~{rows:,}",
                "?" if known is None else f"~{size(known.size_bytes)}", "?" if known is None else str(known.chunks),
                "?" if seconds is None else f"~{duration(seconds)}", why,
            ))  # fmt: skip
    total_s = sum(one["seconds_estimated"] or 0 for one in found)
    paused = [source for source in sorted(wanted) if meta.copies_paused(source) is not None]
    document = {
        "pipeline": pipeline.pipeline,
        "tables": found,
        "seconds_estimated": round(total_s, 3) if any(one["seconds_estimated"] is not None for one in found) else None,
        "paused": paused,
        "left_out": _left_out(left),
    }
    columns = ("source", "table", "rows", "size", "chunks", "time", "why")
    numbers = ("rows", "size", "chunks", "time")
    output.answer(document, table("to copy", columns, shown, numbers=numbers) if shown else "Nothing to copy.")
    if document["seconds_estimated"] is not None:
        output.note(
            f"About {duration(total_s)} for one reader, from a sample; the pipeline has "
            f"{counted(pipeline.snapshot.readers, 'reader')}. Rows and sizes are the server's estimates."
        )
    _note_left_out(output, left)
    for source in paused:
        output.note(f"Copies of {source} are paused (`lockstep snapshot --resume`).")


def _answer(
    output: CliOutput,
    pipeline: Pipeline,
    left: Mapping[str, Mapping[str, str]],
    copied: Copied,
    error: LockstepError | None,
) -> None:
    """left: by source and table, why tables were not to be copied. error: of those that could not be."""
    document: dict[str, Any] = {"pipeline": pipeline.pipeline, "sources": [], "left_out": _left_out(left)}
    if error is not None:
        document |= error_document(error)
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
                "dropped": [{"table": one, "why": why} for one, why in result.dropped],
                "chunk_retries": {table: one.count for table, one in copied.retries[name].items()},
            }
        )
        rows.append((name, len(result.tables), staged_rows, size(size_bytes), len(result.batches)))
    if not rows:
        output.answer(document, "Nothing to copy: every captured table is staged with all of its rows.")
        _note_left_out(output, left)
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
    _note_refused(output, copied)
    _note_left_out(output, left)
    for name, result in copied.staged.items():
        for one, tried in copied.retries[name].items():
            output.note(f"{one} of {name}: {counted(tried.count, 'chunk')} had to be read again")
        for one, why in result.dropped:
            output.note(f"{one} of {name} was not staged: {why}. Run `lockstep snapshot` again.")
        if result.waiting is not None:
            output.note(
                f"{name}: what is not staged yet waits until {result.waiting} is extracted: run `lockstep snapshot` "
                "again."
            )


@contextmanager
def _watch(output: CliOutput, tables: tuple[PendingTable, ...]) -> Iterator[Callable[[TableCopy], None]]:
    """A bar for each table that is being read, and one for all; without a terminal, a line every NOTE_S."""
    from cdc_core.snapshot.progress import CopyProgress

    state = CopyProgress({one.name: one.rows for one in tables})
    if not output.animated:
        next_s = [time.monotonic() + NOTE_S]

        def report(copy: TableCopy) -> None:
            state.update(copy)
            if time.monotonic() >= next_s[0]:
                next_s[0] = time.monotonic() + NOTE_S
                output.note(f"{copy.table}: {progress_text(state.table(copy.table))}")
                if len(tables) > 1:
                    output.note(f"all {len(tables)} tables: {progress_text(state.overall())}")

        yield report
        return
    from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn

    bars: dict[str, Any] = {}
    columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[text]}"))
    with Progress(*columns, console=output.err, transient=True) as progress:

        def show(name: str, figures: Figures) -> None:
            if name not in bars:
                bars[name] = progress.add_task(name, total=None, text="")
            total = figures.total or None
            progress.update(bars[name], completed=figures.rows, total=total, text=progress_text(figures))

        def update(copy: TableCopy) -> None:
            state.update(copy)
            if len(tables) > 1:
                show("all tables", state.overall())
            show(copy.table, state.table(copy.table))

        yield update
