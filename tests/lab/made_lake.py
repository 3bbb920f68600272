"""A mirror on an SQLite catalog, and runs on it without a source, a stage or Spark: what the filter, the write and the
commit of a run do, by the same functions of cdc_core/lake."""

from __future__ import annotations

import io
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.table import Table
from pyroaring import BitMap

from cdc_core.history.rule import TableRule
from cdc_core.lake.change_rows import new_rows
from cdc_core.lake.compaction import ChangeDue, change_due, rewritten
from cdc_core.lake.data_files import KeyedFiles, LiveFile, NewFile, write_rows
from cdc_core.lake.lake_tables import MirrorRule, MirrorTables, changes_of, create, followed, opened, tombstones_of
from cdc_core.lake.mirror import Mirror, effect, fresh_truncates, judged
from cdc_core.lake.publication import LakeSnapshot, on_run_branch, publish
from cdc_core.lake.snapshots import (
    RUN,
    FileChange,
    LiveFiles,
)
from cdc_core.lake.truncated import left_to_truncates, removed_by, truncated_rows
from cdc_core.model.batch import Manifest
from cdc_core.model.merged_columns import BORN, CLASS, MergedOp, RowClass, merged_schema
from cdc_core.model.places import in_order
from cdc_core.model.staged_columns import ABSENT, OP, ROW, SEQ, SOURCE, TS, absent_text
from cdc_core.model.version import Version, encode
from cdc_core.stage.objects import ObjectStore
from cdc_core.stage.staged_events import FileOfEvents, file_events

NAME, LOGICAL, PIPELINE = ("shop", "t"), "t", "line"


@dataclass(frozen=True)
class Winner:
    """The last change of a key in a run: a row that is written or deleted. row: None for a TRUNCATE. absent: columns
    that the log does not carry."""

    seq: int
    row: tuple[Any, ...] | None
    op: str = "u"
    born: bool = True
    source: str = "one"
    ts_us: int = 0
    absent: tuple[str, ...] = ()

    @property
    def version(self) -> bytes:
        return encode(Version(self.ts_us, self.seq, 0, self.source))


def upsert(seq: int, *row: Any) -> Winner:
    return Winner(seq, row)


def delete(seq: int, *row: Any) -> Winner:
    return Winner(seq, row, "d")


def truncate(seq: int) -> Winner:
    return Winner(seq, None, "t")


@dataclass
class Applied:
    """What a run has made. classes: of its winners."""

    snapshots: list[LakeSnapshot]
    classes: Counter[str] = field(default_factory=Counter)


