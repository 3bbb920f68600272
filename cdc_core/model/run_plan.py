"""A run: one pass of staged batches to the targets. The plan is written once; every task of the run reads it.

The files of a plan are under `runs/<run id>/<digest of the plan>/` on the stage. A run that is planned again with other
batches has another folder, so that tasks of the first plan that are still alive meet nothing of the second:

    plan.json                                     RunPlan
    merged/set=<n>/cdc_table=<table>/*.parquet        winners, and merged/set=<n>/counts.json
    filtered/target=<t>/cdc_table=<table>/*.parquet   what will be written, and filtered/target=<t>/counts.json
    rejected/target=<t>/cdc_table=<table>/*.parquet   what will not, with `_cdc_reason`
    rejected/quarantine/target=<t>/cdc_table=<table>/*.parquet   what the target did not take, with `_cdc_reason`
    written/target=<t>/counts.json                what each shard's transaction did
    filtered/target=<t>/lake.json                 of a lake: the snapshots that the run is based on
    written/target=<t>/lake.json                  of a lake: the snapshots that the run has made
    quality/target=<t>/*.json                     results of the expectations, and quality/target=<t>/report.html

A task deletes its `counts.json` (quality: `report.html`) first and writes it last: without it, nothing in its folder
counts. A task that runs again replaces its own folder and nothing else.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, TypeVar

from cdc_core.errors import PlanOutdated, repeat_from
from cdc_core.model.json_codec import UnknownVersion, dumped, parsed
from cdc_core.model.paths import segment
from cdc_core.model.schema import TableSchema


@dataclass(frozen=True, slots=True)
class PlannedFile:
    """A part that the run reads. The others are as in Part.

    path, size_bytes, sha256: of the file, relative to the stage's root. plain_bytes: of the rows.
    of_rows: of a file that has rows of other batches too, how many it has: this batch's are those from min_seq to
             max_seq. 0: the file has this batch's rows alone.
    """

    path: str
    rows: int
    schema_id: str
    batch_id: str
    size_bytes: int
    plain_bytes: int
    sha256: str
    max_seq: int
    absent_rows: int = 0
    min_seq: int = 0
    of_rows: int = 0
    key_changes: int = 0


@dataclass(frozen=True, slots=True)
class FileToRead:
    """A file of a run with the rows of one or more of its batches.

    rows: those that count. seqs: the ranges of their order keys, from and with the first to and with the last, in
    order; () for all rows of the file. key_changes: as in Part. batches: the ids of those whose rows it has.
    """

    path: str
    schema_id: str
    rows: int
    size_bytes: int
    sha256: str
    seqs: tuple[tuple[int, int], ...] = ()
    key_changes: int = 0
    batches: tuple[str, ...] = ()


def files_to_read(files: Iterable[PlannedFile]) -> list[FileToRead]:
    """Each file once, in the order in which they first come."""
    mine: dict[str, list[PlannedFile]] = {}
    for file in files:
        mine.setdefault(file.path, []).append(file)
    to_read = []
    for path, some in mine.items():
        rows, first = sum(file.rows for file in some), some[0]
        whole = not first.of_rows or first.of_rows == rows
        seqs = () if whole else tuple(sorted((file.min_seq, file.max_seq) for file in some))
        key_changes, batches = sum(file.key_changes for file in some), tuple(file.batch_id for file in some)
        to_read.append(
            FileToRead(path, first.schema_id, rows, first.size_bytes, first.sha256, seqs, key_changes, batches)
        )
    return to_read


@dataclass(frozen=True, slots=True)
class MergeTable:
    """One logical table to merge: files in stream order, and the key columns that identify a row; () if all of its
    columns do, and equal rows are counted.

    on_truncate, shared_keys: as in config.TargetTable."""

    table: str
    key: tuple[str, ...]
    files: tuple[PlannedFile, ...]
    on_truncate: str = "stop"
    shared_keys: str = "stop"

    @property
    def rows(self) -> int:
        return sum(file.rows for file in self.files)

    @property
    def plain_bytes(self) -> int:
        return sum(file.plain_bytes for file in self.files)

    @property
    def absent_rows(self) -> int:
        return sum(file.absent_rows for file in self.files)


@dataclass(frozen=True, slots=True)
class MergeSet:
    """Tables merged together. Targets that wait for the same batches share one set."""

    name: str
    tables: tuple[MergeTable, ...]


@dataclass(frozen=True, slots=True)
class TargetRun:
    """What one target takes in this run: `batches` in stream order; `skipped` were consumed by it before; `layouts`, by
    table: which rows go to which shard (config.TargetTable.layout)."""

    target: str
    merge_set: str
    batches: tuple[str, ...]
    skipped: tuple[str, ...] = ()
    layouts: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Restored:
    """A shard of a table whose lost writes a replay repeats: those of these runs; all that there ever were, if
    `everything`. A commit trusts it only if the plan was made after the loss."""

    table: str
    shard: str
    runs: tuple[str, ...]
    everything: bool


RUNS, PLAN = "runs/", "plan.json"
PLAN_VERSION = 5
"""The version of plan.json. It grows when its fields or the files that tasks leave for one another change, so that no
task continues the work of another version of Lockstep."""
_DIGEST_CHARS = 16
DRIVER_BYTES = 256 << 20
"""The changes that the driver does itself take at most so much memory as they were staged; it has them all at once."""


def run_root(run_id: str) -> str:
    """The run's folder on the stage."""
    return f"{RUNS}{segment(run_id)}"


