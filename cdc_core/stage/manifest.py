"""Manifests: the commit point of a batch, and the chain they form.

A manifest's name is the position where its batch begins, and it is written only if absent. A batch begins where the
one before ended, so the manifests of a source are one linear chain, whoever writes them: of two writers that begin at
the same place one finds the name taken. Readers go by manifests and never by a listing of parts.

A batch of copied rows begins and ends at one place of the chain. Any number of them may stand there, before the batch
of the log that begins at the place; they may be written at any time, also when the chain has gone on.

An erasure (`operations.forget`) replaces a manifest in place, by one with other files and the same begin and end.

The chain begins at the source's start (`start_record`), or at its horizon after a purge. Callers that can ask meta
check its end against what meta has recorded, so that a manifest lost at either end is noticed too. The fields that a
manifest must have are in `model.batch`.
"""

from __future__ import annotations

import logging
import time
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

import pyarrow.lib as pa_lib
import pyarrow.parquet as pq

from cdc_core.errors import DataAtRisk, FilesLost, LockstepError, Refused
from cdc_core.model.batch import Manifest, Part
from cdc_core.model.compacted import Compaction
from cdc_core.model.position import Position
from cdc_core.model.schema import TableSchema
from cdc_core.stage import compactions, start_record
from cdc_core.stage import horizon as horizons
from cdc_core.stage.intact import damage
from cdc_core.stage.layout import (
    CHANGES,
    COMPACTED,
    SNAPSHOT,
    compaction_path,
    compactions_prefix,
    copied_prefix,
    first_at,
    manifest_path,
    manifests_prefix,
    parse_compacted,
    parse_copied,
    parse_part,
    start_path,
    table_prefix,
)
from cdc_core.stage.needed import emptied_before
from cdc_core.stage.objects import Leftover, ObjectInfo, ObjectStore, missing
from cdc_core.stage.stage_records import reading_record

log = logging.getLogger(__name__)

_AT_ONCE = 16
"""Manifests fetched at once: a bucket takes some milliseconds to answer each."""
SWEPT_AFTER_S = 86_400.0
"""Age of what a sweep removes: more than clocks differ, and more than the life of any concurrent writer's task."""


@dataclass(frozen=True, slots=True)
class Committed:
    """`manifest` is the one that has the name; `ours` says whether it is the one that was to be committed.

    If it is not, the caller adopts it if it still holds the lease, and stops otherwise. The caller's own parts are then
    orphans: BatchWriter.abort() removes them.
    """

    manifest: Manifest
    ours: bool


@dataclass(frozen=True, slots=True)
class ChainProblem:
    """A finding of `verify`: `code` as the errors have it, `path` in the stage. healed: no state needs the file any
    more, since its table was copied again."""

    code: str
    path: str
    what: str
    healed: bool = False


def commit(store: ObjectStore, manifest: Manifest) -> Committed:
    """Puts the manifest if its name is free. Its parts are already durable: `BatchWriter.finish` ensured that.

    After RetryLater from the store it is unknown whether the batch counts: committing the same manifest again shows it.
    """
    path = manifest.path
    data = manifest.to_bytes()
    if store.put_if_absent(path, data):
        return Committed(manifest, ours=True)
    stored = store.get(path)
    ours = stored == data  # an earlier attempt of ours, whose answer was lost
    if not ours:
        log.warning("source %s: batch %s was committed by another writer", manifest.source, manifest.batch_id)
    return Committed(parse(stored, path, store.uri), ours)


def read(store: ObjectStore, source: str, begin: Position) -> Manifest:
    """The manifest of the batch that begins there. Raises DataAtRisk (stage.damaged)."""
    path = manifest_path(source, begin)
    return parse(store.get(path), path, store.uri)


def read_several(store: ObjectStore, source: str, paths: Sequence[str]) -> list[Manifest]:
    """The manifests of a source at these paths. Raises as `parse`; RetryLater (stage.removed)."""
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        found = zip(paths, _fetched(store, source, paths, pool), strict=True)
        return [parse(data, path, store.uri) for path, data in found]


