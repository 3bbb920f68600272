"""What the documents ask of an installed user: the DAG files, Spark's jars, and a word before the first wait."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from cdc_core.apply.jobs import s3_jars

ROOT = Path(__file__).parents[2]


def test_the_printed_files_are_the_dag_files_of_the_repository(lockstep: Any) -> None:
    for name, options in (("lockstep_pipelines.py", []), ("lockstep_pipeline_errors.py", ["--import-errors"])):
        text = (ROOT / "dags" / name).read_text(encoding="utf-8")
        assert lockstep("airflow", "dags", *options).document == {"file": name, "text": text}
        command = lockstep.command("airflow", "dags", *options)
        done = subprocess.run(command, capture_output=True, text=True, check=True, env=dict(lockstep.environment))
        assert done.stdout == text


def test_jars_that_are_there_are_not_fetched_again(lockstep: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    lockstep.environ["LOCKSTEP_CACHE"] = str(lockstep.directory / "cache")
    monkeypatch.setenv("LOCKSTEP_CACHE", lockstep.environ["LOCKSTEP_CACHE"])
    s3_jars().mkdir(parents=True)
    (s3_jars() / "a.jar").touch()
    found = lockstep("spark", "fetch-jars").document
    assert found == {"folder": str(s3_jars()), "jars": ["a.jar"], "fetched": False}


def test_jars_that_cannot_be_fetched_are_an_error_that_leaves_nothing(lockstep: Any) -> None:
    cache = lockstep.directory / "cache"
    lockstep.environ |= {"LOCKSTEP_CACHE": str(cache), "JAVA_HOME": "/nowhere"}
    assert lockstep("spark", "fetch-jars", code=3).error["code"] == "spark.no_java"
    del lockstep.environ["JAVA_HOME"]
    # A proxy that refuses stands for a machine without the network.
    lockstep.environ["JAVA_TOOL_OPTIONS"] = " ".join(
        f"-D{kind}.proxyHost=127.0.0.1 -D{kind}.proxyPort=9" for kind in ("http", "https")
    )
    assert lockstep("spark", "fetch-jars", code=75).error["code"] == "spark.fetch"
    assert [path for path in cache.rglob("*") if path.is_file()] == []
    (lockstep.directory / "file").touch()
    lockstep.environ["LOCKSTEP_CACHE"] = str(lockstep.directory / "file")
    assert lockstep("spark", "fetch-jars", code=75).error["code"] == "spark.fetch"


@pytest.mark.matrix
def test_jars_are_fetched_once_and_are_those_that_runs_look_for(lockstep: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    lockstep.environ["LOCKSTEP_CACHE"] = str(lockstep.directory / "cache")
    monkeypatch.setenv("LOCKSTEP_CACHE", lockstep.environ["LOCKSTEP_CACHE"])
    first, second = (lockstep("spark", "fetch-jars").document for _ in range(2))
    assert (first["fetched"], second["fetched"]) == (True, False)
    assert first["jars"] == second["jars"] == sorted(path.name for path in s3_jars().glob("*.jar"))
    assert any(name.startswith("hadoop-aws-") for name in first["jars"])
    assert [path.name for path in s3_jars().parent.iterdir()] == [s3_jars().name]
    shutil.rmtree(lockstep.directory / "cache")


@pytest.mark.matrix
def test_the_first_extract_says_that_it_compiles_and_the_second_does_not(source_database: Any, lockstep: Any) -> None:
    source_database.execute("CREATE TABLE orders (id INT PRIMARY KEY)")
    lockstep.environ["SHOP"] = source_database.server.url
    lockstep("init", "shop", "--source", "env:SHOP", "--include", rf"{source_database.name}\..*")
    lockstep.environ["NUMBA_CACHE_DIR"] = str(lockstep.directory / "kernels")
    said = [
        subprocess.run(
            lockstep.command("extract", "shop.yaml", "--json"),
            capture_output=True, text=True, check=True, env=dict(lockstep.environment), cwd=lockstep.directory,
        ).stderr
        for _ in range(2)
    ]  # fmt: skip
    assert ["Compiling the decoder" in text for text in said] == [True, False]
