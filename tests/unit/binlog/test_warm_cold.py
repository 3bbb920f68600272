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


DECODING = """
from cdc_core.binlog import warm_kernels
from cdc_core.results import warm_reader

def compiled():
    both = (*warm_kernels.kernels(), *warm_reader.kernels())
    return {name: len(kernel.signatures) for name, kernel in both if kernel.signatures}

warm_kernels.warm()
warm_reader.warm()
before = compiled()
from tests.unit.binlog.test_captured_logs import rows
from tests.unit.results import test_answer
from tests.unit.source.transactions import test_fast_path
for server in ("mysql", "mariadb"):
    for table in ("t", "j"):
        rows(server, table)
test_fast_path.test_once_its_maps_are_known_an_ordinary_log_takes_the_fast_path(False, False)
test_answer.test_numbers_of_packets_start_over_after_255()
assert before == compiled(), (before, compiled())
assert sum(before.values()) >= 14, before
assert "row_packets.locate" in before, before
"""


def test_after_warming_nothing_is_left_to_compile() -> None:
    """A decode of both captured logs, the fast path and answers of servers compile no kernel that warm() did not."""
    done = subprocess.run([sys.executable, "-c", DECODING], capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.returncode == 0, done.stderr
