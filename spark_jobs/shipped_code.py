"""Lockstep's own code for Spark's executors: a zip of the packages that this driver runs.

It is added to each session, so that executors need nothing of Lockstep installed, and have exactly the driver's code: a
zip on a worker's `sys.path` comes before its installed packages. What the code imports from others must be there. The
same files make the same zip, so that kernels which an executor has compiled serve later sessions
(cdc_core/binlog/compiled.py).
"""

from __future__ import annotations

import atexit
import shutil
import tempfile
import zipfile
from functools import cache
from importlib import resources
from pathlib import Path


@cache
def code_archive() -> Path:
    """The zip, in a folder that is removed when this process ends."""
    folder = Path(tempfile.mkdtemp(prefix="lockstep-code-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    made = folder / "lockstep-code.zip"
    with zipfile.ZipFile(made, "w", zipfile.ZIP_DEFLATED, strict_timestamps=False) as archive:
        for package in ("cdc_core", "spark_jobs", "lockstep_expectations"):
            root = Path(str(resources.files(package)))
            for path in sorted(root.rglob("*")):
                if path.is_file() and "__pycache__" not in path.parts:
                    archive.write(path, path.relative_to(root.parent))
    return made
