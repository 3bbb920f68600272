"""What a copy will be, before it is made: rows, bytes, chunks, and how long one reader takes, from a sample."""

from __future__ import annotations

import math
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from cdc_core import connections
from cdc_core.config import Pipeline
from cdc_core.errors import Refused
from cdc_core.extract import hosts
from cdc_core.meta import Meta
from cdc_core.model.position import Checkpoint
from cdc_core.model.schema import TableSchema
from cdc_core.results import TableReader, prepare_session
from cdc_core.results.warm import warm
from cdc_core.sink import Capture
from cdc_core.snapshot import keys
from cdc_core.snapshot.chunk_file import ChunkFile
from cdc_core.snapshot.chunks import TableSize, from_table, size_of
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
        staged = meta.checkpoint(source)
        replica = server_id.replica_host(pipeline.pipeline, source, meta.lease_identity(source))
        address, control, server = hosts.connect(config, staged, environ, replica)
        opened.callback(control.close)
        schemas = {name: table_schema(control, *name.split(".", 1)) for name in tables}
        sizes = {name: size_of(control, schema) for name, schema in schemas.items() if schema is not None}
        capture = Capture(pipeline.tables, pipeline.routes, environ, lower_case=server.lower_case)
        found: dict[str, TableEstimate] = {}
        for name, size in sizes.items():
            found[name] = _of_table(schemas[name], size, pipeline.snapshot.chunk_mib << 20)
        largest = max(
            (name for name, one in found.items() if one.chunks and sizes[name].row_bytes),
            key=lambda name: sizes[name].size_bytes,
            default=None,
        )
        if largest is None or staged is None:
            return found
        reader = connections.connect(address, where=source, read_timeout=config.read_timeout_s)
        opened.callback(reader.close)
        schema = schemas[largest]
        assert schema is not None
        bytes_s = _sampled(reader, schema, sizes[largest], capture, staged, pipeline.stage.compression_level)
        return {name: one if not one.chunks or not bytes_s else _timed(one, bytes_s) for name, one in found.items()}


def _of_table(schema: TableSchema | None, size: TableSize, chunk_bytes: int) -> TableEstimate:
    assert schema is not None
    try:
        keys.key_columns(schema)
    except Refused as error:
        return TableEstimate(size.rows, size.size_bytes, 0, refused=error.what)
    return TableEstimate(size.rows, size.size_bytes, max(1, math.ceil(size.rows * size.row_bytes / chunk_bytes)))


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
    prepare_session(reader)
    rows = max(1, SAMPLE_BYTES // size.row_bytes)
    with tempfile.TemporaryDirectory(prefix="lockstep-snapshot-") as scratch:
        began_s = time.monotonic()
        file = ChunkFile(
            open_store(Path(scratch).as_uri()), capture, schema, source="sample", number=1, epoch=1,
            low=staged.position, ts_us=staged.watermark_us, level=level, scratch=Path(scratch),
        )  # fmt: skip
        try:
            order = keys.ordered(schema)
            for batch in TableReader(reader, schema).batches(f"{from_table(schema)} ORDER BY {order} LIMIT {rows}"):
                file.add(batch)
            file.finish()
        finally:
            file.discard()
        took_s = time.monotonic() - began_s
    return file.rows * size.row_bytes / took_s
