"""What a copy will be, before it is made: rows, bytes, chunks, and how long one reader takes, from a sample."""

from __future__ import annotations

import math
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pymysql

from cdc_core import connections
from cdc_core.config import Pipeline
from cdc_core.errors import Refused, TableRefused
from cdc_core.extract import hosts
from cdc_core.informing import informing
from cdc_core.meta import Meta
from cdc_core.model.position import Checkpoint
from cdc_core.model.schema import TableSchema
from cdc_core.results import TableReader
from cdc_core.results.warm import warm
from cdc_core.sink import Capture
from cdc_core.snapshot.chunk_file import ChunkFile
from cdc_core.snapshot.chunks import TableSize, from_table, size_of
from cdc_core.snapshot.copyable import require_copied, require_view
from cdc_core.snapshot.watermarks import engine_of
from cdc_core.source import server_id
from cdc_core.source.definitions import table_schema
from cdc_core.stage.stores import open_store

SAMPLE_BYTES = 8 << 20


@dataclass(frozen=True, slots=True)
class TableEstimate:
    """By the server's statistics, which may be off by half. size_bytes: as the server stores the rows.

    chunks: 0 for a table that cannot be copied; refused says why. seconds: for one reader, None where nothing was read.
    """

    rows: int
    size_bytes: int
    chunks: int
    seconds: float | None = None
    refused: str = ""


def estimate(
    pipeline: Pipeline, source: str, tables: Sequence[str], meta: Meta, environ: Mapping[str, str]
) -> dict[str, TableEstimate]:
    """Of each table that is there. Reads up to SAMPLE_BYTES of the largest one; nothing is written or kept.

    Raises what connecting and reading raise.
    """
    config = pipeline.source(source)
    with ExitStack() as opened:
        staged = meta.positions.checkpoint(source)
        replica = server_id.replica_host(pipeline.pipeline, source, meta.leases.identity(source))
        address, control, server = hosts.connect(config, staged, environ, replica)
        opened.callback(control.close)
        capture = Capture(pipeline.tables, pipeline.routes, environ, lower_case=server.lower_case)
        schemas: dict[str, TableSchema] = {}
        sizes: dict[str, TableSize] = {}
        found: dict[str, TableEstimate] = {}
        for name in tables:
            try:
                schema = table_schema(control, *name.split(".", 1))
            except TableRefused as error:
                found[name] = TableEstimate(0, 0, 0, refused=error.what)
                continue
            if schema is not None:
                schemas[name], sizes[name] = schema, size_of(control, schema)
                refused = _refused(control, pipeline, capture, schema)
                found[name] = _of_table(schema, sizes[name], pipeline.snapshot.chunk_mib << 20, refused)
        largest = max(
            (name for name, one in found.items() if one.chunks and sizes[name].row_bytes),
            key=lambda name: sizes[name].size_bytes,
            default=None,
        )
        if largest is None or staged is None:
            return found
        reader = connections.connect(address, where=source, read_timeout=config.read_timeout_s)
        opened.callback(reader.close)
        level = pipeline.stage.compression_level
        bytes_s = 0.0
        with informing("The time of a copy"):
            bytes_s = _sampled(reader, schemas[largest], sizes[largest], capture, staged, level)
        return {name: _timed(one, bytes_s) if one.chunks and bytes_s else one for name, one in found.items()}


def _refused(control: pymysql.Connection, pipeline: Pipeline, capture: Capture, schema: TableSchema) -> str:
    """Why a copier would leave the table out; "" if it would not."""
    try:
        require_copied(pipeline, capture, schema)
        require_view(schema, engine_of(control, schema))
    except Refused as error:
        return error.what
    return ""


def _of_table(schema: TableSchema, size: TableSize, chunk_bytes: int, refused: str) -> TableEstimate:
    """A table without a key is one chunk, whatever its size."""
    chunks = max(1, math.ceil(size.rows * size.row_bytes / chunk_bytes)) if schema.key else 1
    return TableEstimate(size.rows, size.size_bytes, 0 if refused else chunks, refused=refused)


def _timed(one: TableEstimate, bytes_s: float) -> TableEstimate:
    return TableEstimate(one.rows, one.size_bytes, one.chunks, one.size_bytes / bytes_s)


def _sampled(
    reader: connections.SafeConnection,
    schema: TableSchema,
    size: TableSize,
    capture: Capture,
    staged: Checkpoint,
    level: int,
) -> float:
    """Bytes per second, of those that the server stores: read, and written to files that are thrown away."""
    warm()
    rows = max(1, SAMPLE_BYTES // size.row_bytes)
    with tempfile.TemporaryDirectory(prefix="lockstep-snapshot-") as scratch:
        began_s = time.monotonic()
        file = ChunkFile(
            open_store(Path(scratch).as_uri()), capture, schema, source="sample", number=1, epoch=1,
            low=staged.position, ts_us=staged.watermark_us, level=level, scratch=Path(scratch),
        )  # fmt: skip
        try:
            for batch in TableReader(reader, schema).batches(f"{from_table(schema)} LIMIT {rows}"):
                file.add(batch)
            file.finish()
        finally:
            file.discard()
        took_s = time.monotonic() - began_s
    return file.rows * size.row_bytes / took_s
