"""Peers that are programs of Python: each in an environment of its own, because none is a dependency of Lockstep."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from examples.sandbox.cache import cached

RIVET_VERSION, DLT_VERSION = "0.32.2", "1.31.0"


def rivet() -> Path | None:
    """The program."""
    found = _environment(f"rivet-{RIVET_VERSION}", f"rivet-cli=={RIVET_VERSION}")
    return None if found is None else found / "rivet"


def python_with_dlt() -> Path | None:
    found = _environment(f"dlt-{DLT_VERSION}", f"dlt[filesystem,pyiceberg]=={DLT_VERSION}", "pyarrow")
    return None if found is None else found / "python"


def _environment(name: str, *packages: str) -> Path | None:
    """The folder with the programs of an environment that has these packages; None, said on stderr, if it cannot be
    had. name: of the peer with its version."""

    def install(into: Path) -> None:
        uv = Path(sys.executable).parent / "uv"
        subprocess.run([uv, "venv", "--quiet", "--relocatable", into / "venv"], check=True)
        python = into / "venv" / "bin" / "python"
        subprocess.run([uv, "pip", "install", "--quiet", "--python", python, *packages], check=True)

    try:
        return cached(name, install) / "venv" / "bin"
    except (OSError, subprocess.CalledProcessError) as error:
        print(f"{name} is left out: {error}", file=sys.stderr)
        return None
