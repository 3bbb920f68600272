"""The command line. Light to import: what is heavy (Arrow, numba, Spark, database drivers) loads inside commands."""

import cdc_core.cli.imports  # noqa: F401 - first, because it imports rich
from cdc_core.cli.app import main

__all__ = ["main"]