def plan_path(run_id: str, digest: str) -> str:
    """The path of a plan on the stage."""
    return f"{run_root(run_id)}/{digest[:_DIGEST_CHARS]}/{PLAN}"


def plan_folder(path: str) -> str:
    """The folder of a plan, by the path of its plan.json."""
    return path.removesuffix(f"/{PLAN}")


def quality_folder(root: str, target: str) -> str:
    """The verdicts of a target's suites, and the report, which shows them. root: the folder of the plan."""
    return f"{root}/quality/target={target}"


def quarantine_folder(root: str, target: str) -> str:
    """The rows that a target rejected. root: the folder of the plan."""
    return f"{root}/rejected/quarantine/target={target}"


def quality_report(folder: str) -> str:
    """The report in a quality folder. It is written last: without it, no verdict in the folder counts."""
    return f"{folder}/report.html"


def counts_path(folder: str) -> str:
    """The counts of the task that wrote a merged, filtered or written folder."""
    return f"{folder}/counts.json"


def lake_path(folder: str) -> str:
    """What the task that wrote a filtered or written folder knows of the snapshots of a lake."""
    return f"{folder}/lake.json"


def table_folder(folder: str, table: str) -> str:
    """The files of one logical table in a merged, filtered or rejected folder."""
    return f"{folder}/cdc_table={segment(table)}"


@dataclass(frozen=True)
class RunPlan:
    """See the module's docstring. Times in µs UTC; the window is [start, end).

    replay: the run applies what it was told to, consumed or not, and neither needs nor moves consume records.
    restores: writes that its target had lost when the replay was planned, and that it repeats.
    """

    run_id: str
    pipeline: str
    stage_uri: str
    window_start_us: int
    window_end_us: int
    merge_sets: tuple[MergeSet, ...]
    targets: tuple[TargetRun, ...]
    schemas: Mapping[str, TableSchema]
    replay: bool = False
    restores: tuple[Restored, ...] = ()

    @cached_property
    def digest(self) -> str:
        """SHA-256 of plan.json: what meta keeps of a plan, so that no task works on another than the claimed one."""
        return hashlib.sha256(self.to_bytes()).hexdigest()

    @cached_property
    def path(self) -> str:
        return plan_path(self.run_id, self.digest)

    @property
    def root(self) -> str:
        return plan_folder(self.path)

    def by_driver(self, driver_rows: int) -> bool:
        """Whether the driver of the run's jobs does their work itself, without Spark, because there are few changes,
        and not large ones."""
        tables = [table for merge_set in self.merge_sets for table in merge_set.tables]
        rows, size = sum(table.rows for table in tables), sum(table.plain_bytes for table in tables)
        return rows <= driver_rows and size <= DRIVER_BYTES

    def merged_folder(self, merge_set: str) -> str:
        return f"{self.root}/merged/set={merge_set}"

    def filtered_folder(self, target: str) -> str:
        return f"{self.root}/filtered/target={target}"

    def rejected_folder(self, target: str) -> str:
        return f"{self.root}/rejected/target={target}"

    def quarantine_folder(self, target: str) -> str:
        return quarantine_folder(self.root, target)

    def written_folder(self, target: str) -> str:
        return f"{self.root}/written/target={target}"

    def quality_folder(self, target: str) -> str:
        return quality_folder(self.root, target)

    def merge_set(self, name: str) -> MergeSet:
        return next(merge_set for merge_set in self.merge_sets if merge_set.name == name)

    def target(self, name: str) -> TargetRun:
        return next(target for target in self.targets if target.target == name)

    def schemas_of(self, table: MergeTable) -> list[TableSchema]:
        """The definitions of a table's files, in the order in which they first come."""
        return [self.schemas[schema_id] for schema_id in dict.fromkeys(file.schema_id for file in table.files)]

    def current_schemas(self, table: MergeTable) -> tuple[TableSchema, ...]:
        """The last definition of each source table that feeds the logical one: by the order of the log, in which copied
        rows are where they were read, and not where they were staged."""
        last: dict[tuple[str, str], tuple[int, TableSchema]] = {}
        for file in table.files:
            schema = self.schemas[file.schema_id]
            origin = file.batch_id.partition("/")[0], schema.name
            if origin not in last or last[origin][0] <= file.max_seq:
                last[origin] = file.max_seq, schema
        return tuple(schema for _, schema in last.values())

    def spans(self, target: str) -> dict[str, dict[str, tuple[str, str]]]:
        """The first and the last batch with changes of a table, by table of the target and by source."""
        found: dict[str, dict[str, tuple[str, str]]] = {}
        for table in self.merge_set(self.target(target).merge_set).tables:
            spans = found.setdefault(table.table, {})
            for file in table.files:
                source = file.batch_id.partition("/")[0]
                spans[source] = (spans.get(source, (file.batch_id, ""))[0], file.batch_id)
        return found

    def claimed(self, target: str) -> tuple[str, ...]:
        """The batches whose consume records the run moves."""
        return () if self.replay else self.target(target).batches

    def to_bytes(self) -> bytes:
        return dumped(self, version=PLAN_VERSION)

    @classmethod
    def from_bytes(cls, raw: bytes) -> RunPlan:
        """Raises Refused (run.clear_task)."""
        try:
            return parsed(cls, raw, version=PLAN_VERSION)
        except UnknownVersion as error:
            raise PlanOutdated(
                f"The plan has version {ascii(error.version)[:40]}; this version of Lockstep reads version "
                f"{PLAN_VERSION}: Lockstep was upgraded or downgraded while the run was under way.",
                where=f"run {json.loads(raw).get('run_id')}",
                remedy=f"{repeat_from('plan')}. The guard in the target makes a repeated write harmless",
            ) from None


