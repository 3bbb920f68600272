"""A Python of executors that are not ours: it has none of Lockstep, and only those packages that it is given."""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import Distribution
from pathlib import Path

from cdc_core.apply.spark_packages import files_of, required


def foreign_python(folder: Path) -> Path:
    """The interpreter of an empty environment."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    return folder / "bin" / "python"


def install_what_jobs_import(folder: Path, *, without: tuple[str, ...] = ()) -> None:
    """As an operator would with pip, by links: packages of hundreds of MB are there at once."""
    site = folder / f"lib/python{sys.version_info[0]}.{sys.version_info[1]}/site-packages"
    for one in required():
        if one.metadata["Name"] not in without:
            _link(one, site)


def _link(package: Distribution, site: Path) -> None:
    for name in {Path(name).parts[0] for name, _ in files_of(package)}:
        (site / name).symlink_to(Path(str(package.locate_file(name))))
