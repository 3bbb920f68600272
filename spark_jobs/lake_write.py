"""Write, for a lake: makes one snapshot of each table that the run changes, on a branch that readers do not see.

Workers write the rows and the changes that come, and say which positions go; then they write deletes, and those files
again that compaction asks for. The driver makes the snapshots. An attempt that is killed leaves files that no snapshot
names, or a branch; the next attempt moves the branch.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyroaring import BitMap

from cdc_core.errors import DataAtRisk
from cdc_core.history.rule import TableRule
from cdc_core.lake.catalogs import catalog_answers
from cdc_core.lake.change_rows import ChangeRows, new_rows
from cdc_core.lake.compaction import ChangeDue, Rewrite, change_due, rewritten
from cdc_core.lake.data_files import KeyedFiles, LiveFile, NewFile, write_rows
from cdc_core.lake.mirror import SAME, Mirror, effect, fresh_truncates
from cdc_core.lake.publication import LakeSnapshot, on_run_branch
from cdc_core.lake.snapshots import (
    PLAN,
    RUN,
    FileChange,
    next_number,
)
from cdc_core.lake.truncated import left_to_truncates, removed_by, truncated_rows
from cdc_core.model.json_codec import dumped
from cdc_core.model.merged_columns import CLASS, RowClass
from cdc_core.model.run_plan import (
    MergeTable,
    WriteCounts,
    counts_path,
    counts_to_bytes,
    lake_path,
    quality_report,
)
from cdc_core.stage.staged_events import FileOfEvents, file_events
from spark_jobs.job import Job, log
from spark_jobs.lake_mirrors import OpenMirror, in_lake, lake, open_mirrors, require_bases
from spark_jobs.merge_rules import change_columns, files_of_events
from spark_jobs.table_tasks import Place, all_results, in_tasks


@dataclass(frozen=True, slots=True)
class _RowsToWrite:
    """A file of filtered rows."""

    table: str
    rows: int
    path: str


@dataclass(frozen=True, slots=True)
class _Truncated:
    """A data file whose rows truncates of the run may remove. buried: of the tombstones."""

    table: str
    file: LiveFile
    buried: bool
    removing: tuple[bytes, ...]

    @property
    def rows(self) -> int:
        return self.file.rows


@dataclass(frozen=True, slots=True)
class _Staged:
    """A staged file whose changes go to the changes table. rule: of them."""

    table: str
    file: FileOfEvents
    rule: TableRule

    @property
    def rows(self) -> int:
        return self.file.about_rows


@dataclass(slots=True)
class _NewFiles:
    """What workers have written for a table. gone, dug_up: positions that go, of rows and of tombstones. ended: of rows
    that truncates remove, and that stay as deleted ones."""

    table: str
    rows: list[NewFile] = field(default_factory=list)
    tombstones: list[NewFile] = field(default_factory=list)
    gone: dict[str, BitMap] = field(default_factory=dict)
    dug_up: dict[str, BitMap] = field(default_factory=dict)
    ended: dict[str, BitMap] = field(default_factory=dict)
    changes: list[NewFile] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)

    def __iadd__(self, other: _NewFiles) -> _NewFiles:
        self.rows += other.rows
        self.tombstones += other.tombstones
        self.changes += other.changes
        self.counts += other.counts
        for mine, theirs in ((self.gone, other.gone), (self.dug_up, other.dug_up), (self.ended, other.ended)):
            for path, positions in theirs.items():
                mine[path] = mine.get(path, BitMap()) | positions
        return self


@dataclass(frozen=True, slots=True)
class _Rewriting:
    """part: number of the table among MirrorTables.parts."""

    table: str
    part: int
    rewrite: Rewrite

    @property
    def rows(self) -> int:
        return self.rewrite.rows


@dataclass(frozen=True, slots=True)
class _Ended:
    """Rows of a data file that truncates of these versions remove, and that are written again as deleted ones."""

    table: str
    file: LiveFile
    positions: BitMap
    truncates: tuple[bytes, ...]

    @property
    def rows(self) -> int:
        return self.file.rows


def write(job: Job) -> None:
    """Writes a set to a lake; writes counts.json last, when every snapshot is on its branch."""
    folder = job.plan.written_folder(job.target.name)
    job.store.delete(counts_path(folder))
    job.store.delete(
        quality_report(job.plan.quality_folder(job.target.name))
    )  # it judged an earlier attempt's snapshots
    tables = [table for table in job.tables() if table.files]
    with open_mirrors(job, tables) as mirrors:
        require_bases(job, mirrors)
        _write_to(job, tables, mirrors)


def _write_to(job: Job, tables: Sequence[MergeTable], mirrors: Mapping[str, OpenMirror]) -> None:
    folder = job.plan.written_folder(job.target.name)
    written = _written(job, tables, mirrors)
    changes = _changes(job, written, mirrors)
    snapshots: list[LakeSnapshot] = []
    counts: list[WriteCounts] = []
    with catalog_answers(lake(job)):
        for table in tables:
            mirror, mine = mirrors[table.table], written[table.table].counts
            of_run = {RUN: job.plan.run_id, PLAN: job.plan.digest}
            made = list(on_run_branch(mirror.live, changes[table.table], of_run))
            snapshots += made
            number = next_number(mirror.rows.table, mirror.rows.snapshot) if made else 0
            counts.append(
                WriteCounts(
                    table.table, mirror.name, mine["written"], 0, mine["absent"], equal=mine["equal"], number=number
                )
            )
            log.info("run %s target %s: %s", job.plan.run_id, job.target.name, counts[-1])
    job.store.put(lake_path(folder), dumped(snapshots, list[LakeSnapshot]))
    job.store.put(counts_path(folder), counts_to_bytes(counts))


def _written(job: Job, tables: Sequence[MergeTable], mirrors: Mapping[str, OpenMirror]) -> dict[str, _NewFiles]:
    places = {name: opened.mirror for name, opened in mirrors.items()}
    logs = _change_logs(mirrors)
    pieces: list[_RowsToWrite | _Truncated | _Staged] = []
    for table in tables:
        paths = job.filtered_files(table)
        pieces += [_RowsToWrite(table.table, table.rows // len(paths), path) for path in paths]
        mirror = places[table.table]
        removing = job.merge_counts[table.table].removing
        # The mirror may have rows of before a TRUNCATE that the tombstones know: it was rolled back alone, or the run
        # that knew it was killed between the two.
        pieces += [_Truncated(table.table, file, False, removing) for file in mirror.live if removing]
        fresh = tuple(fresh_truncates(mirror, removing))
        pieces += [_Truncated(table.table, file, True, fresh) for file in mirror.buried if fresh]
        if table.table in logs:
            rule = TableRule(change_columns(job, table), table.key)
            pieces += [_Staged(table.table, event, rule) for event in files_of_events(job, table)]

    def work(piece: _RowsToWrite | _Truncated | _Staged, place: Place) -> Iterator[_NewFiles]:
        mirror = places[piece.table]
        if isinstance(piece, _RowsToWrite):
            yield _of_rows(mirror, piece, place)
        elif isinstance(piece, _Staged):
            yield _of_changes(logs[piece.table], piece, place)
        else:
            yield _of_truncates(mirror, piece)

    files = {table.table: _NewFiles(table.table) for table in tables}
    with job.reading_staged():
        for result in all_results(in_tasks(job, pieces, in_lake(job, work))):
            files[result.table] += result
    for name in logs:
        _require_all(job, name, files[name].counts)
    return files


def _change_logs(mirrors: Mapping[str, OpenMirror]) -> dict[str, ChangeRows]:
    """The changes tables of those mirrors that have one."""
    return {name: mirror.tables.change_rows(*mirror.live[2:]) for name, mirror in mirrors.items() if mirror.live[2:]}


def _require_all(job: Job, table: str, counts: Counter[str]) -> None:
    """Raises DataAtRisk (run.unbalanced) unless the changes table gets, or has, every change that merge has read."""
    merged = job.merge_counts[table]
    log.info("run %s target %s: %s: %d changes are new", job.plan.run_id, job.target.name, table, counts["appended"])
    if counts["changes"] != merged.rows + merged.key_changes:
        raise DataAtRisk(
            f"The changes table of {table} would get or has {counts['changes']} changes of this run; merge has read "
            f"{merged.rows}, and {merged.key_changes} changes of a key.",
            where=f"target {job.target.name}",
            code="run.unbalanced",
            remedy="no batch was marked as consumed. Clear the run from its merge task on; if the figures stay wrong, "
            f"keep {job.plan.root} and report the figures",
        )


def _of_rows(mirror: Mirror, piece: _RowsToWrite, place: Place) -> _NewFiles:
    with place.store.open_input(piece.path) as file:
        rows = pq.read_table(file)
    done = effect(mirror, rows)
    absent = pc.equal(rows.column(CLASS), RowClass.ABSENT)
    equal = pc.and_(rows.column(SAME), pc.invert(absent))
    absent_rows = pc.sum(absent).as_py() or 0
    counts = Counter(written=rows.num_rows - absent_rows, absent=absent_rows, equal=pc.sum(equal).as_py() or 0)
    return _NewFiles(
        piece.table,
        list(write_rows(mirror.rows, done.rows)),
        list(write_rows(mirror.tombstones, done.tombstones)),
        dict(done.gone),
        dict(done.dug_up),
        counts=counts,
    )


def _of_truncates(mirror: Mirror, piece: _Truncated) -> _NewFiles:
    files = mirror.tombstones if piece.buried else mirror.rows
    gone = removed_by(files, piece.file, piece.removing)
    found = {piece.file.path: gone} if gone else {}
    if piece.buried:
        return _NewFiles(piece.table, dug_up=found)
    return _NewFiles(piece.table, ended=found) if files.flagged else _NewFiles(piece.table, gone=found)


def _of_changes(change_rows: ChangeRows, piece: _Staged, place: Place) -> _NewFiles:
    files = _NewFiles(piece.table)
    for events in file_events(place.store, piece.file, piece.rule):
        rows = new_rows(change_rows, events)
        files.changes += write_rows(change_rows.files, rows)
        files.counts.update(changes=events.num_rows, appended=rows.num_rows)
    return files


Table = tuple[str, int]
"""A logical table, and the number of one of its tables among MirrorTables.parts."""


def _changes(
    job: Job, written: Mapping[str, _NewFiles], mirrors: Mapping[str, OpenMirror]
) -> dict[str, list[FileChange]]:
    """What the new snapshots of each mirror's tables do, with the deletes, renewed files and truncated rows, which
    workers write."""
    places: dict[Table, KeyedFiles] = {}
    logs = _change_logs(mirrors)
    due: dict[Table, ChangeDue] = {}
    pieces: list[_Rewriting | _Ended] = []
    for name, files in written.items():
        mirror, truncates = mirrors[name].mirror, job.merge_counts[name].removing
        places |= {(name, 0): mirror.rows, (name, 1): mirror.tombstones}
        ended = left_to_truncates(files.ended, files.gone)
        pieces += [_Ended(name, each, ended[each.path], truncates) for each in mirror.live if each.path in ended]
        files += _NewFiles(name, gone=ended)
        due[name, 0] = change_due(mirror.live, files.rows, files.gone)
        due[name, 1] = change_due(mirror.buried, files.tombstones, files.dug_up)
        if name in logs:
            places[name, 2] = logs[name].files
            due[name, 2] = change_due(logs[name].live, files.changes, {})
    pieces += [_Rewriting(*at, rewrite) for at, change in due.items() for rewrite in change.rewrites]

    def work(piece: _Rewriting | _Ended, place: Place) -> Iterator[tuple[Table, list[NewFile]]]:
        if isinstance(piece, _Ended):
            at = piece.table, 0
            for rows in truncated_rows(places[at], piece.file, piece.positions, piece.truncates):
                yield at, list(write_rows(places[at], rows))
        else:
            at = piece.table, piece.part
            yield at, rewritten(places[at], piece.rewrite)

    renewed: dict[Table, list[NewFile]] = defaultdict(list)
    for at, new in all_results(in_tasks(job, pieces, in_lake(job, work))):
        renewed[at] += new
    changes: dict[str, list[FileChange]] = defaultdict(list)
    for at, change in due.items():
        changes[at[0]].append(change.done(renewed[at]))
    return changes
