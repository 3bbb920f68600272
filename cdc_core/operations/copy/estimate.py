"""What a copy will be, before it is made: rows and bytes by the server's estimate, and what cannot be copied."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pymysql

from cdc_core.config import Pipeline
from cdc_core.errors import Refused, TableRefused
from cdc_core.model.schema import TableSchema
from cdc_core.operations.copy.chunks import size_of
from cdc_core.operations.copy.copyable import require_copied, require_view
from cdc_core.operations.copy.read_source import read_source
from cdc_core.operations.copy.watermarks import engine_of
from cdc_core.operations.open_pipeline import OpenPipeline
from cdc_core.source.capture import Capture
from cdc_core.source.schemas.captured_definitions import table_schema


@dataclass(frozen=True, slots=True)
class TableEstimate:
    """What the server's statistics say, which may be off by half. size_bytes: as the server stores the rows. refused:
    why the table cannot be copied; "" if it can."""

    rows: int
    size_bytes: int
    refused: str = ""


def estimate(opened: OpenPipeline, source: str, tables: Sequence[str]) -> dict[str, TableEstimate]:
    """The estimate of each table that is there. Raises what connecting and reading raise."""
    with read_source(opened, source) as read_at:
        control, capture, pipeline = read_at.control, read_at.capture(), opened.pipeline
        estimates: dict[str, TableEstimate] = {}
        for name in tables:
            try:
                schema = table_schema(control, *name.split(".", 1))
            except TableRefused as error:
                estimates[name] = TableEstimate(0, 0, refused=error.what)
                continue
            if schema is not None:
                size = size_of(control, schema)
                estimates[name] = TableEstimate(
                    size.rows, size.size_bytes, _refused(control, pipeline, capture, schema)
                )
        return estimates


def _refused(control: pymysql.Connection, pipeline: Pipeline, capture: Capture, schema: TableSchema) -> str:
    """Why a copier would leave the table out; "" if it would not."""
    try:
        require_copied(pipeline, capture, schema)
        require_view(schema, engine_of(control, schema))
    except Refused as error:
        return error.what
    return ""
