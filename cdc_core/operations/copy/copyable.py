"""Which tables a copy refuses before it reads a row: by their definition, and by the pipeline's rules."""

from __future__ import annotations

from cdc_core.config import Pipeline
from cdc_core.model.schema import TableSchema
from cdc_core.model.staged_columns import require_unreserved
from cdc_core.operations.copy import key_ranges
from cdc_core.source.capture import Capture


def require_copied(pipeline: Pipeline, capture: Capture, schema: TableSchema) -> None:
    """Raises Refused (snapshot.not_copyable, source.unsupported_table)."""
    if schema.key:
        key_ranges.key_columns(schema)
    require_unreserved(schema)
    require_alone(pipeline, capture, schema)
    require_ages(pipeline, capture, schema)


def require_alone(pipeline: Pipeline, capture: Capture, schema: TableSchema) -> None:
    """A copy of rows without a key replaces all rows of the target's table. Raises Refused (snapshot.not_copyable)."""
    for logical in () if schema.key else capture.route(schema.database, schema.table):
        fed = any(target.table(logical) is not None for target in pipeline.targets)
        if fed and not pipeline.feeds_alone(schema.name, logical):
            raise key_ranges.not_copyable(
                schema.name,
                f"{schema.name} has no key, and other tables may feed {logical} too, so Lockstep cannot know which "
                "rows a copy must replace.",
                "give the table a primary key, or route it to a logical table of its own",
            )


def require_ages(pipeline: Pipeline, capture: Capture, schema: TableSchema) -> None:
    """Where rows of several tables count as one, the newest wins; how old a copied row is, nothing tells.

    Raises Refused (snapshot.not_copyable).
    """
    for logical in capture.route(schema.database, schema.table):
        for target in pipeline.targets:
            if pipeline.counts_newest(target.name, logical, schema.name):
                raise key_ranges.not_copyable(
                    f"targets.{target.name}.tables.{logical}.shared_keys",
                    f"Rows of several tables count as one row of {logical}, the newest change first, and Lockstep "
                    f"cannot know when a copied row of {schema.name} last changed.",
                    "leave out shared_keys if the tables share no keys",
                )
