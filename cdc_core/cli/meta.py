"""`lockstep meta`: the database of positions and records."""

from __future__ import annotations

from typing import Annotated

import typer

from cdc_core.cli.options import SourcesOption
from cdc_core.cli.output import listing
from cdc_core.cli.pipeline_command import PipelineCall, pipeline_command

app = typer.Typer(name="meta", help="Maintain the database of positions and records.", no_args_is_help=True)


@pipeline_command(app)
def upgrade(call: PipelineCall) -> None:
    """Bring the tables of the meta database up to this version, or create them.

    \b
      lockstep meta upgrade shop

    Run it while no task of the pipeline is running. Safe to repeat.
    """
    from cdc_core.meta import Meta

    with Meta.open(call.pipeline.meta.url, call.pipeline.pipeline, upgrade=True):
        call.answer({"current": True}, "The meta database is current.")


@pipeline_command(app)
def rebuild(call: PipelineCall, source: SourcesOption = None) -> None:
    """Restore positions and batches from the stage, if the meta database was lost or lacks some.

    \b
      lockstep meta rebuild shop

    Adds what is missing and removes nothing. Afterwards the targets apply all batches again, which changes nothing in
    them. Exit code 75: a source is being extracted, copied or purged.
    """
    from cdc_core.operations.open_pipeline import open_pipeline
    from cdc_core.operations.rebuild import rebuild as rebuild_source

    restored = []
    with open_pipeline(call.pipeline, upgrade=True) as ready:
        for name in call.sources(source):
            added, position = rebuild_source(ready, name)
            restored.append({"source": name, "restored": added, "position": str(position) if position else None})
    call.answer({"sources": restored}, listing("restored batches", restored, "source restored position"))


@pipeline_command(app)
def accept(
    call: PipelineCall,
    target: Annotated[str, typer.Option("--target", metavar="NAME", help="The target whose tables are complete.")],
) -> None:
    """Accept the tables of a target although they lack committed writes (target.lost_writes).

    \b
      lockstep meta accept shop --target shards

    Only if the lost rows are there in another way; otherwise replay the lost batches. Safe to repeat.
    """
    from cdc_core.operations.apply.lost_writes import accept as accept_writes

    (name,) = call.targets([target])
    with call.opened() as ready:
        lost = accept_writes(ready, name)
    accepted = [{"table": writes.shard, "rows": writes.rows, "runs": list(writes.runs)} for writes in lost]
    call.answer(
        {"target": name, "accepted": accepted}, listing("accepted although these are lost", accepted, "table rows runs")
    )
