"""The code that travels to executors: the same for the same files, importable from its zip, and compiled once."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest

from spark_jobs.shipped_code import code_archive

IMPORTS = (
    "import cdc_core.targets.writing.row_writer, spark_jobs.filter, spark_jobs.write, spark_jobs.merge; "
    "import cdc_core.stage.s3; "
    "print(cdc_core.__file__)"
)


def python(archive: Path, home: Path, code: str) -> str:
    """What another Python prints that has the zip, and the packages of this one, but nothing else of Lockstep."""
    environ = {
        **os.environ, "PYTHONPATH": f"{archive}:{sysconfig.get_path('purelib')}", "HOME": str(home),
        "PYTHONSAFEPATH": "1",
    }  # fmt: skip
    environ.pop("NUMBA_CACHE_DIR", None)
    done = subprocess.run([sys.executable, "-S", "-c", code], env=environ, capture_output=True, text=True, cwd=home)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_the_zip_has_the_code_and_its_data_and_is_imported_from(tmp_path: Path) -> None:
    archive = code_archive()
    with zipfile.ZipFile(archive) as files:
        names = set(files.namelist())
    assert {"cdc_core/targets/writing/row_writer.py", "spark_jobs/write.py", "cdc_core/binlog/data/wide.npz"} <= names
    assert not any("__pycache__" in name for name in names)
    place = python(archive, tmp_path, IMPORTS)
    assert place.startswith(str(archive))


@pytest.mark.matrix
def test_kernels_in_the_zip_are_kept_for_the_next_application_wherever_that_has_the_zip(tmp_path: Path) -> None:
    """A kernel takes seconds to compile, and each application has the zip at another path."""
    home = tmp_path / "home"
    home.mkdir()
    code = (
        "import cdc_core.results.warm_reader as w; w.warm()\n"
        "found = [f for _, f in w.kernels()]\n"
        "print(sum(sum(f.stats.cache_hits.values()) for f in found), "
        "sum(sum(f.stats.cache_misses.values()) for f in found))"
    )
    counts = []
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
        copied = tmp_path / name / code_archive().name
        copied.write_bytes(code_archive().read_bytes())
        counts.append(tuple(int(text) for text in python(copied, home, code).split()))
    assert counts[0][1] > 0
    assert counts[1][0] > 0
    assert counts[1][1] == 0


def test_code_in_the_zip_runs_where_nothing_can_be_kept(tmp_path: Path) -> None:
    environ = {"PYTHONPATH": f"{code_archive()}:{sysconfig.get_path('purelib')}", "HOME": "/dev/null/none"}
    done = subprocess.run(
        [sys.executable, "-S", "-c", "import cdc_core.results.table_reader"],
        env=environ,
        capture_output=True,
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr
