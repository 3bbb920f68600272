"""`lockstep dbt`: what a dbt project needs to know of a pipeline."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from cdc_core.cli.lake import LakeOption
from cdc_core.cli.options import require_free, write_text
from cdc_core.cli.pipeline_command import PipelineCall, pipeline_command

app = typer.Typer(name="dbt", help="Use a lake in a dbt project.", no_args_is_help=True)


@pipeline_command(app)
def sources(
    call: PipelineCall,
    target: LakeOption = None,
    to: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="FILE", help="Write to this file instead.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite FILE.")] = False,
) -> None:
    """Print a sources.yml with the tables of a lake: columns, tests of the keys, comments, and freshness.

    \b
      lockstep dbt sources shop -o models/sources.yml

    The tables are those of the newest cut. Comments come from the sources, so both must answer.
    """
    import yaml

    from cdc_core.operations.lake.cuts_at import one_lake
    from cdc_core.operations.lake.dbt_sources import dbt_source

    if to is not None:
        require_free(to, force=force)
    document = dbt_source(call.pipeline, call.store(), one_lake(call.pipeline, target)).to_document()
    text = yaml.safe_dump(document, sort_keys=False, allow_unicode=True, width=10_000)
    if to is not None:
        write_text(to, text)
        call.output.note(f"{to} written")
    shown = () if to is not None else (Text(text.rstrip(), no_wrap=True, overflow="ignore"),)
    call.answer(document, *shown)
