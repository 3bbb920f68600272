"""What a command imports before it does something: most of the time of a command that has little to do."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.conftest import SourceDatabase
from tests.lab.pipeline_file import write_pipeline

UNUSED = (
    "airflow", "alembic", "boto3", "duckdb", "great_expectations", "numba.np.linalg", "pandas", "pyspark",
    "scipy.linalg",
)  # fmt: skip
"""Modules that take long to import and that an extract does not need."""
PROGRAM = f"""
import sys
sys.argv = ["lockstep", "extract", sys.argv[1], "--json"]
from cdc_core.cli import main
try:
    main()
except SystemExit as left:
    assert left.code == 0, left.code
print("LOADED", *(name for name in {UNUSED!r} if name in sys.modules))
"""


def loaded(pipeline: Path, url: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(pipeline)],
        env={**os.environ, "SOURCE": url}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()[-1]


def test_an_extract_imports_only_what_it_needs(source_database: SourceDatabase, tmp_path: Path) -> None:
    source_database.execute("CREATE TABLE a (id INT PRIMARY KEY, name VARCHAR(20))")
    pipeline = write_pipeline(tmp_path, source_database.name, source="start: latest")
    url = source_database.server.url
    assert loaded(pipeline, url) == "LOADED", "the first one makes the meta database"
    source_database.execute("INSERT INTO a VALUES (1, 'one'), (2, 'two')")
    assert loaded(pipeline, url) == "LOADED", "two rows to read"
