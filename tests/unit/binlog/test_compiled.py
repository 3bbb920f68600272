"""What is compiled on disk is used only as long as every source that went into it is the same: an upgrade of Lockstep
in place leaves it there."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

from cdc_core.binlog import compiled

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[3]
KERNEL = """
from cdc_core.binlog.compiled import inlined, kernel
from product import (  # on several lines
    sizes,
)
from product.parts import {name}, added
FACTOR = sizes.FACTOR

@kernel
def price(order):
    return added(order) * FACTOR

@kernel
def least(values):
    found = values[0]
    for value in values:
        found = min(found, value)
    return found
"""
PARTS = """
from typing import NamedTuple
from cdc_core.binlog.compiled import inlined

class {name}(NamedTuple):
    count: int

@inlined
def added(order):
    return order.count + {more}
"""
PROGRAM = """
from product import kernels
from product.parts import {name}
print(kernels.price({name}(3)), sum(kernels.price.stats.cache_misses.values()))
"""


AFTER_A_CACHED_ONE = """
import numpy as np
from product import kernels
from product.parts import {name}
print(kernels.price({name}(3)), sum(kernels.price.stats.cache_misses.values()))
print(kernels.least(np.array([3.0, 1.0, 2.0])), sum(kernels.least.stats.cache_misses.values()))
"""


@pytest.fixture
def product(tmp_path: Path) -> Path:
    (tmp_path / "product").mkdir()
    (tmp_path / "product/__init__.py").touch()
    return tmp_path


def priced(product: Path, name: str = "Order", more: int = 1, factor: int = 10, program: str = PROGRAM) -> str:
    """What the program prints with these sources: the kernel's answer, and how often it was compiled."""
    texts = {
        "sizes": f"FACTOR = {factor}",
        "parts": PARTS.format(name=name, more=more),
        "kernels": KERNEL.format(name=name),
    }
    for module, text in texts.items():
        (product / "product" / f"{module}.py").write_text(text)
    environ = {**os.environ, "PYTHONPATH": f"{product}:{ROOT}", "PYTHONDONTWRITEBYTECODE": "1"}
    environ.pop("NUMBA_CACHE_DIR", None)
    command = [sys.executable, "-c", program.format(name=name)]
    return subprocess.run(command, capture_output=True, text=True, check=True, env=environ).stdout.strip()


def test_a_kernel_is_compiled_again_when_code_or_a_constant_of_another_module_changed(product: Path) -> None:
    assert priced(product) == "40 1"
    assert priced(product) == "40 0"
    assert priced(product, more=2) == "50 1"
    assert priced(product, more=2, factor=7) == "35 1"
    assert priced(product) == "40 0"


def test_a_kernel_is_compiled_in_a_process_that_has_loaded_another_from_disk(product: Path) -> None:
    """Loading leaves out what numba imports to compile; compiling finds it."""
    assert priced(product) == "40 1"
    assert priced(product, program=AFTER_A_CACHED_ONE) == "40 0\n1.0 1"
    assert priced(product, program=AFTER_A_CACHED_ONE) == "40 0\n1.0 0"


def test_a_named_tuple_may_get_another_name(product: Path) -> None:
    assert priced(product, name="Order") == "40 1"
    assert priced(product, name="Basket") == "40 1"


def _imports(file: Path) -> set[Path]:
    """Modules of this repository that a module imports, by Python's own parser."""
    found: set[Path] = set()
    for node in ast.walk(ast.parse(file.read_text())):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [str(node.module), *(f"{node.module}.{alias.name}" for alias in node.names)]
        for name in names:
            path = ROOT.joinpath(*name.split("."))
            found |= {candidate for candidate in (path.with_suffix(".py"), path / "__init__.py") if candidate.is_file()}
    return found


def test_no_import_is_overlooked() -> None:
    for file in (ROOT / "cdc_core").rglob("*.py"):
        assert set(compiled._imported(file, ROOT)) >= _imports(file), file
