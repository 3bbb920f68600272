"""The command line. Light to import: what is heavy (Arrow, numba, Spark, database drivers) loads inside commands."""

from cdc_core.cli.app import main

__all__ = ["main"]
