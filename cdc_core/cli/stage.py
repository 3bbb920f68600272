"""`lockstep stage`: what is staged, by manifest."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cdc_core.cli.options import (
    DEFAULT_PIPELINES,
    JsonOption,
    PipelineArgument,
    PipelinesOption,
    choose,
    load_pipeline,
)
from cdc_core.cli.output import Output, moment, size, table
from cdc_core.config import Pipeline
from cdc_core.errors import DataAtRisk, UsageError

if TYPE_CHECKING:
    from rich.console import RenderableType

    from cdc_core.model.batch import Manifest
    from cdc_core.stage.objects import ObjectStore

app = typer.Typer(name="stage", help="The staged files, by manifest.", no_args_is_help=True)

SourceOption = Annotated[
    list[str] | None, typer.Option("--source", metavar="NAME", help="Only this source; may be repeated.")
]


def opened(pipeline: Pipeline) -> ObjectStore:
    """The stage of a pipeline."""
    from cdc_core.stage.objects import open_store

    stage = pipeline.stage
    return open_store(stage.uri, s3_endpoint=stage.s3_endpoint, s3_region=stage.s3_region)


def manifests(pipeline: Pipeline, store: ObjectStore, sources: list[str] | None = None) -> list[Manifest]:
    """All batches of the sources, each source's in stream order, verified to be a chain."""
    from cdc_core.stage.manifest import chain

    names = choose([one.name for one in pipeline.sources], sources, "source")
    return [manifest for name in names for manifest in chain(store, name)]


@app.command()
def ls(
    pipeline: PipelineArgument,
    source: SourceOption = None,
    files: Annotated[bool, typer.Option("--files", help="Every Parquet file instead of the batches.")] = False,
    pipelines: PipelinesOption = DEFAULT_PIPELINES,
    as_json: JsonOption = False,
) -> None:
    """List the tables and batches that are staged, or their files.

    \b
      lockstep stage ls shop
      lockstep stage ls shop --files
    """
    _, parsed = load_pipeline(pipeline, pipelines)
    store = opened(parsed)
    found = manifests(parsed, store, source)
    document: dict[str, Any] = {
        "pipeline": parsed.pipeline,
        "stage": store.uri,
        "tables": _by_table(found),
        "batches": [_batch(manifest) for manifest in found],
    }
    output = Output(as_json)
    if files:
        document["files"] = [
            {"batch": one.batch_id, "table": part.table, "uri": store.uri_of(part.path), "rows": part.rows,
             "size_bytes": part.size_bytes, "sha256": part.sha256}
            for one in found for part in one.parts
        ]  # fmt: skip
        rows = [(one["uri"], one["table"], one["rows"], size(one["size_bytes"])) for one in document["files"]]
        output.answer(document, table(store.uri, ("file", "table", "rows", "size"), rows, numbers=("rows", "size")))
        return
    tables = [(one["table"], one["rows"], one["files"], size(one["size_bytes"])) for one in document["tables"]]
    batches = [
        (one["batch"], one["window"], one["rows"], one["files"], size(one["size_bytes"]), one["end"])
        for one in document["batches"]
    ]
    output.answer(
        document,
        table(f"tables in {store.uri}", ("table", "rows", "files", "size"), tables, numbers=("rows", "files", "size")),
        table(
            "batches",
            ("batch", "window (UTC)", "rows", "files", "size", "ends at"),
            batches,
            numbers=("rows", "files", "size"),
        ),
    )


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


