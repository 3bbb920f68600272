"""What a run asks of a lake before its jobs: the tables and columns for its rows, which it makes as the rules say."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from functools import partial

from pyiceberg.catalog import Catalog

from cdc_core.config import IcebergTarget, LakeTable, Pipeline
from cdc_core.errors import LockstepError, Refused, TableMissing, combined
from cdc_core.lake import cut_table
from cdc_core.lake.catalogs import catalog_answers, identifier, name_of
from cdc_core.lake.lake_tables import create, followed, mirror_rule, opened, owner_of, required_schemas, show_schema
from cdc_core.model.run_plan import MergeTable, RunPlan
from cdc_core.operations.apply.lost_writes import require_kept
from cdc_core.operations.open_pipeline import OpenPipeline
from cdc_core.operations.renamed_columns import followed_renames, renames_of
from cdc_core.stage.unify import lake_row
from cdc_core.targets.tables.make_tables import WantedTable

log = logging.getLogger(__name__)


def lake_of(pipeline: Pipeline, name: str) -> IcebergTarget:
    target = pipeline.target(name)
    assert isinstance(target, IcebergTarget)  # callers have looked
    return target


def require_lake(ready: OpenPipeline, plan: RunPlan, name: str) -> None:
    """Asks a lake all that the jobs of the run will need, and makes the tables and columns that it lacks, as its rules
    say. Raises one error with everything that is wrong (errors.combined)."""
    target = lake_of(ready.pipeline, name)
    problems: list[LockstepError] = []
    if not plan.replay:
        try:
            require_kept(ready, name)
        except LockstepError as error:
            if error.retriable:
                raise
            problems.append(error)
    tables = [
        table
        for table in plan.merge_set(plan.target(name).merge_set).tables
        if target.table(table.table) and table.files
    ]
    renames = renames_of(ready.meta, ready.pipeline)
    catalog = ready.catalogs.of(target)
    with catalog_answers(target):
        cut_table.ensure(catalog, target, owner_of(ready.name, name))  # first of all: it says whose the namespace is
        for table in tables:
            renamed = followed_renames(renames.get(table.table, ()), plan.current_schemas(table), plan, table)
            try:
                _require_table(catalog, target, plan, table, renamed)
            except LockstepError as error:
                if error.retriable:
                    raise
                problems.append(error)
    if problems:
        raise combined(problems)


def require_following(rule: LakeTable, name: tuple[str, ...]) -> None:
    """Raises Refused (target.definition) where the rule of a mirror that lacks columns does not let a run add them."""
    if rule.on_new_column == "stop":
        raise Refused(
            f"{name_of(name)} lacks columns that the source has now.",
            where=name_of(name),
            code="target.definition",
            remedy="set on_new_column: add for the table, so that runs follow the source's columns",
        )


def follow_columns(ready: OpenPipeline, target: IcebergTarget, wanted: Mapping[str, WantedTable]) -> None:
    """Gives mirrors the columns that their source tables have now, for readers at once. Those that do not exist yet are
    made by the run that has rows of them. Raises what `followed` raises."""
    catalog = ready.catalogs.of(target)
    with catalog_answers(target):
        for logical, table in wanted.items():
            schemas, name = [origin.schema for origin in table.origins], identifier(target, logical)
            if catalog.table_exists(name):
                there = opened(catalog, name, mirror_rule(target, ready.name, logical, table.key), table.renamed)
                show_schema(followed(there, list(lake_row(logical, schemas, schemas)), table.renamed))


def _require_table(
    catalog: Catalog,
    target: IcebergTarget,
    plan: RunPlan,
    table: MergeTable,
    renamed: Sequence[tuple[str, str]],
) -> None:
    rule, name = target.table(table.table), identifier(target, table.table)
    assert rule is not None
    made, schemas = mirror_rule(target, plan.pipeline, table.table, table.key), plan.schemas_of(table)
    columns = list(lake_row(table.table, schemas, plan.current_schemas(table)))
    every = list(lake_row(table.table, schemas, None)) if made.changes else []
    open_it = partial(opened, catalog, name, made, renamed)
    try:
        there = open_it()
    except TableMissing:
        if target.on_missing_table == "stop":
            raise
        create(catalog, name, made, columns)
        log.info("created %s", name_of(name))
        there = open_it()
    if required_schemas(there, columns, renamed, every):
        require_following(rule, name)
        followed(there, columns, renamed, every)
