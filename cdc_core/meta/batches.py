"""Batches and positions: what is staged, and up to where.

Keeps true: the batches of a source and its ack position form one chain without gaps. A batch is recorded, together
with its files, its definitions and the position it ends at, in one transaction of the lease's holder, and only when
the stored position is where the batch begins.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

from sqlalchemy import Connection, Row, and_, delete, exists, insert, select, update

from cdc_core.errors import DataAtRisk, LeaseLost, defect
from cdc_core.meta import copies, failures, leases, tables
from cdc_core.meta.database import now_us
from cdc_core.meta.rows import BatchRow, FileRow, Lease, SourceCoverage
from cdc_core.model.batch import Manifest
from cdc_core.model.coverage import NO_SURVEY, Surveyed, TableCoverage, settled
from cdc_core.model.position import Checkpoint, Fingerprint, Position
from cdc_core.model.schema import DefinedSince, TableSchema

_ack, _batch, _file, _schema, _definition, _coverage = (
    tables.ack_position,
    tables.batch,
    tables.batch_file,
    tables.schema_version,
    tables.table_definition,
    tables.table_coverage,
)
_CHUNK = 500
"""Values in one IN list: far below every database's limit."""


IN_ORDER = (_batch.c.begin_seq, _batch.c.end_seq, _batch.c.chunk)
"""The order of the chain: copied rows before the batch of the log that begins at the same place."""


def checkpoint(connection: Connection, source: str) -> Checkpoint | None:
    """Up to where the source is staged; None before its first batch."""
    row = connection.execute(select(_ack).where(_ack.c.source == source)).one_or_none()
    return None if row is None else checkpoint_of(row)


def checkpoint_of(row: Row[tuple[object, ...]]) -> Checkpoint:
    return Checkpoint(
        Position(row.timeline, row.file, row.pos),
        gtid_set=row.gtid_set,
        server=row.server,
        watermark_us=row.watermark_us,
        fingerprint=None if row.fingerprint is None else Fingerprint.from_json(json.loads(row.fingerprint)),
        floor_us=row.floor_us,
    )


def commit(connection: Connection, lease: Lease, manifest: Manifest) -> None:
    """Records a batch and moves the position to its end; a batch that is recorded already changes nothing.

    Raises RetryLater (lease.lost), DataAtRisk (meta.gap) where the batch does not begin at the position.
    """
    leases.require_held(connection, lease)
    _belongs(lease, manifest, any_epoch=manifest.copied)  # that of the copier's lease, not of this one
    stored = checkpoint(connection, lease.source)
    if _recorded(connection, manifest):
        return
    if manifest.copied:
        copies.record(connection, manifest)
        _insert(connection, manifest)
        return
    begin = manifest.begin.position
    if stored is not None and stored.position != begin:
        raise DataAtRisk(
            f"The batch begins at {begin}, but the source {lease.source!r} is staged up to {stored.position}.",
            where=f"{manifest.path}",
            code="meta.gap",
            remedy="nothing has moved. Check which one is right: `lockstep stage ls` shows the chain of manifests, "
            "`lockstep meta rebuild` restores batches and positions from it",
        )
    _move(connection, lease, stored, manifest.end)
    _insert(connection, manifest)


def advance_watermark(connection: Connection, lease: Lease, seen: Checkpoint) -> None:
    """Records that the source has nothing more up to the watermark of `seen`, at an unchanged position.

    Raises RetryLater (lease.lost), DataAtRisk (meta.gap) if the position is another one.
    """
    leases.require_held(connection, lease)
    stored = checkpoint(connection, lease.source)
    if stored is not None and stored.position != seen.position:
        raise DataAtRisk(
            f"Without a batch the position cannot move from {stored.position} to {seen.position}.",
            where=lease.source,
            code="meta.gap",
            remedy="nothing has moved; start the extractor again, it continues from the stored position",
        )
    _move(connection, lease, stored, seen)


def record_copied(connection: Connection, lease: Lease, manifest: Manifest) -> None:
    """See Meta.record_copied."""
    leases.require_held(connection, lease)
    copies.record(connection, manifest)
    if not _recorded(connection, manifest):
        _insert(connection, manifest)


