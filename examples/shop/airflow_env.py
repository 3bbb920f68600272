"""The environment in which this machine's Airflow knows Lockstep: one place for the demo, `make ui` and the tests.

A home of its own, SQLite unless told otherwise, everything on 127.0.0.1, no example DAGs, and few processes.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
SPARK_LOCAL = '{"conn_type": "spark", "host": "local[*]"}'


def airflow_environment(
    home: Path,
    pipelines: Path,
    connections: Mapping[str, str],
    *,
    port: int | None = None,
    database: str | None = None,
) -> dict[str, str]:
    """The variables to add to this process's environment.

    connections: Airflow connections by id, as URI or JSON; `spark_default` is this machine unless given.
    port:        where the web server will listen; needed for `airflow standalone` only.
    database:    SQLAlchemy URL of Airflow's own database; a SQLite file in `home` unless given. Airflow makes no
                 backfill on SQLite.
    """
    variables = {
        "AIRFLOW_HOME": str(home),
        "AIRFLOW__CORE__DAGS_FOLDER": str(REPOSITORY / "dags"),
        "AIRFLOW__CORE__PLUGINS_FOLDER": str(home / "plugins"),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "AIRFLOW__CORE__DAGS_ARE_PAUSED_AT_CREATION": "True",
        "AIRFLOW__CORE__PARALLELISM": "4",
        "AIRFLOW__CORE__EXECUTOR": "LocalExecutor",
        "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": f"sqlite:///{home / 'airflow.db'}?timeout=60",
        "AIRFLOW__DAG_PROCESSOR__REFRESH_INTERVAL": "15",
        "AIRFLOW__DAG_PROCESSOR__MIN_FILE_PROCESS_INTERVAL": "15",
        "AIRFLOW__API__WORKERS": "1",
        "AIRFLOW__API__HOST": "127.0.0.1",
        "LOCKSTEP_PIPELINES": str(pipelines),
        # pyspark's scripts look for the interpreter on PATH: its own folder comes first.
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)]),
    }
    if database is not None:
        variables["AIRFLOW__DATABASE__SQL_ALCHEMY_CONN"] = database
        variables["AIRFLOW__DATABASE__SQL_ALCHEMY_CONN_ASYNC"] = database
    for name, value in {"spark_default": SPARK_LOCAL, **connections}.items():
        variables[f"AIRFLOW_CONN_{name.upper()}"] = value
    if port is not None:
        variables["AIRFLOW__API__PORT"] = str(port)
        variables["AIRFLOW__API__BASE_URL"] = f"http://127.0.0.1:{port}"
        # Tasks speak to the web server; its default address has port 8080.
        variables["AIRFLOW__CORE__EXECUTION_API_SERVER_URL"] = f"http://127.0.0.1:{port}/execution/"
    return variables


def airflow_command(args: Sequence[str]) -> list[str]:
    return [sys.executable, "-m", "airflow", *args]


def run_airflow(
    args: Sequence[str],
    environment: Mapping[str, str],
    *,
    log: Path | None = None,
    on_line: Callable[[str], None] | None = None,
) -> int:
    """Run `airflow ARGS` to its end and return its exit status.

    environment: the whole environment of the process.
    log:         takes everything it prints; without one it is passed through.
    on_line:     is called with each line.
    """
    process = subprocess.Popen(
        airflow_command(args),
        env=dict(environment),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        stdin=subprocess.DEVNULL,
        text=True,
        errors="replace",
        cwd=REPOSITORY,
    )
    assert process.stdout is not None
    with process, open(log if log is not None else os.devnull, "a", encoding="utf-8") as file:
        try:
            for line in process.stdout:
                file.write(line)
                if log is None:
                    sys.stdout.write(line)
                if on_line is not None:
                    on_line(line.rstrip("\n"))
        except BaseException:
            process.terminate()
            raise
    return process.returncode
