"""`lockstep stage`: what is staged, by manifest."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.text import Text

from cdc_core.cli.options import (
    DEFAULT_PIPELINES,
    JsonOption,
    PipelineArgument,
    PipelinesOption,
    age_us,
    choose,
    load_pipeline,
    opened,
    time_us,
)
from cdc_core.cli.output import CliOutput, table
from cdc_core.errors import DataAtRisk, LockstepError, UsageError, combined
from cdc_core.model.json_codec import plain
from cdc_core.model.readable import counted, moment, size
from cdc_core.model.windows import MICROSECONDS, to_us
from cdc_core.stage.objects import ObjectStore
from cdc_core.stage.stores import open_stage

if TYPE_CHECKING:
    from rich.console import RenderableType

    from cdc_core.config import Pipeline
    from cdc_core.model.batch import Manifest
    from cdc_core.stage.as_of import AsOf
    from cdc_core.stage.compactions import Compactions
    from cdc_core.stage.public import Chains

app = typer.Typer(name="stage", help="Inspect and maintain the staged files.", no_args_is_help=True)

_SAID_S = 2.0
_OTHER_FORMATS = frozenset({".tsv", ".txt", ".json", ".jsonl", ".ndjson", ".xlsx", ".sql", ".avro", ".orc"})
"""Names of files that a tool would not read as Parquet or CSV."""
_SHOWN_ROWS = 1000

SourceOption = Annotated[
    list[str] | None, typer.Option("--source", metavar="NAME", help="Only this source; may be repeated.")
]


def chains(pipeline: Pipeline, store: ObjectStore, output: CliOutput, sources: list[str] | None = None) -> Chains:
    """All batches of the sources, verified to be chains that reach as far as meta says.

    Raises DataAtRisk (stage.chain and others).
    """
    from cdc_core.stage.public import read_chains

    names = choose([one.name for one in pipeline.sources], sources, "source")
    return read_chains(store, pipeline, names, output.note)


@app.command()
def ls(
    pipeline: PipelineArgument,
    source: SourceOption = None,
    files: Annotated[bool, typer.Option("--files", help="List the path of every Parquet file instead.")] = False,
    pipelines: PipelinesOption = DEFAULT_PIPELINES,
    as_json: JsonOption = False,
) -> None:
    """List the staged tables and batches, or their files.

    \b
      lockstep stage ls shop
      lockstep stage ls shop --files

    DuckDB, pandas and pyarrow open the paths as printed. --json adds table, rows and checksum of each file.
    """
    _, parsed = load_pipeline(pipeline, pipelines)
    store = open_stage(parsed.stage)
    output = CliOutput(as_json)
    checked = chains(parsed, store, output, source)
    found = checked.all
    document: dict[str, Any] = {
        "pipeline": parsed.pipeline,
        "stage": store.uri,
        "tables": _by_table(found),
        "batches": [_batch(manifest, checked.ranges) for manifest in found],
        "compared_with_meta": checked.compared,
    }
    if files:
        document["files"] = [
            {"batch": one.batch_id, "table": part.table, "path": store.location(part.path), "rows": part.rows,
             "size_bytes": part.size_bytes, "sha256": part.sha256}
            for one in found for part in one.parts
        ]  # fmt: skip
        output.answer(document, *(_line(one["path"]) for one in document["files"]))
        return
    tables = [(one["table"], one["rows"], one["files"], size(one["size_bytes"])) for one in document["tables"]]
    batches = [
        (one["batch"], one["window"], one["rows"], one["files"], size(one["size_bytes"]), one["end"])
        for one in document["batches"]
    ]
    output.answer(
        document,
        _line(store.uri),
        table("tables", ("table", "rows", "files", "size"), tables, numbers=("rows", "files", "size")),
        table(
            "batches",
            ("batch", "window (UTC)", "rows", "files", "size", "ends at"),
            batches,
            numbers=("rows", "files", "size"),
        ),
    )


def _line(text: str) -> Text:
    """A line that is never wrapped or cut, so that a path can be copied."""
    return Text(text, no_wrap=True, overflow="ignore")


def _by_table(found: Iterable[Manifest]) -> list[dict[str, Any]]:
    tables: dict[str, dict[str, Any]] = {}
    for part in (part for manifest in found for part in manifest.parts):
        one = tables.setdefault(part.table, {"table": part.table, "rows": 0, "files": 0, "size_bytes": 0, "ops": {}})
        one["rows"] += part.rows
        one["files"] += 1
        one["size_bytes"] += part.size_bytes
        for op, count in part.ops.items():
            one["ops"][op] = one["ops"].get(op, 0) + count
    return [tables[name] for name in sorted(tables)]


def _batch(manifest: Manifest, ranges: Compactions) -> dict[str, Any]:
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
        "notes": list(manifest.notes),
    }


@app.command()
def show(
    pipeline: PipelineArgument,
    batch: Annotated[str, typer.Argument(metavar="BATCH", help="A batch as `stage ls` names it, or 'last'.")] = "last",
    pipelines: PipelinesOption = DEFAULT_PIPELINES,
    as_json: JsonOption = False,
) -> None:
    """Show a batch: its range of the log, files, definitions and notes.

    \b
      lockstep stage show shop last
      lockstep stage show shop shop/0000-0000042-0000015823 --json
    """
    from cdc_core.model.batch import Manifest  # noqa: F401 - loads Arrow, which the types below need
    from cdc_core.stage.manifest import read

    _, parsed = load_pipeline(pipeline, pipelines)
    store = open_stage(parsed.stage)
    output = CliOutput(as_json)
    checked = chains(parsed, store, output)
    found = checked.all
    chosen = found[-1:] if batch == "last" else [one for one in found if one.batch_id == batch]
    if not chosen:
        raise UsageError(
            f"The stage has no batch {batch!r}.",
            where=store.uri,
            code="usage.unknown_name",
            remedy="`lockstep stage ls` lists all batches",
        )
    (manifest,) = chosen
    compacted = checked.ranges.counts_of(manifest) is not None
    if compacted:
        manifest = read(store, manifest.source, manifest.begin.position)
    paths = {part.path: store.location(checked.ranges.path_of(part)) for part in manifest.parts}
    parts = [
        {"table": part.table, "path": paths[part.path], "rows": part.rows, "ops": dict(part.ops),
         "key_changes": part.key_changes, "size_bytes": part.size_bytes, "sha256": part.sha256,
         "schema_id": part.schema_id}
        for part in manifest.parts
    ]  # fmt: skip
    schemas = {key: plain(schema) for key, schema in manifest.schemas.items()}
    document = _batch(manifest, checked.ranges) | {
        "parts": parts,
        "left_out": dict(manifest.left_out),
        "schemas": schemas,
    }
    shown: list[RenderableType] = [
        f"{manifest.batch_id}: {manifest.begin.position} to {manifest.end.position}, {manifest.events:,} events, "
        f"{manifest.transactions:,} transactions, window {moment(manifest.window_start_us)}",
        table(
            "files",
            ("table", "rows", "changes", "size", "definition", "file"),
            [
                (one.table, one.rows, " ".join(f"{op}:{count}" for op, count in one.ops.items()),
                 size(one.size_bytes), one.schema_id, checked.ranges.path_of(one))
                for one in manifest.parts
            ],
            numbers=("rows", "size"),
        ),
    ]  # fmt: skip
    shown += [
        table(
            f"{schema.name} ({key})",
            ("column", "type", "null", "key"),
            [(one.name, str(one.type), "yes" if one.nullable else "no", one.key_part) for one in schema.columns],
        )
        for key, schema in manifest.schemas.items()
    ]
    shown += [f"left out: {counted(count, 'row')}, {rule}" for rule, count in manifest.left_out.items()]
    shown += [f"note: {note}" for note in manifest.notes]
    if compacted:
        shown.append("The batch is compacted: the files named above have rows of other batches too.")
    output.answer(document, *shown)


@app.command()
def isolated(
    pipeline: PipelineArgument,
    source: SourceOption = None,
    clear: Annotated[str, typer.Option("--clear", metavar="TABLE", help="Capture database.table again.")] = "",
    pipelines: PipelinesOption = DEFAULT_PIPELINES,
    as_json: JsonOption = False,
) -> None:
    """Show the source tables that are left out because they could not be read.

    \b
      lockstep stage isolated shop
      lockstep stage isolated shop --source shop --clear shop.orders

    Fix the cause before you clear a table. Then copy it (`lockstep snapshot`): its changes in the meantime are not
    staged.
    """
    from cdc_core.stage import isolated as left_out
    from cdc_core.stage import start_record

    _, parsed = load_pipeline(pipeline, pipelines)
    store = open_stage(parsed.stage)
    names = choose([one.name for one in parsed.sources], source, "source")
    for one in names:
        start_record.require_own(store, one, parsed.pipeline)
    if clear:
        if len(names) != 1:
            raise UsageError(
                "--clear is for one source, but the pipeline has several.",
                where="lockstep stage isolated",
                code="usage.argument",
                remedy="add --source NAME",
            )
        with (
            opened(parsed, CliOutput(as_json)) as ready,
            ready.meta.leases.held(names[0], ready.holder, parsed.limits.lease_s),
        ):
            left_out.clear(store, names[0], clear)
    found = [(name, table_, why) for name in names for table_, why in left_out.isolated(store, name).items()]
    CliOutput(as_json).answer(
        {"pipeline": parsed.pipeline, "isolated": [{"source": s, "table": t, "why": why} for s, t, why in found]},
        table("isolated tables", ("source", "table", "why"), found) if found else "No table is isolated.",
    )


@app.command()
def verify(
    pipeline: PipelineArgument,
    source: SourceOption = None,
    deep: Annotated[bool, typer.Option("--deep", help="Read every file: checksums and row counts.")] = False,
    pipelines: PipelinesOption = DEFAULT_PIPELINES,
    as_json: JsonOption = False,
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

    _, parsed = load_pipeline(pipeline, pipelines)
    store = open_stage(parsed.stage)
    names = choose([one.name for one in parsed.sources], source, "source")
    for one in names:
        start_record.require_own(store, one, parsed.pipeline)
    output = CliOutput(as_json)
    recorded = recorded_manifests(parsed, names, output.note)
    problems = []
    for name in names:
        end, known = (None, []) if recorded is None else recorded[name]
        found = look(store, name, deep=deep, recorded=None if end is None else end.position, known=known)
        problems += [(name, problem) for problem in found]
    document = {
        "pipeline": parsed.pipeline,
        "ok": all(one.healed for _, one in problems),
        "compared_with_meta": recorded is not None,
        "problems": [{"source": name, **asdict(one)} for name, one in problems],
    }
    rows = [(name, one.what, one.path, one.code, "yes" if one.healed else "no") for name, one in problems]
    shown = (
        table("", ("source", "problem", "path", "code", "copied since"), rows)
        if rows
        else "Chain and files are as the manifests say."
    )
    output.answer(document, shown)
    if not document["ok"]:
        raise typer.Exit(DataAtRisk.exit_code)


@app.command()
def purge(
    pipeline: PipelineArgument,
    older_than: Annotated[
        str | None,
        typer.Option("--older-than", metavar="AGE", help="Age since a batch's window ended, such as 30d, 12h or 4w."),
    ] = None,
    seeded: Annotated[
        str | None,
        typer.Option("--seeded", metavar="TARGET", help="Only record that this target has all purged rows."),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show what would be purged.")] = False,
    pipelines: PipelinesOption = DEFAULT_PIPELINES,
    as_json: JsonOption = False,
) -> None:
    """Remove old batches that every target has committed, and the files of old runs.

    \b
      lockstep stage purge shop --older-than 30d --dry-run
      lockstep stage purge shop --seeded copy

    The newest batch of each source stays. Afterwards the files no longer give the state of the tables concerned:
    exports and queries of it name the horizon where the staged history begins.
    """
    from cdc_core.operations.apply import retention

    _, parsed = load_pipeline(pipeline, pipelines)
    age = older_than or (parsed.retention.keep if parsed.retention is not None and seeded is None else None)
    if (age is None) == (seeded is None):
        raise UsageError(
            "A purge needs either an age or a seeded target.",
            where="lockstep stage purge",
            code="usage.argument",
            remedy="give --older-than AGE, or `retention.keep` in the pipeline; or --seeded TARGET",
        )
    output = CliOutput(as_json)
    with opened(parsed, output) as ready:
        if seeded is not None:
            added = retention.seeded(ready, seeded)
            output.answer({"target": seeded, "batches": added}, f"{seeded} counts as having {added} purged batches.")
            return
        now_us = to_us(datetime.now(UTC))
        cutoff_us = now_us - age_us(age or "", "--older-than", "30d")
        forget_us = parsed.retention.forget_us(now_us) if parsed.retention is not None else None
        found = retention.purge(ready, cutoff_us=cutoff_us, forget_us=forget_us, dry_run=dry_run)
    rows = [
        (one.source, one.batches, one.rows, size(one.size_bytes), str(one.horizon or ""), one.held_by)
        for one in found.sources
    ]
    output.answer(
        {
            "pipeline": parsed.pipeline,
            "dry_run": dry_run,
            "older_than": moment(cutoff_us),
            **found.to_json(),
        },
        table(
            "would be purged" if dry_run else "purged",
            ("source", "batches", "rows", "size", "staged from", "next one is held"),
            rows,
            numbers=("batches", "rows", "size"),
        ),
        f"files of {counted(len(found.runs), 'run')}; rows of {counted(found.forgotten_batches, 'batch')} and "
        f"{counted(found.forgotten_runs, 'run')} "
        "in the meta database",
    )


@app.command()
def compact(
    pipeline: PipelineArgument,
    source: SourceOption = None,
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
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show what would be done.")] = False,
    pipelines: PipelinesOption = DEFAULT_PIPELINES,
    as_json: JsonOption = False,
) -> None:
    """Join the staged files of whole days, or windows, into one file per table.

    \b
      lockstep stage compact shop --dry-run
      lockstep stage compact shop --by window --remove-originals

    Joins batches that every target has committed. Rows and their order stay the same, and each new file is compared
    before anything uses it. The originals stay until they are purged, or removed.
    """
    from cdc_core.operations.apply import compact as compaction

    _, parsed = load_pipeline(pipeline, pipelines)
    names = choose([one.name for one in parsed.sources], source, "source")
    chosen = by or (parsed.retention.compact if parsed.retention is not None else None) or "day"
    if chosen not in list(compaction.By):
        raise UsageError(
            f"{chosen!r} is not a range.", where="--by", code="usage.argument", remedy="write --by day or --by window"
        )
    age = age_us(older_than, "--older-than", "1d") if remove_originals else None
    output = CliOutput(as_json)
    with opened(parsed, output) as ready:
        found = compaction.compact(
            ready,
            by=compaction.By(chosen),
            sources=names,
            older_than_us=age,
            dry_run=dry_run,
            progressed=_watch(output),
        )
    output.answer(
        {
            "pipeline": parsed.pipeline,
            "dry_run": dry_run,
            "by": chosen,
            "ranges": [asdict(one) for one in found.ranges],
            "removed": [asdict(one) for one in found.removed],
            "held_by": found.held_by,
        },
        table(
            "would be compacted" if dry_run else "compacted",
            ("source", chosen, "batches", "rows", "files", "size", "files after", "size after"),
            [
                (one.source, one.label, one.batches, one.rows, one.files_before, size(one.size_before_bytes), one.files,
                 "" if dry_run else size(one.size_bytes))
                for one in found.ranges
            ],
            numbers=("batches", "rows", "files", "size", "files after", "size after"),
        ),
        *(f"{name}: the next batches stay as they are: {why}" for name, why in found.held_by.items() if why),
        *(
            [
                table(
                    "originals that would be removed" if dry_run else "removed originals",
                    ("source", "from", "files", "size", "held"),
                    [(one.source, one.begin, one.files, size(one.size_bytes), one.held_by) for one in found.removed],
                    numbers=("files", "size"),
                )
            ]
            if remove_originals
            else []
        ),
    )  # fmt: skip


def _watch(output: CliOutput) -> Callable[[str, str, int, int], None]:
    """Says now and then how far a compaction is."""
    said_s = time.monotonic()

    def progressed(source: str, label: str, done: int, files: int) -> None:
        nonlocal said_s
        if not output.as_json and time.monotonic() - said_s >= _SAID_S:
            output.note(f"{source} {label}: {done} of {files} files")
            said_s = time.monotonic()

    return progressed


@app.command()
def sweep(
    pipeline: PipelineArgument,
    source: SourceOption = None,
    older_than: Annotated[
        str, typer.Option("--older-than", metavar="AGE", help="Only remove what is older, such as 1d, 12h or 90m.")
    ] = "1d",
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show what would be removed.")] = False,
    pipelines: PipelinesOption = DEFAULT_PIPELINES,
    as_json: JsonOption = False,
) -> None:
    """Remove what killed tasks left on the stage: files that no batch lists, unfinished uploads, dead plans.

    \b
      lockstep stage sweep shop --dry-run
      lockstep stage sweep shop

    Safe beside running tasks. If a source's chain of manifests is broken, nothing of that source is removed.
    """
    from cdc_core.operations.apply import retention

    _, parsed = load_pipeline(pipeline, pipelines)
    names = choose([one.name for one in parsed.sources], source, "source")
    age_s = age_us(older_than, "--older-than", "30d") / MICROSECONDS
    output = CliOutput(as_json)
    with opened(parsed, output) as ready:
        found = retention.sweep(ready, older_than_s=age_s, sources=names, dry_run=dry_run)
        plans = {} if source else retention.sweep_plans(ready, older_than_s=age_s, dry_run=dry_run)
    document = {
        "pipeline": parsed.pipeline,
        "dry_run": dry_run,
        "sources": [
            {
                "source": name,
                "parts": [info.path for info in swept.parts],
                "size_bytes": sum(info.size_bytes for info in swept.parts),
                "leftovers": [one.path for one in swept.leftovers],
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
    output.answer(
        document,
        table(title, columns, rows, numbers=("files", "size", "unfinished")),
        table(f"{title}: runs", ("plan", "files", "size"), of_plans, numbers=("files", "size")),
    )


PartialOption = Annotated[bool, typer.Option("--partial", help="Accept a state with missing rows.")]
AsOfOption = Annotated[
    str,
    typer.Option(
        "--as-of", metavar="TIME|POSITION", help="A past moment: an ISO 8601 time with a zone, or FILE:OFFSET."
    ),
]


def _moment(text: str, pipeline: Pipeline) -> AsOf | None:
    """Raises Refused (stage.as_of) where it is not staged completely."""
    if not text:
        return None
    from cdc_core.meta import Meta
    from cdc_core.stage.as_of import AsOf, parse_position

    position = parse_position(text)
    found = AsOf(position=position) if position else AsOf(time_us=time_us(text, "--as-of"))
    with Meta.open(pipeline.meta.url, pipeline.pipeline) as meta:
        found.require_staged({source.name: meta.positions.checkpoint(source.name) for source in pipeline.sources})
    return found


@app.command()
def export(
    pipeline: PipelineArgument,
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
    pipelines: PipelinesOption = DEFAULT_PIPELINES,
    as_json: JsonOption = False,
) -> None:
    """Write a table's state after all staged changes to a Parquet or CSV file.

    \b
      lockstep stage export shop shop.orders -o orders.parquet
      lockstep stage export shop --all -o tables

    The file has the latest row of each key, with _cdc_seq and _cdc_ts. A table that lacks rows from before its capture
    is refused unless you pass --partial.
    """
    from cdc_core.model.paths import segment
    from cdc_core.stage.stage_reader import export as write
    from cdc_core.stage.table_files import tables_of

    if every == bool(name):
        raise UsageError(
            "Give a table, or --all.", where="TABLE", code="usage.argument", remedy="`stage ls` names the tables"
        )
    output = CliOutput(as_json)
    if not every:
        _require_free(to, force=force)
    _, parsed = load_pipeline(pipeline, pipelines)
    store = open_stage(parsed.stage)
    moment = _moment(as_of, parsed)
    checked = chains(parsed, store, output)
    files = {one: to / f"{segment(one)}.parquet" for one in sorted(tables_of(checked.all))} if every else {name: to}
    written: list[dict[str, Any]] = []
    errors: list[LockstepError] = []
    for one, file in files.items():
        try:
            if every:
                to.mkdir(parents=True, exist_ok=True)
                _require_free(file, force=force)
            rows = write(
                store, checked.all, one, file, key or None,
                since_horizon=since_horizon, partial=partial, as_of=moment, dropped=dropped,
            )  # fmt: skip
            written.append({"table": one, "file": str(file), "rows": rows, "size_bytes": file.stat().st_size})
        except LockstepError as error:
            errors.append(error)
    if errors:
        raise combined(errors)
    document = {"tables": written} if every else written[0]
    shown = (f"{counted(one['rows'], 'row')} of {one['table']} in {one['file']}" for one in written)
    output.answer(document | {"compared_with_meta": checked.compared}, *shown)


def _require_free(to: Path, *, force: bool) -> None:
    if to.suffix.lower() in _OTHER_FORMATS:
        raise UsageError(
            f"This command writes Parquet or CSV, and {to.name} is named like another format.",
            where=str(to),
            code="usage.argument",
            remedy=f"write -o {to.with_suffix('.parquet')} or -o {to.with_suffix('.csv')}; other tools convert them",
        )
    if to.exists() and not force:
        raise UsageError(
            f"{to} exists already.",
            where=str(to),
            code="usage.output_file",
            remedy="choose another -o FILE, or --force",
        )


@app.command()
def sql(
    pipeline: PipelineArgument,
    query: Annotated[str, typer.Argument(metavar="QUERY", help="A DuckDB query.")],
    to: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="FILE", help="Write the answer to a .parquet or .csv file instead."),
    ] = None,
    limit: Annotated[int, typer.Option("--limit", min=1, help="Rows to show; --json and -o give all.")] = _SHOWN_ROWS,
    force: Annotated[bool, typer.Option("--force", help="Overwrite FILE.")] = False,
    partial: PartialOption = False,
    as_of: AsOfOption = "",
    pipelines: PipelinesOption = DEFAULT_PIPELINES,
    as_json: JsonOption = False,
) -> None:
    """Query the staged files with SQL: views NAME (state), NAME_changes (history), NAME_by_key (history by key).

    \b
      lockstep stage sql shop 'SELECT count(*) FROM shop.orders'
      lockstep stage sql shop 'SELECT _cdc_op, _cdc_ts, status FROM shop.orders_changes WHERE order_id = 7'

    A query can read only the staged files, and write nothing. A state with missing rows is refused unless you pass
    --partial.
    """
    from cdc_core.stage.sql_views import sql as ask
    from cdc_core.stage.stage_reader import write_file

    _, parsed = load_pipeline(pipeline, pipelines)
    store = open_stage(parsed.stage)
    output = CliOutput(as_json)
    if to is not None:
        _require_free(to, force=force)
    checked = chains(parsed, store, output)
    answer = ask(store, checked.by_source, query, partial=partial, as_of=_moment(as_of, parsed))
    every = answer.num_rows
    if to is not None:
        write_file(answer.schema, iter(answer.to_batches()), to)
        output.answer({"file": str(to), "rows": every}, f"{counted(every, 'row')} in {to}")
        return
    if not as_json and every > limit:
        output.note(f"{limit:,} of {every:,} rows; all: -o FILE, or --limit {every}")
        answer = answer.slice(0, limit)
    columns, rows = answer.column_names, [list(row.values()) for row in answer.to_pylist()]
    if len(set(columns)) < len(columns):  # to_pylist keeps one of the columns that share a name
        rows = [list(row) for row in zip(*(column.to_pylist() for column in answer.columns), strict=True)]
    numbers = {field.name for field in answer.schema if _is_number(str(field.type))}
    cells = [[_value(value) for value in row] for row in rows]
    document = {"columns": columns, "rows": rows, "compared_with_meta": checked.compared}
    # `SELECT *` on a terminal: these two are nearly always empty, and the columns of the table need the width.
    spare = [name for name in ("_cdc_literal", "_cdc_absent") if name not in query]
    idle = [at for at, name in enumerate(columns) if name in spare and not any(row[at] for row in rows)]
    if rows and len(idle) < len(columns):
        columns = [name for at, name in enumerate(columns) if at not in idle]
        cells = [[cell for at, cell in enumerate(row) if at not in idle] for row in cells]
    output.answer(document, table("", columns, cells, numbers=numbers))


def _value(value: object) -> Text:
    """A value of the answer unchanged: no thousands separators, NULL distinct from '', bytes in hexadecimal."""
    if value is None:
        return Text("NULL", style="dim")
    return Text(f"0x{value.hex()}" if isinstance(value, bytes) else str(value))


def _is_number(kind: str) -> bool:
    return kind.startswith(("int", "uint", "float", "double", "decimal"))
