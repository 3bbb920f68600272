"""Whether kernels will have to be compiled is known before anything is decoded, and cheaply."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]
PROGRAM = """
from cdc_core.binlog.warm_kernels import is_cold, kernels
print(is_cold(), any(kernel.stats.cache_misses for _, kernel in kernels()))
"""


def asked(cache: Path | None) -> str:
    environ = {**os.environ, "PYTHONPATH": str(ROOT)} | ({} if cache is None else {"NUMBA_CACHE_DIR": str(cache)})
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True, env=environ)
    return done.stdout.strip()


def test_an_empty_cache_is_known_to_be_cold_and_asking_compiles_nothing(tmp_path: Path) -> None:
    assert asked(tmp_path) == "True False"


def test_after_a_warming_it_is_not_cold_in_a_new_process_either() -> None:
    subprocess.run([sys.executable, "-m", "cdc_core.binlog.warm_kernels"], check=True, capture_output=True, cwd=ROOT)
    assert asked(None) == "False False"
