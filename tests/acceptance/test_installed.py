"""What the documents ask of an installed user: Spark's jars, and a word before the first wait."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.matrix
def test_the_first_extract_says_that_it_compiles_and_the_second_does_not(source_database: Any, lockstep: Any) -> None:
    source_database.execute("CREATE TABLE orders (id INT PRIMARY KEY)")
    lockstep.init(source_database.server, source_database.name)
    lockstep.environ["NUMBA_CACHE_DIR"] = str(lockstep.directory / "kernels")
    said = [
        subprocess.run(
            lockstep.command("extract", "shop.yaml", "--json"),
            capture_output=True, text=True, check=True, env=dict(lockstep.environment), cwd=lockstep.directory,
        ).stderr
        for _ in range(2)
    ]  # fmt: skip
    assert ["Compiling the decoder" in text for text in said] == [True, False]


NOBODY = 54_321
"""A user id without a name, as OpenShift gives to containers. It may read the interpreter, whoever owns that."""


@pytest.mark.matrix
@pytest.mark.spark
@pytest.mark.skipif(os.getuid() != 0, reason="only root can become another user")
def test_an_account_without_name_and_home_checks_extracts_and_runs_in_any_locale(
    source_database: Any, mysql9: Any, lockstep: Any
) -> None:
    name = source_database.name
    source_database.execute("CREATE TABLE größe (id INT PRIMARY KEY)", "INSERT INTO größe VALUES (1)")
    directory = Path(tempfile.mkdtemp())
    environ = {
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT),
        "SHOP": source_database.server.url, "COPY": mysql9.url,
        "LC_ALL": "C", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0",
    }  # fmt: skip

    def call(*arguments: str, **home: str) -> str:
        caps = ("--inh-caps=+dac_read_search", "--ambient-caps=+dac_read_search", "--clear-groups")
        account = ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", *caps]
        command = [*account, *lockstep.command(*arguments)]
        done = subprocess.run(command, capture_output=True, env=environ | home, cwd=directory, check=False)
        assert done.returncode == 0, (arguments, home, done)
        return done.stdout.decode("ascii")

    try:
        os.chown(directory, NOBODY, NOBODY)
        call("init", "shop", "--source", "env:SHOP", "--include", rf"{name}\..*", "--target", "env:COPY")
        for home in ({}, {"HOME": "/"}, {"HOME": "/nonexistent"}):
            assert "has no home that it can use" in call("check", "shop.yaml", **home)
        call("snapshot", "shop.yaml")
        call("extract", "shop.yaml")
        assert r"gr\xf6\xdfe" in call("run", "shop.yaml")
        source_database.execute("INSERT INTO größe VALUES (2)")
        pipeline = directory / "shop.yaml"
        pipeline.write_text(pipeline.read_text(encoding="utf-8") + "spark: {driver_rows: 0}\n", encoding="utf-8")
        call("run", "shop.yaml", HOME="/nonexistent")
        document = json.loads(call("stage", "ls", "shop.yaml", "--json"))
        assert [table["table"] for table in document["tables"]] == [f"{name}.größe"]
        assert mysql9.run("SELECT id FROM größe ORDER BY id", database=name) == [(1,), (2,)]
    finally:
        shutil.rmtree(directory)
        mysql9.run(f"DROP DATABASE IF EXISTS `{name}`")
