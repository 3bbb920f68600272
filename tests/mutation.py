"""Do the tests notice when the code is wrong? cosmic-ray changes the core line by line, and some test must fail.

Of each package a seeded sample of all possible mutants is tried, in a copy of the repository. What survives is printed
with its difference: an equivalent change, or a test that is missing. docs/guarantees.md has the last figures.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import sqlite3
import subprocess
import sys
import tempfile
from contextlib import closing
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[1]
PACKAGES = {
    "ring": (["cdc_core/ring"], "tests/unit/ring"),
    "framing": (
        ["cdc_core/binlog/framing.py"],
        "tests/unit/source/wire/test_event_framer.py tests/unit/source/transactions/test_fast_path.py",
    ),
    "walk": (
        ["cdc_core/binlog/ordinary.py", "cdc_core/source/transactions/fast_path.py"],
        "tests/unit/source/transactions/test_fast_path.py",
    ),
    "rows": (
        ["cdc_core/binlog/scan.py", "cdc_core/binlog/image_shapes.py", "cdc_core/binlog/row_columns.py"],
        # That one is about the compiler, which is off here.
        "tests/unit/binlog --deselect tests/unit/binlog/test_warm_cold.py",
    ),
    "commit": (
        ["cdc_core/stage/manifest.py", "cdc_core/operations/extract/stager.py"],
        "tests/unit/stage/test_manifest.py tests/unit/operations/extract",
    ),
}
TOOL = [str(Path(sys.executable).with_name("uv")), "tool", "run", "--from", "cosmic-ray==8.7.0", "cosmic-ray"]
CONFIG = """\
[cosmic-ray]
module-path = {modules}
timeout = 900.0
excluded-modules = []
test-command = "{python} -m pytest -q -x --hypothesis-profile=any_failure {tests}"
[cosmic-ray.distributor]
name = "local"
"""


def mutate(package: str, sample: int, copy: Path) -> tuple[int, list[str]]:
    """Tries a sample of a package's mutants in a copy of the repository; how many, and the survivors' differences."""
    modules, tests = PACKAGES[package]
    config, session = copy / f"{package}.toml", copy / f"{package}.sqlite"
    config.write_text(CONFIG.format(modules=modules, python=sys.executable, tests=tests))
    # Kernels run as plain Python: a mutant of one would else not reach the compiled code that has it inlined.
    environ = {**os.environ, "PYTHONPATH": str(copy), "NUMBA_DISABLE_JIT": "1"}

    def run(*arguments: str) -> None:
        subprocess.run([*TOOL, *arguments], cwd=copy, env=environ, check=True)

    run("init", str(config), str(session))
    with closing(sqlite3.connect(session)) as database, database:
        jobs = sorted(
            # A `|` stands in annotations, which nobody looks at when the code runs.
            database.execute(
                "SELECT job_id, module_path, operator_name, occurrence FROM mutation_specs"
                " WHERE operator_name NOT LIKE '%BitOr%'"
            ),
            key=lambda job: job[1:],
        )
        chosen = random.Random(package).sample(jobs, min(sample, len(jobs)))
        database.execute("CREATE TEMP TABLE chosen (job_id)")
        database.executemany("INSERT INTO chosen VALUES (?)", [job[:1] for job in chosen])
        for table in ("mutation_specs", "work_items"):
            database.execute(f"DELETE FROM {table} WHERE job_id NOT IN (SELECT job_id FROM chosen)")
    run("baseline", str(config))
    run("exec", str(config), str(session))
    with closing(sqlite3.connect(session)) as database:
        found = database.execute("SELECT diff FROM work_results WHERE test_outcome NOT LIKE '%KILLED%' ORDER BY job_id")
        return len(chosen), [str(diff) for (diff,) in found]


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("packages", nargs="*", default=list(PACKAGES), help=f"of {', '.join(PACKAGES)}; default: all")
    options.add_argument("--sample", type=int, default=60, help="mutants per package (default: 60)")
    given = options.parse_args()
    with tempfile.TemporaryDirectory(prefix="lockstep-mutants-") as folder:
        copy = Path(folder) / "repository"
        shutil.copytree(REPOSITORY, copy, ignore=shutil.ignore_patterns(".venv", ".git", ".lockstep", "__pycache__"))
        for package in given.packages:
            tried, survivors = mutate(package, given.sample, copy)
            print(f"\n{package}: {tried - len(survivors)} of {tried} mutants were noticed", flush=True)
            for diff in survivors:
                print(diff, flush=True)


if __name__ == "__main__":
    main()
