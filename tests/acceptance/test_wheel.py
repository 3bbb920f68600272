"""The wheel in an empty environment, as a user installs it: nothing of the repository is on the path."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.forked_commands import ROOT

UV = Path(sys.executable).with_name("uv")

pytestmark = pytest.mark.matrix


def installed(folder: Path, extras: str) -> Path:
    """The `lockstep` of an environment with the wheel and these extras, in the versions of requirements.lock."""
    subprocess.run([UV, "build", "--quiet", "--wheel", "--out-dir", folder, ROOT], check=True)
    (wheel,) = folder.glob("*.whl")
    lines = (ROOT / "requirements.lock").read_text().splitlines()
    (folder / "constraints.txt").write_text("\n".join(line.rstrip(" \\") for line in lines if not line.startswith(" ")))
    (folder / "without.txt").write_text("pyspark-client; python_version < '0'\n")
    subprocess.run([UV, "venv", "--quiet", "--python", sys.executable, folder / "venv"], check=True)
    subprocess.run(
        [UV, "pip", "install", "--quiet", "--python", folder / "venv/bin/python", "-c", folder / "constraints.txt",
         "--override", folder / "without.txt", f"lockstep{extras} @ {wheel.as_uri()}"],
        check=True,
    )  # fmt: skip
    return folder / "venv/bin/lockstep"


@pytest.mark.parametrize("extras", ["", "[spark,quality]"])
def test_the_wheel_runs_a_pipeline_from_an_existing_database(
    source_database: Any, mariadb_target: Any, tmp_path: Path, extras: str
) -> None:
    program = installed(tmp_path, extras)
    name = source_database.name
    source_database.execute(
        "CREATE TABLE orders (id INT PRIMARY KEY, v INT)", "INSERT INTO orders VALUES (1, 10), (2, 20)"
    )
    with mariadb_target.connect(autocommit=True) as connection, connection.cursor() as cursor:
        cursor.execute(f"CREATE DATABASE {name}")
        cursor.execute(f"CREATE TABLE {name}.orders (id INT PRIMARY KEY, v INT)")
    environ = {
        "PATH": f"{program.parent}:{os.environ['PATH']}", "HOME": str(tmp_path / "home"),
        "SHOP": source_database.server.url, "COPY": mariadb_target.url,
    }  # fmt: skip

    def run(*arguments: str) -> Any:
        done = subprocess.run(
            [program, *arguments, "--json"], capture_output=True, text=True, env=environ, cwd=tmp_path
        )
        assert done.returncode == 0, f"{arguments}: {done.stdout}\n{done.stderr}"
        return json.loads(done.stdout)

    target = ["--target", "env:COPY"] if extras else []
    run("init", "shop", "--source", "env:SHOP", "--include", rf"{name}\..*", *target)
    run("extract", "shop.yaml")
    source_database.execute("UPDATE orders SET v = 11 WHERE id = 1", "INSERT INTO orders VALUES (3, 30)")
    if extras:
        run("run", "shop.yaml")
        with mariadb_target.connect() as connection, connection.cursor() as cursor:
            cursor.execute(f"SELECT id, v FROM {name}.orders ORDER BY id")
            assert list(cursor.fetchall()) == [(1, 11), (2, 20), (3, 30)]
    else:
        run("snapshot", "shop.yaml")
        found = run("stage", "sql", "shop.yaml", f'SELECT id, v FROM "{name}.orders" ORDER BY id')
        assert found["rows"] == [[1, 11], [2, 20], [3, 30]]
