"""`lockstep meta`: the database of positions and records."""

from __future__ import annotations

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
    """Upgrade the tables of the meta database to this version, or create them in an empty database.

    \b
      lockstep meta upgrade shop

    Run it while no task of the pipeline is running. Running it twice changes nothing.
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
    """Restore positions and batches from the manifests on the stage, if meta was lost or lacks some of them.

    \b
      lockstep meta rebuild shop

    The manifests are the source of truth for what is staged. Consume records and ledgers exist in meta only: after a
    loss the targets apply all batches again, which changes nothing in them. A rebuild adds what is missing and removes
    nothing. Running it twice changes nothing. Exit code 75: a source is being extracted, copied or purged.
    """
    from cdc_core.meta import Meta
    from cdc_core.rebuild import rebuild as rebuild_source
    from cdc_core.stage import start as starts
    from cdc_core.stage.manifest import newest, require_reached
    from cdc_core.stage.stores import open_stage

    _, parsed = load_pipeline(pipeline, pipelines)
    store = open_stage(parsed.stage)
    done = []
    with Meta.open(parsed.meta.url, parsed.pipeline, upgrade=True) as meta:
        for name in choose([one.name for one in parsed.sources], source, "source"):
            starts.require_own(store, name, parsed.pipeline)
            added = rebuild_source(meta, store, parsed, name)
            stored = meta.positions.checkpoint(name)
            require_reached(store, name, newest(store, name), stored.position if stored else None)
            done.append((name, added, str(stored.position) if stored else None))
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
    """Accept the tables of a target as they are, although they lack writes that were committed (target.lost_writes).

    \b
      lockstep meta accept shop --target shards

    Only if the lost rows are there in another way, such as a copy of the tables: a replay of the lost batches writes
    them again and needs no acceptance. Shows what is accepted; later losses are reported again. Running it twice
    changes nothing.
    """
    from cdc_core.apply.lost_writes import accept as accept_writes
    from cdc_core.meta import Meta

    _, parsed = load_pipeline(pipeline, pipelines)
    (name,) = choose([one.name for one in parsed.targets], [target], "target")
    with Meta.open(parsed.meta.url, parsed.pipeline) as meta:
        lost = accept_writes(meta, parsed, name)
    rows = [(one.shard, one.rows, ", ".join(one.runs)) for one in lost]
    CliOutput(as_json).answer(
        {
            "pipeline": parsed.pipeline,
            "target": name,
            "accepted": [{"table": one.shard, "rows": one.rows, "runs": list(one.runs)} for one in lost],
        },
        table("accepted without them", ("table", "rows", "runs"), rows, numbers=("rows",)),
    )
