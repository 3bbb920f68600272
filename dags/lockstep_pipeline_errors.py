"""Fails to import, on purpose, while a pipeline file cannot be used: Airflow then shows which, why and what to do.

It holds no DAG itself (Airflow reads files that mention `airflow` and `dag`); lockstep_pipelines.py has those.
"""

from __future__ import annotations

from lockstep_airflow.pipelines import pipelines_folder, read_folder

_folder = read_folder(pipelines_folder(__file__))
if _folder.errors:
    raise _folder.error()