def rebuild(
    connection: Connection, lease: Lease, manifests: Iterable[Manifest], purged: Mapping[str, TableCoverage]
) -> tuple[Lease, int]:
    """See Meta.rebuild."""
    leases.require_held(connection, lease)
    stored = checkpoint(connection, lease.source)
    previous: Manifest | None = None
    added, highest, reached = 0, 0, stored is None
    coverage, surveyed, chunks = dict(purged), NO_SURVEY, 0
    for manifest in manifests:
        _belongs(lease, manifest, any_epoch=True)
        if previous is not None and previous.end.position != manifest.begin.position:
            raise _broken(manifest, f"the manifest before it ends at {previous.end.position}")
        reached = reached or stored is None or stored.position in (manifest.begin.position, manifest.end.position)
        highest = max(highest, manifest.epoch)
        if not _recorded(connection, manifest):
            _insert(connection, manifest)
            added += 1
        if manifest.repairs:
            copies.count_repaired(connection, manifest, manifest.created_us)
        coverage = settled(coverage, manifest.coverage)
        chunks = max([chunks, *(one.number for one in manifest.chunks)])
        if manifest.surveyed.captured and manifest.surveyed.seq >= surveyed.seq:
            surveyed = manifest.surveyed
        previous = manifest
    if previous is None:
        return lease, 0
    if not reached or (stored is not None and stored.position > previous.end.position):
        place = stored.position if stored is not None else None
        raise _broken(previous, f"the stored position {place} is not on the chain, which ends with this manifest")
    if stored is None or stored.position != previous.end.position:
        _move(connection, lease, stored, previous.end)
    _cover(connection, lease.source, coverage, surveyed, settling=False)
    copies.give_out_above(connection, lease.source, chunks)
    return leases.raise_epoch(connection, lease, highest), added


def find(
    connection: Connection, source: str, *, after: Position | None = None, until: Position | None = None
) -> tuple[BatchRow, ...]:
    """The batches of a source that begin at or after `after` and end at or before `until`, in stream order."""
    query = select(_batch).where(_batch.c.source == source)
    if after is not None:
        query = query.where(_batch.c.begin_seq >= after.seq)
    if until is not None:
        query = query.where(_batch.c.end_seq <= until.seq)
    return tuple(batch_of(row) for row in connection.execute(query.order_by(*IN_ORDER)))


def by_id(connection: Connection, batch_id: str) -> BatchRow | None:
    """See Meta.batch."""
    row = connection.execute(select(_batch).where(_batch.c.batch_id == batch_id)).one_or_none()
    return None if row is None else batch_of(row)


def copied_manifests(connection: Connection, source: str) -> tuple[str, ...]:
    """See Meta.copied_manifests."""
    of_copies = and_(_batch.c.source == source, _batch.c.begin_seq == _batch.c.end_seq)
    return tuple(connection.execute(select(_batch.c.manifest).where(of_copies)).scalars())


def files(connection: Connection, batch_ids: Sequence[str]) -> Mapping[str, tuple[FileRow, ...]]:
    """The files of each batch, in their manifest's order; () for a batch without rows."""
    found: dict[str, list[FileRow]] = defaultdict(list)
    for start in range(0, len(batch_ids), _CHUNK):
        chosen = _file.c.batch_id.in_(batch_ids[start : start + _CHUNK])
        for row in connection.execute(select(_file).where(chosen).order_by(_file.c.batch_id, _file.c.part)):
            found[row.batch_id].append(
                FileRow(
                    row.table_name,
                    row.path,
                    row.schema_id,
                    row.row_count,
                    row.key_changes,
                    row.size_bytes,
                    row.sha256,
                    row.min_seq,
                    row.max_seq,
                    row.absent_rows,
                )
            )
    return {batch_id: tuple(found[batch_id]) for batch_id in batch_ids}


def schemas(connection: Connection, schema_ids: Sequence[str]) -> Mapping[str, TableSchema]:
    """The definitions that meta knows of those asked for."""
    found = {}
    for start in range(0, len(schema_ids), _CHUNK):
        chosen = _schema.c.schema_id.in_(schema_ids[start : start + _CHUNK])
        for row in connection.execute(select(_schema.c.schema_id, _schema.c.definition).where(chosen)):
            found[row.schema_id] = TableSchema.from_json(json.loads(row.definition))
    return found


