"""`lockstep stage`: what is staged, by manifest."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.text import Text

from cdc_core.cli.options import PartialOption, SourcesOption, age_us, require_free, time_us, writing
from cdc_core.cli.output import listing, table
from cdc_core.cli.pipeline_command import PipelineCall, pipeline_command
from cdc_core.errors import DataAtRisk, LockstepError, UsageError, combined
from cdc_core.model.readable import counted, moment, size
from cdc_core.model.windows import MICROSECONDS, to_us
from cdc_core.stage.objects import ObjectStore

if TYPE_CHECKING:
    from cdc_core.model.batch import Manifest
    from cdc_core.stage.as_of import AsOf
    from cdc_core.stage.compactions import Compactions
    from cdc_core.stage.public import Chains

app = typer.Typer(name="stage", help="Inspect and maintain the staged files.", no_args_is_help=True)

_OTHER_FORMATS = frozenset({".tsv", ".txt", ".json", ".jsonl", ".ndjson", ".xlsx", ".sql", ".avro", ".orc"})
"""Names of files that a tool would not read as Parquet or CSV."""
_SHOWN_ROWS = 1000

DryRunOption = Annotated[bool, typer.Option("--dry-run", help="Only show what would be done.")]


def _chains(call: PipelineCall, store: ObjectStore, sources: list[str] | None = None) -> Chains:
    """All batches of the sources, verified to be chains that reach as far as meta says.

    Raises DataAtRisk (stage.chain and others).
    """
    from cdc_core.stage.public import read_chains

    return read_chains(store, call.pipeline, call.sources(sources), call.output.note)


@pipeline_command(app)
def ls(
    call: PipelineCall,
    source: SourcesOption = None,
    files: Annotated[bool, typer.Option("--files", help="List the path of every Parquet file instead.")] = False,
) -> None:
    """List the staged tables and batches with their notes, or their files.

    \b
      lockstep stage ls shop
      lockstep stage ls shop --files

    DuckDB, pandas and pyarrow open the paths as printed. --json adds table, rows and checksum of each file, and the
    path of each batch's manifest, which has its definitions.
    """
    store = call.store()
    checked = _chains(call, store, source)
    manifests = checked.all
    document: dict[str, Any] = {
        "stage": store.uri,
        "tables": _by_table(manifests),
        "batches": [_batch(store, manifest, checked.ranges) for manifest in manifests],
        "compared_with_meta": checked.compared,
    }
    if files:
        document["files"] = [
            {
                "batch": manifest.batch_id,
                "table": part.table,
                "path": store.location(part.path),
                "rows": part.rows,
                "size_bytes": part.size_bytes,
                "sha256": part.sha256,
            }
            for manifest in manifests
            for part in manifest.parts
        ]
        call.answer(document, *(_line(file["path"]) for file in document["files"]))
        return
    call.answer(
        document,
        _line(store.uri),
        listing("tables", document["tables"], "table rows files size_bytes"),
        listing("batches", document["batches"], "batch window rows files size_bytes end"),
        *(f"note of {batch['batch']}: {note}" for batch in document["batches"] for note in batch["notes"]),
    )


def _line(text: str) -> Text:
    """A line that is never wrapped or cut, so that a path can be copied."""
    return Text(text, no_wrap=True, overflow="ignore")


def _by_table(manifests: Iterable[Manifest]) -> list[dict[str, Any]]:
    tables: dict[str, dict[str, Any]] = {}
    for part in (part for manifest in manifests for part in manifest.parts):
        totals = tables.setdefault(part.table, {"table": part.table, "rows": 0, "files": 0, "size_bytes": 0, "ops": {}})
        totals["rows"] += part.rows
        totals["files"] += 1
        totals["size_bytes"] += part.size_bytes
        for op, count in part.ops.items():
            totals["ops"][op] = totals["ops"].get(op, 0) + count
    return [tables[name] for name in sorted(tables)]


def _batch(store: ObjectStore, manifest: Manifest, ranges: Compactions) -> dict[str, Any]:
    from cdc_core.model.compacted import BatchCounts

    counts = ranges.counts_of(manifest) or BatchCounts.of(manifest)
    return {
        "batch": manifest.batch_id,
        "window": moment(manifest.window_start_us),
        "rows": counts.rows,
        "transactions": manifest.transactions,
        "events": manifest.events,
        "files": counts.files,
        "size_bytes": counts.size_bytes,
        "begin": str(manifest.begin.position),
        "end": str(manifest.end.position),
        "epoch": manifest.epoch,
        "left_out": dict(manifest.left_out),
        "notes": list(manifest.notes),
        "manifest": store.location(manifest.path),
    }


@pipeline_command(app)
def isolated(call: PipelineCall, source: SourcesOption = None) -> None:
    """Show the source tables that are left out because they could not be read.

    \b
      lockstep stage isolated shop

    Fix the cause, then copy the table (`lockstep snapshot shop shop.orders`), which is read again from there on. Its
    changes in the meantime are not staged.
    """
    from cdc_core.stage import isolated as left_out
    from cdc_core.stage import start_record

    store, names = call.store(), call.sources(source)
    for name in names:
        start_record.require_own(store, name, call.pipeline.pipeline)
    found = [
        {"source": name, "table": table_, "why": why}
        for name in names
        for table_, why in left_out.isolated(store, name).items()
    ]
    shown = listing("isolated tables", found, "source table why") if found else "No table is isolated."
    call.answer({"isolated": found}, shown)


@pipeline_command(app)
def verify(
    call: PipelineCall,
    source: SourcesOption = None,
    deep: Annotated[bool, typer.Option("--deep", help="Read every file: checksums and row counts.")] = False,
) -> None:
    """Verify that the batches form one chain without gaps, and that all of their files exist.

    \b
      lockstep stage verify shop
      lockstep stage verify shop --deep

    A lost file no longer counts as a problem once its table was copied again. Exit code 4: something is lost or
    damaged.
    """
    from cdc_core.stage import start_record
    from cdc_core.stage.manifest import verify as look
    from cdc_core.stage.public import recorded_manifests

    store, names = call.store(), call.sources(source)
    for name in names:
        start_record.require_own(store, name, call.pipeline.pipeline)
    recorded = recorded_manifests(call.pipeline, names, call.output.note)
    problems = []
    for name in names:
        end, known = (None, []) if recorded is None else recorded[name]
        found = look(store, name, deep=deep, recorded=None if end is None else end.position, known=known)
        problems += [{"source": name, **asdict(problem)} for problem in found]
    document = {
        "ok": all(problem["healed"] for problem in problems),
        "compared_with_meta": recorded is not None,
        "problems": problems,
    }
    intact = "The chain and all files match the manifests."
    call.answer(document, listing("problems", problems, "source what path code healed") if problems else intact)
    if not document["ok"]:
        raise typer.Exit(DataAtRisk.exit_code)


@pipeline_command(app)
def purge(
    call: PipelineCall,
    older_than: Annotated[
        str | None,
        typer.Option("--older-than", metavar="AGE", help="Age since a batch's window ended, such as 30d, 12h or 4w."),
    ] = None,
    seeded: Annotated[
        str | None,
        typer.Option("--seeded", metavar="TARGET", help="Only record that this target has all purged rows."),
    ] = None,
    dry_run: DryRunOption = False,
) -> None:
    """Remove old batches that every target has committed, and the files of old runs.

    \b
      lockstep stage purge shop --older-than 30d --dry-run
      lockstep stage purge shop --seeded copy

    The newest batch of each source stays. Afterwards the files no longer give the state of the tables concerned:
    exports and queries of it name the horizon where the staged history begins.
    """
    from cdc_core.operations.apply import retention

    parsed = call.pipeline
    age = older_than or (parsed.retention.keep if parsed.retention is not None and seeded is None else None)
    if (age is None) == (seeded is None):
        raise UsageError(
            "A purge needs either an age or a seeded target.",
            where="lockstep stage purge",
            code="usage.argument",
            remedy="give --older-than AGE, or `retention.keep` in the pipeline; or --seeded TARGET",
        )
    with call.opened() as ready:
        if seeded is not None:
            added = retention.seeded(ready, seeded)
            call.output.answer(
                {"target": seeded, "batches": added}, f"{seeded} counts as having {added} purged batches."
            )
            return
        now_us = to_us(datetime.now(UTC))
        cutoff_us = now_us - age_us(age or "", "--older-than", "30d")
        forget_us = parsed.retention.forget_us(now_us) if parsed.retention is not None else None
        purged = retention.purge(ready, cutoff_us=cutoff_us, forget_us=forget_us, dry_run=dry_run)
    document = {"dry_run": dry_run, "older_than": moment(cutoff_us), **purged.to_json()}
    title = "would be purged" if dry_run else "purged"
    call.answer(
        document,
        listing(title, document["sources"], "source batches rows size_bytes horizon held_by"),
        f"files of {counted(len(purged.runs), 'run')}; rows of {counted(purged.forgotten_batches, 'batch')} and "
        f"{counted(purged.forgotten_runs, 'run')} "
        "in the meta database",
    )


@pipeline_command(app)
def compact(
    call: PipelineCall,
    source: SourcesOption = None,
    by: Annotated[
        str | None,
        typer.Option(
            "--by", metavar="day|window", help="What becomes one file per table; default: retention.compact, else day."
        ),
    ] = None,
    remove_originals: Annotated[
        bool, typer.Option("--remove-originals", help="Also remove the files that earlier compactions replaced.")
    ] = False,
    older_than: Annotated[
        str,
        typer.Option("--older-than", metavar="AGE", help="With --remove-originals: age of the compaction, such as 1d."),
    ] = "1d",
    dry_run: DryRunOption = False,
) -> None:
    """Join the staged files of whole days, or windows, into one file per table.

    \b
      lockstep stage compact shop --dry-run
      lockstep stage compact shop --by window --remove-originals

    Joins batches that every target has committed. Rows and their order stay the same, and each new file is compared
    before anything uses it. The originals stay until they are purged, or removed.
    """
    from cdc_core.operations.apply import compact as compaction

    parsed, names = call.pipeline, call.sources(source)
    chosen = by or (parsed.retention.compact if parsed.retention is not None else None) or "day"
    if chosen not in list(compaction.By):
        raise UsageError(
            f"{chosen!r} is not a range.", where="--by", code="usage.argument", remedy="write --by day or --by window"
        )
    age = age_us(older_than, "--older-than", "1d") if remove_originals else None
    with call.opened() as ready:
        found = compaction.compact(
            ready,
            by=compaction.By(chosen),
            sources=names,
            older_than_us=age,
            dry_run=dry_run,
        )
    document: dict[str, Any] = {
        "dry_run": dry_run,
        "by": chosen,
        "ranges": [asdict(compacted) for compacted in found.ranges],
        "removed": [asdict(removal) for removal in found.removed],
        "held_by": found.held_by,
    }
    done, gone = ("would be compacted", "would be removed") if dry_run else ("compacted", "removed")
    keys = "source label batches rows files_before size_before_bytes files size_bytes"
    removed = [listing(f"originals: {gone}", document["removed"], "source begin files size_bytes held_by")]
    call.answer(
        document,
        listing(done, document["ranges"], keys),
        *(f"{name}: the next batches stay as they are: {why}" for name, why in found.held_by.items() if why),
        *(removed if remove_originals else []),
    )


@pipeline_command(app)
def sweep(
    call: PipelineCall,
    source: SourcesOption = None,
    older_than: Annotated[
        str, typer.Option("--older-than", metavar="AGE", help="Only remove what is older, such as 1d, 12h or 90m.")
    ] = "1d",
    dry_run: DryRunOption = False,
) -> None:
    """Remove what killed tasks left on the stage: files that no batch lists, unfinished uploads, dead plans.

    \b
      lockstep stage sweep shop --dry-run
      lockstep stage sweep shop

    Safe beside running tasks. If a source's chain of manifests is broken, nothing of that source is removed.
    """
    from cdc_core.operations.apply import retention

    names = call.sources(source)
    age_s = age_us(older_than, "--older-than", "30d") / MICROSECONDS
    with call.opened() as ready:
        found = retention.sweep(ready, older_than_s=age_s, sources=names, dry_run=dry_run)
        plans = {} if source else retention.sweep_plans(ready, older_than_s=age_s, dry_run=dry_run)
    document = {
        "dry_run": dry_run,
        "sources": [
            {
                "source": name,
                "parts": [info.path for info in swept.parts],
                "size_bytes": sum(info.size_bytes for info in swept.parts),
                "leftovers": [leftover.path for leftover in swept.leftovers],
            }
            for name, swept in found.items()
        ],
        "plans": {root: sum(info.size_bytes for info in files) for root, files in plans.items()},
    }
    rows = [
        (name, len(swept.parts), size(sum(info.size_bytes for info in swept.parts)), len(swept.leftovers))
        for name, swept in found.items()
    ]
    title = "would be removed" if dry_run else "removed"
    columns = ("source", "files", "size", "unfinished")
    of_plans = [
        (root.removeprefix("runs/"), len(files), size(sum(info.size_bytes for info in files)))
        for root, files in plans.items()
    ]
    call.answer(
        document,
        table(title, columns, rows),
        table(f"{title}: runs", ("plan", "files", "size"), of_plans),
    )


AsOfOption = Annotated[
    str,
    typer.Option(
        "--as-of", metavar="TIME|POSITION", help="A past moment: an ISO 8601 time with a zone, or FILE:OFFSET."
    ),
]


def _moment(text: str, call: PipelineCall) -> AsOf | None:
    """Raises Refused (stage.as_of) where it is not staged completely."""
    if not text:
        return None
    from cdc_core.model.position import Position
    from cdc_core.stage.as_of import AsOf

    try:
        as_of = AsOf(position=Position.from_text(text))
    except ValueError:
        as_of = AsOf(time_us=time_us(text, "--as-of", "a position such as binlog.000042:1234, or "))
    with call.meta() as meta:
        as_of.require_staged({name: meta.positions.checkpoint(name) for name in call.sources(None)})
    return as_of


@pipeline_command(app)
def export(
    call: PipelineCall,
    to: Annotated[
        Path,
        typer.Option(
            "--output",
            "-o",
            metavar="FILE",
            help="The file to write (.parquet or .csv); with --all, a folder.",
        ),
    ],
    name: Annotated[str, typer.Argument(metavar="TABLE", help="A logical table, as `stage ls` names it.")] = "",
    every: Annotated[bool, typer.Option("--all", help="Write every table, each to its own Parquet file.")] = False,
    key: Annotated[
        list[str] | None, typer.Option("--key", metavar="COLUMN", help="Key columns; default: the table's own key.")
    ] = None,
    since_horizon: Annotated[
        bool, typer.Option("--since-horizon", help="Only the rows that changed since a purge.")
    ] = False,
    partial: PartialOption = False,
    as_of: AsOfOption = "",
    dropped: Annotated[
        bool,
        typer.Option("--dropped", help="Include dropped columns: null in rows that changed since."),
    ] = False,
    force: Annotated[bool, typer.Option("--force", help="Overwrite FILE.")] = False,
) -> None:
    """Write a table's state after all staged changes to a Parquet or CSV file.

    \b
      lockstep stage export shop shop.orders -o orders.parquet
      lockstep stage export shop --all -o tables

    The file has the latest row of each key, with _cdc_seq and _cdc_ts. A table that lacks rows from before its capture
    is refused unless you pass --partial.
    """
    from cdc_core.model.paths import segment
    from cdc_core.stage.stage_reader import StateOptions, state_batches, state_columns, write_file
    from cdc_core.stage.table_files import tables_of

    if every == bool(name):
        raise UsageError(
            "Give a table, or --all.", where="TABLE", code="usage.argument", remedy="`stage ls` names the tables"
        )
    if not every:
        _require_writable(to, force=force)
    store = call.store()
    options = StateOptions(key or None, since_horizon, partial, _moment(as_of, call), dropped)
    checked = _chains(call, store)
    files = (
        {logical: to / f"{segment(logical)}.parquet" for logical in sorted(tables_of(checked.all))}
        if every
        else {name: to}
    )
    written: list[dict[str, Any]] = []
    errors: list[LockstepError] = []
    if every:
        with writing(to):
            to.mkdir(parents=True, exist_ok=True)
    for logical, file in files.items():
        try:
            if every:
                _require_writable(file, force=force)
            batches = state_batches(store, checked.all, logical, options)
            rows = write_file(state_columns(checked.all, logical, options), batches, file)
            written.append({"table": logical, "file": str(file), "rows": rows, "size_bytes": file.stat().st_size})
        except LockstepError as error:
            errors.append(error)
    if errors:
        raise combined(errors)
    document = {"tables": written} if every else written[0]
    shown = (f"{counted(exported['rows'], 'row')} of {exported['table']} in {exported['file']}" for exported in written)
    call.output.answer(document | {"compared_with_meta": checked.compared}, *shown)


def _require_writable(to: Path, *, force: bool) -> None:
    if to.suffix.lower() in _OTHER_FORMATS:
        raise UsageError(
            f"This command writes Parquet or CSV, and {to.name} is named like another format.",
            where=str(to),
            code="usage.argument",
            remedy=f"write -o {to.with_suffix('.parquet')} or -o {to.with_suffix('.csv')}; other tools convert them",
        )
    require_free(to, force=force)


@pipeline_command(app)
def sql(
    call: PipelineCall,
    query: Annotated[str, typer.Argument(metavar="QUERY", help="A DuckDB query.")],
    to: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="FILE", help="Write the answer to a .parquet or .csv file instead."),
    ] = None,
    limit: Annotated[int, typer.Option("--limit", min=1, help="Rows to show; --json and -o give all.")] = _SHOWN_ROWS,
    force: Annotated[bool, typer.Option("--force", help="Overwrite FILE.")] = False,
    partial: PartialOption = False,
    as_of: AsOfOption = "",
) -> None:
    """Query the staged files with SQL: views NAME (state), NAME_changes (history), NAME_by_key (history by key).

    \b
      lockstep stage sql shop 'SELECT count(*) FROM shop.orders'
      lockstep stage sql shop 'SELECT _cdc_op, _cdc_ts, status FROM shop.orders_changes WHERE order_id = 7'

    A state with missing rows is refused unless you pass --partial.
    """
    from cdc_core.stage.sql_views import sql as ask
    from cdc_core.stage.stage_reader import write_file

    store, output = call.store(), call.output
    if to is not None:
        _require_writable(to, force=force)
    checked = _chains(call, store)
    answer = ask(store, checked.by_source, query, partial=partial, as_of=_moment(as_of, call))
    every = answer.num_rows
    if to is not None:
        write_file(answer.schema, iter(answer.to_batches()), to)
        output.answer({"file": str(to), "rows": every}, f"{counted(every, 'row')} in {to}")
        return
    if not output.as_json and every > limit:
        output.note(f"{limit:,} of {every:,} rows; all: -o FILE, or --limit {every}")
        answer = answer.slice(0, limit)
    columns = answer.column_names
    rows = [list(row) for row in zip(*(column.to_pylist() for column in answer.columns), strict=True)]
    # `SELECT *` on a terminal: these two are nearly always empty, and the columns of the table need the width.
    spare = [name for name in ("_cdc_literal", "_cdc_absent") if name not in query]
    cells = [
        ["" if value is None and name in spare else _value(value) for name, value in zip(columns, row, strict=True)]
        for row in rows
    ]
    document = {"columns": columns, "rows": rows, "compared_with_meta": checked.compared}
    output.answer(document, table("", columns, cells, omit_empty=spare))


def _value(value: object) -> Text:
    """A value of the answer unchanged: no thousands separators, NULL distinct from '', bytes in hexadecimal."""
    if value is None:
        return Text("NULL", style="dim")
    return Text(f"0x{value.hex()}" if isinstance(value, bytes) else str(value))
