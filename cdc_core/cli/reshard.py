"""`lockstep reshard`: gives a target a new layout, before a cutover or after one."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.text import Text

from cdc_core.cli.options import (
    DEFAULT_PIPELINES,
    JsonOption,
    PipelineArgument,
    PipelinesOption,
    choose,
    load_pipeline,
    opened,
)
from cdc_core.cli.output import CliOutput, table
from cdc_core.cli.run import driver
from cdc_core.process.extras import require

if TYPE_CHECKING:
    from cdc_core.operations.reshard.resharding import Resharding

app = typer.Typer(name="reshard", help="Give a target a new layout: 16 x 16 shards, say.", no_args_is_help=True)

LayoutOption = Annotated[str, typer.Option("--to", metavar="LAYOUT", help="Databases x tables in each, as in 16x16.")]
OldOption = Annotated[
    str | None,
    typer.Option("--target", metavar="NAME", help="The target that has the rows now; default: the only one."),
]
NameOption = Annotated[
    str | None,
    typer.Option("--name", metavar="NAME", help="Name of the new target; default: the old one's with the layout."),
]
DatabaseOption = Annotated[
    str | None,
    typer.Option(
        "--database", metavar="TEMPLATE", help="Template of the new databases' names, as in 'shop16_{d:02d}'."
    ),
]
ConnectionOption = Annotated[
    list[str] | None,
    typer.Option(
        "--connection", metavar="REF", help="Server of the new databases, once or once for each; default: the old one."
    ),
]
RowsOption = Annotated[
    int, typer.Option("--rows", metavar="N", min=1, help="About how many staged rows each run takes.")
]

ShardsOption = Annotated[
    str | None,
    typer.Option(
        "--shards",
        metavar="0-7,12",
        help="After a cutover: only these former shards.",
    ),
]


@app.command()
def plan(
    pipeline: PipelineArgument,
    to: LayoutOption,
    target: OldOption = None,
    name: NameOption = None,
    database: DatabaseOption = None,
    connection: ConnectionOption = None,
    shards: ShardsOption = None,
    pipelines: PipelinesOption = DEFAULT_PIPELINES,
    as_json: JsonOption = False,
) -> None:
    """Show the target, or after a cutover the pipeline, that would be written, and what prevents it.

    \b
      lockstep reshard plan shop --to 16x16
      lockstep reshard plan shop --to 16x16 --database 'shop16_{d:02d}' --connection env:NEW

    Writes nothing.
    """
    output = CliOutput(as_json)
    from cdc_core.operations.reshard.resharding import plan as make_plan

    asked = _asked(pipeline, pipelines, to, target, name, database, connection, shards)
    with opened(asked.pipeline, output) as ready:
        made = make_plan(ready, asked)
    output.answer(made.to_json(), Text(f"# {made.writes}"), Text(made.text.rstrip()))


@app.command()
def run(
    pipeline: PipelineArgument,
    to: LayoutOption,
    target: OldOption = None,
    name: NameOption = None,
    database: DatabaseOption = None,
    connection: ConnectionOption = None,
    shards: ShardsOption = None,
    rows: RowsOption = 5_000_000,
    pipelines: PipelinesOption = DEFAULT_PIPELINES,
    as_json: JsonOption = False,
) -> None:
    """Add a target with the new layout and fill it from the stage.

    \b
      lockstep reshard run shop --to 16x16

    Reads no row from the source or the old shards. After an interruption, the same command continues. After a cutover,
    it writes a pipeline whose sources are the shards and whose target is the new layout.
    """
    output = CliOutput(as_json)
    from cdc_core.operations.reshard.resharding import reshard

    asked = _asked(pipeline, pipelines, to, target, name, database, connection, shards)
    require("spark", "quality", by="lockstep reshard")
    with opened(asked.pipeline, output, bars=False) as ready:
        report = reshard(ready, asked, driver, rows)
    if report.file is None:
        feeds = f"{asked.name} has everything that is staged, and every run of {ready.name} feeds it from now on."
        file = asked.file.stem
        lines = [feeds, f"next: lockstep run {file}; lockstep verify {file} --target {asked.name}"]
    else:
        file = report.file.stem
        lines = [
            f"{report.file}: the shards of {asked.old.name} are its sources; its target is {asked.name}.",
            f"next: lockstep run {file}; lockstep verify {file}",
            "then name in it the command that leads the application to the new shards (cutover.switch_with: that of "
            f"{asked.file.name} leads to the former ones), and lockstep cutover run {file}",
        ]
    output.answer(report.to_json(), *map(Text, lines))


@app.command()
def status(
    pipeline: PipelineArgument,
    target: Annotated[
        list[str] | None, typer.Option("--target", metavar="NAME", help="Only this target; may be repeated.")
    ] = None,
    pipelines: PipelinesOption = DEFAULT_PIPELINES,
    as_json: JsonOption = False,
) -> None:
    """Show how much of the staged history each target has, and whether runs feed it.

    \b
      lockstep reshard status shop
    """
    from cdc_core.meta import Meta
    from cdc_core.operations.reshard.fill import filled

    output = CliOutput(as_json)
    _, parsed = load_pipeline(pipeline, pipelines)
    names = choose([one.name for one in parsed.targets], target, "target")
    found: list[dict[str, Any]] = []
    with Meta.open(parsed.meta.url, parsed.pipeline) as meta:
        for one in map(parsed.target, names):
            now = filled(meta, parsed, one.name)
            found.append(
                {
                    "target": one.name,
                    "layouts": sorted({rule.layout for rule in one.tables.values()}),
                    "batches": now.done,
                    "staged": now.batches,
                    "rows_to_apply": now.rows,
                    "fed_by_runs": not one.replay_only,
                }
            )
    shown = [
        (
            one["target"],
            "; ".join(one["layouts"]),
            f"{one['batches']:,} of {one['staged']:,}",
            f"{one['rows_to_apply']:,}",
            "yes" if one["fed_by_runs"] else "no: replay_only",
        )
        for one in found
    ]
    columns = ("target", "layout", "batches", "rows to apply", "fed by runs")
    output.answer({"targets": found}, table(f"targets: {parsed.pipeline}", columns, shown))


def _asked(
    pipeline: str,
    pipelines: Path,
    to: str,
    target: str | None,
    name: str | None,
    database: str | None,
    connection: list[str] | None,
    shards: str | None,
) -> Resharding:
    from cdc_core.operations.reshard.resharding import Resharding

    path, parsed = load_pipeline(pipeline, pipelines)
    return Resharding.of(
        path, parsed, to, target=target, name=name, database=database, connections=connection or (), shards=shards
    )
