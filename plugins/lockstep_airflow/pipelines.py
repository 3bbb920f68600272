"""The pipelines folder: which files are pipelines, and what is wrong with the others."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from cdc_core import config
from cdc_core.errors import UsageError
from lockstep_airflow.notifications import require_found
from lockstep_airflow.specs import DagSpec, dag_specs

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
            remedy="fix these files; the DAGs of all others are in use",
        )


def pipelines_folder(dag_file: str, in_bundle: str | None = None) -> Path:
    """$LOCKSTEP_PIPELINES, or the folder of a DAG bundle, or `pipelines` next to the DAG file."""
    return Path(os.environ.get(VARIABLE) or in_bundle or Path(dag_file).parent / "pipelines").absolute()


def read_folder(folder: Path) -> Folder:
    """Every pipeline file of a folder. If two files have one pipeline name, the first by file name is used."""
    specs: dict[str, DagSpec] = {}
    errors: list[UsageError] = []
    for file in sorted(path for path in folder.glob("*") if path.suffix in SUFFIXES):
        try:
            pipeline = config.load(file)
            require_found(pipeline, str(file))
            found = dag_specs(pipeline, file)
            _only_one(found, file, specs)
        except UsageError as error:
            errors.append(error)
        else:
            specs |= {spec.dag_id: spec for spec in found}
    return Folder(tuple(specs.values()), tuple(errors))


def dags_of(folder: Path) -> Mapping[str, DAG]:
    """The DAGs of a folder by id. A task's process, which needs one, renders only that one."""
    from airflow.sdk import get_parsing_context

    from lockstep_airflow.render import render

    wanted = get_parsing_context().dag_id
    return {spec.dag_id: render(spec) for spec in read_folder(folder).specs if wanted in (None, spec.dag_id)}


def _only_one(found: Iterable[DagSpec], file: Path, specs: Mapping[str, DagSpec]) -> None:
    first = next((specs[spec.dag_id] for spec in found if spec.dag_id in specs), None)
    if first is not None:
        raise UsageError(
            f"The DAG {first.dag_id!r} already belongs to the pipeline {first.pipeline!r} in {first.file}.",
            where=str(file),
            code="airflow.pipelines",
            remedy="give one of the two another name (key pipeline), or remove one file",
        )