def parse(data: bytes, path: str, where: str) -> Manifest:
    """A manifest from its text: every field has its type, and every part is a file that its batch may name.

    Raises DataAtRisk (stage.damaged) for anything else, Refused (install.version).
    """
    with reading_record(path, where, "manifest"):
        manifest = Manifest.from_bytes(data)
        _require_own(manifest)
    return manifest


def chain(
    store: ObjectStore, source: str, after: Position | None = None, *, known: Sequence[Mapping[str, Manifest]] = ()
) -> Iterator[Manifest]:
    """A source's manifests in stream order, each verified to begin where the one before ended.

    after: the end of the last batch that is known already; the first batch must begin there. By default it begins at
           the horizon, or at the start.
    known: manifests by their paths, which are not read again. Those of one mapping are taken together or not at all.
    Raises DataAtRisk (stage.chain, stage.damaged), Refused (install.version),
    RetryLater (stage.removed: by a purge meanwhile).
    """
    infos, end, problems = _extent(store, source) if after is None else (list(_from(store, source, after)), after, [])
    for lost in problems:
        raise _refusal(store, lost)
    listed = {info.path for info in infos}
    at_hand: dict[str, Manifest] = {}
    definitions: dict[str, TableSchema] = {}
    for some in known:
        if some.keys() <= listed:  # a purge may have taken the first of them meanwhile
            at_hand |= some
    for path, manifest in _manifests(store, source, infos, at_hand):
        problem = _link(end, path, manifest)
        if problem is not None:
            raise _refusal(store, problem)
        yield _sharing(manifest, definitions)
        end = manifest.end.position


def _sharing(manifest: Manifest, definitions: dict[str, TableSchema]) -> Manifest:
    """The manifest with equal definitions of earlier ones in place of its own: a reader of the whole chain has each
    definition in memory once, and not once for each batch. definitions: by id; new ones are added."""
    own = manifest.schemas
    shared = {key: definitions.setdefault(key, schema) for key, schema in own.items()}
    return replace(manifest, schemas=shared) if shared == own else manifest


def newest(store: ObjectStore, source: str) -> Manifest | None:
    """The last manifest of a source; earlier ones are not read. Raises as `parse` does."""
    paths = [info.path for info in store.list(manifests_prefix(source))]
    return parse(store.get(paths[-1]), paths[-1], store.uri) if paths else None


def require_reached(store: ObjectStore, source: str, last: Manifest | None, recorded: Position | None) -> None:
    """The chain, whose newest batch is `last`, reaches what meta recorded before the chain was read.

    Raises DataAtRisk (stage.chain, stage.damaged).
    """
    problem = lost_end(store, source, last, recorded)
    if problem is not None:
        raise _refusal(store, problem)


def require_continuable(store: ObjectStore, source: str, recorded: Position | None) -> None:
    """An extractor may continue from what meta recorded: the stage has what meta knows, and meta knows of the stage.

    recorded: the position in meta, read before the stage; None where meta knows nothing of the source.
    Raises Refused (meta.behind) when the stage holds batches of this source and meta knows none, DataAtRisk
    (stage.chain, stage.damaged) when meta knows some that the stage has lost.
    """
    if recorded is None:
        first = next(iter(chain(store, source)), None)
        if first is not None:
            raise Refused(
                f"The stage has batches of source {source!r}, read from {first.begin.server or 'an unnamed server'}, "
                "and the meta database has none of them.",
                where=source,
                code="meta.behind",
                remedy="if meta was lost, run `lockstep meta rebuild`, which restores positions from the manifests; "
                "if another pipeline or server wrote the batches, give this pipeline its own stage",
            )
        return
    if start_record.read(store, source) is None:
        raise start_record.missing_start(store, source)
    require_reached(store, source, newest(store, source), recorded)


def lost_end(store: ObjectStore, source: str, last: Manifest | None, recorded: Position | None) -> ChainProblem | None:
    """See `require_reached`; None for a chain that reaches as far."""
    if recorded is None:
        return None
    if last is not None:
        end = last.end.position
    else:
        start = start_record.read(store, source)
        if start is None:
            lost = start_record.missing_start(store, source)
            return ChainProblem(lost.code, start_path(source), lost.what)
        end = start.position
    if end >= recorded:
        return None
    what = f"The stage ends at {end}; the meta database has recorded staged batches up to {recorded}."
    return ChainProblem("stage.chain", manifests_prefix(source), what)