def sources_of(connection: Connection, pipeline: str) -> Mapping[str, Checkpoint]:
    rows = connection.execute(select(_ack).where(_ack.c.pipeline == pipeline).order_by(_ack.c.source))
    return {row.source: checkpoint_of(row) for row in rows}


def batch_of(row: Row[tuple[object, ...]]) -> BatchRow:
    return BatchRow(
        batch_id=row.batch_id,
        pipeline=row.pipeline,
        source=row.source,
        epoch=row.epoch,
        begin=Position(row.begin_timeline, row.begin_file, row.begin_pos),
        end=Position(row.end_timeline, row.end_file, row.end_pos),
        window_start_us=row.window_start_us,
        window_end_us=row.window_end_us,
        rows=row.row_count,
        events=row.event_count,
        transactions=row.transaction_count,
        size_bytes=row.size_bytes,
        manifest=row.manifest,
        notes=tuple(json.loads(row.notes)),
        created_us=row.created_us,
    )


def _belongs(lease: Lease, manifest: Manifest, *, any_epoch: bool = False) -> None:
    if (manifest.source, manifest.pipeline) != (lease.source, lease.pipeline):
        raise defect(
            f"A batch of {manifest.pipeline}/{manifest.source} cannot be recorded under a lease of {lease.pipeline}/"
            f"{lease.source}.",
            where=manifest.path,
            first="if two pipelines share one stage directory, give each its own; otherwise",
        )
    if not (manifest.copied or manifest.begin.position < manifest.end.position):
        raise defect(
            f"A batch must move forward, not from {manifest.begin.position} to {manifest.end.position}.",
            where=manifest.path,
        )
    # A batch of copied rows has the epoch of its copier's lease, which says nothing about this one.
    if not (any_epoch or manifest.copied) and manifest.epoch > lease.epoch:
        raise LeaseLost(
            f"The batch was written under epoch {manifest.epoch}; the lease of {lease.holder} has epoch {lease.epoch}.",
            where=manifest.path,
            remedy="start the extractor again. If no other one runs, meta is older than the stage: "
            "`lockstep meta rebuild`",
        )


def _recorded(connection: Connection, manifest: Manifest) -> bool:
    """Whether exactly this batch is recorded. Raises DataAtRisk when another one has its place."""
    row = connection.execute(select(_batch).where(_batch.c.batch_id == manifest.batch_id)).one_or_none()
    if row is None:
        return False
    known = files(connection, [manifest.batch_id])[manifest.batch_id]
    same_files = [(file.path, file.sha256) for file in known] == [(part.path, part.sha256) for part in manifest.parts]
    if batch_of(row).end == manifest.end.position and same_files:
        return True
    raise DataAtRisk(
        f"Meta knows the batch {manifest.batch_id} with other contents: up to {batch_of(row).end}, {len(known)} files; "
        f"the manifest goes up to {manifest.end.position} with {len(manifest.parts)} files.",
        where=manifest.path,
        code="stage.chain",
        remedy="nothing has moved. A manifest was changed or replaced after it was written: compare the stage with "
        "its backup before you continue",
    )


def _broken(manifest: Manifest, why: str) -> DataAtRisk:
    return DataAtRisk(
        f"The manifests of source {manifest.source!r} do not form one chain with meta: {why}.",
        where=manifest.path,
        code="stage.chain",
        remedy="nothing has moved. A manifest is missing or meta belongs to another stage: restore the missing "
        "manifest from a backup, or start the source under a new name: its tables are copied again",
    )