@dataclass(frozen=True, slots=True)
class MergeCounts:
    """The counts of one table: `rows` read from the files, `key_changes` among them, `winners` written, `superseded`
    dropped, by later changes or by a truncate.

    Each figure is counted on its own, so that rows + key_changes = winners + superseded can fail.
    truncates: the versions (hex) of those winners that make older rows of the target go.
    files: that count, by name in the table's folder: an attempt that was killed may still add its own.
    """

    table: str
    rows: int
    key_changes: int
    winners: int
    superseded: int
    truncates: tuple[str, ...] = ()
    files: tuple[str, ...] = field(default=(), repr=False, compare=False)

    @property
    def removing(self) -> tuple[bytes, ...]:
        """The versions of `truncates`."""
        return tuple(map(bytes.fromhex, self.truncates))


@dataclass(frozen=True, slots=True)
class FilterCounts:
    """The counts of one table and target: what happens to each winner. All but the stale ones are written.

    files: those to write, as in MergeCounts.
    """

    table: str
    insert: int
    update: int
    delete: int
    revived: int
    """Updates of a row that the target does not have: they become inserts."""
    absent: int
    """Deletes of a row that the target does not have: only the tombstone is written."""
    stale: int
    """Older than the target's row or tombstone: kept under rejected/."""
    files: tuple[str, ...] = field(default=(), repr=False, compare=False)


@dataclass(frozen=True, slots=True)
class WriteCounts:
    """The counts of one table and shard: what the shard's transaction did with the rows that filter gave it."""

    table: str
    shard: str
    written: int
    stale: int
    absent: int
    equal: int = 0
    """Those of `written` that were already there in exactly this version."""
    quarantined: int = 0
    """Rows that the table rejects, set aside with the reason."""
    number: int = 0
    """The transaction's number among all that have written this table, as its database's ledger has it; 0: unknown."""


@dataclass(frozen=True, slots=True)
class LedgerEntry:
    """The account of one table and target in a run. `problems()` is empty when it adds up."""

    run_id: str
    target: str
    table: str
    staged_rows: int
    key_changes: int
    winners: int
    superseded: int
    written: int
    stale: int
    absent: int
    equal: int = 0
    """Those of `written` that the target already had in this version. All of them, if a run changes no row."""
    quarantined: int = 0
    """Set aside, because the target rejects them."""

    def problems(self) -> tuple[str, ...]:
        """Each broken equation in words (G9 of docs/guarantees.md)."""
        staged = self.staged_rows + self.key_changes
        problems = []
        if staged != self.winners + self.superseded:
            problems.append(f"staged {staged} != winners {self.winners} + superseded {self.superseded}")
        applied = self.written + self.stale + self.absent + self.quarantined
        if self.winners != applied:
            aside = f" + quarantined {self.quarantined}" if self.quarantined else ""
            problems.append(
                f"winners {self.winners} != written {self.written} + stale {self.stale} + absent {self.absent}{aside}"
            )
        if self.equal > self.written:
            problems.append(f"equal {self.equal} > written {self.written}")
        return tuple(problems)


Counts = TypeVar("Counts", MergeCounts, FilterCounts, WriteCounts)


def counts_to_bytes(counts: Sequence[MergeCounts | FilterCounts | WriteCounts]) -> bytes:
    """Counts of a task as JSON."""
    return dumped(counts, Sequence[Any], indent=1)


def counts_from_bytes(raw: bytes, kind: type[Counts]) -> list[Counts]:
    """Counts of a task from JSON. Raises ValueError for anything else."""
    return parsed(list[kind], raw)  # type: ignore[valid-type]