def require_listed(store: ObjectStore, source: str, manifests: Iterable[str]) -> None:
    """Every batch that meta knows, by the path of its manifest, has it on the stage; those before the horizon need
    none. Raises DataAtRisk (stage.damaged)."""
    listed = {info.path for info in store.list(manifests_prefix(source))}
    wanted = list(manifests)
    if wanted and start_record.read(store, source) is None:
        raise start_record.missing_start(store, source)
    require_found(store, source, wanted, listed)


def require_found(store: ObjectStore, source: str, wanted: Iterable[str], found: Collection[str]) -> None:
    """The manifests that are wanted, by their paths, were found on the stage; those before the horizon need not be.
    Raises DataAtRisk (stage.damaged)."""
    lost = [path for path in wanted if path not in found]
    horizon = horizons.read(store, source) if lost else None
    for path in lost:
        if horizon is None or path >= first_at(source, horizon.position):
            raise missing(path, store.uri)


def verify(
    store: ObjectStore,
    source: str,
    *,
    deep: bool = False,
    recorded: Position | None = None,
    known: Collection[str] = (),
) -> list[ChainProblem]:
    """What is wrong with a source's staged batches: links of the chain, files, sizes; `deep`: sha256 and rows too.

    recorded: up to where meta had them before; known: the manifests that it had, by their paths: without those of
    copied rows the chain has no gap. What a purge removes meanwhile is not a problem.
    """
    while True:
        horizon = horizons.read(store, source)
        problems = _problems(store, source, deep=deep, recorded=recorded, known=known)
        if not problems or horizons.read(store, source) == horizon:
            return problems
        log.info("source %s: the horizon has moved while its batches were verified: once more", source)


def _problems(
    store: ObjectStore, source: str, *, deep: bool, recorded: Position | None, known: Collection[str]
) -> list[ChainProblem]:
    """See `verify`."""
    infos, end, problems = _extent(store, source)
    first = "" if end is None else first_at(source, end)
    for path in sorted(set(known) - {info.path for info in infos}):
        if path >= first:
            what = "The meta database has a batch whose manifest is not in the stage."
            problems.append(ChainProblem("stage.damaged", path, what))
    files = _Files(store, deep)
    ranges, broken = _ranges(store, source)
    problems += broken
    rows: dict[str, Counter[str]] = defaultdict(Counter)
    last: Manifest | None = None
    whole = readable = True
    batches: list[Manifest] = []
    for path, found in _read(store, [info.path for info in infos]):
        if isinstance(found, LockstepError):
            problems.append(ChainProblem(found.code, path, found.what))
            whole = readable = False
            continue
        last = manifest = found
        problem = _link(end, path, manifest)
        if problem is not None:
            problems.append(problem)
        end = manifest.end.position
        for key, schema in manifest.schemas.items():
            if schema.id != key:
                what = f"The definition {key} of {schema.name} does not match its id."
                problems.append(ChainProblem("stage.damaged", path, what))
                readable = False
        range_ = None if manifest.copied else ranges.at(source, manifest.begin.position.seq)
        if range_ is not None:
            rows[range_.begin.name].update({path: 1} | _rows_of(manifest.parts))
        known_before = len(problems)
        for part in manifest.parts:
            replaced = range_ is not None and range_.replaces(part)
            problems += files.problems(part, f"batch {manifest.batch_id}", may_be_gone=replaced)
        if len(problems) > known_before or any(part.ops.get("t") for part in manifest.parts):
            batches.append(manifest)
    for compaction in ranges:
        problems += _range_problems(store, files, compaction, rows[compaction.begin.name])
    if whole and (problem := lost_end(store, source, last, recorded)) not in (None, *problems):
        assert problem is not None
        problems.append(problem)
    return problems if not readable else _healed(problems, batches, ranges)


