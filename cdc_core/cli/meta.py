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
from cdc_core.cli.output import Output, table

app = typer.Typer(name="meta", help="The database of positions and records.", no_args_is_help=True)


@app.command()
def upgrade(
    pipeline: PipelineArgument, pipelines: PipelinesOption = DEFAULT_PIPELINES, as_json: JsonOption = False
) -> None:
    """Bring the tables of the meta database to this version; makes them in an empty database.

    \b
      lockstep meta upgrade shop

    Do it while no task of the pipeline runs. Doing it twice changes nothing.
    """
    from cdc_core.meta import Meta

    _, parsed = load_pipeline(pipeline, pipelines)
    with Meta.open(parsed.meta.url, upgrade=True):
        Output(as_json).answer({"pipeline": parsed.pipeline, "current": True}, "The meta database is current.")


@app.command()
def rebuild(
    pipeline: PipelineArgument,
    source: Annotated[
        list[str] | None, typer.Option("--source", metavar="NAME", help="Only this source; may be repeated.")
    ] = None,
    pipelines: PipelinesOption = DEFAULT_PIPELINES,
    as_json: JsonOption = False,
) -> None:
    """Restore positions and batches from the manifests of the stage, after meta was lost, or lacks some of them.

    \b
      lockstep meta rebuild shop

    The manifests are the truth about what is staged. Consume records and ledgers live in meta only: after a loss
    the targets take all batches again, which changes nothing in them. Adds what is missing and removes nothing;
    doing it twice changes nothing.
    """
    from cdc_core.extract import default_holder
    from cdc_core.meta import Meta
    from cdc_core.stage import horizon as horizons
    from cdc_core.stage.manifest import chain, newest, require_reached
    from cdc_core.stage.objects import open_stage

    _, parsed = load_pipeline(pipeline, pipelines)
    store = open_stage(parsed.stage)
    done = []
    with Meta.open(parsed.meta.url, upgrade=True) as meta:
        for name in choose([one.name for one in parsed.sources], source, "source"):
            lease = meta.acquire_lease(name, parsed.pipeline, default_holder(), ttl_s=parsed.limits.lease_s)
            try:
                horizon = horizons.read(store, name)
                purged = horizon.coverage if horizon is not None else None
                lease, added = meta.rebuild(lease, chain(store, name), purged)
            finally:
                meta.release_lease(lease)
            stored = meta.checkpoint(name)
            require_reached(store, name, newest(store, name), stored.position if stored else None)
            done.append((name, added, str(stored.position) if stored else None))
    columns = ("source", "batches restored", "position")
    Output(as_json).answer(
        {
            "pipeline": parsed.pipeline,
            "sources": [{"source": name, "restored": added, "position": place} for name, added, place in done],
        },
        table("", columns, done, numbers=("batches restored",)),
    )
