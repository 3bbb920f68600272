"""Which source tables feed which tables of a target."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from cdc_core.errors import UsageError
from cdc_core.model.schema import TableSchema
from cdc_core.verify.job import Job
from cdc_core.verify.source_rows import SourceTables

Feeding = Sequence[tuple[SourceTables, TableSchema]]
"""The source tables that feed one table, with their definitions before the pipeline's rules."""


def feeding_of(job: Job, sources: Sequence[SourceTables]) -> dict[str, list[tuple[SourceTables, TableSchema]]]:
    """By logical table of the target: the source tables that feed it."""
    found: dict[str, list[tuple[SourceTables, TableSchema]]] = {}
    for source in sources:
        for schema in source.schemas():
            for logical in source.capture.route(schema.database, schema.table):
                if job.target.table(logical) is not None:
                    found.setdefault(logical, []).append((source, schema))
    return found


def chosen(
    job: Job, feeding: Mapping[str, list[tuple[SourceTables, TableSchema]]], tables: Sequence[str] | None
) -> list[str]:
    if not tables:
        return sorted(feeding)
    for name in tables:
        if name not in feeding:
            raise UsageError(
                f"No source table feeds a table {name!r} of the target {job.target.name!r}.",
                where="lockstep verify",
                code="verify.unknown_table",
                remedy=f"give logical tables, of: {', '.join(sorted(feeding)) or '(none)'}",
            )
    return list(dict.fromkeys(tables))