def _healed(
    problems: Sequence[ChainProblem], batches: Sequence[Manifest], ranges: Iterable[Compaction]
) -> list[ChainProblem]:
    """batches: those with files that have problems, and those with a change `t`."""
    listing: list[Manifest | Compaction] = [*batches, *ranges]
    parts = [(manifest.source, manifest.schemas, part) for manifest in listing for part in manifest.parts]
    of = {part.path: (part, (source, schemas[part.schema_id].name)) for source, schemas, part in parts}
    left = []
    for problem in problems:
        if problem.path in of:
            part, table = of[problem.path]
            problem = replace(problem, healed=part.max_seq < emptied_before(batches, part.table).get(table, 0))
        left.append(problem)
    return left


def _ranges(store: ObjectStore, source: str) -> tuple[compactions.Compactions, list[ChainProblem]]:
    try:
        return compactions.read(store, [source]), []
    except (DataAtRisk, Refused) as error:
        return compactions.NO_COMPACTIONS, [ChainProblem(error.code, compactions_prefix(source), error.what)]


def _rows_of(parts: Iterable[Part]) -> Counter[str]:
    rows: Counter[str] = Counter()
    for part in parts:
        rows[part.table] += part.rows
    return rows


def _range_problems(
    store: ObjectStore, files: _Files, compaction: Compaction, found: Counter[str]
) -> list[ChainProblem]:
    """found: rows by table in the manifests of the range, and these by their paths."""
    path = compaction_path(compaction.source, compaction.begin)
    wanted = Counter({batch.path: 1 for batch in compaction.batches}) + _rows_of(compaction.parts)
    problems = []
    if found and found != wanted:  # without any, all of its batches are before the horizon
        what = f"The compacted range {compaction} does not have the batches or the numbers of rows of its manifests."
        problems.append(ChainProblem("stage.damaged", path, what))
    for part in compaction.parts:
        if found and parse_compacted(part.path):
            problems += files.problems(part, f"the compacted range {compaction}")
    return problems


def _read(store: ObjectStore, paths: Sequence[str]) -> Iterator[tuple[str, Manifest | LockstepError]]:
    def one(path: str) -> bytes | LockstepError:
        try:
            return store.get(path)
        except (DataAtRisk, Refused) as error:
            return error

    with ThreadPoolExecutor(_AT_ONCE) as pool:
        for start in range(0, len(paths), _AT_ONCE):
            some = paths[start : start + _AT_ONCE]
            for path, data in zip(some, pool.map(one, some), strict=True):
                try:
                    yield path, data if isinstance(data, LockstepError) else parse(data, path, store.uri)
                except (DataAtRisk, Refused) as error:
                    yield path, error


@dataclass(frozen=True, slots=True)
class Swept:
    """What a sweep removed, or would remove: parts that no manifest lists, and what killed writers left unfinished."""

    parts: tuple[ObjectInfo, ...]
    leftovers: tuple[Leftover, ...]


@dataclass(frozen=True, slots=True)
class Copies:
    """What a sweep must know of copies. live_epoch: of the copiers' lease. kept: files that wait for a manifest."""

    live_epoch: int = 0
    kept: frozenset[str] = frozenset()


