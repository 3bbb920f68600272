"""One DAG for each pipeline file (*.yaml, *.yml) in $LOCKSTEP_PIPELINES, by default the folder `pipelines` beside this.

A file that cannot be used is left out here, so that it breaks no other pipeline's DAG; lockstep_pipeline_errors.py
reports it as an import error of its own. (Airflow stops every DAG of a file that has an import error.)
"""

from __future__ import annotations

from lockstep_airflow.pipelines import dags_of, pipelines_folder

globals().update(dags_of(pipelines_folder(__file__)))
