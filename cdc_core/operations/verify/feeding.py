"""Which source tables feed which tables of a target, and which tables of it cannot be compared with their sources.

It must keep true that every table of the target that a captured source table feeds, or has fed, is one or the other. A
source table that cannot be read leaves the whole target table uncompared, whatever else feeds it: that the others do
not have a row says nothing. A source table that is gone has no rows, so that what it has left at the target is surplus;
where nothing else feeds the target table, no definition says how to compare it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from cdc_core.config import MysqlTarget, Target
from cdc_core.errors import RESYNC, Refused, UsageError
from cdc_core.model.schema import TableSchema
from cdc_core.operations.verify.source_rows import SourceTables
from cdc_core.operations.verify.target_rows import TargetTables, tables_with_rows
from cdc_core.operations.verify.verify_job import VerifyJob

Feeding = Sequence[tuple[SourceTables, TableSchema]]
"""The source tables that feed one table, with their definitions before the pipeline's rules."""


@dataclass(frozen=True, slots=True)
class Fed:
    """What feeds each logical table, or why it cannot be compared. No table is in both."""

    tables: Mapping[str, Feeding]
    uncompared: Mapping[str, Refused]

    def feeding(self, table: str) -> Feeding:
        """Raises why it cannot be compared."""
        if table in self.uncompared:
            raise self.uncompared[table]
        return self.tables[table]

    @property
    def names(self) -> list[str]:
        return sorted({*self.tables, *self.uncompared})


def read_feeding(sources: Sequence[SourceTables], takes: Callable[[str], bool]) -> tuple[Fed, dict[str, str]]:
    """What feeds the logical tables that `takes` is true of, and which others had a source table that is gone."""
    tables: dict[str, list[tuple[SourceTables, TableSchema]]] = {}
    uncompared: dict[str, Refused] = {}
    gone: dict[str, str] = {}
    for source in sources:
        there = source.tables()
        for name, (schema, why) in there.items():
            for logical in filter(takes, source.capture.route(*name)):
                if schema is None:
                    uncompared.setdefault(logical, _not_read(logical, source.name, ".".join(name), why))
                else:
                    tables.setdefault(logical, []).append((source, schema))
        for name in source.gone(there):
            for logical in filter(takes, source.capture.route(*name)):
                gone.setdefault(logical, f"{'.'.join(name)} of {source.name}")
    fed = Fed({name: found for name, found in tables.items() if name not in uncompared}, uncompared)
    return fed, {name: former for name, former in gone.items() if name not in tables and name not in uncompared}


def feeding_of(job: VerifyJob, sources: Sequence[SourceTables]) -> Fed:
    """What feeds the target's tables. Raises what reaching the target raises, if a source table is gone."""
    fed, gone = read_feeding(sources, lambda logical: job.target.table(logical) is not None)
    left = _with_rows(job.target, sorted(gone)) if gone else {}
    return Fed(fed.tables, {**fed.uncompared, **{name: _gone(name, gone[name], left[name]) for name in left}})


def _with_rows(target: Target, logical: Sequence[str]) -> dict[str, str]:
    if isinstance(target, MysqlTarget):
        return tables_with_rows(target, logical)
    with TargetTables() as opened:
        catalog = opened.catalog(target)
        from cdc_core.operations.verify.lake_rows import mirrors_with_rows  # needs an extra

        return mirrors_with_rows(target, catalog, logical)


def chosen(job: VerifyJob, fed: Fed, tables: Sequence[str] | None) -> list[str]:
    if not tables:
        return fed.names
    for name in tables:
        if name not in fed.tables and name not in fed.uncompared:
            raise UsageError(
                f"No source table feeds {name!r} of the target {job.target.name!r}.",
                where="lockstep verify",
                code="usage.unknown_name",
                remedy=f"give logical tables: {', '.join(fed.names) or '(none)'}",
            )
    return list(dict.fromkeys(tables))


def _not_read(logical: str, source: str, table: str, why: str) -> Refused:
    return Refused(
        f"{logical} cannot be compared, because {table} of {source} cannot be read: {why}.",
        where=logical,
        code="verify.not_comparable",
        remedy=f"exclude the table (tables.exclude); or make it readable again, and {RESYNC}",
    )


def _gone(logical: str, former: str, place: str) -> Refused:
    return Refused(
        f"{logical} cannot be compared: {former} is gone, and {place} still has its rows.",
        where=logical,
        code="verify.source_gone",
        remedy="remove these rows, or the table, from the target; or exclude the source table (tables.exclude)",
    )
