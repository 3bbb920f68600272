"""`lockstep init`: a pipeline file from what the source has."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cdc_core.cli.options import JsonOption, require_free, write_text
from cdc_core.cli.output import CliOutput, listing
from cdc_core.cli.pipeline_command import command

if TYPE_CHECKING:
    from cdc_core.operations.new_pipeline import Draft


app = typer.Typer()

SourceOption = Annotated[
    str, typer.Option("--source", metavar="env:VAR", help="Variable with the source's mysql:// URL.")
]
IncludeOption = Annotated[
    list[str],
    typer.Option("--include", metavar="REGEX", help="Tables to capture; must match the whole database.table."),
]
ExcludeOption = Annotated[
    list[str] | None, typer.Option("--exclude", metavar="REGEX", help="Tables to leave out; may be repeated.")
]
StageOption = Annotated[
    str | None,
    typer.Option("--stage", metavar="URI", help="file:///directory or s3://bucket/prefix for the staged files."),
]
MetaOption = Annotated[
    str | None, typer.Option("--meta", metavar="URL", help="Meta database: URL without password, or env:VAR.")
]
TargetOption = Annotated[
    list[str] | None,
    typer.Option("--target", metavar="env:VAR", help="A MySQL server to apply changes to; may be repeated."),
]
LakeOption = Annotated[
    str | None,
    typer.Option("--lake", metavar="env:VAR", help="A catalog of Iceberg tables that mirror them; with --warehouse."),
]
WarehouseOption = Annotated[
    str | None, typer.Option("--warehouse", metavar="URI", help="Where the catalog's tables have their files.")
]
StartOption = Annotated[
    str,
    typer.Option("--start", metavar="latest|earliest", help="Start at the current position, or at the oldest log."),
]
FileOption = Annotated[
    Path | None,
    typer.Option("--output", "-o", metavar="FILE", help="The file to write; default NAME.yaml."),
]


@command(app)
def init(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Name of the pipeline: a-z, 0-9 and _.")],
    source: SourceOption,
    include: IncludeOption,
    exclude: ExcludeOption = None,
    stage: StageOption = None,
    meta: MetaOption = None,
    target: TargetOption = None,
    lake: LakeOption = None,
    warehouse: WarehouseOption = None,
    start: StartOption = "latest",
    to: FileOption = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite FILE.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Write a pipeline file for a source, with its tables and keys.

    \b
      lockstep init shop --source env:SHOP --include 'shop\\..*'
      lockstep init shop --source env:SHOP --include 'shop\\..*' --target env:COPY -o dags/pipelines/shop.yaml
      lockstep init shop --source env:SHOP --include 'shop\\..*' --lake env:LAKE_CATALOG --warehouse s3://lake/shop

    Comments name the tables that are left out, with the reason. The file passes `lockstep check`. Stage and meta are
    under ./.lockstep/NAME by default. Passwords stay in the environment.
    """
    from cdc_core.operations.new_pipeline import Wishes, draft

    file = to or Path(f"{name}.yaml")
    require_free(file, force=force)
    made = draft(
        Wishes(
            name=name,
            source=source,
            include=tuple(include),
            exclude=tuple(exclude or ()),
            stage=stage,
            meta=meta,
            targets=tuple(target or ()),
            lake=lake,
            warehouse=warehouse,
            start=start,
            directory=Path.cwd(),
        )
    )
    write_text(file, made.text)
    _answer(CliOutput(as_json), name, file, made)


def _answer(output: CliOutput, name: str, file: Path, made: Draft) -> None:
    document: dict[str, Any] = {
        "pipeline": name,
        "file": str(file),
        "captured": [{"table": table, "key": list(key)} for table, key in made.captured],
        "left_out": [{"table": table, "why": why} for table, why in made.left_out],
        "start": made.start,
        "server_id": made.server_id,
        "warnings": list(made.warnings),
    }
    output.answer(
        document,
        *([listing("captured", document["captured"], "table key")] if made.captured else []),
        *([listing("left out", document["left_out"], "table why")] if made.left_out else []),
        *(f"note: {warning}" for warning in made.warnings),
        f"wrote {file}, starting at {made.start}. Next: lockstep check {file}",
    )
