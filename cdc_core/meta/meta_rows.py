"""The values that go into and out of the meta database: frozen, times in µs UTC."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from cdc_core.meta.run_states import RecordState, RunState
from cdc_core.model.coverage import NO_SURVEY, Surveyed, TableCoverage
from cdc_core.model.position import Checkpoint, Position
from cdc_core.model.run_plan import LedgerEntry, WriteCounts


@dataclass(frozen=True, slots=True)
class Lease:
    """The right to extract a source. `epoch` fences: only the latest epoch moves anything.

    identity: random, the same for all leases of the source in this meta database; it tells this pipeline's streams on
    the source from those of a pipeline whose file is a copy of this one.
    """

    source: str
    pipeline: str
    holder: str
    epoch: int
    expires_us: int
    identity: str = ""


@dataclass(frozen=True, slots=True)
class PlannedRun:
    """A run as its plan is: window None for a run from the command line; `plan_path` is on the stage.

    replays: the run has work without owning any record; it is PLANNED until its ledger is closed.
    by_driver: the driver of its jobs does their work; else Spark.
    """

    run_id: str
    pipeline: str
    window: tuple[int, int] | None
    plan_path: str
    plan_sha256: str
    airflow_run_id: str | None = None
    replays: bool = False
    by_driver: bool = False


@dataclass(frozen=True, slots=True)
class RingDepth:
    """The content of an extractor's ring (changes and transaction ends, bytes), and the most since it was opened."""

    items: int = 0
    size_bytes: int = 0
    most_items: int = 0
    most_bytes: int = 0


@dataclass(frozen=True, slots=True)
class FileRow:
    """A part of a batch, as its manifest lists it."""

    table: str
    path: str
    schema_id: str
    rows: int
    key_changes: int
    size_bytes: int
    plain_bytes: int
    sha256: str
    min_seq: int
    max_seq: int
    absent_rows: int = 0


@dataclass(frozen=True, slots=True)
class SourceCoverage:
    """tables: by source table. unstaged: those of which no manifest says it yet.

    surveyed: the latest complete survey.
    """

    tables: Mapping[str, TableCoverage] = field(default_factory=dict)
    unstaged: frozenset[str] = frozenset()
    surveyed: Surveyed = NO_SURVEY


@dataclass(frozen=True, slots=True)
class BatchRow:
    """A batch as meta knows it. `manifest` is its path on the stage."""

    batch_id: str
    pipeline: str
    source: str
    epoch: int
    begin: Position
    end: Position
    window_start_us: int
    window_end_us: int
    rows: int
    events: int
    transactions: int
    size_bytes: int
    manifest: str
    notes: tuple[str, ...]
    created_us: int

    @property
    def copied(self) -> bool:
        """As Manifest.copied: copied rows, which cover no stretch of the log."""
        return self.begin == self.end


@dataclass(frozen=True, slots=True)
class Claim:
    """A table of a batch that a run takes for a target; `table` is '' for a batch without rows.

    taken: False if the target's configuration leaves the table out; its record moves along anyway.
    """

    target: str
    batch_id: str
    table: str
    source: str
    begin_seq: int
    rows: int
    taken: bool = True


@dataclass(frozen=True, slots=True)
class RecordRow:
    """A consume record."""

    target: str
    batch_id: str
    table: str
    source: str
    begin_seq: int
    rows: int
    taken: bool
    state: RecordState
    run_id: str
    last_error: str | None
    updated_us: int


@dataclass(frozen=True, slots=True)
class RunRow:
    """A run; window None means everything staged when it was planned. by_driver: as in PlannedRun."""

    run_id: str
    pipeline: str
    window: tuple[int, int] | None
    state: RunState
    plan_path: str
    plan_sha256: str
    airflow_run_id: str | None
    by_driver: bool
    last_error: str | None
    created_us: int
    updated_us: int


@dataclass(frozen=True, slots=True)
class LedgerRow:
    """A closed account, and what each shard's transaction did."""

    entry: LedgerEntry
    shards: tuple[WriteCounts, ...]
    closed_us: int


@dataclass(frozen=True, slots=True)
class LastWrite:
    """A transaction that a target's table must have: of which run, and its number in the ledger of its database."""

    run_id: str
    number: int


