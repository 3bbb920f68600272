"""What statements of a source did to the columns of its tables: targets follow, whether or not rows came since."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from cdc_core.config import Pipeline, Source
from cdc_core.meta import Meta
from cdc_core.model.run_plan import MergeTable, RunPlan
from cdc_core.model.schema import DefinedSince, TableSchema


def statements_of(meta: Meta, source: Source) -> Iterator[tuple[DefinedSince, str]]:
    """What statements did to tables that are there, in the order of the log, with each logical table."""
    tables = meta.coverages.find(source.name).tables
    for definition in meta.schemas.history(source.name):
        if definition.ts_us and not definition.gone and definition.schema.name in tables:
            yield from ((definition, logical) for logical in tables[definition.schema.name].feeds)


def renames_of(meta: Meta, pipeline: Pipeline) -> dict[str, tuple[tuple[str, str], ...]]:
    """For each logical table, the columns that got other names, (old, new), in the order of the log."""
    renames: dict[str, tuple[tuple[str, str], ...]] = {}
    for source in pipeline.sources:
        for definition, logical in statements_of(meta, source):
            renames[logical] = (*renames.get(logical, ()), *definition.renamed)
    return renames


def followed_renames(
    renames: tuple[tuple[str, str], ...], now: Sequence[TableSchema], plan: RunPlan, table: MergeTable | None
) -> tuple[tuple[str, str], ...]:
    """These renames, but for those of columns under whose former name a run has rows. now: definitions of the
    source."""
    staged = [plan.schemas[file.schema_id] for file in table.files] if table is not None else []
    left_names = _names(staged) - _names(now)
    return tuple((old, new) for old, new in renames if old.lower() not in left_names)


def _names(schemas: Iterable[TableSchema]) -> set[str]:
    return {column.name.lower() for schema in schemas for column in schema.columns}