def sweep(
    store: ObjectStore,
    source: str,
    *,
    live_epoch: int,
    compactor_epoch: int = 0,
    copies: Copies = Copies(),
    older_than_s: float = SWEPT_AFTER_S,
    dry_run: bool = False,
) -> Swept:
    """Removes what attempts of a source that were killed or aborted have left.

    Parts: only of epochs before `live_epoch`, older than `older_than_s`, whose batch begins before the chain's end.
    A manifest is already there, so no writer can ever name them. A paused writer that wakes up may still commit at
    the chain's end. Letter case does not count: where the file system ignores it, the folder of a table may be listed
    under the name of another. Uploads of this source by the same rule, regardless of the chain if their epoch has
    ended: nothing names an upload before it is finished, and finishing a removed one fails. Copied rows: files of ended
    epochs that no manifest names and that none waits for, and uploads of ended epochs. Compacted files of epochs before
    `compactor_epoch`, that of the caller, that no record names. Temporary files, which the stage's writers hold for
    moments, and uploads of other files, by their age alone.

    Raises what `chain` does; then nothing is removed.
    """
    old = time.time() - older_than_s
    candidates: list[tuple[ObjectInfo, int]] = []
    for info in store.list(CHANGES):  # before the manifests are read: what is committed meanwhile is seen there
        name = parse_part(info.path)
        if name is not None and name.source == source and name.epoch < live_epoch and info.modified <= old:
            candidates.append((info, name.seq))
    for info in store.list(SNAPSHOT):
        copied = parse_copied(info.path)
        ended = copied is not None and copied.source == source and copied.epoch < copies.live_epoch
        if ended and info.path not in copies.kept and info.modified <= old:
            candidates.append((info, -1))
    for info in store.list(COMPACTED):
        made = parse_compacted(info.path)
        if made is not None and made.source == source and made.epoch < compactor_epoch and info.modified <= old:
            candidates.append((info, -1))
    unfinished = [leftover for leftover in store.leftovers() if leftover.modified <= old]
    listed: set[str] = set()
    end = -1
    for manifest in chain(store, source):
        listed.update(part.path.casefold() for part in manifest.parts)
        end = manifest.end.position.seq
    for record in compactions.records(store, source):
        listed.update(part.path.casefold() for part in record.parts)
    parts = tuple(info for info, seq in candidates if info.path.casefold() not in listed and seq < end)
    leftovers = tuple(leftover for leftover in unfinished if _is_left(leftover, source, live_epoch, copies.live_epoch))
    if not dry_run:
        for part in parts:
            store.delete(part.path)
        for leftover in leftovers:
            store.discard(leftover)
    done = "would sweep" if dry_run else "swept"
    log.info("source %s: %s %d orphan parts and %d leftovers", source, done, len(parts), len(leftovers))
    return Swept(parts, leftovers)


def _is_left(leftover: Leftover, source: str, live_epoch: int, live_copier_epoch: int) -> bool:
    name = parse_part(leftover.path)
    if name is not None:
        return name.source == source and name.epoch < live_epoch
    copied = parse_copied(leftover.path)  # a table without a key is one file, which may take longer to read than a day
    return copied is None or (copied.source == source and copied.epoch < live_copier_epoch)


def _extent(store: ObjectStore, source: str) -> tuple[list[ObjectInfo], Position | None, list[ChainProblem]]:
    """The manifests that count, where the first must begin, and what is wrong with either end of the list.

    What is listed first was put after the start, and deleted only after the horizon had moved.
    """
    infos = list(store.list(manifests_prefix(source)))
    horizon = horizons.read(store, source)
    start = start_record.read(store, source)
    problems = []
    if start is None and (infos or horizon is not None):
        problems.append(
            ChainProblem("stage.damaged", start_path(source), start_record.missing_start(store, source).what)
        )
    if horizon is None:
        return infos, None if start is None else start.position, problems
    first = first_at(source, horizon.position)
    infos = [info for info in infos if info.path >= first]
    if not infos:
        what = f"Nothing is staged from the horizon {horizon} on, where the purge left the newest batch."
        problems.append(ChainProblem("stage.chain", manifests_prefix(source), what))
    return infos, horizon.position, problems


def _refusal(store: ObjectStore, problem: ChainProblem) -> DataAtRisk:
    return DataAtRisk(
        problem.what,
        where=f"{store.uri} {problem.path}",
        code=problem.code,
        remedy="run `lockstep stage verify`; restore missing files from a backup of the stage, or remove manifests "
        "that no extractor of this pipeline wrote",
    )


def _require_own(manifest: Manifest) -> None:
    """Raises ValueError for a part that is not this batch's: it would be read, and deleted, by its path."""
    chunks = {path: chunk.number for chunk in manifest.chunks for path in chunk.paths}
    for part in manifest.parts:
        if not (_is_copied(manifest, part, chunks) if manifest.copied else _is_logged(manifest, part)):
            raise ValueError(f"the path {part.path!r} is not that of a part of the batch {manifest.batch_id}")
        if part.schema_id not in manifest.schemas:
            raise ValueError(f"the definition {part.schema_id!r} of {part.path} is not in it")


def _is_logged(manifest: Manifest, part: Part) -> bool:
    name = parse_part(part.path)
    own = (manifest.source, manifest.begin.position.seq)
    return name is not None and (name.source, name.seq) == own and part.path.startswith(table_prefix(part.table))