@dataclass(frozen=True, slots=True)
class Renewal:
    """due: the write that a shard was looked for; None for none. last: what counts from now on; None: nothing is left
    to ask for."""

    due: LastWrite | None
    last: LastWrite | None


Renewals = Mapping[str, Mapping[str, Renewal]]
"""Keyed by logical table and shard."""


@dataclass(frozen=True, slots=True)
class StillLost:
    """What a target still lacks after a run. lacking: the shards by table that lack writes. renewed: what the others
    show, which the run restored."""

    lacking: Mapping[str, Collection[str]] = field(default_factory=dict)
    renewed: Renewals = field(default_factory=dict)


NOTHING_LOST = StillLost()
LastWrites = Mapping[str, Mapping[str, LastWrite]]
"""Keyed by logical table and shard (`database.table`)."""


@dataclass(frozen=True, slots=True)
class ClosedWrite:
    """What a closed ledger says of one table of a target: by shard the transaction's number and how many rows it wrote;
    by source the first and the last batch."""

    run_id: str
    numbers: Mapping[str, int]
    written: Mapping[str, int]
    spans: Mapping[str, tuple[str, str]]


@dataclass(frozen=True, slots=True)
class Failure:
    """An error that no success has followed. subject: a source (extract), a run (run), "" (plan).

    first_us, failed_us: the first and the latest of `times` failures in a row with this code.
    """

    task: str
    subject: str
    code: str
    exit_class: str
    what: str
    where: str
    remedy: str
    first_us: int
    failed_us: int
    times: int


class CopyState(StrEnum):
    """How far the copy of a table's existing rows is."""

    PENDING = "pending"
    REFUSED = "refused"
    COPYING = "copying"
    READ = "read"
    """To its end; it is staged once everything that was committed meanwhile is extracted."""
    COPIED = "copied"


@dataclass(frozen=True, slots=True)
class CopyStatus:
    """The copy of the rows that a source table had before its capture.

    why:            of a pending one what is missing, of a refused one why it cannot be copied.
    rows:           read so far; 0 once they are staged, which no longer counts them.
    rows_estimated: by the server; None where it is not known.
    started_us, updated_us: when the copy began, and when its latest chunk was read; 0 before and after it.
    size_bytes:     of the values that were read.
    rows_s:         its rate from when it began to its latest chunk; None before the first one.
    copied_to:      the place in the log as of which a copied table is whole.
    """

    table: str
    state: CopyState
    why: str = ""
    rows: int = 0
    rows_estimated: int | None = None
    started_us: int = 0
    updated_us: int = 0
    copied_to: str = ""
    rows_s: float | None = None
    size_bytes: int = 0

    @property
    def percent(self) -> float | None:
        """The share of the rows that are read, by an estimate; None without one."""
        match self.state:
            case CopyState.READ | CopyState.COPIED:
                return 100.0
            case CopyState.COPYING if self.rows_estimated:
                return round(min(99.0, 100 * self.rows / self.rows_estimated), 1)
            case _:
                return None


@dataclass(frozen=True, slots=True)
class SourceStatus:
    """lag_us: from the watermark to the database's clock; what an idle source has proven counts as no lag. None without
    a watermark, which was withdrawn because clocks were ahead: see Checkpoint.floor_us. Below 0 before that."""

    source: str
    checkpoint: Checkpoint
    lag_us: int | None
    updated_us: int
    epoch: int
    holder: str | None
    """The extractor that reads it now; None if nobody holds an unexpired lease."""
    ring: RingDepth
    """As of the holder's last renewal; without a holder the ring is empty, and `most_*` are the last holder's."""
    batches: int
    rows: int
    size_bytes: int
    notes: tuple[str, ...]
    """Distinct notes of its latest batches, newest first: of those that some target has not consumed, and of those in
    which a table began to lack what it still lacks."""
    retention_s: int = 0
    """How long the server keeps its log, as of the last extract; 0: for ever, or unknown."""
    partial: Mapping[str, TableCoverage] = field(default_factory=dict)
    """Source tables that have rows missing in the stage."""
    copies: tuple[CopyStatus, ...] = ()
    """Source tables that a copy is due for, under way or done, those that are not done first."""
    copier: str | None = None
    """The process that copies tables of it now."""
    copies_paused_us: int = 0
    """Since when no chunk is read, because somebody has paused the copies; 0 if nobody has."""
    copies_paused_by: str = ""


