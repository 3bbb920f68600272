"""A lake as a source of dbt: its tables with their columns, keys and comments, and how fresh they are.

The newest cut says which tables there are, the catalog which columns they have, and the definitions of the sources what
the comments are. Types are Iceberg's: dbt shows them and does nothing with them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pyiceberg.table import Table

from cdc_core.config import IcebergTarget, Pipeline
from cdc_core.lake.catalogs import catalog_answers, identifier_named, open_catalog
from cdc_core.lake.cut_table import NAME as CUTS
from cdc_core.lake.lake_schema import CHANGES_KEY
from cdc_core.lake.lake_tables import CHANGES, changes_of, key_names, tombstones_of
from cdc_core.model.version import VERSION_COLUMN
from cdc_core.model.windows import MICROSECONDS, Windows
from cdc_core.operations.lake.cuts_at import CutMoment, cut_at
from cdc_core.operations.target_tables import source_tables
from cdc_core.stage.objects import ObjectStore
from cdc_core.targets.tables.definition_sql import Origin

_LOADED_AT = (
    "select max(committed_at) from {{{{ source('{source}', '" + CUTS + "') }}}} "
    "where mirror = '{{{{ this.schema }}}}.{{{{ this.identifier.removesuffix(\"" + CHANGES + "\") }}}}'"
)
_VERSION_COMMENT = "Lockstep's: the change that the row comes from"
_LOOKED_AT_US = range(0, 14 * 24 * 60 * 60 * MICROSECONDS, 37 * 60 * MICROSECONDS)
"""Moments of two weeks, at every minute of an hour: they find the longest pause of nights, weekends and hours."""


@dataclass(frozen=True, slots=True)
class DbtColumn:
    """comment: of the source's definition, "" for none."""

    name: str
    type: str
    comment: str = ""


@dataclass(frozen=True, slots=True)
class DbtTable:
    """name: of the mirror, in its namespace. key: names of columns."""

    name: str
    columns: tuple[DbtColumn, ...]
    key: tuple[str, ...] = ()
    comment: str = ""


@dataclass(frozen=True, slots=True)
class DbtSource:
    """window_minutes: the longest time between two runs that follow the schedule."""

    name: str
    lake: str
    namespace: str
    tables: tuple[DbtTable, ...]
    window_minutes: int

    def to_document(self) -> dict[str, Any]:
        """The contents of sources.yml."""
        config = {
            "meta": {"plugin": self.lake},  # by which dbt-duckdb finds the catalog; other adapters have one anyway
            "freshness": {
                name: {"count": windows * self.window_minutes, "period": "minute"}
                for name, windows in (("warn_after", 2), ("error_after", 4))
            },
            "loaded_at_query": _LOADED_AT.format(source=self.name),
        }
        cuts = {"name": CUTS, "description": "The snapshots of each run", "config": {"freshness": None}}
        source = {
            "name": self.name,
            "schema": self.namespace,
            "config": config,
            "tables": [*map(_described_table, self.tables), cuts],
        }
        return {"version": 2, "sources": [source]}


def dbt_source(pipeline: Pipeline, store: ObjectStore, target: IcebergTarget) -> DbtSource:
    """Raises Refused (stage.as_of) before the first cut, and what the catalog and connecting to the sources raise."""
    cut = cut_at(store, target, CutMoment())
    origins = source_tables(pipeline, only=[table.logical for table in cut.tables]).origins
    tables = []
    with open_catalog(target) as catalog, catalog_answers(target):
        for table in cut.tables:
            identifier = identifier_named(target, table.name)
            if table.snapshot is None and not catalog.table_exists(identifier):
                continue
            key = key_names(catalog.load_table(tombstones_of(identifier)))
            comment, comments = _comments(origins.get(table.logical, ()))
            tables.append(_dbt_table(catalog.load_table(identifier), key, comment, comments))
            if target.keeps_changes(table.logical) and catalog.table_exists(changes_of(identifier)):
                changes = catalog.load_table(changes_of(identifier))
                tables.append(_dbt_table(changes, CHANGES_KEY, "every change, once", comments))
    tables.sort(key=lambda table: table.name)
    name = f"{pipeline.pipeline}_{target.name}"
    return DbtSource(name, target.name, target.namespace, tuple(tables), longest_window_minutes(pipeline.windows))


def _dbt_table(table: Table, key: Sequence[str], comment: str, comments: Mapping[str, str]) -> DbtTable:
    """comments: of columns, by their names in lower case."""
    columns = (
        DbtColumn(field.name, str(field.field_type), comments.get(field.name.lower(), ""))
        for field in table.schema().fields
    )
    return DbtTable(table.name()[-1], tuple(columns), tuple(key), comment)


def _comments(origins: Iterable[Origin]) -> tuple[str, Mapping[str, str]]:
    """Of a table, and of its columns by their names in lower case. The first of several source tables that has a
    comment says what they all mean."""
    of_table, of_columns = "", {VERSION_COLUMN: _VERSION_COMMENT}
    for definition in (origin.definition for origin in origins):
        if definition is not None:
            of_table = of_table or definition.comment
            for column in definition.columns:
                if column.comment:
                    of_columns.setdefault(column.name.lower(), column.comment)
    return of_table, of_columns


def longest_window_minutes(windows: Windows) -> int:
    """The same on every day, so that the file changes only with the schedule."""
    found = map(windows.containing, _LOOKED_AT_US)
    return max(end_us - start_us for start_us, end_us in found) // (60 * MICROSECONDS)


def _described_table(table: DbtTable) -> dict[str, Any]:
    described: dict[str, Any] = {"name": table.name}
    if table.comment:
        described["description"] = _as_text(table.comment)
    if len(table.key) > 1:
        described["data_tests"] = [{"unique": {"arguments": {"column_name": _row_of(table.key)}}}]
    described["columns"] = [_described_column(column, table.key) for column in table.columns]
    return described


def _described_column(column: DbtColumn, key: Sequence[str]) -> dict[str, Any]:
    described: dict[str, Any] = {"name": column.name, "data_type": column.type}
    if not column.name.isidentifier():
        described["quote"] = True
    if column.comment:
        described["description"] = _as_text(column.comment)
    if column.name in key:
        described["data_tests"] = ["unique", "not_null"] if len(key) == 1 else ["not_null"]
    return described


def _row_of(key: Sequence[str]) -> str:
    """dbt's test of one column takes any expression. A row of the columns is exact; joined texts are not."""
    names = (column if column.isidentifier() else f"{{{{ adapter.quote({column!r}) }}}}" for column in key)
    return f"({', '.join(names)})"


def _as_text(comment: str) -> str:
    """dbt renders descriptions by Jinja."""
    for mark in ("{{", "{%", "{#"):
        comment = comment.replace(mark, f"{mark[0]}\u200b{mark[1]}")
    return comment
