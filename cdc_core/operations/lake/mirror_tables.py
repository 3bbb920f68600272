"""The tables of a lake, made and looked at for a person: `target create` and `check`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial

from pyiceberg.table import Table

from cdc_core.config import IcebergTarget, LakeTable, Pipeline
from cdc_core.errors import ColumnsMissing, LockstepError, TableMissing
from cdc_core.lake import cut_table
from cdc_core.lake.catalogs import catalog_answers, identifier, name_of, open_catalog
from cdc_core.lake.lake_tables import create, mirror_rule, opened, owner_of, required_schemas
from cdc_core.lake.publication import publishes_together
from cdc_core.lake.snapshots import head, said
from cdc_core.model.readable import counted, size
from cdc_core.model.schema import TableSchema
from cdc_core.operations.apply.table_rules import key_of
from cdc_core.operations.check.findings import Findings
from cdc_core.operations.lake.lake_ready import require_following
from cdc_core.operations.open_pipeline import OpenCatalogs
from cdc_core.stage.unify import lake_row
from cdc_core.targets.tables.make_tables import MadeTable


def create_mirrors(
    pipeline: Pipeline, target: IcebergTarget, tables: Mapping[str, Sequence[TableSchema]], *, dry: bool
) -> list[MadeTable]:
    """Makes the tables of a lake for the captured tables that it takes, by their definitions. Errors of single tables
    are in the results."""
    made: list[MadeTable] = []
    with open_catalog(target) as catalog:
        if not dry:
            with catalog_answers(target):
                cut_table.ensure(catalog, target, owner_of(pipeline.pipeline, target.name))
        for logical, schemas in sorted(tables.items()):
            if target.table(logical) is None:
                continue
            name = identifier(target, logical)
            try:
                with catalog_answers(target):
                    key, columns = key_of(target, logical, schemas), list(lake_row(logical, schemas, schemas))
                    state = "exists" if catalog.table_exists(name) else "missing"
                    if not dry:
                        rule = mirror_rule(target, pipeline.pipeline, logical, key)
                        new = create(catalog, name, rule, columns)
                        state = "created" if new else "exists"
                        with suppress(ColumnsMissing):  # the next run follows them, or says why not
                            opened(catalog, name, rule)
                made.append(MadeTable(logical, name_of(name), state))
            except LockstepError as error:
                made.append(MadeTable(logical, name_of(name), "missing", error=error))
    return made


def _grown(changes: Table) -> str:
    snapshot = head(changes)
    rows, deleted, bytes_ = (
        int(said(snapshot, name) or 0) if snapshot is not None else 0
        for name in ("total-records", "total-position-deletes", "total-files-size")
    )
    return f"{name_of(changes.name())} has {counted(rows - deleted, 'change')} in {size(bytes_)}"


def check_lake(
    pipeline: Pipeline,
    target: IcebergTarget,
    logical: Mapping[str, list[TableSchema]],
    findings: Findings,
    catalogs: OpenCatalogs,
) -> None:
    """logical: the captured tables of each logical table."""
    subject, owner = f"target {target.name}", owner_of(pipeline.pipeline, target.name)
    catalog = findings.attempt(
        f"{subject}: catalog",
        partial(catalogs.of, target),
        lambda opened_catalog: f"it publishes {publishes_together(opened_catalog)}",
    )
    if catalog is None:
        return

    def whose() -> None:
        with catalog_answers(target):
            cut_table.require_free(catalog, target, owner)

    findings.attempt(f"{subject}: namespace", whose)

    def look(name: str, rule: LakeTable, schemas: Sequence[TableSchema]) -> str:
        key, columns = key_of(target, name, schemas), list(lake_row(name, schemas, schemas))
        with catalog_answers(target):
            try:
                there = opened(catalog, identifier(target, name), mirror_rule(target, pipeline.pipeline, name, key))
            except TableMissing:
                if target.on_missing_table == "stop":
                    raise
                return "a table to create with the next run"
            except ColumnsMissing:
                require_following(rule, identifier(target, name))
                return "a key to follow with the next run, if its column was renamed"
            there.live()
            new = required_schemas(there, columns)
            if new:
                require_following(rule, identifier(target, name))
        found = "columns to follow with the next run" if new else "with the columns and key of the source"
        return found if there.changes is None else f"{found}; {_grown(there.changes)}"

    for name, schemas in logical.items():
        if (rule := target.table(name)) is not None:
            findings.attempt(f"{subject}: {name}", partial(look, name, rule, schemas), lambda said: said)
