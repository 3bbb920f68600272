"""A Python of executors that are not ours: it has none of Lockstep, and only those packages that it is given."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path, PurePosixPath

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

PACKAGES = {
    "annotated_types": "annotated-types",
    "cryptography": "cryptography",
    "great_expectations": "great-expectations",
    "numba": "numba",
    "numpy": "numpy",
    "pandas": "pandas",
    "pyarrow": "pyarrow",
    "pydantic": "pydantic",
    "pymysql": "PyMySQL",
    "yaml": "PyYAML",
}
"""What docs/spark.md lists: the modules that the jobs import on executors, and the package that has each."""


def foreign_python(folder: Path) -> Path:
    """The interpreter of an empty environment."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    return folder / "bin" / "python"


def install_what_jobs_import(folder: Path, *, without: tuple[str, ...] = ()) -> None:
    """As an operator would with pip, by links: packages of hundreds of MB are there at once."""
    install_into(site_packages(folder), without=without)


def site_packages(folder: Path) -> Path:
    return folder / f"lib/python{sys.version_info[0]}.{sys.version_info[1]}/site-packages"


def install_into(site: Path, *, without: tuple[str, ...] = ()) -> None:
    for package in _required():
        if package.metadata["Name"] not in without:
            for name in {PurePosixPath(name).parts[0] for name in _files_of(package)}:
                (site / name).symlink_to(Path(str(package.locate_file(name))))


def _required() -> list[Distribution]:
    """The installed packages that executors need, with what these require; boto3, too."""
    found: dict[str, Distribution] = {}
    pending = [*PACKAGES.values(), "boto3"]
    while pending:
        name = canonicalize_name(pending.pop())
        if name in found:
            continue
        try:
            found[name] = distribution(name)
        except PackageNotFoundError:
            continue  # optional
        for requirement in map(Requirement, found[name].requires or ()):
            if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
                pending.append(requirement.name)
    return list(found.values())


def _files_of(package: Distribution) -> Iterator[str]:
    """Their names below site-packages; not of scripts, which lie elsewhere."""
    for file in package.files or ():
        if ".." not in file.parts and "__pycache__" not in file.parts:
            yield str(file)
