"""`lockstep airflow`: what an Airflow needs beside the installed package."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from cdc_core.cli.options import JsonOption
from cdc_core.cli.output import CliOutput

app = typer.Typer(
    name="airflow", help="Print what Airflow needs in addition to the installed package.", no_args_is_help=True
)

# The same text as the files in dags/ of the repository; a test holds them equal.
DAGS = '''\
"""One DAG for each pipeline file (*.yaml, *.yml) in $LOCKSTEP_PIPELINES, by default the folder `pipelines` beside this.

A file that cannot be used is left out here, so that it breaks no other pipeline's DAG; lockstep_pipeline_errors.py
reports it as an import error of its own. (Airflow stops every DAG of a file that has an import error.)
"""

from __future__ import annotations

from lockstep_airflow.pipelines import dags_of, pipelines_folder

globals().update(dags_of(pipelines_folder(__file__)))
'''
IMPORT_ERRORS = '''\
"""Fails to import, on purpose, while a pipeline file cannot be used: Airflow then shows which, why and what to do.

It holds no DAG itself (Airflow reads files that mention `airflow` and `dag`); lockstep_pipelines.py has those.
"""

from __future__ import annotations

from lockstep_airflow.pipelines import pipelines_folder, read_folder

_folder = read_folder(pipelines_folder(__file__))
if _folder.errors:
    raise _folder.error()
'''


@app.command()
def dags(
    import_errors: Annotated[
        bool,
        typer.Option("--import-errors", help="Print the file that reports broken pipeline files instead."),
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Print the file for Airflow's DAGs folder that creates a DAG for each pipeline file.

    \b
      lockstep airflow dags > dags/lockstep_pipelines.py
      lockstep airflow dags --import-errors > dags/lockstep_pipeline_errors.py

    The file reads the folder that LOCKSTEP_PIPELINES names, by default `pipelines` beside it; add the line `pipelines`
    to .airflowignore there. The second file reports broken pipeline files under Airflow's Import Errors.
    """
    text = IMPORT_ERRORS if import_errors else DAGS
    name = "lockstep_pipeline_errors.py" if import_errors else "lockstep_pipelines.py"
    if as_json:
        CliOutput(as_json).answer({"file": name, "text": text})
    else:
        sys.stdout.write(text)
