"""The staged files of one table as DuckDB reads them: local, and grouped by definition.

Files in a bucket are fetched into a temporary directory, which goes with the context; those of a directory are read in
place. No file is listed: the manifests name them.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import duckdb

from cdc_core.model.batch import Part
from cdc_core.model.schema import TableSchema
from cdc_core.stage.changes_sql import FileGroup
from cdc_core.stage.horizon import removed
from cdc_core.stage.intact import fetch, require_intact
from cdc_core.stage.objects import ObjectStore
from cdc_core.stage.removed import unless_removed
from cdc_core.stage.table_files import TableFiles, begins_of, end_seq, later_places


@contextmanager
def duckdb_of_files() -> Iterator[duckdb.DuckDBPyConnection]:
    """A private in-memory database that spills to a temporary directory and never reaches for the network."""
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


@contextmanager
def local_files(store: ObjectStore, files: TableFiles) -> Iterator[list[FileGroup]]:
    """The files are local as long as the context lasts. Raises DataAtRisk (stage.damaged)."""
    as_of, later = files.as_of, later_places(files.manifests, files.as_of)
    with tempfile.TemporaryDirectory(prefix="lockstep-") as scratch:
        groups: dict[tuple[str, str], tuple[TableSchema, list[str]]] = {}
        in_place: list[Part] = []
        with unless_removed(store, begins_of(files.manifests), [one.part.path for one in files.parts]):
            for number, one in enumerate(files.parts):
                local = store.local_path(one.part.path)
                if local is None:
                    local = Path(scratch) / f"{number}.parquet"
                    fetch(store, one.part, local)
                else:
                    in_place.append(one.part)
                condition = "true" if as_of is None else as_of.condition_of(end_seq(one, later))
                groups.setdefault((one.schema.id, condition), (one.schema, []))[1].append(str(local))
            require_intact(store, in_place)
        yield [FileGroup(schema, tuple(paths), condition) for (_, condition), (schema, paths) in groups.items()]


def require_there(files: Sequence[str]) -> None:
    """Raises RetryLater (stage.removed) for a file that DuckDB did not find because it was removed under the reader."""
    for file in files:
        if not os.path.exists(file):
            raise removed("it is gone.", where=file)
