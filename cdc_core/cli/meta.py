"""`lockstep meta`: the database of positions and records."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

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

if TYPE_CHECKING:
    from cdc_core.config import Pipeline
    from cdc_core.meta import Meta
    from cdc_core.stage.objects import ObjectStore

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
    with Meta.open(parsed.meta.url, upgrade=True):
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
    from cdc_core.stage import start as starts
    from cdc_core.stage.manifest import newest, require_reached
    from cdc_core.stage.stores import open_stage

    _, parsed = load_pipeline(pipeline, pipelines)
    store = open_stage(parsed.stage)
    done = []
    with Meta.open(parsed.meta.url, upgrade=True) as meta:
        for name in choose([one.name for one in parsed.sources], source, "source"):
            starts.require_own(store, name, parsed.pipeline)
            added = rebuild_source(meta, store, parsed, name)
            stored = meta.checkpoint(name)
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


def rebuild_source(meta: Meta, store: ObjectStore, pipeline: Pipeline, source: str) -> int:
    """How many batches were missing. Nobody adds to the chain meanwhile, or removes from it: what meta is told after
    the chain was read would be replaced by what the chain said then.

    Raises RetryLater (meta.lease_held, snapshot.running, meta.lease_lost), and what reading the chain and Meta.rebuild
    raise.
    """
    from cdc_core.apply.turn import Turn
    from cdc_core.errors import RetryLater
    from cdc_core.extract import default_holder
    from cdc_core.meta.kept_lease import kept_lease
    from cdc_core.snapshot.copier import copier_lease
    from cdc_core.stage import horizon as horizons
    from cdc_core.stage.manifest import chain

    lease_s = pipeline.limits.lease_s
    taken = RetryLater(
        f"The source {source!r} is being extracted.",
        where=source,
        code="meta.lease_held",
        remedy=f"wait until it ends or, if it is dead, {lease_s:g} s for its lease to expire",
    )
    with (
        Turn(meta, pipeline) as turn,
        copier_lease(meta, pipeline, source),
        # A DAG tries to extract the source all the time, and a long chain takes longer to read than a lease lasts.
        kept_lease(meta, source, pipeline.pipeline, default_holder(), lease_s, taken=taken) as lease,
    ):
        horizon = horizons.read(store, source)
        manifests = tuple(chain(store, source))
        turn.renew()
        lease, added = meta.rebuild(lease, manifests, horizon.coverage if horizon is not None else None)
        meta.release_lease(lease)  # it has another epoch than the one that the block began with
    return added


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
    with Meta.open(parsed.meta.url) as meta:
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
