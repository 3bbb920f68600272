"""`lockstep reshard`: more shards for an application that writes to shards."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.text import Text

from cdc_core.cli.pipeline_command import PipelineCall, pipeline_command

app = typer.Typer()


@pipeline_command(app)
def reshard(
    call: PipelineCall,
    to: Annotated[str, typer.Option("--to", metavar="LAYOUT", help="Databases x tables in each, as in 16x16.")],
    shards: Annotated[str | None, typer.Option("--shards", metavar="0-7,12", help="Only these former shards.")] = None,
) -> None:
    """Write the pipeline that moves an application from the shards it was led to, to more of them.

    \b
      lockstep reshard shop --to 16x16
      lockstep reshard shop --to 16x16 --shards 0-31

    Its sources are the shards, its target the new layout. Change names and servers in the file before its first run.
    Before a cutover, add a target with the new layout to the pipeline file instead.
    """
    from cdc_core.operations.successor_pipeline import NewLayout, ShardPart, write_successor

    layout, part = NewLayout.parse(to), ShardPart() if shards is None else ShardPart.parse(shards)
    with call.opened() as ready:
        report = write_successor(ready, call.path, layout, part)
    file = report.file.stem
    lines = [
        f"{report.file}: the shards of {report.old_target} are its sources; its target is {report.new_target}.",
        f"next: lockstep run {file}; lockstep verify {file}",
        "then name in it the command that leads the application to the new shards (cutover.switch_with: that of "
        f"{call.path.name} leads to the former ones), and lockstep cutover run {file}",
    ]
    call.output.answer(report.to_json(), *map(Text, lines))
