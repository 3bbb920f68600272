"""The heavy work between staged files and targets, on Spark: one small entry point per task of a run."""

from typing import Any
from zipimport import zipimporter

_loader: Any = __spec__.loader if __spec__ else None
if isinstance(_loader, zipimporter):  # on an executor (shipped_code.py)
    # Before each task, Spark has Python forget what it knows of places to import from. The zip never changes, and its
    # directory would be read anew for each package in it: a quarter of what a worker did in a small run.
    zipimporter.invalidate_caches = lambda importer: None  # type: ignore[assignment, method-assign]
