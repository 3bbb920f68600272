"""Lockstep's own code for Spark's executors: a zip of the packages that this driver runs.

It travels with each application, so that executors need nothing of Lockstep installed, and have exactly the driver's
code: a zip on a worker's `sys.path` comes before its installed packages. Its name has a digest of its content, which
tells an executor's code from the driver's. What the code imports from others must be there
(cdc_core/apply/spark_packages.py).
"""

from __future__ import annotations

import atexit
import hashlib
import shutil
import tempfile
import zipfile
from collections.abc import Iterator, Mapping
from functools import cache
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path

PACKAGES = ("cdc_core", "spark_jobs")
PREFIX = "lockstep-"
_EPOCH = (1980, 1, 1, 0, 0, 0)
"""The same files make the same zip."""


@cache
def code_archive() -> Path:
    """The zip, in a folder that is removed when this process ends."""
    files = dict(_files())
    folder = Path(tempfile.mkdtemp(prefix="lockstep-code-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    made = folder / f"{PREFIX}{_digest(files)}.zip"
    with zipfile.ZipFile(made, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files.items():
            archive.writestr(zipfile.ZipInfo(name, _EPOCH), content, zipfile.ZIP_DEFLATED)
    return made


def digest_in(path: str) -> str:
    """The digest in the path of a module that was imported from such a zip; "" for any other."""
    for part in Path(path).parts:
        if part.startswith(PREFIX) and part.endswith(".zip"):
            return part.removeprefix(PREFIX).removesuffix(".zip")
    return ""


def _digest(files: Mapping[str, bytes]) -> str:
    digest = hashlib.sha256()
    for name, content in files.items():
        digest.update(f"{name} {len(content)}\n".encode())
        digest.update(content)
    return digest.hexdigest()[:16]


def _files() -> Iterator[tuple[str, bytes]]:
    """The name in the zip and the content of each file."""
    for package in PACKAGES:
        yield from _below(resources.files(package), package)


def _below(folder: Traversable, name: str) -> Iterator[tuple[str, bytes]]:
    for one in sorted(folder.iterdir(), key=lambda entry: entry.name):
        if one.is_dir():
            if one.name != "__pycache__":
                yield from _below(one, f"{name}/{one.name}")
        else:
            yield f"{name}/{one.name}", one.read_bytes()
