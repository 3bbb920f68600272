"""The wheel in an empty environment, as a user installs it: nothing of the repository is on the path."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.lab.forked_commands import ROOT

UV = Path(sys.executable).with_name("uv")

pytestmark = pytest.mark.matrix


def installed(folder: Path, extras: str) -> Path:
    """The `lockstep` of an environment with the wheel and these extras, in the versions of requirements.lock."""
    wheel = empty_environment(folder)
    install(folder, f"lockstep-cdc{extras} @ {wheel.as_uri()}")
    return folder / "venv/bin/lockstep"


def empty_environment(folder: Path) -> Path:
    """Makes one, and constraints of the versions of requirements.lock; the built wheel."""
    subprocess.run([UV, "build", "--quiet", "--wheel", "--out-dir", folder, ROOT], check=True)
    (wheel,) = folder.glob("*.whl")
    lines = (ROOT / "requirements.lock").read_text().splitlines()
    (folder / "constraints.txt").write_text("\n".join(line.rstrip(" \\") for line in lines if not line.startswith(" ")))
    (folder / "without.txt").write_text("pyspark-client; python_version < '0'\n")
    subprocess.run([UV, "venv", "--quiet", "--python", sys.executable, folder / "venv"], check=True)
    return wheel


def install(folder: Path, *packages: str) -> None:
    subprocess.run(
        [UV, "pip", "install", "--quiet", "--python", folder / "venv/bin/python", "-c", folder / "constraints.txt",
         "--override", folder / "without.txt", *packages],
        check=True,
    )  # fmt: skip


def versions(folder: Path) -> dict[str, str]:
    command = [UV, "pip", "list", "--format", "json", "--python", folder / "venv/bin/python"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return {load["name"]: load["version"] for load in json.loads(done.stdout)}


@pytest.mark.parametrize("extras", ["", "[spark,quality]", "[spark,quality,lake]"])
def test_the_wheel_runs_a_pipeline_from_an_existing_database(
    source_database: Any, mariadb_target: Any, tmp_path: Path, extras: str
) -> None:
    program = installed(tmp_path, extras)
    name = source_database.name
    source_database.execute(
        "CREATE TABLE orders (id INT PRIMARY KEY, v INT)", "INSERT INTO orders VALUES (1, 10), (2, 20)"
    )
    mariadb_target.run(f"CREATE DATABASE {name}", f"CREATE TABLE {name}.orders (id INT PRIMARY KEY, v INT)")
    environ = {
        "PATH": f"{program.parent}:{os.environ['PATH']}", "HOME": str(tmp_path / "home"),
        "SHOP": source_database.server.url, "COPY": mariadb_target.url,
        "LAKE": f"sqlite:///{tmp_path}/catalog.db",
    }  # fmt: skip

    def run(*arguments: str) -> Any:
        done = subprocess.run(
            [program, *arguments, "--json"], capture_output=True, text=True, env=environ, cwd=tmp_path
        )
        assert done.returncode == 0, f"{arguments}: {done.stdout}\n{done.stderr}"
        return json.loads(done.stdout)

    target = ["--target", "env:COPY"] if extras else []
    if "lake" in extras:
        target += ["--lake", "env:LAKE", "--warehouse", (tmp_path / "warehouse").as_uri()]
    run("init", "shop", "--source", "env:SHOP", "--include", rf"{name}\..*", *target)
    run("extract", "shop.yaml")
    source_database.execute("UPDATE orders SET v = 11 WHERE id = 1", "INSERT INTO orders VALUES (3, 30)")
    if extras:
        run("run", "shop.yaml")
        assert mariadb_target.run(f"SELECT id, v FROM {name}.orders ORDER BY id") == [(1, 11), (2, 20), (3, 30)]
        if "lake" in extras:
            run("verify", "shop.yaml", f"{name}.orders", "--target", "lake")
    else:
        run("snapshot", "shop.yaml")
        found = run("stage", "sql", "shop.yaml", f'SELECT id, v FROM "{name}.orders" ORDER BY id')
        assert found["rows"] == [[1, 11], [2, 20], [3, 30]]


def test_the_wheel_goes_into_an_airflow_that_exists_changes_nothing_of_it_and_shows_dags_with_one_setting(
    tmp_path: Path,
) -> None:
    wheel = empty_environment(tmp_path)
    install(tmp_path, "apache-airflow==3.3.2", "apache-airflow-providers-apache-spark==6.3.4")
    before = versions(tmp_path)
    assert "lockstep-cdc" not in before
    install(tmp_path, f"lockstep-cdc @ {wheel.as_uri()}")
    after = versions(tmp_path)
    assert {name: after.get(name) for name in before} == before
    pipelines = tmp_path / "pipelines"
    pipelines.mkdir()
    shutil.copy(ROOT / "docker/shop/shop.yaml", pipelines)
    bundle = {
        "name": "lockstep", "classpath": "lockstep_airflow.bundle.PipelinesBundle",
        "kwargs": {"pipelines": str(pipelines)},
    }  # fmt: skip
    environ = {
        "PATH": f"{tmp_path / 'venv/bin'}:{os.environ['PATH']}",
        "HOME": str(tmp_path / "home"),
        "AIRFLOW_HOME": str(tmp_path / "airflow"),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "AIRFLOW__DAG_PROCESSOR__DAG_BUNDLE_CONFIG_LIST": json.dumps([bundle]),
    }

    def airflow(*arguments: str) -> str:
        command = [tmp_path / "venv/bin/airflow", *arguments]
        done = subprocess.run(command, capture_output=True, text=True, env=environ, cwd=tmp_path, check=False)
        assert done.returncode == 0, f"{arguments}: {done.stdout[-3000:]}\n{done.stderr[-3000:]}"
        return done.stdout

    airflow("db", "migrate")
    airflow("dags", "reserialize")
    text = airflow("dags", "list", "--output", "json")
    shown = {load["dag_id"] for load in json.loads(text[text.index("[{") :])}
    assert {"cdc_shop", "cdc_shop_snapshot", "cdc_shop_replay"} <= shown
