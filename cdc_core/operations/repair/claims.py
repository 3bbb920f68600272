"""Claims by key: rows looked up in the source, and staged once the chain has passed the look-up.

All keys of a statement are read in one view between a `low` and a `high`, as a chunk is. A key that no source table of
the logical table has becomes a delete in each of them. It is made from the target's own row, which was found by the
same condition: what a condition does not find anywhere is never deleted. A claim that the log has overtaken (the table
was created, truncated or changed without row events since `low`, or the server is another one) is not staged; the next
attempt reads it again.
"""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from cdc_core.errors import Refused, TableUnready
from cdc_core.meta import Lease, ReadChunk
from cdc_core.model.batch import CopiedChunk, Manifest
from cdc_core.model.block import TableRows
from cdc_core.model.schema import TableSchema
from cdc_core.model.version import Version, encode
from cdc_core.operations.copy.chunk_file import ChunkFiles
from cdc_core.operations.copy.chunks import chunk_rows
from cdc_core.operations.copy.copier import copier_lease
from cdc_core.operations.copy.staging import Claims, Staged, finish_decided, stage_claims
from cdc_core.operations.extract.side_by_side import extract_up_to
from cdc_core.operations.open_pipeline import OpenPipeline
from cdc_core.operations.verify import lookup
from cdc_core.operations.verify.canonical import row_texts
from cdc_core.operations.verify.feeding import Feeding
from cdc_core.operations.verify.source_rows import Read, SourceTables
from cdc_core.operations.verify.verify_job import VerifyJob
from cdc_core.source.capture import Capture

log = logging.getLogger(__name__)


Gone = Callable[[Sequence[str], TableSchema], tuple[pa.RecordBatch | None, list[str]]]
"""Takes keys that no source table has, and a source's definition after the pipeline's rules. Returns the keys of which
deletes are staged, as values of the definition (the columns of its key, and `_cdc_literal`), and their texts."""


@dataclass(frozen=True, slots=True)
class WantedKeys:
    """Keys of one logical table, texts of `row_texts`. key: the names of its columns. errors: as in row_texts. feeding:
    its source tables, with their definitions before the pipeline's rules. shards: says to which ones rows belong."""

    logical: str
    key: tuple[str, ...]
    keys: Sequence[str]
    feeding: Feeding
    gone: Gone
    errors: frozenset[str] = frozenset()
    shards: Callable[[pa.RecordBatch], npt.NDArray[np.int64]] = lambda rows: np.zeros(rows.num_rows, np.int64)


@dataclass(frozen=True, slots=True)
class Claimed:
    """shard: to which the row belongs; -1 for a deleted one. version: nothing that the claim says is newer."""

    shard: int
    version: bytes


@dataclass(slots=True)
class _Looked:
    """What was found in one source table for some keys. shards: by key, the shard that the row belongs to."""

    source: SourceTables
    schema: TableSchema
    watermark_us: int
    read: Read
    rows: list[TableRows]
    shards: dict[str, int]

    @property
    def version(self) -> bytes:
        return encode(Version(self.watermark_us, self.read.low.seq - 1, (1 << 63) - 1, self.source.name))


@dataclass(frozen=True, slots=True)
class Made:
    """What was staged. claimed: by logical table and key."""

    batches: tuple[Manifest, ...]
    claimed: Mapping[str, Mapping[str, Claimed]]

    def count(self, *, deleted: bool) -> int:
        return sum((key.shard < 0) == deleted for keys in self.claimed.values() for key in keys.values())


def finish_former(opened: OpenPipeline, source: str) -> None:
    """Stages what a killed process had decided. Raises RetryLater (lease.held)."""
    if opened.meta.copied.decided(source):
        with copier_lease(opened, source) as lease:
            finish_decided(opened.meta, opened.store, source, lease)


def claim(job: VerifyJob, wanted: Sequence[WantedKeys], leases: Mapping[str, Lease], *, queried: bool = False) -> Made:
    """Looks the keys up and stages what is found. leases: the copier's, by source. queried: by a reverse query.

    Raises Refused (repair.copy_instead), RetryLater (verify.unsettled, table.redefined, stage.behind), and what
    reading, the store and meta raise. A repeated call stages the rows again, which changes nothing.
    """
    claimed: dict[str, dict[str, Claimed]] = {table.logical: {} for table in wanted}
    batches: tuple[Manifest, ...] = ()
    read: dict[str, list[Claims]] = {}
    tables = {source.name: source for table in wanted for source, _ in table.feeding}
    with tempfile.TemporaryDirectory(prefix="lockstep-repair-") as scratch:
        for table in wanted:
            of_table = claimed[table.logical]
            for name, claims in _read(job, table, leases, Path(scratch), of_table, queried=queried):
                read.setdefault(name, []).append(claims)
        for name, claims_of_source in sorted(read.items()):
            staged = _staged(job, tables[name], claims_of_source, leases[name])
            for dropped, why in staged.dropped:
                raise TableUnready(
                    f"The log overtook the rows of {dropped} while they were looked up: {why}.",
                    where=dropped,
                    code="verify.unsettled",
                    remedy="try again; if the table's changes are not captured, or its copy is due, copy it: "
                    "`lockstep snapshot PIPELINE TABLE`",
                )
            batches += staged.batches
    return Made(batches, claimed)