def _move(connection: Connection, lease: Lease, stored: Checkpoint | None, to: Checkpoint) -> None:
    watermark_us, before_us = to.watermark_us, stored.watermark_us if stored is not None else 0
    taken_back = to.floor_us >= before_us  # it came from a clock that was ahead
    values = {
        "timeline": to.position.timeline,
        "file": to.position.file,
        "pos": to.position.offset,
        "seq": to.position.seq,
        "gtid_set": to.gtid_set,
        "server": to.server,
        "watermark_us": watermark_us if taken_back else max(watermark_us, before_us),
        "floor_us": to.floor_us,
        "epoch": lease.epoch,
        "updated_us": now_us(connection),
        "fingerprint": None if to.fingerprint is None else json.dumps(to.fingerprint.to_json()),
    }
    failures.clear(connection, lease.pipeline, failures.EXTRACT, lease.source)
    if stored is None:
        connection.execute(insert(_ack).values(source=lease.source, **values))
        return
    # The lease's row is locked, so the guard cannot fail; it also covers every other path to this statement.
    mine = exists().where(leases.held(lease))
    moved = connection.execute(
        update(_ack)
        .where(
            _ack.c.source == lease.source,
            _ack.c.seq == stored.position.seq,
            _ack.c.file == stored.position.file,
            _ack.c.epoch <= lease.epoch,
            mine,
        )
        .values(**values)
    )
    if moved.rowcount != 1:
        raise defect(
            f"The position of source {lease.source!r} moved under a held lease.",
            where=lease.source,
            first="nothing of this call has moved",
        )


def _insert(connection: Connection, manifest: Manifest) -> None:
    begin, end = manifest.begin.position, manifest.end.position
    connection.execute(
        insert(_batch).values(
            batch_id=manifest.batch_id,
            pipeline=manifest.pipeline,
            source=manifest.source,
            epoch=manifest.epoch,
            begin_timeline=begin.timeline,
            begin_file=begin.file,
            begin_pos=begin.offset,
            begin_seq=begin.seq,
            end_timeline=end.timeline,
            end_file=end.file,
            end_pos=end.offset,
            end_seq=end.seq,
            window_start_us=manifest.window_start_us,
            window_end_us=manifest.window_end_us,
            row_count=manifest.rows,
            event_count=manifest.events,
            transaction_count=manifest.transactions,
            size_bytes=manifest.size_bytes,
            manifest=manifest.path,
            notes=json.dumps(list(manifest.notes), ensure_ascii=False),
            created_us=manifest.created_us,
            chunk=manifest.chunks[0].number if manifest.chunks else 0,
        )
    )
    if manifest.parts:
        connection.execute(
            insert(_file),
            [
                {
                    "batch_id": manifest.batch_id,
                    "part": number,
                    "table_name": part.table,
                    "path": part.path,
                    "schema_id": part.schema_id,
                    "row_count": part.rows,
                    "key_changes": part.key_changes,
                    "size_bytes": part.size_bytes,
                    "sha256": part.sha256,
                    "min_seq": part.min_seq,
                    "max_seq": part.max_seq,
                    "absent_rows": part.absent_rows,
                }
                for number, part in enumerate(manifest.parts)
            ],
        )
    _insert_schemas(connection, manifest)
    _insert_definitions(connection, manifest)
    _cover(connection, manifest.source, manifest.coverage, manifest.surveyed)


def _insert_definitions(connection: Connection, manifest: Manifest) -> None:
    """Where two tables have one name (`a.b`.`c` and `a`.`b.c`), the first is kept: the other is asked for again."""
    known: set[tuple[str, int]] = set()
    seqs = sorted({one.seq for one in manifest.definitions})
    for start in range(0, len(seqs), _CHUNK):
        rows = select(_definition.c.source_table, _definition.c.since_seq).where(
            _definition.c.source == manifest.source, _definition.c.since_seq.in_(seqs[start : start + _CHUNK])
        )
        known |= {(row.source_table, row.since_seq) for row in connection.execute(rows)}
    new = []
    for one in manifest.definitions:
        key = (one.schema.name, one.seq)
        if key not in known:
            known.add(key)
            text = json.dumps(one.to_json(), ensure_ascii=False)
            new.append({"source": manifest.source, "source_table": key[0], "since_seq": one.seq, "definition": text})
    if new:
        connection.execute(insert(_definition), new)


def keep_coverage(
    connection: Connection, lease: Lease, covered: Mapping[str, TableCoverage], surveyed: Surveyed
) -> None:
    """See Meta.keep_coverage."""
    leases.require_held(connection, lease)
    _cover(connection, lease.source, covered, surveyed, staged=False)