@dataclass(frozen=True, slots=True)
class StateCount:
    batches: int
    rows: int


@dataclass(frozen=True, slots=True)
class TargetStatus:
    """records: by state of the consume records. pending: staged batches that no run has taken for this target yet."""

    target: str
    pending: StateCount
    records: Mapping[RecordState, StateCount]
    last_error: str | None
    oldest_window_us: int | None = None
    """Start of the oldest window with a batch that the target has not consumed."""
    copied_rows: int = 0
    """Rows of copies that are staged and that no run has taken for this target yet."""

    @property
    def waiting(self) -> StateCount:
        """Staged batches that the target has not committed, whether a run has taken them or not."""
        counts = [self.pending, *(count for state, count in self.records.items() if not state.consumed)]
        return StateCount(sum(count.batches for count in counts), sum(count.rows for count in counts))


@dataclass(frozen=True, slots=True)
class Verification:
    """progress: of the verification of a target that is under way, a document; "" where none is. evidence: by mode, a
    summary of what the latest one has found."""

    target: str
    progress: str
    evidence: Mapping[str, Mapping[str, Any]]
    updated_us: int


@dataclass(frozen=True, slots=True)
class Cutover:
    """pipeline: whose sources the application leaves. way_back: the pipeline in the other direction. steps: the states
    that it went through, each with the time, µs UTC. details: what its steps have to know of each other, JSON."""

    cutover_id: str
    pipeline: str
    way_back: str
    state: str
    steps: tuple[tuple[str, int], ...] = ()
    details: Mapping[str, Any] = field(default_factory=dict)
    error: str = ""
    created_us: int = 0
    updated_us: int = 0

    @property
    def switched(self) -> bool:
        """Whether it has led the application to the new tables; another one may have led it back since."""
        return self.state in ("SWITCHED", "WATCH", "COMPLETE")

    def at_us(self, state: str) -> int | None:
        """When it last came to a state."""
        return next((at for name, at in reversed(self.steps) if name == state), None)


@dataclass(frozen=True, slots=True)
class Rollout:
    """script: the file's text. direction: up or down. prints: by server's version and logical table, the digests of the
    definition before the first statement and after each. ways: likewise, how each statement is executed. shards: by
    logical table, the numbers of those that it was begun for. state: as rollouts.py names them."""

    rollout_id: str
    pipeline: str
    target: str
    name: str
    direction: str
    script: str
    prints: Mapping[str, Mapping[str, Sequence[str]]]
    ways: Mapping[str, Mapping[str, Sequence[str]]]
    shards: Mapping[str, Sequence[int]]
    state: str = ""
    created_us: int = 0
    updated_us: int = 0


@dataclass(frozen=True, slots=True)
class SetAside:
    """Rows of a table that its target rejected in a run, and lacks. since_us: when the run's ledger was closed."""

    run_id: str
    target: str
    table: str
    rows: int
    since_us: int


@dataclass(frozen=True, slots=True)
class Status:
    """What `lockstep status` shows for a pipeline."""

    pipeline: str
    now_us: int
    watermark_us: int
    """The lowest watermark of its sources: all windows that end at or before it are staged. 0: not known."""
    sources: tuple[SourceStatus, ...]
    targets: tuple[TargetStatus, ...]
    runs: tuple[RunRow, ...]
    ledgers: tuple[LedgerRow, ...]
    failures: tuple[Failure, ...] = ()
    verifications: tuple[Verification, ...] = ()
    cutovers: tuple[Cutover, ...] = ()
    """The latest ones from and to it, if no process is at them."""
    rollouts: tuple[Rollout, ...] = ()
    """Changes of definitions that are open, if no process is at them."""
    holding: frozenset[str] = frozenset()
    """Runs that have batches which one of the pipeline's targets has not committed."""
    set_aside: tuple[SetAside, ...] = ()