def _batch(manifest: Manifest) -> dict[str, Any]:
    return {
        "batch": manifest.batch_id,
        "window": moment(manifest.window_start_us),
        "rows": manifest.rows,
        "transactions": manifest.transactions,
        "events": manifest.events,
        "files": len(manifest.parts),
        "size_bytes": manifest.size_bytes,
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
    """Show a batch: its range of the log, its files, the definitions of its tables, its notes.

    \b
      lockstep stage show shop last
      lockstep stage show shop shop/0000-0000042-0000015823 --json
    """
    from cdc_core.model.batch import Manifest  # noqa: F401 - loads Arrow, which the types below need

    _, parsed = load_pipeline(pipeline, pipelines)
    store = opened(parsed)
    found = manifests(parsed, store)
    chosen = found[-1:] if batch == "last" else [one for one in found if one.batch_id == batch]
    if not chosen:
        raise UsageError(
            f"The stage has no batch {batch!r}.",
            where=store.uri,
            code="cli.no_batch",
            remedy="`lockstep stage ls` names them all",
        )
    (manifest,) = chosen
    parts = [
        {"table": part.table, "uri": store.uri_of(part.path), "rows": part.rows, "ops": dict(part.ops),
         "key_changes": part.key_changes, "size_bytes": part.size_bytes, "sha256": part.sha256,
         "schema_id": part.schema_id}
        for part in manifest.parts
    ]  # fmt: skip
    schemas = {key: schema.to_json() for key, schema in manifest.schemas.items()}
    document = _batch(manifest) | {"parts": parts, "passed": dict(manifest.passed), "schemas": schemas}
    shown: list[RenderableType] = [
        f"{manifest.batch_id}: {manifest.begin.position} to {manifest.end.position}, {manifest.events:,} events, "
        f"{manifest.transactions:,} transactions, window {moment(manifest.window_start_us)}",
        table(
            "files",
            ("table", "rows", "changes", "size", "definition", "file"),
            [
                (one.table, one.rows, " ".join(f"{op}:{count}" for op, count in one.ops.items()),
                 size(one.size_bytes), one.schema_id, one.path)
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
    shown += [f"left out: {count:,} rows, {rule}" for rule, count in manifest.passed.items()]
    shown += [f"note: {note}" for note in manifest.notes]
    Output(as_json).answer(document, *shown)


@app.command()
def verify(
    pipeline: PipelineArgument,
    source: SourceOption = None,
    deep: Annotated[bool, typer.Option("--deep", help="Read every file: checksums and row counts.")] = False,
    pipelines: PipelinesOption = DEFAULT_PIPELINES,
    as_json: JsonOption = False,
) -> None:
    """Prove that the manifests are one chain without gaps, and that every file they list is there.

    \b
      lockstep stage verify shop
      lockstep stage verify shop --deep

    Exits with 'data at risk' when something is wrong, after showing all of it.
    """
    from cdc_core.stage.manifest import verify as look

    _, parsed = load_pipeline(pipeline, pipelines)
    store = opened(parsed)
    names = choose([one.name for one in parsed.sources], source, "source")
    problems = [(name, problem) for name in names for problem in look(store, name, deep=deep)]
    document = {
        "pipeline": parsed.pipeline,
        "ok": not problems,
        "problems": [{"source": name, "code": one.code, "path": one.path, "what": one.what} for name, one in problems],
    }
    rows = [(name, one.what, one.path, one.code) for name, one in problems]
    shown = (
        table("", ("source", "problem", "path", "code"), rows) if rows else "Chain and files are as the manifests say."
    )
    Output(as_json).answer(document, shown)
    if problems:
        raise typer.Exit(DataAtRisk.exit_code)


def staged_table(pipeline: Pipeline, found: Iterable[Manifest], name: str) -> str:
    """The name of a staged logical table. Raises UsageError (cli.no_table)."""
    known = sorted({part.table for manifest in found for part in manifest.parts})
    if name not in known:
        raise UsageError(
            f"Nothing of a table {name!r} is staged.",
            where=pipeline.stage.uri,
            code="cli.no_table",
            remedy=f"staged are: {', '.join(known)}" if known else "extract first: `lockstep extract`",
        )
    return name


def writable(path: Path, force: bool) -> Path:
    """A file that may be written. Raises UsageError (cli.exists)."""
    if path.exists() and not force:
        raise UsageError(
            f"{path} exists already.", where=str(path), code="cli.exists", remedy="choose another -o FILE, or --force"
        )
    return path