def _staged(job: VerifyJob, tables: SourceTables, claims: Sequence[Claims], lease: Lease) -> Staged:
    """Raises RetryLater (stage.behind)."""
    source = tables.name
    capture = Capture(job.pipeline.tables, job.pipeline.routes)
    high = max(chunk.chunk.high for of_table in claims for chunk in of_table.chunks)
    extract_up_to(job.opened, source, high, job.wait_s, where=source)
    return stage_claims(job.opened, source, lease, claims, capture=capture, current=tables.has)


def _read(
    job: VerifyJob,
    wanted: WantedKeys,
    leases: Mapping[str, Lease],
    scratch: Path,
    claimed: dict[str, Claimed],
    *,
    queried: bool,
) -> Iterator[tuple[str, Claims]]:
    """Claims of each source, whose files are durable."""
    sizes = [
        chunk_rows(job.pipeline.snapshot.chunk_mib << 20, source.row_bytes(schema)) for source, schema in wanted.feeding
    ]
    size = max(1, min(lookup.LOOKED_UP_KEYS, *sizes))
    for at in range(0, len(wanted.keys), size):
        keys = wanted.keys[at : at + size]
        # One time for all sources: a delete of one must not seem younger than a row that came to another meanwhile.
        ts_us = min(source.watermark_us for source, _ in wanted.feeding)
        looked = [_looked_up(wanted, source, schema, keys, ts_us) for source, schema in wanted.feeding]
        found = {key for answer in looked for key in answer.shards}
        for answer in looked:
            claimed |= {key: Claimed(shard, answer.version) for key, shard in answer.shards.items()}
        missing = [key for key in keys if key not in found]
        for answer in looked:
            claims = _durable(
                job, wanted, answer, missing, leases[answer.source.name], scratch, claimed, queried=queried
            )
            if claims is not None:
                yield answer.source.name, claims


def _looked_up(
    wanted: WantedKeys, source: SourceTables, schema: TableSchema, keys: Sequence[str], ts_us: int
) -> _Looked:
    own = {column.name: column for column in schema.columns}
    rows: list[TableRows] = []
    shards: dict[str, int] = {}

    def take(routed: TableRows) -> None:
        rows.append(routed)
        columns = {column.name: column for column in routed.schema.columns}
        texts = row_texts(routed.rows, [columns[name] for name in wanted.key], wanted.errors).to_pylist()
        shards.update(zip(texts, wanted.shards(routed.rows).tolist(), strict=True))

    source.await_logged()
    where = lookup.condition([own[name] for name in wanted.key], keys, wanted.errors)
    read = source.lookup(schema, wanted.logical, where, take)
    return _Looked(source, schema, ts_us, read, rows, shards)


def _durable(
    job: VerifyJob,
    wanted: WantedKeys,
    answer: _Looked,
    missing: Sequence[str],
    lease: Lease,
    scratch: Path,
    claimed: dict[str, Claimed],
    *,
    queried: bool,
) -> Claims | None:
    """None if there is nothing to say of the keys."""
    logical, shaped = wanted.logical, answer.source.capture.shape(answer.schema)
    gone, texts = wanted.gone(missing, shaped) if missing else (None, [])
    if not (answer.rows or texts):
        return None
    other = wanted.key if set(shaped.key) != set(wanted.key) else job.pipeline.other_key(logical, shaped.key)
    if texts and other:  # every target gets the delete, which has the source's key alone
        raise Refused(
            f"A target identifies rows of {logical} by {', '.join(other)}, and {answer.schema.name} by "
            f"{', '.join(shaped.key) or 'no key'}, so a row that only the target has cannot be deleted through the "
            "stage.",
            where=logical,
            code="repair.copy_instead",
            remedy=f"delete the row at the target by hand, {_plain(texts[0])}; or copy the table again: `lockstep "
            "snapshot PIPELINE TABLE`",
        )
    claimed |= dict.fromkeys(texts, Claimed(-1, answer.version))
    number = job.meta.copies.next_chunk(lease, answer.source.name)
    files = ChunkFiles(job.opened, answer.source.name, lease, answer.source.capture, scratch)
    with files.chunk(answer.schema, number, answer.read.low, answer.watermark_us) as file:
        if gone is not None and texts:
            file.add_gone(logical, shaped, gone)
        for rows in answer.rows:
            file.add_routed(rows)
        parts = file.finish()
    paths = tuple(part.path for part in parts)
    read = answer.read
    chunk = CopiedChunk(
        number,
        answer.schema.name,
        (),
        (),
        answer.watermark_us,
        read.low,
        read.high,
        file.rows,
        paths,
        by_key=True,
        queried=queried,
    )
    return Claims(answer.schema, (ReadChunk(chunk, parts, file.schemas),))


def _plain(key: str) -> str:
    return "key " + key.replace("\t", ", ")