def _is_copied(manifest: Manifest, part: Part, chunks: Mapping[str, int]) -> bool:
    """chunks: the numbers of the manifest's chunks by the paths of their parts."""
    name = parse_copied(part.path)
    own = (manifest.source, chunks.get(part.path))
    return name is not None and (name.source, name.chunk) == own and part.path.startswith(copied_prefix(part.table))


def _manifests(
    store: ObjectStore, source: str, infos: Sequence[ObjectInfo], at_hand: Mapping[str, Manifest]
) -> Iterator[tuple[str, Manifest]]:
    waiting: list[str] = []
    with ThreadPoolExecutor(_AT_ONCE) as pool:

        def fetched() -> Iterator[tuple[str, Manifest]]:
            found = _fetched(store, source, waiting, pool) if waiting else []
            for path, data in zip(waiting, found, strict=True):
                yield path, parse(data, path, store.uri)
            waiting.clear()

        for info in infos:
            if info.path in at_hand:
                yield from fetched()
                yield info.path, at_hand[info.path]
                continue
            waiting.append(info.path)
            if len(waiting) == _AT_ONCE:
                yield from fetched()
        yield from fetched()


def _fetched(store: ObjectStore, source: str, paths: Sequence[str], pool: ThreadPoolExecutor) -> list[bytes]:
    """Raises RetryLater (stage.removed), DataAtRisk (stage.damaged)."""
    try:
        return list(pool.map(store.get, paths))
    except FilesLost as error:
        horizon = horizons.read(store, source)
        if horizon is not None and paths[0] < first_at(source, horizon.position):
            raise horizons.removed(error.what, where=error.where) from None
        raise


def _from(store: ObjectStore, source: str, place: Position) -> Iterator[ObjectInfo]:
    """The manifests of batches that begin at a place or later."""
    first = first_at(source, place)
    return (info for info in store.list(manifests_prefix(source)) if info.path >= first)


def _link(end: Position | None, path: str, manifest: Manifest) -> ChainProblem | None:
    """What is wrong with a manifest's place after a batch that ended at `end`."""
    begin, stop = manifest.begin.position, manifest.end.position
    if path != manifest.path:
        return ChainProblem("stage.chain", path, f"{path} holds the manifest of another place: {manifest.batch_id}.")
    if stop < begin or (stop == begin) != manifest.copied:
        return ChainProblem("stage.chain", path, f"The batch at {begin} ends at {stop}: before it begins.")
    if end is None or begin == end:
        return None
    if begin < end:
        return ChainProblem("stage.chain", path, f"A batch begins at {begin}, inside the one that ends at {end}.")
    return ChainProblem("stage.chain", path, f"Nothing is staged from {end} to {begin}.")


class _Files:
    """The files of a stage, in few requests: from a listing of each folder, unless their bytes are read anyway."""

    def __init__(self, store: ObjectStore, deep: bool) -> None:
        self._store = store
        self._deep = deep
        self._sizes: dict[str, dict[str, int]] = {}

    def problems(self, part: Part, of: str, *, may_be_gone: bool = False) -> list[ChainProblem]:
        """What is wrong with a file. of: who says so. may_be_gone: its rows are in a compacted file."""
        folder = part.path.partition("/")[0] + "/"
        if folder not in self._sizes:
            self._sizes[folder] = {info.path: info.size_bytes for info in self._store.list(folder)}
        size_bytes = self._sizes[folder].get(part.path)
        if may_be_gone and size_bytes is None:
            return []
        if not self._deep and size_bytes == part.size_bytes:
            return []
        error = damage(self._store, part, deep=self._deep)
        if error is not None or not self._deep:
            return [] if error is None else [ChainProblem(error.code, part.path, error.what)]
        try:
            with self._store.open_input(part.path) as file:
                rows = pq.ParquetFile(file).metadata.num_rows
        except pa_lib.ArrowException as unreadable:
            return [ChainProblem("stage.damaged", part.path, f"The part is not a Parquet file: {unreadable}")]
        except DataAtRisk as gone:  # by a purge, since its bytes were read
            return [ChainProblem(gone.code, part.path, gone.what)]
        if rows != part.rows:
            return [ChainProblem("stage.damaged", part.path, f"The part has {rows} rows; {of} says {part.rows}.")]
        return []
