"""A DAG bundle with a DAG for each pipeline file of a folder: one entry of `[dag_processor] dag_bundle_config_list`
shows them in an Airflow that has this package.

The bundle's own folder holds two small DAG files, which Airflow parses; they name the folder of pipeline files. Every
process that uses the bundle writes them where they are missing or differ, each in one step.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Any

from airflow.dag_processing.bundles.base import BaseDagBundle

CLASSPATH = "lockstep_airflow.bundle.PipelinesBundle"

# Airflow parses files that mention `airflow` and `dag`.
_DAGS = """\
# Written by lockstep_airflow.bundle.
from pathlib import Path
from lockstep_airflow.pipelines import dags_of
globals().update(dags_of(Path({pipelines!r})))
"""
_ERRORS = """\
# Written by lockstep_airflow.bundle. No dag: fails while a pipeline file cannot be used, so that Airflow shows why.
from pathlib import Path
from lockstep_airflow.pipelines import read_folder
folder = read_folder(Path({pipelines!r}))
if folder.errors:
    raise folder.error()
"""
_FILES = {"lockstep_pipelines.py": _DAGS, "lockstep_pipeline_errors.py": _ERRORS}


class PipelinesBundle(BaseDagBundle):
    """pipelines: the folder of pipeline files, absolute. It is read each time; nothing is versioned."""

    supports_versioning = False

    def __init__(self, *, pipelines: str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        if not os.path.isabs(pipelines):
            raise ValueError(f"{self.name}: pipelines must be an absolute path, not {pipelines!r}")
        self._pipelines = pipelines

    @property
    def path(self) -> Path:
        return self.base_dir

    def initialize(self) -> None:
        super().initialize()
        self.refresh()

    def refresh(self) -> None:
        self.path.mkdir(parents=True, exist_ok=True)
        for name, text in _FILES.items():
            _write(self.path / name, text.format(pipelines=self._pipelines))

    def get_current_version(self) -> None:
        return None


def configured_pipelines(bundles: Any) -> str | None:
    """The folder of the first bundle of this kind in `dag_bundle_config_list`; None without one."""
    for bundle in bundles or ():
        if isinstance(bundle, dict) and bundle.get("classpath") == CLASSPATH:
            return str(bundle.get("kwargs", {}).get("pipelines") or "") or None
    return None


def _write(path: Path, text: str) -> None:
    if path.exists() and path.read_text(encoding="utf-8") == text:
        return
    with tempfile.NamedTemporaryFile("w", encoding="utf-8", dir=path.parent, suffix=".tmp", delete=False) as file:
        file.write(text)
    os.chmod(file.name, 0o644)
    os.replace(file.name, path)
