"""`lockstep meta`: the database of positions and records."""

from __future__ import annotations

import os
from typing import Annotated

import typer

from cdc_core.cli.options import (
    DEFAULT_PIPELINES,
    JsonOption,
    PipelineArgument,
    PipelinesOption,
    choose,
    load_pipeline,
)
from cdc_core.cli.output import CliOutput, table

app = typer.Typer(name="meta", help="Maintain the database of positions and records.", no_args_is_help=True)


@app.command()
def upgrade(
    pipeline: PipelineArgument, pipelines: PipelinesOption = DEFAULT_PIPELINES, as_json: JsonOption = False
) -> None:
    """Bring the tables of the meta database up to this version, or create them.

    \b
      lockstep meta upgrade shop

    Run it while no task of the pipeline is running. Safe to repeat.
    """
    from cdc_core.meta import Meta

    _, parsed = load_pipeline(pipeline, pipelines)
    with Meta.open(parsed.meta.url, parsed.pipeline, upgrade=True):
        CliOutput(as_json).answer({"pipeline": parsed.pipeline, "current": True}, "The meta database is current.")


@app.command()
def rebuild(
    pipeline: PipelineArgument,
    source: Annotated[
        list[str] | None, typer.Option("--source", metavar="NAME", help="Only this source; may be repeated.")
    ] = None,
    pipelines: PipelinesOption = DEFAULT_PIPELINES,
    as_json: JsonOption = False,
) -> None:
    """Restore positions and batches from the stage, if the meta database was lost or lacks some.

    \b
      lockstep meta rebuild shop

    Adds what is missing and removes nothing. Afterwards the targets apply all batches again, which changes nothing in
    them. Exit code 75: a source is being extracted, copied or purged.
    """
    from cdc_core.operations.open_pipeline import open_pipeline
    from cdc_core.operations.rebuild import rebuild as rebuild_source

    _, parsed = load_pipeline(pipeline, pipelines)
    done = []
    with open_pipeline(parsed, os.environ, upgrade=True) as ready:
        for name in choose([one.name for one in parsed.sources], source, "source"):
            added, position = rebuild_source(ready, name)
            done.append((name, added, str(position) if position else None))
    columns = ("source", "batches restored", "position")
    CliOutput(as_json).answer(
        {
            "pipeline": parsed.pipeline,
            "sources": [{"source": name, "restored": added, "position": place} for name, added, place in done],
        },
        table("", columns, done, numbers=("batches restored",)),
    )


@app.command()
def accept(
    pipeline: PipelineArgument,
    target: Annotated[str, typer.Option("--target", metavar="NAME", help="The target whose tables are complete.")],
    pipelines: PipelinesOption = DEFAULT_PIPELINES,
    as_json: JsonOption = False,
) -> None:
    """Accept the tables of a target although they lack committed writes (target.lost_writes).

    \b
      lockstep meta accept shop --target shards

    Only if the lost rows are there in another way; otherwise replay the lost batches. Safe to repeat.
    """
    from cdc_core.operations.apply.lost_writes import accept as accept_writes
    from cdc_core.operations.open_pipeline import open_pipeline

    _, parsed = load_pipeline(pipeline, pipelines)
    (name,) = choose([one.name for one in parsed.targets], [target], "target")
    with open_pipeline(parsed, os.environ) as ready:
        lost = accept_writes(ready, name)
    rows = [(one.shard, one.rows, ", ".join(one.runs)) for one in lost]
    CliOutput(as_json).answer(
        {
            "pipeline": parsed.pipeline,
            "target": name,
            "accepted": [{"table": one.shard, "rows": one.rows, "runs": list(one.runs)} for one in lost],
        },
        table("accepted without them", ("table", "rows", "runs"), rows, numbers=("rows",)),
    )
