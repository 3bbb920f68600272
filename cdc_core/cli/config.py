"""`lockstep config`: the pipeline file's format, for editors."""

from __future__ import annotations

import typer
from rich.json import JSON

from cdc_core.cli.options import JsonOption
from cdc_core.cli.output import CliOutput

app = typer.Typer(name="config", help="The pipeline file's format.", no_args_is_help=True)


@app.command()
def schema(as_json: JsonOption = False) -> None:
    """Print the JSON Schema of the pipeline file.

    \b
      lockstep config schema > pipeline.schema.json

    Editors use it if a file starts with: # yaml-language-server: $schema=pipeline.schema.json
    """
    from cdc_core.config import json_schema

    document = json_schema()
    output = CliOutput(as_json or not CliOutput(as_json).out.is_terminal)
    output.answer(document, JSON.from_data(document))