class MadeLake:
    """columns: of the rows; the first ones are the key. flagged: deleted rows stay. Each MadeLake has a catalog of its
    own: two of them in one folder are two processes."""

    def __init__(
        self,
        folder: Path,
        columns: Sequence[tuple[str, pa.DataType]],
        key: Sequence[str] = ("id",),
        *,
        flagged: bool = False,
        logical: str = LOGICAL,
        owner: str = PIPELINE,
        changes: bool = False,
    ) -> None:
        self.row, self.key = [pa.field(*column) for column in columns], tuple(key)
        self.rule = MirrorRule(logical, owner, self.key, flagged, changes)
        (folder / "warehouse").mkdir(exist_ok=True)
        self.catalog = SqlCatalog(
            "lake", uri=f"sqlite:///{folder}/catalog.db", warehouse=(folder / "warehouse").as_uri()
        )
        create(self.catalog, NAME, self.rule, self.row)
        self._runs = 0

    def winners(self, changes: Iterable[Winner]) -> pa.Table:
        """Merged rows."""
        schema, rows = merged_schema(self.row, self.key), []
        for change in changes:
            values = change.row if change.row is not None else (None,) * len(self.row)
            named = dict(zip((each.name for each in self.row), (*values, *[None] * len(self.row)), strict=False))
            place = {TS: change.ts_us, SOURCE: change.source, SEQ: change.seq, ROW: 0}
            rows.append(
                named | place | {OP: MergedOp(change.op), BORN: change.born, ABSENT: absent_text(change.absent)}
            )
        return pa.Table.from_pylist(rows, schema)

    def alter(self, columns: Sequence[tuple[str, pa.DataType]], renames: Sequence[tuple[str, str]] = ()) -> None:
        """As a run does that finds other columns at the source."""
        self.row = [pa.field(*column) for column in columns]
        followed(self.opened(), self.row, renames)

    def opened(self) -> MirrorTables:
        return opened(self.catalog, NAME, self.rule)

    def apply(self, *changes: Winner, files: int = 1, run: str = "") -> Applied:
        """A run: as `attempt`, and published."""
        done = self.attempt(*changes, files=files, run=run)
        publish(self.catalog, done.snapshots)
        return done

    def attempt(self, *changes: Winner, files: int = 1, run: str = "") -> Applied:
        """Filter and write: snapshots on a branch. files: in how many files the merged rows are."""
        self._runs += 1
        run = run or f"run_{self._runs}"
        tables = self.opened()
        live = tables.live()
        rows, tombstones = live[:2]
        mirror = tables.mirror(rows, tombstones)
        removing = tuple(change.version for change in changes if change.op == "t")
        new = _New()
        for at in range(files):
            new.add(mirror, self.winners(changes[at::files]), removing)
        new.truncate(mirror, removing)
        changes_of = (
            _done(mirror.rows, change_due(mirror.live, new.rows, new.gone)),
            _done(mirror.tombstones, change_due(mirror.buried, new.tombstones, new.dug_up)),
        )
        made = on_run_branch(live, (*changes_of, FileChange())[: len(live)], {RUN: run})
        return Applied(list(made), new.classes)

    def append(self, store: ObjectStore, manifests: Iterable[Manifest]) -> list[LakeSnapshot]:
        """What a run does with the staged changes of batches, on its branch. The columns are those that the lake has
        now."""
        self._runs += 1
        tables = self.opened()
        live = tables.live()
        change_rows, rule = tables.change_rows(live[2]), TableRule(pa.schema(self.row), self.key)
        new: list[NewFile] = []
        for manifest in manifests:
            for part in manifest.parts:
                file = FileOfEvents(part, manifest.schemas[part.schema_id], part.key_changes)
                for events in file_events(store, file, rule):
                    new += write_rows(change_rows.files, new_rows(change_rows, events))
        change = _done(change_rows.files, change_due(change_rows.live, new, {}))
        return list(on_run_branch(live, (FileChange(), FileChange(), change), {RUN: f"run_{self._runs}"}))

    def changes(self) -> list[dict[str, Any]]:
        """What a reader of the changes table sees, in the order of the log."""
        rows = self.catalog.load_table(changes_of(NAME)).scan().to_arrow()
        return rows.sort_by([(name, "ascending") for name in (SEQ, ROW, SOURCE, OP)]).to_pylist()  # type: ignore[no-any-return]

    def table(self, *, tombstones: bool = False) -> Table:
        return self.catalog.load_table(tombstones_of(NAME) if tombstones else NAME)

    def live(self, *, tombstones: bool = False) -> LiveFiles:
        return self.opened().live()[tombstones]

    def scanned(self, *, tombstones: bool = False) -> list[dict[str, Any]]:
        """What a reader sees, by PyIceberg's own scan."""
        rows: list[dict[str, Any]] = self.table(tombstones=tombstones).scan().to_arrow().to_pylist()
        return rows


def _done(files: KeyedFiles, due: ChangeDue) -> FileChange:
    return due.done(new for rewrite in due.rewrites for new in rewritten(files, rewrite))


@dataclass
class _New:
    rows: list[NewFile] = field(default_factory=list)
    tombstones: list[NewFile] = field(default_factory=list)
    gone: dict[str, BitMap] = field(default_factory=lambda: defaultdict(BitMap))
    dug_up: dict[str, BitMap] = field(default_factory=lambda: defaultdict(BitMap))
    classes: Counter[str] = field(default_factory=Counter)

    def add(self, mirror: Mirror, winners: pa.Table, removing: Sequence[bytes]) -> None:
        for rows, _ in judged(mirror, winners, removing):
            self.classes.update(rows.column(CLASS).to_pylist())
            rows = through_parquet(in_order(rows.filter(pc.not_equal(rows.column(CLASS), RowClass.STALE)), mirror.key))
            done = effect(mirror, rows)
            self.rows += write_rows(mirror.rows, done.rows)
            self.tombstones += write_rows(mirror.tombstones, done.tombstones)
            for mine, theirs in ((self.gone, done.gone), (self.dug_up, done.dug_up)):
                for path, positions in theirs.items():
                    mine[path] |= positions

    def truncate(self, mirror: Mirror, removing: Sequence[bytes]) -> None:
        fresh = fresh_truncates(mirror, removing)
        for files, live, gone, mine in (
            (mirror.rows, mirror.live, self.gone, removing),
            (mirror.tombstones, mirror.buried, self.dug_up, fresh),
        ):
            for file in live if mine else ():
                if removed := removed_by(files, file, mine):
                    if files.flagged and (left := left_to_truncates({file.path: removed}, gone)):
                        for rows in truncated_rows(files, file, left[file.path], mine):
                            self.rows += write_rows(files, rows)
                    gone[file.path] |= removed


def through_parquet(rows: pa.Table) -> pa.Table:
    """As the next task of a run reads it."""
    file = io.BytesIO()
    pq.write_table(rows, file)
    return pq.read_table(io.BytesIO(file.getvalue()))


def deleted_share(file: LiveFile) -> float:
    return file.deleted / file.rows
