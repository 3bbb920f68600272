"""The pipelines folder: which files are pipelines, and what is wrong with the others."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from cdc_core import config
from cdc_core.config import Pipeline
from cdc_core.errors import UsageError
from lockstep_airflow.specs import DagSpec, dag_id_of, dag_spec

if TYPE_CHECKING:
    from airflow.sdk import DAG

VARIABLE = "LOCKSTEP_PIPELINES"
SUFFIXES = (".yaml", ".yml")


@dataclass(frozen=True, slots=True)
class Folder:
    """`specs` of the files that can be used, in order of file name; `errors` of the others."""

    specs: tuple[DagSpec, ...]
    errors: tuple[UsageError, ...]

    def error(self) -> UsageError:
        """All errors as one, for Airflow's list of import errors."""
        return UsageError(
            "\n".join(f"{error.where}: {error}" for error in self.errors),
            where=", ".join(error.where for error in self.errors),
            code="airflow.pipelines",
            remedy="mend these files; the DAGs of all others are in use",
        )


def pipelines_folder(dag_file: str) -> Path:
    """$LOCKSTEP_PIPELINES, or `pipelines` beside the DAG file."""
    return Path(os.environ.get(VARIABLE) or Path(dag_file).parent / "pipelines").absolute()


def read_folder(folder: Path) -> Folder:
    """Every pipeline file of a folder. Of two files with one pipeline name the first by file name is used."""
    specs: dict[str, DagSpec] = {}
    errors: list[UsageError] = []
    for file in sorted(path for path in folder.glob("*") if path.suffix in SUFFIXES):
        try:
            pipeline = config.load(file)
            _only_one(pipeline, file, specs)
        except UsageError as error:
            errors.append(error)
        else:
            spec = dag_spec(pipeline, file)
            specs[spec.dag_id] = spec
    return Folder(tuple(specs.values()), tuple(errors))


def dags_of(folder: Path) -> Mapping[str, DAG]:
    """The DAGs of a folder by id. A task's process, which needs one, renders only that one."""
    from airflow.sdk import get_parsing_context

    from lockstep_airflow.render import render

    wanted = get_parsing_context().dag_id
    return {spec.dag_id: render(spec) for spec in read_folder(folder).specs if wanted in (None, spec.dag_id)}


def _only_one(pipeline: Pipeline, file: Path, specs: Mapping[str, DagSpec]) -> None:
    first = specs.get(dag_id_of(pipeline.pipeline))
    if first is not None:
        raise UsageError(
            f"The pipeline {pipeline.pipeline!r} is defined by {first.file} already.",
            where=str(file),
            code="airflow.pipeline_twice",
            remedy="give one of the two another name (key pipeline), or remove one file",
        )
