"""A private DuckDB, which spills to disk and knows no other file, and its names and texts in SQL."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager

import duckdb


@contextmanager
def scratch_duckdb() -> Iterator[duckdb.DuckDBPyConnection]:
    """An in-memory database that spills to a temporary directory and never reaches for the network."""
    with tempfile.TemporaryDirectory(prefix="lockstep-") as scratch:
        connection = duckdb.connect(
            config={
                "temp_directory": scratch,
                "autoinstall_known_extensions": False,
                "autoload_known_extensions": False,
                "preserve_insertion_order": False,
                "allow_persistent_secrets": False,
            }
        )
        try:
            connection.execute("SET python_enable_replacements = false")  # a table is not a variable of ours
            connection.execute("SET TimeZone = 'UTC'")
            yield connection
        finally:
            connection.close()


def quoted(name: str) -> str:
    """A SQL identifier."""
    return '"' + name.replace('"', '""') + '"'


def text(value: str) -> str:
    """A SQL string."""
    return "'" + value.replace("'", "''") + "'"