def _cover(
    connection: Connection,
    source: str,
    covered: Mapping[str, TableCoverage],
    surveyed: Surveyed,
    *,
    staged: bool = True,
    settling: bool = True,
) -> None:
    """Keeps the coverage of tables; staged: a manifest says so. settling: meta may know it better (model.coverage)."""
    known = coverage(connection, source).tables if settling and covered else {}
    for table, said in covered.items():
        one = settled(known, {table: said})[table]
        if one == known.get(table) and one != said:
            continue
        mine = (_coverage.c.source == source) & (_coverage.c.source_table == table)
        connection.execute(delete(_coverage).where(mine))
        text = json.dumps(one.to_json(), ensure_ascii=False)
        connection.execute(insert(_coverage).values(source=source, source_table=table, coverage=text, staged=staged))
    if surveyed.captured:
        newer = (_ack.c.source == source) & (_ack.c.surveyed_seq <= surveyed.seq)
        values = {"surveyed_seq": surveyed.seq, "surveyed_captured": surveyed.captured}
        connection.execute(update(_ack).where(newer).values(values))


def coverage(connection: Connection, source: str) -> SourceCoverage:
    """See Meta.coverage."""
    mine = select(_coverage).where(_coverage.c.source == source).order_by(_coverage.c.source_table)
    rows = connection.execute(mine).all()
    found = {row.source_table: TableCoverage.from_json(json.loads(row.coverage)) for row in rows}
    survey = select(_ack.c.surveyed_seq, _ack.c.surveyed_captured).where(_ack.c.source == source)
    row = connection.execute(survey).one_or_none()
    surveyed = NO_SURVEY if row is None else Surveyed(row.surveyed_seq, row.surveyed_captured or "")
    return SourceCoverage(found, frozenset(one.source_table for one in rows if not one.staged), surveyed)


def read_ahead(connection: Connection, source: str) -> str:
    """See Meta.read_ahead."""
    return connection.execute(select(_ack.c.read_ahead).where(_ack.c.source == source)).scalar() or ""


def keep_read_ahead(connection: Connection, lease: Lease, kept: str) -> None:
    """See Meta.keep_read_ahead."""
    leases.require_held(connection, lease)
    connection.execute(update(_ack).where(_ack.c.source == lease.source).values(read_ahead=kept))


def history(connection: Connection, source: str) -> tuple[DefinedSince, ...]:
    """In the order of the log."""
    rows = select(_definition.c.definition).where(_definition.c.source == source)
    found = connection.execute(rows.order_by(_definition.c.since_seq))
    return tuple(DefinedSince.from_json(json.loads(row.definition)) for row in found)


def _insert_schemas(connection: Connection, manifest: Manifest) -> None:
    """A definition gets a row where it takes effect: at its first change in the batch."""
    first: dict[str, int] = {}
    for part in manifest.parts:
        first[part.schema_id] = min(part.min_seq, first.get(part.schema_id, part.min_seq))
    names = sorted({manifest.schemas[schema_id].name for schema_id in first})
    known: dict[str, list[tuple[int, str]]] = defaultdict(list)
    for start in range(0, len(names), _CHUNK):
        rows = select(_schema.c.source_table, _schema.c.first_seq, _schema.c.schema_id).where(
            _schema.c.source == manifest.source, _schema.c.source_table.in_(names[start : start + _CHUNK])
        )
        for row in connection.execute(rows):
            known[row.source_table].append((row.first_seq, row.schema_id))
    new = []
    for schema_id, first_seq in sorted(first.items(), key=lambda item: item[1]):
        schema = manifest.schemas[schema_id]
        earlier = [one for one in known[schema.name] if one[0] <= first_seq]
        taken = any(seq == first_seq for seq, _ in earlier)  # by copied rows: readers find theirs in the manifest
        if not taken and (not earlier or max(earlier)[1] != schema_id):
            known[schema.name].append((first_seq, schema_id))
            definition = json.dumps(schema.to_json(), ensure_ascii=False)
            new.append(
                {"source": manifest.source, "source_table": schema.name, "first_seq": first_seq,
                 "schema_id": schema_id, "definition": definition}
            )  # fmt: skip
    if new:
        connection.execute(insert(_schema), new)
