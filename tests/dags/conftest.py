"""Airflow for the tests: a home of its own, before anything imports Airflow, and a database made once."""

from __future__ import annotations

import atexit
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from examples.shop.airflow_env import REPOSITORY, airflow_environment
from tests.dags import made_pipelines
from tests.dags.airflow_line import AirflowLine
from tests.lab.pipeline_file import pipeline_document, pipeline_text

_HOME = Path(tempfile.mkdtemp(prefix="lockstep-airflow-"))
atexit.register(shutil.rmtree, _HOME, ignore_errors=True)
# Airflow reads these when it is first imported, in this process as in the children.
os.environ.update(airflow_environment(_HOME, _HOME / "pipelines", {}))

Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="session")
def airflow_home() -> Path:
    """A home with a migrated SQLite database."""
    (_HOME / "pipelines").mkdir(exist_ok=True)
    done = subprocess.run(
        [sys.executable, "-m", "airflow", "db", "migrate"], capture_output=True, text=True, check=False, cwd=REPOSITORY
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return _HOME


@pytest.fixture
def pipelines(tmp_path: Path) -> Iterator[Path]:
    """An empty pipelines folder that LOCKSTEP_PIPELINES names."""
    folder = tmp_path / "pipelines"
    folder.mkdir()
    before = os.environ["LOCKSTEP_PIPELINES"]
    os.environ["LOCKSTEP_PIPELINES"] = str(folder)
    yield folder
    os.environ["LOCKSTEP_PIPELINES"] = before


@pytest.fixture
def write_pipeline(pipelines: Path, tmp_path: Path) -> Callable[..., Path]:
    """`made_pipelines.write` into the folder; stage and meta are in `tmp_path`."""
    return partial(made_pipelines.write, pipelines, tmp_path)


@pytest.fixture
def python(airflow_home: Path) -> Run:
    """Runs Python code in a fresh process with Airflow's environment; returns it when it has ended."""

    def run(code: str, *args: str, **environ: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-c", code, *args],
            capture_output=True,
            text=True,
            check=False,
            cwd=REPOSITORY,
            env={**os.environ, "PYTHONPATH": f"{REPOSITORY}:{REPOSITORY / 'plugins'}", **environ},
            timeout=240,
        )

    return run


@pytest.fixture
def line(
    request: pytest.FixtureRequest, airflow_home: Path, source_database: Any, pipelines: Path, tmp_path: Path
) -> Callable[..., AirflowLine]:
    def make(
        name: str, *, mode: str = "poke", batch_rows: int = 1_000_000, notify: Sequence[Any] = (), **sections: Any
    ) -> AirflowLine:
        (place,) = source_database.execute("SHOW MASTER STATUS")
        file, offset = place[:2]
        source = {
            "name": f"{name}_db", "connection": f"airflow:{name}", "read_timeout_s": 5,
            "start": {"position": {"file": file, "offset": offset}},
        }  # fmt: skip
        document = pipeline_document(
            tmp_path, source_database.name, source=source, pipeline=name, schedule="* * * * *", routes="[]",
            limits={"lease_s": 5, "batch_rows": batch_rows},
            airflow={"sensor": mode, "poke_interval_s": 1, "retry_delay_s": 1, "notify": notify}, **sections,
        )  # fmt: skip
        (pipelines / f"{name}.yaml").write_text(pipeline_text(document))
        environ = {**os.environ, f"AIRFLOW_CONN_{name.upper()}": source_database.server.url}
        return AirflowLine(name, airflow_home, tmp_path, environ)

    return make
