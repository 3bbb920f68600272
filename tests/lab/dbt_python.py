"""A Python that has dbt with DuckDB, and what Lockstep needs beside a lake; Lockstep itself is the clone's."""

from __future__ import annotations

import hashlib
import subprocess
import sys
from pathlib import Path

from examples.sandbox.cache import cached
from tests.contract.product_source import ROOT
from tests.lab.foreign_python import foreign_python

REQUIREMENTS = ROOT / "examples" / "dbt" / "requirements.txt"
PROJECT = ROOT / "pyproject.toml"


def dbt_python() -> Path:
    """Its interpreter; installed once for each list of packages."""
    wanted = hashlib.sha256(REQUIREMENTS.read_bytes() + PROJECT.read_bytes() + sys.version.encode()).hexdigest()[:16]
    return cached(f"dbt-{wanted}", _install) / "bin" / "python"


def _install(folder: Path) -> None:
    uv = [str(Path(sys.executable).with_name("uv")), "pip", "install", "--quiet", "--python"]
    options = ["-r", str(REQUIREMENTS), "-r", str(PROJECT), "--extra", "lake"]
    subprocess.run([*uv, str(foreign_python(folder)), *options], check=True)
